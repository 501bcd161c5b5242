"""The clock, the event loop, errors, logs, metrics, settings from YAML, host names."""
