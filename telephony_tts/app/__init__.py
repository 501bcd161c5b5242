"""Builds the server from its settings: starts, reloads, drains and stops it. Only this room knows all others."""
