"""What the calls of a round do, chosen by a seed. Pure, and the same for the same seed on every machine."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a client does, `after_ms` after the step before. `n` is how much or how often."""

    after_ms: int
    do: str
    n: int = 0


@dataclass(frozen=True)
class CallHistory:
    """A call: through which door, when it begins, what it does, and how it ends."""

    door: str
    seed: int
    start_ms: int
    steps: tuple[Step, ...]
    end: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a process, or to what it needs. `n` is a duration in ms or a number."""

    at_ms: int
    kind: str
    n: int = 0


@dataclass(frozen=True)
class Round:
    """Calls and faults against one server. `shape` says what the server consists of."""

    seed: int
    number: int
    shape: str
    calls: tuple[CallHistory, ...]
    faults: tuple[Fault, ...]
    n_neighbours: int = 2

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Round:
        calls = tuple(
            CallHistory(**{**call, "steps": tuple(Step(**step) for step in call["steps"])}) for call in told["calls"]
        )
        return cls(**{**told, "calls": calls, "faults": tuple(Fault(**fault) for fault in told["faults"])})


SHAPES = ("one", "fronts", "engine", "bridge", "small", "names")
"""one: a server in one process. fronts: two processes behind the port. engine: the engine in a process of its own.
bridge: telephone calls come through the SIP bridge. small: few descriptors, and a disk that is full. names: the DNS
server does not know the bot, and two engines are found by their names."""
ASTERISK = "asterisk"
"""Calls of a real Asterisk, over its WebSocket and through the bridge. It is slow, so no seed chooses it."""
COSYVOICE2 = "cosyvoice2"
"""CosyVoice2 with a tiny random model, in the process of its own that it has in every server. It needs PyTorch and a
core to compute, so no seed chooses it."""

_STEPS = {
    "say": 14, "text": 16, "last": 8, "flush": 3, "clear": 6, "clear_turn": 3, "mark": 9, "pause": 3, "resume": 4,
    "ping": 3, "status": 2, "invalid": 5, "clear_storm": 1, "pause_storm": 1, "say_storm": 1, "stuck": 1,
    "ssml": 6, "config": 4, "play": 5, "dtmf": 2, "voice": 3, "record": 4,
}  # fmt: skip
LONG_CALL_STEPS = {**_STEPS, "stop_sounds": 10}
"""Steps of long calls. A sound under the speech ends soon: otherwise one is nearly always heard in a long call, and
less can be judged under it."""
_NATIVE_ONLY = {
    "pause", "resume", "pause_storm", "status", "invalid", "ssml", "config", "play", "dtmf", "voice", "record",
}  # fmt: skip
"""Clients of other vendors' protocols have no such messages."""
INTERRUPTIONS = {
    "say": 12, "text": 8, "last": 6, "flush": 2, "clear": 12, "clear_turn": 6, "mark": 3, "pause": 2, "resume": 3,
    "ssml": 3, "config": 2, "play": 1, "dtmf": 1, "voice": 2,
}  # fmt: skip
"""Steps of calls that try what counts as heard, and how often each comes."""
_CONVERSATION = {
    "say": 14, "text": 6, "last": 4, "voice": 14, "clear": 2, "mark": 3, "pause": 1, "resume": 2, "invalid": 1,
    "config": 1,
}  # fmt: skip
"""Steps of calls in which the caller speaks much, and the bot listens."""
_WAITS_MS = (0, 0, 0, 1, 5, 19, 20, 21, 40, 100, 200, 400, 700)
_LONG_WAITS_MS = (100, 300, 500, 700, 1000, 1500)
CARRIERS = (
    "twilio", "telnyx", "plivo", "signalwire", "exotel", "vonage", "genesys", "jambonz", "freeswitch", "native media",
)  # fmt: skip
"""Media legs with a simulated platform behind them, each with a bot at the same time."""
HTTP_DOORS = ("openai", "tts_stream", "elevenlabs_http", "deepgram_http")
VENDORS = ("deepgram", "deepgram_flux", "elevenlabs", "elevenlabs_stream", "cartesia", "dashscope")
"""The WebSockets of other vendors' protocols."""
JOINED = "joined"
"""HTTP requests that join the call of a carrier."""
_CODECS = ("ulaw", "ulaw", "alaw", "pcm")
_ULAW, _PCM, _PCM16, _PCM24 = ("ulaw", 8000), ("pcm", 8000), ("pcm", 16000), ("pcm", 24000)
_CARRIER_CODECS = {
    "twilio": [_ULAW], "telnyx": [_ULAW, ("alaw", 8000)], "plivo": [_ULAW, _PCM], "signalwire": [_ULAW, _PCM],
    "exotel": [_PCM, _PCM, _PCM16, _PCM24, _ULAW], "vonage": [_PCM, _PCM16, _PCM24],
    "genesys": [_ULAW, _PCM], "jambonz": [_PCM, _PCM16, ("pcm", 48000)], "freeswitch": [_PCM, _PCM16],
    "native media": [_ULAW, ("alaw", 8000), _PCM, _PCM24],
}  # fmt: skip
_LATE = ("fixed", "fixed", "jumping", "stalling")
"""How platforms at the end of a real socket are late: `torture.dialects.LATENESS`."""
_CARRIER_ENDS = (
    "close", "close", "hangup", "close_now", "fin", "rst", "media_rst", "media_fin", "media_half_close", "half_close",
)  # fmt: skip
_ENDS = {
    "native": ("close", "close", "close", "close_now", "fin", "rst", "half_close", "silence"),
    **dict.fromkeys(CARRIERS, _CARRIER_ENDS),
    **dict.fromkeys(HTTP_DOORS, ("fin", "fin", "rst")),
    JOINED: ("close", "close", "hangup", "media_rst"),
    "asterisk_phone": ("close", "close", "hangup", "fin"),
    "no_bot": ("fin",),
    "far_engine": ("close", "close", "fin"),
    "bridge": ("close", "close", "hangup", "fin", "media_rst"),
    **dict.fromkeys(VENDORS, ("close", "close", "fin", "rst", "unusable")),
    **dict.fromkeys(("cartesia", "dashscope"), ("fin", "fin", "rst")),
}
_MEDIA_ENDS = ("close", "close", "close_now")
"""Of the calls through simulated telephone platforms, on the virtual clock."""
_DOORS = (
    *["native"] * 6, "twilio", *CARRIERS, *VENDORS, *HTTP_DOORS, JOINED, JOINED,
)  # fmt: skip
_DOORS_OF = {
    "bridge": ("bridge",),
    "asterisk": ("asterisk_phone",),
    "names": ("native", "native", "deepgram", "cartesia", "openai", "no_bot", *["far_engine"] * 4),
    "cosyvoice2": ("native",),
}
_FAULTS = {
    "one": ("stop_server", "step_clock", "squeeze_memory"),
    "fronts": ("stop_front", "kill_front"),
    "engine": ("stop_engine", "kill_engine"),
    "bridge": ("stop_bridge", "stop_server", "kill_bridge"),
    "small": ("use_up_descriptors", "fill_disk"),
    "names": ("lose_names", "lose_names", "stop_server", "step_clock"),
    "cosyvoice2": ("stop_cosyvoice2", "stop_cosyvoice2", "stop_server", "kill_cosyvoice2"),
    "asterisk": ("stop_asterisk", "stop_asterisk", "stop_bridge", "stop_server", "kill_asterisk"),
}


def make_round(
    seed: int, number: int, *, shape: str | None = None, n_calls: int = 60, seconds: float = 8, most_steps: int = 16
) -> Round:
    """The round of this number. `n_calls` begin within `seconds`."""
    choose = random.Random(f"{seed}/{number}")
    shape = shape or choose.choices(SHAPES, (10, 2, 2, 2, 2, 1))[0]
    doors = _DOORS_OF.get(shape, _DOORS)
    calls = tuple(
        make_call(
            choose.randrange(2**32), doors, start_ms=round(1000 * seconds * n / n_calls),
            n_steps=choose.randint(3, most_steps),
        )
        for n in range(n_calls)
    )  # fmt: skip
    faults = []
    if shape != "one" or choose.random() < 0.6:
        for _ in range(choose.randint(1, 2)):
            kind = choose.choice(_FAULTS[shape])
            faults.append(Fault(choose.randint(500, 500 + round(seconds * 1000)), kind, choose.randint(100, 700)))
    return Round(seed, number, shape, calls, tuple(sorted(faults, key=lambda fault: fault.at_ms)))


def make_call(
    seed: int, doors: tuple[str, ...], *, start_ms: int = 0, n_steps: int = 10, weights: dict[str, int] = _STEPS
) -> CallHistory:
    """`weights` says how often each kind of step comes."""
    choose = random.Random(seed)
    door = choose.choice(doors)
    is_conversation = weights is _STEPS and door in CARRIERS and choose.random() < 0.3
    waits_ms = _LONG_WAITS_MS if is_conversation else _WAITS_MS
    if is_conversation:
        weights = _CONVERSATION
    chosen = choose.choices(list(weights), list(weights.values()), k=n_steps)
    steps = [Step(choose.choice(waits_ms), kind, choose.randint(1, 5)) for kind in chosen]
    if is_conversation:
        steps.insert(0, Step(0, "listen"))
    if door in (*VENDORS, *HTTP_DOORS, JOINED):
        steps = [step for step in steps if step.do not in _NATIVE_ONLY]
    steps.insert(0, Step(choose.choice(_WAITS_MS), "say", choose.randint(1, 5)))
    end = choose.choice(_ENDS.get(door, _MEDIA_ENDS))
    return CallHistory(door, seed, start_ms, tuple(steps), end, _options(door, choose))


def _options(door: str, choose: random.Random) -> dict[str, Any]:
    if door == "far_engine":
        return {"lang": choose.choice(["zh", "de"])}
    if door == "native":
        codec = choose.choice(["ulaw", "ulaw", "alaw", "pcm"])
        return {
            "codec": codec,
            "rate": choose.choice([8000, 16000]) if codec == "pcm" else 8000,
            "ptime_ms": choose.choice([20, 20, 20, 10, 40]),
            "audio": choose.choice(["binary", "base64"]),
            "lead_ms": choose.choice([0, 60, 200, 400]),
            "through_proxy": choose.random() < 0.1,
            "comes_back": choose.random() < 0.1,
        }
    if door == "asterisk_phone":
        return {"extension": choose.choice(["700", "701"])}
    if door in CARRIERS:
        return {
            "media_first": choose.random() < 0.4,
            "delay_ms": choose.choice([0, 0, 20, 80, 300, 1000, 1500]),
            "comes_back": choose.random() < 0.2,
            "format": choose.choice(_CARRIER_CODECS[door]),
            "late": choose.choice(_LATE),
        }
    if door in VENDORS:
        return {"codec": choose.choice(_CODECS)}
    if door == JOINED:
        return {
            "form": choose.choice(HTTP_DOORS),
            "in_query": choose.random() < 0.4,
            "delay_ms": choose.choice([0, 0, 80, 300]),
            "no_media": choose.random() < 0.08,
        }
    return {}


def only(whole: Round, calls: list[CallHistory], faults: list[Fault]) -> Round:
    """The same round with these calls and faults alone."""
    return replace(whole, calls=tuple(calls), faults=tuple(faults))
