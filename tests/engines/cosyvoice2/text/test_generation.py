"""What the language model is fed and when speech ends, with made-up draws."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from telephony_tts.engines.cosyvoice2.model.config import EOS, FILL, N_SPEECH_TOKENS, UNUSED_STOP
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable, TokenSegment
from telephony_tts.engines.cosyvoice2.text import generation
from telephony_tts.engines.cosyvoice2.text.generation import (
    SOS,
    TASK,
    BiStreamDecoding,
    LmFeed,
    SentenceDecoding,
    whole_prompt,
)
from telephony_tts.runtime.errors import EngineError

bi_stream = functools.partial(BiStreamDecoding, n_mix_text=5, n_mix_speech=15)
"""With the official mix."""
STOPS = (EOS, UNUSED_STOP, FILL)
Choose = Callable[[LmFeed], int]


def waits_for_text(decoding: BiStreamDecoding) -> bool:
    return decoding.next_feed() is None and not decoding.done


def text(*ids: int) -> TokenSegment:
    return TokenSegment(EmbeddingTable.TEXT, ids)


def speech(*ids: int) -> TokenSegment:
    return TokenSegment(EmbeddingTable.SPEECH, ids)


def test_the_whole_prompt_is_laid_out_in_order() -> None:
    assert whole_prompt([1, 2], [3], [7, 8]) == (SOS, text(1, 2, 3), TASK, speech(7, 8))
    assert whole_prompt([], [3], []) == (SOS, text(3), TASK)


@given(st.integers(0, 2), st.lists(st.lists(st.sampled_from([5, 6, *STOPS]) | st.just(7), max_size=30), max_size=3))
def test_ids_in_a_row_are_taken_as_one_by_one(n_text: int, runs: list[list[int]]) -> None:
    together, apart = (SentenceDecoding([1], [2] * n_text, [9]) for _ in range(2))
    for ids in runs:
        one_by_one = [each for each in map(apart.consume, ids) if each is not None]
        assert together.consume_all(ids) == one_by_one
        assert (together.done, together.n_out) == (apart.done, apart.n_out)
        assert together.next_feed() == apart.next_feed()
        later = tuple(apart.banned_at(apart.n_out + n) for n in range(4))
        assert together.banned_from(together.n_out, 4) == later


def test_a_sentence_feeds_its_prompt_and_then_each_id() -> None:
    decoding = SentenceDecoding([1], [2, 3], [9])
    first = LmFeed(whole_prompt([1], [2, 3], [9]), banned=(EOS,), n_banned=4)
    assert decoding.next_feed() == decoding.next_feed() == first
    assert decoding.consume(100) == 100
    assert decoding.next_feed() == LmFeed((speech(100),), banned=(EOS,), n_banned=3)


def test_end_of_speech_waits_for_the_shortest_length_and_speech_for_the_longest() -> None:
    decoding = SentenceDecoding([1] * 50, [2, 3, 4], [])
    bans, rests = [], []
    while not decoding.done:
        feed = decoding.next_feed()
        assert feed is not None
        bans.append(feed.banned)
        rests.append(feed.n_banned)
        decoding.consume(5)
    assert bans == [(EOS,)] * 6 + [()] * 54
    assert bans == [decoding.banned_at(i) for i in range(60)] and rests == [6, 5, 4, 3, 2, *[1] * 55]
    assert decoding.next_feed() is None
    assert decoding.consume(5) is None
    assert decoding.n_out == 60


@pytest.mark.parametrize("stop", STOPS)
def test_every_stop_id_stops_and_is_not_heard(stop: int) -> None:
    decoding = SentenceDecoding([], [2, 3, 4], [])
    decoding.consume(5)
    assert decoding.consume(stop) is None
    assert decoding.done
    assert decoding.n_out == 1


def test_text_without_tokens_is_done_at_once() -> None:
    assert SentenceDecoding([1, 2], [], [3]).done
    decoding = bi_stream([1, 2], [3])
    assert waits_for_text(decoding)
    decoding.end_text()
    assert not waits_for_text(decoding)
    assert decoding.done
    assert decoding.next_feed() is None


def test_which_feeds_rows_can_share() -> None:
    assert LmFeed((speech(4),)).speech_id == 4
    assert [LmFeed(parts).speech_id for parts in ((speech(4, 5),), (text(4),), (SOS, speech(4)))] == [None] * 3


def run(
    decoding: BiStreamDecoding, script: list[int], choose: Choose, all_at_once: bool
) -> tuple[list[LmFeed], list[int]]:
    """The feeds and the speech of a decoding whose text is `script`, pushed at the start or when it waits."""
    left = list(script)
    feeds, said = [], []
    if all_at_once:
        decoding.push_text(left)
        left.clear()
        decoding.end_text()
    while not decoding.done:
        feed = decoding.next_feed()
        if feed is None:
            if decoding.done:
                break
            assert waits_for_text(decoding)
            if left:
                decoding.push_text([left.pop(0)])
            else:
                decoding.end_text()
            continue
        assert decoding.next_feed() == feed
        feeds.append(feed)
        heard = decoding.consume(choose(feed) if feed.forced is None else feed.forced)
        if heard is not None:
            said.append(heard)
    return feeds, said


def drawing(seed: int, p_fill: float = 0.02, p_eos: float = 0.05) -> Choose:
    rng = random.Random(seed)

    def choose(feed: LmFeed) -> int:
        for stop, p in ((FILL, p_fill), (EOS, p_eos)):
            if stop not in feed.banned and rng.random() < p:
                return stop
        return rng.randrange(N_SPEECH_TOKENS)

    return choose


def test_five_text_tokens_for_fifteen_speech_ids() -> None:
    decoding = bi_stream([], [])
    feeds, said = run(decoding, list(range(12)), lambda feed: EOS if EOS not in feed.banned else 1, all_at_once=False)
    assert feeds[0].segments == (SOS, text(0, 1, 2, 3, 4))
    assert [i for i, feed in enumerate(feeds) if feed.forced == FILL] == [15, 31]
    assert feeds[16].segments == (text(5, 6, 7, 8, 9),)
    # The last id before the fill id is fed again with the rest of the text.
    assert feeds[32].segments == (speech(1), text(10, 11), TASK)
    assert feeds[32].banned == (UNUSED_STOP, FILL)
    assert all(feed.banned == (EOS, UNUSED_STOP) for feed in feeds[:32])
    assert said == [1] * 30


def test_prompt_speech_is_interleaved_with_prompt_text() -> None:
    decoding = bi_stream([1, 2, 3, 4, 5, 6, 7, 8], list(range(100, 120)))
    decoding.push_text([9])
    assert waits_for_text(decoding)
    decoding.push_text([10])
    feed = decoding.next_feed()
    assert feed is not None
    first, rest = speech(*range(100, 115)), speech(*range(115, 120))
    assert feed.segments == (SOS, text(1, 2, 3, 4, 5), first, text(6, 7, 8, 9, 10), rest)
    for _ in range(10):
        assert feed.forced is None
        decoding.consume(5)
        feed = decoding.next_feed()
        assert feed is not None
    # 20 ids of the prompt and 10 of speech fill two runs of 15.
    assert feed.forced == FILL


@given(
    st.integers(0, 30), st.integers(0, 80), st.integers(1, 40), st.booleans(), st.floats(0, 0.3), st.integers(0, 2**32)
)
@example(n_prompt_text=0, n_prompt=0, n_text=5, keep=False, p_fill=0.25, seed=1)  # the fill id comes first, then speech
def test_feeds_do_not_depend_on_when_text_arrives_and_they_end(
    n_prompt_text: int, n_prompt: int, n_text: int, keep: bool, p_fill: float, seed: int
) -> None:
    prompt_text, script = list(range(n_prompt_text)), list(range(100, 100 + n_text))
    prompt = list(range(N_SPEECH_TOKENS - n_prompt, N_SPEECH_TOKENS))

    def once(all_at_once: bool) -> tuple[list[LmFeed], list[int]]:
        decoding = bi_stream(prompt_text, prompt, keep_prompt=keep)
        result = run(decoding, script, drawing(seed, p_fill, p_eos=0.6), all_at_once)
        assert decoding.n_text_taken == n_text
        assert decoding.n_speech == len(result[1]) <= 20 * n_text + 15
        return result

    feeds, said = once(all_at_once=True)
    assert (feeds, said) == once(all_at_once=False)
    assert all(0 <= item < N_SPEECH_TOKENS for item in said)
    # All text is fed in order. Only the feed before the last fill id may be fed twice.
    fed = [(segment.table, item) for feed in feeds for segment in feed.segments for item in segment.ids]
    assert fed.count((EmbeddingTable.CONTROL, 1)) == 1
    assert fed.count((EmbeddingTable.CONTROL, 0)) == 1 + (len(feeds) > 1 and feeds[1].segments[0] == SOS)
    distinct = list(dict.fromkeys(item for table, item in fed if table is EmbeddingTable.TEXT))
    assert distinct == prompt_text + script
    if keep:
        assert {item for table, item in fed if table is EmbeddingTable.SPEECH} >= set(prompt)


def test_a_voice_prompt_longer_than_the_text_is_kept_or_dropped() -> None:
    prompt = list(range(100, 140))
    for keep, expected in (
        (True, whole_prompt([1, 2, 3, 4], [5, 6], prompt)),
        (False, (SOS, text(1, 2, 3, 4, 5), speech(*range(100, 115)), text(6), TASK)),
    ):
        decoding = bi_stream([1, 2, 3, 4], prompt, keep_prompt=keep)
        decoding.push_text([5, 6])
        decoding.end_text()
        feed = decoding.next_feed()
        assert feed is not None
        assert feed.segments == expected
        assert feed.banned == ((EOS,) if keep else (UNUSED_STOP, FILL))


def test_text_that_ends_before_the_first_feed_is_a_sentence() -> None:
    """The reference feeds the task id after it as well, but has no shortest length, and any stop id is an error."""
    decoding = bi_stream([1, 2], [])
    decoding.push_text([5])
    assert waits_for_text(decoding)
    decoding.end_text()
    feed = decoding.next_feed()
    assert feed is not None and feed.segments == whole_prompt([1, 2], [5], ()) and feed.banned == (EOS,)
    decoding.consume(UNUSED_STOP)
    assert decoding.done


def test_speech_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = bi_stream([], [], keep_prompt=False)
    with pytest.raises(EngineError, match=r"did not end after 75 tokens for 3 of text"):
        run(decoding, [1, 2, 3], lambda feed: 5, all_at_once=True)
    assert decoding.n_speech == 75
    monkeypatch.setattr(generation, "MAX_TOKENS_PER_TEXT", 1)
    decoding = bi_stream([], [])
    with pytest.raises(EngineError, match="after 25 tokens for 10 of text"):
        run(decoding, [1] * 50, lambda feed: 5, all_at_once=True)


@pytest.mark.parametrize(("n_text", "drawn"), [(5, EOS), (5, UNUSED_STOP), (3, FILL), (3, UNUSED_STOP)])
def test_an_id_out_of_place_is_an_error(n_text: int, drawn: int) -> None:
    """Three text tokens are all of the text; five are enough to speak before its end."""
    decoding = bi_stream([], [], keep_prompt=False)
    decoding.push_text(range(n_text))
    decoding.end_text()
    feed = decoding.next_feed()
    assert feed is not None
    assert drawn in feed.banned
    with pytest.raises(EngineError, match=f"drew the id {drawn}"):
        decoding.consume(drawn)


def test_no_text_after_its_end() -> None:
    decoding = bi_stream([], [])
    decoding.end_text()
    with pytest.raises(ValueError, match="after end_text"):
        decoding.push_text([1])
