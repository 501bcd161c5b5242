"""Plivo's audio streams, a media leg."""
