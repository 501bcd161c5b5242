"""benchmarks/pbx.py: the figures that it computes from packets and times, and a run against the real Asterisk."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from harness import arrivals, pbx_bridge, pbx_calls, pbx_speech
from harness.arrivals import Gap
from harness.pbx_peers import Bot, RtpPacket
from harness.pbx_speech import SpokenTurn

from telephony_tts.audio.g711 import encode_ulaw

pytestmark = pytest.mark.slow

MS = 1_000_000
SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "pbx.py"
SILENCE = b"\xff" * 160


@dataclass
class Core:
    begin_ns: int
    end_ns: int


@dataclass
class Machine:
    """A machine that stood still at these times in ms, one core at a time."""

    still_ms: list[tuple[float, float]] = field(default_factory=list)
    is_exact: bool = True

    def list(self) -> list[Core]:
        return [Core(round(begin * MS), round(end * MS)) for begin, end in self.still_ms]

    def within(self, begin_ns: int, end_ns: int) -> int:
        return sum(max(0, min(one.end_ns, end_ns) - max(one.begin_ns, begin_ns)) for one in self.list())


def tone(dbfs: float, n_ms: int = 20) -> bytes:
    """A tone of this RMS level, and silence to fill the frame."""
    samples = 32768 * 10 ** (dbfs / 20) * np.sqrt(2) * np.sin(np.arange(8 * n_ms) * np.pi / 4)
    return encode_ulaw(np.rint(samples).astype(np.int16)).ljust(160, b"\xff")


def packet(arrival_ms: float, payload: bytes = SILENCE) -> RtpPacket:
    return RtpPacket(round(arrival_ms * MS), 0, 0, False, 0, 1, payload)


# ------------------------------------------------------------------- where speech begins


def test_speech_has_5_ms_that_are_loud_enough() -> None:
    assert arrivals.is_speech(tone(-20)) and arrivals.is_speech(tone(-44)) and arrivals.is_speech(tone(-41, n_ms=5))
    assert not arrivals.is_speech(tone(-47)) and not arrivals.is_speech(tone(-40, n_ms=1))
    assert not arrivals.is_speech(SILENCE) and not arrivals.is_speech(b"")


def test_sound_is_anything_but_the_silence_of_pauses() -> None:
    assert arrivals.is_sound(tone(-60)) and arrivals.is_sound(SILENCE[:-1] + b"\x7e")
    assert not arrivals.is_sound(SILENCE) and not arrivals.is_sound(b"")


def test_the_first_packet_of_speech_is_the_earliest_after_the_given_time() -> None:
    came = [packet(90, tone(-20)), packet(110), packet(150, tone(-20)), packet(130, tone(-20)), packet(120, tone(-60))]
    assert arrivals.first_ns(came, 100 * MS, arrivals.is_speech) == 130 * MS
    assert arrivals.first_ns(came, 100 * MS, arrivals.is_sound) == 120 * MS
    assert arrivals.first_ns(came, 90 * MS, arrivals.is_speech) == 90 * MS
    assert arrivals.first_ns(came, 151 * MS, arrivals.is_speech) is None


def test_the_summary_of_turns_counts_those_without_speech_as_failed() -> None:
    turns = [
        SpokenTurn(0, 50 * MS, 60 * MS, 20.0),
        SpokenTurn(1000 * MS, 1090 * MS, 1090 * MS, 30.0),
        SpokenTurn(2000 * MS, None, None, None),
        SpokenTurn(3000 * MS, 3100 * MS, 3200 * MS, 40.0),
    ]
    found = pbx_speech.summary(turns, Machine([(1080, 1100), (5000, 5060)]), 0, 4000 * MS)
    assert (found["turns"], found["failed"], found["each_ms"]) == (4, 1, [60.0, 90.0, 200.0])
    assert (found["speech_ms"]["p50"], found["speech_ms"]["max"], found["speech_ms"]["n"]) == (90.0, 200.0, 3)
    assert found["sound_ms"]["p50"] == 90.0 and found["told_by_the_server_ms"]["p50"] == 30.0
    assert found["turns_in_a_standstill"] == 1 and found["standstills"]["over_10_ms"] == 1
    assert pbx_speech.summary(turns, Machine(is_exact=False), 0, 1)["turns_in_a_standstill"] is None


# ------------------------------------------------------------------- gaps


def test_gaps_are_between_arrivals_and_to_the_ends() -> None:
    found = arrivals.gaps(3, [at * MS for at in (80, 20, 40, 5, 200)], 10 * MS, 150 * MS)
    assert [gap.ms for gap in found] == [10, 20, 40, 70] and {gap.phone for gap in found} == {3}
    assert [(a.end_ns, b.begin_ns) for a, b in pairwise(found)] == [(20 * MS,) * 2, (40 * MS,) * 2, (80 * MS,) * 2]
    assert [gap.ms for gap in arrivals.gaps(0, [], 10 * MS, 150 * MS)] == [140]


def test_gaps_that_overlap_are_one_moment() -> None:
    def gap(begin: int, end: int) -> Gap:
        return Gap(0, begin, end)

    assert arrivals.n_moments([]) == 0
    assert arrivals.n_moments([gap(50, 90), gap(0, 60), gap(80, 100), gap(100, 140)]) == 2
    assert arrivals.n_moments([gap(0, 200), gap(10, 20), gap(150, 160), gap(300, 301)]) == 2


def test_the_summary_of_telephones_lists_the_first_long_gaps() -> None:
    """The first telephone misses two packets during a standstill, the second misses three without one."""
    whole = [1000.0 + 20 * n for n in range(51)]
    first = [packet(at, tone(-20)) for at in whole if at not in (1200, 1220)]
    second = [packet(at + 7, tone(-20) if at < 1500 else SILENCE) for at in whole if at not in (1600, 1620, 1640)]
    found = pbx_calls.summary([first, second], Machine([(1190, 1215), (1700, 1709)]), 1000 * MS, 2000 * MS)
    assert (found["gaps_over_40_ms"], found["moments"]) == (2, 2)
    assert (found["overlapping_a_standstill"], found["over_without_the_standstill"]) == (1, 1)
    assert found["first_long_gaps"] == [
        {"phone": 0, "at_s": 0.18, "ms": 60.0, "standstill_ms": 25.0},
        {"phone": 1, "at_s": 0.587, "ms": 80.0, "standstill_ms": 0.0},
    ]
    assert found["gap_ms"]["max"] == 80 and found["gap_ms"]["p50"] == 20
    assert found["frames"] == 48 + 47 and found["frames_expected"] == 100
    assert found["speaking_share"]["least"] == round(25 / 47, 3) and found["seconds"] == 1


def test_a_gap_of_40_ms_is_not_over_40_ms() -> None:
    came = [packet(at) for at in (0.001, 40.001, 80.002)]
    assert pbx_calls.summary([came], Machine(), 0, 100 * MS)["gaps_over_40_ms"] == 1


def test_without_witnesses_the_figures_of_the_machine_are_none() -> None:
    machine = Machine([(0, 50)], is_exact=False)
    found = pbx_calls.summary([[]], machine, 0, 100 * MS)
    assert found["gaps_over_40_ms"] == 1 and found["standstills"] == {"exact": False}
    assert found["overlapping_a_standstill"] is None and found["over_without_the_standstill"] is None
    assert found["first_long_gaps"][0]["standstill_ms"] is None


def test_a_standstill_that_touches_the_time_counts_with_its_whole_length() -> None:
    machine = Machine([(0, 100), (190, 212), (300, 345), (390, 407), (500, 600)])
    assert arrivals.standstills(machine, 200 * MS, 400 * MS) == {
        "exact": True, "over_5_ms": 3, "over_10_ms": 3, "over_20_ms": 2, "over_40_ms": 1, "longest_ms": 45.0,
        "share": round((12 + 45 + 10) / 200, 5),
    }  # fmt: skip
    assert arrivals.standstills(Machine(), 0, MS)["longest_ms"] == 0


def test_a_bot_has_enough_to_say_within_the_limit_of_waiting_turns() -> None:
    class Told:
        def __init__(self) -> None:
            self.texts: list[str] = []

        def say(self, text: str, turn: str) -> None:
            self.texts.append(text)

    for seconds in (1, 31, 600):
        bot = Told()
        pbx_calls.talk(cast(Bot, bot), seconds)
        assert sum(map(len, bot.texts)) * 0.060 >= seconds
        assert len(bot.texts) <= 32 and max(map(len, bot.texts)) <= 4000


# ------------------------------------------------------------------- frames through the bridge


def test_the_summary_of_frames_counts_those_that_never_came() -> None:
    frames = [(0, 10 * MS), (0, 25 * MS), (100 * MS, 130 * MS), (200 * MS, None), (300 * MS, 360 * MS)]
    found = pbx_bridge.summary(cast(Any, frames), Machine([(120, 126), (310, 320)]))
    assert (found["n"], found["lost"], found["p50"], found["max"]) == (4, 1, 25.0, 60.0)
    # 30 ms less 6 are within the limit; 60 ms less 10 are not.
    assert found["over_25_ms"] == {"n": 2, "overlapping_a_standstill": 2, "over_without_the_standstill": 1}


def test_frames_are_known_by_their_number_wherever_the_stream_is_cut() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        call = pbx_bridge._Call(uuid.uuid4(), ours, random.Random(1))
        call.spoken = {0: (100, None), 1: (200, None), 2: (300, None)}
        header = b"\x10\x01\x40"
        stream = b"".join(header + frame for frame in (pbx_bridge._numbered(0), bytes(320), pbx_bridge._numbered(1)))
        for at in range(0, len(stream), 7):
            call.on_asterisk(stream[at : at + 7], at)
        assert call.spoken == {0: (100, 322), 1: (200, 966), 2: (300, None)} and call.n_unknown == 0
        spoilt = pbx_bridge._numbered(2)[:-1] + b"\0"
        call.on_asterisk(header + spoilt + header + pbx_bridge._numbered(1) + header + pbx_bridge._numbered(9), 5)
        assert call.n_unknown == 3 and call.spoken[2] == (300, None) and call.spoken[1] == (200, 966)
        call.heard = {0: (1, None), 1: (2, None)}
        call.on_server(pbx_bridge._numbered(0) + bytes(320) + pbx_bridge._numbered(1), 50)
        assert call.heard == {0: (1, 50), 1: (2, 50)}


# ------------------------------------------------------------------- the script


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_help_has_examples() -> None:
    done = run("--help")
    assert done.returncode == 0 and "python benchmarks/pbx.py --only calls" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "calls,speech"), "--only: unknown 'speech'; expected some of first_speech, bridge_added, calls"),
        (("--ways", "sip"), "--ways: unknown 'sip'; expected some of websocket, audiosocket, ari"),
        (("--calls", "500"), "--calls 500: expected 1 to 190"),
        (("--seconds", "0"), "must be more than 0"),
    ],
)
def test_an_impossible_value_is_refused_with_the_possible_ones(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and words in done.stderr


@pytest.mark.peer
@pytest.mark.timed
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the benchmarks read Linux's /proc")
def test_a_tiny_run_writes_all_parts_and_keeps_what_add_says(tmp_path: Path) -> None:
    """All three parts, each over one way. The figures must be possible; they are not judged."""
    out = tmp_path / "out.json"
    out.write_text(json.dumps({"results": {"calls": {"ways": {"ari": {"kept": True}}}}}), encoding="utf-8")
    done = run("--quick", "--ways", "websocket", "--calls-over", "audiosocket", "--add", "--json", str(out))
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text(encoding="utf-8"))
    assert set(document) == {"machine", "commit", "settings", "results"}
    assert not re.search(r"/(home|root|tmp|work|usr)/", json.dumps(document))
    results = document["results"]
    (speech,) = results["first_speech"]["ways"].values()
    assert speech["failed"] == 0 and len(speech["each_ms"]) == 1
    # It cannot be heard before the server has it.
    assert speech["told_by_the_server_ms"]["p50"] < speech["speech_ms"]["p50"] < 5000
    bridge = results["bridge_added"]
    assert bridge["to_the_phone_ms"]["n"] >= 20 and bridge["to_the_server_ms"]["n"] >= 20
    assert bridge["unknown_frames"] == bridge["to_the_phone_ms"]["lost"] == bridge["to_the_server_ms"]["lost"] == 0
    assert 0 < bridge["to_the_server_ms"]["p50"] < 1000 and 0 < bridge["to_the_phone_ms"]["p50"] < 1000
    assert results["calls"]["ways"]["ari"] == {"kept": True}
    calls = results["calls"]["ways"]["audiosocket"]
    assert calls["calls"] == 2 and calls["lost"] == 0 and calls["errors"] == []
    assert calls["speaking_share"]["least"] > 0.5 and calls["frames"] > 0.5 * calls["frames_expected"]
    assert set(calls["cpu_share"]) == {"server", "bridge", "asterisk", "phones", "sipp"}
    for found in (speech, bridge, calls):
        assert found["standstills"]["exact"] in (True, False)
