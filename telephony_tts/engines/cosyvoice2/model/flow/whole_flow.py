"""Flow of CosyVoice-300M: the speech tokens of a sentence to its mel (specification 300M, 6).

    flow.begin_prompt(tokens, mel, embedding)       once per voice; nothing is computed but its speaker
    stream = flow.start(prompt, seed)               once per sentence
    (block,) = flow.begin([BlockRequest(stream, ids, None)])   all of its tokens: one pass of the encoder
    flow.step([block])                              one Euler step, until block.done
    mel = block.mel()                               [1, 80, F]

It has the interface of CosyVoice2's `Flow`, with one block per stream. A token is 1.72 frames, which is no whole
number: the encoder's states are stretched to a number of frames by the `LengthRegulator`. The noise is a function of
the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from telephony_tts.engines.cosyvoice2.model.border import sent
from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE_300M, FlowEncoderConfig, ModelConfig
from telephony_tts.engines.cosyvoice2.model.failures import OnFailure, isolated
from telephony_tts.engines.cosyvoice2.model.file_names import FLOW_FILE
from telephony_tts.engines.cosyvoice2.model.flow.decoder import KERNEL
from telephony_tts.engines.cosyvoice2.model.flow.encoder import Distances, EncoderEmbedding, EncoderLayer
from telephony_tts.engines.cosyvoice2.model.flow.flow import Weights
from telephony_tts.engines.cosyvoice2.model.flow.layers import FlowReader
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PageTable
from telephony_tts.engines.cosyvoice2.model.flow.pass_context import WholeSequence
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowBlock, FlowPrompt, FlowStream
from telephony_tts.engines.cosyvoice2.model.flow.unet import TimeNorm, UnetDecoder, centred
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.state import State

HOP_SAMPLES = 256
EDGE_TOKENS = 20
"""Tokens at either end of a long sentence whose frames depend on their number only."""
N_REGULATOR_LAYERS = 4


def n_frames_of(n_tokens: int) -> int:
    """Mel frames of a sentence, rounded down (specification 300M, 6)."""
    return int(n_tokens / COSYVOICE_300M.tokens_per_s * COSYVOICE_300M.sample_rate_hz / HOP_SAMPLES)


EDGE_FRAMES = n_frames_of(EDGE_TOKENS)


def stretched(x: Tensor, n_frames: int) -> Tensor:
    """[1, N, C] -> [1, n_frames, C], linear between the centres of the rows."""
    return F.interpolate(x.transpose(1, 2), size=n_frames, mode="linear").transpose(1, 2)


class LengthRegulator:
    """States of tokens to states of frames: stretched, then smoothed by convolutions."""

    def __init__(self, take: FlowReader, d: int) -> None:
        at = "length_regulator.model"
        self.convs = [take.conv(f"{at}.{3 * i}", d, d, KERNEL) for i in range(N_REGULATOR_LAYERS)]
        self.norms = [TimeNorm(take, f"{at}.{3 * i + 1}", d, 1) for i in range(N_REGULATOR_LAYERS)]
        self.last = take.conv(f"{at}.{3 * N_REGULATOR_LAYERS}", d, d, 1)

    def __call__(self, prompt: Tensor, new: Tensor, n_prompt_frames: int) -> Tensor:
        """States of the prompt's tokens [1, P, C] and of the new ones [1, N, C] -> [1, F, C].

        The prompt becomes `n_prompt_frames` frames. The ends of a long sentence are stretched by themselves.
        """
        n_tokens, n_frames = new.shape[1], n_frames_of(new.shape[1])
        parts = [stretched(prompt, n_prompt_frames)] if n_prompt_frames else []
        if n_tokens > 2 * EDGE_TOKENS:
            parts += [
                stretched(new[:, :EDGE_TOKENS], EDGE_FRAMES),
                stretched(new[:, EDGE_TOKENS:-EDGE_TOKENS], n_frames - 2 * EDGE_FRAMES),
                stretched(new[:, -EDGE_TOKENS:], EDGE_FRAMES),
            ]
        else:
            parts.append(stretched(new, n_frames))
        x = torch.cat(parts, dim=1)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.mish(norm(centred(conv, x)))
        return self.last(x)


class TokenEncoder:
    """Speech tokens to the states of their frames, and the speaker. Every token sees all others."""

    def __init__(self, config: FlowEncoderConfig, take: FlowReader) -> None:
        d = config.d_model
        self.config = config
        self.tokens = take("input_embedding.weight", config.n_tokens, d)
        self.speaker_affine = take.linear("spk_embed_affine_layer", config.d_out, config.d_speaker)
        self.embed = EncoderEmbedding(config, take, "encoder.embed")
        self.layers = [EncoderLayer(config, take, f"encoder.encoders.{i}", i) for i in range(config.n_layers)]
        self.after_norm = take.norm("encoder.after_norm", d, config.embed_norm_eps)
        self.projection = take.linear("encoder_proj", config.d_out, d)
        self.regulator = LengthRegulator(take, config.d_out)

    def speaker(self, embedding: Tensor) -> Tensor:
        """Speaker embedding [1, 192] -> spk [1, 80]."""
        return self.speaker_affine(F.normalize(embedding.float(), dim=1, eps=1e-12).to(self.tokens.dtype))

    def mu(self, prompt_ids: Tensor, ids: Tensor, n_prompt_frames: int) -> Tensor:
        """prompt_ids [1, P], ids [1, N] -> [1, n_prompt_frames + F, 80]"""
        x = self.embed(F.embedding(torch.cat([prompt_ids, ids], dim=1).clamp(min=0), self.tokens))
        distances, whole = Distances(0, x.shape[1], x), WholeSequence()
        for layer in self.layers:
            x = layer(x, distances, None, whole)
        x = self.projection(self.after_norm(x))
        n_prompt = prompt_ids.shape[1]
        return self.regulator(x[:, :n_prompt], x[:, n_prompt:], n_prompt_frames)


class WholeFlow:
    """See the module. Several threads may use it at once, for different streams."""

    def __init__(self, config: ModelConfig, take: FlowReader) -> None:
        self.encoder = TokenEncoder(config.flow_encoder, take)
        self.decoder = UnetDecoder(config.flow_decoder, take)

    @classmethod
    def from_state(cls, config: ModelConfig, state: State, weights: Weights = "float") -> Self:
        """Reads the keys of `flow.pt` (specification 300M, 2); ValueError lists all missing, unexpected or
        mis-shaped.

        `weights`: "int8" rounds the encoder's layers and most of the estimator; it needs float32 on a CPU, or raises
        ValueError.
        """
        take = FlowReader(state)
        flow = cls(config, take)
        take.finish(FLOW_FILE)
        if weights == "int8":
            for layer in flow.encoder.layers:
                layer.quantize()
            flow.decoder.estimator.quantize()
        return flow

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.tokens.dtype

    def prepare(self, graphs: Graphs, n_streams: int, check_wanted: Callable[[], object]) -> None:
        """Nothing is recorded: each sentence has a length of its own."""

    @torch.inference_mode()
    def begin_prompt(self, prompt_tokens: Tensor, prompt_mel: Tensor, embedding: Tensor) -> FlowBlock:
        """A voice: prompt_tokens [1, P], prompt_mel [1, M, 80], embedding [1, 192]; P and M may be 0. The block is
        done: all that depends on the prompt also depends on the sentence."""
        mel = prompt_mel.to(self.dtype)
        prompt = FlowPrompt(self.encoder.speaker(embedding), prompt_tokens, mel, PageTable())
        nothing = torch.zeros(1, 0, mel.shape[2], device=mel.device)
        n_steps = self.decoder.n_steps
        return FlowBlock(nothing, nothing, prompt.spk, nothing, n_steps, past=None, k=n_steps, voice=prompt)

    def start(self, prompt: FlowPrompt, seed: int) -> FlowStream:
        """A new sentence. Any integer is a seed."""
        return FlowStream(prompt, prompt.table, prompt.tail_tokens, self.decoder.n_steps, seed=seed)

    @torch.inference_mode()
    def begin(self, requests: Sequence[BlockRequest]) -> list[FlowBlock]:
        """All tokens of each of these streams. The encoder pass is done, no Euler step is. If this raises, nothing has
        changed for any stream.

        Raises ValueError for a stream that has begun, and for tokens that are not the last.
        """
        if any(request.stream.finished or request.ahead is not None for request in requests):
            raise ValueError("a stream of this flow has one block, which is its last")
        blocks = [self._begin(request) for request in requests]
        for request, block in zip(requests, blocks, strict=True):
            block.join_stream(request.stream, block.n_hidden, len(request.new), is_last=True)
        return blocks

    def _begin(self, request: BlockRequest) -> FlowBlock:
        stream, prompt = request.stream, request.stream.prompt
        n_hidden, n_steps = prompt.tail_mel.shape[1], self.decoder.n_steps
        n_frames = n_frames_of(len(request.new))
        if not n_frames:
            nothing = prompt.tail_mel[:, :0].float()
            return FlowBlock(nothing, nothing, prompt.spk, nothing, n_steps, past=None, k=n_steps)
        ids = sent([request.new], self.encoder.tokens.device)
        mu = self.encoder.mu(prompt.tail_tokens, ids, n_hidden)
        # The condition: the prompt's mel, then zeros.
        cond = F.pad(prompt.tail_mel.to(mu.dtype), (0, 0, 0, n_frames))
        x = sentence_noise(stream.seed, mu.shape[1], mu.shape[2]).to(mu.device)
        return FlowBlock(x, mu, prompt.spk, cond, n_steps, past=None, n_hidden=n_hidden)

    @torch.inference_mode()
    def step(self, blocks: Sequence[FlowBlock], on_failure: OnFailure | None = None) -> None:
        """One Euler step of each block, each by itself. `on_failure` is called with the index of each block that fails,
        and with its error; without it, the first error is raised at the end. All other blocks take exactly one step.

        Raises ValueError, and does nothing, for a block that is done or given twice.
        """
        if len({id(block) for block in blocks}) < len(blocks):
            raise ValueError("a block cannot take two steps at once")
        if any(block.done for block in blocks):
            raise ValueError("the block is done")
        raised: list[Exception] = []

        def report(block: FlowBlock, error: Exception) -> None:
            if on_failure is not None:
                on_failure(blocks.index(block), error)
            elif not raised:
                raised.append(error)
            block.fail()

        for block in blocks:
            isolated([block], self._step, report)
        if raised:
            raise raised.pop()  # popped, so that error and frame do not keep each other alive

    def _step(self, blocks: Sequence[FlowBlock]) -> Sequence[object]:
        (block,) = blocks
        if block.failed:
            raise ValueError("a step of the block has failed")
        block.x = self.decoder.step(block.k, block.x, block.mu, block.spk, block.cond)
        block.k += 1
        block.note_step()
        return ()


def sentence_noise(seed: int, n_frames: int, d_mel: int) -> Tensor:
    """z [1, n_frames, d_mel] float32, standard normal. The same on every device."""
    generator = torch.Generator().manual_seed(seed & (1 << 63) - 1)
    return torch.randn(1, d_mel, n_frames, generator=generator).transpose(1, 2)
