"""Telnyx's media streams, a media leg."""
