"""Whose a stored voice is, the consent to it, and whether it was denoised: read from the head of its file.

It needs no PyTorch, so the server's process may use it. A voice file is in the safetensors format: the length of a head
in JSON, the head, and the tensors. The record is part of the file, so a voice is never there without it.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Mapping
from stat import S_ISREG

from telephony_tts.engines.api import Voice
from telephony_tts.engines.cosyvoice2.voices.voice_folder import FileStamp, VoiceFolder, is_valid_name
from telephony_tts.runtime.clock import monotonic_ns, unix_s

log = logging.getLogger(__name__)

FIELDS = ("owner", "consent_by", "consent_on", "consent_for", "denoised_by", "denoised_db")
"""The key that added the voice; whose voice it is, when that person consented, and to what; and by what and by how many
dB the noise of its recording was reduced."""
ABOUT = "voice"
"""The only metadata entry of a voice file. It holds JSON."""
UNKNOWN: Mapping[str, str] = {"owner": "unknown (the file cannot be read)"}
"""The record of a voice while its file cannot be read. No key has such a name, so no client may use the voice."""
_ENGINE = "cosyvoice2"
_LENGTH = struct.Struct("<Q")
_MAX_HEAD_BYTES = 1_000_000
_LOOK_NS = 20_000_000
"""The folder is looked at again after so long: an owner is asked for with every voice of every sentence."""
_SETTLED_S = 0.1
"""A folder that changed more recently may change again without another time of change."""


class VoiceRecords:
    """The records of all voices in a folder. They are read when the folder changes.

    While the disk fails, or the process may open no more files, what was read is kept. A file that could not be read is
    read again after `_LOOK_NS`.
    """

    def __init__(self, folder: VoiceFolder) -> None:
        self._folder = folder
        self._records: dict[str, Mapping[str, str]] = {}
        self._stamps: dict[str, FileStamp] = {}
        """Of the files whose records were read."""
        self._has_any = False
        self._was_read = False
        """Whether the folder could be read at least once."""
        self._told = ""
        """Why something could not be read at the last look, as the log has said."""
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
        """Whether there is a stored voice of this name. True also if its file cannot be looked at now: a new voice must
        not take the place of one that belongs to another key."""
        try:
            return is_valid_name(name) and S_ISREG(self._folder.path(name).stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    @property
    def has_any(self) -> bool:
        """Whether any voice has an owner, or may have one, because the folder cannot be read."""
        self._look()
        return self._has_any

    def _look(self, name: str = "") -> dict[str, Mapping[str, str]]:
        """The records by the names of the voices. A voice `name` that was not there is looked for at once: no client
        may use a new voice before its owner is known."""
        now_ns = monotonic_ns()
        is_fresh = self._looked_ns is not None and now_ns - self._looked_ns < _LOOK_NS
        if is_fresh and (not name or name in self._records):
            return self._records
        if not is_fresh:
            self._looked_ns = now_ns
        problem = ""
        try:
            changed_ns = self._changed_ns()
            is_complete = len(self._stamps) == len(self._records)
            if changed_ns == self._seen and (is_complete or is_fresh):
                return self._records
            stamps = self._folder.stamps()
        except OSError as error:
            # A voice that belongs to a key must not become everyone's.
            is_there = self._folder.has(name) if self._was_read else self.has(name)
            if is_there and name not in self._records:
                self._records[name] = UNKNOWN
            self._seen, self._has_any = None, True
            self._tell(f"{self._folder.directory}: {error.strerror or error}")
            return self._records
        for name, stamp in stamps.items():
            if self._stamps.get(name) == stamp:
                continue
            try:
                self._records[name] = read_record(self._folder, name)
                self._stamps[name] = stamp
            except (OSError, MemoryError) as error:
                self._records[name] = UNKNOWN
                self._stamps.pop(name, None)
                problem = f"{self._folder.path(name)}: {getattr(error, 'strerror', None) or 'out of memory'}"
        for name in self._records.keys() - stamps.keys():
            del self._records[name]
            self._stamps.pop(name, None)
        self._was_read = True
        self._has_any = any("owner" in record for record in self._records.values())
        self._seen = changed_ns if unix_s() - changed_ns / 1e9 > _SETTLED_S else None
        self._tell(problem)
        return self._records

    def _changed_ns(self) -> int:
        """When the folder last changed; 0 if the folder is missing. Raises OSError if it cannot be looked at."""
        try:
            return os.stat(self._folder.directory).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def _tell(self, problem: str) -> None:
        """Log a problem when it begins. "": no problem."""
        if problem and problem != self._told:
            log.warning("no client may use the voices whose owners cannot be read: %s", problem)
        self._told = problem


def read_record(folder: VoiceFolder, name: str) -> Mapping[str, str]:
    """The record of one voice. Empty if it has none, or if its file is damaged: then it cannot be used. Raises
    OSError if the file cannot be read."""
    try:
        with folder.path(name).open("rb") as file:
            (n,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if n > _MAX_HEAD_BYTES:
                return {}
            provenance = json.loads(json.loads(file.read(n))["__metadata__"][ABOUT])["provenance"]
        return {field: str(provenance[field]) for field in FIELDS if provenance.get(field)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error):
        return {}
