"""The vocoder against a directory of reference vectors: stage by stage, the joints, and the first chunks end to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.config import (
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    SAMPLES_PER_FRAME,
    VocoderConfig,
)
from telephony_tts.engines.cosyvoice2.model.vocoder import Noise, Vocoder
from telephony_tts.engines.cosyvoice2.model.vocoder_stream import UPSTREAM_FRAMES, UpstreamJoint, cross_fade

Check = tuple[str, float, float]
F0_TOLERANCE, SOURCE_TOLERANCE, TOLERANCE, AUDIO_TOLERANCE = 1e-2, 2e-3, 1e-4, 1e-3


def read_config(directory: Path) -> VocoderConfig:
    sizes: dict[str, Any] = json.loads((directory / "tiny_config.json").read_text())["hift"]
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
        res_dilations=tuple(sizes["resblock_dilation_sizes"][0]),
        source_res_kernels=tuple(sizes["source_resblock_kernel_sizes"]),
        leaky_slope=sizes["lrelu_slope"],
        audio_limit=sizes["audio_limit"],
        d_f0=sizes["f0_predictor"]["cond_channels"],
    )


def read_vocoder(directory: Path) -> Vocoder:
    state = torch.load(directory / "tiny_hift.pt", weights_only=True)
    return Vocoder.from_state(read_config(directory), state)


def read_arrays(path: Path) -> dict[str, Tensor]:
    with np.load(path) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def error(got: Tensor, want: Tensor) -> float:
    """Largest difference; infinite where the shapes differ or a value is no number."""
    if got.shape != want.shape:
        return float("inf")
    difference = float((got.double() - want.double()).abs().max()) if got.numel() else 0.0
    return difference if difference == difference else float("inf")


def table_noise(table: Tensor) -> Noise:
    """The table's rows from its first on, wherever the call stands in the utterance: so the vectors were made."""

    def noise(first: int, n: int) -> Tensor:
        return table[:, :n].float()

    return noise


def check_offline(vocoder: Vocoder, want: dict[str, Tensor]) -> Iterator[Check]:
    mel, noise = want["mel"], table_noise(want["noise"])
    f0 = vocoder.f0(mel)
    yield "vocoder f0 (Hz)", error(f0, want["f0"]), F0_TOLERANCE
    voiced = (f0 > vocoder.config.voiced_above_hz).float()[:, :, None]
    yield "vocoder voiced frames", error(voiced, want["uv_frames"]), 0.0
    sines = vocoder.restarted_sines(f0, 0, noise)
    yield "vocoder sines and noise", error(sines[:, :: int(want["sine_stride"])], want["sine_mix_9"]), SOURCE_TOLERANCE
    source = vocoder.mix(sines)
    yield "vocoder source", error(source, want["source"]), SOURCE_TOLERANCE
    exact, _ = vocoder.excite(f0, 0, None, noise, last=True)
    yield "vocoder source, exact phase", error(exact, want["source"]), SOURCE_TOLERANCE
    spectrum = vocoder.stft(want["source"])[:, :, :: int(want["stft_stride"])]
    yield "vocoder stft", error(spectrum, torch.cat([want["stft_real"], want["stft_imag"]], 1)), TOLERANCE
    trace: dict[str, Tensor] = {}
    audio = vocoder.decode(mel, want["source"], 0, mel.shape[2], trace)
    stride = int(want["mag_stride"])
    magnitude, phase = want["mag"], want["phase"]
    yield "vocoder conv_pre", error(trace["conv_pre"], want["conv_pre"]), TOLERANCE
    yield "vocoder ups0", error(trace["ups0"], want["ups0"]), TOLERANCE
    yield (
        "vocoder magnitude (relative)",
        error(trace["magnitude"][:, :, ::stride] / magnitude, magnitude / magnitude),
        AUDIO_TOLERANCE,
    )
    yield "vocoder phase", error(trace["phase"][:, :, ::stride], phase), AUDIO_TOLERANCE
    yield "vocoder audio, given source", error(audio, want["audio"]), AUDIO_TOLERANCE
    audio = UpstreamJoint(vocoder, noise).push(mel, last=True)
    yield "vocoder audio, own source", error(audio, want["audio"]), AUDIO_TOLERANCE


def check_cross_fade(want: dict[str, Tensor]) -> Iterator[Check]:
    window = torch.hamming_window(want["window"].shape[0], periodic=False, dtype=torch.float64)
    yield "vocoder cross-fade window", error(window, want["window"]), 1e-12
    yield "vocoder cross-fade", error(cross_fade(want["new"], want["prev_tail"], window), want["out"]), 1e-6


def check_sample_counts(vocoder: Vocoder, schedule: dict[str, Any]) -> Iterator[Check]:
    """The recorded calls, replayed with silent mels of the recorded lengths: samples out of each must agree."""
    for name, run in schedule.items():
        joint = UpstreamJoint(vocoder, lambda first, n: torch.zeros(1, n, vocoder.config.n_harmonics + 1))
        worst = 0
        for call in run["calls"]:
            held = 0 if call["finalize"] else LOOKAHEAD_TOKENS
            n_frames = (call["n_tok"] - held - call["offset"]) * FRAMES_PER_TOKEN
            audio = joint.push(torch.zeros(1, vocoder.config.d_mel, n_frames), last=call["finalize"])
            worst = max(worst, abs(audio.shape[1] - call["samples"]))
        yield f"vocoder samples per chunk, {name}", float(worst), 0.0


def check_chunks(vocoder: Vocoder, mels: list[Tensor], audios: list[Tensor], table: Tensor) -> Iterator[Check]:
    """Chunks before the last one through upstream's joint, noise from the table."""
    joint = UpstreamJoint(vocoder, table_noise(table))
    for i, (mel, audio) in enumerate(zip(mels, audios, strict=True)):
        yield f"vocoder streaming chunk {i}", error(joint.push(mel), audio), 2 * AUDIO_TOLERANCE


def check_end_to_end(
    vocoder: Vocoder, mel_of: Callable[[dict[str, Tensor], dict[str, Any]], Tensor], directory: Path
) -> Iterator[Check]:
    """All recorded runs, tokens to audio. mel_of(arrays of e2e_streaming.npz, one call of the schedule) is the flow's:

    the frames of the first `n_tok` tokens, with the call's `stream` and `finalize`, [1, 80, 2 n_tok or 6 fewer].
    """
    want = read_arrays(directory / "e2e_streaming.npz")
    table = read_arrays(directory / "hift_noise_table.npz")["noise"]
    for name, run in json.loads((directory / "driver_schedule.json").read_text()).items():
        joint = UpstreamJoint(vocoder, table_noise(table))
        for i, call in enumerate(run["calls"]):
            audio = want.get(f"{name}_chunk{i}")
            if audio is None:
                break
            mel = mel_of(want, call)[:, :, call["offset"] * FRAMES_PER_TOKEN :]
            got = joint.push(mel, last=call["finalize"])
            yield f"end to end, {name}, chunk {i}", error(got, audio), 2 * AUDIO_TOLERANCE


def check_golden(directory: Path) -> Iterator[Check]:
    """(stage, largest error, tolerance) of every stage that the directory has vectors for."""
    vocoder = read_vocoder(directory)
    yield from check_offline(vocoder, read_arrays(directory / "hift_offline.npz"))
    yield from check_cross_fade(read_arrays(directory / "crossfade.npz"))
    yield from check_sample_counts(vocoder, json.loads((directory / "driver_schedule.json").read_text()))
    flow = read_arrays(directory / "flow_streaming.npz")
    whole = read_arrays(directory / "e2e_streaming.npz")
    inputs = ("prompt_token", "prompt_feat", "embedding")
    n = flow["token"].shape[1]
    if all(error(flow[name], whole[name]) == 0 for name in inputs) and error(flow["token"], whole["token"][:, :n]) == 0:
        mels, audios = [], []
        while (mel := flow.get(f"chunk{len(mels)}_emitted")) is not None:
            audio = whole.get(f"stream_first_request_chunk{len(mels)}")
            held = 0 if mels else UPSTREAM_FRAMES
            if audio is None or audio.shape[1] != SAMPLES_PER_FRAME * (mel.shape[2] - held):
                break
            mels.append(mel)
            audios.append(audio)
        table = read_arrays(directory / "hift_noise_table.npz")["noise"]
        yield from check_chunks(vocoder, mels, audios, table)
