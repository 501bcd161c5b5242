"""Fuzzing of every parser that reads what a peer, a file or an operator gives.

    python -m torture.fuzz                          all targets, 1,000 inputs each, from a fixed seed
    python -m torture.fuzz ssml esl --inputs 1000000 --guided

`targets.py` lists the parsers, with the errors that each one documents. `judge.py` says what must never happen.
`mutation.py` makes inputs; `guided.py` lets atheris choose those that reach new code. `corpus/` has a few of those.
"""
