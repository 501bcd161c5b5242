"""Splits text into sentences and normalises them, with source offsets: Markdown, SSML, lexicons."""
