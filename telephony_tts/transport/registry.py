"""The live calls by id. A call can be found exactly as long as it can be joined."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from telephony_tts.ops.keys.key import Key
from telephony_tts.recording.live import Recordings
from telephony_tts.runtime import metrics
from telephony_tts.runtime.errors import Busy, TelephonyTTSError
from telephony_tts.transport.call import Call, Leg
from telephony_tts.transport.connection import DirectConnection
from telephony_tts.transport.front_connection import FrontConnection
from telephony_tts.transport.fronts import ClaimFailed, Fronts
from telephony_tts.transport.turn_traces import Tracing


def close_code(refusal: TelephonyTTSError) -> int:
    """With which code a socket is closed that gets no call."""
    return {"key_limit": 4429, "call_taken": 4409}.get(refusal.code, 1013)


class Registry:
    """Starts calls as children of one TaskGroup, and removes them when they end.

    A call that is over may still be closing its engine or a socket. It then counts in `len` but is not found any more:
    its id is free for the next stream of the same telephone call.

    With `fronts` it has the calls of one of several processes. The id of each call is claimed, so that no other process
    begins the same call.
    """

    def __init__(self) -> None:
        self.group: asyncio.TaskGroup | None = None
        self.recordings: Recordings | None = None
        """Where calls are recorded, if the settings say so. None without a folder."""
        self.tracing: Tracing | None = None
        """Makes traces of turns. None: no turn is traced."""
        self.draining = False
        """No new calls are taken. Legs may still join live calls."""
        self.fronts: Fronts | None = None
        """The other processes of this server."""
        self.move: Callable[[DirectConnection, str], Awaitable[None]] | None = None
        """Moves a connection to another front. Raises ClaimFailed if it cannot be moved."""
        self.max_calls: int | None = None
        """The limit of `n_calls_of_all`."""
        self.max_requests: int | None = None
        """The limit of `n_requests_of_all`."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the numbers of calls have changed, which other processes must know."""
        self._n_arriving = 0
        self._calls: dict[str, Call] = {}
        self._alive: set[Call] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def n_calls(self) -> int:
        """How many calls there are without the HTTP requests."""
        return len(self) - self.n_requests

    @property
    def n_requests(self) -> int:
        """How many of the calls are HTTP requests, which have a limit of their own."""
        return sum(call.kind == "http" for call in self._alive)

    @property
    def n_arriving(self) -> int:
        """How many media legs have not said yet which call they belong to."""
        return self._n_arriving

    @n_arriving.setter
    def n_arriving(self, n: int) -> None:
        self._n_arriving = n
        self.changed()

    @property
    def n_calls_of_all(self) -> int:
        """`n_calls` of all processes of this server together."""
        return self.n_calls + (0 if self.fronts is None else self.fronts.others().n_calls)

    @property
    def n_requests_of_all(self) -> int:
        """`n_requests` of all processes of this server together."""
        return self.n_requests + (0 if self.fronts is None else self.fronts.others().n_requests)

    @property
    def n_arriving_of_all(self) -> int:
        """`n_arriving` of all processes of this server together."""
        return self.n_arriving + (0 if self.fronts is None else self.fronts.others().n_arriving)

    def calls_by_key(self) -> dict[str, int]:
        """How many calls and HTTP requests each named key has here."""
        return Counter(call.owner.name for call in self._alive if call.owner.name and not call.over)

    def key_refusal(self, key: Key, call: Call | None = None) -> str | None:
        """Why no call of this key can begin now, or why the key's bot cannot join `call`. None if it can."""
        if key.calls is None or (call is not None and call.owner.name == key.name):
            return None
        n_calls = self.calls_by_key().get(key.name, 0)
        if self.fronts is not None:
            n_calls += sum(int(use["calls"].get(key.name, 0)) for use in self.fronts.use_of_others())
        if n_calls < key.calls:
            return None
        return f"key {key.name} has {n_calls} calls; its limit is {key.calls}"

    def find(self, call_id: str) -> Call | None:
        call = self._calls.get(call_id)
        return None if call is None or call.over else call

    def calls(self) -> list[Call]:
        return list(self._alive)

    @property
    def awaits_media(self) -> bool:
        """True if a call waits for its media leg."""
        return any(call.media is None and call.kind != "stream" and not call.over for call in self._alive)

    @property
    def awaits_media_of_all(self) -> bool:
        """`awaits_media` of any process of this server."""
        return self.awaits_media or (self.fronts is not None and self.fronts.others().awaits_media)

    def admit_bot(
        self, call_id: str, key: Key, new: Callable[[], Call], *, joins: bool = True, beside: type[Leg] | None = None
    ) -> Call:
        """The call of a bot with this key: the live one that it `joins`, or `new()`, which begins. The bot joins before
        anything else runs, so no other one comes in between. `beside`: see `Call.admit_bot`, which decides. Raises
        TelephonyTTSError: `key_limit`, `call_taken`, or what `begin` raises."""
        call = self.find(call_id)
        self._check_limit_of(key, call)
        if call is None:
            call = new()
            call.admit_bot(key)
            self.begin(call)
        elif joins:
            call.admit_bot(key, beside)
        else:
            raise TelephonyTTSError(f"call {call_id} already has a bot", code="call_taken")
        return call

    def admit_media(self, call_id: str, key: Key, new: Callable[[], Call]) -> Call:
        """The same for a media leg. It joins a call whatever its key, which matters only to a call that begins."""
        call = self.find(call_id)
        if call is None:
            self._check_limit_of(key)
            call = new()
            call.use_key(key)
            self.begin(call)
        elif call.media is not None:
            raise TelephonyTTSError("the call already has a media leg", code="call_taken")
        return call

    async def admitted(
        self, connection: DirectConnection, call_id: str, admit: Callable[[], Call], *, may_begin: bool, leg: str,
        stream: str | None = None,
    ) -> Call | None:  # fmt: skip
        """The call that `admit` gives for a socket. None if another process has claimed the call: the connection was
        moved there, and nothing is left to do. Otherwise it does not suspend.

        Raises TelephonyTTSError, which is counted, and logged with the media leg's `stream`: what `admit` raises, and
        `busy` or `draining` if the call can neither begin nor be reached."""
        try:
            if self.find(call_id) is None:
                if self.fronts is not None and (owner := self.claim(call_id, connection)) is not None:
                    assert self.move is not None
                    await self.move(connection, owner)
                    return None
                if not may_begin or self.draining:
                    # It was let in to join a call: another one, or one that has ended meanwhile.
                    code = "draining" if self.draining else "busy"
                    raise TelephonyTTSError("no room for another call", code=code)
            call = admit()
        except TelephonyTTSError as error:
            metrics.REFUSED.labels(reason=error.code).inc()
            log = connection.log.error if isinstance(error, ClaimFailed) else connection.log.warning
            log("refused", call=call_id, reason=error.code, leg=leg, stream=stream, why=error.message)
            raise
        if isinstance(connection, FrontConnection):
            connection.settle()
        return call

    def claim(self, call_id: str, connection: DirectConnection) -> str | None:
        """Claim an id as long as the connection is open. Returns the other process that has claimed it already. Raises
        ClaimFailed."""
        fronts = self.fronts
        assert fronts is not None
        owner = fronts.claim(call_id)
        if owner is None:
            connection.left.add_done_callback(lambda _left: fronts.release(call_id))
        return owner

    def begin(self, call: Call) -> None:
        """Start the call. It runs in the loop's next round, and does then what its legs asked for meanwhile.

        Raises Busy if there are as many calls as there may be: a handshake is admitted before its call begins, and
        others may have begun meanwhile. Raises ClaimFailed if another process of this server has the call."""
        assert self.group is not None and self.find(call.id) is None
        if self.fronts is not None:
            self._own(call, self.fronts)
        self._calls[call.id] = call
        self._alive.add(call)
        # Told before the others are read. So of two processes that begin a call at the same moment, at least one sees
        # both calls, and the limit holds exactly. It may happen that both see them and refuse.
        try:
            self.changed()
            self._check_room(call)
            self._empty.clear()
            if self.tracing is not None:
                call.trace(self.tracing)
            if self.recordings is not None and self.recordings.settings.is_on and call.kind != "http":
                call.recordings = self.recordings
                if self.recordings.settings.calls == "all":
                    call.record("start")
            self.group.create_task(self._run(call), name=f"call {call.id}")
        except BaseException:
            self._forget(call)
            if call.on_over is not None:
                call.on_over()
            self.changed()
            raise

    def _check_limit_of(self, key: Key, call: Call | None = None) -> None:
        """Raises TelephonyTTSError if `key_refusal` has a reason."""
        if (why := self.key_refusal(key, call)) is not None:
            raise TelephonyTTSError(why, code="key_limit", retry_after_ms=2_000)

    def _check_room(self, call: Call) -> None:
        """Raises Busy if the call is one too many."""
        if call.kind == "http":
            n, most, what = self.n_requests_of_all, self.max_requests, "HTTP requests are being spoken"
        else:
            n, most, what = self.n_calls_of_all, self.max_calls, "calls are live"
        if most is None or n <= most:
            return
        raise Busy(f"{most} {what}, which is the limit", retry_after_ms=5_000)

    def _own(self, call: Call, fronts: Fronts) -> None:
        """Claim the call's id until the call is over. A connection of the call has claimed it before; an HTTP request
        that begins a call has not. Raises ClaimFailed."""
        if call.kind != "http" and fronts.claim(call.id) is not None:
            raise ClaimFailed(f"another process of this server has just begun call {call.id}; try again")

        def over() -> None:
            if call.kind != "http":
                fronts.release(call.id)
            self.changed()

        call.on_over = over

    async def wait_empty(self) -> None:
        await self._empty.wait()

    async def _run(self, call: Call) -> None:
        try:
            await call.run()
        except Exception:
            # The failure of one call must not end the others.
            call.log.exception("call_crashed")
        finally:
            self._forget(call)
            self.changed()

    def _forget(self, call: Call) -> None:
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
        self._alive.discard(call)
        if not self._alive:
            self._empty.set()
