"""SignalWire's streams, a media leg."""
