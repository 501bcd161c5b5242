"""Text to ids; what the language model is fed, and when it stops."""
