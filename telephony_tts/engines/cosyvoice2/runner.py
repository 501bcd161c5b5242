"""The only border between host and device: what the core decided is computed here, batch by batch.

Ids and counts come in, ids and int16 samples go out; everything between stays on the device. Nothing here chooses whom
to serve or how large a block is. Calls for different tracks, and for different stages of one track, may come from
different threads at once; those for one stage of one track come one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.generation import Feed
from telephony_tts.engines.cosyvoice2.mel_stretch import MelStretch
from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow_stream import FlowStream, Solve
from telephony_tts.engines.cosyvoice2.model.lm import PREFILL_CHUNK
from telephony_tts.engines.cosyvoice2.model.vocoder_stream import ContinuousJoint, CounterNoise, UpstreamJoint
from telephony_tts.engines.cosyvoice2.profile import Profile
from telephony_tts.engines.cosyvoice2.scheduler import Widths
from telephony_tts.engines.cosyvoice2.speech_model import PromptInTheMaking, SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.stream import Block
from telephony_tts.engines.cosyvoice2.voice import PromptFeatures

RUN_AHEAD = 5
"""Speech ids drawn on an accelerator before the host reads any; what is drawn past the end is thrown away."""


@dataclass(slots=True)
class Track:
    """What the device holds of one piece of an utterance. Dropping it frees all but its slot, see `Runner.close`."""

    slot: int
    prompt: SpeakerPrompt
    profile: Profile
    joint: ContinuousJoint | UpstreamJoint
    stretch: MelStretch
    flow: FlowStream | None
    """None where the end is computed over the whole piece again."""
    left: Tensor | None = None
    """[n, D]: what of a long feed is still to go in."""
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

    ids: Tensor

    def read(self) -> list[list[int]]:
        """Per row, in the order of the steps. Waits for the device."""
        return [list(row) for row in zip(*self.ids.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Sound:
    """Audio on its way from the device, [n] in -1..1. `n_frames`: of mel that the piece has so far."""

    audio: Tensor
    n_frames: int
    is_last: bool

    def read(self) -> Pcm | None:
        """Waits for the device. None where the model's numbers are none."""
        audio = self.audio.cpu().numpy()
        if not np.isfinite(audio).all():
            return None
        return np.rint(audio.clip(-1.0, 1.0) * 32767.0).astype(np.int16)


class Runner:
    """A loaded model, ready to be told what to compute."""

    def __init__(self, model: SpeechModel, n_threads: int = 1, widths: Widths | None = None) -> None:
        self.model = model
        self.n_threads = n_threads
        is_cpu = model.device.type == "cpu"
        n_slots = model.cache.n_slots
        # One stage a step: on one stream of a device their times add up, and the most urgent would wait for all.
        on_device = Widths(prefill=4, decode=n_slots, flow=n_slots, vocode=n_slots)
        self.widths = widths or (Widths(decode=min(4, n_slots)) if is_cpu else on_device)
        self.n_run_ahead = 1 if is_cpu else RUN_AHEAD
        self.n_flow_steps = len(model.flow.decoder.times)

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

    @torch.inference_mode()
    def prefill(self, track: Track, feed: Feed) -> Drawn | None:
        """Feed the next part of a feed of any length; the id drawn after all of it, None while there is more."""
        lm, cache = self.model.lm, self.model.cache
        x = track.left if track.left is not None else lm.embed(feed.segments)
        if track.left is None:
            cache.room(track.slot, len(x))
        hidden = lm.extend(x[:PREFILL_CHUNK], track.slot, cache)
        track.left = x[PREFILL_CHUNK:] if len(x) > PREFILL_CHUNK else None
        if track.left is not None:
            return None
        return Drawn(self._sampled(hidden[-1:], [track.slot], [feed.banned], [feed.forced])[None])

    @torch.inference_mode()
    def decode(self, tracks: Sequence[Track], rows: Sequence[Row]) -> Drawn:
        """Draw an id for each track, as many times as the rows have bans for. Where it raises, nothing was drawn.

        Rows whose values depend on how many there are go one by one where sums can be the same to the bit."""
        slots = [track.slot for track in tracks]
        cache, sampler = self.model.cache, self.model.sampler
        at = torch.tensor(slots).to(self.model.device, non_blocking=True)
        lengths, n_drawn, recent = [cache.lengths[slot] for slot in slots], sampler.n_drawn[at], sampler.recent[at]
        try:
            return Drawn(self._drawn(slots, rows))
        except BaseException:
            for slot, n in zip(slots, lengths, strict=True):
                cache.data[:, :, slot, :, n : n + len(rows[0].banned)] = 0
                cache.lengths[slot] = n
            sampler.n_drawn[at], sampler.recent[at] = n_drawn, recent
            raise

    def _drawn(self, slots: list[int], rows: Sequence[Row]) -> Tensor:
        """[steps, rows]"""
        lm, cache = self.model.lm, self.model.cache
        if len(slots) > 1 and not (lm.rows_are_exact or cache.together):
            return torch.cat([self._drawn([slot], [row]) for slot, row in zip(slots, rows, strict=True)], dim=1)
        ids = torch.tensor([row.speech_id for row in rows]).to(self.model.device, non_blocking=True)
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
    def begin(self, track: Track, block: Block) -> Solve:
        """Begin a block of the flow; `flow` takes its steps."""
        flow, prompt = self.model.flow, track.prompt
        ids = partial(torch.tensor, dtype=torch.int64, device=self.model.device)
        if block.all_ids is None:
            assert track.flow is not None
            return flow.begin(track.flow, ids([block.new]), None if block.ahead is None else ids([block.ahead]))
        track.flow = None  # what it kept is of no use for the whole
        return flow.begin_full(
            prompt.flow_tokens, ids([block.all_ids]), prompt.flow_mel, prompt.embedding, streaming=False, finalize=True
        )

    def flow(self, solves: Sequence[Solve]) -> None:
        """One Euler step of each."""
        self.model.flow.step(solves)

    @torch.inference_mode()
    def keep(self, track: Track, block: Block, solve: Solve) -> None:
        """The mel of a block that is done waits to be voiced; blocks are given in their order."""
        track.mels.append((solve.mel()[:, :, FRAMES_PER_TOKEN * block.n_before :], block.ahead is None))

    # ------------------------------------------------------------------------ vocoder

    @torch.inference_mode()
    def vocode(self, tracks: Sequence[Track]) -> list[Sound]:
        """The oldest mel of each, made audible."""
        sounds = []
        for track in tracks:
            mel, is_last = track.mels.popleft()
            frames = track.stretch.push(mel, last=is_last)
            track.n_frames += frames.shape[2]
            audio = track.joint.push(frames, last=is_last)[0] if track.n_frames else frames.new_zeros(0)
            sounds.append(Sound(audio, track.n_frames, is_last))
        return sounds

    # -------------------------------------------------------------------------- voices

    @torch.inference_mode()
    def begin_prompt(self, features: PromptFeatures, profile: Profile) -> PromptInTheMaking:
        """What a voice's utterances share, to be made by `flow`; costs about as much as speaking for its length."""
        return self.model.begin_prompt(features, profile)
