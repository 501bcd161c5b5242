"""How text is cut and laid out for CosyVoice-300M."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.engines.cosyvoice2.checkpoint.random_300m import write_ranks
from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE_300M
from telephony_tts.engines.cosyvoice2.model.file_names import RANKS_FILE
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable
from telephony_tts.engines.cosyvoice2.profile import WHOLE
from telephony_tts.engines.cosyvoice2.text.prompting import (
    CLAUSES_S,
    FIRST_CLAUSES_S,
    GROWTH,
    LONE_CLAUSE_S,
    Request,
    clause_pieces,
    cut,
    decoding_of,
)
from telephony_tts.engines.cosyvoice2.text.whisper_tokenizer import WhisperTokenizer
from telephony_tts.engines.cosyvoice2.text.word_clock import spoken_s
from telephony_tts.engines.words import words


@dataclass(frozen=True)
class Preset:
    transcript_ids: tuple[int, ...] = ()
    speech_tokens: tuple[int, ...] = ()
    n_flow_tokens: int = 0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WhisperTokenizer:
    path = tmp_path_factory.mktemp("ranks")
    write_ranks(path / RANKS_FILE, [" you", "thank"])
    return WhisperTokenizer(path)


def said(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in clause_pieces(text)]


def test_the_first_piece_is_short_and_later_ones_are_longer() -> None:
    assert said("Thank you for calling, how can I help you today?") == [
        "Thank you for calling,", "how can I help you today?"
    ]  # fmt: skip
    assert said("It left. It should arrive tomorrow, or on Thursday at the latest; if not, call us. Yes.") == [
        "It left. It should arrive tomorrow,", "or on Thursday at the latest; if not, call us. Yes."
    ]  # fmt: skip
    assert said("您好，感谢您的来电。请问有什么可以帮您的吗？") == ["您好，感谢您的来电。", "请问有什么可以帮您的吗？"]


def test_a_piece_of_several_clauses_grows_with_the_one_before() -> None:
    """What is computed while a short piece is heard must be short too. A clause is not cut for that."""
    lengths_s = [spoken_s(piece) for piece in said("call us, " * 30)]
    assert FIRST_CLAUSES_S <= lengths_s[0] < 2 and max(lengths_s) > 4
    assert all(after <= GROWTH * before for before, after in itertools.pairwise(lengths_s))
    long = "or on Thursday of the week after that one"
    assert said(f"Call us on Tuesday, {long}, yes, {long}, yes.") == [
        "Call us on Tuesday,", f"{long},", f"yes, {long}, yes."
    ]  # fmt: skip


def test_a_short_text_is_one_piece() -> None:
    assert said("Hello there.") == ["Hello there."]
    assert said("Hi. Yes. No.") == ["Hi. Yes. No."]
    assert said("  ") == said("...") == []


def test_a_short_end_joins_the_piece_before() -> None:
    assert said("Your parcel left the depot on Tuesday, yes.") == ["Your parcel left the depot on Tuesday, yes."]


PARTS = ["call", "Tuesday", "a", "你", "12", ",", ".", "? ", "! ", " ", "…", "x" * 60]


@given(st.lists(st.sampled_from(PARTS), max_size=60))
def test_pieces_keep_every_word_and_have_bounds(parts: list[str]) -> None:
    text = " ".join(parts)
    spans = clause_pieces(text)
    kept = [word for start, end in spans for word in words(text[start:end])]
    assert len(kept) >= len(words(text)), "a word is lost"
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    for start, end in spans:
        length_s = spoken_s(text[start:end])
        # A part of a clause that is cut by its letters may be said in a little more than its share.
        assert 0 < length_s <= max(CLAUSES_S + FIRST_CLAUSES_S, LONE_CLAUSE_S) + 2


def test_a_language_tag_stands_before_each_piece(tokenizer: WhisperTokenizer) -> None:
    text = " <|en|>Thank you for calling, how can I help you today?"
    control = frozenset({"<|en|>", "<|zh|>"})
    assert list(cut(text, WHOLE, tokenizer, control)) == [
        (7, 30, "<|en|>Thank you for calling,"), (30, len(text), "<|en|>how can I help you today?")
    ]  # fmt: skip
    (_, _, plain), *_ = cut(text, WHOLE, tokenizer)
    assert plain.startswith("<|en|>Thank"), "a tag that is not allowed is text"
    assert len(list(cut(text, WHOLE, tokenizer))) == 2


def tables(decoding: object) -> list[str]:
    return [segment.table.value for segment in decoding.next_feed().segments]  # type: ignore[attr-defined]


def test_the_speaker_comes_first_and_the_text_after_it(tokenizer: WhisperTokenizer) -> None:
    voice = Preset((1, 2), (7, 8, 9))
    decoding = decoding_of(tokenizer, voice, Request(""), "thank you", COSYVOICE_300M)
    assert tables(decoding) == ["control", "speaker", "text", "control", "speech"]
    feed = decoding.next_feed()
    assert feed is not None and feed.segments[2].ids == (1, 2, *tokenizer.encode("thank you"))
    assert feed.banned == (4096,) and decoding.max_len == 20 * len(tokenizer.encode("thank you"))
    assert decoding.consume(4095) == 4095 and decoding.consume(4096) is None and decoding.done


@pytest.mark.parametrize(
    ("instruct", "end", "spelt"),
    [
        ("Speak slowly.", "<endofprompt>", "Speak slowly.<endofprompt>"),
        ("Speak slowly.", "<|endofprompt|>", "Speak slowly.<|endofprompt|>"),
        ("Speak slowly.<|endofprompt|>", "<endofprompt>", "Speak slowly.<|endofprompt|>"),
        (" Speak slowly.<endofprompt> ", "<|endofprompt|>", "Speak slowly.<endofprompt>"),
    ],
)
def test_an_instruction_replaces_the_speaker(
    tokenizer: WhisperTokenizer, instruct: str, end: str, spelt: str
) -> None:
    """Its end is plain text, and the text after it alone decides the length."""
    request = Request("", instruct=instruct, end_of_instruction=end)
    decoding = decoding_of(tokenizer, Preset((1,), (7,)), request, "thank you", COSYVOICE_300M)
    assert tables(decoding) == ["control", "text", "control"]
    feed = decoding.next_feed()
    assert feed is not None
    text = next(segment for segment in feed.segments if segment.table is EmbeddingTable.TEXT)
    assert text.ids == (*tokenizer.encode(spelt), *tokenizer.encode("thank you"))
    assert decoding.min_len == 2 * len(tokenizer.encode("thank you"))
