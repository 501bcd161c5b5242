"""The engine `cosyvoice2`: many voices by CosyVoice2 or CosyVoice-300M, for which the operator gets a model.

PyTorch is an extra and takes a second to import, so each import of the engine stands where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from telephony_tts.engines.cosyvoice2.configuration import CosyVoice2Settings
from telephony_tts.engines.plugin import BenchSubject, CommandLine, EnginePlugin, Finding, Flag, Package, Setup
from telephony_tts.engines.versions import package_version
from telephony_tts.runtime.errors import EngineUnavailable, how_to_get, shell_command

if TYPE_CHECKING:
    from telephony_tts.engines.api import Engine, Voice
    from telephony_tts.engines.catalog import AbsentEngine
    from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine


class _CosyVoice2(EnginePlugin[CosyVoice2Settings]):
    name = "cosyvoice2"
    settings = CosyVoice2Settings
    rank = 50
    modules = ("torch",)
    extra = "cosyvoice"
    packages = (
        *(Package(name, "cosyvoice", "CosyVoice2") for name in ("torch", "safetensors", "tokenizers", "soundfile")),
        *(
            Package(name, "hub", shell_command("telephony-tts models pull"))
            for name in ("huggingface_hub", "modelscope-hub")
        ),
    )
    paths = ("model", "voices")
    flags = (
        Flag("model", "--model", "model directory (engines.cosyvoice2.model)"),
        Flag("voices", "--voices", "voice folder (engines.cosyvoice2.voices; default MODEL/voices)"),
    )
    is_shared_by_fronts = True  # a model takes gigabytes, and batches of all calls are the fastest

    def missing_setting(self, own: CosyVoice2Settings) -> str | None:
        return None if own.model else "model: missing (a model directory)"

    def is_wanted(self, setup: Setup[CosyVoice2Settings]) -> bool:
        return setup.settings.model is not None

    def need_packages(self, setup: Setup[CosyVoice2Settings]) -> None:
        need_torch(setup.settings.model)

    def build(self, setup: Setup[CosyVoice2Settings]) -> CosyVoice2Engine:
        own, timeouts = setup.settings, setup.timeouts
        assert own.model is not None
        self.need_packages(setup)
        from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine, EngineLimits
        from telephony_tts.engines.cosyvoice2.settings import Timeouts

        return CosyVoice2Engine(
            Path(own.model),
            own.voice_folder,
            None if own.workers == "auto" else own.workers,
            own.device,
            own.dtype,
            own.profile,
            finish=own.finish,
            control_tokens=own.control_tokens,
            limits=EngineLimits(own.slots, own.ready_voices, own.flow_memory_mb),
            n_threads=None if own.threads == "auto" else own.threads,
            isolation=own.isolation,
            lm_dtype=own.lm_dtype,
            flow_dtype=own.flow_dtype,
            vocoder_dtype=own.vocoder_dtype,
            ahead_ms=own.ahead_ms,
            timeouts=Timeouts(timeouts.stall_s, timeouts.timeout_s, timeouts.restart_wait_s),
            flow_steps=own.flow_steps,
            end_of_instruction=own.end_of_instruction,
            lm_backend=own.lm_backend,
        )

    def absent(self, setup: Setup[CosyVoice2Settings], *, runs: bool) -> Iterator[AbsentEngine]:
        if runs:
            return
        from telephony_tts.engines.catalog import AbsentEngine
        from telephony_tts.engines.cosyvoice2.languages import LANGUAGES, check_letters

        how = "get its model and set engines.cosyvoice2.model (docs/cosyvoice2.md)"
        yield AbsentEngine(self.name, LANGUAGES, lambda utterance: check_letters(utterance.text), how)

    # -------------------------------------------------------------------- voices

    def stored_voices(self, setup: Setup[CosyVoice2Settings]) -> tuple[list[Voice], list[str]] | None:
        """Read from their files: to start the engine takes as long as to load its weights."""
        own = setup.settings
        if own.voice_folder is None:
            return None
        need_torch(own.model)
        from telephony_tts.engines.api import Voice
        from telephony_tts.engines.cosyvoice2.languages import LANGUAGES
        from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE2, COSYVOICE_300M
        from telephony_tts.engines.cosyvoice2.model.file_names import is_first_generation
        from telephony_tts.engines.cosyvoice2.voices import enrolment
        from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

        model = None if own.model is None else Path(own.model)
        family = COSYVOICE_300M if model is not None and is_first_generation(model) else COSYVOICE2
        voices, problems = [], []
        for each in enrolment.list_voices(model, VoiceStore(own.voice_folder)):
            if each.features is None:
                problems.append(f"cosyvoice2/{each.name} cannot be used: {each.problem}")
            else:
                rate_hz, about = family.sample_rate_hz, each.description
                voices.append(Voice(each.name, self.name, LANGUAGES, rate_hz, description=about))
        return voices, problems

    def voice_service(self, setup: Setup[CosyVoice2Settings], engine: Engine, *, is_shared: bool = False) -> Any:
        own = setup.settings
        if own.model is None or own.voice_folder is None:
            return None
        from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
        from telephony_tts.engines.cosyvoice2.shared_voices import HasVoices, SharedVoices
        from telephony_tts.engines.cosyvoice2.voice_service import VoiceService

        model, folder, made_by = Path(own.model), own.voice_folder, package_version("telephony-tts")
        if is_shared:
            shared = SharedVoices(cast(HasVoices, engine))
            return VoiceService(
                shared, model, folder, spoken, n_prompts=own.prompts, made_by=made_by, until_known=shared.until_known
            )
        if not isinstance(engine, CosyVoice2Engine):
            return None
        return VoiceService(engine, model, folder, spoken, n_prompts=own.prompts, made_by=made_by)

    def voice_folder(self, own: CosyVoice2Settings) -> Path | None:
        return own.voice_folder

    def voice_records(self, own: CosyVoice2Settings) -> Any:
        if own.voice_folder is None:
            return None
        from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
        from telephony_tts.engines.cosyvoice2.voices.voice_records import VoiceRecords

        return VoiceRecords(VoiceFolder(own.voice_folder))

    def control_tokens(self, own: CosyVoice2Settings) -> tuple[str, ...]:
        return own.control_tokens

    # ------------------------------------------------------------------ commands

    def findings(self, setup: Setup[CosyVoice2Settings], *, is_running: bool) -> Iterator[Finding]:
        from telephony_tts.engines.cosyvoice2 import examination

        yield from examination.gpus(setup.settings.device)
        yield from examination.model_and_voices(setup.settings, partial(self.build, setup), is_running=is_running)

    def add_commands(self, line: CommandLine) -> None:
        from telephony_tts.engines.cosyvoice2.model_commands import add_models
        from telephony_tts.engines.cosyvoice2.voice_commands import add_voice_actions

        add_voice_actions(line)
        add_models(line)

    def bench_subject(self) -> BenchSubject:
        from telephony_tts.engines.cosyvoice2.bench_subject import CosyVoice2Subject

        return CosyVoice2Subject()


PLUGIN = _CosyVoice2()


def need_torch(model: str | None = None) -> None:
    """Raises EngineUnavailable where PyTorch, which all of CosyVoice2 needs, is not installed. It names a model
    directory that is missing too: an operator mends both at once."""
    if not PLUGIN.is_installed():
        also = "" if model is None or Path(model).is_dir() else f"; and there is no model directory {model}"
        raise EngineUnavailable(f"cosyvoice2 needs PyTorch: {how_to_get('cosyvoice')}{also}")


def spoken(text: str) -> str:
    """A transcript in words, as in the training of CosyVoice2 (specification 3.4), or "" if it has no words."""
    from telephony_tts.engines.words import is_speakable
    from telephony_tts.text.normalizer import normalize

    words = " ".join(normalize(" ".join(text.split())).split())
    return words if is_speakable(words) else ""
