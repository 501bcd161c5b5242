"""Text ids to speech tokens."""
