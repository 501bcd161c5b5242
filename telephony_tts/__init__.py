"""A WebSocket server that gives a call-centre bot its voice."""
