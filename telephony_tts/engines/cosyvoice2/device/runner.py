"""The core's interface to the device: computes the batches that the core decided on.

Ids and counts come in; ids and int16 samples go out. All between stays on the device. Nothing here decides which stream
is served or how large a block is. Calls for different tracks, or different stages of a track, may come from different
threads at once. Calls for one stage of one track come one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.device.idle_lanes import HelpingLanes, IdleLanes, SleepingLanes
from telephony_tts.engines.cosyvoice2.device.lm_steps import CpuLmSteps, DeviceLmSteps, DrawnIds, LmSteps
from telephony_tts.engines.cosyvoice2.device.mel_stretch import MelStretch
from telephony_tts.engines.cosyvoice2.device.requests import BatchSizes, DecodeRow, TokenBlock
from telephony_tts.engines.cosyvoice2.device.speech_model import SpeakerPrompt, SpeechModel
from telephony_tts.engines.cosyvoice2.device.vllm_steps import VllmLmSteps, VllmSlots
from telephony_tts.engines.cosyvoice2.model.border import DeviceMoment, HostMoment, Returning, sent
from telephony_tts.engines.cosyvoice2.model.config import BLOCK_FRAMES, BLOCK_TOKENS, FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.failures import OnFailure
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowBlock, FlowStream
from telephony_tts.engines.cosyvoice2.model.graphs import Graphs
from telephony_tts.engines.cosyvoice2.model.lm.lm import KvCache, LanguageModel, PromptTables
from telephony_tts.engines.cosyvoice2.model.lm.prefill import PREFILL_CHUNK, check_ids, part_of
from telephony_tts.engines.cosyvoice2.model.lm.relative_lm import RelativeCache, RelativeLm
from telephony_tts.engines.cosyvoice2.model.segments import EmbeddingTable
from telephony_tts.engines.cosyvoice2.model.vocoder.noise import CounterNoise
from telephony_tts.engines.cosyvoice2.model.vocoder.recorded import RecordedChunks
from telephony_tts.engines.cosyvoice2.model.vocoder.steps import MOST_ROWS
from telephony_tts.engines.cosyvoice2.model.vocoder.stream import ContinuousJoint, UpstreamJoint, push_chunks
from telephony_tts.engines.cosyvoice2.profile import DEFAULT, Profile
from telephony_tts.engines.cosyvoice2.text.generation import SOS, LmFeed

RUN_AHEAD = 12
"""Speech ids that an accelerator draws before the host reads any: 13 ms on an H200. Two such
batches and the first id, which the prompt gives, make the first audio. Ids past the end of speech are dropped."""
CPU_RUN_AHEAD = 4
"""Ids that a CPU draws in one batch, as far as the next block needs them. Between batches lanes look for other work,
which takes time from the ids."""
PASS_ROWS = 16
"""Prompts in one run of the language model on an accelerator: a few thousand positions, which keep it busy."""
PREFILL_ROWS = 4 * PASS_ROWS
"""Prompts fed in one step on an accelerator, 16 ms of an H200. No other stream is served meanwhile. The host prepares
the next run of a step while the device computes one, and reads the first ids of all at the end."""
VOCODED_FRAMES = 86
"""Mel frames that are vocoded at once where the flow makes those of a whole piece: a second."""
FIRST_VOCODED_FRAMES = VOCODED_FRAMES // 2
"""Of a piece: speech starts a tenth of a second sooner. About 20 frames of them wait for the next ones."""

_FIRST_ALIKE = 3
"""From this chunk of a piece on, the vocoder does the same for all chunks of equal length (`recorded.usual_chunks`)."""
USUAL_FIRST_FRAMES = FRAMES_PER_TOKEN * (DEFAULT.first_tokens or BLOCK_TOKENS), BLOCK_FRAMES
"""Mel frames of the first block in the default profile, of voices with a prompt and without one."""


def vocoded_parts(n_frames: int) -> list[int]:
    """The frames of each part of a piece's mel; one empty part if it has no frames."""
    first = min(n_frames, FIRST_VOCODED_FRAMES)
    n_full, rest = divmod(n_frames - first, VOCODED_FRAMES)
    return [first, *[VOCODED_FRAMES] * n_full, *([rest] if rest else [])]


def _in_batches(kinds: Mapping[int, Hashable], n_most: int) -> list[list[int]]:
    """The keys in groups of at most `n_most`. If there are more, those of one kind come together: a group is then one
    batch, apart from the last groups, which hold what is left of all kinds."""
    keys = list(kinds)
    if len(keys) > n_most:
        by_kind: dict[Hashable, list[int]] = {}
        for key, kind in kinds.items():
            by_kind.setdefault(kind, []).append(key)
        n_whole = {kind: len(of_kind) - len(of_kind) % n_most for kind, of_kind in by_kind.items()}
        keys = [key for kind, of_kind in by_kind.items() for key in of_kind[: n_whole[kind]]]
        keys += [key for kind, of_kind in by_kind.items() for key in of_kind[n_whole[kind] :]]
    return [keys[begin : begin + n_most] for begin in range(0, len(keys), n_most)]


@dataclass(slots=True)
class Track:
    """What the device holds of one piece. Dropping it frees everything but its slot (`Runner.close`)."""

    slot: int
    prompt: SpeakerPrompt
    profile: Profile
    joint: ContinuousJoint | UpstreamJoint
    stretch: MelStretch
    flow: FlowStream | None
    """None once the piece is computed as a whole (`profile.finish: full`)."""
    n_fed: int = 0
    """Positions of a long feed that are fed already."""
    checked: LmFeed | None = None
    """The last feed whose ids were found to be in their tables."""
    mels: deque[tuple[Tensor, bool]] = field(default_factory=deque)
    """Mel that waits for the vocoder, and whether it is the last of the piece."""
    n_frames: int = 0
    """Stretched mel frames of the piece so far."""
    n_vocoded: int = 0
    """Mels of the piece that were given to the vocoder."""


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
    """A loaded model that computes what the core asks for."""

    def __init__(
        self,
        model: SpeechModel,
        n_threads: int = 1,
        batch_sizes: BatchSizes | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.model = model
        self.n_threads = n_threads
        lm, cache = model.lm, model.cache
        # CosyVoice-300M computes each stream by itself on any device.
        is_cpu = model.device.type == "cpu"
        by_slot = is_cpu or not model.family.flow_streams
        n_slots = model.cache.n_slots
        # One stage in a step: a device computes stages one after the other, so the most urgent would wait for all.
        on_device = BatchSizes(prefill=min(PREFILL_ROWS, n_slots), decode=n_slots, flow=n_slots, vocode=n_slots)
        self.batch_sizes = batch_sizes or (BatchSizes(decode=min(4, n_slots)) if by_slot else on_device)
        self.n_pass_rows = min(PASS_ROWS, self.batch_sizes.prefill)
        """Prompts in one call of `prefill`. A step may feed more (`BatchSizes.prefill`)."""
        self.n_run_ahead = CPU_RUN_AHEAD if is_cpu else 1 if by_slot else RUN_AHEAD
        self.draws_past_blocks = not is_cpu
        """Whether a decode batch may draw ids that the next block does not need: an accelerator has them for little."""
        self.n_flow_steps = model.flow.decoder.n_steps
        self.graphs = graphs or Graphs(model.device)
        self._recorded_chunks = RecordedChunks(model.vocoder, self.graphs)
        self._lm_steps: LmSteps
        if isinstance(cache, VllmSlots):
            assert isinstance(lm, PromptTables)
            self.batch_sizes, self.n_run_ahead = replace(self.batch_sizes, decode=n_slots), 1
            self._lm_steps = VllmLmSteps(lm, cache, model.sampler)
        elif by_slot:
            assert isinstance(lm, LanguageModel | RelativeLm)
            self._lm_steps = CpuLmSteps(lm, cache, model.sampler, model.family.end_of_speech)
        else:
            assert isinstance(lm, LanguageModel) and isinstance(cache, KvCache)
            self._lm_steps = DeviceLmSteps(lm, cache, model.sampler, self.n_run_ahead, self.n_pass_rows, self.graphs)
        is_int8 = lm.rows_are_exact or model.flow.decoder.estimator.is_int8
        self.idle_lanes: IdleLanes = HelpingLanes() if is_int8 else SleepingLanes()
        self._uncut = () if isinstance(lm, PromptTables) else (EmbeddingTable.TEXT,)
        """Tables whose segments are fed at once: a text encoder reads a whole text."""

    @property
    def n_slots(self) -> int:
        return self.model.cache.n_slots

    @property
    def n_positions(self) -> int:
        return self.model.cache.max_len

    def enter(self) -> None:
        """Each thread that computes calls this once."""
        # With more threads than idle cores, threads wait for each other at every layer (docs/experiments.md).
        torch.set_num_threads(self.n_threads)
        if self.model.device.type == "cuda":
            # Our kernels are launched on the thread's device, PyTorch's operations on that of their tensors.
            torch.cuda.set_device(self.model.device)

    def prepare(self, check_wanted: Callable[[], object]) -> None:
        """Record the graphs of a device. `check_wanted` is called before each and ends it by raising."""
        self._lm_steps.prepare(check_wanted)
        self.model.flow.prepare(self.graphs, self.n_slots, check_wanted)
        if self.model.family.flow_streams:
            self._recorded_chunks.prepare(self.n_slots, USUAL_FIRST_FRAMES, check_wanted)

    def moment(self, now_ns: Callable[[], int]) -> HostMoment | DeviceMoment:
        """The current point of the device's work; on a CPU the current time."""
        return DeviceMoment(self.model.device) if self.model.device.type == "cuda" else HostMoment(now_ns)

    # ------------------------------------------------------------------------- pieces

    @torch.inference_mode()
    def open(self, slot: int, seed: int, prompt: SpeakerPrompt, speed: float, profile: Profile) -> Track:
        """A new piece in a free slot."""
        model = self.model
        noise = CounterNoise(seed, model.vocoder.config.n_harmonics + 1, model.device)
        joint: ContinuousJoint | UpstreamJoint
        if profile.upstream_joint:
            joint = UpstreamJoint(model.vocoder, noise)
        else:
            joint = ContinuousJoint(model.vocoder, noise, profile.hold_frames)
        model.sampler.start(slot, seed)
        if isinstance(model.lm, RelativeLm):
            assert isinstance(model.cache, RelativeCache)
            model.lm.set_speaker(model.cache, slot, prompt.embedding)
        return Track(slot, prompt, profile, joint, MelStretch(speed), model.flow.start(prompt.flow, seed))

    def close(self, track: Track) -> None:
        """Empty the track's slot."""
        self.model.cache.clear(track.slot)

    # ----------------------------------------------------------------- language model

    def check_room(self, track: Track, feed: LmFeed) -> None:
        """Raises EngineError if a feed cannot be fed, before any of it is."""
        if not track.n_fed:
            if track.checked is not feed:
                check_ids(self.model.lm, feed.segments)
                track.checked = feed
            self.model.cache.room(track.slot, feed.n_positions)

    @torch.inference_mode()
    def prefill(self, tracks: Sequence[Track], feeds: Sequence[LmFeed]) -> list[DrawnIds | None]:
        """Feed the next part of each feed, which may be of any length. Returns the id drawn after all of a feed, or
        None while there is more of it. If it raises, nothing was fed but what is kept of a transcript."""
        for track, feed in zip(tracks, feeds, strict=True):
            self.check_room(track, feed)
            self._fill_with_transcript(track, feed)
        parts = [
            part_of(feed.segments, track.n_fed, PREFILL_CHUNK, self._uncut)
            for track, feed in zip(tracks, feeds, strict=True)
        ]
        n_fed = [
            track.n_fed + sum(len(segment.ids) for segment in part) for track, part in zip(tracks, parts, strict=True)
        ]
        ended = [feed if n == feed.n_positions else None for n, feed in zip(n_fed, feeds, strict=True)]
        slots = [track.slot for track in tracks]
        with self._rolled_back_on_error(slots):
            drawn = self._lm_steps.prefill(slots, parts, ended)
        for track, feed, n, end in zip(tracks, feeds, n_fed, ended, strict=True):
            self._keep_transcript(track, feed, n)
            track.n_fed = n if end is None else 0
        return drawn

    def _fill_with_transcript(self, track: Track, feed: LmFeed) -> None:
        """Begin an empty slot with what an earlier utterance of the voice has left of the same beginning. Its positions
        have the bits that feeding them would give."""
        kept, cache = track.prompt.kept_transcript.positions, self.model.cache
        if kept is not None and not cache.lengths[track.slot] and self._begins_with_transcript(track, feed):
            assert isinstance(cache, KvCache)
            cache.fill(track.slot, kept)
            track.n_fed = kept.shape[3]

    def _keep_transcript(self, track: Track, feed: LmFeed, n_fed: int) -> None:
        """Keep what a slot has of the voice's transcript, of which the first `n_fed` positions of the feed are all."""
        kept, cache, n = track.prompt.kept_transcript, self.model.cache, 1 + len(track.prompt.transcript_ids)
        if kept.positions is not None or n_fed < n or cache.lengths[track.slot] != n_fed:
            return
        if self._begins_with_transcript(track, feed):
            assert isinstance(cache, KvCache)
            kept.positions = cache.copied(track.slot, n)

    def _begins_with_transcript(self, track: Track, feed: LmFeed) -> bool:
        """Whether a feed begins with the start id and the voice's transcript, and positions have the same bits however
        many are fed at once."""
        lm, ids = self.model.lm, track.prompt.transcript_ids
        if not ids or not isinstance(lm, LanguageModel) or not lm.rows_are_exact or len(feed.segments) < 2:
            return False
        first, words = feed.segments[:2]
        return first == SOS and words.table is EmbeddingTable.TEXT and words.ids[: len(ids)] == ids

    @torch.inference_mode()
    def decode(self, tracks: Sequence[Track], rows: Sequence[DecodeRow]) -> list[DrawnIds]:
        """Draw ids for each track, one for each entry of `DecodeRow.banned`, or on a CPU fewer. If it raises, nothing
        was drawn."""
        slots = [track.slot for track in tracks]
        with self._rolled_back_on_error(slots):
            return self._lm_steps.decode(slots, rows)

    @contextmanager
    def _rolled_back_on_error(self, slots: Sequence[int]) -> Iterator[None]:
        """If the body raises, the cache and the sampler are as they were before it."""
        cache, sampler = self.model.cache, self.model.sampler
        at = sent(slots, self.model.device)
        lengths, n_drawn, recent = [cache.lengths[slot] for slot in slots], sampler.n_drawn[at], sampler.recent[at]
        try:
            yield
        except BaseException:
            for slot, n in zip(slots, lengths, strict=True):
                cache.cut(slot, n)
            sampler.n_drawn[at], sampler.recent[at] = n_drawn, recent
            raise

    # --------------------------------------------------------------------------- flow

    @torch.inference_mode()
    def begin(self, tracks: Sequence[Track], blocks: Sequence[TokenBlock]) -> list[FlowBlock]:
        """Begin a block of each track; `step_blocks` takes its steps. If this raises, no block has begun."""
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
        prompt, tokens, flow = track.prompt, sent([ids], self.model.device), self.model.flow
        assert isinstance(flow, Flow)
        return flow.begin_whole(prompt.flow_tokens, tokens, prompt.flow_mel, prompt.embedding)

    def step_blocks(self, blocks: Sequence[FlowBlock], on_failure: OnFailure | None = None) -> None:
        """One Euler step of each block. `on_failure`: see `Flow.step`."""
        self.model.flow.step(blocks, on_failure)

    @torch.inference_mode()
    def queue_mel(self, track: Track, block: TokenBlock, flow_block: FlowBlock) -> list[int]:
        """Queue the mel of a block that is done for the vocoder: the frames of each part that becomes audio by itself.
        Blocks of a track are given in their order."""
        mel = flow_block.mel()[:, :, FRAMES_PER_TOKEN * block.n_before :]
        n_frames, is_last = mel.shape[2], block.ahead is None
        if not self.model.family.flow_streams:
            parts = torch.split(mel, vocoded_parts(n_frames), dim=2)
            track.mels.extend((part, is_last and i == len(parts) - 1) for i, part in enumerate(parts))
            return [part.shape[2] for part in parts]
        track.mels.append((mel, is_last))
        n_soon = track.profile.second_frames
        if n_soon is None or is_last or flow_block.index != 1:
            return [n_frames]
        return [n_soon, n_frames - n_soon]

    # ------------------------------------------------------------------------ vocoder

    @torch.inference_mode()
    def vocode(self, tracks: Sequence[Track], on_failure: OnFailure) -> list[Sound | None]:
        """Audio of the oldest mel of each track. It comes back from the device in one transfer, or if there are more
        than `MOST_ROWS` tracks, in one for each batch, so that the host can take one in while the next is computed.

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
        sounds: list[Sound | None] = [None] * n
        kinds = {i: (mel.shape[2], lasts[i], min(tracks[i].n_vocoded, _FIRST_ALIKE)) for i, mel in mels.items()}
        silent = [i for i, each in enumerate(audio) if each is not None]
        for some in _in_batches(kinds, MOST_ROWS) or [[]]:
            pushed = push_chunks(
                [tracks[i].joint for i in some],
                [mels[i] for i in some],
                [lasts[i] for i in some],
                lambda at, error, some=some: on_failure(some[at], error),  # type: ignore[misc]
                run=self._recorded_chunks.run,
            )
            for i, of_track in zip(some, pushed, strict=True):
                audio[i] = of_track
            made = {i: each[0] for i in (*silent, *some) if (each := audio[i]) is not None}
            silent.clear()
            if not made:
                continue
            returning, begin = Returning(torch.cat(list(made.values()))), 0
            for i, samples in made.items():
                end = begin + len(samples)
                sounds[i] = Sound(returning, tracks[i].n_frames, lasts[i], begin, end)
                begin = end
        return sounds

    def _next_frames(self, track: Track) -> tuple[Tensor, bool]:
        """The oldest mel of the track, stretched [1, 80, n], and whether it is the last."""
        mel, is_last = track.mels.popleft()
        frames = track.stretch.push(mel, last=is_last)
        track.n_frames += frames.shape[2]
        n_soon, joint = track.profile.second_frames, track.joint
        if n_soon is not None and isinstance(joint, ContinuousJoint):
            is_divided = track.n_vocoded == 1 and not is_last
            n_later = frames.shape[2] * (mel.shape[2] - n_soon) // mel.shape[2] if is_divided else 0
            joint.hold_frames = self._n_held(track.profile, n_later)
            if is_divided:
                track.mels.appendleft((mel[:, :, :0], False))
        track.n_vocoded += 1
        return frames, is_last

    def _n_held(self, profile: Profile, n_later: int) -> int | None:
        """`ContinuousJoint.hold_frames` for a chunk of which `n_later` frames become audio with the next push.

        The joint knows all of them, so both parts are exact. If there are fewer than the vocoder looks ahead, as in
        fast speech, the chunk is not divided."""
        n_look = self.model.vocoder.reach.lookahead
        n_held = n_later + (n_look if profile.hold_frames is None else profile.hold_frames)
        return n_held if n_later and n_held >= n_look else profile.hold_frames
