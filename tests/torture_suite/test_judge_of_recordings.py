"""The judge of recordings: what a file must hold of speech that was sent."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest

from torture import violations as v
from torture.recordings import RATE_HZ, Recorded, judge_recordings
from torture.violations import RecordingEnd, Stops, Tally

FILE = "call.wav"
HEARD = np.array([0, 5, -1, 900, -1, -7, 12, 0], "<i2")


def judged(
    folder: Path, sent: list[int] | list[tuple[int, list[int]]], tally: Tally | None = None, *, silent_ms: int = 0
) -> Tally:
    """A recording of `HEARD`, beside which `sent` went to the telephone: samples, or (ms from the begin, samples) of
    each file. `silent_ms`: silence in the middle of `HEARD`, behind its first four samples."""
    heard = np.concatenate([HEARD[:4], np.zeros(silent_ms * RATE_HZ // 1000, "<i2"), HEARD[4:]])
    with wave.open(str(folder / FILE), "wb") as file:
        file.setparams((2, 2, RATE_HZ, 0, "NONE", ""))
        file.writeframes(np.stack([np.zeros_like(heard), heard], axis=1).tobytes())
    rows = [{"type": "recording"}, {"type": "ended", "reason": "stopped", "length_ms": len(heard) * 1000 // RATE_HZ}]
    (folder / "call.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tally = tally or Tally()
    files = sent if isinstance(sent[0], tuple) else [(0, sent)]
    parts = [(at_ms, np.array(each, "<i2").tobytes()) for at_ms, each in files]  # type: ignore[misc]
    judge_recordings(
        folder, [Recorded(3, FILE, parts, ["what was sent"])], tally,
        may_lack_ends=False, no_descriptors=Stops(), may_be_full=False,
    )  # fmt: skip
    return tally


@pytest.mark.parametrize("sent", [[5, -1, 900, -1], [5, 0, 900, 0, -7]])
def test_a_jambonz_gets_zero_for_minus_one_and_the_recording_keeps_it(tmp_path: Path, sent: list[int]) -> None:
    assert judged(tmp_path, sent).violations == [] and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("length_ms", "is_right"), [(1, True), (40, False)])
def test_a_complete_recording_is_as_long_as_it_is_told(length_ms: int, is_right: bool, tmp_path: Path) -> None:
    tally = Tally(recording_ends=[RecordingEnd(FILE, "stopped", length_ms, 0, 1, 3)])
    found = judged(tmp_path, [5, -1], tally).violations
    wrong = f"{FILE} ended with stopped after 40 ms, and has 1 ms"
    assert [each.what for each in found] == ([] if is_right else [wrong])


@pytest.mark.parametrize("sent", [[5, -1, 901], [5, 900], [900, -2, -7], [5, -1, 900, -1, -7, 12, 0, 0]])
def test_other_samples_than_those_that_were_sent_are_found(tmp_path: Path, sent: list[int]) -> None:
    tally = judged(tmp_path, sent)
    assert [(each.check, each.call) for each in tally.violations] == [(v.RECORDINGS, 3)]
    assert tally.logs[3] == ["what was sent"], "the log of the call is kept"


@pytest.mark.parametrize(("silent_ms", "parts", "wrong"), [
    (0, [(0, [5, -1, 900]), (0, [-1, -7])], ""),
    (40, [(0, [5, -1, 900]), (40, [-1, -7])], ""),
    (40, [(0, [5, -1]), (40, [-1, -7])], ""),
    (40, [(0, [5, -1, 900, -1, -7])], "part 1 of 1 goes on for 0 of 0 ms, and its rest is 40 ms later"),
    (40, [(0, [5, -1, 901])], "part 1 of 1 goes on for 0 of 0 ms, and its rest is nowhere"),
    (40, [(0, [5, -1]), (40, [900, -1, -7])], "part 2 of 2 goes on for 0 of 0 ms, and its rest is 40 ms later"),
    (40, [(0, [-1, -7]), (40, [5, -1])], "part 2 of 2 goes on for 0 of 0 ms, and its rest is nowhere"),
    (400, [(0, [5, -1, 900]), (20, [-1, -7])], "part 2 of 2 lies 400 ms behind the first one, played at 20 ms"),
    (0, [(0, [5, -1, 900]), (400, [-1, -7])], "part 2 of 2 lies 0 ms behind the first one, played at 400 ms"),
])  # fmt: skip
def test_there_may_be_a_gap_between_two_files_and_not_inside_of_one(
    silent_ms: int, parts: list[tuple[int, list[int]]], wrong: str, tmp_path: Path
) -> None:
    """Pinned: a telephone side that plays files begins the next one a moment after the one before, as the recording
    shows. It was taken for a gap in the turn."""
    found = judged(tmp_path, parts, silent_ms=silent_ms).violations
    assert [each.what.partition("as it was sent: ")[2] for each in found] == ([wrong] if wrong else [])
