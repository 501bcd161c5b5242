"""From the bot's `say` to the first packet of speech at the telephone: one call at a time, through a real Asterisk."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import arrivals, report
from harness.pbx_peers import (
    PAYLOAD_TYPES,
    Bot,
    PeerFailed,
    Phone,
    RtpPacket,
    Standstills,
    calling,
    exchange,
    wait_until,
)
from harness.pbx_setup import EXTENSIONS, PbxSetup
from harness.turns import SENTENCES

TEXTS = SENTENCES
QUICK_TEXTS = ["Yes, of course."]
_TURNS_A_CALL = 10
_WARMING = "One moment, please."
_SPEECH_WITHIN_S = 5.0
_TURN_S = 20.0
_QUIET_PACKETS = 10
"""Packets of silence before a turn, so that the end of the turn before it is not taken for its beginning."""
_PAUSE_S = (0.2, 0.5)
"""Pause between turns, at random, so that no phase of the 20 ms is preferred."""


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """The times of a turn: just before its `say` was sent, and the kernel's times of packets; None without speech."""

    said_ns: int
    sound_ns: int | None
    """The first packet that is anything but silence."""
    speech_ns: int | None
    told_ms: float | None
    """The server's own `first_audio_ms`."""


def measure(pbx: PbxSetup, way: str, n_turns: int, texts: Sequence[str], machine: Standstills) -> dict[str, Any]:
    """Measure turns of several calls, one after the other. Each turn is heard to its end: an interruption would empty
    Asterisk's queue before the next turn. The very first turn is a warm-up. Raises PeerFailed."""
    rng = random.Random(7)
    turns: list[SpokenTurn] = []
    n_calls = 0
    begun_ns = time.monotonic_ns()
    with exchange() as media:
        while len(turns) < n_turns:
            n_calls += 1
            n_left = min(_TURNS_A_CALL, n_turns - len(turns))
            with calling(media, pbx.asterisk.sip_port, EXTENSIONS[way]) as (phone,):
                phone.wait_answered()
                bot = pbx.next_bot()
                bot.event("call")
                phone.wait_heard(25)
                if n_calls == 1:
                    _one(phone, bot, _WARMING, "warming", rng)
                for _ in range(n_left):
                    n = len(turns)
                    turns.append(_one(phone, bot, texts[n % len(texts)], f"t{n}", rng))
                    if (n + 1) % _TURNS_A_CALL == 0 or n + 1 == n_turns:
                        print(f"  {way}: {n + 1} of {n_turns} turns", flush=True)
                phone.hang_up()
                phone.wait_ended()
            pbx.asterisk.wait_for_no_channel()
    return {"calls": n_calls, **summary(turns, machine, begun_ns, time.monotonic_ns())}


def summary(turns: Sequence[SpokenTurn], machine: Standstills, begun_ns: int, ended_ns: int) -> dict[str, Any]:
    """The figures of the turns over one way of the audio."""
    heard = [(turn.said_ns, turn.speech_ns) for turn in turns if turn.speech_ns is not None]
    sounds_ms = [(turn.sound_ns - turn.said_ns) / 1e6 for turn in turns if turn.sound_ns is not None]
    each_ms = [round((speech_ns - said_ns) / 1e6, 1) for said_ns, speech_ns in heard]
    return {
        "turns": len(turns),
        "failed": len(turns) - len(heard),
        "speech_ms": report.percentiles(each_ms),
        "sound_ms": report.percentiles(sounds_ms),
        "told_by_the_server_ms": report.percentiles([turn.told_ms for turn in turns if turn.told_ms is not None]),
        "each_ms": each_ms,
        "turns_in_a_standstill": sum(machine.within(*times) > 0 for times in heard) if machine.is_exact else None,
        "standstills": arrivals.standstills(machine, begun_ns, ended_ns),
    }


def _one(phone: Phone, bot: Bot, text: str, name: str, rng: random.Random) -> SpokenTurn:
    """Say a text; wait until the telephone hears its beginning, and for its end."""
    wait_until(lambda: _is_quiet(phone), "the telephone hears silence", _TURN_S)
    time.sleep(rng.uniform(*_PAUSE_S))
    n_before = len(phone.rtp.packets)

    def came() -> list[RtpPacket]:
        kind = PAYLOAD_TYPES[phone.rtp.codec]
        return [packet for packet in phone.rtp.packets[n_before:] if packet.payload_type == kind]

    said_ns = time.monotonic_ns()
    bot.say(text, name)
    try:
        wait_until(lambda: arrivals.first_ns(came(), said_ns, arrivals.is_speech), "speech", _SPEECH_WITHIN_S)
        told_ms = bot.event("started", turn=name)["first_audio_ms"]
        bot.event("done", _TURN_S, turn=name)
    except (PeerFailed, AssertionError):  # the speech or an event did not come in time
        bot.send(type="clear")
        return SpokenTurn(said_ns, None, None, None)
    packets = came()
    return SpokenTurn(
        said_ns,
        arrivals.first_ns(packets, said_ns, arrivals.is_sound),
        arrivals.first_ns(packets, said_ns, arrivals.is_speech),
        told_ms,
    )


def _is_quiet(phone: Phone) -> bool:
    return not any(arrivals.is_sound(packet.payload) for packet in phone.rtp.packets[-_QUIET_PACKETS:])
