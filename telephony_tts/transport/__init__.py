"""Sockets: listening, admission, the two legs of a call, the call's tasks."""
