"""Mel frames to audio."""
