"""Named tokens with limits."""
