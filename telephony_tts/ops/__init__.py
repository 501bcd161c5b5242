"""What an operator meets: settings, logs, metrics, traces, certificates, watched files."""
