"""One utterance from text to audio, stepped without the engine around it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_flow import tensors
from speaking import FEW_EULER, N_SLOTS, NEIGHBOUR, SENTENCE, Rig, Stepped, Watched, n_empty, pcm, ready_voice, spoken
from torch import Tensor

from telephony_tts.engines.cosyvoice2.core import stream
from telephony_tts.engines.cosyvoice2.device.runner import CPU_RUN_AHEAD
from telephony_tts.engines.cosyvoice2.device.speech_model import MAX_POSITIONS
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, FAST, UPSTREAM, Profile
from telephony_tts.engines.cosyvoice2.settings import AheadLimits
from telephony_tts.engines.cosyvoice2.text import prompting
from telephony_tts.engines.cosyvoice2.text.generation import SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.prompting import Request, decoding_of
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow

HELD = AheadLimits(audio_ms=1)
"""If the listener takes nothing, the stream stops after its first block."""
BRIEF, BRIEF_NEIGHBOUR = "Thank you for calling.", "It left on Tuesday."
"""A seed decides how long they are: 24 to 48 ids with those below, where `NEIGHBOUR` has up to 170."""


@pytest.mark.parametrize("profile", [DEFAULT, FAST, UPSTREAM], ids=["default", "fast", "upstream"])
@pytest.mark.parametrize("voice", ["preset", "prompted"])
def test_interleaved_utterances_equal_each_alone(rig: Rig, voice: str, profile: Profile) -> None:
    requests = [Request(BRIEF, seed=1, speed=1.2), Request(BRIEF_NEIGHBOUR, seed=1)]
    alone = [spoken(rig, request, voice, profile) for request in requests]
    runner = Watched(rig)
    together = Stepped(rig, profile, runner=runner)
    keys = [together.say(request, voice) for request in requests]
    together.run()
    assert sum(len(slots) for name, slots in runner.calls if name == "begin") > 2, "one is of several blocks"
    for key, expected in zip(keys, alone, strict=True):
        np.testing.assert_array_equal(together.pcm(key), expected)
    assert together.is_empty()


def test_the_seed_decides_the_audio(rig: Rig) -> None:
    one, again, other = (spoken(rig, Request(BRIEF, seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert len(one) != len(other) or not np.array_equal(one, other)


@pytest.mark.parametrize("n_ahead", [1, CPU_RUN_AHEAD])
def test_a_cancel_after_any_step_frees_everything_and_changes_no_other_stream(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, n_ahead: int
) -> None:
    """Nothing more is computed for it. One step later its slot is free and it has ended.

    All steps up to the cancel are computed again each time. So a block has a first Euler step, a last and one between,
    and of the cancels between two steps that draw ids, only every fifth is tried.
    """
    n_euler = 3
    rig = Rig(model_dir, n_euler=n_euler)
    monkeypatch.setattr(rig.runner, "n_run_ahead", n_ahead)
    monkeypatch.setattr(prompting, "SOFT_CHARS", 16)
    monkeypatch.setattr(prompting, "HARD_CHARS", 20)
    alone = spoken(rig, Request(BRIEF_NEIGHBOUR, seed=1))
    two_pieces = Request("No, thank you. Goodbye.")
    runner = Watched(rig)
    runner.n_run_ahead = n_ahead
    stepped = Stepped(rig, ahead=HELD, runner=runner)
    neighbour = stepped.say(Request(BRIEF_NEIGHBOUR, seed=1))
    stepped.run()
    assert stepped.heard[neighbour] and neighbour not in stepped.ended
    runner.calls.clear()
    whole = stepped.say(two_pieces)
    draws: list[bool] = []
    while stepped.run(1, taking=[whole]):
        draws.append(runner.calls[-1][0] == "decode")
    n_steps = len(draws)
    assert stepped.ended[whole].error is None and n_steps > 20 + 20 // n_ahead
    n_of = Counter(stage for stage, _ in runner.calls)
    assert n_of["prefill"] == 2 and n_of["begin"] == n_of["vocode"] == 3, "two pieces, one of several blocks"
    assert n_of["flow"] == 3 * n_euler and n_of["decode"] > 20 // n_ahead
    tried = [n for n in range(n_steps) if n % 5 == 0 or not (draws[n - 1] and draws[n])]
    assert len(tried) > 20
    for n in tried:
        key = stepped.say(two_pieces)
        assert stepped.run(n, taking=[key]) == n
        assert key not in stepped.ended, "it must not have ended yet"
        n_chunks = len(stepped.heard[key])
        stepped.cancel(key)
        runner.calls.clear()
        assert stepped.run() == 1, "one step frees the slot"
        assert runner.calls == [] and stepped.ended[key].error is None and len(stepped.heard[key]) == n_chunks
        assert n_empty(rig.model.cache) == stepped.core.slots.n_free == N_SLOTS - 1
        assert rig.model.cache.data[:, :, 1:N_SLOTS].count_nonzero() == 0
    stepped.run(taking=[neighbour])
    np.testing.assert_array_equal(stepped.pcm(neighbour), alone)
    assert stepped.is_empty()


@pytest.mark.parametrize("profile", [DEFAULT, UPSTREAM], ids=["default", "upstream"])
def test_a_step_is_a_few_speech_tokens_or_one_euler_step(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, profile: Profile
) -> None:
    """So a barge-in wastes no more than that. A voice, and an end that is computed over the whole utterance again, are
    stepped through like any block."""
    lm, decoder = rig.model.lm, rig.model.flow.decoder
    n_of = Counter[str]()

    def counted(name: str, work: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            n_of[name] += 1
            return work(*args, **named)

        return call

    monkeypatch.setattr(lm, "run_layers", counted("lm", lm.run_layers))
    monkeypatch.setattr(decoder, "step", counted("flow", decoder.step))
    monkeypatch.setattr(rig.model.vocoder, "decode", counted("vocoder", rig.model.vocoder.decode))
    stepped = Stepped(rig, profile)
    key = stepped.say(Request(f"{SENTENCE} {NEIGHBOUR}"))
    total = Counter[str]()
    while stepped.core.step():
        assert sum(n_of.values()) <= 1 or (list(n_of) == ["lm"] and n_of["lm"] <= CPU_RUN_AHEAD), n_of
        total += n_of
        n_of.clear()
    assert key in stepped.ended and stepped.is_empty()
    assert total["lm"] == 1 + int(rig.model.sampler.n_drawn[0]) - 1 > 20
    assert total["flow"] % FEW_EULER == 0 and total["flow"] >= 3 * FEW_EULER and total["vocoder"] >= 2


def test_a_cancel_at_any_chunk_frees_the_slot(rig: Rig) -> None:
    stepped = Stepped(rig)
    request = Request(BRIEF, 1, speed=1.3)
    whole = stepped.say(request)
    stepped.run()
    assert len(stepped.heard[whole]) > 3
    for n in range(len(stepped.heard[whole]) + 1):
        key = stepped.say(request)
        stepped.until_heard(key, n)
        stepped.cancel(key)
        stepped.run()
        np.testing.assert_array_equal(pcm(stepped.heard[key][:n]), pcm(stepped.heard[whole][:n]))
        assert stepped.is_empty()
        assert rig.model.cache.data[:, :, :N_SLOTS].count_nonzero() == 0


def of_length(features: PromptFeatures, n: int) -> PromptFeatures:
    return replace(features, speech_tokens=features.speech_tokens[:n], mel=features.mel[: 2 * n])


@pytest.mark.parametrize(
    ("profile", "n_prompt", "n_most"),
    [(DEFAULT, n, 28 if n <= 3 else 25) for n in (0, 3, 75, 77, 78, 79, 87)] + [(FAST, n, 13) for n in (75, 78, 87)],
)
def test_first_audio_comes_early(rig: Rig, profile: Profile, n_prompt: int, n_most: int) -> None:
    stepped = Stepped(rig, profile, features={"short": of_length(rig.features["prompted"], n_prompt)})
    key = stepped.say(Request(SENTENCE), "short")
    stepped.until_heard(key, 1)
    assert len(stepped.heard[key][0].pcm) >= 0.1 * 24_000
    assert int(rig.model.sampler.n_drawn[0]) <= n_most
    stepped.cancel(key)
    stepped.run()
    assert stepped.is_empty()
    assert n_prompt - stepped.voice("short").n_flow_tokens < 25


def test_a_prompt_shorter_than_its_cut_is_kept_whole(rig: Rig) -> None:
    for n in range(30):
        prompt = ready_voice(rig.model, of_length(rig.features["prompted"], n), DEFAULT)
        assert prompt.n_flow_tokens == n or prompt.n_flow_tokens % 25 == 3
        assert bool(prompt.n_flow_tokens) == bool(n)


@pytest.mark.parametrize("voice", ["preset", "prompted"])
def test_the_stream_is_the_whole_utterance(rig: Rig, voice: str) -> None:
    """Against all tokens first, then the flow from the first prompt token and the vocoder, each once."""
    model, prompt = rig.model, rig.prompt(voice)
    text, seed = BRIEF_NEIGHBOUR, 6
    heard = spoken(rig, Request(text, seed), voice)
    ids = model.tokenizer.encode(text)
    decoding = SentenceDecoding(prompt.transcript_ids, ids, prompt.speech_tokens)
    tokens = rig.speech_tokens(prompt, decoding, seed)
    audio = rig.audio(voice, prompt, tokens, seed)
    assert len(tokens) > 22 + 25 + 3
    assert len(heard) == len(audio) == 960 * len(tokens)
    error = np.abs(heard / 32767.0 - audio.numpy())
    assert error.max() < 2e-3, error.max()


def test_utterances_write_nothing_into_the_voice(rig: Rig) -> None:
    stepped = Stepped(rig)
    stepped.say(Request("no"))
    stepped.run()
    prompt = stepped.voice("prompted")

    def copies() -> list[Tensor]:
        return [tensor.clone() for tensor in tensors(prompt.flow.table.pages)]

    before = copies()
    assert before
    key = stepped.say(Request(BRIEF))
    stepped.run()
    assert len(stepped.pcm(key)) and stepped.voice("prompted") is prompt
    assert all(torch.equal(a, b) for a, b in zip(before, copies(), strict=True))


# ------------------------------------------------------------------------------ limits


def test_a_model_that_never_draws_a_stop_id_is_stopped(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(model_dir)
    rig.model.lm.head_bias[6561:] = -50.0
    n_text = len(rig.model.tokenizer.encode("no."))  # the end of the sentence is added
    assert len(spoken(rig, Request("no"), "preset")) == 20 * n_text * 960
    for where, name, value in ((stream, "MAX_SPEECH_TOKENS", 60), (rig.model.cache, "max_len", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            stepped = Stepped(rig)
            key = stepped.say(Request(SENTENCE), "preset")
            stepped.run()
            with pytest.raises(EngineError, match=r"did not come to an end; what it said after [23] s"):
                stepped.pcm(key)
            assert len(pcm(stepped.heard[key])) > 0.4 * 24_000
            assert stepped.is_empty()


def test_the_longest_piece_is_shorter_than_the_limit() -> None:
    """300 Chinese characters at a slow 4.2 a second. A slot holds them with 30 s of prompt and its transcript."""
    assert 25 * prompting.HARD_CHARS / 4.2 <= stream.MAX_SPEECH_TOKENS <= 3000
    assert 30 * 25 + 30 * 15 + prompting.HARD_CHARS + stream.MAX_SPEECH_TOKENS + 2 <= MAX_POSITIONS


def test_text_that_does_not_fit_a_slot_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.model.cache, "max_len", 90)
    stepped = Stepped(rig)
    short, long = stepped.say(Request("no"), "preset"), stepped.say(Request(SENTENCE))
    stepped.run()
    assert len(stepped.pcm(short))
    with pytest.raises(EngineError, match="exceed 90 tokens; speak it in shorter pieces"):
        stepped.pcm(long)
    assert stepped.is_empty()


@pytest.mark.parametrize("stop", [6562, 6563])
def test_any_stop_id_ends_the_speech_and_is_not_voiced(model_dir: Path, stop: int) -> None:
    rig = Rig(model_dir)
    rig.model.lm.head_bias[stop] = 50.0
    for voice in ("preset", "prompted"):
        stepped = Stepped(rig)
        key = stepped.say(Request(SENTENCE), voice)
        stepped.run()
        assert stepped.heard[key] == [] and stepped.ended[key].error is None
        assert stepped.is_empty()


def test_an_utterance_waits_for_a_slot(rig: Rig) -> None:
    """A stream keeps its slot while its listener takes nothing. The most urgent waiting stream is next."""
    stepped = Stepped(rig, ahead=HELD)
    request = Request(BRIEF)
    open_ones = [stepped.say(request, "preset") for _ in range(N_SLOTS)]
    stepped.run()
    assert stepped.began == open_ones and all(stepped.heard[key] for key in open_ones)
    late, urgent = (stepped.say(request, "preset", deadline_ns) for deadline_ns in (30, 20))
    assert stepped.run() == 0 and stepped.began == open_ones, "nothing can be done before one gives its slot back"
    last = open_ones.pop()
    stepped.run(taking=[last])
    assert stepped.began[N_SLOTS:] == [urgent] and last in stepped.ended
    stepped.run(taking=[urgent, late])
    assert stepped.began[N_SLOTS:] == [urgent, late]
    for key in (urgent, late):
        np.testing.assert_array_equal(stepped.pcm(key), stepped.pcm(last))
    assert stepped.core.slots.n_free == n_empty(rig.model.cache) == 1
    for key in open_ones:
        stepped.cancel(key)
    stepped.run()
    assert stepped.is_empty()


def test_an_instruction_is_heeded_and_typed_control_tokens_are_text(rig: Rig) -> None:
    prompt = rig.prompt("prompted")
    tokenizer = rig.model.tokenizer
    end = tokenizer.special_ids["<|endofprompt|>"]
    for instruct in ("Speak slowly.", "Speak slowly.<|endofprompt|>"):
        (_, text, _) = decoding_of(tokenizer, prompt, Request("", instruct=instruct), "hello").next_feed().segments  # type: ignore[union-attr]
        assert text.ids == (*tokenizer.encode("Speak slowly."), end, *tokenizer.encode("hello"))
    plain = decoding_of(tokenizer, prompt, Request(""), "a<|endofprompt|>b").next_feed()
    assert plain is not None and all(end not in segment.ids for segment in plain.segments)
    assert plain.segments[-1].ids == prompt.speech_tokens and len(prompt.speech_tokens) == 87


def test_only_allowed_control_tokens_act(rig: Rig) -> None:
    tokenizer, prompt = rig.model.tokenizer, rig.prompt("preset")
    text = "well [laughter] a<|endofprompt|>b"

    def ids(control: frozenset[str]) -> tuple[int, ...]:
        feed = decoding_of(tokenizer, prompt, Request("", control=control), text).next_feed()
        assert feed is not None
        return feed.segments[1].ids

    laughter, end = (tokenizer.special_ids[token] for token in ("[laughter]", "<|endofprompt|>"))
    assert laughter not in ids(frozenset()) and end not in ids(frozenset())
    assert ids(frozenset({"[laughter]"})).count(laughter) == 1 and end not in ids(frozenset({"[laughter]"}))
    both = frozenset({"[laughter]", "<|endofprompt|>"})
    assert ids(both) == (*tokenizer.encode("well "), laughter, *tokenizer.encode(" a"), end, *tokenizer.encode("b"))


def test_a_sentence_without_an_end_mark_gets_one() -> None:
    assert [prompting.with_end(text) for text in ("Hello", "Hello!", "你好", "ok,", "a)", "", "Привет")] == [
        "Hello.", "Hello!", "你好。", "ok,", "a)", "", "Привет.",
    ]  # fmt: skip


def test_drawing_ahead_changes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at a stop id, nor at the longest length, nor at the end of the slot."""
    requests = [Request(BRIEF, seed) for seed in range(2)] + [Request("no", 9)]
    alone = [spoken(rig, request) for request in requests]
    bias = rig.model.lm.head_bias[6561:].clone()
    n_text = len(rig.model.tokenizer.encode("no."))
    for n_ahead in (2, 5, 64):
        monkeypatch.setattr(rig.runner, "n_run_ahead", n_ahead)
        for request, expected in zip(requests, alone, strict=True):
            np.testing.assert_array_equal(spoken(rig, request), expected)
        rig.model.lm.head_bias[6561:] = -50.0
        assert len(spoken(rig, Request("no"))) == 20 * n_text * 960
        rig.model.lm.head_bias[6561:] = bias
    assert n_empty(rig.model.cache) == N_SLOTS


def test_drawing_ahead_in_a_batch_changes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream ends, another begins, and a third is in the middle."""
    requests = [Request("no", 9), Request(BRIEF, 0), Request(BRIEF_NEIGHBOUR, 1), Request("yes", 2)]
    alone = [spoken(rig, request) for request in requests]
    monkeypatch.setattr(rig.runner, "n_run_ahead", 5)
    together = Stepped(rig)
    keys = [together.say(request) for request in requests]
    together.run()
    for key, expected in zip(keys, alone, strict=True):
        np.testing.assert_array_equal(together.pcm(key), expected)
    assert together.is_empty()


# ------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("n_ahead", [1, 5])
def test_language_model_output_that_is_not_finite_ends_that_utterance(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, n_ahead: int
) -> None:
    alone = spoken(rig, Request(BRIEF_NEIGHBOUR, 1), "preset")
    monkeypatch.setattr(rig.runner, "n_run_ahead", n_ahead)
    stepped = Stepped(rig, ahead=HELD)
    neighbour = stepped.say(Request(BRIEF_NEIGHBOUR, 1), "preset")
    stepped.run()
    assert stepped.heard[neighbour] and neighbour not in stepped.ended
    with monkeypatch.context() as patch:
        broken = rig.model.lm.head_bias.clone()
        broken[17] = torch.nan
        patch.setattr(rig.model.lm, "head_bias", broken)
        key = stepped.say(Request(SENTENCE), "preset")
        stepped.run()
        with pytest.raises(EngineError, match="not finite"):
            stepped.pcm(key)
    stepped.run(taking=[neighbour])
    np.testing.assert_array_equal(stepped.pcm(neighbour), alone)
    assert stepped.is_empty()


def test_vocoder_output_that_is_not_finite_ends_that_utterance(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    step = rig.model.flow.decoder.step
    monkeypatch.setattr(rig.model.flow.decoder, "step", lambda *args, **named: step(*args, **named) * torch.nan)
    with pytest.raises(EngineError, match="not finite"):
        spoken(rig, Request(BRIEF), "preset")
    assert n_empty(rig.model.cache) == N_SLOTS
