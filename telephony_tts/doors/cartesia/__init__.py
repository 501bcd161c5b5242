"""Cartesia's WebSocket, for bots."""
