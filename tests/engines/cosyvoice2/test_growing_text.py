"""Speech that begins before its text has ended: the model's interleaved mode behind a TextFeed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from speaking import N_SLOTS, NEIGHBOUR, SENTENCE, Rig, never, pcm

from telephony_tts.engines.api import Chunk, Pcm, TextFeed
from telephony_tts.engines.cosyvoice2.generation import BiStreamDecoding
from telephony_tts.engines.cosyvoice2.model.config import FILL
from telephony_tts.engines.cosyvoice2.model.vocoder_stream import CounterNoise
from telephony_tts.engines.cosyvoice2.profile import DEFAULT
from telephony_tts.engines.cosyvoice2.speech_model import SpeakerPrompt
from telephony_tts.engines.cosyvoice2.stream import Request, speak
from telephony_tts.engines.workers import Wait

TEXT = f"{SENTENCE} {NEIGHBOUR}"


@pytest.fixture
def talkative(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """The fill id, and the end when it is allowed, come often enough to be met."""
    bias = rig.model.lm.head_bias.clone()
    bias[FILL] += 3.0
    bias[6561] += 6.0
    monkeypatch.setattr(rig.model.lm, "head_bias", bias)
    return rig


def words(text: str) -> list[str]:
    """Each with the blank before it, which is how a bot's text settles."""
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


def spoken(rig: Rig, prompt: SpeakerPrompt, seed: int, first: str, pieces: list[str], order: random.Random) -> Pcm:
    """The audio, with pieces pushed at moments that `order` chooses, and whenever the model waits."""
    feed = TextFeed()
    left = list(pieces)

    def push() -> None:
        if left:
            feed.push(left.pop(0))
        else:
            feed.end()

    heard: list[Chunk] = []
    for item in speak(rig.model, prompt, Request(first, seed, more=feed), DEFAULT, never):
        if isinstance(item, Wait):
            told: list[bool] = []
            item.tell(lambda told=told: told.append(True))  # type: ignore[misc]
            assert not told, "it waits for what it was given already"
            push()
            assert told == [True]
        else:
            heard.append(item)
            if order.random() < 0.5:
                push()
    return pcm(heard)


@pytest.mark.parametrize("voice", ["preset", "prompted"])
def test_when_text_comes_changes_nothing(talkative: Rig, voice: str) -> None:
    """Given at once, or word by word, whenever: the audio depends on the text alone."""
    prompt = talkative.prompt(voice)
    first, *rest = words(TEXT)
    whole = TextFeed()
    whole.push("".join(rest))
    whole.end()
    at_once = pcm(speak(talkative.model, prompt, Request(first, 7, more=whole), DEFAULT, never))
    assert len(at_once) > 24_000
    for i in range(4):
        np.testing.assert_array_equal(spoken(talkative, prompt, 7, first, rest, random.Random(i)), at_once)
    assert talkative.model.cache.n_free == N_SLOTS


@pytest.mark.parametrize("voice", ["preset", "prompted"])
def test_the_tokens_are_those_of_the_models_interleaved_mode(talkative: Rig, voice: str) -> None:
    model, prompt, features = talkative.model, talkative.prompt(voice), talkative.features[voice]
    feed = TextFeed()
    feed.push(TEXT[5:])
    feed.end()
    heard = pcm(speak(model, prompt, Request(TEXT[:5], 3, more=feed), DEFAULT, never))
    decoding = BiStreamDecoding(prompt.transcript_ids, prompt.speech_tokens)
    for piece in (TEXT[:5], TEXT[5:]):
        decoding.push_text(model.tokenizer.encode(piece))
    decoding.end_text()
    tokens = talkative.speech_tokens(prompt, decoding, seed=3)
    assert len(heard) == 960 * len(tokens)
    n_cut = features.speech_tokens.numel() - prompt.n_flow_tokens
    mel = model.flow.full(
        features.speech_tokens[None, n_cut:],
        torch.tensor([tokens]),
        features.mel[None, 2 * n_cut :],
        features.embedding[None],
        streaming=True,
        finalize=True,
    )
    audio = model.vocoder.vocode(mel, CounterNoise(3, model.vocoder.config.n_harmonics + 1))[0]
    assert np.abs(heard / 32767.0 - audio.numpy()).max() < 2e-3


def drained(items: Iterator[Chunk | Wait]) -> list[Chunk]:
    """Chunks up to the first wait."""
    chunks = []
    for item in items:
        if isinstance(item, Wait):
            break
        chunks.append(item)
    return chunks


def test_audio_comes_before_the_text_has_ended(rig: Rig) -> None:
    """Of a voice without a prompt five text tokens are enough for the first run of fifteen."""
    prompt = rig.prompt("preset")
    feed = TextFeed()
    items = speak(rig.model, prompt, Request("", 1, more=feed), DEFAULT, never)
    chunks, n_pushed = [], 0
    for word in words(TEXT):
        chunks += drained(items)
        if chunks:
            break
        feed.push(word)
        n_pushed += 1
    assert chunks and n_pushed < len(words(TEXT)) - 3
    items.close()  # type: ignore[attr-defined]
    assert rig.model.cache.n_free == N_SLOTS


def test_an_instruction_waits_for_the_whole_sentence(rig: Rig) -> None:
    prompt = rig.prompt("prompted")
    feed = TextFeed()
    request = Request(SENTENCE[:20], 2, instruct="Speak slowly.", more=feed)
    items = speak(rig.model, prompt, request, DEFAULT, never)
    assert drained(items) == []
    feed.push(SENTENCE[20:])
    assert isinstance(next(items), Wait)
    feed.end()
    whole = Request(SENTENCE, 2, instruct="Speak slowly.")
    np.testing.assert_array_equal(pcm(items), pcm(speak(rig.model, prompt, whole, DEFAULT, never)))


@pytest.mark.parametrize("voice", ["preset", "prompted"])
@pytest.mark.parametrize("text", ["", " ", "?", "yes", "No!"])
def test_text_that_ends_at_once(talkative: Rig, voice: str, text: str) -> None:
    feed = TextFeed()
    feed.end()
    audio = pcm(speak(talkative.model, talkative.prompt(voice), Request(text, 4, more=feed), DEFAULT, never))
    assert len(audio) > 0 or not text.strip().isalnum()
    assert talkative.model.cache.n_free == N_SLOTS


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "cancelled"])
def test_stopped_while_it_waits(rig: Rig, closes: bool) -> None:
    wanted = True
    feed = TextFeed()
    items = speak(rig.model, rig.prompt("prompted"), Request("Hello", more=feed), DEFAULT, lambda: not wanted)
    assert isinstance(next(items), Wait)
    assert rig.model.cache.n_free == N_SLOTS - 1
    if closes:
        items.close()  # type: ignore[attr-defined]
    else:
        wanted = False
        feed.push(" there")
        assert list(items) == []
    assert rig.model.cache.n_free == N_SLOTS
