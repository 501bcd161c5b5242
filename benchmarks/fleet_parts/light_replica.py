"""A replica that is quicker to simulate than the engine's core, and decides as it does.

It asks the engine's own `plan`, `new_stream_delay_ns`, `Slots`, `Counters` and `Profile`. Only the counting of
`Stream`, `Piece` and `Job` is written again, with numbers in place of ids and audio. `calibration.py` compares it with
the real core on equal input. One lane, complete texts, profiles that end causally.

Two prices of exactness are inputs: a step of the flow may stand for `flow_group` Euler steps, and a step of the
language model for `decode_group` steps in a row.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from fleet_parts.events import Events
from fleet_parts.prices import ROW_TOKENS, EnginePrices
from fleet_parts.replica_api import TOKEN_NS, WORD_TOKENS, AudioSink, EndSink, load_of
from telephony_tts.bench.measures import NS_PER_MS, NS_PER_S
from telephony_tts.engines.cosyvoice2.core.counters import Counters
from telephony_tts.engines.cosyvoice2.core.jobs import MOST_UNVOICED_BLOCKS, NEXT_AUDIO_MARGIN
from telephony_tts.engines.cosyvoice2.core.scheduler import (
    Lane,
    Need,
    PendingWork,
    Slots,
    Stage,
    new_stream_delay_ns,
    plan,
)
from telephony_tts.engines.cosyvoice2.model.config import LOOKAHEAD_TOKENS

# To read a member of an enum takes longer than all else that a decision reads.
_PREFILL, _DECODE, _FLOW, _VOCODE = Stage


@dataclass(slots=True, eq=False)
class _Stream:
    """An utterance: how many of its tokens have passed each stage."""

    key: int
    n_tokens: int
    voice: str
    deadline_ns: int
    follows: bool
    has_voice: bool = False
    slot: int | None = None
    is_fed: bool = False
    n_drawn: int = 0
    """Ids, the stop id included."""
    block_tokens: int = 0
    n_blocks: int = 0
    n_begun: int = 0
    all_begun: bool = False
    in_flow: int | None = None
    """Tokens of the block in the flow; None if the flow has no block."""
    in_flow_is_last: bool = False
    k: int = 0
    """Euler steps made of that block."""
    mels: deque[tuple[int, bool]] = field(default_factory=deque)
    n_voiced: int = 0
    made_ns: int = 0
    taken_ns: int = 0
    dry_ns: int | None = None
    held_ns: int = 0
    """First audio that is held back."""
    piece_over: bool = False
    is_over: bool = False
    pending: PendingWork | None = None

    @property
    def due_ns(self) -> int:
        return self.deadline_ns if self.dry_ns is None else self.dry_ns

    @property
    def is_new(self) -> bool:
        return self.dry_ns is None and not self.follows

    @property
    def is_drawn(self) -> bool:
        return self.n_drawn > self.n_tokens


@dataclass(slots=True, eq=False)
class _VoiceBuild:
    """A voice that is made ready: its prompt goes through the flow."""

    key: int
    name: str
    k: int = 0


class LightReplica:
    """See the module. It satisfies `Replica`."""

    is_pulled = False

    def __init__(
        self,
        events: Events,
        prices: EnginePrices,
        heard: AudioSink,
        ended: EndSink,
        *,
        flow_group: int = 1,
        decode_group: int = 1,
    ) -> None:
        if not prices.profile.causal_finish or prices.profile.whole_pieces:
            raise ValueError("a light replica knows the profiles default and fast")
        self.n_live = self.busy_ns = self.n_steps = 0
        self.counters = Counters()
        self._events, self._prices, self._heard, self._ended = events, prices, heard, ended
        self._flow_group, self._decode_group = flow_group, decode_group
        self._ahead_ns = prices.ahead.audio_ms * NS_PER_MS
        self._slots = Slots(prices.n_slots)
        self._streams: dict[int, _Stream] = {}
        self._waiting: dict[int, _Stream] = {}
        """Without a slot."""
        self._needs: dict[int, tuple[Need, ...]] = {}
        self._owing: dict[int, _Stream] = {}
        """Streams with `pending` work."""
        self._holding: dict[int, _Stream] = {}
        """Streams whose first audio is held back."""
        self._releasing: list[_Stream] = []
        self._ready_voices: OrderedDict[str, None] = OrderedDict()
        self._builds: dict[str, _VoiceBuild] = {}
        self._n_builds = 0
        self._n_drawing = 0
        self._is_stepping = self._is_dead = False

    # ------------------------------------------------------------------------- orders

    def submit(self, key: int, n_words: int, voice: str, deadline_ns: int, follows: bool) -> None:
        """See `Replica`."""
        if self._is_dead:
            return
        self.n_live += 1
        now_ns = self._events.now_ns
        stream = _Stream(key, n_words * WORD_TOKENS, voice, deadline_ns, follows or deadline_ns > now_ns)
        self._streams[key] = self._waiting[key] = stream
        self._call()

    def take(self, key: int, sound_ns: int) -> None:
        """See `Replica`."""
        stream = self._streams.get(key)
        if stream is None or stream.is_over:
            return
        was_full = stream.made_ns - stream.taken_ns >= self._ahead_ns
        stream.taken_ns += sound_ns
        self._refresh(stream)
        if was_full:
            self._call()

    def pull(self, key: int) -> None:
        """See `Replica`."""

    def cancel(self, key: int) -> None:
        """See `Replica`."""
        stream = self._streams.get(key)
        if stream is None or stream.is_over:
            return
        self._end(stream)
        self._call()

    def kill(self) -> None:
        """See `Replica`."""
        self._is_dead = True
        self.n_live = 0
        self._streams.clear()
        self._waiting.clear()
        self._needs.clear()

    def load(self) -> float:
        """See `Replica`."""
        return load_of(self.n_live, self.counters.cost)

    # -------------------------------------------------------------------------- steps

    def _call(self) -> None:
        if not self._is_stepping:
            self._is_stepping = True
            # Orders of the same moment are received before the step is planned.
            self._events.at(self._events.now_ns, self._step)

    def _step(self) -> None:
        """Plan a step, as `Core._find` does, and settle it when its price has passed."""
        if self._is_dead:
            return
        now_ns = self._events.now_ns
        self._admit()
        releasing, self._releasing = self._releasing, []
        needs = [need for own in self._needs.values() for need in own]
        if self._builds:
            needs += self._needs_of_voices()
        delay_ns = 0
        if any(need.is_new for need in needs):
            owed = [stream.pending for stream in self._owing.values() if stream.pending is not None]
            delay_ns = new_stream_delay_ns(owed, self.counters.costs, now_ns)
        made = plan(needs, Lane.ALL, self._prices.sizes, self._n_drawing, delay_ns)
        for stream in releasing:
            self._release(stream)
        if not made:
            self._is_stepping = bool(releasing)
            if releasing:
                self._events.at(now_ns, self._step)
            return
        self.n_steps += 1
        ((stage, keys),) = made.items()
        streams = [self._streams[key] for key in keys if key >= 0]
        n_builds = len(keys) - len(streams)
        spent_ns = self._price(stage, streams)
        if n_builds:
            row = self._prices.n_prompt_tokens / ROW_TOKENS
            spent_ns += n_builds * max(1, self._prices.cost.of(_FLOW, row)) * self._flow_group
            for build in self._builds.values():
                if build.key in keys:
                    build.k += self._flow_group
        self.busy_ns += spent_ns
        if stage is _FLOW:
            for stream in streams:
                if stream.in_flow is None:
                    self._begin_block(stream)
        self._events.at(now_ns + spent_ns, self._settle, stage, streams, spent_ns, n_builds)

    def _price(self, stage: Stage, streams: list[_Stream]) -> int:
        """What a step costs. A block that has no tokens takes no step of the flow."""
        if not streams:
            return 0
        cost = self._prices.cost
        if stage is _FLOW:
            sizes = [self._next_block(stream)[0] if stream.in_flow is None else stream.in_flow for stream in streams]
            n_tokens = sum(sizes)
            if not n_tokens:
                return 0
            return max(1, cost.of(stage, n_tokens / ROW_TOKENS)) * self._flow_group
        if stage is _VOCODE:
            return max(1, cost.of(stage, sum(max(1, stream.mels[0][0]) for stream in streams) / ROW_TOKENS))
        if stage is _DECODE:
            return max(1, cost.of(stage, len(streams))) * self._decode_group
        return max(1, cost.of(stage, len(streams)))

    def _settle(self, stage: Stage, streams: list[_Stream], spent_ns: int, n_builds: int) -> None:
        """Take in the results of a step, as `Core._settle` does."""
        if self._is_dead:
            return
        now_ns = self._events.now_ns
        n_batches = {_FLOW: self._flow_group, _DECODE: self._decode_group}.get(stage, 1)
        for _ in range(n_batches):
            self.counters.count_batch(stage, len(streams) + n_builds, spent_ns // n_batches, is_usual=not n_builds)
        for name, build in list(self._builds.items()):
            if build.k >= self._prices.n_euler:
                del self._builds[name]
                self._ready_voices[name] = None
                if len(self._ready_voices) > self._prices.n_ready_voices:
                    self._ready_voices.popitem(last=False)
        for stream in streams:
            if not stream.is_over:
                self._computed(stream, stage, now_ns)
        if self._holding:
            costs = self.counters.costs
            for stream in list(self._holding.values()):
                work = stream.pending
                needed_ns = 0.0
                if work is not None:
                    for of_stage, n in zip(Stage, work.n_batches, strict=True):
                        if n and of_stage in costs:
                            needed_ns += n * costs[of_stage].batch_ns
                if work is None or needed_ns * NEXT_AUDIO_MARGIN <= stream.held_ns:
                    self._give_out(stream, 0, now_ns)
                    self._refresh(stream)
        # What is told now may be answered before the next step is planned.
        self._events.at(now_ns, self._step)

    def _computed(self, stream: _Stream, stage: Stage, now_ns: int) -> None:
        if stage is _PREFILL:
            stream.is_fed = True
            self._draw(stream, 1)
        elif stage is _DECODE:
            self._draw(stream, self._prices.cost.run_ahead * self._decode_group)
        elif stage is _FLOW:
            stream.k += self._flow_group
            if stream.k >= self._prices.n_euler or not stream.in_flow:
                assert stream.in_flow is not None
                stream.mels.append((stream.in_flow, stream.in_flow_is_last))
                stream.in_flow = None
            elif stream.k > self._flow_group:
                # Only what is left of the block has changed, unless it has just begun.
                if stream.pending is not None and not stream.mels:
                    n_left = self._prices.n_euler - stream.k
                    stream.pending = PendingWork(stream.due_ns, (0, 0, n_left, 1))
                return
        else:
            n_tokens, is_last = stream.mels.popleft()
            stream.n_voiced += n_tokens
            sound_ns = n_tokens * TOKEN_NS
            stream.made_ns += sound_ns
            self.counters.count_audio(sound_ns / NS_PER_S)
            if is_last:
                stream.piece_over = True
                self._releasing.append(stream)
            if stream.is_new and not stream.held_ns:
                stream.held_ns = sound_ns
                self._holding[stream.key] = stream
            else:
                self._give_out(stream, sound_ns, now_ns)
        self._refresh(stream)

    def _draw(self, stream: _Stream, n: int) -> None:
        stream.n_drawn = min(stream.n_drawn + n, stream.n_tokens + 1)
        if stream.is_drawn:
            self._n_drawing -= 1

    def _give_out(self, stream: _Stream, sound_ns: int, now_ns: int) -> None:
        held_ns, stream.held_ns = stream.held_ns, 0
        self._holding.pop(stream.key, None)
        stream.dry_ns = max(stream.due_ns, now_ns) + held_ns + sound_ns
        for part_ns in (held_ns, sound_ns):
            if part_ns:
                self._events.at(now_ns, self._pass_on, stream.key, part_ns)

    def _pass_on(self, key: int, sound_ns: int) -> None:
        if not self._is_dead:
            self._heard(key, sound_ns)

    def _pass_end(self, key: int) -> None:
        if not self._is_dead:
            self.n_live -= 1
            self._ended(key)

    # ------------------------------------------------------------------ slots and voices

    def _admit(self) -> None:
        if not self._waiting:
            return
        for stream in sorted(self._waiting.values(), key=lambda stream: (stream.due_ns, stream.key)):
            if stream.piece_over:  # its text has been spoken
                self._end(stream)
                continue
            if not stream.has_voice:
                stream.has_voice = self._get_voice(stream.voice)
            if not stream.has_voice:
                continue
            slot = self._slots.acquire()
            if slot is not None:
                stream.slot = slot
                stream.block_tokens = self._prices.profile.block_tokens(0, self._prices.n_prompt_tokens)
                del self._waiting[stream.key]
                self._n_drawing += 1
                self._refresh(stream)

    def _get_voice(self, name: str) -> bool:
        if name in self._ready_voices:
            self._ready_voices.move_to_end(name)
            return True
        if name not in self._builds:
            self._n_builds += 1
            self._builds[name] = _VoiceBuild(-self._n_builds, name)
        return False

    def _needs_of_voices(self) -> list[Need]:
        needs = []
        waiting = [stream for stream in self._waiting.values() if not stream.has_voice and not stream.is_over]
        for build in list(self._builds.values()):
            own = [Need(build.key, _FLOW, s.due_ns, is_new=s.is_new) for s in waiting if s.voice == build.name]
            needs += own
            if not own:
                del self._builds[build.name]
        return needs

    def _end(self, stream: _Stream) -> None:
        """No further work begins for it; the next step releases it."""
        stream.is_over = True
        if stream.slot is not None and not stream.is_drawn:
            self._n_drawing -= 1
        self._waiting.pop(stream.key, None)
        self._needs.pop(stream.key, None)
        self._owing.pop(stream.key, None)
        self._holding.pop(stream.key, None)
        if stream not in self._releasing:
            self._releasing.append(stream)

    def _release(self, stream: _Stream) -> None:
        """Give back the slot of a piece that is over. The utterance ends in the step behind it, as in the core."""
        if stream.slot is not None:
            self._slots.release(stream.slot)
            stream.slot = None
        if stream.is_over:
            if self._streams.pop(stream.key, None) is not None:
                self._events.at(self._events.now_ns, self._pass_end, stream.key)
        else:
            self._waiting[stream.key] = stream
            self._needs.pop(stream.key, None)
            self._owing.pop(stream.key, None)

    # -------------------------------------------------------------------------- counting

    def _n_spare(self, stream: _Stream) -> int:
        n_known = min(stream.n_drawn, stream.n_tokens)
        return n_known - stream.n_begun - stream.block_tokens - LOOKAHEAD_TOKENS

    def _next_block(self, stream: _Stream) -> tuple[int, bool]:
        """(tokens, whether it is the last) of the block that can begin."""
        n_known = min(stream.n_drawn, stream.n_tokens)
        if n_known >= stream.n_begun + stream.block_tokens + LOOKAHEAD_TOKENS:
            return stream.block_tokens, False
        return n_known - stream.n_begun, True

    def _begin_block(self, stream: _Stream) -> None:
        n_tokens, is_last = self._next_block(stream)
        stream.in_flow, stream.in_flow_is_last, stream.k = n_tokens, is_last, 0
        stream.n_begun += n_tokens
        stream.all_begun = is_last
        if not is_last:
            stream.n_blocks += 1
            profile, n_prompt = self._prices.profile, self._prices.n_prompt_tokens
            stream.block_tokens = profile.block_tokens(stream.n_blocks, n_prompt)

    def _refresh(self, stream: _Stream) -> None:
        """What the stream needs now, and what it owes its listener: `Job.needs` and `Job.pending_work`."""
        key = stream.key
        if stream.is_over or stream.slot is None or stream.piece_over:
            self._needs.pop(key, None)
            self._owing.pop(key, None)
            stream.pending = None
            return
        due_ns, is_new, n_mels = stream.due_ns, stream.is_new, len(stream.mels)
        n_spare = self._n_spare(stream)
        is_drawn = stream.is_drawn
        needs: list[Need] = []
        if not is_drawn and n_spare < self._prices.ahead.n_tokens:
            stage = _DECODE if stream.is_fed else _PREFILL
            needs.append(Need(key, stage, due_ns, stream.is_fed and n_spare >= 0, is_new))
        in_flow_ns = (stream.n_begun - stream.n_voiced) * TOKEN_NS
        is_behind = stream.made_ns - stream.taken_ns + in_flow_ns < self._ahead_ns
        has_block = not stream.all_begun and (n_spare >= 0 or is_drawn)
        if stream.is_fed and (
            stream.in_flow is not None or (is_behind and n_mels < MOST_UNVOICED_BLOCKS and has_block)
        ):
            needs.append(Need(key, _FLOW, due_ns, is_new=is_new))
        if n_mels:
            needs.append(Need(key, _VOCODE, due_ns, is_new=is_new))
        if needs:
            self._needs[key] = tuple(needs)
        else:
            self._needs.pop(key, None)
        stream.pending = None
        if not is_new or stream.held_ns:
            if n_mels:
                stream.pending = PendingWork(due_ns, (0, 0, 0, 1))
            elif stream.in_flow is not None:
                stream.pending = PendingWork(due_ns, (0, 0, self._prices.n_euler - stream.k, 1))
            elif not stream.all_begun and is_behind:
                n_missing = 0 if is_drawn else max(0, -n_spare)
                n_decode = -(-n_missing // self._prices.cost.run_ahead)
                stream.pending = PendingWork(due_ns, (int(not stream.is_fed), n_decode, self._prices.n_euler, 1))
        if stream.pending is not None:
            self._owing[key] = stream
        else:
            self._owing.pop(key, None)
