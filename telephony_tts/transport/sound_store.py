"""The sounds that bots can play: files of a folder, those that are included, and addresses that the operator allows.

Files are looked up, read and resampled in threads, never on the event loop, and kept in memory at the rates that calls
asked for. The folder is looked at for each `play`, so a file that is added, replaced or removed needs no restart. What
an address has is fetched once, and again when it has left the memory.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from telephony_tts.audio.included_sounds import INCLUDED
from telephony_tts.audio.sound import Sound
from telephony_tts.audio.sound_file import decode_sound, read_sound
from telephony_tts.runtime import metrics
from telephony_tts.runtime.daemon_pool import DaemonPool
from telephony_tts.runtime.errors import AudioError, SoundError
from telephony_tts.transport.settings import SoundSettings
from telephony_tts.transport.sound_fetch import fetch_sound

_MB = 1_000_000
_N_THREADS = 4
"""One slow file must not hold up the sounds of other calls. Addresses have as many threads of their own."""
_MOST_WAITING = 256
"""The most sounds that may be loaded at once."""
_MOST_NAMED = 3
_MOST_FILES = 10_000
_ENDINGS = (
    ".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".mp4", ".aac", ".aif", ".aiff", ".aifc", ".au", ".snd",
    ".caf", ".mka", ".mkv", ".webm", ".mov", ".w64",
)  # fmt: skip
"""Of two files with one name the one that stands first here is played. Other files are not sounds."""
_PLAYED, _FAILED = (metrics.SOUNDS.labels(outcome=outcome) for outcome in ("played", "failed"))

_Version = tuple[str, int, int, int]
"""A file's path, its inode, when it was changed, and its size. An included sound has its name and the size -1, and an
address that and the size -2."""


@dataclass(frozen=True, slots=True)
class _SoundFile:
    name: str
    path: str


class SoundStore:
    """See the module text. One for all calls of a server."""

    def __init__(self, settings: SoundSettings, within_s: float = 20.0) -> None:
        """A call waits at most `within_s` for a sound: for a free thread, its file or address, and its samples."""
        self._settings = settings
        self._within_s = within_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[_Version, int], Sound] = OrderedDict()
        """The sounds in memory by file and rate, the least recently used first."""
        self._n_kept_bytes = 0
        self._loading: dict[tuple[str, int], asyncio.Task[Sound]] = {}
        """What is being loaded, so that calls that ask for the same sound at once load it once."""
        self._threads: DaemonPool | None = None
        self._fetchers: DaemonPool | None = None

    def find(self, name: str) -> StoredSound:
        """The sound of this name or address, whether it is there or not. Does no I/O."""
        return StoredSound(self, name)

    async def load(self, name: str, rate_hz: int) -> Sound:
        """The sound at `rate_hz`. Raises SoundError if there is none of this name, if its file cannot be played, or if
        it is not there in time."""
        loading = self._loading.get((name, rate_hz))
        if loading is None:
            if len(self._loading) >= _MOST_WAITING:
                _FAILED.inc()
                raise SoundError("too many sounds wait")
            loading = asyncio.create_task(self._load_in_thread(name, rate_hz), name=f"sound {name}")
            loading.add_done_callback(_take_error)
            self._loading[name, rate_hz] = loading
        try:
            async with asyncio.timeout(self._within_s):
                # A call that ends or waits no longer must not take the sound from the others.
                sound = await asyncio.shield(loading)
        except TimeoutError as error:
            _FAILED.inc()
            why = "its disk or host is slow, or other sounds are read first"
            raise SoundError(f"sound {_shown(name)!r} did not come within {self._within_s:g} s: {why}") from error
        except SoundError:
            _FAILED.inc()
            raise
        _PLAYED.inc()
        return sound

    async def _load_in_thread(self, name: str, rate_hz: int) -> Sound:
        if self._threads is None:
            self._threads = DaemonPool(_N_THREADS, "sounds")
        threads = self._threads
        if _is_url(name):
            threads = self._fetchers = self._fetchers or DaemonPool(_N_THREADS, "sound addresses")
        try:
            try:
                work = asyncio.get_running_loop().run_in_executor(threads, self._load, name, rate_hz)
            except RuntimeError as error:  # no thread could be started
                raise SoundError(f"sound {_shown(name)!r} cannot be read now: {error}") from error
            return await work
        finally:
            del self._loading[name, rate_hz]

    # ------------------------------------------------------------- in a thread

    def list_sounds(self) -> Iterator[tuple[str, Sound | SoundError]]:
        """Each name with its sound, or with what is wrong with its file. Reads every file: for the command line."""
        for name in self._names():
            try:
                yield name, self._read(name)[1]
            except SoundError as error:
                yield name, error

    def _load(self, name: str, rate_hz: int) -> Sound:
        version = self._version(name)
        with self._lock:
            kept = self._kept.get((version, rate_hz))
            if kept is not None:
                self._kept.move_to_end((version, rate_hz))
                return kept
        version, sound = self._read(name)
        try:
            sound = sound.at(rate_hz)
        except (AudioError, MemoryError) as error:
            why = str(error) or "there is not enough memory"  # a MemoryError says nothing
            raise SoundError(f"sound {_shown(name)!r} cannot be resampled to {rate_hz} Hz: {why}") from error
        self._keep((version, rate_hz), sound)
        return sound

    def _read(self, name: str) -> tuple[_Version, Sound]:
        version = self._version(name)
        if version[3] == -1:
            return version, INCLUDED[name]()
        settings = self._settings
        try:
            if version[3] == -2:
                address, name = name, _shown(name)
                content = fetch_sound(address, settings.urls, settings.max_mb * _MB, settings.fetch_s)
                return version, decode_sound(content, settings.max_s)
            return version, read_sound(version[0], settings.max_s, settings.max_mb * _MB)
        except SoundError:
            raise
        except AudioError as error:
            raise SoundError(f"sound {name!r} cannot be played: {error.message}") from error
        except FileNotFoundError as error:
            raise self._unknown(name) from error
        except OSError as error:
            raise SoundError(f"sound {name!r} cannot be read: {error.strerror}") from error
        except Exception as error:  # a decoder is foreign code, and its failure must not end the call
            raise SoundError(f"sound {name!r} cannot be played: {type(error).__name__}") from error

    def _version(self, name: str) -> _Version:
        if _is_url(name):
            return name, 0, 0, -2
        found = next((file for file in self._files() if file.name == name or os.path.basename(file.path) == name), None)
        if found is None:
            if name in INCLUDED:
                return name, 0, 0, -1
            raise self._unknown(name)
        try:
            facts = os.stat(found.path)
        except OSError as error:
            raise SoundError(f"sound {name!r} cannot be read: {error.strerror}") from error
        return found.path, facts.st_ino, facts.st_mtime_ns, facts.st_size

    def _files(self) -> list[_SoundFile]:
        """The sounds of the folder: of those with one name the preferred one first. No name leads outside."""
        folder = self._settings.folder
        if folder is None:
            return []
        try:
            with os.scandir(folder) as entries:
                names = [
                    entry.name for entry, _ in zip(entries, range(_MOST_FILES), strict=False) if not entry.is_dir()
                ]
        except OSError as error:
            raise SoundError(f"the folder of sounds cannot be read: {error.strerror}") from error
        ranked = []
        for name in names:
            stem, ending = os.path.splitext(name)
            if not name.startswith(".") and ending.lower() in _ENDINGS:
                ranked.append((stem, _ENDINGS.index(ending.lower()), name))
        return [_SoundFile(stem, os.path.join(folder, name)) for stem, _, name in sorted(ranked)]

    def _names(self) -> list[str]:
        return sorted({*INCLUDED, *(file.name for file in self._files())})

    def _unknown(self, name: str) -> SoundError:
        names = self._names()
        near = get_close_matches(name, names, n=_MOST_NAMED, cutoff=0.5)
        hint = f"near it: {', '.join(near)}" if near else f"there are {len(names)}, such as {', '.join(names[:3])}"
        return SoundError(f"no sound {name!r}; {hint}", code="unknown_sound")

    def _keep(self, key: tuple[_Version, int], sound: Sound) -> None:
        with self._lock:
            replaced = self._kept.pop(key, None)
            self._n_kept_bytes += sound.pcm.nbytes - (replaced.pcm.nbytes if replaced else 0)
            self._kept[key] = sound
            while self._n_kept_bytes > self._settings.memory_mb * _MB and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._n_kept_bytes -= oldest.pcm.nbytes


def _is_url(name: str) -> bool:
    """Whether an address. A file of the folder has no slash in its name."""
    return name.startswith(("http://", "https://"))


def _shown(name: str) -> str:
    """For messages: the query of an address may have a secret."""
    return name.partition("?")[0] if _is_url(name) else name


def _take_error(loading: asyncio.Task[Sound]) -> None:
    """Otherwise asyncio would log the error of a sound that no call waits for any more."""
    if not loading.cancelled():
        loading.exception()


@dataclass(frozen=True, slots=True)
class StoredSound:
    """A sound of the store by its name: `session.sounds.SoundSource`."""

    store: SoundStore
    name: str

    async def load(self, rate_hz: int) -> Sound:
        """The sound at `rate_hz`. Raises SoundError."""
        return await self.store.load(self.name, rate_hz)
