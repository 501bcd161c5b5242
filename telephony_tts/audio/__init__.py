"""Codecs, resampler, encoder of a turn, containers, voice detection, sound files."""
