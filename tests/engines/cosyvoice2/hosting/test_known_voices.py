"""The voices of an engine while a file cannot be read for a moment."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from telephony_tts.engines.cosyvoice2.hosting import known_voices
from telephony_tts.engines.cosyvoice2.hosting.known_voices import TRY_AGAIN_S, KnownVoices
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
from telephony_tts.engines.cosyvoice2.voices import voice_store
from telephony_tts.engines.cosyvoice2.voices.voice import aligned
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

CHECKPOINT = cast(Any, SimpleNamespace(config=ModelConfig(), spk2info=None))
NO_MORE_FILES = OSError(errno.EMFILE, "Too many open files")
NO_DISK = OSError(errno.EIO, "Input/output error")


class Rig:
    """A folder with the voices anna and bert. The file of anna can be read if `refusal` is None."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**12
        self.refusal: Exception | None = None
        self.n_opened = 0
        monkeypatch.setattr(known_voices, "monotonic_ns", lambda: self.now_ns, raising=False)
        nothing = torch.zeros(0, dtype=torch.int64)
        features = aligned(nothing, torch.zeros(0, 80), torch.ones(ModelConfig().flow_encoder.d_speaker))
        for name in ("anna", "bert"):
            VoiceStore(folder).save(name, features)
        self._open = voice_store.safe_open
        monkeypatch.setattr(voice_store, "safe_open", self._opened)

    def _opened(self, path: str, framework: str) -> object:
        if Path(path).stem == "anna":
            self.n_opened += 1
            if self.refusal is not None:
                raise self.refusal
        return self._open(path, framework=framework)

    def wait_s(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def test_a_file_that_cannot_be_read_for_a_moment_is_read_again_although_it_does_not_change(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig.refusal = NO_MORE_FILES
    known = KnownVoices(CHECKPOINT, tmp_path)
    bert = known.features["bert"]
    for _ in range(int(TRY_AGAIN_S / 0.5) - 1):
        assert not known.look() and list(known.features) == ["bert"]
        rig.wait_s(0.5)
    assert rig.n_opened == 1, "it is not tried at every look"
    rig.refusal = None
    rig.wait_s(0.5)
    assert known.look() and list(known.features) == ["anna", "bert"]
    assert known.features["bert"] is bert, "a voice that was read is not read again"
    rig.wait_s(TRY_AGAIN_S)
    assert not known.look() and rig.n_opened == 2
    assert caplog.text.count("skips a voice") == 1 and "Too many open files" in caplog.text


def test_each_reason_is_logged_once(rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig.refusal = NO_MORE_FILES
    known = KnownVoices(CHECKPOINT, tmp_path)
    for refusal in (NO_MORE_FILES, NO_DISK, NO_DISK):
        rig.refusal = refusal
        rig.wait_s(TRY_AGAIN_S)
        assert not known.look()
    told = [line for line in caplog.messages if "skips a voice" in line]
    assert len(told) == 2 and "Too many open files" in told[0] and "Input/output error" in told[1]


def test_a_file_that_was_refused_and_is_replaced_is_read_at_once(rig: Rig, tmp_path: Path) -> None:
    rig.refusal = NO_DISK
    known = KnownVoices(CHECKPOINT, tmp_path)
    bert = known.features["bert"]
    rig.refusal = None
    VoiceStore(tmp_path).save("anna", bert, replace=True)
    assert known.look() and list(known.features) == ["anna", "bert"]


def test_a_file_that_was_refused_and_removed_is_forgotten(rig: Rig, tmp_path: Path) -> None:
    rig.refusal = NO_DISK
    known = KnownVoices(CHECKPOINT, tmp_path)
    VoiceStore(tmp_path).remove("anna")
    rig.wait_s(TRY_AGAIN_S)
    assert not known.look() and list(known.features) == ["bert"]
    rig.wait_s(TRY_AGAIN_S)
    assert not known.look() and rig.n_opened == 1
