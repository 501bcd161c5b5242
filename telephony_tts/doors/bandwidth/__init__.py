"""Bandwidth media streaming, a media leg."""
