"""An engine in another process: what its client sees of it, and what each side does when the other one fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine_servers
import grpc
import grpc.aio
import numpy as np
import pytest
from clean_run import PATIENCE, until
from conformance import joined, speak
from engine_servers import ServerProcess, attached, engine_server, started
from forked_process import ForkServer

from telephony_tts.cli.main import main
from telephony_tts.engines.api import Chunk, EngineStats, Pcm, TextFeed, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine, render
from telephony_tts.engines.phrase_store import PhraseStore
from telephony_tts.engines.phrases import PhraseKeeper
from telephony_tts.engines.remote.addresses import parse_address
from telephony_tts.engines.remote.client import RemoteEngine
from telephony_tts.engines.remote.connection import WINDOW_MS
from telephony_tts.engines.remote.messages import (
    METHOD,
    PROTOCOL,
    SERVICE,
    Attach,
    Attached,
    EngineStatus,
    KeepAlive,
    decode_from_server,
    encode,
)
from telephony_tts.engines.remote.server import EngineServer
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, ReplicaLost, UnknownVoice, UnsupportedText

pytestmark = pytest.mark.slow

TEXT = "Thank you for calling, how can I help you today?"
LONG = " ".join([TEXT] * 20)
SLOW = ("engines.fake.rtf=1", "engines.fake.first_audio_ms=50")
"""The fake engine in real time."""


@pytest.fixture(scope="module")
def module_server(server_forks: ForkServer) -> Iterator[ServerProcess]:
    """A server of the fake engine for tests that neither signal nor end it."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_servers, "subprocess", server_forks)
            server = stack.enter_context(engine_server())
        yield server


@pytest.fixture
def server(module_server: ServerProcess) -> ServerProcess:
    """The server of the module, which no earlier test has ended or left with an utterance."""

    async def look() -> None:
        async with attached(module_server.address) as witness:
            assert witness.stats() == EngineStats()

    assert module_server.child.poll() is None
    run(look)
    return module_server


def run(work: Callable[[], Any], within_s: float = 60.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(within_s * PATIENCE):
            await work()

    asyncio.run(bounded())


def n_at_server(client: RemoteEngine) -> int:
    """The utterances at the server, as `client` was told."""
    stats = client.stats()
    return stats.n_queued + stats.n_running


async def first_chunk(engine: RemoteEngine, text: str = LONG, **how: Any) -> tuple[Any, Chunk]:
    stream = engine.synthesize(Utterance("u", text, **how))
    return stream, await anext(stream)


# ------------------------------------------------------------------- speaking


def test_the_audio_and_its_timings_are_those_of_the_engine(server: ServerProcess) -> None:
    async def work() -> None:
        local = FakeEngine()
        async with attached(server.address) as engine:
            utterance = Utterance("u", TEXT, speed=1.25)
            theirs, ours = await speak(engine, utterance), await speak(local, utterance)
            assert np.array_equal(joined(theirs), joined(ours))
            assert [t for chunk in theirs for t in chunk.timings] == [t for chunk in ours for t in chunk.timings]
            assert len(theirs[0].pcm) == len(ours[0].pcm), "the first chunk is not kept back"
            assert len(theirs) < len(ours) / 1.5, "the others are joined"
            assert [voice.name for voice in engine.voices] == ["tone"] and engine.voices[0].engine == "remote"
            assert engine.streams_text is False
            assert engine.replicas[0].attached is not None and engine.replicas[0].attached.engine == "fake"

    run(work)


@pytest.mark.usefixtures("forks")
def test_mistakes_of_the_bot_keep_their_kind() -> None:
    async def work() -> None:
        async with attached(server.address) as engine:
            with pytest.raises(UnknownVoice, match="it has heart"):
                engine.check(Utterance("u", TEXT, voice="stranger"))
            with pytest.raises(UnsupportedText, match="cjk"):
                engine.check(Utterance("u", "你好"))
            mixed = Utterance("u", "Hello 你好")
            engine.check(mixed)  # only the engine itself knows
            with pytest.raises(UnsupportedText, match="hibari speaks English only"):
                await speak(engine, mixed)
            assert engine.stats() == EngineStats()

    with engine_server("engines.default=hibari") as server:
        run(work)


@pytest.mark.usefixtures("forks")
def test_phrases_of_a_remote_engine_can_be_kept() -> None:
    async def work() -> None:
        store = PhraseStore(10_000_000, None, 0)
        keeper = PhraseKeeper(RemoteEngine("remote", [server.address]), store)
        await keeper.start()
        try:
            assert keeper.key(Utterance("u", TEXT)) is None, "its version is not known yet"
            await until(lambda: keeper.key(Utterance("u", TEXT)), "its version")
            first = joined(await speak(keeper, Utterance("u", TEXT)))
            os.kill(server.pid, signal.SIGSTOP)
            try:
                assert np.array_equal(joined(await asyncio.wait_for(speak(keeper, Utterance("v", TEXT)), 0.5)), first)
            finally:
                os.kill(server.pid, signal.SIGCONT)
        finally:
            await keeper.close()

    with engine_server() as server:
        run(work)


class StreamingTones(FakeEngine):
    """Speaks the beginning of a text at once, and the rest as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.streams_text = True
        self.n_pulled = 0

    async def synthesize(self, utterance: Utterance) -> Any:
        self.n_live += 1
        try:
            for chunk in _chunks(render(utterance.text)):
                self.n_pulled += 1
                yield chunk
            is_last = utterance.more is None
            while not is_last:
                assert utterance.more is not None
                news = asyncio.Event()
                utterance.more.on_news(news.set)
                await news.wait()
                text, is_last = utterance.more.take()
                for chunk in _chunks(render(text)):
                    yield chunk
        finally:
            self.n_live -= 1


def _chunks(pcm: Pcm) -> list[Chunk]:
    return [Chunk(pcm[at : at + 2400], 24_000) for at in range(0, len(pcm), 2400)]


def served_here(engine: Any, tmp_path: Path, work: Callable[[RemoteEngine, EngineServer], Any], **how: Any) -> None:
    """Run `work` with a client of `engine`, which is served in this process."""

    async def serve() -> None:
        server = EngineServer(engine, **how)
        await engine.start()
        address = await server.listen(parse_address(f"unix:{tmp_path}/e.sock"))
        server.engine_is_loaded()
        try:
            async with attached(str(address)) as client:
                await work(client, server)
        finally:
            await server.close()
            await engine.close()

    run(serve)


class DigitReader(FakeEngine):
    reads_digits = ("ja",)


def test_an_engine_behind_a_server_says_that_it_reads_digits(tmp_path: Path) -> None:
    """Without that, 10分 came to it as 十分, which it reads as ジューブン."""

    async def work(client: RemoteEngine, _: EngineServer) -> None:
        assert client.reads_digits == ("ja",)
        catalog = Catalog([client])
        assert catalog.reads_digits(None, "ja-JP") and not catalog.reads_digits(None, "zh")

    assert RemoteEngine("remote", ["unix:none"]).reads_digits == (), "nothing is known before a server is reached"
    served_here(DigitReader(languages=["ja"]), tmp_path, work)


def test_growing_text_is_spoken_as_it_comes(tmp_path: Path) -> None:
    engine = StreamingTones()

    async def work(client: RemoteEngine, _: EngineServer) -> None:
        assert client.streams_text
        feed = TextFeed()
        stream = client.synthesize(Utterance("u", "one ", more=feed))
        heard = [await anext(stream)]
        while sum(len(chunk.pcm) for chunk in heard) < len(render("one ")):
            heard.append(await anext(stream))
        feed.push("two ")
        feed.push("three")
        heard.append(await anext(stream))
        feed.end()
        heard += [chunk async for chunk in stream]
        assert np.array_equal(joined(heard), np.concatenate([render("one "), render("two three")]))
        assert client.stats() == EngineStats() and engine.n_live == 0

    served_here(engine, tmp_path, work)


def test_an_utterance_that_is_not_pulled_is_not_computed(tmp_path: Path) -> None:
    """The window is the engine's back-pressure."""
    engine = StreamingTones()

    async def work(client: RemoteEngine, _: EngineServer) -> None:
        stream = client.synthesize(Utterance("u", LONG * 3))
        await anext(stream)
        await asyncio.sleep(0.3)
        most = WINDOW_MS // 100 + 2
        assert 5 <= engine.n_pulled <= most, "chunks of 100 ms"
        heard_ms = 100.0
        while heard_ms < 10_000:
            chunk = await anext(stream)
            heard_ms += len(chunk.pcm) / 24
            assert engine.n_pulled <= heard_ms / 100 + most
        await stream.aclose()
        assert engine.n_live == 0, "the slot is free before aclose returns"

    served_here(engine, tmp_path, work)


def test_an_engine_that_crashes_or_gives_up_ends_only_its_utterance(tmp_path: Path) -> None:
    class Faulty(StreamingTones):
        async def synthesize(self, utterance: Utterance) -> Any:
            async for chunk in super().synthesize(utterance):
                yield chunk
                if utterance.id == "crash":
                    raise RuntimeError("a secret of the machine")
                if utterance.id == "gives up":
                    raise asyncio.CancelledError

    async def work(client: RemoteEngine, _: EngineServer) -> None:
        kept, _chunk = await first_chunk(client)
        for name, why in (("crash", "failed; see the log of its server"), ("gives up", "gave up")):
            with pytest.raises(EngineError, match=why) as failed:
                await speak(client, Utterance(name, TEXT))
            assert failed.value.retryable and "secret" not in failed.value.message
        assert len((await anext(kept)).pcm) > 0
        await kept.aclose()

    served_here(Faulty(), tmp_path, work)


def test_the_deadline_is_the_same_moment_on_the_clock_of_the_server(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watching(FakeEngine):
        def synthesize(self, utterance: Utterance) -> Any:
            seen.append(utterance.deadline_ns - time.monotonic_ns() if utterance.deadline_ns else 0)
            return super().synthesize(utterance)

    async def work(client: RemoteEngine, _: EngineServer) -> None:
        for deadline_ns in (0, time.monotonic_ns() + 3 * 10**9, time.monotonic_ns() - 10**9):
            await speak(client, Utterance("u", "a", deadline_ns=deadline_ns))

    served_here(Watching(), tmp_path, work)
    assert seen[0] == 0 and 2 * 10**9 < seen[1] < 3 * 10**9 and -3 * 10**9 < seen[2] <= -(10**9)


def test_the_load_is_the_servers_and_what_was_sent_since(tmp_path: Path) -> None:
    class Loaded(FakeEngine):
        def stats(self) -> EngineStats:
            return EngineStats(0, self.n_live, (self.n_live + 1) * 0.25 if self.n_live else 0.0)

    async def work(client: RemoteEngine, _: EngineServer) -> None:
        assert client.stats() == EngineStats()
        one, _chunk = await first_chunk(client)
        await until(lambda: client.stats().load, "the load")
        assert client.stats() == EngineStats(0, 1, 0.5)
        more = [client.synthesize(Utterance(str(n), LONG)) for n in range(3)]
        await asyncio.gather(*(anext(stream) for stream in more))
        assert client.stats() == EngineStats(0, 4, 1.25), "at once, before the server says so"
        for stream in (one, *more):
            await stream.aclose()
        assert client.stats() == EngineStats()

    served_here(Loaded(), tmp_path, work)


# --------------------------------------------------------- two clients, leases


def test_two_clients_share_the_engine_and_see_each_others_utterances(server: ServerProcess) -> None:
    async def work() -> None:
        async with attached(server.address) as one, attached(server.address) as two:
            stream, _ = await first_chunk(one)
            await until(lambda: two.stats().n_running == 1, "the other client's utterance")
            assert one.stats().n_running == 1, "its own, once"
            same = Utterance("v", TEXT)
            assert np.array_equal(joined(await speak(two, same)), render(TEXT))
            await stream.aclose()
            assert one.stats() == EngineStats()
            await until(lambda: two.stats() == EngineStats(), "the end of the other client's utterance")

    run(work)


CLIENT = """
import asyncio, sys
from telephony_tts.engines.api import Utterance
from telephony_tts.engines.remote.client import RemoteEngine

async def main():
    engine = RemoteEngine("remote", [sys.argv[1]])
    await engine.start()
    streams = [engine.synthesize(Utterance(str(n), "hello there " * 50)) for n in range(50)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    print("speaking", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def started_client(address: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CLIENT, address], stdout=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("forks")
@pytest.mark.timed
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_slots_of_a_client_that_vanished_are_free_within_a_second(how: signal.Signals) -> None:
    """Killed with 50 sentences under way, or stopped: then only its silence tells."""

    async def work() -> None:
        async with attached(server.address) as witness:
            child = started_client(server.address)
            try:
                assert child.stdout is not None
                assert await asyncio.to_thread(child.stdout.readline) == "speaking\n"
                await until(lambda: n_at_server(witness) == 50, "fifty utterances")
                stopped_s = time.monotonic()
                child.send_signal(how)
                await until(lambda: n_at_server(witness) == 0, "free slots")
                # The witness is told every 200 ms.
                assert time.monotonic() - stopped_s < (1.0 if how is signal.SIGKILL else 1.0 + 0.2 + 0.3)
            finally:
                child.kill()
                child.communicate()

    with engine_server(*SLOW) as server:
        run(work)


# ------------------------------------------------------------- a failing server


@pytest.mark.usefixtures("forks")
def test_a_server_that_is_killed_ends_its_utterances_and_is_used_again() -> None:
    with engine_server(*SLOW) as server:
        address = server.address

        async def work() -> None:
            async with attached(address, wait_ready_s=0.2) as engine:
                streams = [(await first_chunk(engine))[0] for _ in range(5)]
                os.kill(server.pid, signal.SIGKILL)
                killed_s = time.monotonic()
                for stream in streams:
                    with pytest.raises(ReplicaLost, match="is lost") as lost:
                        async for _ in stream:
                            pass
                    assert lost.value.retryable
                assert time.monotonic() - killed_s < 2.0
                assert not engine.stats().is_ready and engine.stats() == EngineStats(is_ready=False, n_lost=1)
                assert [voice.name for voice in engine.voices] == ["tone"], "its voices stay"
                with pytest.raises(EngineError, match="no replica of remote is ready") as refused:
                    await speak(engine, Utterance("u", TEXT))
                assert refused.value.retry_after_ms
                with started(address):
                    await until(lambda: engine.stats().is_ready, "the new server", 30)
                    assert np.array_equal(joined(await speak(engine, Utterance("u", TEXT))), render(TEXT))

        run(work)


@pytest.mark.usefixtures("forks")
def test_a_sentence_waits_while_the_server_is_started_again() -> None:
    with engine_server() as server:

        async def work() -> None:
            async with attached(server.address, wait_ready_s=30) as engine:
                os.kill(server.pid, signal.SIGKILL)
                await until(lambda: not engine.stats().is_ready, "the loss")
                waiting = asyncio.create_task(speak(engine, Utterance("u", TEXT)))
                await until(lambda: engine.stats().n_queued == 1, "a waiting sentence")
                with started(server.address):
                    assert np.array_equal(joined(await waiting), render(TEXT))

        run(work)


@pytest.mark.usefixtures("forks")
@pytest.mark.timed
def test_a_server_that_stops_is_not_ready_then_lost_and_cancel_does_not_wait_for_it() -> None:
    async def work() -> None:
        async with attached(server.address) as engine:
            cancelled, _ = await first_chunk(engine)
            stream, _ = await first_chunk(engine)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                stopped_s = time.monotonic()
                await until(lambda: not engine.stats().is_ready, "not ready")
                assert 0.5 < time.monotonic() - stopped_s < 1.6
                closing_s = time.monotonic()
                await cancelled.aclose()
                assert time.monotonic() - closing_s < 1.5
                with pytest.raises(ReplicaLost, match="said nothing for 3 s"):
                    async for _chunk in stream:
                        pass
                assert time.monotonic() - stopped_s < 5
                assert engine.stats() == EngineStats(is_ready=False, n_lost=1)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await until(lambda: engine.stats().is_ready, "the server again")
            assert np.array_equal(joined(await speak(engine, Utterance("u", "ab"))), render("ab"))

    with engine_server(*SLOW) as server:
        run(work)


def test_a_server_drains_on_sigterm() -> None:
    """What it speaks is finished, a new sentence is refused, and the process ends with status 0."""

    async def work() -> None:
        async with attached(server.address, wait_ready_s=0.2) as engine:
            stream, chunk = await first_chunk(engine, TEXT)
            server.child.send_signal(signal.SIGTERM)
            await until(lambda: not engine.stats().is_ready, "the drain")
            with pytest.raises(EngineError, match="it is being stopped"):
                await speak(engine, Utterance("late", TEXT))
            heard = [chunk] + [each async for each in stream]
            assert np.array_equal(joined(heard), render(TEXT))
            assert await asyncio.to_thread(server.child.wait, 10) == 0

    with engine_server(*SLOW) as server:
        run(work)


@pytest.mark.usefixtures("forks")
def test_another_replica_speaks_when_one_is_killed_before_its_first_audio() -> None:
    with engine_server("engines.fake.first_audio_ms=60000") as slow, engine_server() as quick:

        async def work() -> None:
            async with attached(slow.address) as engine:
                task = asyncio.create_task(speak(engine, Utterance("u", TEXT)))
                await until(lambda: engine.stats().n_queued == 1, "the sentence is sent")
                engine.set_targets({slow.address: None, quick.address: None})
                await until(lambda: len(engine._ready) == 2, "both replicas")
                os.kill(slow.pid, signal.SIGKILL)
                assert np.array_equal(joined(await task), render(TEXT)), "all of it, once"
                stats = engine.stats()
                assert (stats.is_ready, stats.n_replicas, stats.n_lost) == (True, 2, 1)

        run(work)


@pytest.mark.usefixtures("forks")
@pytest.mark.timed
def test_another_replica_speaks_when_one_is_late() -> None:
    with engine_server("engines.fake.first_audio_ms=60000") as late, engine_server() as quick:

        async def work() -> None:
            async with attached(late.address, first_audio_timeout_ms=300) as engine:
                begun_s = time.monotonic()
                task = asyncio.create_task(speak(engine, Utterance("u", TEXT)))
                await until(lambda: engine.stats().n_queued == 1, "the sentence is sent")
                engine.set_targets({late.address: None, quick.address: None})
                assert np.array_equal(joined(await task), render(TEXT))
                assert 0.3 <= time.monotonic() - begun_s < 1.5
                await until(lambda: engine.stats() == EngineStats(n_replicas=2), "the late one lets go")

        run(work)


@asynccontextmanager
async def closing_all(servers: list[EngineServer]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for server in servers:
            await server.close()


def test_growing_text_goes_to_the_next_replica_whole(tmp_path: Path) -> None:
    """The first server takes the text, gives nothing, and is closed."""

    class Silent(StreamingTones):
        async def synthesize(self, utterance: Utterance) -> Any:
            await asyncio.Event().wait()
            yield Chunk(np.zeros(0, np.int16), 24_000)

    async def work() -> None:
        servers = [EngineServer(Silent()), EngineServer(StreamingTones())]
        addresses = []
        for n, server in enumerate(servers):
            addresses.append(str(await server.listen(parse_address(f"unix:{tmp_path}/{n}.sock"))))
            server.engine_is_loaded()
        async with closing_all(servers), attached(addresses[0]) as engine:
            feed = TextFeed()
            task = asyncio.create_task(speak(engine, Utterance("u", "one ", more=feed)))
            await until(lambda: servers[0].n_utterances == 1, "the first server has it")
            feed.push("two ")
            await asyncio.sleep(0.05)
            engine.set_targets(dict.fromkeys(addresses))
            await until(lambda: len(engine._ready) == 2, "both servers")
            await servers[0].close()
            await until(lambda: servers[1].n_utterances == 1, "the second server has it")
            feed.push("three")
            feed.end()
            assert np.array_equal(joined(await task), np.concatenate([render("one two "), render("three")]))

    run(work)


def test_a_sentence_that_crosses_with_a_drain_goes_to_another_replica(tmp_path: Path) -> None:
    """The client does not know yet that the server drains."""

    async def work() -> None:
        engines = [StreamingTones(), StreamingTones()]
        servers = [EngineServer(engine) for engine in engines]
        addresses = []
        for n, server in enumerate(servers):
            addresses.append(str(await server.listen(parse_address(f"unix:{tmp_path}/{n}.sock"))))
            server.engine_is_loaded()
        async with closing_all(servers), attached(*addresses) as engine:
            await until(lambda: len(engine._ready) == 2, "both servers")
            servers[0].is_draining = True
            for n in range(2):  # one of them goes to each
                assert np.array_equal(joined(await speak(engine, Utterance(str(n), TEXT))), render(TEXT))
            assert [each.n_pulled > 0 for each in engines] == [False, True]

    run(work)


@pytest.mark.usefixtures("forks")
def test_a_replica_that_is_removed_finishes_what_it_speaks() -> None:
    with engine_server(*SLOW) as one, engine_server() as two:

        async def work() -> None:
            async with attached(one.address) as engine:
                stream, chunk = await first_chunk(engine, TEXT)
                engine.set_targets({two.address: None})
                heard = [chunk] + [each async for each in stream]
                assert np.array_equal(joined(heard), render(TEXT))
                await until(lambda: not engine._leaving, "its connection is closed")
                assert np.array_equal(joined(await speak(engine, Utterance("u", "ab"))), render("ab"))

        run(work)


@asynccontextmanager
async def serving(engine: Any, address: str, *, is_loaded: bool = True, **how: Any) -> AsyncIterator[EngineServer]:
    server = EngineServer(engine, **how)
    await server.listen(parse_address(address))
    if is_loaded:
        await engine.start()
        server.engine_is_loaded()
    try:
        yield server
    finally:
        await server.close()
        await engine.close()


def test_the_voices_stay_while_the_server_loads_again(tmp_path: Path) -> None:
    """A server listens before its engine is loaded. What it lists once it is loaded replaces the voices."""
    address, tone = f"unix:{tmp_path}/e.sock", FakeEngine().voices[0]

    async def work() -> None:
        async with AsyncExitStack() as first:
            await first.enter_async_context(serving(FakeEngine(), address))
            async with attached(address) as engine:
                catalog = Catalog([engine])
                await first.aclose()
                await until(lambda: not engine.stats().is_ready, "the loss")
                again = FakeEngine()
                async with serving(again, address, is_loaded=False) as server:
                    await until(lambda: engine.replicas[0].problem == "its engine is not ready", "a status")
                    assert [voice.name for voice in engine.voices] == ["tone"]
                    for name in (None, "tone"):
                        assert catalog.choose(Utterance("u", TEXT, voice=name))[0] is engine
                    waiting = asyncio.create_task(speak(engine, Utterance("u", TEXT, voice="tone")))
                    await until(lambda: engine.stats().n_queued == 1, "a waiting sentence")
                    again.voices = (tone, replace(tone, name="bell"))
                    await again.start()
                    server.engine_is_loaded()
                    assert np.array_equal(joined(await waiting), render(TEXT))
                    assert [voice.name for voice in engine.voices] == ["tone", "bell"]
                await until(lambda: not engine.stats().is_ready, "the second loss")
                without = FakeEngine()
                without.voices = ()
                async with serving(without, address):
                    await until(lambda: engine.stats().is_ready, "a server without voices")
                    assert engine.voices == ()

    run(work)


def test_the_voices_stay_while_a_replica_at_another_address_loads(tmp_path: Path) -> None:
    one, two = (f"unix:{tmp_path}/{n}.sock" for n in range(2))

    async def work() -> None:
        servers = serving(FakeEngine(), one), serving(FakeEngine(), two, is_loaded=False)
        async with servers[0], servers[1], attached(one) as engine:
            engine.set_targets({two: None})
            await until(lambda: engine.replicas[0].problem == "its engine is not ready", "a status")
            assert [voice.name for voice in engine.voices] == ["tone"]

    run(work)


def test_the_counters_of_replicas_only_grow(tmp_path: Path) -> None:
    """A replica that is lost keeps what it had counted. One that began anew adds to it."""
    one, two = (f"unix:{tmp_path}/{n}.sock" for n in range(2))

    async def work() -> None:
        async with serving(FakeEngine(slots=2), one), AsyncExitStack() as stack:
            await stack.enter_async_context(serving(FakeEngine(slots=2), two))
            async with attached(one, two) as engine:

                def n_counted() -> float:
                    return engine.counters()["utterances"]

                await until(lambda: len(engine._ready) == 2, "both servers")
                for n in range(4):  # two of them go to each
                    await speak(engine, Utterance(str(n), TEXT))
                await until(lambda: n_counted() == 4, "the counters")
                assert [each.counters()["utterances"] for each in engine.replicas] == [2, 2]
                await stack.aclose()
                await until(lambda: len(engine._ready) == 1, "the loss")
                assert n_counted() == 4
                engine_again = FakeEngine(slots=2)
                async with serving(engine_again, two):
                    await until(lambda: len(engine._ready) == 2, "both servers again")
                    assert n_counted() == 4
                    while not engine_again.counters()["utterances"]:
                        await speak(engine, Utterance("u", TEXT))
                    n_new = engine_again.counters()["utterances"]
                    await until(lambda: engine.replicas[1].counters()["utterances"] == 2 + n_new, "new counters")
                assert n_counted() >= 4 + n_new

    run(work)


def test_a_replica_that_returns_with_another_token_is_used(tmp_path: Path) -> None:
    """What it speaks for the old token is finished."""
    address = f"unix:{tmp_path}/e.sock"

    async def work() -> None:
        slow = FakeEngine(speed=1.0)
        async with AsyncExitStack() as first:
            await first.enter_async_context(serving(slow, address))  # it takes each token
            async with attached(address, token="one") as engine:
                engine.set_targets({address: "one"})
                assert not engine._leaving, "nothing changed"
                stream, chunk = await first_chunk(engine, TEXT)
                engine.set_targets({address: "two"})
                assert [voice.name for voice in engine.voices] == ["tone"]
                assert np.array_equal(joined([chunk] + [each async for each in stream]), render(TEXT))
                await until(lambda: not engine._leaving, "its connection is closed")
                await first.aclose()
                await until(lambda: not engine.stats().is_ready, "the loss")
                async with serving(FakeEngine(), address, token="two"):
                    await until(lambda: engine.stats().is_ready, "the new server", 5)
                    assert np.array_equal(joined(await speak(engine, Utterance("u", "ab"))), render("ab"))
                assert engine.stats().n_replicas == 1

    run(work)


# ------------------------------------------------------ wrong peers and tokens


def peer(tmp_path: Path, answers: list[bytes], work: Callable[[str], Any]) -> None:
    """Run `work` with the address of a peer that answers the first message with these bytes and then stays silent."""

    async def behave(_: Any, context: Any) -> None:
        await context.read()
        for answer in answers:
            await context.write(answer)
        await asyncio.sleep(30)

    async def serve() -> None:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(behave)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Attach": handler}),))
        address = f"unix:{tmp_path}/peer.sock"
        server.add_insecure_port(address)
        await server.start()
        try:
            await work(address)
        finally:
            await server.stop(None)

    run(serve)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([b"\x00garbage"], "cannot be read"),
        ([encode(Attached(PROTOCOL + 1, "fake", False))], f"speaks protocol {PROTOCOL + 1}"),
        ([encode(EngineStatus(1, EngineStats()))], "first message"),
        ([encode(Attached(PROTOCOL, "fake", False))], "said nothing for 3 s"),
    ],
)
def test_a_peer_that_is_no_engine_server_is_named(tmp_path: Path, answers: list[bytes], why: str) -> None:
    async def work(address: str) -> None:
        engine = RemoteEngine("remote", [address], start_timeout_s=4.0)
        with pytest.raises(EngineUnavailable, match=why) as unavailable:
            await engine.start()
        assert address in unavailable.value.message

    peer(tmp_path, answers, work)


def test_garbage_in_mid_utterance_ends_it_and_the_client_lives(tmp_path: Path) -> None:
    status = encode(EngineStatus(1, EngineStats(), voices=FakeEngine().voices))

    async def behave(_: Any, context: Any) -> None:
        await context.read()
        await context.write(encode(Attached(PROTOCOL, "fake", False)) + status)
        while isinstance(await context.read(), bytes):
            await context.write(b"\xff" * 40)

    async def serve() -> None:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(behave)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Attach": handler}),))
        address = f"unix:{tmp_path}/peer.sock"
        server.add_insecure_port(address)
        await server.start()
        try:
            async with attached(address) as engine:
                with pytest.raises(ReplicaLost, match="cannot be read"):
                    await speak(engine, Utterance("u", TEXT))
        finally:
            await server.stop(None)

    run(serve)


@pytest.mark.parametrize(
    ("sent", "code", "why"),
    [
        (b"\x01\x02", grpc.StatusCode.INVALID_ARGUMENT, "cannot be read"),
        (encode(KeepAlive(1)), grpc.StatusCode.INVALID_ARGUMENT, "not `attach`"),
        (encode(Attach(99, "old", 1000)), grpc.StatusCode.FAILED_PRECONDITION, "protocol 99"),
        (encode(Attach(PROTOCOL, "a", 1000)) + encode(Attach(PROTOCOL, "a", 1)),
         grpc.StatusCode.INVALID_ARGUMENT, "a second `attach`"),
        (encode(Attach(PROTOCOL, "a", 1000)), None, "header"),
    ],
)  # fmt: skip
def test_a_client_that_sends_garbage_is_refused_and_others_go_on(
    server: ServerProcess, sent: bytes, code: grpc.StatusCode | None, why: str
) -> None:
    async def work() -> None:
        async with attached(server.address) as engine:
            stream, _ = await first_chunk(engine)
            async with grpc.aio.insecure_channel(server.address) as channel:
                call = channel.stream_stream(METHOD)()
                await call.write(sent)
                if code is None:  # the first message is right, and the second one is not
                    assert isinstance(decode_from_server(await call.read())[0], Attached)
                    await call.write(b"\x07")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    while await call.read() is not grpc.aio.EOF:
                        pass
                assert refused.value.code() is (code or grpc.StatusCode.INVALID_ARGUMENT)
                assert why in (refused.value.details() or "")
            assert len((await anext(stream)).pcm) > 0
            await stream.aclose()

    run(work)


@pytest.mark.usefixtures("forks")
def test_a_token_is_demanded_and_compared() -> None:
    async def work() -> None:
        for token, why in ((None, "the token is wrong"), ("other", "the token is wrong")):
            engine = RemoteEngine("remote", [server.address], token=token, start_timeout_s=10)
            begun_s = time.monotonic()
            with pytest.raises(EngineUnavailable, match=why):
                await engine.start()
            assert time.monotonic() - begun_s < 5, "it does not wait for what only an operator can change"
        async with attached(server.address, token="secret") as engine:
            assert np.array_equal(joined(await speak(engine, Utterance("u", "ab"))), render("ab"))

    with engine_server(environ={"TELEPHONY_TTS_ENGINE_TOKEN": "secret"}) as server:
        run(work)


def test_no_server_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async def work() -> None:
        engine = RemoteEngine("remote", [f"unix:{tmp_path}/none.sock"], start_timeout_s=0.5)
        with pytest.raises(EngineUnavailable, match=r"within 0.5 s.*none.sock.*telephony-tts engine serve"):
            await engine.start()

    run(work)


def test_the_catalog_finds_the_remote_voice_and_names_what_helps(server: ServerProcess) -> None:
    async def work() -> None:
        async with attached(server.address) as engine:
            catalog = Catalog([engine])
            chosen, voice = catalog.choose(Utterance("u", TEXT))
            assert chosen is engine and voice == replace(FakeEngine().voices[0], engine="remote")
            with pytest.raises(UnknownVoice, match="remote/tone"):
                catalog.choose(Utterance("u", TEXT, voice="stranger"))

    run(work)


# --------------------------------------------------------------- command line

WITHOUT_OTHER_ENGINES = ("engines.hibari.workers=0", "engines.espeak.workers=0", "speech.detect_language=false")
"""A command starts in half the time without the embedded voices."""


def cli(*arguments: str, within_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "telephony_tts", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=within_s)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--listen", "here"), "'here' is not an address"),
        (("--listen", "unix:relative.sock"), "no absolute path"),
        (("--listen", "0.0.0.0:0", "--set", "engines.default=fake"), "no token is set"),
        (("--set", "engines.default=remote", "--set", "engines.remote.target=unix:/x"), "engines.default is remote"),
        (("--set", "engines.default=remote"), "engines.remote.target: missing"),
        (("--set", "engines.remote.target=10.0.0.5:8090"), "engines.remote.token: missing; 10.0.0.5:8090"),
    ],
)
def test_wrong_use_is_one_clear_error(arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "serve", *arguments]) == 2
    stderr = capsys.readouterr().err
    assert why in stderr and "Traceback" not in stderr, stderr


@pytest.mark.usefixtures("forks")
def test_an_address_in_use_is_refused_and_a_stale_socket_is_not() -> None:
    with engine_server() as server:
        ended = cli("engine", "serve", "--set", "engines.default=fake", "--listen", server.address)
        assert ended.returncode == 2 and "another process serves there already" in ended.stderr
        os.kill(server.pid, signal.SIGKILL)
        server.child.wait()
        path = server.address.removeprefix("unix:")
        assert os.path.exists(path) and os.stat(path).st_mode & 0o077 == 0, "a stale socket, for its user alone"
        with started(server.address):

            async def work() -> None:
                async with attached(server.address) as engine:
                    assert await speak(engine, Utterance("u", "ab"))

            run(work)


def test_the_server_speaks_through_the_command_line(server: ServerProcess, tmp_path: Path) -> None:
    def say(name: str, *settings: str) -> list[str]:
        chosen = (*settings, *WITHOUT_OTHER_ENGINES)
        flags = [part for setting in chosen for part in ("--set", setting)]
        return ["say", "Hello there.", str(tmp_path / name), *flags]

    ended = cli(*say("out.wav", "engines.default=remote", f"engines.remote.target={server.address}"))
    assert ended.returncode == 0, ended.stderr
    assert main(say("local.wav", "engines.default=fake")) == 0
    assert (tmp_path / "out.wav").read_bytes() == (tmp_path / "local.wav").read_bytes()
