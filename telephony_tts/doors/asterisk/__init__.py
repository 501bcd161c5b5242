"""Asterisk's chan_websocket, a media leg."""
