"""The tiny model on a CPU and on the pretended device, for comparing the two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from few_steps import FEW_EULER, with_steps
from speaking import ready_voice
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.device.runner import Runner, Track
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, Profile
from telephony_tts.engines.cosyvoice2.settings import Precision
from telephony_tts.engines.cosyvoice2.voices.voice_store import read_spk2info

N_SLOTS = 8
VOICES = ("prompted", "preset")
WITHIN = 1e-4
"""As a share of the signal's rms: the effect of the order of float32 sums."""


class Place:
    """The tiny model on one device, and its voices."""

    def __init__(self, directory: Path, device: str) -> None:
        checkpoint = with_steps(load_model_directory(directory), FEW_EULER)
        assert checkpoint.spk2info is not None
        self.model = SpeechModel.load(checkpoint, device=device, precision=Precision(), n_slots=N_SLOTS)
        self.runner = Runner(self.model)
        self.features = read_spk2info(checkpoint.spk2info)[0]
        self._prompts: dict[tuple[str, Profile], SpeakerPrompt] = {}

    def kept_prompt(self, voice: str, profile: Profile = DEFAULT) -> SpeakerPrompt:
        if (voice, profile) not in self._prompts:
            self._prompts[voice, profile] = ready_voice(self.model, self.features[voice], profile)
        return self._prompts[voice, profile]

    def open(
        self, profiles: Sequence[Profile], speeds: Sequence[float] = (1.0,), voices: Sequence[str] = VOICES
    ) -> list[Track]:
        """Tracks in the first slots, of the voices in turn."""
        tracks = []
        for slot, profile in enumerate(profiles):
            prompt = self.kept_prompt(voices[slot % len(voices)], profile)
            tracks.append(self.runner.open(slot, 40 + slot, prompt, speeds[slot % len(speeds)], profile))
        return tracks

    def clear(self) -> None:
        """Empty all slots."""
        for slot in range(N_SLOTS):
            self.model.cache.clear(slot)


def assert_close(there: Tensor, here: Tensor) -> None:
    there = there.cpu()
    assert there.shape == here.shape and here.isfinite().all()
    rms = float(here.square().mean().sqrt()) if here.numel() else 0.0
    assert here.numel() == 0 or float((there - here).abs().max()) <= WITHIN * rms
