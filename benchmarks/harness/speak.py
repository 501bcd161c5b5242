"""A scenario: every call speaks all the time. It measures the server's CPU time and how late frames are."""

from __future__ import annotations

import asyncio
import random
import resource
import time
from typing import Any

from harness.calls import FRAME_S, BotPeer, MediaPeer
from harness.lateness import frame_lateness_ms, lateness_between, server_lateness, watch_timers
from harness.process import family_cpu_times_s, stolen_s
from harness.report import percentiles

_SLOTS = 20


async def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the scenario. `shape`: "twilio" (two legs), "native" (one), "bare" (the reference's media socket)."""
    rng = random.Random(1)
    is_bare = spec["shape"] == "bare"
    calls, bots = await _connect(spec, rng)
    inbound = asyncio.create_task(_inbound([c for c in calls if isinstance(c, MediaPeer)])) if spec["inbound"] else None
    lag_ms: list[float] = []
    lag = asyncio.create_task(watch_timers(lag_ms))
    await asyncio.sleep(spec["warm_s"])
    before = {} if is_bare else await server_lateness(spec["port"])
    begun_ns, cpu, own = time.monotonic_ns(), family_cpu_times_s(spec["server_pid"]), _own_s()
    stolen = stolen_s()
    await asyncio.sleep(spec["seconds"])
    stolen = stolen_s() - stolen
    ended_ns, cpu_end, own_end = time.monotonic_ns(), family_cpu_times_s(spec["server_pid"]), _own_s()
    after = {} if is_bare else await server_lateness(spec["port"])
    lag.cancel()
    if inbound is not None:
        inbound.cancel()
    for peer in (*calls, *bots):
        peer.hang_up()
    await asyncio.sleep(0.3)
    wall_s = (ended_ns - begun_ns) / 1e9
    late_ms = [
        late for call in calls for late in frame_lateness_ms(call.arrivals_ns, begun_ns, ended_ns, spec["lead_ms"])
    ]
    all_bots = [*bots, *(call for call in calls if isinstance(call, BotPeer))]
    call_s = len(late_ms) * FRAME_S
    return {
        "calls": len(calls),
        "seconds": round(wall_s, 2),
        "frames": len(late_ms),
        "silent_calls": sum(not call.arrivals_ns for call in calls),
        "speaking_share": round(call_s / (wall_s * len(calls)), 4),
        "server_cpu_share": round((cpu_end[0] - cpu[0]) / wall_s, 4),
        "server_cpu_ms_per_call_s": round((cpu_end[0] - cpu[0]) * 1000 / call_s, 4) if call_s else None,
        "server_waited_share": round((cpu_end[1] - cpu[1]) / wall_s, 4),
        "host_stole_share": round(stolen / wall_s, 4),
        "late_ms": percentiles(late_ms),
        "late_over_20_ms_share": round(sum(v > 20 for v in late_ms) / max(1, len(late_ms)), 6),
        "server_late_ms": lateness_between(before, after),
        "underruns": sum(bot.n_underruns for bot in all_bots),
        "errors": sorted({code for bot in all_bots for code in bot.errors}),
        "inbound_frames_at_bot": sum(bot.n_inbound for bot in all_bots),
        "generator_cpu_share": round((own_end - own) / wall_s, 4),
        "generator_lag_ms": percentiles(lag_ms),
    }


async def _connect(spec: dict[str, Any], rng: random.Random) -> tuple[list[MediaPeer | BotPeer], list[BotPeer]]:
    """(the sockets with audio, the bots of calls with two legs). Calls begin at random moments, so that their frames
    do not coincide."""
    bots: list[BotPeer] = []

    async def one(at: int) -> MediaPeer | BotPeer:
        await asyncio.sleep(rng.random() * max(1.0, spec["calls"] / 50))
        name = f"CA{at:06d}"
        if spec["shape"] == "native":
            bot = BotPeer(name, audio="base64")
            await bot.connect(spec["port"])
            bot.talk_without_end(at)
            return bot
        media = MediaPeer(name, marks=spec["shape"] == "twilio")
        await media.start(spec["port"])
        if spec["shape"] == "twilio":
            bot = BotPeer(name, options=f"&inbound={spec.get('bot_inbound', 'none')}")
            bots.append(bot)
            await bot.connect(spec["port"])
            bot.talk_without_end(at)
        return media

    return list(await asyncio.gather(*(one(at) for at in range(spec["calls"])))), bots


async def _inbound(calls: list[MediaPeer]) -> None:
    """Send 50 messages a second for each call, the calls spread over 20 phases."""
    loop = asyncio.get_running_loop()
    slots = [calls[n::_SLOTS] for n in range(_SLOTS)]
    begun = loop.time()
    n = 0
    while True:
        for call in slots[n % _SLOTS]:
            call.speak_in()
        n += 1
        await asyncio.sleep(max(0.0, begun + n * FRAME_S / _SLOTS - loop.time()))


def _own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
