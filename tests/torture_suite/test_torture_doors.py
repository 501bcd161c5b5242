"""The doors of other vendors' protocols, and HTTP requests that join a call: a healthy server breaks no promise there.
`test_torture_door_defects.py` has servers with defects."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from torture import violations as v
from torture.histories import JOINED, VENDORS, CallHistory, Fault, Round, Step
from torture.name_server import ENGINE, NameServer
from torture.runner import Outcome, Runner

pytestmark = [pytest.mark.alone, pytest.mark.thorough]

JOINED_OPTIONS = {"form": "openai", "in_query": False, "delay_ms": 0, "no_media": False}


def tried(shape: str, calls: Sequence[CallHistory], *defects: str, faults: Sequence[Fault] = ()) -> Outcome:
    whole = Round(7, 1, shape, tuple(calls), tuple(faults))
    return Runner(defects=defects, say=lambda line: print(line)).run([whole], time.monotonic() + 60)


def of_vendors() -> list[CallHistory]:
    """Calls with all that a client may do, in each codec."""
    steps = (
        Step(0, "say", 4), Step(300, "mark", 3), Step(0, "text", 3), Step(100, "clear", 1), Step(50, "say", 3),
        Step(0, "ping", 1), Step(400, "clear", 2), Step(0, "text", 4), Step(0, "ping", 2), Step(0, "mark", 4),
        Step(600, "clear_storm", 3), Step(20, "text", 2), Step(0, "mark", 2), Step(0, "say", 3), Step(0, "last"),
    )  # fmt: skip
    ends = {"ulaw": "close", "pcm": "unusable", "alaw": "fin"}
    return [
        CallHistory(door, n, 80 * n, steps, end, {"codec": codec})
        for n, (door, (codec, end)) in enumerate((door, each) for door in VENDORS for each in ends.items())
        if end != "unusable" or door not in ("cartesia", "dashscope")
    ]


def of_requests() -> list[CallHistory]:
    """Requests one after the other, at the same time, cut off, refused, and with another bot."""
    histories = (
        (Step(0, "say", 4), Step(200, "say", 3), Step(200, "say", 3), Step(200, "say", 3)),
        (Step(0, "text", 3), Step(0, "text", 3), Step(0, "mark", 1), Step(0, "say_storm", 4)),
        (Step(0, "say", 5), Step(0, "say", 5), Step(700, "ping"), Step(0, "ping"), Step(300, "clear", 1)),
        (Step(0, "say", 5), Step(0, "say", 5), Step(500, "clear", 2), Step(0, "mark", 3), Step(0, "say", 3)),
        (Step(0, "say", 2),),
    )
    ends = ("close", "hangup", "close", "close", "media_rst")
    calls = [
        CallHistory(JOINED, n, 80 * n, steps, end, {**JOINED_OPTIONS, "form": form, "in_query": n % 2 == 0})
        for n, (steps, end, form) in enumerate(
            zip(histories, ends, ("openai", "tts_stream", "elevenlabs_http", "deepgram_http", "openai"), strict=True)
        )
    ]
    return calls


def test_the_doors_of_vendors_and_requests_in_calls_keep_their_promises() -> None:
    tally = tried("one", [*of_vendors(), *of_requests()]).tally
    assert tally.violations == []
    for check in (v.ONE_END, v.SILENCE, v.DONE, v.ORDER, v.ANSWERS, v.CLOSE, v.HEARD, v.FRAMES):
        assert tally.n_checked[check] > 2, check
    assert tally.counts["clears"] > 30 and tally.counts["media clears"] >= 2
    assert not tally.counts["calls refused"]


def test_the_name_server_knows_two_names_until_it_falls_silent() -> None:
    names = NameServer()

    def question(name: str, kind: int) -> bytes:
        labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
        return b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + labels + bytes([0, 0, kind, 0, 1])

    answer = names.answer(question(ENGINE, 1))
    assert answer is not None and answer[:2] == b"\x12\x34" and answer.endswith(b"\x00\x04\x7f\x00\x00\x01")
    other_family = names.answer(question(ENGINE, 28))
    assert other_family is not None and other_family[6:8] == b"\x00\x00", "there is no address of IPv6"
    assert names.answer(question("bot.torture.example", 1)) is None
    assert names.answer(b"\x00") is None
    names.is_silent = True
    assert names.answer(question(ENGINE, 1)) is None
