"""Asterisk by AudioSocket: one TCP connection for each call."""
