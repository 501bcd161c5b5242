"""The parts without sockets: segmenter, normaliser, encoder, wire codecs, and the session's cost of a frame.

Speeds are medians of repeats on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from harness import report
from harness.process import cores

from telephony_tts.audio.encoder import Encoder
from telephony_tts.audio.included_sounds import INCLUDED
from telephony_tts.audio.sound import Sound
from telephony_tts.doors.twilio.codec import TwilioCodec
from telephony_tts.engines.api import Chunk
from telephony_tts.engines.fake.engine import SAMPLE_RATE_HZ, render
from telephony_tts.session.effects import LoadBed, Pull, Synthesize
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.text.normalizer import normalize
from telephony_tts.text.segmenter import Segmenter
from telephony_tts.text.ssml import SsmlReader
from telephony_tts.wire import messages as m
from telephony_tts.wire.native import NativeCodec

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import audioop

_ROOT = Path(__file__).resolve().parent.parent


_EXAMPLES = """examples:
  python benchmarks/frontend.py
  git worktree add --detach ../older ad5cb21; python benchmarks/frontend.py --older ../older
"""

_TEXT = (
    "Thank you for calling. Your order no. 4711 was shipped on May 3rd, 2024 at 9:30 a.m. and costs $42.50 in all. "
    "Mr. Smith from the St. James branch will ring you on 555-0142 between 2 and 4 p.m. Is that all right with you? "
    "If not, write to help@example.com, or visit www.example.com/orders; we answer within 24 hours! "
)
_SSML = (
    'Your order <say-as interpret-as="digits">4711</say-as> was shipped <emphasis>today</emphasis>.'
    '<break time="300ms"/> <prosody rate="slow">It weighs 2 kilograms &amp; comes with <sub alias="United Parcel">UPS'
    "</sub></prosody>.<break/> "
    "Is that all right with you?<break strength='strong'/> "
) * 8
_MANDARIN = (
    "您好，您的订单已经发货，预计三天内送达。请问还有什么可以帮您的吗？如果需要修改地址，请按一；其他问题请按二。"
)


def main() -> None:
    flags = report.parser("frontend", __doc__.splitlines()[0], _EXAMPLES)
    flags.add_argument("--repeat", type=int, default=9, help="repeats of each measure (default %(default)s)")
    flags.add_argument("--rounds", type=int, default=7, help="rounds of the SSML off/on ratios (default %(default)s)")
    flags.add_argument("--older", type=Path, metavar="DIR", help="a checkout of older code, for one more ratio")
    chosen = flags.parse_args()
    if chosen.quick:
        chosen.repeat = 1
    os.sched_setaffinity(0, {cores()[0]})
    results: dict[str, Any] = {
        "segmenter": _segmenter(chosen),
        "markup": _markup(chosen),
        "ssml_off_on": _ssml_off_on(chosen),
        "normaliser": _normaliser(chosen),
        "encoder": _encoder(chosen),
        "wire_ns": _wire(chosen),
        "session": _session(chosen),
    }
    rows = [
        (f"{part}: {name}", value)
        for part in ("segmenter", "markup", "ssml_off_on", "normaliser", "encoder", "wire_ns", "session")
        for name, value in results[part].items()
    ]
    report.table("front end (medians)", ("what", "figure"), rows)
    report.save(chosen, results)


def _seconds(work: Callable[[], object], chosen: argparse.Namespace, n: int) -> float:
    """Median seconds of one `work()`, timed `n` at a time."""
    n = max(1, n // 50) if chosen.quick else n
    work()
    spent = []
    for _ in range(chosen.repeat):
        begun = time.perf_counter()
        for _ in range(n):
            work()
        spent.append((time.perf_counter() - begun) / n)
    return statistics.median(spent)


def _segmenter(chosen: argparse.Namespace) -> dict[str, float]:
    """Characters per second of text that comes in pieces of 4 characters, as from a language model, and of 256."""

    def feed(text: str, n: int) -> None:
        segmenter = Segmenter(first_clause_chars=24)
        for at in range(0, len(text), n):
            segmenter.feed(text[at : at + n])
        segmenter.flush()

    figures: dict[str, float] = {}
    for name, text in (("English", _TEXT * 4), ("Mandarin", _MANDARIN * 8)):
        for n in (4, 256):
            seconds = _seconds(lambda text=text, n=n: feed(text, n), chosen, 5)  # type: ignore[misc]
            figures[f"{name}, pieces of {n}, chars/s"] = round(len(text) / seconds)
    return figures


def _markup(chosen: argparse.Namespace) -> dict[str, float]:
    """What SSML costs, in microseconds a sentence, in pieces as above: its tags are read, and mapped to the text."""

    def feed(n: int) -> None:
        reader = SsmlReader()
        for at in range(0, len(_SSML), n):
            reader.feed(_SSML[at : at + n])
        reader.close()

    n_sentences = _SSML.count("<break")
    return {
        f"SSML, pieces of {n}, us a sentence": round(_seconds(lambda n=n: feed(n), chosen, 20) / n_sentences * 1e6, 1)  # type: ignore[misc]
        for n in (4, 256)
    }


def _ssml_off_on(chosen: argparse.Namespace) -> dict[str, float]:
    """Plain text through the intake and the segmenter, in turn: where a turn may be SSML (`text_type` auto) against a
    call of text alone, plain text in a turn that is SSML, and with `--older` the code of an older checkout."""
    kinds = {"text": None, "auto": None, "ssml": None, **({"older": chosen.older} if chosen.older else {})}
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(1 if chosen.quick else chosen.rounds):
        for kind, checkout in kinds.items():
            speeds = _speeds("text" if checkout else kind, checkout, chosen)
            for n, speed in speeds.items():
                found.setdefault((kind, n), []).append(speed)
    figures: dict[str, float] = {}
    for n in ("4", "256"):
        for name, kind, base in (
            ("SSML possible / text alone", "auto", "text"), ("in a turn of SSML / text alone", "ssml", "text"),
            ("SSML possible / older code", "auto", "older"),
        ):  # fmt: skip
            if (base, n) in found:
                pairs = zip(found[kind, n], found[base, n], strict=True)
                figures[f"{name}, pieces of {n}"] = round(statistics.median(a / b for a, b in pairs), 3)
    return figures


def _speeds(text_type: str, checkout: Path | None, chosen: argparse.Namespace) -> dict[str, float]:
    harness = Path(__file__).resolve().parent / "harness"
    command = [sys.executable, str(harness / "turn_text.py"), "--text-type", text_type]
    command += ["--repeat", "1" if chosen.quick else "25", _TEXT * 4]
    environment = {**os.environ, "PYTHONPATH": str(checkout or _ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=120)
    speeds: dict[str, float] = json.loads(done.stdout)
    return speeds


def _normaliser(chosen: argparse.Namespace) -> dict[str, float]:
    plain = "I have sent the form to the address you gave us, is there anything else?"
    rich = "Order no. 4711 costs $42.50 and arrives on May 3rd, 2024 at 9:30 a.m."
    figures: dict[str, float] = {}
    for name, text, lang in (("plain English", plain, "en"), ("rich English", rich, "en")):
        normalize(text, lang)
        figures[f"{name}, µs per sentence"] = round(
            _seconds(lambda text=text, lang=lang: normalize(text, lang), chosen, 200) * 1e6, 1
        )  # type: ignore[misc]
    return figures


def _encoder(chosen: argparse.Namespace) -> dict[str, float]:
    """Milliseconds per second of audio in 100 ms chunks: our encoder and the bare libraries, measured in turn."""
    pcm = render("the quick brown fox jumps over the lazy dog, and then again.")
    n = SAMPLE_RATE_HZ // 10
    chunks = [pcm[at : at + n] for at in range(0, len(pcm) - n, n)]
    audio_s = sum(len(chunk) for chunk in chunks) / SAMPLE_RATE_HZ

    def ours() -> None:
        encoder = Encoder()
        encoder.begin()
        for chunk in chunks:
            encoder.feed(chunk, SAMPLE_RATE_HZ)
            while encoder.take_frame() is not None:
                pass
        encoder.end()
        encoder.finish()

    def bare() -> None:
        stream = soxr.ResampleStream(SAMPLE_RATE_HZ, 8000, 1, dtype="int16", quality="HQ")
        ready = bytearray()
        for chunk in chunks:
            ready += audioop.lin2ulaw(stream.resample_chunk(chunk).tobytes(), 2)
            while len(ready) >= 160:
                bytes(ready[:160])
                del ready[:160]
        ready += audioop.lin2ulaw(stream.resample_chunk(np.zeros(0, np.int16), last=True).tobytes(), 2)

    pairs = [
        (
            _seconds(ours, argparse.Namespace(**{**vars(chosen), "repeat": 1}), 10),
            _seconds(bare, argparse.Namespace(**{**vars(chosen), "repeat": 1}), 10),
        )
        for _ in range(chosen.repeat)
    ]
    return {
        "ours, ms per audio second": round(statistics.median(a for a, _ in pairs) * 1000 / audio_s, 4),
        "bare soxr + audioop": round(statistics.median(b for _, b in pairs) * 1000 / audio_s, 4),
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
    }


def _wire(chosen: argparse.Namespace) -> dict[str, float]:
    """Nanoseconds per message."""
    payload = bytes(range(160))
    frame = m.Frame(payload)
    twilio, native, binary = TwilioCodec(), NativeCodec("base64", "c1"), NativeCodec("binary", "c1")
    start = {"event": "start", "streamSid": "MZ1", "start": {"streamSid": "MZ1", "callSid": "CA1"}}
    twilio.decode(json.dumps(start).encode())
    wire = twilio.encode(frame)[0].decode()
    inbound = wire.replace(
        '"media":{', '"sequenceNumber":"7","media":{"track":"inbound","chunk":"5","timestamp":"80",'
    ).encode()
    say = b'{"type":"say","turn":"t1","text":"Your order was shipped this morning."}'
    done = m.Done("t1", 1980, 36, 0, {"first_audio_ms": 31.2, "queue_ms": 0.1})
    jobs: dict[str, Callable[[], object]] = {
        "twilio encode frame": lambda: twilio.encode(frame),
        "native encode frame": lambda: native.encode(frame),
        "binary encode frame": lambda: binary.encode(frame),
        "twilio decode media, wanted": lambda: twilio.decode(inbound, True),
        "twilio decode media, not wanted": lambda: twilio.decode(inbound, False),
        "json.loads of the same": lambda: json.loads(inbound),
        "native decode say": lambda: native.decode(say),
        "native encode done": lambda: native.encode(done),
    }
    return {name: round(_seconds(job, chosen, 5000) * 1e9) for name, job in jobs.items()}


def _session(chosen: argparse.Namespace) -> dict[str, float]:
    """Microseconds per frame in the state machine; the cost of everything else it does is part of that."""
    text = (
        "Thank you for calling, I can see your account right here. Your last payment reached us on the third of May. "
    )
    pcm: dict[str, Any] = {}

    sound = INCLUDED["hold"]().at(8_000)

    class Included:
        async def load(self, rate_hz: int) -> Sound:
            return sound

    def speak(marks: bool, bed: bool = False) -> tuple[int, int]:
        """(frames, nanoseconds inside the session), with encoding. `bed`: with a sound under the speech."""
        session = Session(SessionSettings(), 0, find_sound=lambda name: Included())
        session.attach_media(0, marks=marks, clears=marks)
        if bed:
            session.receive(m.Play("hold", under=True), 0)
        now_ns = n_frames = spent_ns = 0
        for n in range(4):
            session.receive(m.Say(text, f"t{n}"), 0)
        left: dict[str, Any] = {}
        while True:
            begun = time.perf_counter_ns()
            effects = session.poll(now_ns)
            deadline_ns = session.deadline_ns()
            spent_ns += time.perf_counter_ns() - begun
            n_done = 0
            for effect in effects:
                if isinstance(effect, m.Frame):
                    n_frames += 1
                elif isinstance(effect, m.MediaMark):
                    session.receive(effect, now_ns)
                elif isinstance(effect, LoadBed):
                    session.bed_loaded(effect.bed, sound)
                elif isinstance(effect, m.Done):
                    n_done += 1
                elif isinstance(effect, Synthesize | Pull):
                    utterance_id = effect.utterance.id if isinstance(effect, Synthesize) else effect.utterance_id
                    if isinstance(effect, Synthesize):
                        audio = pcm.setdefault(effect.utterance.text, render(effect.utterance.text))
                        left[utterance_id] = iter([audio[at : at + 2400] for at in range(0, len(audio), 2400)])
                    part = next(left[utterance_id], None)
                    begun = time.perf_counter_ns()
                    if part is None:
                        session.audio_ended(utterance_id, now_ns)
                    else:
                        session.audio(utterance_id, Chunk(part, SAMPLE_RATE_HZ), now_ns)
                    spent_ns += time.perf_counter_ns() - begun
                    deadline_ns = now_ns
            if not session.turns:
                return n_frames, spent_ns
            assert deadline_ns is not None
            now_ns = max(now_ns, deadline_ns)

    figures = {}
    for name, marks, bed in (
        ("own clock", False, False), ("peer with marks", True, False), ("own clock, sound under speech", False, True),
    ):  # fmt: skip
        speak(marks, bed)
        runs = [speak(marks, bed) for _ in range(chosen.repeat)]
        figures[f"{name}, µs per frame with encoding"] = round(statistics.median(ns / n / 1000 for n, ns in runs), 2)
    return figures


if __name__ == "__main__":
    main()
