"""Engines that run in another process or on another machine."""
