"""Whose a stored voice is: read from the head of its file, without PyTorch."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

from telephony_tts.engines.api import Voice
from telephony_tts.engines.cosyvoice2.voices.voice_folder import SUFFIX, VoiceFolder
from telephony_tts.engines.cosyvoice2.voices.voice_records import ABOUT, VoiceRecords, read_record

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
