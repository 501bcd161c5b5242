"""`asyncio.create_subprocess_exec` with a fork server (`forked_process`)."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Mapping
from typing import Any

from forked_process import ForkServer


def forking(server: ForkServer, program: str) -> Callable[..., Any]:
    """A function that replaces `asyncio.create_subprocess_exec`. It forks commands with `program` in the text after -c,
    and starts all others."""
    start = asyncio.create_subprocess_exec

    async def started(*command: str, **how: Any) -> Any:
        if len(command) < 4 or program not in command[3]:
            return await start(*command, **how)
        return await _forked(server, command, **how)

    return started


async def _forked(
    server: ForkServer, command: tuple[str, ...], *, stdin: int | None = None, stdout: int | None = None,
    stderr: int | None = None, env: Mapping[str, str] | None = None, pass_fds: tuple[int, ...] = (),
    start_new_session: bool = False, limit: int = 1 << 16,
) -> ForkedAsyncProcess:  # fmt: skip
    numbers = {fd: fd for fd in (0, 1, 2, *pass_fds)}
    loop = asyncio.get_running_loop()
    theirs: list[int] = []
    writer = reader = None
    reading: asyncio.BaseTransport | None = None
    for number, chosen in enumerate((stdin, stdout, stderr)):
        if chosen == DEVNULL:
            numbers[number] = os.open(os.devnull, os.O_RDWR)
            theirs.append(numbers[number])
    if stdin == PIPE:
        numbers[0], to_child = os.pipe()
        theirs.append(numbers[0])
        protocol: Any = asyncio.streams.FlowControlMixin(loop)
        transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(to_child, "wb"))
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
    if stdout == PIPE:
        of_child, numbers[1] = os.pipe()
        theirs.append(numbers[1])
        reader = asyncio.StreamReader(limit)
        filling = asyncio.StreamReaderProtocol(reader)
        reading, _ = await loop.connect_read_pipe(lambda: filling, os.fdopen(of_child, "rb"))
    try:
        pid = server.fork(command, env, None, numbers, new_session=start_new_session)
        return ForkedAsyncProcess(pid, writer, reader, reading)
    except BaseException:
        for each in (writer, reading):
            if each is not None:
                each.close()
        raise
    finally:
        for fd in theirs:
            os.close(fd)


class ForkedAsyncProcess:
    """What our code needs of `asyncio.subprocess.Process`."""

    def __init__(
        self, pid: int, stdin: asyncio.StreamWriter | None, stdout: asyncio.StreamReader | None,
        reading: asyncio.BaseTransport | None,
    ) -> None:  # fmt: skip
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._reading = reading
        self.returncode: int | None = None
        self._has_ended = asyncio.Event()
        self._file = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._file, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self.stdin is not None:
            self.stdin.close()
        self._has_ended.set()

    async def wait(self) -> int:
        await self._has_ended.wait()
        if self._reading is not None:
            self._reading.close()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
