"""Sends sockets to other fronts, and takes theirs: one short connection to the other front's Unix socket for each.

The other front greets with one byte: a process that is stopped still has a socket that accepts connections, so nothing
is sent before that. A request is its kind (one byte), the length of its body, and the body; a moved socket rides on the
kind. The answer is one byte. A question is its kind alone, and its answer a length and so many bytes. Each step has a
deadline.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from telephony_tts.runtime import event_loop, logs
from telephony_tts.transport.fronts import FrontGone, FrontSilent, MovedSocket, unpacked

_log = logs.get(__name__)
_MOVE = b"S"
METRICS, ACTIVITY = b"M", b"A"
"""The questions."""
_GREETING, _TAKEN = b"!", b"+"
_LENGTH = struct.Struct("!I")
_MAX_BODY_BYTES = 1 << 21
_MAX_ANSWER_BYTES = 1 << 24
_BACKLOG = 512
_AT_ONCE = 512
"""The most requests of other fronts that are served at once."""
_ACCEPT_AGAIN_S = 0.1
_CONNECT_AGAIN_S = 0.01
MOVE_S = 4.0
"""How long another front may take to confirm a connection. Its event loop runs within milliseconds, or it hangs."""
GREETING_S = 0.25
"""How long another front may take to greet, if this one can serve the connection as well."""
ANSWER_S = 1.0

Adopt = Callable[[socket.socket, MovedSocket], Awaitable[None]]
Answers = Mapping[bytes, Callable[[], bytes]]
"""What makes the answer to each kind of question."""


class SocketMover:
    """`listen` serves the other fronts until it is cancelled."""

    def __init__(self, path_of: Callable[[str], Path], name: str) -> None:
        self._path_of = path_of
        self._name = name

    async def listen(self, adopt: Adopt, answers: Answers, listening: Callable[[], None]) -> None:
        """Serve requests of other fronts. `listening` is called when they can come. Raises OSError."""
        path = self._path_of(self._name)
        with suppress(FileNotFoundError):
            path.unlink()
        loop = asyncio.get_running_loop()
        room = asyncio.Semaphore(_AT_ONCE)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.setblocking(False)
            listener.bind(str(path))
            listener.listen(_BACKLOG)
            listening()
            async with asyncio.TaskGroup() as group:
                while True:
                    await room.acquire()
                    try:
                        connection, _ = await loop.sock_accept(listener)
                    except Exception as error:  # too many open files, for example
                        _log.error("moved_connection_not_taken", why=str(error) or type(error).__name__)
                        room.release()
                        await asyncio.sleep(_ACCEPT_AGAIN_S)
                        continue
                    serving = group.create_task(self._serve(connection, adopt, answers))
                    serving.add_done_callback(lambda _: room.release())

    async def _serve(self, connection: socket.socket, adopt: Adopt, answers: Answers) -> None:
        """One request. Raises nothing: what fails is logged."""
        fds: list[int] = []
        try:
            async with asyncio.timeout(MOVE_S):
                try:
                    await asyncio.get_running_loop().sock_sendall(connection, _GREETING)
                    kind = await _receive_fds(connection, fds)
                except (BrokenPipeError, ConnectionResetError, EOFError):
                    return  # this front was stopped, and the other one goes on without it
                if kind in answers:
                    answer = answers[kind]()
                    await asyncio.get_running_loop().sock_sendall(connection, _LENGTH.pack(len(answer)) + answer)
                    return
                body = await _receive_body(connection, _MAX_BODY_BYTES)
                if kind != _MOVE or len(fds) != 1:
                    raise ValueError(f"request {kind!r} with {len(fds)} descriptors")
                moved = unpacked(body)
                await adopt(socket.socket(fileno=fds.pop()), moved)
                await asyncio.get_running_loop().sock_sendall(connection, _TAKEN)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            _log.error("moved_connection_not_taken", why=str(error) or type(error).__name__)
        except Exception:
            _log.exception("moved_connection_not_taken")
        finally:
            for fd in fds:
                with suppress(OSError):
                    os.close(fd)
            connection.close()

    async def move(self, to: str, sock: socket.socket, moved: MovedSocket, *, may_stay: bool) -> None:
        """See `Fronts.move`."""
        try:
            connecting = await self._connect(to, GREETING_S if may_stay else MOVE_S)
        except TimeoutError as error:
            if may_stay:
                raise FrontSilent(to) from error
            raise
        with connecting as connection:
            try:
                async with asyncio.timeout(MOVE_S):
                    loop = asyncio.get_running_loop()
                    body = moved.packed()
                    socket.send_fds(connection, [_MOVE + _LENGTH.pack(len(body))], [sock.fileno()])
                    await loop.sock_sendall(connection, body)
                # The other front serves it before its answer comes, which a stop of this process may delay.
                if await event_loop.within(MOVE_S, loop.sock_recv(connection, 1)) != _TAKEN:
                    raise ConnectionError("it has not taken the connection")
            except BaseException:
                # Wherever the copies of the socket are: the peer must see that the connection is over.
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                raise
            sock.close()

    async def ask(self, of: str, question: bytes) -> bytes:
        """The answer of another front. Raises FrontGone, OSError, EOFError or TimeoutError."""
        with await self._connect(of, ANSWER_S) as connection:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_sendall(connection, question)
                return await _receive_body(connection, _MAX_ANSWER_BYTES)

    async def _connect(self, to: str, within_s: float) -> socket.socket:
        """A connection to another front, which has greeted. Raises FrontGone, OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            async with asyncio.timeout(within_s):
                while True:
                    # Not `sock_connect`: with a full backlog it returns as if the socket were connected.
                    try:
                        connection.connect(str(self._path_of(to)))
                        break
                    except BlockingIOError:
                        await asyncio.sleep(_CONNECT_AGAIN_S)
                if await loop.sock_recv(connection, len(_GREETING)) != _GREETING:
                    raise ConnectionResetError("it has ended before its greeting")
        except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError, FileNotFoundError) as error:
            connection.close()
            raise FrontGone(to) from error
        except BaseException:
            connection.close()
            raise
        return connection


async def _receive_fds(connection: socket.socket, fds: list[int]) -> bytes:
    """The first byte of a request. `fds` gets the descriptors that came with it."""
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    kind, got, flags, _ = socket.recv_fds(connection, 1, 4, socket.MSG_CMSG_CLOEXEC)
    fds += got
    if not kind:
        raise EOFError("the other front has closed the connection")
    if flags & socket.MSG_CTRUNC:
        raise OSError("too many open files: a moved connection could not be received")
    return kind


async def _receive_body(connection: socket.socket, most: int) -> bytes:
    """A length, and so many bytes. Raises EOFError, and ValueError for more than `most`."""
    (n,) = _LENGTH.unpack(await _receive(connection, _LENGTH.size))
    if n > most:
        raise ValueError(f"{n} bytes; the limit is {most}")
    return await _receive(connection, n)


async def _receive(connection: socket.socket, n: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < n:
        piece = await loop.sock_recv(connection, min(65_536, n - len(data)))
        if not piece:
            raise EOFError("the other front has closed the connection")
        data += piece
    return bytes(data)
