"""What a recogniser hears in each voice: wrong characters, syllables and words of call-centre sentences.

60 sentences in Mandarin, 30 in English and 30 in Japanese (benchmarks/call_centre) are spoken as turns of a call and
recognised twice: at the rate of the engine, and as the caller gets them, behind 8 kHz G.711 (mu-law). The sentences,
and how a person would read them aloud, were written without a look at this server's rules of reading.

character errors  Mandarin and Japanese; replaced, missing and surplus characters by those of the reference
toned syllables   Mandarin; the same, but another character of the same sound is no error: the fairer figure for a voice
word errors       English
level, clipping, silence and pauses are those of the caller's audio.

The recogniser makes errors of its own, also with people. So compare voices, and look at the interval of each rate.
benchmarks/harness/error_rates.py describes how numbers are compared. `--whole` speaks a voice again with an hour for
each sentence, so that its engine makes whole clauses. The joints of the parts of a call are compared with those.

The first use downloads the recogniser (590 MB, by pip) into .peers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from harness import report
from harness.error_rates import Errors, character_errors, rate, syllable_errors, word_errors
from harness.recogniser import Recogniser, RecogniserUnavailable
from harness.telephone_sound import RATE_HZ, loudness_dbm0

from telephony_tts.app import config, offline
from telephony_tts.app.engines import local_engine
from telephony_tts.app.settings import session_settings
from telephony_tts.audio.g711 import decode_ulaw
from telephony_tts.cli.settings import config_flags, overrides
from telephony_tts.engines.api import Chunk, Engine, EngineStats, Pcm, Utterance, Voice
from telephony_tts.engines.catalog import Catalog
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.runtime.errors import ConfigError, TelephonyTTSError

_EXAMPLES = """examples:
  python benchmarks/intelligibility.py                              all languages, 40 minutes on one core
  python benchmarks/intelligibility.py --languages zh --voices kokoro,espeak
  python benchmarks/intelligibility.py --languages zh --voices cosyvoice2 --whole "" \\
    --set engines.cosyvoice2.model=models/CosyVoice2-0.5B
"""
_SENTENCES = Path(__file__).resolve().parent / "call_centre"
_LANGUAGES = ("zh", "en", "ja")
_PLACES = ("engine", "caller")
"""Whose audio the recogniser gets."""
_HOUR_NS = 3_600_000_000_000
_SILENCE_DBFS = -50.0
_WINDOW_MS = 5
_LEVEL_MS = 100
"""Of the sound before and behind a joint."""
_LARGEST_ULAW = 32_124


@dataclass(frozen=True, slots=True)
class Sentence:
    """`text` as a bot writes it, `spoken` as a person says it, in the form of `error_rates.py`."""

    text: str
    spoken: str


@dataclass(slots=True)
class Speech:
    """A spoken sentence. `joints`: where a part of the engine's audio begins, in its samples, without the first."""

    pcm: Pcm
    rate_hz: int
    caller: Pcm
    joints: list[int] = field(default_factory=list)


def sentences(language: str) -> list[Sentence]:
    """Of the file: a line with the text, then a line with what is said, which begins with a blank."""
    lines = (_SENTENCES / f"{language}.txt").read_text(encoding="utf-8").splitlines()
    return [Sentence(text, spoken.strip()) for text, spoken in zip(lines[::2], lines[1::2], strict=True)]


# ------------------------------------------------------------------------------ speaking


class _InTime:
    """`inner`, which is told when the caller would hear silence. The simulated clock of `offline` cannot say it.

    A turn begins when `begin` is called. Unless it `has_time`, its first sentence is wanted at once and the next ones
    when the audio before them has been played.
    """

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.name, self.streams_text, self.voices = inner.name, False, inner.voices
        self._heard_until_ns = 0
        self._has_time = False

    def begin(self, has_time: bool) -> None:
        self._heard_until_ns, self._has_time = 0, has_time

    async def start(self) -> None:
        await self._inner.start()
        self.voices = self._inner.voices

    async def close(self) -> None:
        await self._inner.close()

    def check(self, utterance: Utterance) -> None:
        self._inner.check(utterance)

    def stats(self) -> EngineStats:
        return self._inner.stats()

    def counters(self) -> Mapping[str, float]:
        return self._inner.counters()

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        now_ns = monotonic_ns()
        deadline_ns = now_ns + _HOUR_NS if self._has_time else max(now_ns, self._heard_until_ns)
        async with aclosing(self._inner.synthesize(replace(utterance, deadline_ns=deadline_ns))) as chunks:
            async for chunk in chunks:
                self._heard_until_ns = max(self._heard_until_ns, monotonic_ns())
                self._heard_until_ns += len(chunk.pcm) * 1_000_000_000 // chunk.sample_rate_hz
                yield chunk


class Speaker:
    """An engine of the configuration, as an async context. Raises ConfigError and the errors of engines."""

    def __init__(self, settings: config.Config, name: str) -> None:
        if name == "cosyvoice2" and settings.engines.cosyvoice2.model is None:
            raise ConfigError("cosyvoice2 has no model: add --set engines.cosyvoice2.model=DIR (docs/cosyvoice2.md)")
        try:
            engine = local_engine(settings, name)
        except KeyError:
            raise ConfigError(f"unknown engine {name!r}; expected hibari, kokoro, espeak or cosyvoice2") from None
        self._engine = _InTime(engine)
        self._speech = session_settings(settings)

    async def __aenter__(self) -> Speaker:
        await self._engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.close()

    def voice(self, name: str | None, language: str) -> Voice | None:
        """The voice of this name, or the first one, if it has the language. Raises ConfigError."""
        if name is not None and name not in (names := [each.name for each in self._engine.voices]):
            raise ConfigError(f"{self._engine.name} has no voice {name!r}; it has {', '.join(names)}")
        return next((v for v in self._engine.voices if v.speaks(language) and name in (None, v.name)), None)

    async def speak(self, text: str, voice: Voice, language: str, *, has_time: bool = False) -> Speech:
        chunks: list[Chunk] = []
        frames: list[bytes] = []
        self._engine.begin(has_time)
        settings = replace(self._speech, voice=voice.name, lang=language, codec="ulaw", rate_hz=RATE_HZ)
        await offline.speak(
            text, Catalog([self._engine], {}), settings, on_frame=frames.append, on_chunk=chunks.append
        )  # fmt: skip
        starts = np.cumsum([0, *(len(chunk.pcm) for chunk in chunks)])
        joints = [int(start) for start, chunk in zip(starts, chunks, strict=False) if chunk.timings and start]
        pcm = np.concatenate([chunk.pcm for chunk in chunks])
        return Speech(pcm, chunks[0].sample_rate_hz, decode_ulaw(b"".join(frames)), joints)


# ------------------------------------------------------------------------------ the sound


def sound(speeches: Sequence[Speech]) -> dict[str, Any]:
    """Level, clipping, silence and pauses of the caller's audio, and clipping of the engine's."""
    levels = [loudness_dbm0(speech.caller / 32768) for speech in speeches]
    quiet = [_quiet_runs(speech.caller, RATE_HZ) for speech in speeches]
    inside = [ms for runs in quiet for ms in runs[1:-1] if ms >= 50]
    own = np.concatenate([speech.pcm for speech in speeches])
    callers = np.concatenate([speech.caller for speech in speeches])
    return {
        "level_dbm0": _spread(levels),
        "peak_dbfs": round(20 * np.log10(max(1, int(np.abs(own.astype(np.int32)).max())) / 32768), 1),
        "clipped_of_engine": int((np.abs(own.astype(np.int32)) >= 32767).sum()),
        "clipped_of_caller": int((np.abs(callers.astype(np.int32)) >= _LARGEST_ULAW).sum()),
        "leading_ms": _spread([runs[0] for runs in quiet]),
        "trailing_ms": _spread([runs[-1] for runs in quiet]),
        "pauses": len(inside),
        "pause_ms": _spread(inside),
        "seconds": round(len(callers) / RATE_HZ, 1),
    }


def joints(hasty: Sequence[Speech], whole: Sequence[Speech]) -> dict[str, Any]:
    """At the joints that only the hasty speech has, beside the same place in whole clauses: how much the level steps
    more (dB, over 100 ms on each side), and how much longer it is silent there."""
    steps: list[float] = []
    pauses: list[float] = []
    lengths = [len(a.pcm) / len(b.pcm) for a, b in zip(hasty, whole, strict=True)]
    for a, b in zip(hasty, whole, strict=True):
        near = a.rate_hz * _LEVEL_MS // 1000
        for joint in a.joints:
            if min((abs(joint - other) for other in b.joints), default=near) < near:
                continue
            steps.append(abs(_step_db(a.pcm, joint, near) - _step_db(b.pcm, joint, near)))
            pauses.append(_silence_ms(a.pcm, joint, a.rate_hz) - _silence_ms(b.pcm, joint, b.rate_hz))
    figures = {"n": len(steps), "length_ratio": _spread(lengths, 4)}
    return figures | ({"level_step_db": _spread(steps), "added_pause_ms": _spread(pauses)} if steps else {})


def _spread(values: Sequence[float], digits: int = 1) -> dict[str, float]:
    if not len(values):
        return {}
    p50, p90 = np.percentile(values, (50, 90))
    ends = {"min": min(values), "p50": p50, "p90": p90, "max": max(values)}
    return {name: round(float(value), digits) for name, value in ends.items()}


def _is_loud(pcm: Pcm, rate_hz: int) -> npt.NDArray[np.bool_]:
    """By windows of 5 ms."""
    n_window = rate_hz * _WINDOW_MS // 1000
    windows = pcm[: len(pcm) // n_window * n_window].reshape(-1, n_window).astype(np.float64)
    loud: npt.NDArray[np.bool_] = np.square(windows).mean(axis=1) > (32768 * 10 ** (_SILENCE_DBFS / 20)) ** 2
    return loud


def _quiet_runs(pcm: Pcm, rate_hz: int) -> list[float]:
    """The milliseconds of silence before, between and behind the sounds."""
    loud = np.concatenate([[True], _is_loud(pcm, rate_hz), [True]])
    gaps = np.diff(np.flatnonzero(loud)) - 1
    first, last = int(gaps[0]), int(gaps[-1])
    return [float(ms) for ms in _WINDOW_MS * np.array([first, *(gap for gap in gaps[1:-1] if gap), last])]


def _silence_ms(pcm: Pcm, at: int, rate_hz: int) -> float:
    """How long the silence lasts in which a sample is; 0 in sound."""
    loud = _is_loud(pcm, rate_hz)
    window = min(at // (rate_hz * _WINDOW_MS // 1000), len(loud) - 1)
    sounds = np.flatnonzero(loud)
    before, behind = sounds[sounds <= window], sounds[sounds >= window]
    if not len(before) or not len(behind):
        return 0.0
    return float(max(0, behind[0] - before[-1] - 1) * _WINDOW_MS)


def _step_db(pcm: Pcm, at: int, near: int) -> float:
    def level(part: Pcm) -> float:
        return float(10 * np.log10(np.square(part.astype(np.float64)).mean() + 100))

    return level(pcm[at : at + near]) - level(pcm[max(0, at - near) : at])


# ------------------------------------------------------------------------------ the figures


def _judge(language: str, sentence: Sentence, heard: str) -> dict[str, Errors]:
    if language == "en":
        return {"words": word_errors(sentence.spoken, heard)}
    found = {"characters": character_errors(sentence.spoken, heard, language)}
    return found | ({"syllables": syllable_errors(sentence.spoken, heard)} if language == "zh" else {})


def _heard(
    places: Sequence[str], about: dict[str, Any], spoken: Sequence[Sentence], speeches: Sequence[Speech],
    recogniser: Recogniser,
) -> dict[str, Any]:  # fmt: skip
    """The rates by place ("engine", "caller") and measure, and each sentence as it was heard."""
    language = about["language"]
    errors: dict[str, dict[str, list[Errors]]] = {place: {} for place in places}
    lines: list[dict[str, Any]] = []
    for sentence, speech in zip(spoken, speeches, strict=True):
        line: dict[str, Any] = {"text": sentence.text}
        audio = {"engine": (speech.pcm, speech.rate_hz), "caller": (speech.caller, RATE_HZ)}
        for place in places:
            heard = recogniser.text(*audio[place], language)
            found = _judge(language, sentence, heard)
            line[place] = {"heard": heard, **{measure: each.n_wrong for measure, each in found.items()}}
            for measure, each in found.items():
                errors[place].setdefault(measure, []).append(each)
        lines.append(line)
    rates = {place: {measure: rate(each) for measure, each in found.items()} for place, found in errors.items()}
    print(f"  {language} {about['voice']} {about['spoken']}: {_shown(rates)}", file=sys.stderr, flush=True)
    return {"rates": rates, "lines": lines}


async def _run(chosen: argparse.Namespace, settings: config.Config, recogniser: Recogniser) -> list[dict[str, Any]]:
    """A row for each voice, language and way of speaking. The recogniser listens while the next voice speaks."""
    rows: list[dict[str, Any]] = []
    whole = [name for name in chosen.whole.split(",") if name]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as listening:
        heard: list[asyncio.Future[dict[str, Any]]] = []

        def listen(places: Sequence[str], own: list[Sentence], speeches: list[Speech], **about: Any) -> None:
            rows.append({**about, "sound": sound(speeches)})
            heard.append(loop.run_in_executor(listening, _heard, places, about, own, speeches, recogniser))

        for wanted in chosen.voices.split(","):
            engine, _, name = wanted.partition("/")
            async with Speaker(settings, engine) as speaker:
                for language in chosen.languages.split(","):
                    voice = speaker.voice(name or None, language)
                    if voice is None:
                        continue
                    about = {"language": language, "voice": f"{engine}/{voice.name}"}
                    own = sentences(language)[: chosen.sentences]
                    hasty = [await speaker.speak(each.text, voice, language) for each in own]
                    listen(_PLACES, own, hasty, **about, spoken="as in a call")
                    if about["voice"] in whole:
                        slow = [await speaker.speak(each.text, voice, language, has_time=True) for each in own]
                        figures = joints(hasty, slow)
                        listen(_PLACES[1:], own, slow, **about, spoken="whole clauses", joints=figures)
        return [row | found for row, found in zip(rows, await asyncio.gather(*heard), strict=True)]


def _shown(rates: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """In percent with their intervals, of the engine's audio and of the caller's."""
    return [
        " / ".join(f"{each['percent']:.1f} ({each['low']:.1f}–{each['high']:.1f})" for each in rates[place].values())
        if place in rates
        else "–"
        for place in _PLACES
    ]


def main() -> None:
    flags = report.parser("intelligibility", __doc__, _EXAMPLES)
    flags.add_argument("--languages", default=",".join(_LANGUAGES), help="some of %(default)s (default all)")
    flags.add_argument(
        "--voices", default="kokoro,kokoro/zf_xiaoxiao,hibari,espeak",
        help="ENGINE/VOICE, or ENGINE for its first voice of each language (default %(default)s)",
    )  # fmt: skip
    flags.add_argument(
        "--whole", default="kokoro/zm_yunxi", help="voices that also speak whole clauses (default %(default)s)"
    )
    flags.add_argument("--sentences", type=int, default=60, help="of each language (default all)")
    config_flags(flags)
    chosen = flags.parse_args()
    if unknown := set(chosen.languages.split(",")) - set(_LANGUAGES):
        flags.error(f"unknown language {', '.join(sorted(unknown))}; expected some of {', '.join(_LANGUAGES)}")
    if chosen.quick:
        chosen.sentences, chosen.languages, chosen.voices = 1, "zh", "kokoro,espeak"
    try:
        settings = config.load(chosen.config, overrides(chosen))
        with Recogniser() as recogniser:
            rows = asyncio.run(_run(chosen, settings, recogniser))
    except (TelephonyTTSError, RecogniserUnavailable) as error:
        sys.exit(f"intelligibility.py: {error}")
    for language in chosen.languages.split(","):
        own = [row for row in rows if row["language"] == language]
        if not own:
            print(f"\n{language}: none of these voices speaks it")
            continue
        report.table(
            f"{language}: % wrong (95 % interval), {' / '.join(own[0]['rates']['caller'])}",
            ("voice", "spoken", "engine's rate", "behind G.711"),
            [(row["voice"], row["spoken"], *_shown(row["rates"])) for row in own],
        )
        report.table(
            f"{language}: sound behind G.711, median (p90)",
            ("voice", "spoken", "dBm0", "peak dBFS", "clipped", "leading ms", "trailing ms", "pauses", "pause ms"),
            [(row["voice"], row["spoken"], *_shown_sound(row["sound"])) for row in own],
        )
    for row in rows:
        if "joints" in row:
            print(f"\n{row['voice']}, joints beside whole clauses: {row['joints']}")
    report.save(chosen, rows)


def _shown_sound(figures: dict[str, Any]) -> list[object]:
    def median(name: str) -> str:
        return f"{figures[name]['p50']} ({figures[name]['p90']})" if figures[name] else "–"

    clipped = f"{figures['clipped_of_engine']} + {figures['clipped_of_caller']}"
    return [median("level_dbm0"), figures["peak_dbfs"], clipped, median("leading_ms"), median("trailing_ms"),
            figures["pauses"], median("pause_ms")]  # fmt: skip


if __name__ == "__main__":
    main()
