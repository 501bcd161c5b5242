"""Exotel's voice streams, a media leg."""
