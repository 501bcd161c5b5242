"""One utterance's pipeline, driven without the engine around it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from speaking import N_SLOTS, NEIGHBOUR, SENTENCE, After, Rig, never, pcm
from torch import Tensor

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2 import stream
from telephony_tts.engines.cosyvoice2.generation import SentenceDecoding
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, FAST, UPSTREAM, Profile
from telephony_tts.engines.cosyvoice2.speech_model import MAX_POSITIONS
from telephony_tts.engines.cosyvoice2.stream import Request, speak
from telephony_tts.engines.cosyvoice2.voice import PromptFeatures
from telephony_tts.engines.workers import Wait
from telephony_tts.errors import EngineError


@pytest.mark.parametrize("profile", [DEFAULT, FAST, UPSTREAM], ids=["default", "fast", "upstream"])
@pytest.mark.parametrize("voice", ["preset", "prompted"])
def test_interleaved_utterances_equal_each_alone(rig: Rig, voice: str, profile: Profile) -> None:
    prompt = rig.prompt(voice, profile)
    requests = [Request(SENTENCE, seed=1), Request(NEIGHBOUR, seed=2, speed=1.2)]
    alone = [pcm(speak(rig.model, prompt, request, profile, never)) for request in requests]
    streams = [speak(rig.model, prompt, request, profile, never) for request in requests]
    heard: list[list[Chunk]] = [[], []]
    while any([heard[i].append(chunk) or True for i in (0, 1) if (chunk := next(streams[i], None)) is not None]):
        pass
    for i in (0, 1):
        np.testing.assert_array_equal(pcm(iter(heard[i])), alone[i])
    assert rig.model.cache.n_free == N_SLOTS


def test_seed_decides(rig: Rig) -> None:
    prompt = rig.prompt("prompted")
    one, again, other = (pcm(speak(rig.model, prompt, Request(SENTENCE, s), DEFAULT, never)) for s in (5, 5, 6))
    np.testing.assert_array_equal(one, again)
    assert len(one) != len(other) or not np.array_equal(one, other)


def test_cancelled_at_any_question_frees_the_slot_and_spares_the_neighbour(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = rig.prompt("prompted")
    request = Request(NEIGHBOUR, seed=2)
    alone = pcm(speak(rig.model, prompt, request, DEFAULT, never))
    monkeypatch.setattr(stream, "SOFT_CHARS", 60)
    two_pieces = Request(f"{SENTENCE} {NEIGHBOUR}")
    whole = After(10**9)
    for _ in speak(rig.model, prompt, two_pieces, DEFAULT, whole):
        pass
    n_questions = 10**9 - whole.n_left
    neighbour = speak(rig.model, prompt, request, DEFAULT, never)
    heard = [next(neighbour)]
    emit, acquire = rig.model.flow._emit, rig.model.cache.acquire
    for n in [*range(6), *range(6, n_questions, 17), *range(n_questions - 8, n_questions)]:
        cancelled = After(n)

        def emit_if_wanted(*args: Any, cancelled: After = cancelled) -> Tensor:
            assert cancelled.n_left >= 0, "a block was made after the answer"
            return emit(*args)

        def acquire_if_wanted(cancelled: After = cancelled) -> int:
            assert cancelled.n_left >= 0, "a piece was begun after the answer"
            return acquire()

        monkeypatch.setattr(rig.model.flow, "_emit", emit_if_wanted)
        monkeypatch.setattr(rig.model.cache, "acquire", acquire_if_wanted)
        for _ in speak(rig.model, prompt, two_pieces, DEFAULT, cancelled):
            pass
        assert cancelled.n_left < 0, "it ended without asking"
        assert cancelled.n_left >= -4, "it went on long after the answer"
        assert rig.model.cache.n_free == N_SLOTS - 1
    monkeypatch.undo()
    np.testing.assert_array_equal(pcm(iter([*heard, *neighbour])), alone)
    assert rig.model.cache.n_free == N_SLOTS


def test_it_asks_before_each_speech_token(rig: Rig) -> None:
    cancelled = After(10**9)
    slots = rig.model.sampler
    for _ in speak(rig.model, rig.prompt("preset"), Request(SENTENCE), DEFAULT, cancelled):
        pass
    assert 10**9 - cancelled.n_left >= int(slots.n_drawn[0]) > 20


def test_it_asks_before_each_euler_step(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of two seconds is ten steps, and none of them is taken for a caller who has spoken."""
    decoder, prompt = rig.model.flow.decoder, rig.prompt("prompted")
    step = decoder.step
    wanted, n_steps, n_most = True, 0, 0

    def counted(*args: Any, **named: Any) -> Tensor:
        nonlocal wanted, n_steps
        assert wanted, "a step was taken after the answer"
        n_steps += 1
        wanted = n_steps < n_most
        return step(*args, **named)

    def cancelled() -> bool:
        return not wanted

    monkeypatch.setattr(decoder, "step", counted)
    for profile in (DEFAULT, UPSTREAM):
        for n_most in (1, 7, 10, 14, 23, 10**6):  # read by `counted`
            wanted, n_steps = True, 0
            for _ in speak(rig.model, prompt, Request(f"{SENTENCE} {NEIGHBOUR}"), profile, cancelled):
                pass
            assert n_steps == n_most or (wanted and n_steps % 10 == 0 and 20 <= n_steps < n_most)
            assert rig.model.cache.n_free == N_SLOTS


def test_closed_at_any_chunk_frees_the_slot(rig: Rig) -> None:
    prompt = rig.prompt("prompted")
    n_chunks = sum(1 for _ in speak(rig.model, prompt, Request(SENTENCE), DEFAULT, never))
    for n in range(n_chunks + 1):
        chunks = speak(rig.model, prompt, Request(SENTENCE), DEFAULT, never)
        for _ in range(n):
            next(chunks)
        chunks.close()
        assert rig.model.cache.n_free == N_SLOTS
        assert rig.model.cache.data[:, :, :N_SLOTS].count_nonzero() == 0


def of_length(features: PromptFeatures, n: int) -> PromptFeatures:
    return replace(features, speech_tokens=features.speech_tokens[:n], mel=features.mel[: 2 * n])


@pytest.mark.parametrize(
    ("profile", "n_prompt", "n_most"),
    [(DEFAULT, n, 28 if n <= 3 else 25) for n in (0, 3, 75, 77, 78, 79, 87)] + [(FAST, n, 13) for n in (75, 78, 87)],
)
def test_first_audio_comes_early(rig: Rig, profile: Profile, n_prompt: int, n_most: int) -> None:
    prompt = rig.model.prompt(of_length(rig.features["prompted"], n_prompt), profile)
    chunks = speak(rig.model, prompt, Request(SENTENCE), profile, never)
    first = next(chunks)
    assert len(first.pcm) >= 0.1 * 24_000
    assert int(rig.model.sampler.n_drawn[0]) <= n_most
    chunks.close()
    assert n_prompt - prompt.n_flow_tokens < 25


def test_a_prompt_shorter_than_its_cut_is_kept_whole(rig: Rig) -> None:
    for n in range(30):
        prompt = rig.model.prompt(of_length(rig.features["prompted"], n), DEFAULT)
        assert prompt.n_flow_tokens == n or prompt.n_flow_tokens % 25 == 3
        assert bool(prompt.n_flow_tokens) == bool(n)


@pytest.mark.parametrize("voice", ["preset", "prompted"])
def test_the_stream_is_the_whole_utterance(rig: Rig, voice: str) -> None:
    """Against all tokens first, the flow at once from the first prompt token, and the vocoder at once."""
    model, prompt = rig.model, rig.prompt(voice)
    text = f"{SENTENCE} {NEIGHBOUR}"
    heard = pcm(speak(model, prompt, Request(text, seed=3), DEFAULT, never))
    ids = model.tokenizer.encode(text)
    decoding = SentenceDecoding(prompt.transcript_ids, ids, prompt.speech_tokens)
    tokens = rig.speech_tokens(prompt, decoding, seed=3)
    audio = rig.audio(voice, prompt, tokens, seed=3)
    assert len(tokens) > 22 + 25 + 3
    assert len(heard) == len(audio) == 960 * len(tokens)
    error = np.abs(heard / 32767.0 - audio.numpy())
    assert error.max() < 2e-3, error.max()


def test_utterances_write_nothing_into_the_voice(rig: Rig) -> None:
    prompt = rig.prompt("prompted")

    def tensors() -> list[Tensor]:
        caches = [prompt.flow.encoder, *prompt.flow.steps]
        return [tensor.clone() for cache in caches for tensor in cache.tensors()]

    before = tensors()
    pcm(speak(rig.model, prompt, Request(SENTENCE), DEFAULT, never))
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(), strict=True))


# ------------------------------------------------------------------------------ limits


def test_a_model_that_never_ends_is_ended(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(model_dir)
    rig.model.lm.head_bias[6561:] = -50.0
    prompt = rig.prompt("preset")
    n_text = len(rig.model.tokenizer.encode("no."))  # the end of the sentence is added
    assert len(pcm(speak(rig.model, prompt, Request("no"), DEFAULT, never))) == 20 * n_text * 960
    for where, name, value in ((stream, "MAX_SPEECH_TOKENS", 60), (rig.model.cache, "max_len", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            heard = []
            with pytest.raises(EngineError, match=r"did not come to an end; what it said after [23] s"):
                for chunk in speak(rig.model, prompt, Request(SENTENCE), DEFAULT, never):
                    heard.append(chunk)
            assert len(pcm(heard)) > 0.4 * 24_000
            assert rig.model.cache.n_free == N_SLOTS


def test_the_longest_piece_is_shorter_than_the_limit() -> None:
    """300 Chinese characters, slowly, 4.2 a second; and a slot holds them with 30 s of prompt and its transcript."""
    assert 25 * stream.HARD_CHARS / 4.2 <= stream.MAX_SPEECH_TOKENS <= 3000
    assert 30 * 25 + 30 * 15 + stream.HARD_CHARS + stream.MAX_SPEECH_TOKENS + 2 <= MAX_POSITIONS


@pytest.mark.parametrize("stop", [6562, 6563])
def test_any_stop_id_ends_it_and_none_is_heard(model_dir: Path, stop: int) -> None:
    rig = Rig(model_dir)
    rig.model.lm.head_bias[stop] = 50.0
    for voice in ("preset", "prompted"):
        assert list(speak(rig.model, rig.prompt(voice), Request(SENTENCE), DEFAULT, never)) == []
    assert rig.model.cache.n_free == N_SLOTS


def test_an_utterance_waits_for_a_slot(rig: Rig) -> None:
    prompt = rig.prompt("preset")
    open_ones = [speak(rig.model, prompt, Request(SENTENCE), DEFAULT, never) for _ in range(N_SLOTS)]
    first = [next(chunks) for chunks in open_ones][-1]
    late = speak(rig.model, prompt, Request(SENTENCE), DEFAULT, never)
    wait = next(late)
    assert isinstance(wait, Wait) and isinstance(first, Chunk)
    told: list[int] = []
    wait.tell(lambda: told.append(1))
    assert not told and isinstance(next(late), Wait)
    last = open_ones.pop()
    last_pcm = pcm([first, *last])
    assert told == [1]
    np.testing.assert_array_equal(pcm(late), last_pcm)
    wait.tell(lambda: told.append(2))
    assert told == [1, 2], "a slot is free: it is told at once"
    for chunks in open_ones:
        chunks.close()
    assert rig.model.cache.n_free == N_SLOTS


def test_an_instruction_is_heeded_and_typed_control_tokens_are_text(rig: Rig) -> None:
    prompt = rig.prompt("prompted")
    tokenizer = rig.model.tokenizer
    end = tokenizer.special_ids["<|endofprompt|>"]
    for instruct in ("Speak slowly.", "Speak slowly.<|endofprompt|>"):
        (_, text, _) = stream._decoding(tokenizer, prompt, Request("", instruct=instruct), "hello").next_feed().segments  # type: ignore[union-attr]
        assert text.ids == (*tokenizer.encode("Speak slowly."), end, *tokenizer.encode("hello"))
    plain = stream._decoding(tokenizer, prompt, Request(""), "a<|endofprompt|>b").next_feed()
    assert plain is not None and all(end not in segment.ids for segment in plain.segments)
    assert plain.segments[-1].ids == prompt.speech_tokens and len(prompt.speech_tokens) == 87


def test_control_tokens_count_where_they_are_allowed(rig: Rig) -> None:
    tokenizer, prompt = rig.model.tokenizer, rig.prompt("preset")
    text = "well [laughter] a<|endofprompt|>b"

    def ids(control: frozenset[str]) -> tuple[int, ...]:
        feed = stream._decoding(tokenizer, prompt, Request("", control=control), text).next_feed()
        assert feed is not None
        return feed.segments[1].ids

    laughter, end = (tokenizer.special_ids[token] for token in ("[laughter]", "<|endofprompt|>"))
    assert laughter not in ids(frozenset()) and end not in ids(frozenset())
    assert ids(frozenset({"[laughter]"})).count(laughter) == 1 and end not in ids(frozenset({"[laughter]"}))
    both = frozenset({"[laughter]", "<|endofprompt|>"})
    assert ids(both) == (*tokenizer.encode("well "), laughter, *tokenizer.encode(" a"), end, *tokenizer.encode("b"))


def test_a_sentence_without_its_end_gets_one() -> None:
    assert [stream.with_end(text) for text in ("Hello", "Hello!", "你好", "ok,", "a)", "", "Привет")] == [
        "Hello.", "Hello!", "你好。", "ok,", "a)", "", "Привет.",
    ]  # fmt: skip


def test_running_ahead_changes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at a stop id, not at the longest length, not at the end of the slot, whatever is drawn past it."""
    prompt = rig.prompt("prompted")
    requests = [Request(SENTENCE, seed) for seed in range(4)] + [Request("no", 9)]
    alone = [pcm(speak(rig.model, prompt, request, DEFAULT, never)) for request in requests]
    bias = rig.model.lm.head_bias[6561:].clone()
    for n_ahead in (2, 5, 64):
        monkeypatch.setattr(rig.model, "n_run_ahead", n_ahead)
        for request, expected in zip(requests, alone, strict=True):
            np.testing.assert_array_equal(pcm(speak(rig.model, prompt, request, DEFAULT, never)), expected)
        rig.model.lm.head_bias[6561:] = -50.0
        n_text = len(rig.model.tokenizer.encode("no."))
        assert len(pcm(speak(rig.model, prompt, Request("no"), DEFAULT, never))) == 20 * n_text * 960
        rig.model.lm.head_bias[6561:] = bias
    assert rig.model.cache.n_free == N_SLOTS


# ------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("n_ahead", [1, 5])
def test_a_language_model_without_numbers_ends_that_utterance(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, n_ahead: int
) -> None:
    prompt = rig.prompt("preset")
    monkeypatch.setattr(rig.model, "n_run_ahead", n_ahead)
    neighbour = speak(rig.model, prompt, Request(NEIGHBOUR), DEFAULT, never)
    alone = pcm(speak(rig.model, prompt, Request(NEIGHBOUR), DEFAULT, never))
    heard = [next(neighbour)]
    with monkeypatch.context() as patch:
        broken = rig.model.lm.head_bias.clone()
        broken[17] = torch.nan
        patch.setattr(rig.model.lm, "head_bias", broken)
        with pytest.raises(EngineError, match="out of range"):
            list(speak(rig.model, prompt, Request(SENTENCE), DEFAULT, never))
    np.testing.assert_array_equal(pcm([*heard, *neighbour]), alone)
    assert rig.model.cache.n_free == N_SLOTS


def test_a_vocoder_without_numbers_ends_that_utterance(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = rig.model.flow.decoder.solve
    monkeypatch.setattr(rig.model.flow.decoder, "solve", lambda *args, **named: solve(*args, **named) * torch.nan)
    with pytest.raises(EngineError, match="out of range"):
        list(speak(rig.model, rig.prompt("preset"), Request(SENTENCE), DEFAULT, never))
    assert rig.model.cache.n_free == N_SLOTS
