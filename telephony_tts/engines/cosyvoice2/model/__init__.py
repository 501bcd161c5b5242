"""The networks, and what they share."""
