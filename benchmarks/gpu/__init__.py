"""The check of a GPU in minutes: `benchmarks/gpu_check.py`."""
