"""Judges the recordings that a round has left: any reader must take them, and they must hold what was sent."""

from __future__ import annotations

import json
import wave
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torture import violations as v
from torture.violations import Stops, Tally, Violation

RATE_HZ = 8000
_HEADER_BYTES = 44
_FRAME_BYTES = 4
_FAR_MS = 150
"""A part may lie so much too early or too late behind the first one: the server reads late when each of them begins."""
_COMPLETE = ("stopped", "call_ended")
"""No recording of the torture is long enough to end with `max_s` or `max_mb`."""


class Recorded(NamedTuple):
    """A turn that was sent while a call was recorded, and that the file must hold. A part was played without a gap:
    (milliseconds from the begin of the first part, 16-bit samples of 8 kHz)."""

    call: int
    file: str
    parts: list[tuple[int, bytes]]
    log: list[str]
    """What was sent and received in the call, for the case that the file does not hold them."""


def judge_recordings(
    folder: Path,
    recorded: Iterable[Recorded],
    tally: Tally,
    *,
    may_lack_ends: bool,
    no_descriptors: Stops,
    may_be_full: bool,
) -> None:
    """Judge and remove all recordings of `folder`, and what the server told of their ends. `may_lack_ends`: a process
    was killed or could write no more, so recordings may be without their end, or not be there, unless the server has
    told that they are complete. `no_descriptors`: when the server could open no file. `may_be_full`: the disk is
    small."""
    right: dict[str, bytes] = {}
    lengths_ms: dict[str, int] = {}
    for path in sorted(folder.glob("*.wav")):
        tally.n_checked[v.RECORDINGS] += 1
        tally.counts["recordings"] += 1
        try:
            right[path.name], lengths_ms[path.name] = _judged(path, may_lack_ends=may_lack_ends)
        except (OSError, EOFError, ValueError, LookupError, wave.Error) as error:
            tally.violations.append(Violation(v.RECORDINGS, f"{path.name}: {error or type(error).__name__}"))
            lengths_ms[path.name] = -1
        for each in (path, path.with_suffix(".jsonl")):
            each.unlink(missing_ok=True)
    for call, name, parts, log in recorded:
        tally.n_checked[v.RECORDINGS] += 1
        if name not in right:
            if not may_lack_ends:
                tally.violations.append(Violation(v.RECORDINGS, f"{name} is not there", call))
        elif right[name] and (wrong := _lacks(right[name], parts)):
            what = f"{name} does not hold a turn of {_ms(sum(len(samples) for _, samples in parts))} ms as it was sent"
            what += f": {wrong}"
            tally.violations.append(Violation(v.RECORDINGS, what, call))
            tally.logs[call] = log
    for end in tally.recording_ends:
        is_excused = {
            "disk_full": may_be_full,
            "write_failed": no_descriptors.within(end.begin_ns, end.end_ns) > 0,
        }  # fmt: skip
        if not is_excused.get(end.reason, end.reason in _COMPLETE):
            tally.violations.append(Violation(v.RECORDINGS, f"a recording ended with {end.reason}", end.call))
        if end.reason in _COMPLETE and end.file not in lengths_ms:
            what = f"{end.file} ended with {end.reason}, and is not there"
            tally.violations.append(Violation(v.RECORDINGS, what, end.call))
            continue
        length_ms = lengths_ms.get(end.file, 0)
        if length_ms >= 0 and abs(length_ms - end.length_ms) > 1:
            what = f"{end.file} ended with {end.reason} after {end.length_ms} ms, and has {length_ms} ms"
            tally.violations.append(Violation(v.RECORDINGS, what, end.call))
    tally.recording_ends.clear()


def _judged(path: Path, *, may_lack_ends: bool) -> tuple[bytes, int]:
    """What was heard in this recording, empty if it ended before its call; and its length in milliseconds. Raises
    ValueError for what is wrong."""
    with wave.open(str(path), "rb") as file:
        form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        n_samples = file.getnframes()
        content = file.readframes(n_samples)
    if form != (2, 2, RATE_HZ):
        raise ValueError(f"it has (channels, bytes, rate) {form}")
    n_bytes = path.stat().st_size - _HEADER_BYTES
    if len(content) != n_samples * _FRAME_BYTES or n_bytes < len(content):
        raise ValueError(f"its header promises {n_samples * _FRAME_BYTES} bytes of {n_bytes}")
    lines = path.with_suffix(".jsonl").read_bytes().split(b"\n")
    if may_lack_ends:
        lines = lines[:-1]  # a line that is not complete
    rows = [json.loads(line) for line in lines if line]
    last = rows[-1] if rows else {}
    if not may_lack_ends:
        if not rows or rows[0]["type"] != "recording" or last["type"] != "ended":
            raise ValueError(f"its timeline does not begin and end as it should: {str(last)[:100]}")
        is_complete = last["reason"] in _COMPLETE
        if is_complete and (n_bytes != len(content) or abs(last["length_ms"] - n_samples * 1000 // RATE_HZ) > 1):
            told_ms = last["length_ms"]
            raise ValueError(f"it has {n_samples} samples in {n_bytes} bytes, and its timeline {told_ms} ms")
    is_whole = last.get("type") == "ended" and last["reason"] in _COMPLETE
    heard = np.frombuffer(content, "<i2")[1::2].tobytes() if is_whole else b""
    return _without_markers(heard), n_samples * 1000 // RATE_HZ


def _lacks(heard: bytes, parts: list[tuple[int, bytes]]) -> str:
    """What is wrong, if the recording does not hold these parts, each without a gap, in their order and about where
    they were played. Else an empty text. What was said twice may lie in two places."""
    sent = [(at_ms, _without_markers(samples)) for at_ms, samples in parts]
    begin, why = -2, ""
    while (begin := _find(heard, sent[0][1], begin + 2)) >= 0:
        end, wrong = begin + len(sent[0][1]), ""
        for n, (at_ms, samples) in enumerate(sent[1:], start=2):
            at = _find(heard, samples, end)
            if at < 0:
                wrong = f"part {n} of {len(parts)} {_where(heard[end:], samples)}"
                break
            if abs(_ms(at - begin) - at_ms) > _FAR_MS:
                wrong = f"part {n} of {len(parts)} lies {_ms(at - begin)} ms behind the first one, played at {at_ms} ms"
                break
            end = at + len(samples)
        if not wrong:
            return ""
        why = why or wrong
    return why or f"part 1 of {len(parts)} {_where(heard, sent[0][1])}"


def _where(heard: bytes, samples: bytes) -> str:
    """Which of these samples are there, of those that are not there without a gap."""
    least, most = 0, len(samples) // 2
    while least < most:
        n = (least + most + 1) // 2
        least, most = (n, most) if _find(heard, samples[: 2 * n], 0) >= 0 else (least, n - 1)
    at = _find(heard, samples[: 2 * least], 0) + 2 * least
    behind = _find(heard, samples[2 * least :], at)
    rest = "nowhere" if behind < 0 else f"{_ms(behind - at)} ms later"
    return f"goes on for {_ms(2 * least)} of {_ms(len(samples))} ms, and its rest is {rest}"


def _find(heard: bytes, samples: bytes, begin: int) -> int:
    """Where the first of these 16-bit samples lies. -1 if they are not there."""
    at = heard.find(samples, begin)
    while at % 2 and at > 0:
        at = heard.find(samples, at + 1)
    return at


def _ms(n_bytes: int) -> int:
    return n_bytes * 1000 // 2 // RATE_HZ


def _without_markers(samples: bytes) -> bytes:
    """A jambonz gets 0 for each sample of -1, which it would take for a mark. The recording has the -1."""
    pcm = np.frombuffer(samples, "<i2")
    return np.where(pcm == -1, 0, pcm).astype("<i2").tobytes()
