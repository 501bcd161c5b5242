"""Asterisk by ARI: calls in Stasis, outgoing calls, audio over RTP."""
