"""What all calls of a round share: the server's address, the tally, the stops, and what the faults allow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torture.recordings import Recorded
from torture.sound_server import no_server
from torture.violations import Stops, Tally

MS = 1_000_000
PING_S = 5
"""`server.ping_interval_s`: so often the server sends a ping, and so long it waits for the answer."""
CONNECT_S = 5.0
CLAIM_S = 10.0
"""`limits.call_claim_s`: a leg or a request waits so long for the other side of its call."""
RESTART_S = 15.0
"""So long a turn may wait for an engine that is killed."""
END_S = 5.0
"""The server closes so much later at most than the speech takes that it owes."""
NOTICED_S = 6.0
"""A server notices within this time that the other end is gone."""
POLL_S = 0.05
_LAG_EVERY_S = 0.005
_LEAST_LAG_NS = 4 * MS


@dataclass
class Surroundings:
    port: int
    tally: Tally
    stops: Stops
    """Of the machine, of faults, and of this process. For calls there is `call_stops`."""
    media_port: int = 0
    """Where telephone calls come in: the bridge's AudioSocket port."""
    proxy_port: int = 0
    """A way to the server that delays and cuts what passes."""
    sound_address: Callable[[str, int], str] = no_server
    """Where the server of sounds has a sound of this kind (`SoundServer.address`)."""
    asterisk: Any = None
    """A real Asterisk, where calls come in at the extensions of the shipped dialplan."""
    telephones: Any = None
    """Receives the RTP of all telephones."""
    dialling: asyncio.Lock = field(default_factory=asyncio.Lock)
    may_fail: bool = False
    """An engine may fail, so that turns end with an error."""
    may_lose_names: bool = False
    """An engine that is found by its name may not be found, so that its turns end with an error."""
    may_refuse: bool = False
    """The server may have no room for a new connection, or no engine that responds."""
    may_break: bool = False
    """A process that holds calls was killed, so that connections break."""
    has_memory: bool = True
    """False while the server gets no new memory. Then it may reset a new connection that the system has no memory to
    watch."""
    front_starts_until_ns: int = 0
    """A front that was killed may still be starting until then."""
    recorded: list[Recorded] = field(default_factory=list)
    """What recordings must hold."""
    no_descriptors: Stops = field(default_factory=Stops)
    """When the server could open nothing more."""
    crashes: list[str] = field(default_factory=list)
    """Errors of our own clients."""
    begin_ns: int = field(default_factory=time.monotonic_ns)
    call_stops: Stops = field(init=False)
    """The same, and when a client read nothing. That excuses no neighbour."""

    def excuses_failed_connection(self, error: OSError) -> bool:
        """Whether the faults of this round excuse that a new connection failed with this error."""
        is_reset_for_memory = not self.has_memory and isinstance(error, ConnectionResetError)
        return self.may_refuse or self.may_break or is_reset_for_memory

    def __post_init__(self) -> None:
        self.call_stops = Stops(self.stops)


async def watch_lag(stops: Stops) -> None:
    """Note when this process's event loop was late: then its clients read late, not the server."""
    last_ns = time.monotonic_ns()
    while True:
        await asyncio.sleep(_LAG_EVERY_S)
        now_ns = time.monotonic_ns()
        if now_ns - last_ns > _LAG_EVERY_S * 1e9 + _LEAST_LAG_NS:
            stops.add(last_ns, now_ns)
        last_ns = now_ns
