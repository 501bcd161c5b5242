"""Telephone calls through a real Asterisk: sipp dials an extension, and a bot joins the call at the server.

The telephone hears RTP, so frames come without a pause and without the border of a turn. What is judged is the sound:
each turn has a tone of its own, so audio of a turn that is over is found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from torture.oracle import NativeOracle
from torture.surroundings import Surroundings

MS = 1_000_000
EXTENSIONS = {"700": "WebSocket", "701": "AudioSocket"}
PATH_NS = 60 * MS
"""What Asterisk plays after a clear, and RTP's way to the telephone."""
_ANSWER_S = 10.0
_FOUND_S = 5.0
_EVERY_S = 0.005


class PhoneCall:
    """A telephone that has been answered. `name` is the call's name at the server."""

    def __init__(self, phone: Any, name: str) -> None:
        self._phone = phone
        self.name = name
        self._n_seen = 0

    @property
    def answered_ns(self) -> int:
        return int(self._phone.answered_ns)

    @property
    def is_over(self) -> bool:
        return self._phone.ended_ns is not None or self._phone.failed is not None

    def hang_up(self) -> None:
        self._phone.hang_up()

    async def ended(self, within_s: float) -> bool:
        """Whether the call is over by then."""
        end_s = time.monotonic() + within_s
        while not self.is_over and time.monotonic() < end_s:  # noqa: ASYNC110 - sipp's thread tells it
            await asyncio.sleep(_EVERY_S)
        return self.is_over

    def new_frames(self) -> list[tuple[bytes, int]]:
        """(frame, when it came) of each frame that this method has not returned before."""
        packets = self._phone.rtp.audio_packets()
        new, self._n_seen = packets[self._n_seen :], len(packets)
        return [(packet.payload, packet.arrival_ns) for packet in new]

    async def feed(self, oracle: NativeOracle) -> None:
        """Give the oracle what the telephone hears, until cancelled."""
        while True:
            for payload, at_ns in self.new_frames():
                oracle.frame(payload, at_ns - PATH_NS)
            await asyncio.sleep(_EVERY_S)


@asynccontextmanager
async def phone_call(around: Surroundings, media: Any, extension: str) -> AsyncIterator[PhoneCall]:
    """A telephone call to this extension of Asterisk. Raises OSError if it is not answered."""
    from harness.pbx_peers import PeerFailed, calling

    context = calling(media, around.asterisk.sip_port, extension)
    async with around.dialling:
        # One at a time: the channel that is new is that of this telephone.
        before = await asyncio.to_thread(_calls, around.asterisk)
        (phone,) = await asyncio.to_thread(context.__enter__)
        try:
            await asyncio.to_thread(phone.wait_answered, _ANSWER_S)
            name = await asyncio.to_thread(_new_call, around.asterisk, before, extension)
        except PeerFailed as error:
            await asyncio.to_thread(context.__exit__, None, None, None)
            raise ConnectionError(str(error)) from None
    try:
        yield PhoneCall(phone, name)
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def _calls(asterisk: Any) -> dict[str, list[str]]:
    """The live telephone channels by their unique ids: the fields of Asterisk's console."""
    from harness.pbx_peers import PeerFailed

    with suppress(PeerFailed):
        lines = [line.split("!") for line in asterisk.cli("core show channels concise").splitlines()]
        return {fields[-1]: fields for fields in lines if fields[0].startswith("PJSIP/")}
    return {}


def _new_call(asterisk: Any, before: dict[str, list[str]], extension: str) -> str:
    """The name at the server of the call that was not there before. Raises PeerFailed."""
    from harness.pbx_peers import PeerFailed

    end_s = time.monotonic() + _FOUND_S
    while time.monotonic() < end_s:
        for unique, fields in _calls(asterisk).items():
            if unique in before:
                continue
            if EXTENSIONS[extension] == "WebSocket":
                return unique
            data = fields[6]
            if fields[5] == "AudioSocket" and "," in data:
                return data.partition(",")[0]
        time.sleep(_EVERY_S)
    raise PeerFailed("Asterisk's console does not show the call")
