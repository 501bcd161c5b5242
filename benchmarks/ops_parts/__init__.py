"""The parts of `benchmarks/ops.py`. Each is a module with a sentence about it and a function `measure`.

`measure(chosen)` takes the flags of the benchmark (`quick`, `priority`, ...) and returns a dict. Its key `rows` lists
what the table shows: `what`, `reached` and `to_reach`.
"""
