"""An engine that speaks in other processes: `engines.api.Engine` over one or more engine servers, its replicas.

Each sentence goes to the replica that `routing` chooses. If that one is lost before it gave audio, or is late while
another one is ready, the sentence is spoken by another one from its beginning. If it is lost later, `ReplicaLost` tells
the call, which has the rest spoken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from telephony_tts.engines.api import Chunk, EngineStats, TextFeed, Utterance, Voice
from telephony_tts.engines.remote.connection import EngineConnection, RemoteSpeech
from telephony_tts.engines.remote.routing import choose, total_load
from telephony_tts.engines.remote.tls import TlsKeys
from telephony_tts.engines.words import LANGUAGE_OF_SCRIPT, LATIN, scripts
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import (
    EngineError,
    EngineUnavailable,
    ReplicaLost,
    UnknownVoice,
    UnsupportedText,
    shell_command,
)

_log = logs.get(__name__)

MAX_VERSIONS = 256
"""The versions of so many voices are kept up to date."""
_CHARS_PER_S, _CJK_PER_S = 15.0, 4.5
"""About how fast text is spoken."""


class RemoteEngine:
    """`targets`: addresses of engine servers, as gRPC names them. All of them should run the same engine with the same
    model.

    `start_timeout_s`: `start` waits so long for the first replica. `wait_ready_s`: a sentence waits so long while no
    replica is ready. `first_audio_timeout_ms`: a replica that gives no audio for so long is late. `lost_with_peers_ms`:
    a replica that says nothing at all for so long is given up, if there are others. `tls`: None connects without
    encryption.
    """

    def __init__(
        self,
        name: str,
        targets: Sequence[str],
        *,
        token: str | None = None,
        start_timeout_s: float = 60.0,
        wait_ready_s: float = 10.0,
        first_audio_timeout_ms: int = 1_500,
        lost_with_peers_ms: int = 1_500,
        tls: TlsKeys | None = None,
    ) -> None:
        self.name = name
        self._tls = tls
        self._targets: Mapping[str, str | None] = dict.fromkeys(targets, token)
        """The token of each."""
        self._start_timeout_s = start_timeout_s
        self._wait_ready_s = wait_ready_s
        self._late_ns = first_audio_timeout_ms * NS_PER_MS
        self._lost_with_peers_ns = lost_with_peers_ms * NS_PER_MS
        self._connections: dict[str, EngineConnection] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[asyncio.Task[None], EngineConnection] = {}
        """Replicas that get no new utterances and still speak."""
        self._ending: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, when a replica changed."""
        self._n_waiting = 0
        self._versions_of: dict[str, None] = {}
        self._streams_text = False
        self._reads_digits: tuple[str, ...] = ()
        self._listed: tuple[tuple[tuple[Voice, ...], ...], tuple[Voice, ...]] = (), ()
        """The voices of the replicas, and what is listed of them."""
        self._counters: dict[str, float] = {}
        """What replicas that are gone had counted."""

    # ------------------------------------------------------------ the replicas

    @property
    def streams_text(self) -> bool:
        """As the replicas say. False before the first one was reached."""
        return self._streams_text

    @property
    def reads_digits(self) -> tuple[str, ...]:
        """The languages in which all replicas read digits. Empty before the first one was reached."""
        return self._reads_digits

    def set_targets(self, targets: Mapping[str, str | None]) -> None:
        """Use these replicas, each with its token, from now on. Others finish the utterances that they have, and a
        connection with another token does too."""
        before, self._targets = self._targets, dict(targets)
        if not self._is_open:
            return
        self._list_voices()  # before replicas leave: theirs stay until others have listed their own
        same = dict(before.items() & self._targets.items())
        for target in [target for target in self._tasks if target not in same]:
            leaving = self._connections.pop(target)
            leaving.is_leaving = True
            self._leaving[self._tasks.pop(target)] = leaving
        for target, token in self._targets.items():
            if target not in self._tasks:
                connection = EngineConnection(
                    target, self.name, token, self._replica_changed, self._versions_of, self._lost_with_peers_ns,
                    self._tls,
                )  # fmt: skip
                self._connections[target] = connection
                self._tasks[target] = asyncio.create_task(connection.run(), name=f"{self.name} {target}")
        for connection in self._connections.values():
            connection.has_peers = len(self._connections) > 1
        self._replica_changed()

    @property
    def replicas(self) -> tuple[EngineConnection, ...]:
        return tuple(self._connections.values())

    @property
    def _ready(self) -> list[EngineConnection]:
        return [connection for connection in self._connections.values() if connection.is_ready]

    def _replica_changed(self) -> None:
        for task, gone in list(self._leaving.items()):
            if not gone.n_own:
                del self._leaving[task]
                task.cancel()
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
                self._keep_counters(gone)
        attached = [each.attached for each in self._connections.values() if each.attached is not None]
        if attached:
            self._streams_text = all(each.streams_text for each in attached)
            first, *others = attached
            self._reads_digits = tuple(
                language for language in first.reads_digits if all(language in each.reads_digits for each in others)
            )
        self._changed.set()
        self._changed = asyncio.Event()

    def _keep_counters(self, gone: EngineConnection) -> None:
        for key, value in gone.counters().items():
            self._counters[key] = self._counters.get(key, 0.0) + value

    # ------------------------------------------------------------------ Engine

    async def start(self) -> None:
        """Wait until a replica is ready. Raises EngineUnavailable."""
        if self._is_open:
            return
        self._is_open = True
        self.set_targets(self._targets)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._start_timeout_s
        try:
            while not self._ready:
                replicas = self._connections.values()
                if replicas and all(each.is_refused for each in replicas):
                    raise EngineUnavailable(f"{self.name}: {self._problems()}")
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(end_s):
                        await self._changed.wait()
                if loop.time() >= end_s and not self._ready:
                    raise EngineUnavailable(
                        f"{self.name}: no engine was ready within {self._start_timeout_s:g} s: {self._problems()}. "
                        f"Start one: {shell_command('telephony-tts engine serve')} --listen ADDRESS"
                    )
        except BaseException:
            await self.close()
            raise

    def _problems(self) -> str:
        """Why no replica is ready."""
        if not self._connections:
            return "there is no replica"
        return "; ".join(f"{each.target}: {each.problem}" for each in self._connections.values())

    async def close(self) -> None:
        self._is_open = False
        tasks = [*self._tasks.values(), *self._leaving, *self._ending]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._connections.clear()
        self._leaving.clear()
        self._replica_changed()

    @property
    def voices(self) -> tuple[Voice, ...]:
        """The voices of all replicas, those of the first one first. They stay while a replica restarts, and while
        another one loads in its place."""
        return self._list_voices()

    def _list_voices(self) -> tuple[Voice, ...]:
        of_each = tuple(each.voices for each in self._connections.values() if each.has_listed)
        if of_each != self._listed[0] and of_each:
            by_name = {voice.name: voice for voices in reversed(of_each) for voice in voices}
            order = dict.fromkeys(voice.name for voices in of_each for voice in voices)
            self._listed = of_each, tuple(by_name[name] for name in order)
        return self._listed[1]

    def find_voice(self, name: str) -> Voice | None:
        """A voice that a replica has and does not list yet. The first question for it is answered with None."""
        found = [each.find_voice(name) for each in self._ready]
        return next((voice for voice in found if voice is not None), None)

    def version(self, voice: str) -> str | None:
        """The version that all replicas have. None while they differ, and for the first time that it is asked for."""
        if voice not in self._versions_of:
            if len(self._versions_of) >= MAX_VERSIONS:
                del self._versions_of[next(iter(self._versions_of))]
            self._versions_of[voice] = None
        versions = {each.version(voice) for each in self._ready}
        return versions.pop() if len(versions) == 1 else None

    def stats(self) -> EngineStats:
        if not self._is_open:
            return EngineStats()
        now_ns = monotonic_ns()
        replicas = [*self._connections.values(), *self._leaving.values()]
        stats = [each.stats() for each in replicas]
        is_ready = any(each.is_ready for each in stats)
        return EngineStats(
            self._n_waiting + sum(each.n_queued for each in stats),
            sum(each.n_running for each in stats),
            total_load([each.state(now_ns) for each in replicas]),
            is_ready,
            0 if is_ready else min((each.retry_after_ms for each in stats if each.retry_after_ms), default=0),
            len(self._connections),
            len(self._connections) - len(self._ready),
        )

    def counters(self) -> Mapping[str, float]:
        """The sums over all replicas."""
        total = dict(self._counters)
        for each in (*self._connections.values(), *self._leaving.values()):
            for key, value in each.counters().items():
                total[key] = total.get(key, 0.0) + value
        return total

    def check(self, utterance: Utterance) -> None:
        """Raises UnknownVoice, and UnsupportedText if no letter is of a script that the voice can read. The replica
        checks the rest."""
        voices, name = self.voices, utterance.voice
        if name is not None and voices:
            known = next((voice for voice in voices if voice.name == name), None) or self.find_voice(name)
            if known is None:
                names = ", ".join(voice.name for voice in voices[:12])
                raise UnknownVoice(f"{self.name} has no voice {name!r}; it has {names}")
            voices = (known,)
        found = scripts(utterance.text)
        if not voices or not found or LATIN in found:
            return
        languages = [LANGUAGE_OF_SCRIPT[script] for script in found if script in LANGUAGE_OF_SCRIPT]
        if not any(voice.speaks(language) for language in languages for voice in voices):
            letters = "/".join(sorted(found)).lower()
            raise UnsupportedText(f"{self.name} cannot read {letters} letters with any voice that may speak them")

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        text = _GrowingText(utterance)
        length_s = _spoken_s(utterance)
        tried: list[str] = []
        late: ReplicaLost | None = None
        while True:
            replica = await self._choose(utterance, tried, late)
            speech: RemoteSpeech | None = None
            is_heard = False
            try:
                speech = replica.submit(text.utterance(), length_s)
                chunk = await self._first(speech, utterance, [*tried, replica.target])
                while chunk is not None:
                    is_heard = True
                    yield chunk
                    chunk = await speech.next()
                return
            except ReplicaLost as lost:
                if is_heard:
                    raise
                late = lost
            finally:
                if speech is not None:
                    await speech.close()
            tried.append(replica.target)
            _log.warning("engine_replica_replaced", engine=self.name, turn=utterance.turn, target=replica.target)

    async def _choose(self, utterance: Utterance, tried: Collection[str], lost: ReplicaLost | None) -> EngineConnection:
        """The replica that speaks next. Waits if none is ready. Raises EngineError."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._wait_ready_s
        self._n_waiting += 1
        try:
            while self._is_open:
                if (chosen := self._best(utterance.voice, tried)) is not None:
                    return chosen
                if lost is not None:
                    raise lost
                changed = self._changed
                try:
                    async with asyncio.timeout_at(end_s):
                        await changed.wait()
                except TimeoutError:
                    raise EngineError(
                        f"no replica of {self.name} is ready ({self._problems()}); say it again in a moment",
                        retry_after_ms=1_000,
                    ) from None
        finally:
            self._n_waiting -= 1
        raise EngineError(f"{self.name} does not run")

    def _best(self, voice: str | None, tried: Collection[str]) -> EngineConnection | None:
        able = [each for each in self._ready if each.target not in tried]
        if voice is not None:
            # All have it, unless one was stored a moment ago.
            able = [each for each in able if any(own.name == voice for own in each.voices)] or able
        if len(able) < 2:
            return able[0] if able else None
        now_ns = monotonic_ns()
        chosen = choose([each.state(now_ns) for each in able], voice)
        return self._connections[chosen.name] if chosen is not None else None

    async def _first(self, speech: RemoteSpeech, utterance: Utterance, tried: Collection[str]) -> Chunk | None:
        """The first chunk. Raises ReplicaLost if it is late and another replica may be quicker."""
        if utterance.can_wait or utterance.more is not None:
            return await speech.next()
        now_ns = monotonic_ns()
        # While the caller has audio, a replica may serve others first.
        wait_ns = max(self._late_ns, utterance.deadline_ns - self._late_ns - now_ns)
        while True:
            try:
                async with asyncio.timeout(wait_ns / NS_PER_S):
                    return await speech.next()
            except TimeoutError:
                if self._best(utterance.voice, tried) is not None:
                    speech.abandon()
                    raise ReplicaLost(f"a replica of {self.name} gave no audio in time") from None
                wait_ns = self._late_ns


class _GrowingText:
    """The text of an utterance for each replica in turn: all that is known of it, and the rest as it comes."""

    def __init__(self, utterance: Utterance) -> None:
        self._utterance = utterance
        self._feed: TextFeed | None = None
        self._is_whole = utterance.more is None
        self._text = utterance.text

    def utterance(self) -> Utterance:
        """The utterance for the next replica. The feed of the one before gets no more."""
        if self._utterance.more is None:
            return self._utterance
        if self._feed is not None:
            self._feed.end()
        self._feed = None if self._is_whole else TextFeed()
        chosen = replace(self._utterance, text=self._text, more=self._feed)
        if self._feed is not None:
            self._forward()
        return chosen

    def _forward(self) -> None:
        source, feed = self._utterance.more, self._feed
        assert source is not None and feed is not None

        def take() -> None:
            text, is_last = source.take()
            self._text += text
            feed.push(text)
            if is_last:
                self._is_whole = True
                feed.end()
            else:
                source.on_news(take)

        source.on_news(take)  # this replaces the `take` of the replica before


def _spoken_s(utterance: Utterance) -> float:
    """About how long the speech of a text is."""
    n_cjk = sum(char >= "\u2e80" for char in utterance.text)
    return ((len(utterance.text) - n_cjk) / _CHARS_PER_S + n_cjk / _CJK_PER_S) / utterance.speed
