"""A tiny model that can be made to speak, for the tests of this folder."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from telephony_tts.engines.api import Chunk, Pcm
from telephony_tts.engines.cosyvoice2 import stream
from telephony_tts.engines.cosyvoice2.generation import Decoding
from telephony_tts.engines.cosyvoice2.model.vocoder_stream import CounterNoise
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, Profile
from telephony_tts.engines.cosyvoice2.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.stream import Request
from telephony_tts.engines.cosyvoice2.voice_store import read_spk2info
from telephony_tts.engines.cosyvoice2.weights import load_model_directory
from telephony_tts.engines.workers import Wait

torch.set_num_threads(1)

SENTENCE = "Thank you for calling, how can I help you today?"
NEIGHBOUR = "Your parcel left the depot on Tuesday morning."
N_SLOTS = 3


def never() -> bool:
    return False


class After:
    """`Cancelled` that becomes true at the n-th question."""

    def __init__(self, n: int) -> None:
        self.n_left = n

    def __call__(self) -> bool:
        self.n_left -= 1
        return self.n_left < 0


def live_storages() -> dict[int, int]:
    """Bytes of every live storage on the CPU, by its address. Weights and prompts are among them.

    Found by type: `isinstance` would ask torch's deprecated proxies for their class, and they warn. Sparse tensors, of
    which another test may have left one, have no storage to ask for.
    """
    found = (item for item in gc.get_objects() if issubclass(type(item), Tensor))
    dense = (tensor for tensor in found if tensor.layout == torch.strided and tensor.device.type == "cpu")
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in dense}


class Rig:
    """The model of a directory, and its voices."""

    def __init__(self, directory: Path, n_slots: int = N_SLOTS) -> None:
        checkpoint = load_model_directory(directory)
        assert checkpoint.spk2info is not None
        self.model = SpeechModel.load(checkpoint, device="cpu", dtype=torch.float32, n_slots=n_slots)
        self.features = read_spk2info(checkpoint.spk2info)[0]

    def prompt(self, name: str, profile: Profile = DEFAULT) -> SpeakerPrompt:
        return self.model.prompt(self.features[name], profile)

    def speech_tokens(self, prompt: SpeakerPrompt, decoding: Decoding, seed: int) -> list[int]:
        """All ids that a decoding gives; it must need no more text."""
        slot = self.model.slots.acquire()
        assert slot is not None
        self.model.sampler.start(slot, seed)
        voice = stream._Voice(self.model, prompt, Request(""), DEFAULT, lambda: None)
        tokens = list(stream._speech_tokens(voice, slot, decoding))
        self.model.slots.release(slot)
        return [token for token in tokens if isinstance(token, int)]


    def audio(self, voice: str, prompt: SpeakerPrompt, tokens: list[int], seed: int) -> Tensor:
        """All of the tokens' audio [N] at once: the flow from the first prompt token, and the vocoder."""
        features, model = self.features[voice], self.model
        n_cut = features.speech_tokens.numel() - prompt.n_flow_tokens
        mel = model.flow.full(
            features.speech_tokens[None, n_cut:],
            torch.tensor([tokens]),
            features.mel[None, 2 * n_cut :],
            features.embedding[None],
            streaming=True,
            finalize=True,
        )
        return model.vocoder.vocode(mel, CounterNoise(seed, model.vocoder.config.n_harmonics + 1))[0]


def pcm(chunks: Iterable[Chunk | Wait]) -> Pcm:
    """The audio, whatever was waited for."""
    return np.concatenate([np.zeros(0, np.int16), *(chunk.pcm for chunk in chunks if isinstance(chunk, Chunk))])
