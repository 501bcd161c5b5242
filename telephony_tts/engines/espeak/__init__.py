"""espeak-ng: 29 voices, exact word times."""
