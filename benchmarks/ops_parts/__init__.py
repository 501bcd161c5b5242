"""The parts of `benchmarks/ops.py`: what an operator's tools and engines of others cost.

Each part is a module with a sentence about it and a function `measure(chosen)`, which takes the flags of the benchmark
(`quick`, `priority`, ...) and returns a dict. Its key `rows` lists what the table shows: `what`, `reached` and
`to_reach`.
"""
