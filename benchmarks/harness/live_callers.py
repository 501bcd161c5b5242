"""Callers of a running server in real time: each hears the bot's speech, sends its echo back, and says a prompt."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.calls import BotPeer, MediaPeer
from harness.process import ServerProcess
from harness.telephone_sound import RATE_HZ, Signal, noise, ulaw
from telephony_tts.audio.g711 import decode_ulaw

_FRAME = RATE_HZ // 50
_TEXT = (
    "Your parcel left the depot on Tuesday and should arrive before noon. If you are out, our driver will leave "
    "it with a neighbour, unless you would like to name another place. I can offer you Monday at nine. "
)


@dataclass
class LiveCaller:
    """Says `said` `at_s` after the first frame of the bot. The bot's speech comes back `echo` (ms late, dB down)."""

    said: Signal
    at_s: float
    echo: tuple[float, float] | None = None
    until_s: float = 0.0
    """How long the call lasts after that."""


async def _call(port: int, number: int, caller: LiveCaller) -> list[float]:
    """When the server interrupted the bot, in seconds from the caller's first sound."""
    media, bot = MediaPeer(f"CA{number:04}"), BotPeer(f"CA{number:04}", options="&barge_in=on")
    stops: list[float] = []
    begun_s: float | None = None
    begun = asyncio.Event()
    n_total = round((caller.at_s + len(caller.said) / RATE_HZ + caller.until_s + 1) * 50) * _FRAME
    line = noise("comfort noise", n_total / RATE_HZ, -65, number)
    begin = round(caller.at_s * RATE_HZ)
    line[begin : begin + len(caller.said)] += caller.said
    played = np.zeros(n_total + 10 * RATE_HZ)
    end = 0

    def now() -> int:
        return 0 if begun_s is None else round((time.monotonic() - begun_s) * RATE_HZ)

    def on_frame(payload: bytes, _at_ns: int) -> None:
        nonlocal begun_s, end
        if begun_s is None:
            begun_s = time.monotonic()
            begun.set()
        wave = decode_ulaw(b64decode(json.loads(payload)["media"]["payload"])) / 32768
        end = max(end, now())
        played[end : end + len(wave)] = wave[: max(0, len(played) - end)]
        end += len(wave)

    def on_clear(_at_ns: int) -> None:
        nonlocal end
        played[now() :] = 0
        end = min(end, now())

    def on_event(event: dict[str, Any], at_ns: int) -> None:
        if event["type"] == "cleared" and begun_s is not None:
            stops.append(at_ns / 1e9 - begun_s - caller.at_s)
        if event["type"] in ("cleared", "done"):
            bot.send({"type": "say", "text": _TEXT})

    media.on_frame, media.on_clear, bot.on_event = on_frame, on_clear, on_event
    await media.start(port)
    await bot.connect(port)
    bot.send({"type": "say", "text": _TEXT})
    await begun.wait()
    assert begun_s is not None
    for at in range(0, n_total, _FRAME):
        await asyncio.sleep(max(0.0, begun_s + (at + _FRAME) / RATE_HZ - time.monotonic()))
        heard = line[at : at + _FRAME].copy()
        if caller.echo is not None and (from_ := at - round(caller.echo[0] * RATE_HZ / 1000)) >= 0:
            heard += np.tanh(played[from_ : from_ + _FRAME] * 3) / 3 * 10 ** (-caller.echo[1] / 20)
        media.send(
            {
                "event": "media", "streamSid": media.stream,
                "media": {"track": "inbound", "timestamp": str(at // 8), "payload": b64encode(ulaw(heard)).decode()},
            }
        )  # fmt: skip
    media.hang_up()
    bot.hang_up()
    return stops


def interruptions(callers: list[LiveCaller]) -> list[list[float]]:
    """The interruptions of each call, in seconds from the caller's first sound. All calls go at the same time."""

    async def all_calls(port: int) -> list[list[float]]:
        return await asyncio.gather(*(_call(port, number, caller) for number, caller in enumerate(callers)))

    with ServerProcess("serve", ["--set", "engines.default=hibari", "--set", "barge_in.enabled=true"]) as server:
        return asyncio.run(all_calls(server.port))
