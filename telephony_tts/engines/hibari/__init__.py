"""The embedded English voice."""
