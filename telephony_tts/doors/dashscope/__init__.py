"""DashScope's tasks over WebSocket, for bots."""
