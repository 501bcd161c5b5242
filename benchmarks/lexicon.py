"""What a lexicon costs: microseconds a sentence by the number of its entries and patterns, and loading a file.

Speeds are the thread's processor time, the least of repeats on one core. "find" is the search for the readings. "added"
is the search and mapping the sentence back, less the time to read the same rewritten sentence without a lexicon: the
replaced words need their own time to be read. If ahocorasick_rs is installed, an automaton with the same entries is
measured beside it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

from harness import report
from harness.process import cores

from telephony_tts.ops.lexicon_files import compiled, parse
from telephony_tts.text.lexicon import Lexicon, find_readings
from telephony_tts.text.normalizer import normalize_spans
from telephony_tts.text.rewriting import spoken_spans

_EXAMPLES = """examples:
  python benchmarks/lexicon.py
  python benchmarks/lexicon.py --json lexicon.json
"""
_SENTENCES = {
    "English, no match": ("en", "I have sent the form to the address you gave us, is there anything else?"),
    "English, one match": ("en", "I have sent the form to the Brand00042 office, is there anything else?"),
    "English, three matches": ("en", "Ask brand00007x of the Brand00042 office about Name Of 00011 Products, please."),
    "Mandarin, no match": ("zh", "您好，您的订单已经发货，预计三天内送达，请问还有什么可以帮您的吗？"),
    "Mandarin, one match": ("zh", "您好，您的订单已经发货到重庆，预计三天内送达，请问还有什么可以帮您？"),
}


def main() -> None:
    flags = report.parser("lexicon", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--repeat", type=int, default=15, help="repeats of each measure (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.repeat = 1
    os.sched_setaffinity(0, {cores()[0]})
    sizes = (10, 1_000, 10_000) if chosen.quick else (10, 1_000, 10_000, 100_000)
    results: dict[str, dict[str, Any]] = {
        "added_us": {f"{n} entries": _added([_lexicon(n)], chosen) for n in sizes},
        "find_us": {"10000 entries": _found(_lexicon(10_000), chosen)},
        "patterns_added_us": {f"{n} patterns": _added([_lexicon(10_000, n)], chosen) for n in (1, 100, 1_000)},
        "four_lexicons_added_us": {"10000 entries each": _added([_lexicon(10_000) for _ in range(4)], chosen)},
        "loading_ms": _loading(chosen),
        "automaton_us": _automaton(chosen),
    }
    rows = [
        (f"{part}, {inner}: {name}", figure)
        for part, figures in results.items()
        for inner, value in figures.items()
        for name, figure in (value if isinstance(value, dict) else {"": value}).items()
    ]
    report.table("lexicon (least times)", ("what", "figure"), rows)
    report.save(chosen, results)


def _less(chosen: argparse.Namespace) -> int:
    return 10 if chosen.quick else 1


def _text(n_entries: int, n_patterns: int = 0) -> str:
    """A lexicon file: half of the entries match exactly, a tenth have several words, a tenth are Chinese."""
    lines = ["重庆: chong2 qing4"]
    for n in range(n_entries - 1):
        if n % 10 == 1:
            lines.append(f"Name Of {n:05} Products: the products of {n}")
        elif n % 10 == 3:
            lines.append(f"{chr(0x4E00 + n % 20_000)}{chr(0x4E00 + n * 7 % 20_000)}{n}店: 某店")
        else:
            lines.append(f"{'Brand' if n % 2 == 0 else 'brand'}{n:05}{'x' if n % 2 else ''}: the brand of number {n}")
    lines += [f"/ITEM{n}-(\\d+)/: item $1" for n in range(n_patterns)]
    return "\n".join(lines)


def _lexicon(n_entries: int, n_patterns: int = 0) -> Lexicon:
    return compiled(parse(_text(n_entries, n_patterns), "benchmark"), "benchmark")


def _us(work: Callable[[], object], chosen: argparse.Namespace, n: int = 500) -> float:
    """The least microseconds of one `work()`."""
    n = 5 if chosen.quick else n
    work()
    spent = []
    for _ in range(chosen.repeat):
        begun_ns = time.thread_time_ns()
        for _ in range(n):
            work()
        spent.append((time.thread_time_ns() - begun_ns) / n / 1000)
    return round(min(spent), 2)


def _added(lexicons: list[Lexicon], chosen: argparse.Namespace) -> dict[str, float]:
    added: dict[str, float] = {}
    for name, (lang, text) in _SENTENCES.items():
        rewritten = _rewritten(text, lexicons)
        # In turn and in short runs, because the difference is small beside what the machine's other work changes.
        with_lexicon = without = float("inf")
        for _ in range(1 if chosen.quick else 8):
            took = _us(lambda: spoken_spans(text, lang, (), find_readings(text, lexicons)), chosen, 30)  # noqa: B023
            with_lexicon = min(with_lexicon, took)
            without = min(without, _us(lambda: normalize_spans(rewritten, lang), chosen, 30))  # noqa: B023
        added[name] = round(with_lexicon - without, 2)
    return added


def _rewritten(text: str, lexicons: list[Lexicon]) -> str:
    for reading in reversed(find_readings(text, lexicons)):
        text = text[: reading.start] + reading.text + text[reading.end :]
    return text


def _found(lexicon: Lexicon, chosen: argparse.Namespace) -> dict[str, float]:
    return {
        name: _us(lambda text=text: find_readings(text, [lexicon]), chosen)  # type: ignore[misc]
        for name, (_, text) in _SENTENCES.items()
    }


def _loading(chosen: argparse.Namespace) -> dict[str, float]:
    text = _text(10_000 // _less(chosen))
    megabyte = "".join(f"Name{n:05}x: the name {n}\n" for n in range(40_000 // _less(chosen)))
    return {
        "10,000 entries": round(_us(lambda: compiled(parse(text, "x"), "x"), chosen, 1) / 1000),
        "1 MB, 40,000 entries": round(_us(lambda: compiled(parse(megabyte, "x"), "x"), chosen, 1) / 1000),
    }


def _automaton(chosen: argparse.Namespace) -> dict[str, float]:
    """Finding the same entries by an automaton: only the search, without the check of word boundaries and case."""
    if importlib.util.find_spec("ahocorasick_rs") is None:
        return {}
    automaton: Any = importlib.import_module("ahocorasick_rs")
    entries = [entry.written for entry in parse(_text(10_000), "x").entries]
    made = automaton.AhoCorasick(entries, matchkind=automaton.MatchKind.LeftmostLongest)
    return {
        name: _us(lambda text=text: made.find_matches_as_indexes(text), chosen)  # type: ignore[misc]
        for name, (_, text) in _SENTENCES.items()
    }


if __name__ == "__main__":
    main()
