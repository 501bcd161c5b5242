"""Looks host names up for an event loop: each name once at a time, in a thread of its own.

Event loops have few threads for this: uvloop looks up two names at a time, asyncio six on two cores. When a DNS server
does not answer, each question takes seconds. Then a hundred requests for one engine would stand before every other
name, and for long after the server answers again.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from contextlib import suppress
from typing import Any

Found = list[tuple[Any, ...]]
_Question = tuple[Any, ...]


class NameLookups:
    """The lookups of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: dict[_Question, asyncio.Future[Found | OSError]] = {}

    async def find(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Found:
        """As `socket.getaddrinfo`. Raises OSError. Who no longer waits does not end the lookup for others."""
        question = (host, port, family, type, proto, flags)
        if host is None or _is_address(host):
            return list(socket.getaddrinfo(*question))
        answer = self._asked.get(question)
        if answer is None:
            # A daemon: the process may end while a DNS server does not answer.
            asking = threading.Thread(target=self._ask, args=(question,), name="name lookup", daemon=True)
            try:
                asking.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, f"{host}: {error}") from error
            answer = self._asked[question] = self._loop.create_future()
        found = await asyncio.shield(answer)
        if isinstance(found, OSError):
            # Each has its own, because `raise` writes a traceback into it.
            raise found.__class__(*found.args)
        return list(found)

    def _ask(self, question: _Question) -> None:
        found: Found | OSError
        try:
            found = list(socket.getaddrinfo(*question))
        except OSError as error:
            found = error
        except UnicodeError as error:  # a label that is too long
            found = socket.gaierror(socket.EAI_NONAME, str(error))
        except Exception as error:  # no memory, or a port that is too large: the waiting tasks must hear of it
            found = OSError(f"{question[0]}: {str(error) or type(error).__name__}")
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._tell, question, found)

    def _tell(self, question: _Question, found: Found | OSError) -> None:
        answer = self._asked.pop(question)
        if not answer.done():
            answer.set_result(found)


def _is_address(host: Any) -> bool:
    try:
        ipaddress.ip_address(host if isinstance(host, str) else host.decode("ascii"))
    except ValueError:
        return False
    return True
