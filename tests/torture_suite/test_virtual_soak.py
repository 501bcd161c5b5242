"""The soak on the virtual clock: what its processes tell, and that Ctrl-C keeps what was judged."""

from __future__ import annotations

import pytest

from torture import soak

pytestmark = pytest.mark.slow

CALL_MINUTES = 0.2


def test_each_process_tells_its_batches_and_progress_is_said() -> None:
    lines: list[str] = []
    shares = soak.soak([range(3), range(3, 5)], CALL_MINUTES, lines.append, batch=2)
    assert [share.tally.counts["calls"] for share in shares] == [3, 2]
    assert [len(share.resident_kib) for share in shares] == [2, 1]
    assert lines[-1].split(": ")[1].startswith("5 of 5 calls, ") and "0 violations" in lines[-1]


def test_ctrl_c_ends_it_and_keeps_the_batches_that_were_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_SAY_S", 0.0)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            raise KeyboardInterrupt

    (share,) = soak.soak([range(200)], CALL_MINUTES, say, batch=2)
    assert share.tally.counts["calls"] == 2 and len(share.resident_kib) == 1
    assert lines[1].startswith("stopped")


def test_a_process_that_dies_is_an_error_and_not_a_shorter_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_LOOK_S", 0.2)
    with pytest.raises(RuntimeError, match="ended early"):
        soak.soak([range(1)], float("nan"), lambda line: None)
