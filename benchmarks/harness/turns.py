"""Two scenarios: how soon a turn sounds, and how soon it stops."""

from __future__ import annotations

import asyncio
import json
import random
import time
from base64 import b64decode
from typing import Any

import numpy as np

from harness.arrivals import loud_windows
from harness.calls import BotPeer, MediaPeer
from harness.lateness import lateness_between, server_lateness
from harness.process import cpu_times_s
from harness.report import percentiles
from telephony_tts.audio.g711 import decode_ulaw
from telephony_tts.engines.fake.engine import tone_hz

_KEPT_FRAMES = 30

SENTENCES = [
    "Your appointment is booked for Tuesday morning at half past nine.",
    "I have just sent the form to the address you gave us earlier.",
    "The amount of forty two euros will leave your account this month.",
    "Let me put you through to a colleague who can change your plan.",
    "We are open from eight in the morning until six in the evening.",
    "There is a small delay today, and we expect it to be over by four.",
    "If you would like to hear these options again, simply say repeat.",
    "Thank you for waiting, your order leaves our warehouse tomorrow.",
    "The new router arrives on Friday, and you may keep the old one.",
    "Please keep the reference number ready, we are going to need it.",
]


async def first_audio(spec: dict[str, Any]) -> dict[str, Any]:
    """Each call says a sentence every `period_s`, at a phase of its own. Times count from the write of `say`.

    With `clear` the sentence before is stopped first, so the period may be shorter than a sentence.
    """
    rng = random.Random(1)
    seen_ms: list[float] = []
    told_ms: list[float] = []
    first_frames: list[list[bytes]] = []
    failed: list[str] = []
    state = {"on": False, "underruns": 0, "turns": 0, "audio_ms": 0}

    async def call(at: int) -> None:
        bot = BotPeer(f"F{at}", audio="base64")
        await bot.connect(spec["port"])
        said_ns = 0
        frames: list[bytes] = []

        def on_frame(payload: bytes, at_ns: int) -> None:
            nonlocal said_ns
            if said_ns:
                seen_ms.append((at_ns - said_ns) / 1e6)
                said_ns = 0
                first_frames.append(frames)
            if len(frames) < _KEPT_FRAMES:
                frames.append(payload)

        def on_event(event: dict[str, Any], _at_ns: int) -> None:
            if not state["on"]:
                return
            if event["type"] == "started":
                told_ms.append(event["first_audio_ms"])
            elif event["type"] == "done":
                state["turns"] += 1
                state["underruns"] += event["underruns"]
                state["audio_ms"] += event["audio_ms"]

        bot.on_frame, bot.on_event = on_frame, on_event
        await asyncio.sleep(rng.random() * spec["period_s"])
        n = at
        while asyncio.get_running_loop().time() < end_s:
            if spec.get("clear"):
                bot.send({"type": "clear"})
                await asyncio.sleep(0.1)
            frames = []
            said_ns = time.monotonic_ns() if state["on"] else 0
            bot.send({"type": "say", "text": SENTENCES[n % len(SENTENCES)]})
            n += 1
            await asyncio.sleep(spec["period_s"] * rng.uniform(0.97, 1.03))
            if said_ns and state["on"]:
                failed.append("no frame within the period")
        failed.extend(bot.errors)
        bot.hang_up()

    loop = asyncio.get_running_loop()
    end_s = loop.time() + spec["warm_s"] + spec["seconds"]
    loop.call_later(spec["warm_s"], state.__setitem__, "on", True)
    async with asyncio.TaskGroup() as group:
        for at in range(spec["calls"]):
            group.create_task(call(at))
        await asyncio.sleep(spec["warm_s"])
        late = await server_lateness(spec["port"])
        cpu = cpu_times_s(spec["server_pid"])
        begun_s = loop.time()
        await asyncio.sleep(spec["seconds"])
        cpu_end = cpu_times_s(spec["server_pid"])
        wall_s = loop.time() - begun_s
        late_ms = lateness_between(late, await server_lateness(spec["port"]))
    return {
        "calls": spec["calls"],
        "turns": state["turns"],
        "seen_ms": percentiles(seen_ms),
        "told_ms": percentiles(told_ms),
        "leading_silence_ms": percentiles([_leading_silence_ms(frames) for frames in first_frames]),
        "server_late_ms": late_ms,
        "underruns": state["underruns"],
        "failed": sorted(set(failed)),
        "n_failed": len(failed),
        "mean_turn_s": round(state["audio_ms"] / max(1, state["turns"]) / 1000, 2),
        "server_cpu_share": round((cpu_end[0] - cpu[0]) / wall_s, 3),
        "server_waited_share": round((cpu_end[1] - cpu[1]) / wall_s, 3),
    }


def _codes(payload: bytes) -> bytes:
    """The μ-law bytes of a media message."""
    return b64decode(json.loads(payload)["media"]["payload"])


def _leading_silence_ms(frames: list[bytes]) -> float:
    """Milliseconds before the first 5 ms that are loud enough to be heard."""
    codes = b"".join(_codes(frame) for frame in frames)
    loud = np.flatnonzero(loud_windows(codes))
    return float(loud[0] * 5) if loud.size else float(len(codes) / 8)


# ------------------------------------------------------------------ stopping

_LETTERS = "an"
_SPEECH = " ".join("x" * 9 for _ in range(60))


def _text(at: int) -> str:
    """Text of 36 s, all of it the tone of turn `at`."""
    return _SPEECH.replace("x", _LETTERS[at % 2])


async def barge_in(spec: dict[str, Any]) -> dict[str, Any]:
    """Calls speak. Every `period_s` the bot sends `clear` and at once says the next turn in another tone.

    A stale frame has the tone of the stopped turn and comes after the stop was reported: by `cleared` on one socket,
    by `clear` on the media leg.
    """
    rng = random.Random(2)
    told_ms: list[float] = []
    media_ms: list[float] = []
    last_frame_ms: list[float] = []
    resumed_ms: list[float] = []
    heard: list[tuple[int, bytes]] = []
    """(the turn that may be heard, frame) for every frame after the first stop of its call."""
    bases: dict[str, int] = {}
    failed: list[str] = []
    twilio = spec["shape"] == "twilio"

    async def call(at: int) -> None:
        name = f"CB{at:06d}"
        media = None
        if twilio:
            media = MediaPeer(name)
            await media.start(spec["port"])
            bot = BotPeer(name)
        else:
            bot = BotPeer(name, audio="base64")
        await bot.connect(spec["port"])
        n = 0
        allowed = 0
        sent_ns = cleared_ns = last_ns = 0
        cleared = asyncio.Event()

        def on_frame(payload: bytes, at_ns: int) -> None:
            nonlocal last_ns, cleared_ns
            if sent_ns and allowed < n:
                last_ns = at_ns
            if n:
                heard.append((allowed, payload))
            if cleared_ns and allowed == n:
                resumed_ms.append((at_ns - cleared_ns) / 1e6)
                cleared_ns = 0

        def on_clear(at_ns: int) -> None:
            nonlocal allowed
            allowed = n
            if sent_ns:
                media_ms.append((at_ns - sent_ns) / 1e6)

        def on_event(event: dict[str, Any], at_ns: int) -> None:
            nonlocal allowed, cleared_ns
            if event["type"] != "cleared" or not sent_ns:
                return
            bases[event["basis"]] = bases.get(event["basis"], 0) + 1
            told_ms.append((at_ns - sent_ns) / 1e6)
            if not twilio:
                allowed = n
            bot.send({"type": "say", "text": _text(n)})
            cleared_ns = at_ns
            cleared.set()

        if media is not None:
            media.on_frame, media.on_clear = on_frame, on_clear
        else:
            bot.on_frame = on_frame
        bot.on_event = on_event
        bot.send({"type": "say", "text": _text(0)})
        await asyncio.sleep(1 + rng.random() * spec["period_s"])
        while loop.time() < end_s:
            cleared.clear()
            n += 1
            last_ns = 0
            sent_ns = time.monotonic_ns()
            bot.send({"type": "clear"})
            try:
                await asyncio.wait_for(cleared.wait(), 5)
            except TimeoutError:
                failed.append("no cleared within 5 s")
                break
            await asyncio.sleep(spec["period_s"] * rng.uniform(0.8, 1.2))
            last_frame_ms.append(max(0.0, (last_ns - sent_ns) / 1e6) if last_ns else 0.0)
        sent_ns = 0
        failed.extend(bot.errors)
        for peer in (bot, media):
            if peer is not None:
                peer.hang_up()

    loop = asyncio.get_running_loop()
    end_s = loop.time() + 1 + spec["seconds"]
    async with asyncio.TaskGroup() as group:
        for at in range(spec["calls"]):
            group.create_task(call(at))
        await asyncio.sleep(1)
        cpu = cpu_times_s(spec["server_pid"])
        await asyncio.sleep(spec["seconds"])
        cpu_end = cpu_times_s(spec["server_pid"])
    tones = [_tone_of(payload) for _, payload in heard]
    return {
        "shape": spec["shape"],
        "calls": spec["calls"],
        "clears": len(told_ms),
        "cleared_ms": percentiles(told_ms),
        "media_clear_ms": percentiles(media_ms),
        "last_frame_ms": percentiles(last_frame_ms),
        "next_turn_ms": percentiles(resumed_ms),
        "frames_judged": len(heard),
        "stale_frames": sum(tone not in (None, n % 2) for tone, (n, _) in zip(tones, heard, strict=True)),
        "silent_frames": sum(tone is None for tone in tones),
        "basis": bases,
        "failed": sorted(set(failed)),
        "server_waited_share": round((cpu_end[1] - cpu[1]) / spec["seconds"], 3),
    }


async def pauses(spec: dict[str, Any]) -> dict[str, Any]:
    """Calls speak. Every `period_s` the bot pauses the speech, and resumes it half a second later."""
    rng = random.Random(3)
    told_ms: list[float] = []
    last_frame_ms: list[float] = []
    first_frame_ms: list[float] = []
    failed: list[str] = []
    stray = 0

    async def call(at: int) -> None:
        name = f"CP{at:06d}"
        media = MediaPeer(name) if spec["shape"] == "twilio" else None
        if media is not None:
            await media.start(spec["port"])
        bot = BotPeer(name, audio="base64" if media is None else "none")
        await bot.connect(spec["port"])
        paused_ns = resumed_ns = last_ns = 0
        answered = asyncio.Event()

        def on_frame(_payload: bytes, at_ns: int) -> None:
            nonlocal resumed_ns, last_ns, stray
            if paused_ns:
                last_ns = at_ns
                stray += answered.is_set() and at_ns - paused_ns > 100_000_000
            if resumed_ns:
                first_frame_ms.append((at_ns - resumed_ns) / 1e6)
                resumed_ns = 0

        def on_event(event: dict[str, Any], at_ns: int) -> None:
            if event["type"] == "paused" and paused_ns:
                told_ms.append((at_ns - paused_ns) / 1e6)
                answered.set()

        (media or bot).on_frame = on_frame
        bot.on_event = on_event
        bot.send({"type": "say", "text": _text(0)})
        await asyncio.sleep(1 + rng.random() * spec["period_s"])
        while loop.time() < end_s:
            answered.clear()
            last_ns, paused_ns = 0, time.monotonic_ns()
            bot.send({"type": "pause"})
            await asyncio.sleep(0.5)
            if not answered.is_set():
                failed.append("no paused within 0.5 s")
            last_frame_ms.append(max(0.0, (last_ns - paused_ns) / 1e6) if last_ns else 0.0)
            paused_ns, resumed_ns = 0, time.monotonic_ns()
            bot.send({"type": "resume"})
            await asyncio.sleep(spec["period_s"] * rng.uniform(0.8, 1.2))
        failed.extend(bot.errors)
        for peer in (bot, media):
            if peer is not None:
                peer.hang_up()

    loop = asyncio.get_running_loop()
    end_s = loop.time() + 1 + spec["seconds"]
    async with asyncio.TaskGroup() as group:
        for at in range(spec["calls"]):
            group.create_task(call(at))
    return {
        "shape": spec["shape"],
        "calls": spec["calls"],
        "pauses": len(told_ms),
        "paused_ms": percentiles(told_ms),
        "last_frame_ms": percentiles(last_frame_ms),
        "first_frame_ms": percentiles(first_frame_ms),
        "stray_frames": stray,
        "failed": failed,
    }


def _tone_of(payload: bytes) -> int | None:
    """Which of the two tones a frame has; None if it is silent."""
    samples = decode_ulaw(_codes(payload)).astype(np.float64)
    if np.sqrt((samples**2).mean()) < 200:
        return None
    phase = np.arange(len(samples)) * (-2j * np.pi / 8000)
    strengths = [abs(np.dot(samples, np.exp(phase * tone_hz(letter)))) for letter in _LETTERS]
    return int(np.argmax(strengths))
