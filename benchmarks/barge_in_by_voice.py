"""Whether the caller's voice is detected, on real voices, noise and echo, beside the rules of other software.

The callers are recorded telephone prompts. Each says one prompt over the bot's speech, and interrupts, or is missed.
In the other cases the caller is silent, and each interruption is false: minutes of the bot's own echo, or of a noise.
All sound passes mu-law. Time is simulated: the pieces of the product get 20 ms at a time, so the figures do not depend
on the machine. The same sound goes to pipecat, to livekit with the same network, and to two other detectors, as a
process of its own. The bot speaks on after an interruption, so that all get the same sound. The rules "webrtc aec" and
"speex" are the product with an echo canceller before it instead of its own comparison. With `--live`, calls of a
running server are interrupted by some of the callers in real time.

The first use downloads the recordings (32 MB, by apt) and the other software (600 MB, by pip and apt) into .peers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from harness import report
from harness import telephone_sound as sound
from harness.live_callers import LiveCaller, interruptions
from harness.telephone_sound import RATE_HZ, Signal

from telephony_tts.audio.g711 import encode_ulaw
from telephony_tts.audio.voice_activity import VoiceModel
from telephony_tts.session.caller.caller import Caller
from telephony_tts.session.effects import Effect
from telephony_tts.session.playout import outlet
from telephony_tts.session.settings import BargeInSettings, SessionSettings
from telephony_tts.wire.messages import MediaAudio

_EXAMPLES = """examples:
  python benchmarks/barge_in_by_voice.py                            all cases, an hour on two cores
  python benchmarks/barge_in_by_voice.py --cases first,pink --callers 40 --rules ours
  python benchmarks/barge_in_by_voice.py --cases echo --rules "ours,webrtc aec,speex"
  python benchmarks/barge_in_by_voice.py --cases none --live 20
  python benchmarks/barge_in_by_voice.py --cases echo --rules ours --voice kokoro --minutes 10
"""
_PEERS = Path(__file__).resolve().parent.parent / ".peers" / "barge_in"
_PACKAGES = (
    "pipecat-ai==1.14.0", "livekit-agents==1.8.9", "livekit-plugins-silero==1.8.9", "webrtcvad-wheels==2.0.14.post1",
    "ten-vad==1.0.6.9", "aec-audio-processing==1.0.1", "setuptools<81",
)  # fmt: skip
_LIBRARIES = ("libspeexdsp1", "libc++1-14", "libc++abi1-14", "libunwind-14")
"""Debian's: Speex, and what ten-vad needs."""
_OTHERS = ("pipecat", "livekit", "webrtcvad", "ten-vad")
_CANCELLERS = ("webrtc aec", "speex")
_FRAME = RATE_HZ // 50
_MS = 1_000_000
_LEAD_MS = 60
_LINE_DBM0 = -65.0
"""The noise of every line."""


@dataclass(frozen=True)
class Heard:
    """A case in which callers speak: `at_s` after the bot began, at a level; over a noise and an echo, and after a word
    of `word_s` that is said 0.3 s after the bot began."""

    name: str
    dbm0: float
    at_s: float = 5.0
    noise: tuple[str, float] | None = None
    echo: tuple[float, float, str] | None = None
    word_s: float = 0.0
    is_short: bool = False
    """The callers say one syllable."""


@dataclass(frozen=True)
class Quiet:
    """A case with a silent caller: seconds of an echo (delay in ms, dB down, path), or of a noise at a level."""

    name: str
    seconds: float
    noise: tuple[str, float] | None = None
    echo: tuple[float, float, str] | None = None


def _cases(seconds: float) -> list[Heard | Quiet]:
    levels = (-15.0, -20.0, -25.0, -33.0)
    heard = [Heard(f"silence {dbm0:.0f}", dbm0) for dbm0 in levels]
    heard += [Heard(f"first second {dbm0:.0f}", dbm0, 0.3) for dbm0 in levels]
    heard += [
        Heard(f"word of {word_s:.0f} s, then at {0.3 + after_s:.1f} s {dbm0:.0f}", dbm0, 0.3 + after_s, word_s=word_s)
        for word_s, after_s, dbm0 in (
            (1.0, 3.0, -20.0), (1.0, 3.0, -25.0), (1.0, 6.0, -25.0), (1.0, 12.0, -25.0), (1.0, 20.0, -25.0),
            (2.0, 3.0, -25.0),
        )
    ]  # fmt: skip
    heard += [Heard(f"pink noise {dbm0 - 5:.0f} {dbm0:.0f}", dbm0, noise=("pink noise", dbm0 - 5)) for dbm0 in levels]
    heard += [
        Heard(f"{name} {noise_dbm0:.0f} {dbm0:.0f}", dbm0, noise=(name, noise_dbm0))
        for name, noise_dbm0, dbm0 in (
            ("comfort noise", -50.0, -25.0), ("babble", -35.0, -25.0), ("hum", -30.0, -25.0),
            ("music on hold", -35.0, -25.0), ("distant speech", -40.0, -25.0),
        )
    ]  # fmt: skip
    heard += [
        Heard(
            f"at {at_s:.1f} s, echo {delay_ms:.0f} ms {down_db:.0f} dB {path} {dbm0:.0f}", dbm0, at_s,
            echo=(delay_ms, down_db, path),
        )
        for at_s, delay_ms, down_db, path, dbm0 in (
            (5.0, 200.0, 30.0, "wire", -20.0), (5.0, 200.0, 20.0, "wire", -20.0), (5.0, 600.0, 10.0, "wire", -20.0),
            (0.3, 200.0, 20.0, "wire", -20.0), (5.0, 450.0, 15.0, "mobile", -20.0), (5.0, 200.0, 15.0, "room", -20.0),
        )
    ]  # fmt: skip
    heard += [Heard(f"one syllable {dbm0:.0f}", dbm0, is_short=True) for dbm0 in (-20.0, -25.0)]
    quiet = [
        Quiet(f"echo {delay_ms} ms {down_db} dB {path}", seconds, echo=(delay_ms, down_db, path))
        for delay_ms, down_db, path in (
            (40, 10, "wire"), (150, 10, "wire"), (350, 10, "wire"), (450, 10, "wire"), (600, 10, "wire"),
            (800, 10, "wire"), (600, 6, "wire"), (400, 20, "wire"), (800, 20, "wire"), (600, 30, "wire"),
            (200, 40, "wire"), (450, 10, "mobile"), (200, 10, "room"),
        )
    ]  # fmt: skip
    quiet += [Quiet(f"only {name} -25", 2 * seconds, noise=(name, -25.0)) for name in sound.NOISES]
    return [*heard, *quiet]


# ------------------------------------------------------------------------------ the sound of a case


@dataclass(frozen=True)
class Call:
    """The caller's audio and ours, in mu-law, and from when to when the caller says the prompt."""

    line: bytes
    ours: bytes
    from_ms: float = 0.0
    until_ms: float = 0.0


def _line(ours: Signal, case: Heard | Quiet, seed: int) -> Signal:
    seconds = len(ours) / RATE_HZ
    line = sound.noise("comfort noise", seconds, _LINE_DBM0, seed)
    if case.noise is not None:
        name, dbm0 = case.noise
        line = line + np.roll(_long_noise(name, dbm0, seconds), -seed * 7919)[: len(ours)]
    if case.echo is not None:
        line = line + sound.echo(ours, *case.echo)
    return line


_NOISES: dict[tuple[str, float], Signal] = {}


def _long_noise(name: str, dbm0: float, seconds: float) -> Signal:
    found = _NOISES.get((name, dbm0))
    if found is None or len(found) < seconds * RATE_HZ:
        found = _NOISES[name, dbm0] = sound.noise(name, max(120.0, seconds), dbm0)
    return found


def _call(case: Heard, number: int, said: Signal, word: Signal, voice: str) -> Call:
    rng = np.random.default_rng(number)
    begin = round((case.at_s + rng.uniform(0, 0.04)) * RATE_HZ)
    n = (begin + len(said) + RATE_HZ * 6 // 10) // _FRAME * _FRAME
    ours = np.roll(sound.our_speech(600, voice), -int(rng.integers(600)) * RATE_HZ)
    ours = ours[np.argmax(np.abs(ours) > 0.02) :][:n]
    line = _line(ours, case, number)
    line[begin : begin + len(said)] += sound.at_level(said, case.dbm0)
    if case.word_s:
        at, n_word = round(0.3 * RATE_HZ), round(case.word_s * RATE_HZ)
        line[at : at + n_word] += sound.at_level(word, case.dbm0)[:n_word]
    return Call(sound.ulaw(line), sound.ulaw(ours), begin / 8, (begin + len(said)) / 8 + 500)


def _calls(case: Heard | Quiet, n_callers: int, voice: str) -> list[Call]:
    if isinstance(case, Heard):
        said = sound.short_words(n_callers) if case.is_short else sound.prompts(n_callers)
        words = [wave for wave in sound.prompts(300) if len(wave) > 2 * RATE_HZ]
        return [_call(case, number, each, words[number % len(words)], voice) for number, each in enumerate(said)]
    ours = sound.our_speech(case.seconds, voice)
    return [Call(sound.ulaw(_line(ours, case, 1)), sound.ulaw(ours))]


# ------------------------------------------------------------------------------ the rules


class _Speaking:
    """A turn of which speech is heard all the time."""

    sent_all = False

    def __init__(self) -> None:
        self.playout = outlet(SessionSettings())[1]
        self.playout.start(0)
        self.playout.n_sent = 1


def product(model: VoiceModel, line: bytes, ours: bytes) -> list[float]:
    """When the product would stop the bot, in ms."""
    out: list[Effect] = []
    caller = Caller(SessionSettings(barge_in=BargeInSettings(enabled=True)), lambda: model, out)
    caller.media(("ulaw", RATE_HZ), ("ulaw", RATE_HZ), 0)
    turns: list[Any] = [_Speaking()]
    stops = []
    n_sent = 0
    for n in range(len(line) // _FRAME):
        now_ns = (n + 1) * 20 * _MS
        while n_sent * 20 <= (n + 1) * 20 + _LEAD_MS and n_sent < len(ours) // _FRAME:
            caller.playing(ours[n_sent * _FRAME : (n_sent + 1) * _FRAME], n_sent * 20 * _MS, now_ns)
            n_sent += 1
        caller.take(MediaAudio(line[n * _FRAME : (n + 1) * _FRAME], n * 20), turns, now_ns)
        if caller.interrupts(now_ns):
            stops.append((n + 1) * 20.0)
    return stops


class Others:
    """Other software, as a process that is started with its packages: `script` of the folder harness."""

    def __init__(self, script: str, *arguments: str) -> None:
        libraries = _PEERS / "lib" / "usr" / "lib"
        env = {**os.environ, "LD_LIBRARY_PATH": f"{libraries}/llvm-14/lib:{libraries}/x86_64-linux-gnu"}
        env.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [_PEERS / "venv" / "bin" / "python", Path(__file__).parent / "harness" / script, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env,
        )  # fmt: skip

    def begin(self, about: Any, sound: bytes) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(about).encode() + b"\n" + sound)
        self._process.stdin.flush()

    def answer(self) -> Any:
        """To the last `begin`."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def read(self, n_bytes: int) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.read(n_bytes)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _install() -> None:
    if (_PEERS / ".done").exists():
        return
    (_PEERS / "lib").mkdir(parents=True, exist_ok=True)
    venv.create(_PEERS / "venv", with_pip=True)
    subprocess.run([_PEERS / "venv" / "bin" / "python", "-m", "pip", "install", "-q", *_PACKAGES], check=True)
    command = ["apt-get", "-qq", "download", *_LIBRARIES]
    subprocess.run(command, cwd=_PEERS / "lib", check=True, stderr=subprocess.DEVNULL)
    for package in (_PEERS / "lib").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, _PEERS / "lib"], check=True)
        package.unlink()
    (_PEERS / ".done").touch()


# ------------------------------------------------------------------------------ the figures


def run_case(case: Heard | Quiet, n_callers: int, rules: Sequence[str], voice: str) -> dict[str, Any]:
    """The figures of a case by rule, with that voice as ours."""
    model = VoiceModel()
    names = [name for name in _OTHERS if name in rules]
    others = Others("barge_in_rules.py", ",".join(names)) if names else None
    cancellers = Others("echo_cancellers.py") if set(rules) & set(_CANCELLERS) else None
    stops: dict[str, list[list[float]]] = {name: [] for name in rules}
    cpu_us: dict[str, list[float]] = {}
    calls = _calls(case, n_callers, voice)
    for call in calls:
        if others is not None:
            others.begin(len(call.line), call.line)
        if "ours" in rules:
            stops["ours"].append(product(model, call.line, call.ours))
        for name in set(rules) & set(_CANCELLERS):
            assert cancellers is not None
            cancellers.begin((name, len(call.line)), call.line + call.ours[: len(call.line)])
            n_bytes, us = cancellers.answer()
            cleaned = encode_ulaw(np.frombuffer(cancellers.read(n_bytes), np.int16))
            stops[name].append(product(model, cleaned, b""))
            cpu_us.setdefault(name, []).append(us)
        for name, found in others.answer().items() if others is not None else ():
            stops[name].append(found)
    for process in filter(None, (others, cancellers)):
        process.close()
    judge = partial(_heard, calls) if isinstance(case, Heard) else partial(_false, case.seconds)
    figures = {name: judge(found) for name, found in stops.items()}
    for name, spent in cpu_us.items():
        figures[name]["cpu_us_per_20_ms"] = report.median(spent, 0)
    return figures


def run_live(n_callers: int) -> list[dict[str, Any]]:
    """The figures of calls of a running server."""
    results = []
    for name, at_s, dbm0, echo in (
        ("silence", 5.0, -25.0, None), ("first second", 0.3, -25.0, None),
        ("echo 600 ms 10 dB", 5.0, -20.0, (600.0, 10.0)),
        ("echo 600 ms 10 dB, silent caller", 60.0, None, (600.0, 10.0)),
    ):  # fmt: skip
        callers = [
            LiveCaller(np.zeros(0) if dbm0 is None else sound.at_level(said, dbm0), at_s, echo)
            for said in sound.prompts(n_callers)
        ]
        stops = interruptions(callers)
        if dbm0 is None:
            rules = {"ours": _false(at_s * n_callers, stops)}
        else:
            calls = [Call(b"", b"", 0.0, len(caller.said) / 8 + 500) for caller in callers]
            rules = {"ours": _heard(calls, [[at * 1000 for at in found] for found in stops])}
        kind = "quiet" if dbm0 is None else "heard"
        results.append({"case": f"live: {name}", "kind": kind, "rules": rules})
    return results


def _heard(calls: Sequence[Call], stops: Sequence[Sequence[float]]) -> dict[str, Any]:
    first = [
        next((at_ms - call.from_ms for at_ms in found if call.from_ms < at_ms <= call.until_ms), None)
        for call, found in zip(calls, stops, strict=True)
    ]
    onsets = [each for each in first if each is not None]
    p50, p90 = (round(float(np.percentile(onsets, share))) if onsets else None for share in (50, 90))
    return {"callers": len(calls), "missed": len(calls) - len(onsets), "p50_ms": p50, "p90_ms": p90}


def _false(seconds: float, stops: Sequence[Sequence[float]]) -> dict[str, Any]:
    return {"minutes": round(seconds / 60, 1), "false": sum(map(len, stops))}


def _named(case: Heard | Quiet, chosen: argparse.Namespace) -> dict[str, Any]:
    os.nice(chosen.nice)
    rules = run_case(case, chosen.callers, chosen.rules.split(","), chosen.voice)
    print(f"  {case.name}: {json.dumps(rules)}", file=sys.stderr, flush=True)
    return {"case": case.name, "kind": type(case).__name__.lower(), "of": asdict(case), "rules": rules}


def _shown(figures: dict[str, Any]) -> str:
    if "false" in figures:
        return str(figures["false"])
    return f"{figures['missed']} · {figures['p50_ms']} / {figures['p90_ms']}"


def main() -> None:
    flags = report.parser("barge_in_by_voice", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--callers", type=int, default=200, help="callers of a case (default %(default)s)")
    flags.add_argument("--minutes", type=float, default=30, help="of echo; of noise two times (default %(default)s)")
    flags.add_argument("--cases", default="", help="parts of the names of cases, separated by commas (default all)")
    flags.add_argument("--rules", default=",".join(("ours", *_OTHERS)), help="rules (default %(default)s)")
    flags.add_argument("--voice", choices=sound.OUR_VOICES, default="hibari", help="ours (default %(default)s)")
    flags.add_argument("--live", type=int, default=0, help="calls of a running server at a time (default %(default)s)")
    flags.add_argument("--workers", type=int, default=2, help="cases at a time (default %(default)s)")
    flags.add_argument("--nice", type=int, default=0, help="niceness of the workers (default %(default)s)")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.callers, chosen.minutes, chosen.cases, chosen.rules = 1, 0.1, "silence -20,only hum", "ours"
    names = chosen.rules.split(",")
    parts = [part for part in chosen.cases.split(",") if part]
    cases = [case for case in _cases(chosen.minutes * 60) if not parts or any(part in case.name for part in parts)]
    sound.our_speech(1, chosen.voice)
    if names != ["ours"]:
        _install()
    with Pool(chosen.workers) as pool:
        results = pool.map(partial(_named, chosen=chosen), cases, chunksize=1)
    if chosen.live:
        results += run_live(chosen.live)
    for kind, title in (("heard", "missed · onset p50 / p90 in ms"), ("quiet", "false interruptions")):
        rows = [
            (r["case"], *(_shown(r["rules"][name]) if name in r["rules"] else "-" for name in names))
            for r in results if r["kind"] == kind
        ]  # fmt: skip
        if rows:
            report.table(title, ("case", *names), rows)
    report.save(chosen, results)


if __name__ == "__main__":
    main()
