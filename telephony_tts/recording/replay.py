"""A recording read back: what was on each channel, and what happened when. `page` and `chart` draw it.

A recording of a server that was killed, and a file that was cut off, are read as far as they go.
"""

from __future__ import annotations

import io
import json
import math
import wave
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from telephony_tts.audio.wav import with_true_lengths
from telephony_tts.recording.timeline import BOT, PEER, SERVER, VERSION
from telephony_tts.runtime.errors import ConfigError

_MOST_LINE_BYTES = 1_000_000
_MOST_ROWS = 500_000
STAGES = (
    ("text_to_sentence_ms", "first sentence written"), ("queue_ms", "waited for the engine"),
    ("first_pcm_ms", "engine's first audio"),
)  # fmt: skip
"""The parts of a turn's latency, in their order, and what each one is."""

Peaks = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted, in milliseconds of the recording."""

    start_ms: float
    end_ms: float
    label: str = ""
    turn: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Something that happened at a moment. `kind` is "mark", "interruption", "dtmf" or "error"."""

    ms: float
    kind: str
    label: str


@dataclass(slots=True)
class TurnFigures:
    """One turn: when it was heard, how it ended, and its latencies in milliseconds."""

    turn: str
    begin_ms: float | None = None
    base_ms: float | None = None
    """Where its audio would begin if it had been heard without a pause."""
    end_ms: float | None = None
    outcome: str = ""
    stages: dict[str, float] = field(default_factory=dict)
    first_audio_ms: float | None = None


@dataclass(slots=True)
class Replay:
    """See the module text. `lanes` has spans by name: "caller", "speaking", "heard", "sentences", "words", "paused" and
    "holes". `story` has (ms, who, what) of what people want to read, in order."""

    name: str
    wav: str | None
    about: dict[str, Any]
    length_ms: float
    lanes: dict[str, list[Span]]
    ticks: list[Tick]
    turns: list[TurnFigures]
    story: list[tuple[float, str, str]]
    samples: npt.NDArray[np.int16]
    """Shape [n_samples, 2] at 8 kHz: left the caller, right what was heard. Empty if the WAV file cannot be read."""
    problems: list[str]

    def peaks(self, channel: int, n_bins: int) -> Peaks:
        """The loudest sample of each of `n_bins` equal parts of the recording, 0 to 1. Shape [n_bins]."""
        n_all = max(1, round(self.length_ms * 8))
        found = np.zeros(n_bins, np.float32)
        if len(self.samples):
            levels = np.abs(self.samples[:n_all, channel].astype(np.int32))
            edges = np.minimum(np.arange(n_bins) * n_all // n_bins, len(levels))
            starts = edges[edges < len(levels)]
            if len(starts):
                found[: len(starts)] = np.maximum.reduceat(levels, starts) / 32768
        return found


def read_recording(path: Path) -> Replay:
    """Read a recording by the name of either of its files. Raises ConfigError for other files."""
    if path.name in ("", ".."):
        raise ConfigError(f"{path}: is a folder; name the .jsonl or the .wav of a recording")
    lines, wav = path.with_suffix(".jsonl"), path.with_suffix(".wav")
    problems: list[str] = []
    rows = _rows(lines, problems)
    samples = _samples(wav, problems)
    return _told(path.stem, wav.name if wav.is_file() else None, rows, samples, problems)


def _rows(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    n_bad = 0
    try:
        with open(path, "rb") as file:
            while len(rows) < _MOST_ROWS and (line := file.readline(_MOST_LINE_BYTES)):
                row = _row(line)
                if row is not None:
                    rows.append(row)
                else:
                    n_bad += 1
                    if not rows and n_bad > 100:
                        break
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not rows or rows[0]["type"] != "recording":
        raise ConfigError(f"{path}: is not the timeline of a recording (a .jsonl file of the folder recordings.folder)")
    if rows[0].get("version") != VERSION:
        problems.append(f"the timeline has version {rows[0].get('version')!r}; this program knows {VERSION}")
    if n_bad:
        problems.append(f"{n_bad} lines of the timeline cannot be read and were left out")
    if len(rows) >= _MOST_ROWS:
        problems.append(f"only the first {_MOST_ROWS} rows of the timeline are shown")
    return rows


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("type"), str) or row.get("by") not in (BOT, PEER, SERVER):
        return None
    ms = row.get("ms")
    return row if isinstance(ms, int) and not isinstance(ms, bool) and abs(ms) < 1e9 else None


def _finite(text: str) -> float:
    """A number of a row. JSON knows neither NaN nor infinity, and no recorder writes them. Raises ValueError."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def _samples(path: Path, problems: list[str]) -> npt.NDArray[np.int16]:
    nothing = np.zeros((0, 2), np.int16)
    try:
        with wave.open(io.BytesIO(with_true_lengths(path.read_bytes()))) as file:
            form = file.getnchannels(), file.getsampwidth(), file.getframerate()
            if form != (2, 2, 8000):
                problems.append(f"{path.name} is not stereo with 16 bits at 8 kHz, so its sound is not drawn")
                return nothing
            data = file.readframes(file.getnframes())
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror or error}")
        return nothing
    except (wave.Error, EOFError) as error:
        problems.append(f"{path.name} is not a whole WAV file: {error or 'it ends too early'}")
        return nothing
    whole = np.frombuffer(data[: len(data) // 4 * 4], "<i2").reshape(-1, 2)
    return whole.astype(np.int16, copy=False)


def _told(
    name: str, wav: str | None, rows: list[dict[str, Any]], samples: npt.NDArray[np.int16], problems: list[str]
) -> Replay:
    about, last = rows[0], rows[-1]
    rows = sorted(rows, key=lambda row: int(row["ms"]))  # spans are written when they end
    length_ms = max([len(samples) / 8, 1.0] if len(samples) else [1.0, *(float(row["ms"]) for row in rows)])
    reader = _Reader()
    for row in rows:
        try:
            reader.read(row)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
            problems.append(f"a row {str(row['type'])[:40]!r} at {row['ms']} ms has fields of unexpected types")
    reader.end(length_ms)
    about = about | {"ended": last.get("reason") if last["type"] == "ended" else None}
    if about["ended"] is None:
        problems.append("the timeline has no end: the server was killed, or the file was cut off")
    reader.story.sort(key=lambda item: item[0])
    lanes = {key: [_clipped(span, length_ms) for span in spans] for key, spans in reader.lanes.items()}
    ticks = [tick for tick in reader.ticks if tick.ms <= length_ms + 1000]
    return Replay(
        name, wav, about, length_ms, lanes, ticks, list(reader.turns.values()), reader.story, samples, problems[:50]
    )


def _clipped(span: Span, length_ms: float) -> Span:
    start_ms = min(max(0.0, span.start_ms), length_ms)
    return Span(start_ms, min(max(start_ms, span.end_ms), length_ms), span.label, span.turn)


class _Reader:
    """Collects the rows of a timeline, which come in order of time."""

    def __init__(self) -> None:
        self.lanes: dict[str, list[Span]] = {
            lane: [] for lane in ("caller", "speaking", "heard", "sentences", "words", "paused", "holes")
        }
        self.ticks: list[Tick] = []
        self.turns: dict[str, TurnFigures] = {}
        self.story: list[tuple[float, str, str]] = []
        self._speaking_ms: float | None = None
        self._paused_ms: float | None = None
        self._unpaused_ms: float | None = None
        """When the last turn that had begun ended in the pause. That ended the pause, unless `resumed` follows."""
        self._sentences: dict[tuple[str, int], float] = {}
        """Where the turn's audio begins, by turn and index of the sentence."""
        self._text: tuple[str, int] | None = None
        """The turn of the last text, and the place of its line in the story."""

    def read(self, row: dict[str, Any]) -> None:
        ms, kind = float(row["ms"]), row["type"]
        if row["by"] == BOT:
            self._bot(ms, kind, row)
        elif row["by"] == SERVER:
            self._server(ms, kind, row)
        elif kind == "stop":
            self.story.append((ms, "caller", "hung up"))

    def end(self, length_ms: float) -> None:
        if self._speaking_ms is not None:
            self.lanes["speaking"].append(Span(self._speaking_ms, length_ms))
        self._end_pause(length_ms)

    def _turn(self, row: dict[str, Any]) -> TurnFigures:
        turn = str(row["turn"])
        return self.turns.setdefault(turn, TurnFigures(turn))

    def _bot(self, ms: float, kind: str, row: dict[str, Any]) -> None:
        if kind in ("say", "text"):
            text = row["text"] if "text" in row else f"({int(row['text_chars'])} private characters)"
            turn = str(row.get("turn", ""))
            if kind == "text" and self._text is not None and self._text[0] == turn:
                at = self._text[1]
                self.story[at] = (*self.story[at][:2], self.story[at][2] + str(text))
                return
            self._text = (turn, len(self.story)) if kind == "text" else None
            self.story.append((ms, "bot", str(text)))
        elif kind in ("clear", "pause", "resume", "play", "dtmf", "close"):
            self.story.append((ms, "bot", f"sent {kind} {row.get('digits', '')}".rstrip()))

    def _server(self, ms: float, kind: str, row: dict[str, Any]) -> None:
        match kind:
            case "heard" | "caller_audio" | "hole":
                lane = {"heard": "heard", "caller_audio": "caller", "hole": "holes"}[kind]
                self.lanes[lane].append(Span(ms, float(row["end_ms"])))
            case "caller" if row["state"] == "speaking":
                self._speaking_ms = ms
            case "caller":
                begin_ms = self._speaking_ms if self._speaking_ms is not None else ms - float(row.get("spoken_ms", 0))
                self.lanes["speaking"].append(Span(begin_ms, ms))
                self._speaking_ms = None
                cut_in = ", which interrupted" if row.get("interrupted") else ""
                self.story.append((begin_ms, "caller", f"spoke for {float(row.get('spoken_ms', 0)):.0f} ms{cut_in}"))
            case "started":
                self._end_pause(ms)  # nothing begins in a pause
                turn = self._turn(row)
                turn.begin_ms = turn.base_ms = float(row.get("heard_ms", ms))
                turn.first_audio_ms = float(row.get("first_audio_ms", 0))
            case "sentence":
                self._sentence(ms, row)
            case "words":
                self._words(row)
            case "done" | "cleared" | "error" if "turn" in row:
                self._ended(ms, kind, row)
            case "error":
                self._fault(ms, row)
            case "mark":
                self.ticks.append(Tick(ms, "mark", f"{row['name']} ({row['state']})"))
            case "paused":
                if self._unpaused_ms is not None:
                    self._end_pause(ms)
                if self._paused_ms is None:
                    self._paused_ms = ms  # else the bot takes over a pause by voice
                self.ticks.append(Tick(ms, "interruption", "paused"))
            case "resumed":
                self._resumed(ms, row)
            case "dtmf":
                self.ticks.append(Tick(ms, "dtmf", str(row["digit"])))
                self.story.append((ms, "caller", f"pressed {row['digit']}"))
            case "hangup":
                self.story.append((ms, "caller", f"has left ({row['reason']})"))
            case "warning":
                self.story.append((ms, "server", f"warning {row['code']}: {row.get('message', '')}"))

    def _sentence(self, ms: float, row: dict[str, Any]) -> None:
        turn = self._turn(row)
        start_ms, end_ms = float(row["start_ms"]), float(row["end_ms"])
        base_ms = turn.base_ms if turn.base_ms is not None else ms
        begin_ms = float(row["heard_ms"]) if "heard_ms" in row else base_ms + start_ms
        self._sentences[turn.turn, int(row["index"])] = begin_ms - start_ms
        text = row["text"] if "text" in row else f"({int(row.get('text_chars', 0))} private characters)"
        self.lanes["sentences"].append(Span(begin_ms, begin_ms + end_ms - start_ms, str(text), turn.turn))

    def _words(self, row: dict[str, Any]) -> None:
        base_ms = self._sentences.get((str(row["turn"]), int(row["index"])))
        if base_ms is None:
            return
        for word in row.get("words", ()):
            start_ms, end_ms = base_ms + float(word["start_ms"]), base_ms + float(word["end_ms"])
            self.lanes["words"].append(Span(start_ms, end_ms, str(word["text"]), str(row["turn"])))

    def _end_pause(self, ms: float) -> None:
        """A pause, if there is one, ends at `ms` or has ended with its last turn."""
        if self._paused_ms is not None:
            self.lanes["paused"].append(Span(self._paused_ms, ms if self._unpaused_ms is None else self._unpaused_ms))
        self._paused_ms = self._unpaused_ms = None

    def _resumed(self, ms: float, row: dict[str, Any]) -> None:
        """The turn goes on from a moment of its audio: what follows that moment is heard from now on."""
        turn, paused_ms = self._turn(row), self._paused_ms
        if paused_ms is None:
            return
        self._unpaused_ms = None
        self._end_pause(ms)
        base_ms = turn.base_ms if turn.base_ms is not None else paused_ms - float(row["from_ms"])
        turn.base_ms = ms - float(row["from_ms"])
        from_ms, late_ms = base_ms + float(row["from_ms"]), turn.base_ms - base_ms
        for lane in ("sentences", "words"):
            spans = []
            for span in self.lanes[lane]:
                if span.turn == turn.turn and span.end_ms > from_ms:
                    if span.start_ms < paused_ms:
                        spans.append(replace(span, end_ms=min(span.end_ms, paused_ms)))
                    begin_ms = max(span.start_ms, from_ms)
                    span = replace(span, start_ms=begin_ms + late_ms, end_ms=span.end_ms + late_ms)
                spans.append(span)
            self.lanes[lane] = spans

    def _ended(self, ms: float, kind: str, row: dict[str, Any]) -> None:
        turn = self._turn(row)
        turn.end_ms, turn.outcome = ms, kind
        is_paused = self._paused_ms is not None and self._unpaused_ms is None
        if is_paused and not any(each.begin_ms is not None and not each.outcome for each in self.turns.values()):
            self._unpaused_ms = ms
        latency = row.get("latency") or {}
        for stage, _ in STAGES:
            if isinstance(latency.get(stage), int | float):
                turn.stages[stage] = float(latency[stage])
        if kind == "done":
            return
        # What was not heard has no place in the recording.
        for lane in ("sentences", "words"):
            self.lanes[lane] = [
                span if span.turn != turn.turn else replace(span, end_ms=min(span.end_ms, ms))
                for span in self.lanes[lane] if span.turn != turn.turn or span.start_ms < ms
            ]  # fmt: skip
        why = row.get("reason") or row.get("code") or ""
        self.ticks.append(Tick(ms, "interruption" if kind == "cleared" else "error", f"{turn.turn} {kind}: {why}"))
        heard = row.get("heard_text")
        told = f"turn {turn.turn} {kind} ({why}) after {float(row.get('heard_ms') or 0):.0f} ms"
        self.story.append((ms, "server", f"{told}; heard: {heard}" if heard else told))
        if kind == "error":
            self._fault(ms, row)

    def _fault(self, ms: float, row: dict[str, Any]) -> None:
        self.ticks.append(Tick(ms, "error", str(row["code"])))
        self.story.append((ms, "server", f"error {row['code']}: {row.get('message', '')}"))
