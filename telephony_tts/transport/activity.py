"""What one process of the server does now: its calls, and the work of its engines. The console shows it.

It is plain data, because the other processes of the server ask for it too.
"""

from __future__ import annotations

from typing import Any

from telephony_tts.runtime.clock import NS_PER_MS
from telephony_tts.session.turn import Turn
from telephony_tts.transport.call import Call, EngineCatalog
from telephony_tts.transport.registry import Registry

_MOST_SAID_CHARS = 300


def activity(registry: Registry, catalog: EngineCatalog, now_ns: int) -> dict[str, Any]:
    """The calls of this process without its HTTP requests, and the engines by name. With the name of each call's key,
    and with what is said: before a person sees it, what that person may not know must be removed."""
    return {
        "calls": [_told(call, now_ns) for call in registry.calls() if not call.over and call.kind != "http"],
        "engines": {
            name: {"load": round(stats.load, 3), "queued": stats.n_queued, "running": stats.n_running}
            for name, stats in catalog.stats().items()
        },
    }


def _told(call: Call, now_ns: int) -> dict[str, Any]:
    session = call.session
    speaking = next((turn for turn in session.turns if turn.first_frame_ns is not None), None)
    if session.is_paused:
        state = "paused"
    elif speaking is not None:
        state = "speaking"
    else:
        state = "preparing" if session.turns else "silent"
    return {
        "call": call.id,
        "key": call.owner.name,
        "door": call.kind,
        "bot": call.bot is not None,
        "media": call.media is not None,
        "codec": f"{session.settings.codec} {session.settings.rate_hz}",
        "voice": call.voice_name(session.voice),
        "state": state,
        "turns": len(session.turns),
        "underruns": session.n_underruns,
        "recorded": call.recording is not None,
        "age_ms": (now_ns - call.began_ns) // NS_PER_MS,
        "said": None if speaking is None or speaking.is_private else _being_said(speaking)[:_MOST_SAID_CHARS],
    }


def _being_said(turn: Turn) -> str:
    """The sentence whose frames are being sent, as the bot wrote it."""
    said = ""
    for part in turn.parts:
        if part.insert is None and part.start_sample is not None and part.start_sample <= turn.n_sent_samples:
            said = turn.text_of(part.sentence)
    return said


def added(own: dict[str, Any], others: list[dict[str, Any] | None], shared: frozenset[str]) -> dict[str, Any]:
    """The activity of all processes together: the calls, the oldest first, and of each engine the highest load and the
    sum of its work. `shared` engines run once for all. `n_silent` processes do not answer."""
    calls, engines = list(own["calls"]), dict(own["engines"])
    for other in others:
        if other is None:
            continue
        calls += other["calls"]
        for name, work in other["engines"].items():
            engines[name] = _joined(engines[name], work, is_shared=name in shared) if name in engines else work
    calls.sort(key=lambda call: (-call["age_ms"], call["call"]))
    return {"calls": calls, "engines": engines, "n_silent": others.count(None)}


def _joined(one: dict[str, Any], other: dict[str, Any], *, is_shared: bool) -> dict[str, Any]:
    joined = {"load": max(one["load"], other["load"])}
    for what in ("queued", "running"):
        joined[what] = max(one[what], other[what]) if is_shared else one[what] + other[what]
    return joined
