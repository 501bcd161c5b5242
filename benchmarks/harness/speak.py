"""Every call speaks all the time: what it costs the server, and how late its frames are.

The listener's measure: frame n of a call should come n * 20 ms less the lead after the first one. Whatever delays it
(the server, the kernel, this process) counts as late, and a schedule that once slipped stays late for good.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from typing import Any

from harness.calls import FRAME_NS, FRAME_S, BotPeer, MediaPeer
from harness.process import cpu_times_s, stolen_s
from harness.report import percentiles

_SLOTS = 20


async def run(spec: dict[str, Any]) -> dict[str, Any]:
    """`shape`: "twilio" (two legs), "native" (one), "bare" (the reference's single media socket)."""
    rng = random.Random(spec.get("seed", 1))
    calls = await _connect(spec, rng)
    inbound = asyncio.create_task(_inbound([c for c in calls if isinstance(c, MediaPeer)])) if spec["inbound"] else None
    lag = asyncio.create_task(_watch_lag())
    await asyncio.sleep(spec["warm_s"])
    before = await server_lateness(spec)
    begun_ns, cpu, own = time.monotonic_ns(), cpu_times_s(spec["server_pid"]), _own_s()
    stolen = stolen_s()
    await asyncio.sleep(spec["seconds"])
    stolen = stolen_s() - stolen
    ended_ns, cpu_end, own_end = time.monotonic_ns(), cpu_times_s(spec["server_pid"]), _own_s()
    after = await server_lateness(spec)
    lag.cancel()
    lags = await asyncio.gather(lag, return_exceptions=True)
    if inbound is not None:
        inbound.cancel()
    for peer in [*calls, *_bots.values()]:
        peer.hang_up()
    await asyncio.sleep(0.3)
    wall_s = (ended_ns - begun_ns) / 1e9
    lead_ns = spec.get("lead_ms", 200) * 1_000_000
    late_ms: list[float] = []
    n_frames = 0
    silent = 0
    for call in calls:
        arrivals = call.arrivals_ns
        if not arrivals:
            silent += 1
            continue
        first = arrivals[0]
        for n, at in enumerate(arrivals):
            if begun_ns <= at < ended_ns:
                n_frames += 1
                late_ms.append(max(0, at - first - max(0, n * FRAME_NS - lead_ns)) / 1e6)
    bots = [*_bots.values(), *(c for c in calls if isinstance(c, BotPeer))]
    call_s = n_frames * FRAME_S
    return {
        "calls": len(calls),
        "seconds": round(wall_s, 2),
        "frames": n_frames,
        "silent_calls": silent,
        "speaking_share": round(call_s / (wall_s * len(calls)), 4),
        "server_cpu_share": round((cpu_end[0] - cpu[0]) / wall_s, 4),
        "server_cpu_ms_per_call_s": round((cpu_end[0] - cpu[0]) * 1000 / call_s, 4) if call_s else None,
        "server_waited_share": round((cpu_end[1] - cpu[1]) / wall_s, 4),
        "host_stole_share": round(stolen / wall_s, 4),
        "late_ms": percentiles(late_ms),
        "late_over_20_ms_share": round(sum(v > 20 for v in late_ms) / max(1, len(late_ms)), 6),
        "server_late_ms": lateness_between(before, after),
        "underruns": sum(bot.n_underruns for bot in bots),
        "errors": sorted({code for bot in bots for code in bot.errors}),
        "inbound_frames_at_bot": sum(bot.n_inbound for bot in bots),
        "generator_cpu_share": round((own_end - own) / wall_s, 4),
        "generator_lag_ms": percentiles(_lags(lags)),
    }


_bots: dict[str, BotPeer] = {}
_lag_ms: list[float] = []


async def _connect(spec: dict[str, Any], rng: random.Random) -> list[MediaPeer | BotPeer]:
    """All calls, begun at random moments so that their frames do not fall together."""

    async def one(at: int) -> MediaPeer | BotPeer:
        await asyncio.sleep(rng.random() * max(1.0, spec["calls"] / 50))
        name = f"CA{at:06d}"
        if spec["shape"] == "native":
            bot = BotPeer(name, audio=spec.get("audio", "base64"))
            await bot.connect(spec["port"])
            bot.talk_without_end(at)
            return bot
        media = MediaPeer(name, marks=spec["shape"] == "twilio")
        await media.start(spec["port"])
        if spec["shape"] == "twilio":
            bot = BotPeer(name, options=f"&inbound={spec.get('bot_inbound', 'none')}")
            _bots[name] = bot
            await bot.connect(spec["port"])
            bot.talk_without_end(at)
        return media

    return list(await asyncio.gather(*(one(at) for at in range(spec["calls"]))))


async def _inbound(calls: list[MediaPeer]) -> None:
    """50 messages a second and call, each call in one of 20 phases."""
    loop = asyncio.get_running_loop()
    slots = [calls[n::_SLOTS] for n in range(_SLOTS)]
    begun = loop.time()
    n = 0
    while True:
        for call in slots[n % _SLOTS]:
            call.speak_in()
        n += 1
        await asyncio.sleep(max(0.0, begun + n * FRAME_S / _SLOTS - loop.time()))


async def _watch_lag() -> None:
    """How late this process runs its own timers: what it cannot see more exactly than that."""
    loop = asyncio.get_running_loop()
    while True:
        asked = loop.time()
        await asyncio.sleep(0.01)
        _lag_ms.append((loop.time() - asked - 0.01) * 1000)


def _lags(_done: list[Any]) -> list[float]:
    return [max(0.0, v) for v in _lag_ms]


def _own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def server_lateness(spec: dict[str, Any]) -> dict[str, float]:
    """The server's own histogram: bucket's upper bound to cumulative count."""
    if spec.get("shape") == "bare":
        return {}
    reader, writer = await asyncio.open_connection("127.0.0.1", spec["port"])
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
    body = (await reader.read()).decode()
    writer.close()
    head = 'telephony_tts_frame_lateness_ms_bucket{le="'
    lines = [line[len(head) :].split('"} ') for line in body.splitlines() if line.startswith(head)]
    return {bound: float(count) for bound, count in lines}


def lateness_between(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    counts = {bound: after[bound] - before[bound] for bound in after}
    total = counts.get("+Inf", 0)
    if not total:
        return {"n": 0}

    def below(share: float) -> str:
        return next(bound for bound, count in counts.items() if count >= share * total)

    return {
        "n": int(total),
        "p50_le": below(0.5),
        "p99_le": below(0.99),
        "p999_le": below(0.999),
        "over_20_ms_share": round(1 - counts["20.0"] / total, 6),
    }
