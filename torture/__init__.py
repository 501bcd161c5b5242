"""Tries the server with faults, floods and hours, and checks what it promises. `python -m torture --help` says how."""
