"""A front that did not answer another one may live: its calls stay its own."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from telephony_tts.fronts import socket_mover
from telephony_tts.fronts.front import Front
from telephony_tts.fronts.loads import SILENT_NS, Loads
from telephony_tts.fronts.runtime_folder import RuntimeFolder
from telephony_tts.fronts.socket_mover import METRICS, SocketMover
from telephony_tts.runtime import event_loop
from telephony_tts.runtime.clock import monotonic_ns
from telephony_tts.transport.fronts import FrontGone, FrontLoad, FrontSilent, MovedSocket

pytestmark = pytest.mark.slow

MOVED = MovedSocket("request", 1, ("127.0.0.1", 80), ("127.0.0.1", 4000), b"GET")
ABLE = FrontLoad(is_able=True)


class TwoFronts:
    """The first moves connections. The second owns CA1."""

    def __init__(self, folder: RuntimeFolder, loads: Loads) -> None:
        self.folder, self.loads = folder, loads
        self.first, self.second = Front(folder, loads, 0, 1), Front(folder, loads, 1, 1)
        assert self.second.claim("CA1") is None
        self.second.publish(ABLE)

    async def move(self) -> None:
        """Try to move a connection to the second front."""
        ours, theirs = socket.socketpair()
        with ours, theirs, pytest.raises(FrontGone):
            await self.first.move("1.1", ours, MOVED, may_stay=False)

    async def move_unanswered(self) -> None:
        """The second front accepts the connection and closes it."""

        async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_unix_server(close, self.folder.socket_of("1.1")):
            await self.move()
        self.folder.socket_of("1.1").unlink(missing_ok=True)

    @property
    def lives(self) -> bool:
        """Whether the first front counts the second as one that runs."""
        lives = self.first.owner("CA1") == "1.1"
        assert lives is self.first.others().is_able
        return lives


@pytest.fixture
def fronts(short: Path) -> Iterator[TwoFronts]:
    folder = RuntimeFolder.make(str(short))
    loads = Loads(folder.loads, 2, create=True)
    yield TwoFronts(folder, loads)
    loads.close()
    folder.remove()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 10))


def test_a_front_that_closes_one_connection_unanswered_keeps_its_calls(fronts: TwoFronts) -> None:
    """Pinned: it counted as ended for ever, and other fronts began its calls once more."""

    async def main() -> None:
        await fronts.move_unanswered()
        assert fronts.lives and fronts.first.claim("CA1") == "1.1"

    run(main())


@pytest.mark.parametrize("has_socket", [False, True])
def test_a_front_that_has_ended_loses_its_calls_at_once(fronts: TwoFronts, has_socket: bool) -> None:
    """Its socket refuses connections. Or it was stopped before it ended, so that a connection waited for its answer."""

    async def main() -> None:
        if has_socket:
            fronts.loads.write(1, ABLE, monotonic_ns() - SILENT_NS - 1)
            await fronts.move_unanswered()
        else:
            await fronts.move()
        assert not fronts.first.others().is_able and fronts.first.claim("CA1") is None

    run(main())


def test_a_front_that_beats_again_has_not_ended(fronts: TwoFronts) -> None:
    async def main() -> None:
        await fronts.move()
        assert not fronts.lives
        fronts.second.publish(ABLE)
        assert fronts.lives

    run(main())


def test_a_fault_while_a_connection_is_accepted_does_not_end_the_listening(short: Path) -> None:
    """Pinned: only errors of the system were expected."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, iter([RuntimeError("a bug of ours"), MemoryError()])

        async def fail_twice(sock: socket.socket) -> Any:
            for failure in failures:
                raise failure
            return await accept(sock)

        loop.sock_accept = fail_twice  # type: ignore[method-assign]
        begun = asyncio.Event()
        one, other = (SocketMover(lambda name: short / name, name) for name in ("0.1", "1.1"))
        listening = asyncio.create_task(one.listen(adopt, {METRICS: lambda: b"metrics"}, begun.set))
        await begun.wait()
        assert await other.ask("0.1", METRICS) == b"metrics"
        listening.cancel()
        await asyncio.wait([listening])

    async def adopt(sock: socket.socket, moved: MovedSocket) -> None:
        raise AssertionError("nothing is moved")

    run(main())


@pytest.mark.parametrize("new_loop", [event_loop.new_loop, asyncio.SelectorEventLoop])
def test_a_front_with_a_full_queue_of_connections_is_silent_and_not_broken(
    new_loop: Callable[[], asyncio.AbstractEventLoop], short: Path
) -> None:
    """Pinned: "Invalid argument" ended the connection that another front could have served."""

    async def main() -> None:
        mover = SocketMover(lambda name: short / name, "0.1")
        ours, theirs = socket.socketpair()
        with ours, theirs, socket.socket(socket.AF_UNIX) as stopped, socket.socket(socket.AF_UNIX) as waiting:
            stopped.bind(str(short / "1.1"))
            stopped.listen(0)
            waiting.connect(str(short / "1.1"))
            with pytest.raises(FrontSilent):
                await mover.move("1.1", ours, MOVED, may_stay=True)
            ours.send(b"it stays")
            assert theirs.recv(8) == b"it stays"

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(mover.ask("1.1", METRICS), 0.1)
            asking = asyncio.create_task(mover.ask("1.1", METRICS))
            await asyncio.sleep(0.1)
            for first in (True, False):
                accepted, _ = await asyncio.to_thread(stopped.accept)
                with accepted:
                    if first:
                        continue
                    accepted.sendall(b"!")
                    assert await asyncio.to_thread(accepted.recv, 1) == METRICS
                    accepted.sendall(b"\0\0\0\2ok")
            assert await asking == b"ok", "it connects as soon as there is room"

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize("new_loop", [event_loop.new_loop, asyncio.SelectorEventLoop])
def test_a_front_that_stood_still_does_not_end_what_the_other_one_has_taken(
    new_loop: Callable[[], asyncio.AbstractEventLoop], short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned: the answer waited, the limit was over, and the connection that the other front served was closed."""
    monkeypatch.setattr(socket_mover, "MOVE_S", 0.3)
    has_come, taken = threading.Event(), []

    def take(listener: socket.socket) -> None:
        """The other front, which answers while this one stands still."""
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"!")
            _, fds, _, _ = socket.recv_fds(connection, 1 << 16, 1)
            taken.append(socket.socket(fileno=fds[0]))
            has_come.set()
            time.sleep(0.5)
            connection.sendall(b"+")
            connection.recv(1 << 16)  # until the other end is closed

    async def main(listener: socket.socket, ours: socket.socket) -> None:
        moving = asyncio.ensure_future(
            SocketMover(lambda _name: Path(listener.getsockname()), "0.1").move("1.1", ours, MOVED, may_stay=False)
        )
        while not has_come.is_set():  # noqa: ASYNC110  it is in another thread
            await asyncio.sleep(0.01)
        time.sleep(0.8)  # noqa: ASYNC251  it stands still
        await moving

    ours, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as listener, ours, theirs:
        listener.bind(str(short / "taker"))
        listener.listen()
        taker = threading.Thread(target=take, args=(listener,))
        taker.start()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(main(listener, ours), 10))
        taker.join()
        with taken[0] as socket_of_the_other:
            theirs.sendall(b"still here")
            assert socket_of_the_other.recv(100) == b"still here"
