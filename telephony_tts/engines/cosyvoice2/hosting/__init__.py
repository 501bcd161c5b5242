"""Runs the core in a thread or in a process of its own, which it watches and restarts."""
