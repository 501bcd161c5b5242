"""What the benchmarks share: processes on chosen cores, light WebSocket peers, scenarios of load, and results."""
