"""Genesys Cloud's AudioHook, a media leg with signed requests."""
