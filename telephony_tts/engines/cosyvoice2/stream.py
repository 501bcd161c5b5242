"""One utterance from text to PCM, as a generator: tokens, mel and audio are each pulled through the stage before.

    text ─ pieces ─ _speech_tokens ─ ids ─ _mel_blocks ─ mel ─ MelStretch ─ a joint ─ int16

What an utterance does is a function of its text, voice and seed alone: the sizes of its blocks come from its profile,
its randomness from its own seed, so neighbours and timing change nothing. It asks `cancelled` before each speech token
and each Euler step, and gives its slot back however it ends. Where it can go on only when a slot is free or the bot has
written more, it gives out a `Wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from telephony_tts.engines.api import Chunk, Pcm, TextFeed
from telephony_tts.engines.cosyvoice2 import text_rules
from telephony_tts.engines.cosyvoice2.generation import BiStreamDecoding, Decoding, Feed, SentenceDecoding
from telephony_tts.engines.cosyvoice2.mel_stretch import MelStretch
from telephony_tts.engines.cosyvoice2.model.config import (
    FRAMES_PER_TOKEN,
    LOOKAHEAD_TOKENS,
    N_NOISE_FRAMES,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_FRAME,
    TOKENS_PER_S,
)
from telephony_tts.engines.cosyvoice2.model.lm import PREFILL_CHUNK
from telephony_tts.engines.cosyvoice2.model.vocoder_stream import ContinuousJoint, CounterNoise, UpstreamJoint
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.tokenizer import END_OF_PROMPT, TextTokenizer
from telephony_tts.engines.cosyvoice2.word_clock import WordClock
from telephony_tts.engines.words import MAX_WORD_CHARS, is_speakable, pieces, without_endless_words
from telephony_tts.engines.workers import Cancelled, Wait
from telephony_tts.errors import EngineError

MAX_SPEECH_TOKENS = 2250
"""Of a piece, 90 s, where the longest piece takes 70: beside 20 per text token, the end of a model that never ends."""
SOFT_CHARS, HARD_CHARS = 200, 300
"""Longer text is cut, at sentences where it can be: a model that is given more loses words."""
MOST_TOKENS = 300
"""Of a piece as upstream cuts it, which is 60 to 140 where sentences end."""
CHUNK_SAMPLES = SAMPLE_RATE_HZ // 5

ENDLESS = "the speech model did not come to an end; what it said after {:.0f} s is left out, say it again"
BROKEN = "the speech model's numbers went out of range; this text was given up (see models check)"

Ask = Callable[[], None]
"""Raises Stopped when the utterance is no longer wanted."""


class Stopped(Exception):
    """The utterance is no longer wanted. Never leaves the engine."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to say and how. `speed` stretches the mel, by linear interpolation, so the pitch stays.

    `more` brings the rest of the text while its beginning is spoken (specification 4.4). `control` are the control
    tokens that mean what they say in `text`; all others are read like any word.
    """

    text: str
    seed: int = 0
    speed: float = 1.0
    instruct: str | None = None
    more: TextFeed | None = field(default=None, compare=False, repr=False)
    control: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Voice:
    """What the stages of one utterance have in common."""

    model: SpeechModel
    prompt: SpeakerPrompt
    request: Request
    profile: Profile
    ask: Ask


def speak(
    model: SpeechModel, prompt: SpeakerPrompt, request: Request, profile: Profile, cancelled: Cancelled
) -> Generator[Chunk | Wait, None, None]:
    """Chunks of at most 200 ms at 24 kHz. Their timings are estimates: the model tells none.

    An utterance with `more` text has none at all. Raises EngineError.
    """

    def ask() -> None:
        if cancelled():
            raise Stopped

    voice = _Voice(model, prompt, request, profile, ask)
    try:
        if request.more is None:
            yield from _speak_whole(voice, request.text)
        elif request.instruct:
            # The model was not taught to begin in the middle of an instruction.
            text = yield from _rest(request.more)
            yield from _speak_whole(voice, request.text + text)
        else:
            yield from _speak_growing(voice, request.more)
    except Stopped:
        return


def _speak_whole(voice: _Voice, text: str) -> Iterator[Chunk | Wait]:
    """Piece by piece, each a run of the language model by itself."""
    text = without_endless_words(text)
    n_before, seed = 0, voice.request.seed
    for index, (start, end, piece) in enumerate(_cut(voice, text)):
        clock = WordClock(text, start, end, n_before, voice.request.speed)
        decoding = _decoding(voice.model.tokenizer, voice.prompt, voice.request, piece)
        while (slot := voice.model.slots.acquire()) is None:
            yield Wait(voice.model.slots.on_free)
            voice.ask()
        with voice.model.slots.held(slot), closing(_voiced(voice, slot, decoding, seed + index)) as parts:
            for part in parts:
                if isinstance(part, Wait):
                    yield part
                    continue
                clock.heard(len(part.pcm), part.n_known, last=part.is_last)
                for begin in range(0, len(part.pcm), CHUNK_SAMPLES):
                    pcm = part.pcm[begin : begin + CHUNK_SAMPLES]
                    n_before += len(pcm)
                    yield Chunk(pcm, SAMPLE_RATE_HZ, clock.take(len(pcm)))
                    voice.ask()
        voice.ask()


def _speak_growing(voice: _Voice, more: TextFeed) -> Iterator[Chunk | Wait]:
    """One run of the language model, given text whenever it has none left to say.

    Text that is whole by the time there is a slot for it is spoken as any other.
    """
    prompt, request, slots = voice.prompt, voice.request, voice.model.slots
    first = request.text

    def either(wake: Callable[[], None]) -> None:
        slots.on_free(wake, growing=True)
        more.on_news(wake)

    while (slot := slots.acquire(growing=True)) is None:
        voice.ask()
        text, is_last = more.take()
        first += text
        if is_last:
            yield from _speak_whole(voice, first)
            return
        yield Wait(either)
    voice = replace(voice, profile=voice.profile.growing())
    with slots.held(slot):
        decoding = BiStreamDecoding(prompt.transcript_ids, prompt.speech_tokens)
        growing = _GrowingText(voice, decoding, first, more)
        with closing(_voiced(voice, slot, decoding, request.seed, growing.grow)) as parts:
            for part in parts:
                if isinstance(part, Wait):
                    yield part
                    continue
                for begin in range(0, len(part.pcm), CHUNK_SAMPLES):
                    yield Chunk(part.pcm[begin : begin + CHUNK_SAMPLES], SAMPLE_RATE_HZ)
                    voice.ask()


# ------------------------------------------------------------------------------- text


def _cut(voice: _Voice, text: str) -> Iterator[tuple[int, int, str]]:
    """What is to be spoken in one go: where it stands in the text, and how it is spelt for the model."""
    if voice.profile.upstream_text:

        def n_tokens(part: str) -> int:
            return len(voice.model.tokenizer.encode(part))

        spelt: list[str] = []
        for part in text_rules.normalize(text, n_tokens):
            # A sentence without an end is never cut there, and the model would not come to its end either.
            cuts = pieces(part, SOFT_CHARS, HARD_CHARS) if n_tokens(part) > MOST_TOKENS else [(0, len(part))]
            spelt += [part[start:end] for start, end in cuts]
        n_spelt, n_done = sum(map(len, spelt)), 0
        for piece in spelt:
            # Signs and numbers are rewritten, so a piece's place in the text is told by its share of it.
            start, n_done = n_done * len(text) // n_spelt, n_done + len(piece)
            yield start, n_done * len(text) // n_spelt, piece
        return
    for start, end in pieces(text, SOFT_CHARS, HARD_CHARS):
        if is_speakable(text[start:end]):
            yield start, end, with_end(text[start:end].strip())


def with_end(piece: str) -> str:
    """The model takes the end of a sentence from its sign, and without one it may go on."""
    if not piece[-1:].isalnum():
        return piece
    return piece + ("。" if piece[-1] >= "\u2e80" else ".")


def _decoding(tokenizer: TextTokenizer, prompt: SpeakerPrompt, request: Request, text: str) -> SentenceDecoding:
    """The language model's prompt (specification 3.4). An instruction takes the place of the voice's transcript, and
    the prompt's speech, which does not follow it, is left out."""
    ids = tokenizer.encode(text, request.control)
    instruct = (request.instruct or "").strip().removesuffix(END_OF_PROMPT)
    if instruct:
        return SentenceDecoding([*tokenizer.encode(instruct), tokenizer.special_ids[END_OF_PROMPT]], ids, ())
    return SentenceDecoding(prompt.transcript_ids, ids, prompt.speech_tokens)


def _rest(more: TextFeed) -> Generator[Wait, None, str]:
    """All that is still to come."""
    text, is_last = more.take()
    while not is_last:
        yield Wait(more.on_news)
        rest, is_last = more.take()
        text += rest
    return text


class _GrowingText:
    """The bot's text on its way into a decoding."""

    def __init__(self, voice: _Voice, decoding: BiStreamDecoding, first: str, more: TextFeed) -> None:
        self._voice, self._decoding, self._more = voice, decoding, more
        self._last = ""
        self._tail = ""
        """As much of what came as tells whether an endless word goes on."""
        self._push(first.lstrip())

    def grow(self) -> Wait | None:
        """Hand on what has come; what to wait for where nothing has."""
        text, is_last = self._more.take()
        self._push(text)
        if is_last:
            if self._last.isalnum():
                self._push(with_end(self._last)[1:])
            self._decoding.end_text()
            return None
        return None if text else Wait(self._more.on_news)

    def _push(self, text: str) -> None:
        spoken = without_endless_words(self._tail + text)[len(self._tail) :]
        self._tail = (self._tail + text)[-MAX_WORD_CHARS:]
        ids = self._voice.model.tokenizer.encode(spoken, self._voice.request.control)
        self._decoding.push_text(ids)
        self._last = spoken.rstrip()[-1:] or self._last


# ------------------------------------------------------------------------------ stages


@dataclass(frozen=True, slots=True)
class _Part:
    """Audio of one block. `n_known`: samples that the piece will have at least."""

    pcm: Pcm
    n_known: int
    is_last: bool


def _voiced(
    voice: _Voice, slot: int, decoding: Decoding, seed: int, grow: Callable[[], Wait | None] | None = None
) -> Generator[_Part | Wait, None, None]:
    """One run of the language model."""
    model = voice.model
    noise = CounterNoise(seed, model.vocoder.config.n_harmonics + 1, model.device)
    joint: ContinuousJoint | UpstreamJoint
    if voice.profile.upstream_joint:
        joint = UpstreamJoint(model.vocoder, noise)
    else:
        joint = ContinuousJoint(model.vocoder, noise, voice.profile.hold_frames)
    stretch = MelStretch(voice.request.speed)
    n_frames = 0
    model.sampler.start(slot, seed)
    for block in _mel_blocks(voice, _speech_tokens(voice, slot, decoding, grow)):
        if isinstance(block, Wait):
            yield block
            continue
        mel, is_last = block
        frames = stretch.push(mel, last=is_last)
        n_frames += frames.shape[2]
        if n_frames:
            audio = joint.push(frames, last=is_last)[0].cpu().numpy()
            if not np.isfinite(audio).all():
                raise EngineError(BROKEN)
            pcm = np.rint(audio.clip(-1.0, 1.0) * 32767.0).astype(np.int16)
            yield _Part(pcm, n_frames * SAMPLES_PER_FRAME, is_last)


def _speech_tokens(
    voice: _Voice, slot: int, decoding: Decoding, grow: Callable[[], Wait | None] | None = None
) -> Iterator[int | Wait]:
    """Speech ids one by one; stop ids are not among them."""
    model, cache = voice.model, voice.model.cache
    n_most = min(MAX_SPEECH_TOKENS, N_NOISE_FRAMES // FRAMES_PER_TOKEN - voice.prompt.n_flow_tokens)
    n_drawn = 0
    while n_drawn < n_most:
        feed = decoding.next_feed()
        if feed is None:
            if decoding.done or grow is None:
                return
            voice.ask()
            wait = grow()
            if wait is not None:
                yield wait
            continue
        if n_drawn == 0:
            n_positions = feed.n_positions
            cache.room(slot, n_positions)
            n_most = min(n_most, cache.max_len - n_positions)
        drawn = [_draw(voice, slot, feed)]
        if isinstance(decoding, SentenceDecoding):
            n_sure = min(model.n_run_ahead, n_most - n_drawn, decoding.max_len - decoding.n_out)
            for n in range(1, n_sure):
                voice.ask()
                # Past the end the ids are nothing, and the table has a row for all but those that are no number.
                hidden = model.lm.decode(model.lm.embed_speech(drawn[-1].clamp(min=0)), [slot], cache)
                drawn.append(_sampled(voice, slot, hidden, decoding.banned_at(decoding.n_out + n)))
        for number in torch.cat(drawn).tolist():
            if number < 0:
                raise EngineError(BROKEN)
            n_drawn += 1
            speech = decoding.consume(number)
            if speech is not None:
                yield speech
    if not decoding.done:
        raise EngineError(ENDLESS.format(n_drawn / TOKENS_PER_S))


def _draw(voice: _Voice, slot: int, feed: Feed) -> Tensor:
    """Run the model over a feed; the id [1] drawn after it, on the device."""
    lm, cache = voice.model.lm, voice.model.cache
    x = lm.embed(feed.segments)
    voice.ask()
    if feed.speech_id is not None:
        hidden = lm.decode(x, [slot], cache)
    else:
        for i, part in enumerate(torch.split(x, PREFILL_CHUNK)):
            if i:
                voice.ask()
            hidden = lm.extend(part, slot, cache)
    return _sampled(voice, slot, hidden, feed.banned, feed.forced)


def _sampled(voice: _Voice, slot: int, hidden: Tensor, banned: tuple[int, ...], forced: int | None = None) -> Tensor:
    return voice.model.sampler.sample(voice.model.lm.logits(hidden[-1:]), [slot], [banned], [forced])


def _mel_blocks(voice: _Voice, tokens: Iterator[int | Wait]) -> Iterator[tuple[Tensor, bool] | Wait]:
    """Mel [1, 80, n] block after block, and whether it is the last one."""
    flow, prompt, profile = voice.model.flow, voice.prompt, voice.profile
    stream = flow.start(prompt.flow)
    known: list[int] = []
    n_out = n_blocks = 0
    hop = profile.hop(0, prompt.n_flow_tokens)

    def ids(start: int, end: int | None = None) -> Tensor:
        return torch.tensor([known[start:end]], dtype=torch.int64, device=voice.model.device)

    for token in tokens:
        if isinstance(token, Wait):
            yield token
            continue
        known.append(token)
        end = n_out + hop
        if len(known) < end + LOOKAHEAD_TOKENS:
            continue
        voice.ask()
        yield flow.extend(stream, ids(n_out, end), ids(end), voice.ask), False
        n_out, n_blocks = end, n_blocks + 1
        hop = profile.hop(n_blocks, prompt.n_flow_tokens)
    voice.ask()
    if profile.causal_finish or not known:
        yield flow.finish(stream, ids(n_out), voice.ask), True
        return
    del stream
    mel = flow.full(
        prompt.flow_tokens,
        ids(0),
        prompt.flow_mel,
        prompt.embedding,
        streaming=False,
        finalize=True,
        before_step=voice.ask,
    )
    yield mel[:, :, n_out * FRAMES_PER_TOKEN :], True
