"""Many calls on one Asterisk that all hear speech at the same time: the gaps between packets at each telephone."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

from harness import arrivals, report
from harness.arrivals import Gap
from harness.calls import TURNS
from harness.pbx_peers import Bot, Phone, RtpPacket, Standstills, calling, exchange
from harness.pbx_setup import EXTENSIONS, PbxSetup
from harness.process import cpu_times_s, placed_here, stolen_s

GAP_MS = 40.0
_MS_PER_CHAR = 60
"""The speed of the engine's speech."""
_MAX_TURNS = 30
"""Turns of a call; a little below the server's limit."""
_UP_WITHIN_S = 30.0
_SETTLE_S = 2.0
_PROGRESS_S = 10.0
_N_SHOWN = 40


def measure(
    pbx: PbxSetup, way: str, n_calls: int, seconds: float, phones_core: int | None, machine: Standstills
) -> dict[str, Any]:
    """Measure the frames at the telephones of `n_calls` calls that all hear speech for `seconds`. The telephones and
    the bots are in this process, on `phones_core`. Raises PeerFailed."""
    with placed_here(phones_core), exchange() as media:
        with calling(media, pbx.asterisk.sip_port, *[EXTENSIONS[way]] * n_calls) as phones:
            for phone in phones:
                phone.wait_answered(_UP_WITHIN_S)
            bots = [pbx.next_bot(_UP_WITHIN_S) for _ in phones]
            rng = random.Random(3)
            for bot in bots:
                talk(bot, seconds + _UP_WITHIN_S)
                time.sleep(rng.uniform(0.0, 0.04))  # so that frames of different calls do not coincide
            for bot in bots:
                bot.event("started", _UP_WITHIN_S)
            print(f"  {way}: {n_calls} calls are up and speak", flush=True)
            time.sleep(_SETTLE_S)
            begun_ns, stolen_before_s, cpu_s = time.monotonic_ns(), stolen_s(), _cpu_s(pbx, phones)
            _sleep(seconds, way)
            ended_ns, stolen_after_s, spent_s = time.monotonic_ns(), stolen_s(), _cpu_s(pbx, phones)
            time.sleep(0.1)  # time to read what has come
            packets = [phone.rtp.audio_packets() for phone in phones]
            lost = [phone.rtp.heard(begun_ns) for phone in phones]
            for phone in phones:
                phone.hang_up()
            for phone in phones:
                phone.wait_ended()
        pbx.asterisk.wait_for_no_channel()
    wall_s = (ended_ns - begun_ns) / 1e9
    return {
        "calls": n_calls,
        **summary(packets, machine, begun_ns, ended_ns),
        "lost": sum(one.n_lost for one in lost),
        "duplicates": sum(one.n_duplicates for one in lost),
        "underruns_in_finished_turns": sum(event.get("underruns", 0) for bot in bots for _, event in list(bot.events)),
        "errors": sorted({event["code"] for bot in bots for _, event in list(bot.events) if event["type"] == "error"}),
        "cpu_share": {name: round((spent_s[name] - cpu_s[name]) / wall_s, 3) for name in cpu_s},
        "host_stole_share": round((stolen_after_s - stolen_before_s) / wall_s, 4),
    }


def talk(bot: Bot, seconds: float) -> None:
    """Let a bot say turns without a pause between them, enough for `seconds`."""
    n_chars = int(seconds * 1000 / _MS_PER_CHAR)
    n_sentences = n_chars // min(map(len, TURNS)) + 1
    per_turn = -(-n_sentences // _MAX_TURNS)
    said = cycle(TURNS)
    for n in range(-(-n_sentences // per_turn)):
        bot.say(" ".join(islice(said, per_turn)), f"t{n}")


def summary(
    packets: Sequence[Sequence[RtpPacket]], machine: Standstills, begun_ns: int, ended_ns: int
) -> dict[str, Any]:
    """The figures of a time, given the packets of each telephone."""
    found: list[Gap] = []
    n_frames = 0
    speaking: list[float] = []
    for number, came in enumerate(packets):
        inside = [packet for packet in came if begun_ns <= packet.arrival_ns < ended_ns]
        n_frames += len(inside)
        speaking.append(sum(arrivals.is_sound(packet.payload) for packet in inside) / max(1, len(inside)))
        found += arrivals.gaps(number, [packet.arrival_ns for packet in inside], begun_ns, ended_ns)
    long = sorted((gap for gap in found if gap.ms > GAP_MS), key=lambda gap: gap.begin_ns)
    return {
        "seconds": round((ended_ns - begun_ns) / 1e9, 2),
        "frames": n_frames,
        "frames_expected": round((ended_ns - begun_ns) / 20e6 * len(packets)),
        "speaking_share": {"mean": round(sum(speaking) / len(speaking), 3), "least": round(min(speaking), 3)},
        "gaps_over_40_ms": len(long),
        "moments": arrivals.n_moments(long),
        **arrivals.due_to_standstills([(gap.begin_ns, gap.end_ns) for gap in long], GAP_MS, machine),
        "standstills": arrivals.standstills(machine, begun_ns, ended_ns),
        "gap_ms": report.percentiles([gap.ms for gap in found]),
        "first_long_gaps": [
            {
                "phone": gap.phone,
                "at_s": round((gap.begin_ns - begun_ns) / 1e9, 3),
                "ms": round(gap.ms, 1),
                "standstill_ms": round(machine.within(gap.begin_ns, gap.end_ns) / 1e6, 1) if machine.is_exact else None,
            }
            for gap in long[:_N_SHOWN]
        ],
    }


def _cpu_s(pbx: PbxSetup, phones: Sequence[Phone]) -> dict[str, float]:
    return {**pbx.cpu_s(), "sipp": cpu_times_s(phones[0].process.pid)[0]}


def _sleep(seconds: float, way: str) -> None:
    """Sleep and report the time left."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _PROGRESS_S))
        print(f"  {way}: {max(0.0, end_s - time.monotonic()):.0f} s to go", flush=True)
