"""Characters per second of plain text through the intake and the segmenter of a turn, as a process of its own.

It prints a line of JSON: the best of some repeats for pieces of 4 and of 256 characters. `--text-type` is what the call
has; a checkout without SSML has none, so it is left out there.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import fields, replace
from typing import Any

from telephony_tts.session.intake import Intake
from telephony_tts.session.language import CallLanguage
from telephony_tts.session.settings import CallLimits, SessionSettings

PIECES = (4, 256)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--text-type", default="auto")
    flags.add_argument("--repeat", type=int, default=9)
    flags.add_argument("text")
    chosen = flags.parse_args()
    print(json.dumps({n: speed(chosen.text, n, chosen.text_type, chosen.repeat) for n in PIECES}))


def speed(text: str, n_piece: int, text_type: str, repeat: int) -> float:
    """Characters per second, the best of `repeat`."""
    settings = SessionSettings(limits=replace(CallLimits(), turn_chars=10**9, text_chars_per_s=0))
    if "text_type" in {field.name for field in fields(SessionSettings)}:
        settings = replace(settings, text_type=text_type)  # type: ignore[call-arg,unused-ignore]
    least_s = min(_seconds(text, n_piece, settings) for _ in range(repeat))
    return round(len(text) / least_s)


def _seconds(text: str, n_piece: int, settings: SessionSettings) -> float:
    turns: list[Any] = []
    intake = Intake(settings, turns, [], 0, CallLanguage(None, None))
    begun_ns = time.thread_time_ns()
    for at in range(0, len(text), n_piece):
        intake.text(text[at : at + n_piece], "a", False, 0)
        (turn,) = turns
        turn.cut(0)
        turn.n_submitted = len(turn.parts)  # as if the engine had them, so that the rest is cut too
    intake.close_turn(turn, 0)
    while turn.cut(0):
        turn.n_submitted = len(turn.parts)
    assert turn.text_exhausted
    return (time.thread_time_ns() - begun_ns) / 1e9


if __name__ == "__main__":
    main()
