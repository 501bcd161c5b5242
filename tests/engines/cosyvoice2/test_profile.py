"""Profiles: their plans, and that streams follow them, also the upstream profile."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from plain_flow import recomputed
from reference_vocoder import push
from speaking import NEIGHBOUR, SENTENCE, Rig, Stepped, spoken
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, UpstreamJoint
from telephony_tts.engines.cosyvoice2.profile import CPU, DEFAULT, FAST, PROFILES, UPSTREAM, Profile, profile_of
from telephony_tts.engines.cosyvoice2.text.generation import SentenceDecoding
from telephony_tts.engines.cosyvoice2.text.prompting import Request, cut

pytestmark = pytest.mark.slow

REQUEST = Request("It left on Tuesday.", 5)
"""Of 93 ids in the voice with a prompt and of 90 in the other: just enough for three blocks of any profile."""


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_block_but_the_last_ends_on_a_boundary(profile: Profile) -> None:
    for n_prompt in range(120):
        n_left = n_prompt - profile.n_cut(n_prompt)
        for n_tokens in (0, 1, 12, 13, 24, 25, 28, 52, 53, 60, 200, 500):
            calls = list(profile.plan(n_prompt, n_tokens))
            *blocks, (n_known, n_out, is_last) = calls
            assert is_last and n_known == n_tokens and not any(end for _, _, end in blocks)
            assert all((n_left + known - 3) % 25 == 0 for known, _, _ in blocks)
            assert [out for _, out, _ in calls] == [0, *(known - 3 for known, _, _ in blocks)]
            assert n_out + 3 <= n_tokens or not blocks


@pytest.mark.parametrize(
    ("profile", "n_prompt", "n_first"),
    [
        *[(DEFAULT, n, 25) for n in (25, 37, 75, 78, 87, 750)],
        *[(FAST, n, 13) for n in (25, 37, 75, 78, 87, 750)],
        (DEFAULT, 0, 28),
        (FAST, 0, 28),
        *[(UPSTREAM, n, 28 + -n % 25) for n in (0, 1, 24, 25, 37, 87)],
    ],
)
def test_tokens_until_first_audio(profile: Profile, n_prompt: int, n_first: int) -> None:
    assert next(iter(profile.plan(n_prompt, 1000))) == (n_first, 0, False)


@pytest.mark.parametrize(
    ("name", "device", "profile"),
    [("auto", "cpu", CPU), ("auto", "cuda", DEFAULT), ("auto", "cuda:1", DEFAULT), ("fast", "cpu", FAST)],
)
def test_auto_is_the_profile_that_suits_the_device(name: str, device: str, profile: Profile) -> None:
    assert profile_of(name, device) is profile


def test_a_cpus_first_audio_is_longer_than_that_of_default() -> None:
    assert CPU.hold_frames is not None and CPU.hold_frames < 20
    assert list(CPU.plan(87, 200)) == list(DEFAULT.plan(87, 200))


def test_upstreams_plan_is_its_drivers_with_a_fresh_hop() -> None:
    """The reference's own calls for a prompt of 37 tokens (golden/driver_schedule.json)."""
    assert list(UPSTREAM.plan(37, 200)) == [(41, 0, False), (91, 38, False), (191, 88, False), (200, 188, True)]
    assert list(UPSTREAM.plan(37, 30)) == [(30, 0, True)]


def audio_by_plan(rig: Rig, voice: str, profile: Profile, seed: int) -> Tensor:
    """Each call of the plan from the first prompt token on, as the reference computes it, through the profile's joint.

    Tokens are drawn first; the blocks are recomputed in full, and only new frames go on.
    """
    model, features, prompt = rig.model, rig.features[voice], rig.prompt(voice, profile)
    decoding = SentenceDecoding(prompt.transcript_ids, model.tokenizer.encode(REQUEST.text), prompt.speech_tokens)
    tokens = torch.tensor([rig.speech_tokens(prompt, decoding, seed)])
    noise = CounterNoise(seed, model.vocoder.config.n_harmonics + 1)
    joint = UpstreamJoint(model.vocoder, noise) if profile.upstream_joint else ContinuousJoint(model.vocoder, noise)
    n_cut = profile.n_cut(features.speech_tokens.numel())
    parts = []
    for n_known, n_out, is_last in profile.plan(features.speech_tokens.numel(), tokens.shape[1]):
        mel = recomputed(
            model.flow,
            features.speech_tokens[None, n_cut:],
            tokens[:, :n_known],
            features.mel[None, 2 * n_cut :],
            features.embedding[None],
            streaming=profile.causal_finish or not is_last,
            finalize=is_last,
        )
        parts.append(push(joint, mel[:, :, 2 * n_out :], last=is_last)[0])
    assert len(parts) >= 3
    return torch.cat(parts)


@pytest.mark.parametrize("voice", ["preset", "prompted"])
@pytest.mark.parametrize(
    "profile", [UPSTREAM, replace(DEFAULT, causal_finish=False), replace(UPSTREAM, causal_finish=True)]
)
def test_the_stream_is_the_plan_recomputed(rig: Rig, voice: str, profile: Profile) -> None:
    expected = audio_by_plan(rig, voice, profile, REQUEST.seed).clamp(-1, 1).numpy()
    heard = spoken(rig, REQUEST, voice, replace(profile, upstream_text=False))
    assert len(heard) == len(expected)
    assert np.abs(heard / 32767.0 - expected).max() < 2e-3


def test_the_finishes_differ_and_only_at_the_end(rig: Rig) -> None:
    """Checks that the test above compares two different things."""
    one, other = (
        spoken(rig, REQUEST, profile=profile).astype(np.int32)
        for profile in (DEFAULT, replace(DEFAULT, causal_finish=False))
    )
    differs = np.flatnonzero(np.abs(one - other) > 100)
    n_last = (len(one) // 960 - list(DEFAULT.plan(87, len(one) // 960))[-1][1]) * 960
    assert len(differs) and differs[0] >= len(one) - n_last - 20 * 480


def test_upstreams_text_is_cut_and_spelt_by_its_rules(rig: Rig) -> None:
    """Only this profile spells out "3". A long text takes several runs of the language model."""
    plain = replace(UPSTREAM, upstream_text=False)
    three = spoken(rig, Request("I have 3 apples"), "preset", UPSTREAM)
    spelt = spoken(rig, Request("I have three apples."), "preset", plain)
    assert len(three) > 0
    np.testing.assert_array_equal(three, spelt)
    long = f"{SENTENCE} {NEIGHBOUR} {SENTENCE}"
    assert len(list(cut(long, UPSTREAM, rig.model.tokenizer))) > 1
    stepped = Stepped(rig, UPSTREAM)
    key = stepped.say(Request(long), "preset")
    stepped.run()
    assert stepped.ended[key].error is None
    timings = [timing for chunk in stepped.heard[key] for timing in chunk.timings]
    assert timings[0].start_char == 0 and timings[-1].end_char > len(long) - 10
    assert all(a.end_char <= b.start_char and a.end_sample <= b.start_sample for a, b in pairwise(timings))
