"""Turns a recording into a voice, and stores it."""
