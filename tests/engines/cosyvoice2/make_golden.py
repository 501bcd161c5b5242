"""Writes reference vectors of any sizes, lengths and seeds, in the format that `parity.py` reads.

The reference cannot run here, so the vectors come from the slow formulas beside this file. Features, tokenizer and text
rules do not depend on the sizes of a model: their vectors are from the reference itself, in `vectors/front`.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import reference_flow
import torch
from reference_flow import SlowFlow
from reference_lm import SlowLm, interleaved, nucleus_draw, prompt, sentence
from reference_vocoder import Parts, SlowHift, SlowStream, fade
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import random_state
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig

FRONT = Path(__file__).parent / "vectors" / "front"
EOS, N_ROWS = 6561, 6564


@dataclass(frozen=True)
class Recipe:
    """The contents of a directory. Lengths are in tokens. `chunk_ends`: tokens emitted after each streaming chunk."""

    config: ModelConfig
    seed: int
    lm_prompt_text: int
    lm_text: int
    lm_prompt_speech: int
    n_prompt: int
    n_tokens: int
    chunk_ends: tuple[int, ...]
    n_e2e_prompt: int
    n_stream: int
    n_ras: int = 8
    max_hop: int = 100
    factor: int = 2
    n_mel: int = 20
    stride: int = 4


class Maker:
    def __init__(self, recipe: Recipe, directory: Path) -> None:
        self.recipe, self.config, self.directory = recipe, recipe.config, directory
        self.random = torch.Generator().manual_seed(recipe.seed)
        self.sizes = sizes(recipe)
        shapes = checkpoint_shapes(recipe.config)
        self.states = {name: random_state(name, shapes[name], recipe.seed) for name in shapes}
        lm, encoder, decoder = self.config.lm, self.config.flow_encoder, self.config.flow_decoder
        self.lm = SlowLm(self.states["llm.pt"], lm.n_heads, lm.n_kv_heads, lm.norm_eps, lm.rope_theta)
        self.flow = SlowFlow(self.states["flow.pt"], encoder.n_heads, decoder.d_head, decoder.guidance)
        self.hift = SlowHift(self.states["hift.pt"], self.sizes["hift"])

    def write(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for name, state in self.states.items():
            torch.save(state, self.directory / f"tiny_{name}")
        self._json("tiny_config.json", self.sizes)
        for name in ("features.npz", "text_frontend.json", "tokenizer_ids.json"):
            shutil.copyfile(FRONT / name, self.directory / name)
        self.write_lm()
        self.write_sampling()
        self.write_flow()
        self.write_hift()
        self.write_end_to_end()

    def _save(self, name: str, **arrays: Any) -> None:
        kept = {key: value.numpy() if isinstance(value, Tensor) else np.asarray(value) for key, value in arrays.items()}
        narrow = {key: a.astype(np.float32) if a.dtype == np.float64 and a.ndim else a for key, a in kept.items()}
        exact = {key: kept[key] for key in kept if key in ("u1", "u2", "nuc_probs", "window")}
        np.savez(self.directory / f"{name}.npz", **(narrow | exact))

    def _json(self, name: str, data: Any) -> None:
        (self.directory / name).write_text(json.dumps(data), encoding="utf-8")

    def _ids(self, n: int, n_ids: int) -> list[int]:
        return torch.randint(n_ids, (n,), generator=self.random).tolist()

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)

    # ----------------------------------------------------------------- language model

    def write_lm(self) -> None:
        r, lm, n_rows = self.recipe, self.lm, self.config.lm.n_text_rows
        before, text = self._ids(r.lm_prompt_text, n_rows), self._ids(r.lm_text, n_rows)
        speech = self._ids(r.lm_prompt_speech, EOS)
        x = prompt(lm, before, text, speech)
        hidden = lm.hidden(x)
        given = {"prompt_text": [before], "text": [text], "prompt_speech_token": [speech]}
        logits = lm.logits(hidden[-5:])[None]
        self._save("llm_forward", **given, lm_input=x[None], last_hidden=hidden[None], logits=logits)

        arrays: dict[str, Any] = dict(given)
        modes = {"zero_shot": (before, speech), "cross_lingual": ([], []), "instruct2": (before, [])}
        for mode, (a, b) in modes.items():
            said = sentence(lm, prompt(lm, a, text, b), len(text))
            arrays |= {f"{mode}_tokens": np.array(said.ids, np.int64), f"{mode}_margin": said.margins}
            if mode == "zero_shot":
                arrays["zero_shot_logp_first7"] = torch.stack(said.log_probs[:7])
        self._save("llm_greedy", **arrays)

        short = text[:3]
        x, delta = prompt(lm, before, short, speech), 40.0
        cases = {"eos_biased": (EOS, EOS + 1, delta), "tok6562_biased": (EOS + 1, EOS + 2, delta)}
        cases["never_stops"] = (EOS, N_ROWS, -delta)
        arrays = {**given, "text": [short], "bias_delta": delta, "min_len": 6, "max_len": 60}
        for case, (start, end, by) in cases.items():
            arrays[case] = np.array(sentence(lm, x, 3, self._bias((start, end, by))).ids, np.int64)
        self._save("llm_stop", **arrays)
        self.write_interleaved(before, speech)

    def _bias(self, *deltas: tuple[int, int, float]) -> Tensor:
        bias = self.lm.w["llm_decoder.bias"].clone()
        for start, end, by in deltas:
            bias[start:end] += by
        return bias

    def write_interleaved(self, before: list[int], speech: list[int]) -> None:
        """With a prompt, without one, with fills that the model chooses, and a run that fails on an unexpected id."""
        mix = self.config.lm.n_mix_text, self.config.lm.n_mix_speech
        text = self._ids(4 * mix[0] + 3, self.config.lm.n_text_rows)
        n_most = 3 * mix[1] + 5
        arrays: dict[str, Any] = {}
        for case, a, b, deltas in (
            ("with_prompt", before, speech[: 2 * mix[1] + 1], (-40.0, -40.0)),
            ("no_prompt", [], [], (-40.0, -40.0)),
            ("model_fill", before, speech[: mix[1]], (-40.0, 23.5)),
            ("fails", before, speech[: mix[1]], (23.3, -40.0)),
        ):
            bias = self._bias((EOS, EOS + 2, deltas[0]), (EOS + 2, EOS + 3, deltas[1]))
            run = interleaved(self.lm, a, b, text, bias, n_most, mix)
            arrays |= {
                f"{case}__prompt_text": np.array([a], np.int64),
                f"{case}__prompt_speech_token": np.array([b], np.int64),
                f"{case}__text": [text],
                f"{case}__yielded": np.array(run.yielded, np.int64),
                f"{case}__forward_lengths": run.lengths,
                f"{case}__text_consumed_vs_yielded": run.pulls,
                f"{case}__bias_delta_6561_6562": deltas[0],
                f"{case}__bias_delta_6563": deltas[1],
                f"{case}__force_eos_after_out_tokens": n_most,
                f"{case}__error": run.error,
            }
        self._save("llm_bistream", **arrays)

    def write_sampling(self) -> None:
        """In a third of the cases the likeliest id is among the last ones, in another third just outside of them."""
        s, n = self.config.sampling, self.recipe.n_ras
        log_p = (3 * self._normal(n, N_ROWS)).log_softmax(1)
        width = s.window + 6
        hist = np.full((n, width), -1, np.int64)
        n_hist = np.zeros(n, np.int64)
        u1, u2 = torch.rand(2, n, generator=self.random)
        made = []
        for i in range(n):
            n_hist[i] = (i * 5) % width + 1
            hist[i, : n_hist[i]] = self._ids(int(n_hist[i]), EOS)
            best = int(log_p[i].argmax())
            back = {0: 1, 1: s.window + 1}.get(i % 3, 0)
            if 0 < back <= n_hist[i]:
                hist[i, n_hist[i] - back] = best
                u1[i] = 1e-4
            recent = hist[i, : n_hist[i]].tolist()
            made.append(
                nucleus_draw(log_p[i], recent, float(u1[i]), float(u2[i]), s.top_p, s.top_k, s.window, s.max_repeat)
            )
        probs = np.zeros((n, s.top_k))
        for i, case in enumerate(made):
            probs[i, : case["n"]] = case["probs"]
        self._save(
            "ras_sampling", logp=log_p, hist=hist, nhist=n_hist, u1=u1.double().numpy(), u2=u2.double().numpy(),
            nuc_n=[case["n"] for case in made], nuc_probs=probs, pick1=[case["pick"] for case in made],
            branch2=[case["repeated"] for case in made], final=[case["final"] for case in made],
        )  # fmt: skip

    # ----------------------------------------------------------------------------- flow

    def write_flow(self) -> None:
        r, flow = self.recipe, self.flow
        noise = reference_flow.noise()
        self._save(
            "flow_noise", first_60_frames=noise[:, :, :60], frames_7000_7010=noise[:, :, 7000:7010],
            last_10=noise[:, :, -10:], shape=noise.shape,
            sha256=np.array(hashlib.sha256(noise.numpy().tobytes()).hexdigest()),
        )  # fmt: skip
        self.voice = (
            torch.tensor(self._ids(r.n_prompt, EOS), dtype=torch.int64),
            2 * self._normal(2 * r.n_prompt, 80) - 5,
            self._normal(1, self.config.flow_encoder.d_speaker),
        )
        self.tokens = torch.tensor(self._ids(r.n_tokens, EOS))
        ids, mel, embedding = self.voice
        given = {"prompt_token": ids[None], "prompt_feat": mel[None], "embedding": embedding}
        given["token"] = self.tokens[None]
        n = r.n_prompt + r.n_tokens - 7
        every = torch.cat([ids, self.tokens])[: n + 3]
        streaming = flow.encode(every[:n], every[n:], streaming=True)
        d = self.config.flow_encoder.d_model
        self._save(
            "flow_encoder", **given, n_tokens=n, spk=flow.speaker(embedding),
            token_emb_first5=flow.embedded(every[:5])[None], after_embed_first5=flow.looked(every[:5])[None],
            rel_pos_emb_n4=flow.distances(4, d)[None], after_lookahead=flow.ahead(every[:n], every[n:])[None],
            enc_streaming_ctx=streaming[None], mu_streaming_ctx=flow.mu(streaming)[None],
            enc_full_noctx=flow.encode(every[:n], None, streaming=False)[None],
            enc_streaming_noctx=flow.encode(every[:n], None, streaming=True)[None],
        )  # fmt: skip
        self.write_estimator()
        self.write_streaming(given)
        token = torch.tensor(self._ids(11, EOS))
        made = flow.mel(ids[:0], token, mel[:0], embedding, streaming=False, finalize=True)
        self._save("flow_noprompt", token=token[None], embedding=embedding, mel=made)

    def write_estimator(self) -> None:
        """Two rows, the second with padding."""
        n, lengths, t = 63, (63, 41), (0.3, 0.8)
        x, mu, cond = (self._normal(2, 80, n) for _ in range(3))
        spks, mask = self._normal(2, 80), torch.zeros(2, 1, n)
        outs = {True: torch.zeros(2, 80, n), False: torch.zeros(2, 80, n)}
        for i, length in enumerate(lengths):
            mask[i, :, :length] = 1
            a, b, c = (part[i, :, :length].T.double() for part in (x, mu, cond))
            for streaming, out in outs.items():
                v = self.flow.velocity(a, b, t[i], spks[i].double(), c, streaming=streaming)
                out[i, :, :length] = v.T.float()
        d = 4 * 80
        self._save(
            "flow_estimator", x=x, mu=mu, cond=cond, spks=spks, mask=mask, t=np.array(t, np.float32),
            time_sinusoid=torch.stack([self.flow.sinusoid(float(np.float32(item)), d) for item in t]),
            time_emb=torch.stack([self.flow.time(item) for item in t]), out_streaming=outs[True], out_full=outs[False],
        )  # fmt: skip

    def write_streaming(self, given: dict[str, Tensor]) -> None:
        flow, (ids, mel, embedding), n_before = self.flow, self.voice, 0
        arrays: dict[str, Any] = {**given, "x_stride": self.recipe.stride, "t_per_step": flow.times()[:-1]}
        for i, end in enumerate(self.recipe.chunk_ends):
            path = flow.trajectory(ids, self.tokens[: end + 3], mel, embedding, streaming=True, finalize=False)
            whole = path[-1][len(mel) :].T[None]
            arrays[f"chunk{i}_full_from_prompt_end"] = whole
            arrays[f"chunk{i}_emitted"] = whole[:, :, 2 * n_before :]
            arrays[f"chunk{i}_ntok_in"] = end + 3
            if i == 0:
                arrays["x_per_step_chunk0"] = torch.stack([x.T for x in path[:-1]])[:, :, :: self.recipe.stride]
            n_before = end
        whole = flow.mel(ids, self.tokens, mel, embedding, streaming=False, finalize=True)
        causal = flow.mel(ids, self.tokens, mel, embedding, streaming=True, finalize=True)
        self._save(
            "flow_streaming", **arrays, offset_tokens=n_before, final_all_frames_nonstreaming=whole,
            final_upstream_nonstreaming_masks=whole[:, :, 2 * n_before :],
            final_streaming_masks_variant=causal[:, :, 2 * n_before :],
        )  # fmt: skip

    # -------------------------------------------------------------------------- vocoder

    def write_hift(self) -> None:
        hift, n = self.hift, self.recipe.n_mel
        n_harmonics = self.config.vocoder.n_harmonics + 1
        mel = 2 * self._normal(1, 80, n) - 5
        noise = self._normal(1, 480 * n, n_harmonics).half()
        f0, parts = hift.f0(mel), Parts()
        sines = hift.sines(f0, noise)
        source = hift.source(sines)
        audio = hift.audio(mel, source, parts)
        kept = parts.by_name
        self._save(
            "hift_offline", mel=mel, noise=noise, f0=f0, sine_mix_9=sines[:, ::8], sine_stride=8,
            uv_frames=(f0 > self.config.vocoder.voiced_above_hz).float()[..., None], source=source,
            stft_real=kept["stft_real"][:, :, ::5], stft_imag=kept["stft_imag"][:, :, ::5], stft_stride=5,
            conv_pre=kept["conv_pre"], ups0=kept["ups0"], mag=kept["mag"][:, :, ::3], phase=kept["phase"][:, :, ::3],
            mag_stride=3, audio=audio,
        )  # fmt: skip
        new, tail, window = self._normal(1, 5000), self._normal(1, 3840), np.hamming(7680)
        self._save("crossfade", new=new, prev_tail=tail, window=window, out=fade(new, tail, window))

    def write_end_to_end(self) -> None:
        """Streamed, not streamed, and too short to stream; and the schedule of a later utterance."""
        r, streaming = self.recipe, self.sizes["streaming"]
        ids, mel, embedding = self.voice
        tokens = self.tokens
        if r.n_e2e_prompt != r.n_prompt:
            ids, mel = torch.tensor(self._ids(r.n_e2e_prompt, EOS)), 2 * self._normal(2 * r.n_e2e_prompt, 80) - 5
        if r.n_stream > len(tokens):
            tokens = torch.cat([tokens, torch.tensor(self._ids(r.n_stream - len(tokens), EOS))])
        table = self._normal(1, 480 * (2 * r.n_stream + 8), self.config.vocoder.n_harmonics + 1).half()
        self._save("hift_noise_table", noise=table)
        arrays: dict[str, Any] = {
            "prompt_token": ids[None], "prompt_feat": mel[None], "embedding": embedding, "token": tokens[None]
        }  # fmt: skip
        schedule: dict[str, Any] = {}
        for name, n, hop, streamed in (
            ("stream_first_request", r.n_stream, 25, True),
            ("nonstream", 30, 25, False),
            ("stream_after_earlier_requests", r.n_stream, r.max_hop, True),
            ("stream_short", 17, 25, True),
        ):
            calls = drive(len(ids), n, hop, streaming) if streamed else [(n, 0, False, True)]
            schedule[name] = {
                "calls": [
                    {"n_tok": end, "offset": at, "stream": s, "finalize": last, "samples": n_samples(end, at, last)}
                    for end, at, s, last in calls
                ],
                "hop_len_at_start": hop, "hop_len_left_in_model": r.max_hop, "n_tokens": n, "prompt_tokens": len(ids),
            }  # fmt: skip
            if name == "stream_after_earlier_requests":
                continue
            stream = SlowStream(self.hift, table)
            for i, (end, at, s, last) in enumerate(calls):
                made = self.flow.mel(ids, tokens[:end], mel, embedding, streaming=s, finalize=last)
                arrays[f"{name}_chunk{i}"] = stream.push(made[:, :, 2 * at :], last=last)
        self._save("e2e_streaming", **arrays)
        self._json("driver_schedule.json", schedule)


def drive(n_prompt: int, n_tokens: int, hop: int, streaming: dict[str, int]) -> list[tuple[int, int, bool, bool]]:
    """The reference's loop (specification 7): known tokens, tokens emitted before, `stream`, `finalize`."""
    calls, offset = [], 0
    pad = math.ceil(n_prompt / hop) * hop - n_prompt
    while True:
        needed = hop + pad if offset == 0 else hop
        if n_tokens - offset >= needed + 3:
            calls.append((offset + needed + 3, offset, True, False))
            offset += needed
            hop = min(streaming["token_max_hop_len"], hop * streaming["stream_scale_factor"])
        if n_tokens - offset < needed + 3:
            return [*calls, (n_tokens, offset, False, True)]


def n_samples(end: int, offset: int, last: bool) -> int:
    n = 960 * (end - offset - (0 if last else 3))
    return n + (3840 if offset else 0) - (0 if last else 3840)


def sizes(recipe: Recipe) -> dict[str, Any]:
    """The contents of tiny_config.json."""
    lm, encoder, decoder, hift = (
        getattr(recipe.config, part) for part in ("lm", "flow_encoder", "flow_decoder", "vocoder")
    )
    s = recipe.config.sampling
    dilations = [list(hift.res_dilations)] * len(hift.res_kernels)
    return {
        "sample_rate": 24000, "token_frame_rate": 25, "token_mel_ratio": 2, "pre_lookahead_len": 3,
        "chunk_size_tokens": 25,
        "llm": {
            "text_vocab_size": lm.n_text_rows, "hidden_size": lm.d_model, "intermediate_size": lm.d_ff,
            "num_hidden_layers": lm.n_layers, "num_attention_heads": lm.n_heads, "num_key_value_heads": lm.n_kv_heads,
            "rms_norm_eps": lm.norm_eps, "rope_theta": lm.rope_theta, "mix_ratio": [lm.n_mix_text, lm.n_mix_speech],
        },
        "sampling": {"top_p": s.top_p, "top_k": s.top_k, "win_size": s.window, "tau_r": s.max_repeat},
        "flow": {
            "spk_embed_dim": encoder.d_speaker, "output_size": 80, "vocab_size": 6561,
            "encoder": {
                "attention_heads": encoder.n_heads, "linear_units": encoder.d_ff, "num_blocks": encoder.n_layers,
                "num_up_blocks": encoder.n_up_layers, "norm_eps_blocks": 1e-12, "norm_eps_embed_and_after": 1e-5,
            },
            "cfm": {"inference_cfg_rate": decoder.guidance, "n_timesteps": 10},
            "estimator": {
                "channels": [decoder.n_channels], "out_channels": 80, "num_heads": decoder.n_heads,
                "attention_head_dim": decoder.d_head, "n_blocks": decoder.n_blocks,
                "num_mid_blocks": decoder.n_mid_stages,
            },
        },
        "hift": {
            "in_channels": 80, "base_channels": hift.d_base, "nb_harmonics": hift.n_harmonics,
            "nsf_alpha": hift.sine_amplitude, "nsf_sigma": hift.noise_std, "lrelu_slope": hift.leaky_slope,
            "nsf_voiced_threshold": hift.voiced_above_hz, "upsample_rates": list(hift.up_rates),
            "upsample_kernel_sizes": list(hift.up_kernels), "istft_n_fft": hift.n_fft, "istft_hop_len": hift.hop,
            "resblock_kernel_sizes": list(hift.res_kernels), "resblock_dilation_sizes": dilations,
            "source_resblock_kernel_sizes": list(hift.source_res_kernels), "audio_limit": hift.audio_limit,
            "source_resblock_dilation_sizes": dilations, "f0_predictor": {"cond_channels": hift.d_f0},
        },
        "streaming": {
            "token_hop_len": 25, "token_max_hop_len": recipe.max_hop, "stream_scale_factor": recipe.factor,
            "mel_cache_len": 8, "source_cache_len": 3840,
        },
    }  # fmt: skip
