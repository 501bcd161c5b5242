"""Decides what is computed next, for which streams; never sees a tensor."""
