"""The voices that an engine can speak with, while files of voices come, change and go.

A thread looks at the folder of voices every `LOOK_EVERY_S`, and at once when it is asked. It gives what has changed to
the core. Not every file system reports changes, so it looks; to look takes some microseconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from telephony_tts.engines.cosyvoice2.checkpoint.weights import Checkpoint
from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.hosting.process_messages import VoicesRead
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
from telephony_tts.engines.cosyvoice2.settings import PROMPT_MARK, PROMPTS_FOLDER
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures, misfits
from telephony_tts.engines.cosyvoice2.voices.voice_folder import FileStamp
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore, read_spk2info
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import ConfigError, EngineError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
TRY_AGAIN_S = 10.0
"""After this time a file that could not be read is read again. The cause may be outside of the file, such as too many
open files."""


class KnownVoices:
    """The usable voices of a checkpoint and of the folder `directory`; unusable ones are logged.

    A stored voice hides one of that name in the checkpoint. Prompts of single requests are stored below the folder, and
    their names begin with `PROMPT_MARK`.
    """

    def __init__(self, checkpoint: Checkpoint, directory: Path | None) -> None:
        self._sizes = _VoiceSizes(checkpoint.config)
        self._stores: list[tuple[str, VoiceStore]] = []
        if directory is not None:
            self._stores = [("", VoiceStore(directory)), (PROMPT_MARK, VoiceStore(directory / PROMPTS_FOLDER))]
        self._own: dict[str, PromptFeatures] = {}
        if checkpoint.spk2info is not None:
            try:
                voices, problems = read_spk2info(checkpoint.spk2info)
            except ConfigError as error:
                voices, problems = {}, [str(error)]
            for problem in problems:
                _skip(problem)
            self._own = {name: voice for name, voice in voices.items() if self._fits(name, voice)}
        self._stored: dict[str, PromptFeatures] = {}
        self._stamps: dict[str, FileStamp] = {}
        """Of all files, also of those that cannot be used."""
        self._failures: dict[str, tuple[str, int]] = {}
        """Of each file that could not be read: the error, and when it was last tried."""
        self._is_unreadable = False
        self.look()

    @property
    def features(self) -> dict[str, PromptFeatures]:
        """The voices by name: those of the checkpoint first."""
        return {**self._own, **self._stored}

    def look(self) -> bool:
        """Read the files that were added or replaced, and forget those that are gone. True if a voice changed."""
        stamps: dict[str, FileStamp] = {}
        stores: dict[str, tuple[VoiceStore, str]] = {}
        try:
            for mark, store in self._stores:
                for name, stamp in store.stamps().items():
                    stamps[mark + name], stores[mark + name] = stamp, (store, name)
        except OSError as error:
            if not self._is_unreadable:
                log.warning("cosyvoice2 keeps its voices: their folder cannot be read: %s", error)
            self._is_unreadable = True
            return False
        self._is_unreadable = False
        now_ns = monotonic_ns()
        for name, (_, tried_ns) in self._failures.items():
            if now_ns - tried_ns >= TRY_AGAIN_S * NS_PER_S:
                self._stamps.pop(name, None)
        if stamps == self._stamps:
            return False
        failures = {name: failure for name, failure in self._failures.items() if name in stamps}
        stored: dict[str, PromptFeatures] = {}
        for name in sorted(stamps):
            if stamps[name] == self._stamps.get(name):
                if name in self._stored:
                    stored[name] = self._stored[name]
                continue
            store, file = stores[name]
            try:
                features = store.load(file)
            except (EngineError, OSError) as error:
                if name not in failures or failures[name][0] != str(error):
                    _skip(str(error))
                failures[name] = str(error), now_ns
                continue
            failures.pop(name, None)
            if self._fits(name, features):
                stored[name] = features
        changed = stored.keys() ^ self._stored.keys() or any(stored[n] is not self._stored[n] for n in stored)
        self._stamps, self._stored, self._failures = stamps, stored, failures
        return bool(changed)

    def _fits(self, name: str, features: PromptFeatures) -> bool:
        unfit = misfits(features, self._sizes)
        if unfit:
            _skip(f"{name}: {'; '.join(unfit)}")
        return not unfit


def _skip(problem: str) -> None:
    log.warning("cosyvoice2 skips a voice: %s", problem)


def described(features: Mapping[str, PromptFeatures]) -> dict[str, str]:
    """The description of each voice."""
    return {name: voice.description for name, voice in features.items()}


class VoiceWatch:
    """Keeps the voices of a core those that are stored. `serve` is the body of a thread."""

    def __init__(self, known: KnownVoices, core: Core) -> None:
        self._known = known
        self._core = core
        self._wake = threading.Condition()
        self._n_asked = 0
        self._is_closed = False

    def look_now(self, number: int) -> None:
        """Look at once; the answer has this number or a higher one. Numbers grow. From any thread."""
        with self._wake:
            self._n_asked = max(self._n_asked, number)
            self._wake.notify()

    def close(self) -> None:
        """Let `serve` return. From any thread."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()

    def serve(self, tell: Callable[[VoicesRead], None]) -> None:
        """Look until closed. `tell` is called after each change, and with the answer to `look_now`."""
        n_answered = 0
        while True:
            with self._wake:
                if not self._is_closed and self._n_asked == n_answered:
                    self._wake.wait(LOOK_EVERY_S)
                if self._is_closed:
                    return
                n_asked = self._n_asked
            try:
                changed = self._known.look()
            except Exception:  # this thread must go on: a file can be damaged in more ways than there are checks
                log.exception("cosyvoice2 could not read its voices")
                changed = False
            features = self._known.features
            if changed:
                self._core.replace_voices(features)
                log.info("cosyvoice2 has other voices: %d", len(features))
            if changed or n_asked != n_answered:
                n_answered = n_asked
                tell(VoicesRead(n_asked, described(features)))


class _VoiceSizes:
    """Sizes of a model in memory, as `misfits` takes them."""

    def __init__(self, config: ModelConfig) -> None:
        self.takes_prompts = config.family.flow_streams
        self.n_embedding = config.flow_encoder.d_speaker
        self.n_text_rows = config.lm.n_text_rows
