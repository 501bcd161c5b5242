"""Compares the vocoder with a directory of reference vectors: stage by stage, chunk by chunk, and end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import torch
from parity_rows import EXACT, Absent, Arrays, Row, Skipped, Stage, error, guarded, measure, read_json, read_state
from reference_vocoder import push
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    SAMPLES_PER_FRAME,
    VocoderConfig,
)
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import UPSTREAM_FRAMES, UpstreamJoint, cross_fade
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Noise, Vocoder

Check = Row
F0_TOLERANCE, SOURCE_TOLERANCE, TOLERANCE, AUDIO_TOLERANCE = 1e-2, 2e-3, 1e-4, 1e-3
STEADY_FRAMES = 50
"""Up to this length the source in exact arithmetic is within SOURCE_TOLERANCE of the reference. The reference sums its
phase in float32, so it drifts with the length (specification 6.3)."""
ROUNDING_HZ = 2e-4
"""The measured difference of the float32 pitch between two CPUs, and between each of them and float64. The last layer
is a sum of 64 or more products, and each CPU sums them in another order."""
N_ROUNDINGS = 4


def read_config(directory: Path) -> VocoderConfig:
    """Raises ValueError for residual blocks with different dilations, which this engine does not support."""
    sizes: dict[str, Any] = read_json(directory / "tiny_config.json")["hift"]
    dilations = [*sizes["resblock_dilation_sizes"], *sizes.get("source_resblock_dilation_sizes", [])]
    if any(item != dilations[0] for item in dilations):
        raise ValueError(f"the residual blocks' dilations differ: {dilations}")
    return VocoderConfig(
        d_mel=sizes["in_channels"],
        d_base=sizes["base_channels"],
        n_harmonics=sizes["nb_harmonics"],
        sine_amplitude=sizes["nsf_alpha"],
        noise_std=sizes["nsf_sigma"],
        voiced_above_hz=sizes["nsf_voiced_threshold"],
        up_rates=tuple(sizes["upsample_rates"]),
        up_kernels=tuple(sizes["upsample_kernel_sizes"]),
        n_fft=sizes["istft_n_fft"],
        hop=sizes["istft_hop_len"],
        res_kernels=tuple(sizes["resblock_kernel_sizes"]),
        res_dilations=tuple(dilations[0]),
        source_res_kernels=tuple(sizes["source_resblock_kernel_sizes"]),
        leaky_slope=sizes["lrelu_slope"],
        audio_limit=sizes["audio_limit"],
        d_f0=sizes["f0_predictor"]["cond_channels"],
    )


def read_vocoder(directory: Path) -> Vocoder:
    return Vocoder.from_state(read_config(directory), read_state(directory / "tiny_hift.pt"))


class RoundedOtherwise(Vocoder):
    """A vocoder on a CPU that sums in another order: the exact pitch plus a random part of ROUNDING_HZ."""

    exact: Vocoder
    random: torch.Generator

    @classmethod
    def like(cls, vocoder: Vocoder, state: dict[str, Tensor], seed: int) -> Self:
        made = cls.from_state(vocoder.config, state)
        made.exact = Vocoder.from_state(vocoder.config, state, wide=torch.float64)
        made.random = torch.Generator().manual_seed(seed)
        return made

    def f0(self, mel: Tensor) -> Tensor:
        exact = self.exact.f0(mel)
        return (exact + ROUNDING_HZ * (2 * torch.rand(exact.shape, generator=self.random) - 1)).to(self.source_dtype)


def roundings(vocoder: Vocoder, directory: Path) -> list[Vocoder]:
    """Vocoders of other CPUs. Their distance from `vocoder` is the tolerance for the audio of the reference.

    The audio of a mel goes through the pitch, whose rounding no two CPUs share, and a network can make much of it: the
    reference's small random one moves by 0.02 of full scale. What is compared from a given source or pitch on needs
    none of this.
    """
    state = read_state(directory / "tiny_hift.pt")
    return [RoundedOtherwise.like(vocoder, state, seed) for seed in range(N_ROUNDINGS)]


class Compared:
    """Compares the chunks of one utterance, mel to audio, with the reference."""

    def __init__(self, vocoder: Vocoder, others: list[Vocoder], noise: Noise) -> None:
        self._joint = UpstreamJoint(vocoder, noise)
        self._others = [UpstreamJoint(other, noise) for other in others]

    def push(self, name: str, mel: Tensor, want: Callable[[], Tensor], tolerance: float, *, last: bool) -> Row:
        """The next chunk. Raises the errors of the joint. An error of `want` belongs to this row only."""
        got = push(self._joint, mel, last=last)
        moved = max(error(push(other, mel, last=last), got) for other in self._others)
        # Twice, because the reference is one more CPU, and a few CPUs do not show the largest distance.
        return measure(name, lambda: error(got, want()), tolerance + 2 * moved)


def read_arrays(path: Path) -> Arrays:
    return Arrays(path)


def table_noise(table: Tensor) -> Noise:
    """The first rows of the table for every call, because the vectors were made so."""

    def noise(first: int, n: int) -> Tensor:
        return table[:, :n].float()

    return noise


def check_offline(vocoder: Vocoder, others: list[Vocoder], want: Arrays) -> Iterator[Row]:
    mel, noise = want["mel"], table_noise(want["noise"])
    f0 = vocoder.f0(mel)
    yield measure("vocoder f0 (Hz)", lambda: error(f0, want["f0"]), F0_TOLERANCE)

    def voiced() -> float:
        """Frames whose pitch is at the threshold, within the tolerance of the pitch, may be voiced or not."""
        limit = vocoder.config.voiced_above_hz
        clear = ((want["f0"] - limit).abs() > F0_TOLERANCE)[:, :, None]
        return error((f0 > limit).float()[:, :, None] * clear, want["uv_frames"].float() * clear)

    def sines() -> float:
        ours = vocoder.restarted_sines(f0, 0, noise)
        return error(ours[:, :: int(want["sine_stride"])], want["sine_mix_9"])

    def mixed() -> float:
        return error(vocoder.mix(vocoder.restarted_sines(f0, 0, noise)), want["source"])

    def exact() -> float:
        return error(vocoder.excite(f0, 0, None, noise, last=True)[0], want["source"])

    yield measure("vocoder voiced frames", voiced, EXACT)
    yield measure("vocoder sines and noise", sines, SOURCE_TOLERANCE)
    yield measure("vocoder source", mixed, SOURCE_TOLERANCE)
    drift = max(1.0, mel.shape[2] / STEADY_FRAMES)
    yield measure("vocoder source, exact phase", exact, SOURCE_TOLERANCE * drift)
    yield from guarded("vocoder, given source", check_given_source(vocoder, want))

    def from_pitch() -> float:
        source = vocoder.mix(vocoder.restarted_sines(want["f0"], 0, noise))
        return error(vocoder.decode(mel, source, 0, mel.shape[2]), want["audio"])

    yield measure("vocoder audio, given pitch", from_pitch, AUDIO_TOLERANCE)
    own = Compared(vocoder, others, noise)
    yield own.push("vocoder audio, own source", mel, lambda: want["audio"], AUDIO_TOLERANCE, last=True)


def check_given_source(vocoder: Vocoder, want: Arrays) -> Iterator[Row]:
    """The stages after the source, from the reference's own source: the rounding of the pitch has no effect."""
    mel, source = want["mel"], want["source"]

    def spectrum() -> float:
        ours = vocoder.stft(source)[:, :, :: int(want["stft_stride"])]
        return error(ours, torch.cat([want["stft_real"], want["stft_imag"]], 1))

    trace: dict[str, Tensor] = {}
    audio = vocoder.decode(mel, source, 0, mel.shape[2], trace)

    def magnitude() -> float:
        reference = want["mag"]
        ours = trace["magnitude"][:, :, :: int(want["mag_stride"])]
        return error(ours / reference, torch.ones_like(reference)) if ours.shape == reference.shape else float("inf")

    def phase() -> float:
        return error(trace["phase"][:, :, :: int(want["mag_stride"])], want["phase"])

    yield measure("vocoder stft", spectrum, TOLERANCE)
    for name in ("conv_pre", "ups0"):
        yield measure(f"vocoder {name}", lambda n=name: error(trace[n], want[n]), TOLERANCE)
    yield measure("vocoder magnitude (relative)", magnitude, AUDIO_TOLERANCE)
    yield measure("vocoder phase", phase, AUDIO_TOLERANCE)
    yield measure("vocoder audio, given source", lambda: error(audio, want["audio"]), AUDIO_TOLERANCE)


def check_cross_fade(want: Arrays) -> Iterator[Row]:
    def faded() -> float:
        window = torch.hamming_window(2 * want["prev_tail"].shape[1], periodic=False, dtype=torch.float64)
        return error(cross_fade(want["new"], want["prev_tail"], window), want["out"])

    def window() -> float:
        reference = want["window"]
        return error(torch.hamming_window(reference.shape[0], periodic=False, dtype=torch.float64), reference)

    yield measure("vocoder cross-fade window", window, 1e-12)
    yield measure("vocoder cross-fade", faded, 1e-6)


def check_sample_counts(vocoder: Vocoder, schedule: dict[str, Any]) -> Iterator[Row]:
    """Replays the recorded calls with silent mels of the recorded lengths. Their numbers of samples must agree."""
    for name, run in schedule.items():

        def worst(calls: list[dict[str, Any]] = run["calls"]) -> float:
            joint = UpstreamJoint(vocoder, lambda first, n: torch.zeros(1, n, vocoder.config.n_harmonics + 1))
            differences = []
            for call in calls:
                held = 0 if call["finalize"] else LOOKAHEAD_TOKENS
                n_frames = (call["n_tok"] - held - call["offset"]) * FRAMES_PER_TOKEN
                audio = push(joint, torch.zeros(1, vocoder.config.d_mel, n_frames), last=call["finalize"])
                differences.append(abs(audio.shape[1] - call["samples"]))
            return float(max(differences))

        yield measure(f"vocoder samples per chunk, {name}", worst, EXACT)


def check_joint(vocoder: Vocoder, directory: Path) -> Iterator[Row]:
    """Chunks before the last one, from the reference's own mels, if both files are of one utterance."""
    flow, whole = read_arrays(directory / "flow_streaming.npz"), read_arrays(directory / "e2e_streaming.npz")
    table = read_arrays(directory / "hift_noise_table.npz")["noise"]
    n = flow["token"].shape[1]
    same = all(error(flow[name], whole[name]) == 0 for name in ("prompt_token", "prompt_feat", "embedding"))
    if not same or error(flow["token"], whole["token"][:, :n]):
        raise Absent("flow_streaming.npz and e2e_streaming.npz are of different utterances")
    joint = Compared(vocoder, roundings(vocoder, directory), table_noise(table))
    i = 0
    while (mel := flow.get(f"chunk{i}_emitted")) is not None:
        audio = whole.get(f"stream_first_request_chunk{i}")
        held = 0 if i else UPSTREAM_FRAMES
        if audio is None or audio.shape[1] != SAMPLES_PER_FRAME * (mel.shape[2] - held):
            break
        yield joint.push(
            f"vocoder streaming chunk {i}",
            mel,
            lambda a=audio: a,  # type: ignore[misc]
            2 * AUDIO_TOLERANCE,
            last=False,
        )
        i += 1
    if not i:
        raise Absent("the two files' chunks have different lengths")


MelOf = Callable[[Arrays, dict[str, Any]], Tensor]
"""Runs the flow: arrays of e2e_streaming.npz and one call of the schedule -> the frames of the first `n_tok` tokens
with the call's `stream` and `finalize`, [1, 80, 2 n_tok or 6 fewer]."""


def check_end_to_end(vocoder: Vocoder, mel_of: MelOf, directory: Path) -> Iterator[Row]:
    """All recorded runs, tokens to audio, with the calls of the reference's driver."""
    want = read_arrays(directory / "e2e_streaming.npz")
    table = read_arrays(directory / "hift_noise_table.npz")["noise"]
    others = roundings(vocoder, directory)
    for name, run in read_json(directory / "driver_schedule.json").items():
        title = f"end to end, {name}"
        if f"{name}_chunk0" in want:
            joint = Compared(vocoder, others, table_noise(table))
            yield from guarded(title, check_run(joint, mel_of, want, name, run["calls"]))
        else:
            yield Skipped(title, f"{want.file} has no audio of it")


def check_run(joint: Compared, mel_of: MelOf, want: Arrays, name: str, calls: list[dict[str, Any]]) -> Iterator[Row]:
    for i, call in enumerate(calls):
        mel = mel_of(want, call)[:, :, call["offset"] * FRAMES_PER_TOKEN :]
        yield joint.push(
            f"end to end, {name}, chunk {i}",
            mel,
            lambda n=f"{name}_chunk{i}": want[n],  # type: ignore[misc]
            2 * AUDIO_TOLERANCE,
            last=call["finalize"],
        )
    n_chunks = sum(key.startswith(f"{name}_chunk") for key in want)
    if n_chunks > len(calls):
        yield Stage(f"end to end, {name}, {n_chunks - len(calls)} chunks without a call", float("inf"), EXACT)


def check_golden(directory: Path) -> Iterator[Row]:
    """Every stage for which the directory has vectors."""
    yield from guarded("vocoder cross-fade", check_cross_fade_file(directory / "crossfade.npz"))
    yield from guarded("vocoder", check_loaded(directory))


def check_cross_fade_file(path: Path) -> Iterator[Row]:
    yield from check_cross_fade(read_arrays(path))


def check_loaded(directory: Path) -> Iterator[Row]:
    vocoder = read_vocoder(directory)
    yield from guarded("vocoder offline", check_offline_file(vocoder, directory))
    yield from guarded("vocoder samples per chunk", check_schedule_file(vocoder, directory / "driver_schedule.json"))
    yield from guarded("vocoder streaming chunks", check_joint(vocoder, directory))


def check_offline_file(vocoder: Vocoder, directory: Path) -> Iterator[Row]:
    want = read_arrays(directory / "hift_offline.npz")
    yield from check_offline(vocoder, roundings(vocoder, directory), want)


def check_schedule_file(vocoder: Vocoder, path: Path) -> Iterator[Row]:
    yield from check_sample_counts(vocoder, read_json(path))
