"""Speech tokens to mel frames."""
