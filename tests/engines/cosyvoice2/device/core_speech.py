"""Speaks some sentences at once with a loaded core, with our own language model or with vLLM.

    core_speech.py MODEL OUT        with vLLM: OUT gets each sentence's audio and how many requests vLLM had

It is also imported by the test, which speaks the same sentences with our own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.core.core import Core
from telephony_tts.engines.cosyvoice2.core.orders import (
    AudioTaken,
    CancelOrder,
    Event,
    SubmitUtterance,
    UtteranceEnded,
)
from telephony_tts.engines.cosyvoice2.device.vllm_steps import VllmSlots
from telephony_tts.engines.cosyvoice2.hosting.loading import load
from telephony_tts.engines.cosyvoice2.settings import Settings
from telephony_tts.engines.cosyvoice2.text.prompting import Request

SENTENCES = {
    1: ("preset", Request("Hello, your order of today is here.", seed=3)),
    2: ("prompted", Request("Please call the number one two three.", seed=4, speed=1.2)),
    3: ("prompted", Request("Can you help me with my account, please?", seed=5)),
    4: ("preset", Request("This is cancelled in the middle of its long first sentence, is it not?", seed=6)),
}
CANCELLED = 4


def settings_of(model: Path, *, uses_vllm: bool) -> Settings:
    return Settings(model, n_slots=4, flow_steps=2, uses_vllm=uses_vllm)


def speak(settings: Settings) -> tuple[dict[int, np.ndarray], list[int]]:
    """The audio of each sentence, and the requests that vLLM had: at most, before and after the cancel, at the end."""
    audio: dict[int, list[np.ndarray]] = {key: [] for key in SENTENCES}
    ended: dict[int, str | None] = {}
    untaken: list[AudioTaken] = []

    def receive(key: int, event: Event) -> None:
        if isinstance(event, Chunk):
            audio[key].append(event.pcm)
            untaken.append(AudioTaken(key, len(event.pcm)))
        elif isinstance(event, UtteranceEnded):
            ended[key] = None if event.error is None else str(event.error)

    def requests(core: Core) -> int:
        cache = core.runner.model.cache
        return cache._engine.get_num_unfinished_requests() if isinstance(cache, VllmSlots) else 0

    core = load(settings, receive).core
    n_requests = []
    for key, (voice, request) in SENTENCES.items():
        core.receive(SubmitUtterance(key, voice, request))
    most, is_cancelled = 0, False
    while core.step() or untaken:
        most = max(most, requests(core))
        piece = core._jobs[CANCELLED].stream.piece if CANCELLED in core._jobs else None
        if not is_cancelled and piece is not None and piece.n_drawn > 2:
            n_requests += [requests(core)]
            core.receive(CancelOrder(CANCELLED))
            core.step()
            n_requests += [requests(core)]
            is_cancelled = True
        for taken in untaken:
            core.receive(taken)
        untaken.clear()
    n_requests = [most, *n_requests, requests(core)]
    assert ended == dict.fromkeys(SENTENCES), ended
    return {key: np.concatenate(made) for key, made in audio.items() if key != CANCELLED}, n_requests


if __name__ == "__main__":
    spoken, seen = speak(settings_of(Path(sys.argv[1]), uses_vllm=True))
    np.savez(sys.argv[2], n_requests=seen, **{str(key): pcm for key, pcm in spoken.items()})
