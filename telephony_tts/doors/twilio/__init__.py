"""Twilio Media Streams, a media leg with signed requests."""
