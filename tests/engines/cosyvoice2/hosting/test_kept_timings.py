"""The file of timings: read as it was written, and measured anew whenever anything is odd about it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from telephony_tts.engines.cosyvoice2.choice import CpuTimings
from telephony_tts.engines.cosyvoice2.hosting.kept_timings import (
    MAX_FILE_BYTES,
    keep_timings,
    read_timings,
    timings_file,
)

MACHINE = {"cpu": "Invented", "share": "2 CPUs", "torch": "2.13.0"}
ONE = {"float32": 1.0}
TIMINGS = CpuTimings({"float32": 2.5, "int8": 0.5}, {"float32": 2.5, "int8": 0.2}, ONE, ONE, 1.1, 0.9)


def kept(folder: Path) -> Path:
    file = timings_file(MACHINE, {"XDG_CACHE_HOME": str(folder)})
    assert file is not None and keep_timings(file, MACHINE, TIMINGS) is None
    return file


def test_timings_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = kept(tmp_path / "new" / "cache")
    assert read_timings(file, MACHINE) == TIMINGS
    assert list(file.parent.iterdir()) == [file], "no unfinished file is left"


def test_another_machine_has_another_file(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    files = {timings_file({**MACHINE, name: "another"}, environ) for name in MACHINE}
    assert len(files | {timings_file(MACHINE, environ)}) == 1 + len(MACHINE)


@pytest.mark.parametrize(
    ("environ", "file"),
    [
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/home/a"}, "/cache/telephony-tts"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/a"}, "/home/a/.cache/telephony-tts"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/a"}, "/home/a/.cache/telephony-tts"),
        ({"HOME": "/home/a"}, "/home/a/.cache/telephony-tts"),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_where_the_file_lies(environ: dict[str, str], file: str | None) -> None:
    found = timings_file(MACHINE, environ)
    assert (None if found is None else str(found.parent)) == file


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"null", b"[]", b"3", b"\xff\xfe\x00", b'{"machine": {}}', b"[" * 100_000,
        b'{"machine": {"cpu": "Invented", "share": "2 CPUs", "torch": "2.13.0"}, "timings": null}',
        b'{"machine": {"cpu": "Invented", "share": "2 CPUs", "torch": "2.13.0"}, "timings": {"lm": 3}}',
    ],
)  # fmt: skip
def test_a_damaged_file_counts_as_missing(tmp_path: Path, damage: bytes) -> None:
    file = kept(tmp_path)
    file.write_bytes(damage)
    assert read_timings(file, MACHINE) is None
    assert keep_timings(file, MACHINE, TIMINGS) is None and read_timings(file, MACHINE) == TIMINGS


def test_a_half_written_file_counts_as_missing_wherever_it_breaks_off(tmp_path: Path) -> None:
    file = kept(tmp_path)
    whole = file.read_bytes()
    for n in range(len(whole)):
        file.write_bytes(whole[:n])
        assert read_timings(file, MACHINE) is None
    file.write_bytes(b" " * MAX_FILE_BYTES + whole)
    assert read_timings(file, MACHINE) is None, "an endless file is not read to its end"


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("slowdown", 0), ("slowdown", "1.1"), ("slowdown", None), ("slowdown", float("nan")), ("lm", {}), ("lm", None),
        ("flow", {"float32": -1.0}), ("flow", {"int8": 1.0}), ("vocoder", ["float32"]), ("another", 1.0),
    ],
)  # fmt: skip
def test_a_foreign_value_counts_as_missing(tmp_path: Path, key: str, wrong: object) -> None:
    file = kept(tmp_path)
    data = json.loads(file.read_bytes())
    data["timings"][key] = wrong
    file.write_text(json.dumps(data))
    assert read_timings(file, MACHINE) is None


def test_a_file_of_another_machine_counts_as_missing(tmp_path: Path) -> None:
    assert read_timings(kept(tmp_path), {**MACHINE, "torch": "2.14.0"}) is None


def test_what_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("x")
    file = timings_file(MACHINE, {"XDG_CACHE_HOME": str(in_the_way)})
    assert file is not None and read_timings(file, MACHINE) is None
    assert keep_timings(file, MACHINE, TIMINGS) == "Not a directory"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kept(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert keep_timings(file, MACHINE, TIMINGS) == "No space left on device"
    assert read_timings(file, MACHINE) == TIMINGS and list(file.parent.iterdir()) == [file]
