"""The only border between host and device: what the core decided is computed here, batch by batch.

Ids and counts come in, ids and int16 samples go out; everything between stays on the device. Nothing here chooses whom
to serve or how large a block is. Calls for different tracks, and for different stages of one track, may come from
different threads at once; those for one stage of one track come one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.core.scheduler import Widths
from telephony_tts.engines.cosyvoice2.core.stream import Block
from telephony_tts.engines.cosyvoice2.device.decode_steps import DecodeSteps
from telephony_tts.engines.cosyvoice2.device.mel_stretch import MelStretch
from telephony_tts.engines.cosyvoice2.device.speech_model import PromptInTheMaking, SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.model.border import DeviceMoment, HostMoment, Returning, sent
from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowBlock, FlowStream
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.lm.lm import PREFILL_CHUNK
from telephony_tts.engines.cosyvoice2.model.lm.prefill import check_ids, extend_together, part_of
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.steps import OnFailure
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, UpstreamJoint, push_chunks
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.text.generation import Feed
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures

RUN_AHEAD = 5
"""Speech ids drawn on an accelerator before the host reads any; what is drawn past the end is thrown away."""
PREFILL_ROWS = 16
"""Prompts that are fed in one step on an accelerator, in which nobody else is served: a few thousand positions, with
which it is busy. What is best on which is yet to be measured."""


@dataclass(slots=True)
class Track:
    """What the device holds of one piece of an utterance. Dropping it frees all but its slot, see `Runner.close`."""

    slot: int
    prompt: SpeakerPrompt
    profile: Profile
    joint: ContinuousJoint | UpstreamJoint
    stretch: MelStretch
    flow: FlowStream | None
    """None once the piece is computed as a whole (`profile.finish: full`)."""
    n_fed: int = 0
    """Positions of a long feed that are in already."""
    mels: deque[tuple[Tensor, bool]] = field(default_factory=deque)
    """Not yet audible; and whether each is the last."""
    n_frames: int = 0
    """Of mel, stretched."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a decode step: the last speech id, and for each step what must not be drawn."""

    speech_id: int
    banned: tuple[tuple[int, ...], ...]
    forced: int | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """Ids on their way from the device: [steps, rows]."""

    ids: Returning

    def read(self) -> list[list[int]]:
        """Per row, in the order of the steps. Waits for the device."""
        return [list(row) for row in zip(*self.ids.read().tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Sound:
    """Audio of one track on its way from the device: samples begin .. end of `audio` [n], in -1..1."""

    audio: Returning
    """Of all tracks that were vocoded in the same call."""
    n_frames: int
    """Mel frames of the piece so far."""
    is_last: bool
    begin: int
    end: int

    def read(self) -> Pcm | None:
        """Waits for the device. None if the audio is not finite."""
        audio = self.audio.read()[self.begin : self.end].numpy()
        if not np.isfinite(audio).all():
            return None
        return np.rint(audio.clip(-1.0, 1.0) * 32767.0).astype(np.int16)


class Runner:
    """A loaded model, ready to be told what to compute."""

    def __init__(
        self, model: SpeechModel, n_threads: int = 1, widths: Widths | None = None, graphs: Graphs | None = None
    ) -> None:
        self.model = model
        self.n_threads = n_threads
        is_cpu = model.device.type == "cpu"
        n_slots = model.cache.n_slots
        # One stage a step: on one stream of a device their times add up, and the most urgent would wait for all.
        on_device = Widths(prefill=min(PREFILL_ROWS, n_slots), decode=n_slots, flow=n_slots, vocode=n_slots)
        self.widths = widths or (Widths(decode=min(4, n_slots)) if is_cpu else on_device)
        self.n_run_ahead = 1 if is_cpu else RUN_AHEAD
        self.together = not is_cpu
        """Whether prompts and audio of several tracks are computed as one batch."""
        self.n_flow_steps = len(model.flow.decoder.times)
        self.graphs = graphs or Graphs(model.device)
        self._decoding = None
        if model.cache.together:
            self._decoding = DecodeSteps(model.lm, model.cache, model.sampler, self.n_run_ahead, self.graphs)

    @property
    def n_slots(self) -> int:
        return self.model.cache.n_slots

    @property
    def n_positions(self) -> int:
        return self.model.cache.max_len

    def enter(self) -> None:
        """Called once by each thread that computes."""
        # More threads than idle cores wait for each other at every layer (docs/experiments.md).
        torch.set_num_threads(self.n_threads)

    def prepare(self, look: Callable[[], object]) -> None:
        """What a device must be told once, before anybody waits; `look` is called between, and what it raises ends
        it."""
        if self._decoding is not None:
            self._decoding.prepare(look)
        self.model.flow.prepare(self.graphs, self.n_slots, look)

    def moment(self, now_ns: Callable[[], int]) -> HostMoment | DeviceMoment:
        """Now, in what the device has to do; on a CPU by the host's clock."""
        return DeviceMoment(self.model.device) if self.model.device.type == "cuda" else HostMoment(now_ns)

    # ------------------------------------------------------------------------- pieces

    @torch.inference_mode()
    def open(self, slot: int, seed: int, prompt: SpeakerPrompt, speed: float, profile: Profile) -> Track:
        """A new piece in a slot that is free."""
        model = self.model
        noise = CounterNoise(seed, model.vocoder.config.n_harmonics + 1, model.device)
        joint: ContinuousJoint | UpstreamJoint
        if profile.upstream_joint:
            joint = UpstreamJoint(model.vocoder, noise)
        else:
            joint = ContinuousJoint(model.vocoder, noise, profile.hold_frames)
        model.sampler.start(slot, seed)
        track = Track(slot, prompt, profile, joint, MelStretch(speed), model.flow.start(prompt.flow))
        model.cache.take(slot)  # last: a slot that is taken for nobody would never be free again
        return track

    def close(self, track: Track) -> None:
        """Empty the track's slot."""
        self.model.cache.release(track.slot)

    # ----------------------------------------------------------------- language model

    def check_room(self, track: Track, feed: Feed) -> None:
        """Raises EngineError where a feed cannot be fed, before any of it is."""
        if not track.n_fed:
            check_ids(self.model.lm, feed.segments)
            self.model.cache.room(track.slot, feed.n_positions)

    @torch.inference_mode()
    def prefill(self, track: Track, feed: Feed) -> Drawn | None:
        """Feed the next part of a feed of any length; the id drawn after all of it, None while there is more."""
        self.check_room(track, feed)
        part = part_of(feed.segments, track.n_fed, PREFILL_CHUNK)
        hidden = self.model.lm.extend(self.model.lm.embed(part), track.slot, self.model.cache)
        track.n_fed += len(hidden)
        if track.n_fed < feed.n_positions:
            return None
        track.n_fed = 0
        return Drawn(Returning(self._sampled(hidden[-1:], [track.slot], [feed.banned], [feed.forced])[None]))

    @torch.inference_mode()
    def prefill_together(self, tracks: Sequence[Track], feeds: Sequence[Feed]) -> list[tuple[Drawn, int] | None]:
        """The same for several at once, as a device wants it: of each what was drawn, and in which row of it. Where it
        raises, nothing was fed."""
        parts = [part_of(feed.segments, track.n_fed, PREFILL_CHUNK) for track, feed in zip(tracks, feeds, strict=True)]
        n_fed = [
            track.n_fed + sum(len(segment.ids) for segment in part) for track, part in zip(tracks, parts, strict=True)
        ]
        goes_on = [n < feed.n_positions for n, feed in zip(n_fed, feeds, strict=True)]
        # Those of whom an id is drawn come first.
        order = sorted(range(len(tracks)), key=goes_on.__getitem__)
        n_drawn = len(tracks) - sum(goes_on)
        slots = [tracks[i].slot for i in order]
        for track, feed in zip(tracks, feeds, strict=True):
            self.check_room(track, feed)
        with self._undone_where_it_fails(slots):
            hidden = extend_together(self.model.lm, self.model.cache, slots, [parts[i] for i in order])
            drawn: Drawn | None = None
            if n_drawn:
                ending = [feeds[i] for i in order[:n_drawn]]
                banned, forced = [feed.banned for feed in ending], [feed.forced for feed in ending]
                drawn = Drawn(Returning(self._sampled(hidden[:n_drawn], slots[:n_drawn], banned, forced)[None]))
        results: list[tuple[Drawn, int] | None] = [None] * len(tracks)
        for row, i in enumerate(order):
            tracks[i].n_fed = n_fed[i] if goes_on[i] else 0
            if drawn is not None and row < n_drawn:
                results[i] = drawn, row
        return results

    @torch.inference_mode()
    def decode(self, tracks: Sequence[Track], rows: Sequence[Row]) -> Drawn:
        """Draw an id for each track, as many times as the rows have bans for. Where it raises, nothing was drawn.

        Rows whose values depend on how many there are go one by one where sums can be the same to the bit."""
        slots = [track.slot for track in tracks]
        with self._undone_where_it_fails(slots):
            return Drawn(Returning(self._drawn(slots, rows)))

    @contextmanager
    def _undone_where_it_fails(self, slots: Sequence[int]) -> Iterator[None]:
        """What is fed and drawn meanwhile is as if it had not been, where that raises."""
        cache, sampler = self.model.cache, self.model.sampler
        at = sent(slots, self.model.device)
        lengths, n_drawn, recent = [cache.lengths[slot] for slot in slots], sampler.n_drawn[at], sampler.recent[at]
        try:
            yield
        except BaseException:
            for slot, n in zip(slots, lengths, strict=True):
                cache.data[:, :, slot, :, n:] = 0
                cache.lengths[slot] = n
            sampler.n_drawn[at], sampler.recent[at] = n_drawn, recent
            raise

    def _drawn(self, slots: list[int], rows: Sequence[Row]) -> Tensor:
        """[steps, rows]"""
        lm, cache = self.model.lm, self.model.cache
        if self._decoding is not None:
            return self._decoding.draw(
                [row.speech_id for row in rows], slots, [row.banned for row in rows], [row.forced for row in rows]
            )
        if len(slots) > 1 and not lm.rows_are_exact:
            return torch.cat([self._drawn([slot], [row]) for slot, row in zip(slots, rows, strict=True)], dim=1)
        ids = sent([row.speech_id for row in rows], self.model.device)
        drawn = []
        for i in range(len(rows[0].banned)):
            # Past the end the ids are nothing, and the table has a row for all but those that are no number.
            hidden = lm.decode(lm.embed_speech(ids.clamp(min=0)), slots, cache)
            forced = [row.forced if i == 0 else None for row in rows]
            ids = self._sampled(hidden, slots, [row.banned[i] for row in rows], forced)
            drawn.append(ids)
        return torch.stack(drawn)

    def _sampled(
        self, hidden: Tensor, slots: list[int], banned: list[tuple[int, ...]], forced: list[int | None]
    ) -> Tensor:
        return self.model.sampler.sample(self.model.lm.logits(hidden), slots, banned, forced)

    # --------------------------------------------------------------------------- flow

    @torch.inference_mode()
    def begin(self, tracks: Sequence[Track], blocks: Sequence[Block]) -> list[FlowBlock]:
        """Begin a block of each track; `flow` takes its steps. If this raises, no block has begun."""
        begun: dict[int, FlowBlock] = {}
        requests: dict[int, BlockRequest] = {}
        for i, (track, block) in enumerate(zip(tracks, blocks, strict=True)):
            if block.all_ids is None:
                assert track.flow is not None
                requests[i] = BlockRequest(track.flow, block.new, block.ahead)
            else:
                begun[i] = self._begin_whole(track, block.all_ids)
        wholes = list(begun)
        begun.update(zip(requests, self.model.flow.begin(list(requests.values())), strict=True))
        for i in wholes:
            tracks[i].flow = None  # the whole sentence does not use what the blocks before have kept
        return [begun[i] for i in range(len(tracks))]

    def _begin_whole(self, track: Track, ids: Sequence[int]) -> FlowBlock:
        prompt, tokens = track.prompt, sent([ids], self.model.device)
        return self.model.flow.begin_whole(prompt.flow_tokens, tokens, prompt.flow_mel, prompt.embedding)

    def flow(self, blocks: Sequence[FlowBlock]) -> None:
        """One Euler step of each block."""
        self.model.flow.step(blocks)

    @torch.inference_mode()
    def keep(self, track: Track, block: Block, flow_block: FlowBlock) -> None:
        """Queue the mel of a block that is done for the vocoder. Blocks of a track are given in their order."""
        track.mels.append((flow_block.mel()[:, :, FRAMES_PER_TOKEN * block.n_before :], block.ahead is None))

    # ------------------------------------------------------------------------ vocoder

    @torch.inference_mode()
    def vocode(self, tracks: Sequence[Track], on_failure: OnFailure) -> list[Sound | None]:
        """Audio of the oldest mel of each track, which comes back from the device in one transfer.

        Vocoder state cannot be rolled back, so failures are reported per track: `on_failure` is called with the index
        of a track that fails, and its sound is None.
        """
        n = len(tracks)
        audio: list[Tensor | None] = [None] * n
        mels: dict[int, Tensor] = {}
        lasts = [False] * n
        for i, track in enumerate(tracks):
            try:
                mel, lasts[i] = self._next_frames(track)
                if track.n_frames:
                    mels[i] = mel
                else:
                    audio[i] = mel.new_zeros(1, 0, dtype=torch.float32)
            except Exception as error:
                on_failure(i, error)
        indices = list(mels)
        pushed = push_chunks(
            [tracks[i].joint for i in indices],
            list(mels.values()),
            [lasts[i] for i in indices],
            lambda at, error: on_failure(indices[at], error),
        )
        for i, of_track in zip(indices, pushed, strict=True):
            audio[i] = of_track
        made = [each[0] for each in audio if each is not None]
        if not made:
            return [None] * n
        returning = Returning(torch.cat(made))
        sounds: list[Sound | None] = []
        begin = 0
        for i, each in enumerate(audio):
            if each is None:
                sounds.append(None)
                continue
            end = begin + each.shape[1]
            sounds.append(Sound(returning, tracks[i].n_frames, lasts[i], begin, end))
            begin = end
        return sounds

    def _next_frames(self, track: Track) -> tuple[Tensor, bool]:
        """The oldest mel of the track, stretched [1, 80, n], and whether it is the last."""
        mel, is_last = track.mels.popleft()
        frames = track.stretch.push(mel, last=is_last)
        track.n_frames += frames.shape[2]
        return frames, is_last

    # -------------------------------------------------------------------------- voices

    @torch.inference_mode()
    def begin_prompt(self, features: PromptFeatures, profile: Profile) -> PromptInTheMaking:
        """What a voice's utterances share, to be made by `flow`; costs about as much as speaking for its length."""
        return self.model.begin_prompt(features, profile)
