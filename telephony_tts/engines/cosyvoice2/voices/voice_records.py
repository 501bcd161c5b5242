"""Whose a stored voice is, the consent to it, and whether it was denoised: read from the head of its file.

It needs no PyTorch, so the server's process may use it. A voice file is in the safetensors format: the length of a head
in JSON, the head, and the tensors. The record is part of the file, so a voice is never there without it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping

from telephony_tts.clock import monotonic_ns, unix_s
from telephony_tts.engines.api import Voice
from telephony_tts.engines.cosyvoice2.voices.voice_folder import FileStamp, VoiceFolder

FIELDS = ("owner", "consent_by", "consent_on", "consent_for", "denoised_by", "denoised_db")
"""The key that added the voice; whose voice it is, when that person consented, and to what; and by what and by how many
dB the noise of its recording was reduced."""
ABOUT = "voice"
"""The only metadata entry of a voice file. It holds JSON."""
_ENGINE = "cosyvoice2"
_LENGTH = struct.Struct("<Q")
_MAX_HEAD_BYTES = 1_000_000
_LOOK_NS = 20_000_000
"""The folder is looked at again after so long: an owner is asked for with every voice of every sentence."""
_SETTLED_S = 0.1
"""A folder that changed more recently may change again without another time of change."""


class VoiceRecords:
    """The records of all voices in a folder. They are read when the folder changes."""

    def __init__(self, folder: VoiceFolder) -> None:
        self._folder = folder
        self._records: dict[str, Mapping[str, str]] = {}
        self._stamps: dict[str, FileStamp] = {}
        self._has_any = False
        self._seen: int | None = None
        """When the folder had last changed, if it cannot have changed since without showing it."""
        self._looked_ns: int | None = None

    def owner(self, voice: Voice) -> str | None:
        """The name of the key that the voice belongs to. None if it belongs to all."""
        return self.record(voice).get("owner")

    def record(self, voice: Voice) -> Mapping[str, str]:
        """Those of `FIELDS` that are known of a voice."""
        return self._look(voice.name).get(voice.name, {}) if voice.engine == _ENGINE else {}

    def has(self, name: str) -> bool:
        """Whether there is a stored voice of this name."""
        return self._folder.has(name)

    @property
    def has_any(self) -> bool:
        """Whether any voice has an owner."""
        self._look()
        return self._has_any

    def _look(self, name: str = "") -> dict[str, Mapping[str, str]]:
        """The records by the names of the voices. A voice `name` that was not there is looked for at once: nobody may
        use a new voice before its owner is known."""
        now_ns = monotonic_ns()
        is_fresh = self._looked_ns is not None and now_ns - self._looked_ns < _LOOK_NS
        if is_fresh and (not name or name in self._records):
            return self._records
        self._looked_ns = now_ns
        try:
            changed_ns = os.stat(self._folder.directory).st_mtime_ns
            if changed_ns == self._seen:
                return self._records
            stamps = self._folder.stamps()
        except OSError:
            stamps, changed_ns = {}, 0
        for name, stamp in stamps.items():
            if self._stamps.get(name) != stamp:
                self._records[name] = read_record(self._folder, name)
        for name in self._records.keys() - stamps.keys():
            del self._records[name]
        self._stamps = stamps
        self._has_any = any("owner" in record for record in self._records.values())
        self._seen = changed_ns if unix_s() - changed_ns / 1e9 > _SETTLED_S else None
        return self._records


def read_record(folder: VoiceFolder, name: str) -> Mapping[str, str]:
    """The record of one voice. Empty if it has none, or if its file is damaged: then nobody can speak with it."""
    try:
        with folder.path(name).open("rb") as file:
            (n,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if n > _MAX_HEAD_BYTES:
                return {}
            provenance = json.loads(json.loads(file.read(n))["__metadata__"][ABOUT])["provenance"]
        return {field: str(provenance[field]) for field in FIELDS if provenance.get(field)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error):
        return {}
