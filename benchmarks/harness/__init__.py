"""What the benchmarks share: processes pinned to a core, a light WebSocket peer, and the written result."""
