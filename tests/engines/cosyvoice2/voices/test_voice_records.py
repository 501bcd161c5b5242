"""Whose a stored voice is: read from the head of its file, without PyTorch."""

from __future__ import annotations

import errno
import json
import os
import struct
import time
from pathlib import Path

import pytest
from no_more_files import no_more_files

from telephony_tts.engines.api import Voice
from telephony_tts.engines.cosyvoice2.voices import voice_records
from telephony_tts.engines.cosyvoice2.voices.voice_folder import SUFFIX, VoiceFolder
from telephony_tts.engines.cosyvoice2.voices.voice_records import ABOUT, UNKNOWN, VoiceRecords, read_record
from telephony_tts.ops.keys.key_file import NAME

RECORD = {"owner": "acme", "consent_by": "Anna", "consent_on": "2026-01-31", "consent_for": "calls"}


def store(folder: Path, name: str, **provenance: str) -> Path:
    """A file with the head of a voice, put in place as the store does it."""
    about = json.dumps({"format": "any", "transcript": "", "provenance": provenance})
    head = json.dumps({"__metadata__": {ABOUT: about}}).encode()
    part = folder / f"{name}.part"
    part.write_bytes(struct.pack("<Q", len(head)) + head + bytes(100))
    path = folder / f"{name}{SUFFIX}"
    os.replace(part, path)
    return path


def voice(name: str, engine: str = "cosyvoice2") -> Voice:
    return Voice(name, engine, ("en",), 24_000)


def test_the_record_of_a_voice_and_nothing_else_of_its_provenance(tmp_path: Path) -> None:
    store(tmp_path, "anna", **RECORD, source="anna.wav", kept_s="4.0")
    store(tmp_path, "free", made_by="us")
    records = VoiceRecords(VoiceFolder(tmp_path))
    assert records.record(voice("anna")) == RECORD and records.owner(voice("anna")) == "acme"
    assert records.record(voice("free")) == {} and records.owner(voice("free")) is None
    assert records.owner(voice("anna", "hibari")) is None, "a voice of another engine with the same name"
    assert records.owner(voice("gone")) is None and records.has("anna") and not records.has("gone")
    assert records.has_any


def test_a_new_voice_has_its_owner_from_the_first_look_on(tmp_path: Path) -> None:
    """However soon after another one it comes."""
    records = VoiceRecords(VoiceFolder(tmp_path))
    assert not records.has_any
    for n in range(50):
        store(tmp_path, f"v{n}", owner=f"key{n}")
        assert records.owner(voice(f"v{n}")) == f"key{n}"


def test_a_removed_or_replaced_voice(tmp_path: Path) -> None:
    records = VoiceRecords(VoiceFolder(tmp_path))
    path = store(tmp_path, "anna", owner="acme")
    assert records.owner(voice("anna")) == "acme"
    store(tmp_path, "anna", owner="other")
    end_s = time.monotonic() + 5
    while records.owner(voice("anna")) == "acme":
        assert time.monotonic() < end_s
    assert records.owner(voice("anna")) == "other"
    path.unlink()
    while records.owner(voice("anna")) is not None:
        assert time.monotonic() < end_s
    assert not records.has_any


def test_a_folder_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    store(tmp_path, "anna", owner="acme")
    long_ago = time.time() - 100
    os.utime(tmp_path, (long_ago, long_ago))
    folder = VoiceFolder(tmp_path)
    records, n_reads = VoiceRecords(folder), 0
    stamps = folder.stamps

    def counted() -> object:
        nonlocal n_reads
        n_reads += 1
        return stamps()

    folder.stamps = counted  # type: ignore[method-assign,assignment]
    for _ in range(100):
        assert records.owner(voice("anna")) == "acme" and records.owner(voice("preset")) is None
    assert n_reads == 1


@pytest.fixture
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look is spared because the last one was a moment ago."""
    monkeypatch.setattr(voice_records, "_LOOK_NS", 0)


@pytest.mark.usefixtures("always_looks")
def test_a_voice_stays_its_keys_while_the_folder_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = VoiceFolder(tmp_path)
    store(tmp_path, "anna", **RECORD)
    store(tmp_path, "free")
    records = VoiceRecords(folder)
    assert records.owner(voice("anna")) == "acme"
    store(tmp_path, "bert", owner="other")
    with no_more_files():
        for _ in range(3):
            assert records.record(voice("anna")) == RECORD and records.has_any
            assert records.record(voice("bert")) == UNKNOWN, "its owner was never read: no client may use it"
            assert records.owner(voice("free")) is None and records.owner(voice("preset")) is None
    assert caplog.text.count("owners cannot be read") == 1 and "Too many open files" in caplog.text
    assert records.owner(voice("anna")) == "acme" and records.owner(voice("bert")) == "other"
    assert records.owner(voice("free")) is None


@pytest.mark.usefixtures("always_looks")
def test_no_client_may_use_stored_voices_before_the_folder_could_be_read(tmp_path: Path) -> None:
    store(tmp_path, "anna", owner="acme")
    records = VoiceRecords(VoiceFolder(tmp_path))
    with no_more_files():
        assert records.has_any and records.record(voice("anna")) == UNKNOWN
        assert records.owner(voice("preset")) is None and records.owner(voice("a preset of the model")) is None
    assert records.owner(voice("anna")) == "acme"
    store(tmp_path, "anna")
    assert records.owner(voice("anna")) is None and not records.has_any


@pytest.mark.usefixtures("always_looks")
def test_a_disk_that_fails_keeps_the_presets_that_were_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset is no stored voice. Before the first look that is not known."""
    store(tmp_path, "anna", owner="acme")
    known, new, stat = VoiceRecords(VoiceFolder(tmp_path)), VoiceRecords(VoiceFolder(tmp_path)), os.stat
    assert known.owner(voice("anna")) == "acme" and known.owner(voice("preset")) is None

    def refuses(file: object, *args: object, **options: object) -> object:
        if str(file).startswith(str(tmp_path)):
            raise OSError(errno.EIO, "Input/output error")
        return stat(file, *args, **options)  # type: ignore[call-overload]

    with monkeypatch.context() as now:
        now.setattr(os, "stat", refuses)
        assert known.owner(voice("anna")) == "acme" and known.owner(voice("preset")) is None
        assert new.record(voice("anna")) == new.record(voice("preset")) == UNKNOWN
    for records in (known, new):
        assert records.owner(voice("anna")) == "acme" and records.owner(voice("preset")) is None


def test_no_key_has_the_name_of_the_unknown_owner() -> None:
    assert not NAME.fullmatch(UNKNOWN["owner"]) and UNKNOWN["owner"]


@pytest.mark.parametrize("refusal", [OSError(errno.EIO, "Input/output error"), MemoryError()], ids=["disk", "memory"])
def test_a_file_that_could_not_be_read_once_is_read_again_although_it_does_not_change(
    refusal: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile no client may use the voice, and other voices cost no more looks than before."""
    now_ns = 10**12
    monkeypatch.setattr(voice_records, "monotonic_ns", lambda: now_ns)
    store(tmp_path, "anna", owner="acme")
    store(tmp_path, "bert", owner="other")
    long_ago = time.time() - 100
    os.utime(tmp_path, (long_ago, long_ago))
    folder = VoiceFolder(tmp_path)
    records, n_reads, stamps = VoiceRecords(folder), 0, folder.stamps

    def counted() -> object:
        nonlocal n_reads
        n_reads += 1
        return stamps()

    folder.stamps = counted  # type: ignore[method-assign,assignment]
    path_open = Path.open

    def refuses(path: Path, *args: str) -> object:
        if path.stem == "anna":
            raise refusal
        return path_open(path, *args)

    with monkeypatch.context() as now:
        now.setattr(Path, "open", refuses)
        for n in range(1, 4):
            for _ in range(10):
                assert records.record(voice("anna")) == UNKNOWN and records.owner(voice("bert")) == "other"
                assert records.owner(voice("preset")) is None and n_reads == n
                now_ns += voice_records._LOOK_NS // 10
    assert caplog.text.count("owners cannot be read") == 1
    assert records.owner(voice("anna")) == "acme" and n_reads == 4
    now_ns += voice_records._LOOK_NS
    assert records.owner(voice("anna")) == "acme" and n_reads == 4, "now all of them are known"


def test_a_file_that_cannot_be_looked_at_is_not_free_to_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a call it is not there: its disk must not end the call."""
    path = store(tmp_path, "anna", owner="acme")
    folder = VoiceFolder(tmp_path)
    records, stat = VoiceRecords(folder), os.stat

    def refuses(file: object, *args: object, **options: object) -> object:
        if str(file) == str(path):
            raise OSError(errno.ESTALE, "Stale file handle")
        return stat(file, *args, **options)  # type: ignore[call-overload]

    assert folder.has("anna") and records.has("anna")
    monkeypatch.setattr(os, "stat", refuses)
    assert not folder.has("anna") and records.has("anna")
    assert not folder.has("bert") and not records.has("bert") and not records.has("../anna")


def test_damaged_files_have_no_record(tmp_path: Path) -> None:
    folder = VoiceFolder(tmp_path)
    heads = {
        "empty": b"", "short": b"\x01", "huge": struct.pack("<Q", 1 << 60) + b"{}",
        "text": struct.pack("<Q", 4) + b"text",
        "list": struct.pack("<Q", 2) + b"[]", "deep": struct.pack("<Q", 200_000) + b"[" * 200_000,
        "other": struct.pack("<Q", 20) + b'{"__metadata__": {}}',
    }  # fmt: skip
    for name, data in heads.items():
        (tmp_path / f"{name}{SUFFIX}").write_bytes(data)
        assert read_record(folder, name) == {}, name
    assert not VoiceRecords(folder).has_any
    assert not VoiceRecords(VoiceFolder(tmp_path / "gone")).has_any


def test_the_store_writes_what_is_read_here(tmp_path: Path) -> None:
    import torch

    from telephony_tts.engines.cosyvoice2.voices.voice import aligned
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

    nothing = torch.zeros(0, dtype=torch.int64)
    features = aligned(nothing, torch.zeros(0, 80), torch.ones(192), provenance={**RECORD, "layout": "preset"})
    store = VoiceStore(tmp_path)
    store.save("anna", features)
    assert read_record(store, "anna") == RECORD
