"""The clock, the event loop, the error tree, host names."""
