"""Which bridge has which call: two may share an event socket, as when a new one replaces one that drains.

FreeSWITCH's mod_hash has an entry for each call: `command` of its module, then `command:bridge`. `insert_ifempty` lets
one bridge in. If another one has the entry, it is asked by an event whether it still runs.
"""

from __future__ import annotations

import asyncio
import re
import secrets

from sip_bridge.freeswitch.esl import EslConnection
from sip_bridge.freeswitch.esl_messages import EslEvent
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import monotonic_ns

_log = logs.get(__name__)
BRIDGE_EVENT = "telephony_tts::bridge"
"""An event of a `Bridge` to all others. It may have `Asks` (for a bridge, which raises one too) or `Takes` (a call)."""

ANSWER_S = 0.5
"""A bridge that does not answer in this time is gone, and one that takes a new call has taken it."""

_LAST_RESORT_S = 60
"""FreeSWITCH ends a call that no bridge has kept for so long. The dialplan begins with the same time."""

_ENTRY = re.compile(r"^D/telephony_tts_([A-Za-z0-9][A-Za-z0-9-]{,63})/(uuid_audio_(?:stream|fork)):?([0-9a-f]*)$", re.M)


class Ownership:
    """The claims of one bridge. `hang_up`: its calls end if it is gone and no other bridge comes."""

    def __init__(self, hang_up: bool) -> None:
        self._name = secrets.token_hex(4)
        self._hangs_up = hang_up
        self._heard_ns: dict[str, int] = {}

    async def claim(self, connection: EslConnection, uuid: str, module: str) -> bool:
        """Take a call that no other living bridge has. Returns whether it is ours now. Raises EslLost."""
        while True:
            held = await connection.ask(f"api hash select/telephony_tts/{uuid}")
            owner = held.partition(":")[2]
            if owner not in ("", self._name) and await self._lives(connection, owner):
                return False
            connection.send(f"api hash delete_ifmatch/telephony_tts/{uuid}/{held}")
            order = f"api hash insert_ifempty/telephony_tts/{uuid}/{module}:{self._name}"
            if "exists" not in await connection.ask(order):
                connection.raise_event(BRIDGE_EVENT, f"Bridge: {self._name}\nTakes: {uuid}")
                return True

    def keep(self, connection: EslConnection, uuid: str) -> None:
        """Put off the end of a call that no bridge has. Each bridge does this regularly for its calls."""
        connection.send(f"api sched_del telephony_tts_{uuid}")
        if self._hangs_up:
            connection.send(f"api sched_api +{_LAST_RESORT_S} telephony_tts_{uuid} uuid_kill {uuid}")

    def release(self, connection: EslConnection, uuid: str, module: str) -> None:
        """The call is over for this bridge, and for all others."""
        connection.send(f"api sched_del telephony_tts_{uuid}")
        connection.send(f"api hash delete_ifmatch/telephony_tts/{uuid}/{module}:{self._name}")

    async def entries(self, connection: EslConnection) -> list[tuple[str, str, str]]:
        """The calls with an entry, each with its command and its bridge, which may be "". Raises EslLost."""
        reply = await connection.ask("api hash_dump db telephony_tts")
        if reply.startswith("-ERR"):
            _log.warning("freeswitch_lacks_mod_hash", why="calls cannot be shared with another bridge, or found again")
        return _ENTRY.findall(reply)

    def heard(self, connection: EslConnection, event: EslEvent) -> str:
        """Take an event of a bridge. Returns the call that another bridge has taken, or ""."""
        if (bridge := event.get("Bridge")) == self._name:
            return ""
        if bridge not in self._heard_ns:
            _log.warning("other_bridge", bridge=bridge, why="it uses this event socket too; each has calls of its own")
        self._heard_ns[bridge] = monotonic_ns()
        if event.get("Asks") == self._name:
            connection.raise_event(BRIDGE_EVENT, f"Bridge: {self._name}")
        return event.get("Takes")

    async def _lives(self, connection: EslConnection, bridge: str) -> bool:
        asked_ns = monotonic_ns()
        connection.raise_event(BRIDGE_EVENT, f"Bridge: {self._name}\nAsks: {bridge}")
        await asyncio.wait((connection.lost,), timeout=ANSWER_S)
        return self._heard_ns.get(bridge, 0) > asked_ns
