"""Vonage's WebSockets, a media leg."""
