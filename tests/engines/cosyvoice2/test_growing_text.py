"""Speech that begins before its text has ended: the model's interleaved mode behind a TextFeed."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

import numpy as np
import pytest
from speaking import N_SLOTS, NEIGHBOUR, SENTENCE, Rig, never, pcm

from telephony_tts.engines.api import Chunk, Pcm, TextFeed
from telephony_tts.engines.cosyvoice2 import stream
from telephony_tts.engines.cosyvoice2.generation import BiStreamDecoding
from telephony_tts.engines.cosyvoice2.model.config import FILL
from telephony_tts.engines.cosyvoice2.profile import DEFAULT
from telephony_tts.engines.cosyvoice2.speech_model import SpeakerPrompt
from telephony_tts.engines.cosyvoice2.stream import Request, speak
from telephony_tts.engines.words import MAX_WORD_CHARS
from telephony_tts.engines.workers import Wait
from telephony_tts.errors import EngineError

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
    model, prompt = talkative.model, talkative.prompt(voice)
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
    audio = talkative.audio(voice, prompt, tokens, seed=3)
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
    items.close()
    assert rig.model.cache.n_free == N_SLOTS


def test_little_is_held_back_while_it_waits(talkative: Rig) -> None:
    """All that was drawn is heard but for a block of a second, the lookahead and the vocoder's 20 frames."""
    prompt = talkative.prompt("preset")
    feed = TextFeed()
    n_heard = n_waits = most = 0
    pieces = words(f"{TEXT} {TEXT} {TEXT}")
    for item in speak(talkative.model, prompt, Request("", 2, more=feed), DEFAULT, never):
        if isinstance(item, Chunk):
            n_heard += len(item.pcm)
            continue
        n_waits += 1
        most = max(most, int(talkative.model.sampler.n_drawn[0]) - n_heard // 960)
        if pieces:
            feed.push(pieces.pop(0))
        else:
            feed.end()
    assert n_heard > 10 * 24_000 and n_waits > 20
    assert most <= 25 + 3 + 10 + n_heard // 960 // 15, "fill ids are drawn and not heard"


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


def test_more_text_than_can_be_said_is_an_error_and_not_silence(
    talkative: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_SPEECH_TOKENS", 60)
    feed = TextFeed()
    feed.push(f" {TEXT}" * 3)
    feed.end()
    with pytest.raises(EngineError, match="did not come to an end"):
        list(speak(talkative.model, talkative.prompt("preset"), Request("Well,", 5, more=feed), DEFAULT, never))
    assert talkative.model.cache.n_free == N_SLOTS


def test_an_endless_word_in_the_feed_is_cut_as_in_any_text(rig: Rig) -> None:
    seen: list[str] = []
    encode = rig.model.tokenizer.encode

    def heard(text: str, control: Collection[str] = ()) -> list[int]:
        seen.append(text)
        return encode(text, control)

    word = "a" * 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.model.tokenizer, "encode", heard)
        feed = TextFeed()
        voice = stream._Voice(rig.model, rig.prompt("preset"), Request(""), DEFAULT, lambda: None)
        text = stream._GrowingText(voice, BiStreamDecoding((), ()), "Oh a", feed)
        for char in word + " and on":
            feed.push(char)
            text.grow()
    assert "".join("".join(seen).split()) == "Oh" + "a" * MAX_WORD_CHARS + "andon"


def test_the_end_of_the_sentence_is_added_to_what_came(rig: Rig) -> None:
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.model.tokenizer, "encode", lambda text, control=(): seen.append(text) or [])
        for rest in (" there", " there!", ""):
            feed = TextFeed()
            feed.push(rest)
            feed.end()
            voice = stream._Voice(rig.model, rig.prompt("preset"), Request(""), DEFAULT, lambda: None)
            seen.append("|")
            stream._GrowingText(voice, BiStreamDecoding((), ()), "Hello", feed).grow()
    assert "".join(seen) == "|Hello there.|Hello there!|Hello."


def test_whole_sentences_do_not_wait_for_those_that_are_written(rig: Rig) -> None:
    """Of three slots, text that grows may have one; past that it is spoken when it is whole."""
    prompt = rig.prompt("preset")
    slow = speak(rig.model, prompt, Request("Well", more=TextFeed()), DEFAULT, never)
    assert isinstance(next(slow), Wait)
    feed = TextFeed()
    late = speak(rig.model, prompt, Request(TEXT[:9], 6, more=feed), DEFAULT, never)
    for text in (TEXT[9:20], TEXT[20:]):
        wait = next(late)
        assert isinstance(wait, Wait) and rig.model.cache.n_free == N_SLOTS - 1
        told: list[int] = []
        wait.tell(lambda told=told: told.append(1))  # type: ignore[misc]
        assert not told
        feed.push(text)
        assert told == [1]
    whole = pcm(speak(rig.model, prompt, Request(TEXT, 6), DEFAULT, never))
    feed.end()
    np.testing.assert_array_equal(pcm(late), whole)
    again = speak(rig.model, prompt, Request("Well", 6, more=TextFeed()), DEFAULT, never)
    wait = next(again)
    assert isinstance(wait, Wait) and rig.model.cache.n_free == N_SLOTS - 1
    told = []
    wait.tell(lambda: told.append(1))
    slow.close()
    assert told == [1] and rig.model.cache.n_free == N_SLOTS
    assert isinstance(next(again), Wait) and rig.model.cache.n_free == N_SLOTS - 1
    again.close()
    assert rig.model.cache.n_free == N_SLOTS


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "cancelled"])
def test_stopped_while_it_waits(rig: Rig, closes: bool) -> None:
    wanted = True
    feed = TextFeed()
    items = speak(rig.model, rig.prompt("prompted"), Request("Hello", more=feed), DEFAULT, lambda: not wanted)
    assert isinstance(next(items), Wait)
    assert rig.model.cache.n_free == N_SLOTS - 1
    if closes:
        items.close()
    else:
        wanted = False
        feed.push(" there")
        assert list(items) == []
    assert rig.model.cache.n_free == N_SLOTS
