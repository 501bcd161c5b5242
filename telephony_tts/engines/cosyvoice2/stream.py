"""One utterance from text to PCM, as a generator: tokens, mel and audio are each pulled through the stage before.

    text ─ pieces ─ SpeechModel.lm ─ ids ─ SpeechModel.flow ─ mel ─ MelStretch ─ ContinuousJoint ─ int16

What an utterance does is a function of its text, voice and seed alone: the sizes of its blocks come from its own
schedule, its randomness from its own seed, so neighbours and timing change nothing. It asks `cancelled` before each
speech token and each block, and gives its slot back however it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.cosyvoice2.generation import SentenceDecoding
from telephony_tts.engines.cosyvoice2.mel_stretch import MelStretch
from telephony_tts.engines.cosyvoice2.model.config import (
    BLOCK_TOKENS,
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_NOISE_FRAMES,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_FRAME,
)
from telephony_tts.engines.cosyvoice2.model.flow import Flow, FlowPrompt
from telephony_tts.engines.cosyvoice2.model.lm import PREFILL_CHUNK, LanguageModel
from telephony_tts.engines.cosyvoice2.model.vocoder import Vocoder
from telephony_tts.engines.cosyvoice2.model.vocoder_stream import ContinuousJoint, CounterNoise
from telephony_tts.engines.cosyvoice2.sampling import Sampler
from telephony_tts.engines.cosyvoice2.tokenizer import END_OF_PROMPT, TextTokenizer
from telephony_tts.engines.cosyvoice2.voice import PromptFeatures
from telephony_tts.engines.cosyvoice2.weights import Checkpoint
from telephony_tts.engines.cosyvoice2.word_clock import WordClock
from telephony_tts.engines.words import is_speakable, pieces, without_endless_words

MAX_POSITIONS = 4096
"""Of a slot: prompt, text and speech of one piece; 48 MB at full size in float16."""
MAX_SPEECH_TOKENS = 1500
"""Of a piece, 60 s: beside 20 per text token, the end of a model that never says that it is done."""
SOFT_CHARS, HARD_CHARS = 200, 300
"""Longer text is cut, at sentences where it can be: a model that is given more loses words."""
CHUNK_SAMPLES = SAMPLE_RATE_HZ // 5

Cancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How soon audio comes and how large the blocks are that follow.

    `first_tokens` is the first block of a voice with a prompt: its prompt is cut at the front, by less than a second,
    so that a block ends after that many. 22 leaves three prompt tokens beside whole blocks, which is all that a voice
    can share (specification 8); with the lookahead the first audio takes 25 speech tokens, and 28 without a prompt.
    `hold_frames`: see `ContinuousJoint`.
    """

    first_tokens: int = 22
    hops: tuple[int, ...] = (25, 50, 100)
    """The blocks after the first, in tokens; the last is repeated."""
    hold_frames: int | None = None

    def hop(self, n_blocks: int) -> int:
        """Tokens of the block after `n_blocks` others, of which there is at least one."""
        return self.hops[min(n_blocks, len(self.hops)) - 1]


DEFAULT = Schedule()
FAST = Schedule(first_tokens=10, hold_frames=8)
"""First audio from 13 tokens; inexact in the last frames of each chunk (`vocoder_stream`)."""


@dataclass(frozen=True, slots=True)
class SpeakerPrompt:
    """A voice, ready to speak; shared by its utterances, written by none."""

    transcript_ids: tuple[int, ...]
    speech_tokens: tuple[int, ...]
    """Of the language model: none where there is no transcript ("cross-lingual", specification 3.4)."""
    flow: FlowPrompt
    n_flow_tokens: int


class SpeechModel:
    """The three networks, the tokenizer, and the language model's slots. Only the slots change after loading."""

    def __init__(
        self, tokenizer: TextTokenizer, lm: LanguageModel, flow: Flow, vocoder: Vocoder, sampler: Sampler, n_slots: int
    ) -> None:
        self.tokenizer, self.lm, self.flow, self.vocoder, self.sampler = tokenizer, lm, flow, vocoder, sampler
        self.cache = lm.new_cache(n_slots, MAX_POSITIONS)
        self.device = lm.device
        self._slots = threading.Lock()

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: str, dtype: torch.dtype, n_slots: int) -> Self:
        def moved(state: dict[str, Tensor], to: torch.dtype) -> dict[str, Tensor]:
            return {name: tensor.to(device, to) for name, tensor in state.items()}

        config = checkpoint.config
        hift = moved(checkpoint.hift, torch.float32)  # the pitch is never less, whatever the convolutions are
        return cls(
            TextTokenizer(checkpoint.tokenizer_dir),
            LanguageModel.from_state(config.lm, moved(checkpoint.lm, dtype)),
            Flow.from_state(config, moved(checkpoint.flow, dtype)),
            Vocoder.from_state(config.vocoder, hift, dtype=dtype, wide=torch.float64),
            Sampler(config.sampling, n_slots, device),
            n_slots,
        )

    @contextmanager
    def slot(self, seed: int) -> Iterator[int]:
        """A slot for one piece of text. Raises EngineError where none is free: waiting would hold a worker."""
        with self._slots:
            slot = self.cache.acquire()
        try:
            self.sampler.start(slot, seed)
            yield slot
        finally:
            with self._slots:
                self.cache.release(slot)

    def prompt(self, features: PromptFeatures, schedule: Schedule) -> SpeakerPrompt:
        """What a voice's utterances share; costs about as much as speaking for the prompt's length."""
        ids = features.transcript_ids or tuple(self.tokenizer.encode(features.transcript))
        n_prompt = features.speech_tokens.numel()
        n_cut = (n_prompt + schedule.first_tokens) % BLOCK_TOKENS
        n_cut = n_cut if n_cut < n_prompt else 0
        flow = self.flow.prompt(
            features.speech_tokens[None, n_cut:].to(self.device),
            features.mel[None, n_cut * FRAMES_PER_TOKEN :].to(self.device),
            features.embedding[None].to(self.device, self.flow.dtype),
        )
        speech = tuple(features.speech_tokens.tolist()) if ids else ()
        return SpeakerPrompt(ids, speech, flow, n_prompt - n_cut)


@dataclass(frozen=True, slots=True)
class Request:
    """What to say and how. `speed` stretches the mel, by linear interpolation, so the pitch stays."""

    text: str
    seed: int = 0
    speed: float = 1.0
    instruct: str | None = None


def speak(
    model: SpeechModel, prompt: SpeakerPrompt, request: Request, schedule: Schedule, cancelled: Cancelled
) -> Iterator[Chunk]:
    """Chunks of at most 200 ms at 24 kHz. Their timings are estimates: the model tells none."""
    text = without_endless_words(request.text)
    n_before = 0
    for index, (start, end) in enumerate(pieces(text, SOFT_CHARS, HARD_CHARS)):
        if not is_speakable(text[start:end]):
            continue
        clock = WordClock(text, start, end, n_before, request.speed)
        seed = request.seed + index
        piece = text[start:end].strip()
        with closing(_speak_piece(model, prompt, request, piece, seed, schedule, clock, cancelled)) as chunks:
            for chunk in chunks:
                yield chunk
                n_before += len(chunk.pcm)
        if cancelled():
            return


def _speak_piece(
    model: SpeechModel,
    prompt: SpeakerPrompt,
    request: Request,
    text: str,
    seed: int,
    schedule: Schedule,
    clock: WordClock,
    cancelled: Cancelled,
) -> Generator[Chunk, None, None]:
    """One run of the language model. The slot is held while this generator is open."""
    joint = ContinuousJoint(
        model.vocoder,
        CounterNoise(seed, model.vocoder.config.n_harmonics + 1, model.device),
        schedule.hold_frames,
    )
    stretch = MelStretch(request.speed)
    n_frames = 0
    with model.slot(seed) as slot:
        tokens = _speech_tokens(model, slot, _decoding(model.tokenizer, prompt, request, text), prompt, cancelled)
        for mel, last in _mel_blocks(model, prompt.flow, tokens, schedule, cancelled):
            frames = stretch.push(mel, last=last)
            n_frames += frames.shape[2]
            if not n_frames:
                continue
            audio = joint.push(frames, last=last)[0]
            pcm = (audio.clamp(-1.0, 1.0) * 32767.0).round().to(torch.int16).cpu().numpy()
            clock.heard(len(pcm), n_frames * SAMPLES_PER_FRAME, last=last)
            for begin in range(0, len(pcm), CHUNK_SAMPLES):
                part = pcm[begin : begin + CHUNK_SAMPLES]
                yield Chunk(part, SAMPLE_RATE_HZ, clock.take(len(part)))
                if cancelled():
                    return


def _decoding(tokenizer: TextTokenizer, prompt: SpeakerPrompt, request: Request, text: str) -> SentenceDecoding:
    """The language model's prompt (specification 3.4). An instruction takes the place of the voice's transcript, and
    the prompt's speech, which does not follow it, is left out. Control tokens in either are text like any other."""
    ids = tokenizer.encode(text)
    instruct = (request.instruct or "").strip().removesuffix(END_OF_PROMPT)
    if instruct:
        return SentenceDecoding([*tokenizer.encode(instruct), tokenizer.special_ids[END_OF_PROMPT]], ids, ())
    return SentenceDecoding(prompt.transcript_ids, ids, prompt.speech_tokens)


def _speech_tokens(
    model: SpeechModel, slot: int, decoding: SentenceDecoding, prompt: SpeakerPrompt, cancelled: Cancelled
) -> Iterator[int]:
    """Speech ids one by one; stop ids are not among them. Ends early when cancelled: the caller has to look."""
    lm, cache = model.lm, model.cache
    n_most = min(MAX_SPEECH_TOKENS, N_NOISE_FRAMES // FRAMES_PER_TOKEN - prompt.n_flow_tokens)
    n_drawn = 0
    while n_drawn < n_most and (feed := decoding.next_feed()) is not None:
        x = lm.embed(feed.segments)
        if n_drawn == 0:
            cache.room(slot, x.shape[0])
            n_most = min(n_most, cache.max_len - x.shape[0])
        if feed.speech_id is not None:
            if cancelled():
                return
            hidden = lm.decode(x, [slot], cache)
        else:
            for part in torch.split(x, PREFILL_CHUNK):
                if cancelled():
                    return
                hidden = lm.extend(part, slot, cache)
        ids = model.sampler.sample(lm.logits(hidden[-1:]), [slot], [feed.banned])
        n_drawn += 1
        speech = decoding.consume(int(ids[0]))
        if speech is not None:
            yield speech


def _mel_blocks(
    model: SpeechModel, prompt: FlowPrompt, tokens: Iterator[int], schedule: Schedule, cancelled: Cancelled
) -> Iterator[tuple[Tensor, bool]]:
    """Mel [1, 80, n] block after block, and whether it is the last one. Nothing more when cancelled."""
    flow = model.flow
    stream = flow.start(prompt)
    pending: list[int] = []
    hop, n_blocks = flow.tokens_to_block_end(stream), 0
    for token in tokens:
        pending.append(token)
        if len(pending) < hop + LOOKAHEAD_TOKENS:
            continue
        ids = torch.tensor([pending], device=model.device)
        del pending[:hop]
        n_blocks += 1
        if cancelled():
            return
        yield flow.extend(stream, ids[:, :hop], ids[:, hop:]), False
        hop = schedule.hop(n_blocks)
    if cancelled():
        return
    yield flow.finish(stream, torch.tensor([pending], dtype=torch.int64, device=model.device)), True
