"""Speech that begins before its text has ended: the model's interleaved mode, with text piece by piece."""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from speaking import N_SLOTS, NEIGHBOUR, SENTENCE, Rig, Stepped, Watched, n_empty, pcm, spoken

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.checkpoint.weights import load_model_directory
from telephony_tts.engines.cosyvoice2.core import stream
from telephony_tts.engines.cosyvoice2.core.scheduler import Lane
from telephony_tts.engines.cosyvoice2.model.config import EOS, FILL
from telephony_tts.engines.cosyvoice2.text import prompting
from telephony_tts.engines.cosyvoice2.text.generation import BiStreamDecoding
from telephony_tts.engines.cosyvoice2.text.prompting import Request
from telephony_tts.engines.words import MAX_WORD_CHARS
from telephony_tts.runtime.errors import EngineError, EngineUnavailable

pytestmark = pytest.mark.slow

bi_stream = functools.partial(BiStreamDecoding, n_mix_text=5, n_mix_speech=15)
"""With the official mix."""
TEXT = f"{SENTENCE} {NEIGHBOUR}"


@pytest.fixture
def talkative(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Makes the fill id, and the end-of-speech id when it is allowed, likely."""
    bias = rig.model.lm.head_bias.clone()
    bias[FILL] += 3.0
    bias[6561] += 6.0
    monkeypatch.setattr(rig.model.lm, "head_bias", bias)
    return rig


def words(text: str) -> list[str]:
    """Each with the space before it, as a bot's text settles."""
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


def given(rig: Rig, voice: str, request: Request, rest: str) -> Pcm:
    """The audio if all text is there before the first step."""
    stepped = Stepped(rig)
    key = stepped.say(request, voice)
    stepped.push(key, rest, last=True)
    stepped.run()
    assert stepped.is_empty()
    return stepped.pcm(key)


def trickled(rig: Rig, voice: str, request: Request, pieces: list[str], order: random.Random) -> Pcm:
    """The audio if pieces are pushed at times that `order` chooses, and whenever the model waits."""
    stepped = Stepped(rig)
    key = stepped.say(request, voice)
    left = list(pieces)
    has_ended = False

    def push() -> None:
        nonlocal has_ended
        if left:
            stepped.push(key, left.pop(0))
        elif not has_ended:
            has_ended = True
            stepped.push(key, "", last=True)

    while key not in stepped.ended:
        if not stepped.core.step(order.choice(list(Lane))):
            assert not has_ended, "it waits although it has all text"
            push()
        elif order.random() < 0.03:
            push()
    assert stepped.is_empty()
    return stepped.pcm(key)


@pytest.mark.parametrize("voice", ["preset", "prompted"])
def test_audio_does_not_depend_on_when_text_comes(talkative: Rig, voice: str) -> None:
    """At once, or word by word at any time."""
    first, *rest = words("Thank you for calling, how can I help?")
    request = Request(first, 7, grows=True)
    at_once = given(talkative, voice, request, "".join(rest))
    assert len(at_once) > 24_000
    for i in range(3):
        np.testing.assert_array_equal(trickled(talkative, voice, request, rest, random.Random(i)), at_once)
    assert n_empty(talkative.model.cache) == N_SLOTS


@pytest.mark.parametrize("voice", ["preset", "prompted"])
def test_the_tokens_are_those_of_the_models_interleaved_mode(talkative: Rig, voice: str) -> None:
    model, prompt = talkative.model, talkative.prompt(voice)
    heard = given(talkative, voice, Request(SENTENCE[:5], 3, grows=True), SENTENCE[5:])
    decoding = bi_stream(prompt.transcript_ids, prompt.speech_tokens)
    for piece in (SENTENCE[:5], SENTENCE[5:]):
        decoding.push_text(model.tokenizer.encode(piece))
    decoding.end_text()
    tokens = talkative.speech_tokens(prompt, decoding, seed=3)
    assert len(heard) == 960 * len(tokens)
    audio = talkative.audio(voice, prompt, tokens, seed=3)
    assert np.abs(heard / 32767.0 - audio.numpy()).max() < 2e-3


def test_the_mix_ratio_of_the_checkpoint_decides_how_text_and_speech_alternate(
    model_dir: Path, tmp_path: Path
) -> None:
    """cosyvoice2.yaml says how many text tokens a run of speech takes, and how many speech ids a run has."""
    changed = tmp_path / "model"
    shutil.copytree(model_dir, changed)
    settings = changed / "cosyvoice2.yaml"
    text = settings.read_text(encoding="utf-8")
    assert "mix_ratio: [5, 15]" in text
    settings.write_text(text.replace("mix_ratio: [5, 15]", "mix_ratio: [4, 9]"), encoding="utf-8")
    rig = Rig(changed)
    rig.model.lm.head_bias[FILL] = rig.model.lm.head_bias[EOS] = -100.0
    runner = Watched(rig)
    stepped = Stepped(rig, runner=runner)
    key = stepped.say(Request("", 3, grows=True), "preset")
    stepped.push(key, TEXT)
    stepped.run()
    n_text = len(rig.model.tokenizer.encode(TEXT))
    fed = [[len(segment.ids) for segment in feed.segments] for feed in runner.feeds]
    assert fed == [[1, 4], *[[4]] * (n_text // 4 - 1)], "the start token stands before the first run alone"
    assert int(rig.model.sampler.n_drawn[0]) == n_text // 4 * (9 + 1), "nine ids of speech and the fill id each"
    stepped.cancel(key)
    stepped.run()
    assert stepped.is_empty()


def test_audio_comes_before_the_text_has_ended(rig: Rig) -> None:
    """For a voice without a prompt five text tokens are enough for the first fifteen speech ids."""
    stepped = Stepped(rig)
    key = stepped.say(Request("", 1, grows=True), "preset")
    n_pushed = 0
    for word in words(TEXT):
        stepped.run()
        if stepped.heard[key]:
            break
        stepped.push(key, word)
        n_pushed += 1
    assert stepped.heard[key] and n_pushed < len(words(TEXT)) - 3
    stepped.cancel(key)
    stepped.run()
    assert stepped.is_empty()


def test_little_is_held_back_while_it_waits(talkative: Rig) -> None:
    """All ids drawn are voiced, except a block of a second, the lookahead and the vocoder's 20 frames."""
    stepped = Stepped(talkative)
    key = stepped.say(Request("", 2, grows=True), "preset")
    n_heard = n_waits = most = 0
    pieces = words(f"{TEXT} {TEXT}")
    while key not in stepped.ended:
        stepped.run()
        n_heard = len(pcm(stepped.heard[key]))
        if key in stepped.ended:
            break
        n_waits += 1
        most = max(most, int(talkative.model.sampler.n_drawn[0]) - n_heard // 960)
        stepped.push(key, pieces.pop(0) if pieces else "", last=not pieces)
    assert n_heard > 6 * 24_000 and n_waits > 20
    assert most <= 25 + 3 + 10 + n_heard // 960 // 15, "fill ids are drawn and not heard"


def test_an_instruction_waits_for_the_whole_sentence(rig: Rig) -> None:
    stepped = Stepped(rig)
    key = stepped.say(Request(SENTENCE[:20], 2, instruct="Speak slowly.", grows=True))
    stepped.run()
    stepped.push(key, SENTENCE[20:])
    assert stepped.run() == 0 and stepped.began == [], "it has no slot before its text is whole"
    stepped.push(key, "", last=True)
    stepped.run()
    whole = spoken(rig, Request(SENTENCE, 2, instruct="Speak slowly."))
    np.testing.assert_array_equal(stepped.pcm(key), whole)


@pytest.mark.parametrize("voice", ["preset", "prompted"])
@pytest.mark.parametrize("text", ["", " ", "?", "yes", "No!"])
@pytest.mark.parametrize("is_late", [False, True])
def test_text_that_ends_at_once(talkative: Rig, voice: str, text: str, is_late: bool) -> None:
    """Before the first step, or after it has a slot."""
    stepped = Stepped(talkative)
    key = stepped.say(Request(text, 4, grows=True), voice)
    if is_late:
        stepped.run()
        assert stepped.began == [key] and key not in stepped.ended
    stepped.push(key, "", last=True)
    stepped.run()
    assert len(stepped.pcm(key)) > 0 or not text.strip().isalnum()
    assert key in stepped.ended and stepped.is_empty()


def test_more_text_than_can_be_said_is_an_error_and_not_silence(
    talkative: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_SPEECH_TOKENS", 60)
    stepped = Stepped(talkative)
    key = stepped.say(Request("Well,", 5, grows=True), "preset")
    stepped.push(key, f" {TEXT}" * 3, last=True)
    stepped.run()
    with pytest.raises(EngineError, match="did not come to an end"):
        stepped.pcm(key)
    assert len(pcm(stepped.heard[key])) > 0.4 * 24_000
    assert stepped.is_empty()


def test_endless_speech_is_voiced_up_to_its_limit_in_any_lane(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids may be far ahead of the audio when the limit is reached."""
    bias = rig.model.lm.head_bias.clone()
    bias[FILL] = bias[6561] = -100.0
    monkeypatch.setattr(rig.model.lm, "head_bias", bias)
    heard = []
    for lane in (Lane.ALL, Lane.TOKENS):
        stepped = Stepped(rig)
        key = stepped.say(Request(TEXT[:9], 3, grows=True), "preset")
        stepped.push(key, "", last=True)
        stepped.run(lanes=lambda lane=lane: lane)  # type: ignore[misc]
        with pytest.raises(EngineError, match=r"did not end|did not come to an end"):
            stepped.pcm(key)
        assert stepped.is_empty()
        heard.append(pcm(stepped.heard[key]))
    np.testing.assert_array_equal(*heard)
    assert len(heard[0]) > 24_000


def test_an_endless_word_in_the_feed_is_cut_as_in_any_text(rig: Rig) -> None:
    seen: list[str] = []
    encode = rig.model.tokenizer.encode

    def heard(text: str, control: Collection[str] = ()) -> list[int]:
        seen.append(text)
        return encode(text, control)

    word = "a" * 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.model.tokenizer, "encode", heard)
        text = prompting.GrowingText(bi_stream((), ()), rig.model.tokenizer, frozenset(), "Oh a")
        for char in word + " and on":
            text.push(char, last=False)
    assert "".join("".join(seen).split()) == "Oh" + "a" * MAX_WORD_CHARS + "andon"


def test_an_end_mark_is_added_to_the_pushed_text(rig: Rig) -> None:
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.model.tokenizer, "encode", lambda text, control=(): seen.append(text) or [])
        for rest in (" there", " there!", ""):
            seen.append("|")
            text = prompting.GrowingText(bi_stream((), ()), rig.model.tokenizer, frozenset(), "Hello")
            text.push(rest, last=True)
    assert "".join(seen) == "|Hello there.|Hello there!|Hello."


def test_text_after_its_end_is_dropped(rig: Rig) -> None:
    """Before it has a slot, and after."""
    alone = given(rig, "preset", Request("Well", 6, grows=True), " then.")
    for n_steps in (0, 10**9):
        stepped = Stepped(rig)
        key = stepped.say(Request("Well", 6, grows=True), "preset")
        stepped.run(n_steps)
        stepped.push(key, " then.", last=True)
        for last in (False, True):
            stepped.push(key, " And more.", last=last)
        stepped.run()
        stepped.push(key, " And more.")
        np.testing.assert_array_equal(stepped.pcm(key), alone)


def test_whole_sentences_do_not_wait_for_growing_ones(rig: Rig) -> None:
    """Growing text may hold one of three slots. More growing text waits until it is whole."""
    stepped = Stepped(rig)
    slow = stepped.say(Request("Well", grows=True), "preset")
    stepped.run()
    assert stepped.began == [slow] and n_empty(rig.model.cache) >= N_SLOTS - 1
    whole_text = "Thank you for calling. It left."
    late = stepped.say(Request(whole_text[:9], 6, grows=True), "preset")
    for text in (whole_text[9:20], whole_text[20:]):
        stepped.run()
        assert stepped.began == [slow] and stepped.core.slots.n_free == N_SLOTS - 1
        stepped.push(late, text)
    whole = stepped.say(Request(whole_text, 6), "preset")
    stepped.run()
    assert stepped.began == [slow, whole] and whole in stepped.ended
    stepped.push(late, "", last=True)
    stepped.run()
    np.testing.assert_array_equal(stepped.pcm(late), stepped.pcm(whole))
    assert [timing for chunk in stepped.heard[late] for timing in chunk.timings] != []
    again = stepped.say(Request("Well", 6, grows=True), "preset")
    stepped.run()
    assert again not in stepped.began and stepped.core.slots.n_free == N_SLOTS - 1
    stepped.cancel(slow)
    stepped.run()
    assert slow in stepped.ended and stepped.began[-1] == again and stepped.core.slots.n_free == N_SLOTS - 1
    stepped.cancel(again)
    stepped.run()
    assert stepped.is_empty()


@pytest.mark.parametrize("text", ["Hello", ""])
def test_a_cancel_while_it_waits_for_text(rig: Rig, text: str) -> None:
    stepped = Stepped(rig)
    key = stepped.say(Request(text, grows=True))
    stepped.run()
    assert stepped.began == [key] and stepped.core.slots.n_free == N_SLOTS - 1
    stepped.cancel(key)
    stepped.push(key, " there")
    assert stepped.run() == 1
    assert stepped.heard[key] == [] and stepped.ended[key].error is None
    assert stepped.is_empty()


@pytest.mark.parametrize("mix", ["[5]", "[5, 15, 15]", "[0, 15]", "[5, 0]", "[5, -1]"])
def test_an_invalid_mix_ratio_is_refused(model_dir: Path, tmp_path: Path, mix: str) -> None:
    changed = tmp_path / "model"
    shutil.copytree(model_dir, changed)
    settings = changed / "cosyvoice2.yaml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("mix_ratio: [5, 15]", f"mix_ratio: {mix}"), encoding="utf-8")
    with pytest.raises(EngineUnavailable, match=r"llm\.mix_ratio"):
        load_model_directory(changed)
