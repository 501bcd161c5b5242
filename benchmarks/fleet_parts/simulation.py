"""A fleet on a simulated clock: fronts with the server's admission, a router, replicas, losses and scaling. Pure.

A front does as `engines.remote.client` does. It knows its own utterances, and those of other fronts as each replica
told them last. It chooses a replica with `routing.choose`. It notices a lost replica only after a while. Then each
sentence under way goes on at another replica, from the next word on, as `session.handover` does.

Equal settings and calls give equal runs. Not simulated: the fronts' own computing, lost packets, and callers who call
again after "busy".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fleet_parts.callers import WORD_NS, CallPlan, TurnPlan
from fleet_parts.core_replica import CoreReplica
from fleet_parts.events import Events
from fleet_parts.light_replica import LightReplica
from fleet_parts.prices import EnginePrices
from fleet_parts.replica_api import Replica
from telephony_tts.bench.measures import NS_PER_MS, NS_PER_S
from telephony_tts.engines.failover import MAX_LOAD, Failover
from telephony_tts.engines.ray.autoscaling import wanted_replicas
from telephony_tts.engines.remote.routing import ReplicaState, choose, total_load
from telephony_tts.runtime.errors import Busy
from telephony_tts.session.admission import Admission

MAX_LATE_MS = 40.0
CHUNK_NS = 200 * NS_PER_MS
"""A call takes audio in chunks of this length."""
REFILL_NS = 500 * NS_PER_MS
"""A call with a full buffer takes nothing until it has played so much, as in `session.supply`."""
WINDOW_NS = 1000 * NS_PER_MS
"""A replica sends so much audio of an utterance ahead of its front, as in `engines.remote.connection`."""
ACK_NS = 600 * NS_PER_MS
"""A front tells what it has taken when that is half of the window, in whole chunks."""
NO_REPLICA_RETRY_NS = 100 * NS_PER_MS
"""While no replica is ready, a sentence looks for one this often, until `wait_ready_s`."""
STUCK_FACTOR, STUCK_NS = 5, 600 * NS_PER_S
"""A call that lasts so many times the longest one, and ten minutes more, never ends."""
GIVEN_HALF_LIFE_NS = 60 * NS_PER_S
N_RECENT_VOICES = 8

Router = Callable[[Sequence[ReplicaState], str | None], ReplicaState | None]
MakeReplica = Callable[[Events, EnginePrices, Callable[[int, int], None], Callable[[int], None]], Replica]


@dataclass(frozen=True, slots=True)
class Loss:
    """`n_replicas` are lost at `at_s`. `silent`: no connection is closed, so only missing messages tell of it."""

    at_s: float
    n_replicas: int = 1
    silent: bool = True
    replaced: bool = True


@dataclass(frozen=True, slots=True)
class Scaling:
    """Replicas follow the load: as many as `wanted_replicas` says, when that has been so for `up_after_s`.

    Fewer come only after `down_after_s`. A replica that leaves speaks its utterances to their end first. The defaults
    are those of `engines.ray`.
    """

    target: float = 0.45
    least: int = 1
    most: int = 1000
    every_s: float = 1.0
    up_after_s: float = 2.0
    down_after_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Canary:
    """A share of the calls speaks with other replicas, whose prices are `factor` times the others'."""

    share: float
    n_replicas: int
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How the fleet is set up. `start_s`: from the order of a replica until it is ready."""

    prices: EnginePrices
    n_replicas: int
    n_fronts: int = 8
    calls_per_front: int = 1000
    start_s: float = 120.0
    link_ms: float = 1.0
    """From a request until the replica has it and its audio is back, beside the computing."""
    watch_ms: float = 200.0
    """A replica tells its load this often."""
    stale_ms: float = 1000.0
    """A replica that has told nothing for so long is taken as lost, if there are others."""
    closed_ms: float = 5.0
    """A closed connection is noticed after this."""
    ahead_ms: float = 2000.0
    wait_ready_s: float = 10.0
    first_audio_timeout_ms: int = 1500
    scaling: Scaling | None = None
    losses: tuple[Loss, ...] = ()
    canary: Canary | None = None


State = Literal["starting", "ready", "draining", "lost", "gone"]


@dataclass(slots=True, eq=False)
class Node:
    """A replica and what the fronts know of it."""

    number: int
    replica: Replica
    is_canary: bool
    ordered_ns: int
    state: State = "starting"
    """`lost`: it is dead, and the fronts have not noticed."""
    ready_ns: int | None = None
    gone_ns: int | None = None
    died_ns: int | None = None
    told_live: int = 0
    told_cost: float = 0.0
    told_own: dict[int, int] = field(default_factory=dict)
    """Of `told_live`: the utterances of each front."""
    told_voices: tuple[str, ...] = ()
    recent_voices: dict[str, None] = field(default_factory=dict)
    sentences: set[Sentence] = field(default_factory=set)
    """Under way here, as the fronts know."""
    n_spoken: int = 0
    """Sentences that were given to it."""

    @property
    def is_open(self) -> bool:
        """Whether fronts give it sentences."""
        return self.state in ("ready", "lost")


class Front:
    """A front process: the server's own admission, and what it knows of each replica."""

    def __init__(self, number: int, settings: FleetSettings) -> None:
        self.number = number
        self.admission = Admission(settings.calls_per_front, MAX_LATE_MS)
        self.n_calls = 0
        self.n_waiting = 0
        """Sentences that wait for a replica to be ready."""
        self.n_own: dict[int, int] = defaultdict(int)
        """Its utterances at each node."""
        self._given: dict[int, tuple[float, int]] = {}

    def given_s(self, node: Node, now_ns: int) -> float:
        """The speech that it gave the node lately, in seconds."""
        given_s, at_ns = self._given.get(node.number, (0.0, 0))
        return given_s * float(0.5 ** ((now_ns - at_ns) / GIVEN_HALF_LIFE_NS))

    def gave(self, node: Node, length_s: float, now_ns: int) -> None:
        self._given[node.number] = self.given_s(node, now_ns) + length_s, now_ns

    def state(self, node: Node, now_ns: int) -> ReplicaState:
        """As `EngineConnection.state`."""
        n_own = self.n_own[node.number]
        n_others = max(0, node.told_live - node.told_own.get(self.number, 0))
        return ReplicaState(
            str(node.number),
            node.is_open,
            n_own + n_others,
            node.told_cost,
            node.told_voices,
            self.given_s(node, now_ns),
        )


@dataclass(slots=True, eq=False)
class Call:
    """A live call. `until_ns`: when the audio of its turn has been heard; None before the turn's first audio."""

    plan: CallPlan
    front: Front
    n_turns: int = 0
    turn: TurnPlan | None = None
    n_sentences: int = 0
    """Of the turn, begun."""
    sentence: Sentence | None = None
    asked_ns: int = 0
    until_ns: int | None = None
    gap_ns: int = 0
    """The longest gap of the turn."""


@dataclass(slots=True, eq=False)
class Sentence:
    """A sentence under way at a node. `n_words`: those that this node has to speak."""

    key: int
    call: Call
    n_words: int
    n_words_in_all: int
    node: Node | None = None
    asked_ns: int = 0
    given_ns: int = 0
    made_ns: int = 0
    """Audio of this node's engine. Then how much of it was sent, how much the front has, and what the call took."""
    sent_ns: int = 0
    came_ns: int = 0
    taken_ns: int = 0
    told_ns: int = 0
    """What the node knows to be taken."""
    heard_ns: int = 0
    """Of all nodes, without what was cut off again."""
    repeated_ns: int = 0
    """Said twice: the begun part of a word that was broken off."""
    is_full: bool = False
    """The call has enough audio and takes no more for now."""
    engine_ended: bool = False
    end_was_sent: bool = False
    end_came: bool = False
    """All audio has come, as the front knows."""
    is_lost: bool = False
    """Its node is lost, as its front knows."""
    is_over: bool = False
    n_moves: int = 0
    is_waiting: bool = False
    """No replica was ready."""
    waits_since_ns: int = 0
    tried: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Record:
    """What happened. Times in nanoseconds of the run."""

    first_audio: list[tuple[int, float, bool]] = field(default_factory=list)
    """(when the turn was asked for, ms until its first audio, whether a canary spoke it)"""
    refused: list[tuple[int, str]] = field(default_factory=list)
    """(when, why) of calls that got "busy"."""
    gaps: list[tuple[int, float]] = field(default_factory=list)
    """(when, ms) of silences within a turn."""
    moved: list[tuple[int, float]] = field(default_factory=list)
    """(when, ms of silence that the caller heard) of sentences that another replica went on with."""
    samples: list[tuple[int, int, int, int, int, float]] = field(default_factory=list)
    """(when, live calls, sentences under way, replicas ready, replicas that start, mean load)"""
    n_calls: int = 0
    n_ended: int = 0
    call_ns: int = 0
    n_turns: int = 0
    n_turns_heard: int = 0
    n_turns_interrupted: int = 0
    n_turns_failed: int = 0
    n_turns_with_gap: int = 0
    n_sentences: int = 0
    n_sentences_done: int = 0
    n_sentences_cancelled: int = 0
    n_sentences_failed: int = 0
    n_moves: int = 0
    n_timeouts: int = 0
    n_overloaded: int = 0
    """Sentences that began while the load was above 1: a fallback engine would have spoken them."""
    repeated_ns: int = 0
    speech_ns: int = 0


class Violation(AssertionError):
    """The simulation contradicts itself."""


class Fleet:
    """One run. `router` and `make_replica` are replaced by tests and by the comparison with the real core."""

    def __init__(
        self,
        settings: FleetSettings,
        calls: Sequence[CallPlan],
        *,
        router: Router = choose,
        make_replica: MakeReplica | None = None,
        sample_s: float = 5.0,
    ) -> None:
        self.settings, self.events, self.record = settings, Events(), Record()
        self.nodes: list[Node] = []
        self.live: set[Call] = set()
        self._router, self._make = router, make_replica or LightReplica
        self._failover = Failover((), (), timeout_ms=settings.first_audio_timeout_ms, after=3, retry_s=30)
        self._fronts = [Front(number, settings) for number in range(settings.n_fronts)]
        self._sentences: dict[int, Sentence] = {}
        self._n_keys = 0
        self._link_ns = round(settings.link_ms * NS_PER_MS)
        self._ahead_ns = round(settings.ahead_ms * NS_PER_MS)
        self._calls = calls
        self._end_ns = max((plan.arrives_ns for plan in calls), default=0)
        self._wanted: tuple[int, int] = (0, 0)
        self._sample_ns = round(sample_s * NS_PER_S)
        for _ in range(settings.n_replicas):
            self._ready(self._order(is_canary=False))
        for _ in range(settings.canary.n_replicas if settings.canary else 0):
            self._ready(self._order(is_canary=True))
        self._n_canaries = settings.canary.n_replicas if settings.canary else 0

    def run(self) -> Record:
        """Run until the last call has ended. Raises `Violation` if the books do not balance."""
        for number, plan in enumerate(self._calls):
            self.events.at(plan.arrives_ns, self._arrive, plan, self._fronts[number % len(self._fronts)])
        for loss in self.settings.losses:
            self.events.at(round(loss.at_s * NS_PER_S), self._lose, loss)
        if self.settings.scaling is not None:
            self.events.at(round(self.settings.scaling.every_s * NS_PER_S), self._scale)
        self.events.at(0, self._sample)
        longest_ns = max((plan.length_ns for plan in self._calls), default=0)
        self.events.run(self._end_ns + STUCK_FACTOR * longest_ns + STUCK_NS)
        self._check_books()
        return self.record

    # --------------------------------------------------------------------------- replicas

    def _order(self, is_canary: bool) -> Node:
        settings = self.settings
        prices = settings.prices
        if is_canary and settings.canary is not None:
            prices = prices.scaled(settings.canary.factor, f"{prices.label} canary")
        number = len(self.nodes)
        replica = self._make(
            self.events,
            prices,
            lambda key, sound_ns: self._heard(number, key, sound_ns),
            lambda key: self._engine_ended(number, key),
        )
        node = Node(number, replica, is_canary, self.events.now_ns)
        self.nodes.append(node)
        return node

    def _start(self, is_canary: bool) -> None:
        node = self._order(is_canary)
        self.events.at(self.events.now_ns + round(self.settings.start_s * NS_PER_S), self._ready, node)

    def _ready(self, node: Node) -> None:
        if node.state == "starting":
            node.state, node.ready_ns = "ready", self.events.now_ns
            self._watch(node)

    def _watch(self, node: Node) -> None:
        """The node tells its load, and again every `watch_ms`."""
        if node.state not in ("ready", "draining") or self._is_over:
            return
        node.told_live = node.replica.n_live
        node.told_own = {front.number: front.n_own[node.number] for front in self._fronts}
        node.told_voices = tuple(node.recent_voices)
        if node.told_live:
            node.told_cost = node.replica.load() / (node.told_live + 1)
        if node.state == "draining" and not node.sentences:
            self._retire(node, "gone")
            return
        self.events.at(self.events.now_ns + round(self.settings.watch_ms * NS_PER_MS), self._watch, node)

    def _retire(self, node: Node, state: State) -> None:
        node.state, node.gone_ns = state, self.events.now_ns

    def _lose(self, loss: Loss) -> None:
        """Replicas die now. The fronts notice it later."""
        wait_ms = self.settings.stale_ms if loss.silent else self.settings.closed_ms
        ready = [node for node in self.nodes if node.state == "ready" and not node.is_canary]
        for node in ready[: loss.n_replicas]:
            node.replica.kill()
            node.died_ns = self.events.now_ns
            node.state = "lost"
            self.events.at(self.events.now_ns + round(wait_ms * NS_PER_MS), self._notice, node, loss.replaced)

    def _notice(self, node: Node, replaced: bool) -> None:
        self._retire(node, "gone")
        if replaced:
            self._start(node.is_canary)
        for sentence in sorted(node.sentences, key=lambda one: one.key):
            # What has come is still taken. Then another replica goes on.
            sentence.is_lost = True
            self._take(sentence)

    def _scale(self) -> None:
        """Order or drain replicas, as the load has asked for long enough."""
        scaling = self.settings.scaling
        assert scaling is not None
        if self._is_over:
            return
        ready = [node for node in self.nodes if node.is_open and not node.is_canary]
        starting = [node for node in self.nodes if node.state == "starting" and not node.is_canary]
        n_now = len(ready) + len(starting)
        loads = [(node.told_live + 1) * node.told_cost if node.told_live else 0.0 for node in ready]
        wanted = min(scaling.most, max(scaling.least, wanted_replicas(loads, n_now, scaling.target)))
        now_ns = self.events.now_ns
        sign = (wanted > n_now) - (wanted < n_now)
        if sign != self._wanted[0]:
            self._wanted = sign, now_ns
        waited_s = (now_ns - self._wanted[1]) / NS_PER_S
        if sign > 0 and waited_s >= scaling.up_after_s:
            for _ in range(wanted - n_now):
                self._start(is_canary=False)
        elif sign < 0 and waited_s >= scaling.down_after_s and ready:
            leaving = min(ready, key=lambda node: (node.replica.n_live, -node.number))
            leaving.state = "draining"
        self.events.at(now_ns + round(scaling.every_s * NS_PER_S), self._scale)

    def _load(self, front: Front) -> float:
        """The load of all replicas of the usual kind as a front knows it."""
        now_ns = self.events.now_ns
        return total_load([front.state(n, now_ns) for n in self.nodes if n.is_open and not n.is_canary])

    # ------------------------------------------------------------------------------ calls

    @property
    def _is_over(self) -> bool:
        return self.events.now_ns > self._end_ns and not self.live

    def _arrive(self, plan: CallPlan, front: Front) -> None:
        now_ns = self.events.now_ns
        self.record.n_calls += 1
        try:
            if not any(node.is_open for node in self.nodes):
                raise Busy("no engine replica is ready", retry_after_ms=5000)
            front.admission.check(front.n_calls, front.n_waiting, now_ns, self._load(front))
        except Busy as busy:
            self.record.refused.append((now_ns, busy.message))
            return
        front.n_calls += 1
        call = Call(plan, front)
        self.live.add(call)
        self._begin_turn(call)

    def _begin_turn(self, call: Call) -> None:
        now_ns = self.events.now_ns
        spent_ns = now_ns - call.plan.arrives_ns
        if call.n_turns >= len(call.plan.turns) or (call.n_turns and spent_ns >= call.plan.length_ns):
            self.live.remove(call)
            call.front.n_calls -= 1
            self.record.n_ended += 1
            self.record.call_ns += spent_ns
            return
        call.turn = call.plan.turns[call.n_turns]
        call.n_turns += 1
        call.n_sentences, call.until_ns, call.gap_ns, call.asked_ns = 0, None, 0, now_ns
        self.record.n_turns += 1
        self._next_sentence(call)

    def _next_sentence(self, call: Call) -> None:
        assert call.turn is not None
        n_words = call.turn.words[call.n_sentences]
        call.n_sentences += 1
        self._n_keys += 1
        self.record.n_sentences += 1
        sentence = Sentence(self._n_keys, call, n_words, n_words, asked_ns=self.events.now_ns)
        call.sentence = self._sentences[sentence.key] = sentence
        self._give(sentence)

    def _end_turn(self, call: Call, turn: TurnPlan, n_turn: int) -> None:
        """All of the turn was heard. The caller replies, then the next turn begins."""
        if call.turn is turn and call.n_turns == n_turn:
            self.record.n_turns_heard += 1
            self._reply(call)

    def _reply(self, call: Call) -> None:
        assert call.turn is not None
        reply_ns, call.turn = call.turn.reply_ns, None
        self.record.n_turns_with_gap += call.gap_ns > 0
        self.events.at(self.events.now_ns + reply_ns, self._begin_turn, call)

    def _barge_in(self, call: Call, turn: TurnPlan, n_turn: int) -> None:
        if call.turn is not turn or call.n_turns != n_turn:
            return  # the turn has ended
        self.record.n_turns_interrupted += 1
        if call.sentence is not None:
            self._close(call.sentence)
            self.record.n_sentences_cancelled += 1
        self._reply(call)

    def _fail_turn(self, sentence: Sentence) -> None:
        self._close(sentence)
        self.record.n_sentences_failed += 1
        self.record.n_turns_failed += 1
        self._reply(sentence.call)

    # -------------------------------------------------------------------------- sentences

    def _able(self, sentence: Sentence) -> list[Node]:
        """The nodes that may speak this sentence: ready, not tried yet, and of the call's kind if there are such."""
        canary = self.settings.canary
        is_canary = canary is not None and sentence.call.plan.share < canary.share
        able = [node for node in self.nodes if node.is_open and node.number not in sentence.tried]
        return [node for node in able if node.is_canary == is_canary] or [n for n in able if not n.is_canary]

    def _give(self, sentence: Sentence) -> None:
        """Give the sentence to a node, or look again later while none is ready."""
        if sentence.is_over:
            return
        now_ns, call = self.events.now_ns, sentence.call
        front, voice = call.front, call.plan.voice
        able = self._able(sentence)
        chosen = self._router([front.state(node, now_ns) for node in able], voice)
        if chosen is None:
            sentence.tried.clear()
            if not sentence.is_waiting:
                sentence.is_waiting, sentence.waits_since_ns = True, now_ns
                front.n_waiting += 1
            if now_ns - sentence.waits_since_ns >= self.settings.wait_ready_s * NS_PER_S:
                self._fail_turn(sentence)
            else:
                self.events.at(now_ns + NO_REPLICA_RETRY_NS, self._give, sentence)
            return
        self._stop_waiting(sentence)
        node = self.nodes[int(chosen.name)]
        if not node.is_open:
            raise Violation(f"replica {node.number} is {node.state} and gets a sentence")
        if not sentence.n_moves:
            self.record.n_overloaded += self._load(front) > MAX_LOAD
        sentence.node, sentence.given_ns = node, now_ns
        sentence.made_ns = sentence.sent_ns = sentence.came_ns = sentence.taken_ns = sentence.told_ns = 0
        sentence.engine_ended = sentence.end_was_sent = sentence.end_came = sentence.is_lost = False
        sentence.is_full = False
        sentence.tried.add(node.number)
        node.sentences.add(sentence)
        node.n_spoken += 1
        node.recent_voices.pop(voice, None)
        node.recent_voices[voice] = None
        if len(node.recent_voices) > N_RECENT_VOICES:
            del node.recent_voices[next(iter(node.recent_voices))]
        front.n_own[node.number] += 1
        front.gave(node, sentence.n_words * WORD_NS / NS_PER_S, now_ns)
        deadline_ns = now_ns if call.until_ns is None else max(now_ns, call.until_ns)
        node.replica.submit(sentence.key, sentence.n_words, voice, deadline_ns, call.until_ns is not None)
        late_ns = self._failover.late_ns(now_ns, deadline_ns)
        self.events.at(late_ns, self._is_late, sentence, node, sentence.key)

    def _stop_waiting(self, sentence: Sentence) -> None:
        if sentence.is_waiting:
            sentence.is_waiting = False
            sentence.call.front.n_waiting -= 1

    def _is_late(self, sentence: Sentence, node: Node, key: int) -> None:
        """No audio has come in time: another replica gets the sentence, if there is one that has not tried it."""
        if sentence.is_over or sentence.key != key or sentence.came_ns or sentence.end_came:
            return
        now_ns = self.events.now_ns
        if self._able(sentence):
            self.record.n_timeouts += 1
            node.replica.cancel(sentence.key)
            self._move(sentence)
        else:
            self.events.at(
                now_ns + self.settings.first_audio_timeout_ms * NS_PER_MS, self._is_late, sentence, node, key
            )

    def _move(self, sentence: Sentence) -> None:
        """Another replica goes on behind the last complete word that was taken."""
        call, now_ns = sentence.call, self.events.now_ns
        self._leave(sentence)
        del self._sentences[sentence.key]
        broken_ns = sentence.taken_ns % WORD_NS
        if broken_ns and call.until_ns is not None:
            # What was not played of the broken word is dropped; a part that was played is said again.
            unplayed_ns = min(broken_ns, max(0, call.until_ns - now_ns))
            call.until_ns -= unplayed_ns
            sentence.heard_ns -= unplayed_ns
            sentence.repeated_ns += broken_ns - unplayed_ns
        sentence.n_words -= sentence.taken_ns // WORD_NS
        sentence.n_moves += 1
        self.record.n_moves += 1
        self._n_keys += 1
        sentence.key = self._n_keys
        self._sentences[sentence.key] = sentence
        sentence.node = None
        if sentence.n_words:
            self._give(sentence)
        else:
            self._done(sentence)

    def _leave(self, sentence: Sentence) -> None:
        """The sentence is not at its node any more, as far as its front knows."""
        node = sentence.node
        if node is not None and sentence in node.sentences:
            node.sentences.remove(sentence)
            sentence.call.front.n_own[node.number] -= 1

    def _heard(self, number: int, key: int, sound_ns: int) -> None:
        """A replica has made audio."""
        if self.nodes[number].died_ns is not None:
            raise Violation(f"replica {number} is dead and speaks")
        sentence = self._sentences.get(key)
        if sentence is not None:
            sentence.made_ns += sound_ns
            self._send(sentence)

    def _send(self, sentence: Sentence) -> None:
        """The node sends what the front's window takes. The engine knows it as taken."""
        if sentence.node is None or sentence.node.died_ns is not None:
            return
        n_chunks = -(-max(0, WINDOW_NS - (sentence.sent_ns - sentence.told_ns)) // CHUNK_NS)
        sound_ns = min(sentence.made_ns - sentence.sent_ns, n_chunks * CHUNK_NS)
        if sound_ns > 0:
            sentence.sent_ns += sound_ns
            sentence.node.replica.take(sentence.key, sound_ns)
            self.events.at(self.events.now_ns + self._link_ns, self._came, sentence.key, sound_ns)
        if sentence.engine_ended and sentence.sent_ns == sentence.made_ns and not sentence.end_was_sent:
            sentence.end_was_sent = True
            self.events.at(self.events.now_ns + self._link_ns, self._end_came, sentence.key)
        if sentence.node.replica.is_pulled and sentence.sent_ns - sentence.told_ns < WINDOW_NS:
            sentence.node.replica.pull(sentence.key)

    def _came(self, key: int, sound_ns: int) -> None:
        sentence = self._sentences.get(key)
        if sentence is not None:
            sentence.came_ns += sound_ns
            self._take(sentence)

    def _engine_ended(self, number: int, key: int) -> None:
        if self.nodes[number].died_ns is not None:
            raise Violation(f"replica {number} is dead and ends a sentence")
        sentence = self._sentences.get(key)
        if sentence is not None:
            sentence.engine_ended = True
            self._send(sentence)

    def _end_came(self, key: int) -> None:
        sentence = self._sentences.get(key)
        if sentence is not None:
            sentence.end_came = True
            self._leave(sentence)
            self._take(sentence)

    def _refill(self, sentence: Sentence, key: int) -> None:
        if not sentence.is_over and sentence.key == key:
            sentence.is_full = False
            self._take(sentence)

    def _take(self, sentence: Sentence) -> None:
        """The call takes audio until it has enough ahead of its listener, who hears it in real time.

        As in `session.supply`, the first audio of a sentence is taken at once, and the end is noticed only when more is
        asked for.
        """
        if sentence.is_over:
            return
        call, now_ns = sentence.call, self.events.now_ns
        while sentence.came_ns > sentence.taken_ns and not sentence.is_full:
            is_first = call.until_ns is None
            until_ns = now_ns if call.until_ns is None else call.until_ns
            gap_ns = max(0, now_ns - until_ns)
            if is_first:
                self._first_audio(sentence)
            elif gap_ns:
                self.record.gaps.append((now_ns, gap_ns / NS_PER_MS))
                call.gap_ns = max(call.gap_ns, gap_ns)
            if sentence.n_moves and not sentence.taken_ns:
                silence_ns = now_ns - call.asked_ns if is_first else gap_ns
                self.record.moved.append((now_ns, silence_ns / NS_PER_MS))
            begin_ns = max(until_ns, now_ns)
            room_ns = max(0, self._ahead_ns - (begin_ns - now_ns))
            sound_ns = min(sentence.came_ns - sentence.taken_ns, (room_ns // CHUNK_NS + 1) * CHUNK_NS)
            sentence.taken_ns += sound_ns
            sentence.heard_ns += sound_ns
            call.until_ns = begin_ns + sound_ns
            if call.until_ns - self._ahead_ns > now_ns:
                sentence.is_full = True
                self.events.at(call.until_ns - self._ahead_ns + REFILL_NS, self._refill, sentence, sentence.key)
        # What was taken last is told when more is asked for.
        told_ns = sentence.taken_ns - (CHUNK_NS if sentence.is_full else 0)
        n_acks = max(0, told_ns - sentence.told_ns) // ACK_NS
        if n_acks:
            sentence.told_ns += n_acks * ACK_NS
            self._send(sentence)
        if sentence.is_full or sentence.taken_ns < sentence.came_ns:
            return
        if sentence.end_came:
            self._done(sentence)
        elif sentence.is_lost:
            self._move(sentence)

    def _first_audio(self, sentence: Sentence) -> None:
        call, now_ns = sentence.call, self.events.now_ns
        turn = call.turn
        assert turn is not None
        is_canary = sentence.node is not None and sentence.node.is_canary
        self.record.first_audio.append((call.asked_ns, (now_ns - call.asked_ns) / NS_PER_MS, is_canary))
        if turn.barge_in_ns is not None:
            self.events.at(now_ns + turn.barge_in_ns, self._barge_in, call, turn, call.n_turns)

    def _done(self, sentence: Sentence) -> None:
        """The call has taken all of the sentence."""
        spoken_ns = sentence.heard_ns - sentence.repeated_ns
        if spoken_ns != sentence.n_words_in_all * WORD_NS:
            raise Violation(f"{sentence.n_words_in_all} words, and {spoken_ns / WORD_NS:.2f} were heard")
        call = sentence.call
        self._forget(sentence)
        self.record.n_sentences_done += 1
        assert call.turn is not None
        if call.n_sentences < len(call.turn.words):
            self._next_sentence(call)
        else:
            end_ns = max(self.events.now_ns, call.until_ns or 0)
            self.events.at(end_ns, self._end_turn, call, call.turn, call.n_turns)

    def _close(self, sentence: Sentence) -> None:
        """The sentence is not wanted any more."""
        if sentence.node is not None:
            sentence.node.replica.cancel(sentence.key)
        self._forget(sentence)

    def _forget(self, sentence: Sentence) -> None:
        sentence.is_over = True
        sentence.call.sentence = None
        self._sentences.pop(sentence.key, None)
        self._leave(sentence)
        self._stop_waiting(sentence)
        self.record.repeated_ns += sentence.repeated_ns
        self.record.speech_ns += sentence.heard_ns

    # ------------------------------------------------------------------------------ books

    def _sample(self) -> None:
        ready = [node for node in self.nodes if node.state in ("ready", "draining")]
        n_starting = sum(node.state == "starting" for node in self.nodes)
        n_under_way = sum(len(node.sentences) for node in self.nodes)
        told = [ReplicaState(str(node.number), True, node.told_live, node.told_cost) for node in ready]
        load = total_load(told)
        self.record.samples.append((self.events.now_ns, len(self.live), n_under_way, len(ready), n_starting, load))
        if not self._is_over:
            self.events.at(self.events.now_ns + self._sample_ns, self._sample)

    def _check_books(self) -> None:
        """Every call ends, every turn and every sentence ends once, and no replica computes more than its time."""
        record, by_name = self.record, defaultdict[str, tuple[int, int]](lambda: (0, 0))
        by_name["calls"] = record.n_calls, record.n_ended + len(record.refused)
        ends = record.n_turns_heard + record.n_turns_interrupted + record.n_turns_failed
        by_name["turns"] = record.n_turns, ends
        ends = record.n_sentences_done + record.n_sentences_cancelled + record.n_sentences_failed
        by_name["sentences"] = record.n_sentences, ends
        for name, (n_begun, n_over) in by_name.items():
            if n_begun != n_over:
                raise Violation(f"{n_begun} {name} began and {n_over} ended")
        for node in self.nodes:
            if node.sentences:
                raise Violation(f"replica {node.number} still has {len(node.sentences)} sentences")
            if node.died_ns is None and node.replica.n_live:
                raise Violation(f"replica {node.number} holds {node.replica.n_live} utterances at the end")
            until_ns = node.died_ns if node.died_ns is not None else self.events.now_ns
            # The last step of a replica that died counts whole.
            if node.died_ns is None and node.replica.busy_ns > until_ns - node.ordered_ns:
                raise Violation(f"replica {node.number} has computed for longer than it has lived")


def core_replicas(voices: Sequence[str]) -> MakeReplica:
    """Replicas that are the engine's real core."""

    def make(
        events: Events, prices: EnginePrices, heard: Callable[[int, int], None], ended: Callable[[int], None]
    ) -> Replica:
        return CoreReplica(events, prices, voices, heard, ended)

    return make
