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
_COMPLETE = ("stopped", "call_ended")
"""No recording of the torture is long enough to end with `max_s` or `max_mb`."""


class Recorded(NamedTuple):
    """Speech that was sent while a call was recorded: 16-bit samples of 8 kHz that the file must hold."""

    call: int
    file: str
    samples: bytes
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
    for call, name, samples, log in recorded:
        tally.n_checked[v.RECORDINGS] += 1
        if name not in right:
            if not may_lack_ends:
                tally.violations.append(Violation(v.RECORDINGS, f"{name} is not there", call))
        elif right[name] and _without_markers(samples) not in right[name]:
            what = f"{name} does not hold a turn of {len(samples) * 1000 // 2 // RATE_HZ} ms as it was sent"
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


def _without_markers(samples: bytes) -> bytes:
    """A jambonz gets 0 for each sample of -1, which it would take for a mark. The recording has the -1."""
    pcm = np.frombuffer(samples, "<i2")
    return np.where(pcm == -1, 0, pcm).astype("<i2").tobytes()
