"""The parts of ops.py: what an operator's tools cost. Each has a function `measure` and runs alone too."""
