"""The language model's positions of a voice's transcript are fed once, and later utterances begin with a copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from speaking import Rig
from torch import Tensor

from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt
from telephony_tts.engines.cosyvoice2.model.lm.lm import KvCache, LanguageModel
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.engines.cosyvoice2.profile import DEFAULT
from telephony_tts.engines.cosyvoice2.settings import INT8, Precision
from telephony_tts.engines.cosyvoice2.text.generation import SOS, TASK, LmFeed, SentenceDecoding
from telephony_tts.engines.kernels import library

pytestmark = [
    pytest.mark.slow,  # it runs a compiler
    pytest.mark.skipif(not library.available(), reason="no C++ compiler"),
]
VOICE = "prompted"


@pytest.fixture(scope="module")
def int8_rig(model_dir: Path) -> Rig:
    return Rig(model_dir, precision=Precision(lm=INT8))


@pytest.fixture
def n_fed(int8_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Positions of each call of the language model."""
    calls: list[int] = []
    lm = int8_rig.model.lm
    assert isinstance(lm, LanguageModel)
    extend = lm.extend

    def counted(x: Tensor, slot: int, cache: KvCache) -> Tensor:
        calls.append(len(x))
        return extend(x, slot, cache)

    monkeypatch.setattr(lm, "extend", counted)
    yield calls
    for slot in range(int8_rig.model.cache.n_slots):
        int8_rig.model.cache.clear(slot)


def feed_of(rig: Rig, prompt: SpeakerPrompt, text: str) -> LmFeed:
    decoding = SentenceDecoding(prompt.transcript_ids, rig.model.tokenizer.encode(text), prompt.speech_tokens)
    feed = decoding.next_feed()
    assert feed is not None
    return feed


def fed(rig: Rig, prompt: SpeakerPrompt, feed: LmFeed, slot: int = 0) -> tuple[list[int], Tensor]:
    """The id drawn after the feed in an empty slot, and the slot's keys and values."""
    rig.model.cache.clear(slot)
    track = rig.runner.open(slot, 7, prompt, 1.0, DEFAULT)
    drawn = None
    while drawn is None:
        (drawn,) = rig.runner.prefill([track], [feed])
    assert track.n_fed == 0 and rig.model.cache.lengths[slot] == feed.n_positions
    cache = rig.model.cache
    assert isinstance(cache, KvCache)
    return drawn.read(), cache.data[:, :, slot].clone()


def test_later_utterances_begin_with_a_copy_of_the_same_bits(int8_rig: Rig, n_fed: list[int]) -> None:
    speaking, other = int8_rig.prompt(VOICE), int8_rig.prompt(VOICE)
    n = 1 + len(speaking.transcript_ids)
    assert n > 1
    fed(int8_rig, speaking, feed_of(int8_rig, speaking, "Good morning."))
    feed = feed_of(int8_rig, speaking, "Your parcel left the depot.")
    n_fed.clear()
    for slot in (0, 1):
        ids, kept = fed(int8_rig, speaking, feed, slot)
        expected_ids, expected = fed(int8_rig, other, feed, 2)  # the same voice, made ready again: nothing is kept
        other = int8_rig.prompt(VOICE)
        assert ids == expected_ids and torch.equal(kept, expected)
    assert n_fed == [feed.n_positions - n, feed.n_positions] * 2


def test_another_beginning_is_fed(int8_rig: Rig, n_fed: list[int]) -> None:
    prompt = int8_rig.prompt(VOICE)
    plain = feed_of(int8_rig, prompt, "Good morning.")
    fed(int8_rig, prompt, plain)
    n_fed.clear()
    first = (prompt.transcript_ids[0] + 1) % 100
    words = TokenSegment(EmbeddingTable.TEXT, (first, *prompt.transcript_ids[1:], 5))
    for feed in (LmFeed((SOS, words, TASK)), LmFeed((words,)), LmFeed((SOS, TASK)), LmFeed((TASK, words))):
        fed(int8_rig, prompt, feed)
        assert n_fed.pop() == feed.n_positions
    instruct = int8_rig.prompt(VOICE)
    fed(int8_rig, instruct, LmFeed((SOS, words, TASK)))
    assert instruct.kept_transcript.positions is None


def test_a_slot_with_positions_is_not_begun_again(int8_rig: Rig, n_fed: list[int]) -> None:
    prompt = int8_rig.prompt(VOICE)
    feed = feed_of(int8_rig, prompt, "Good morning.")
    fed(int8_rig, prompt, feed)
    track = int8_rig.runner.open(0, 7, prompt, 1.0, DEFAULT)
    n_fed.clear()
    int8_rig.runner.prefill([track], [feed])
    assert n_fed == [feed.n_positions] and int8_rig.model.cache.lengths[0] == 2 * feed.n_positions


def test_a_slot_with_positions_leaves_nothing_for_others(int8_rig: Rig, n_fed: list[int]) -> None:
    prompt, other = int8_rig.prompt(VOICE), int8_rig.prompt(VOICE)
    feed = feed_of(int8_rig, prompt, "Good morning.")
    fed(int8_rig, other, feed)
    track = int8_rig.runner.open(0, 7, prompt, 1.0, DEFAULT)
    int8_rig.runner.prefill([track], [feed])
    assert prompt.kept_transcript.positions is None


def test_a_failed_feed_can_be_tried_again(
    int8_rig: Rig, n_fed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, other = int8_rig.prompt(VOICE), int8_rig.prompt(VOICE)
    feed = feed_of(int8_rig, prompt, "Good morning.")
    fed(int8_rig, prompt, feed)
    int8_rig.model.cache.clear(0)
    track = int8_rig.runner.open(0, 7, prompt, 1.0, DEFAULT)
    with monkeypatch.context() as broken:
        broken.setattr(int8_rig.model.lm, "logits", lambda hidden: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            int8_rig.runner.prefill([track], [feed])
    (drawn,) = int8_rig.runner.prefill([track], [feed])
    assert drawn is not None
    ids, expected = fed(int8_rig, other, feed, 1)
    cache = int8_rig.model.cache
    assert isinstance(cache, KvCache)
    assert drawn.read() == ids and torch.equal(cache.data[:, :, 0], expected)


def test_float32_feeds_all_of_it(rig: Rig) -> None:
    """Its positions have other bits in a shorter call."""
    prompt = rig.prompt(VOICE)
    fed(rig, prompt, feed_of(rig, prompt, "Good morning."))
    assert prompt.kept_transcript.positions is None
