"""What `telephony-tts bench` measures: callers, measures, reports."""
