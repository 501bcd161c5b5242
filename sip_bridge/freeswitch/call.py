"""One call in FreeSWITCH: the bridge plays the server's speech and reports what happens.

The audio does not pass through the bridge. FreeSWITCH's module has a socket to the server and writes its speech into
files. The same socket carries the bridge's reports (`send_text`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Protocol

from sip_bridge import metrics
from sip_bridge.freeswitch import speech_files
from sip_bridge.freeswitch.esl import OnReply
from sip_bridge.freeswitch.file_player import FilePlayer
from sip_bridge.peer_input import TOO_MANY_DIGITS, BadInput, DigitLimit
from sip_bridge.server_leg import digits_in
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns

_log = logs.get(__name__)

_DIGITS = "0123456789*#ABCD"

_ANSWER_S = 5.0
"""How long the server may take to answer `again`. No answer comes if the call ended while the event socket was lost."""


class SwitchCommands(Protocol):
    """Commands to FreeSWITCH, which runs them in order. Without a connection they are dropped, `then` with them."""

    def api(self, command: str, then: OnReply | None = None) -> None: ...
    def execute(self, uuid: str, application: str, argument: str, then: OnReply | None = None) -> None: ...


class FreeSwitchCall:
    """`run` returns when the call is over; `end` ends it. `module` is the command of mod_audio_stream or _fork."""

    def __init__(
        self, uuid: str, module: str, orders: SwitchCommands, *, hang_up: bool, remove_files: bool,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:  # fmt: skip
        self.uuid = uuid
        self.module = module
        self._orders = orders
        self._hangs_up = hang_up
        self._removes_files = remove_files
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._player = FilePlayer(self)
        self._timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._asked_ns: int | None = None
        self._stopped_ns: int | None = None
        self._digit_limit = DigitLimit()
        self._bad_input = BadInput()
        self.log = _log.bind(call=uuid).limited(logs.LineLimit.of_call(clock))

    async def run(self) -> None:
        begun_ns = self._clock()
        metrics.CALLS_LIVE.inc()
        self.log.info("call_started", module=self.module)
        try:
            await asyncio.wait((self._over,))
        finally:
            self.end("failed")
            reason = self._over.result()
            metrics.CALLS.labels(reason).inc()
            metrics.CALLS_LIVE.dec()
            self.log.summary("call_ended", reason=reason, ms=(self._clock() - begun_ns) // NS_PER_MS)

    def end(self, reason: str) -> None:
        """End the call. `reason` is one of metrics.ENDS. Except for "hangup" and "taken", it may end the channel."""
        if self._over.done():
            return
        self._over.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()
        self._stop_waiting()
        if self._hangs_up and reason not in ("hangup", "taken"):
            self._orders.api(f"uuid_kill {self.uuid} NORMAL_CLEARING")
        self._player.forget_files()  # the module removes files too, unless FreeSWITCH is killed

    @property
    def is_over(self) -> bool:
        return self._over.done()

    # ------------------------------------------------- events of FreeSWITCH

    def file(self, body: str) -> None:
        """The module has written a file of speech."""
        self._stop_waiting()
        said = _object(body)
        number, path = _number(said.get("id")), said.get("file")
        if number is None or not isinstance(path, str) or not speech_files.is_speech_file(path, self.uuid):
            self._bad("a file of speech has no number, or the path of another call")
            return
        self._player.add(number, path, self._clock())
        self._arm()

    def told(self, data: dict[str, object]) -> None:
        """A message of the server to the bridge."""
        self._stop_waiting()
        what = data.get("tts")
        if what == "hello":
            self._player.greeted(_number(data.get("next")) or 1, self._clock())
            self._arm()
        elif what == "clear":
            before = _number(data.get("before"))
            if before is None:
                self._bad("a clear does not say which files")
                return
            self._player.clear(before, self._clock())
            self._arm()
        elif what == "dtmf":
            tones = digits_in(data)
            if tones is None:
                self._bad("a message of tones has no digits that can be sent")
                return
            self._orders.api(f"uuid_send_dtmf {self.uuid} {tones.digits}@{tones.on_ms}")
        elif what == "hangup":
            self.end("finished")

    def playback(self, is_beginning: bool, path: str, status: str) -> None:
        now_ns = self._clock()
        if is_beginning:
            if self._asked_ns is not None:
                metrics.FILE_START_MS.observe((now_ns - self._asked_ns) / NS_PER_MS)
                self._asked_ns = None
            self._player.begun(path, now_ns)
        else:
            if self._stopped_ns is not None:
                metrics.BREAK_MS.observe((now_ns - self._stopped_ns) / NS_PER_MS)
                self._stopped_ns = None
            self._player.ended(path, status.lower() == "break", now_ns)
        self._arm()

    def digit(self, digit: str) -> None:
        now_ns = self._clock()
        if len(digit) != 1 or digit.upper() not in _DIGITS:
            self._bad("a digit is not one of 0-9 * # A-D")
        elif not self._digit_limit.allows(now_ns):
            self._bad(TOO_MANY_DIGITS, "digit_flood")
        else:
            self._tell({"esl": "dtmf", "digit": digit.upper()})

    def socket_lost(self) -> None:
        """The event socket is lost. The server will send the unheard speech again, so the files are removed."""
        self._stop_waiting()
        self._player.forget_files()

    def lost_touch(self) -> None:
        """The event socket is connected again. Events in between were missed, perhaps the end of the call."""
        if self._over.done():
            return
        self._player.lost_touch(self._clock())
        self._arm()
        self._stop_waiting()
        self._answer_timer = self._loop.call_later(_ANSWER_S, self._server_is_silent)

    # ------------------------------------------------- actions of the player

    def play(self, path: str) -> None:
        self._asked_ns, self._stopped_ns = self._clock(), None
        # Not uuid_broadcast: it waits for five frames of the caller first (lead-frames), 100 ms for each file.
        self._orders.execute(self.uuid, "playback", path, lambda reply: self._answered(path, reply))

    def stop(self, *, empties_queue: bool = True) -> None:
        if empties_queue:
            self._stopped_ns = self._clock()
            self._orders.api(f"uuid_break {self.uuid} all", self._break_answered)
        else:
            self._orders.api(f"uuid_break {self.uuid}")

    def report(self, what: str, number: int | None = None) -> None:
        metrics.FILES.labels(what).inc()
        if what == "failed":
            self.log.error("file_not_played", file=number)
        self._tell({"esl": what} if number is None else {"esl": what, "file": str(number)})

    def remove(self, path: str) -> None:
        """Remove a file that was played. The module removes its files only when the call ends."""
        if self._removes_files and speech_files.is_speech_file(path, self.uuid):
            speech_files.remove(path)

    # ----------------------------------------------------------------- details

    def _stop_waiting(self) -> None:
        """Wait for the server's answer no longer."""
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _server_is_silent(self) -> None:
        self.log.warning("server_lost", why=f"no answer within {_ANSWER_S:g} s after the event socket was lost")
        self.end("server_lost")

    def _answered(self, path: str, reply: str) -> None:
        if reply.startswith("-ERR"):
            self.log.warning("freeswitch_refuses", why=reply[:200])
            self._player.refused(path, self._clock())
            self._arm()

    def _break_answered(self, _reply: str) -> None:
        self._player.stopped(self._clock())
        self._arm()

    def _tell(self, message: dict[str, str]) -> None:
        """Send a message to the server over the module's socket. It must have no space: the module splits there."""
        text = json.dumps(message, separators=(",", ":"))
        self._orders.api(f"{self.module} {self.uuid} send_text {text}")

    def _bad(self, why: str, kind: str = "freeswitch_event") -> None:
        self._bad_input.report(self.log, kind, why)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self._player.deadline_ns
        if due_ns is not None and not self._over.done():
            wait_ns = max(0, due_ns - self._clock()) + NS_PER_MS // 2
            self._timer = self._loop.call_later(wait_ns / NS_PER_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        self._player.poll(self._clock())
        self._arm()


def _object(body: str) -> dict[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int | None:
    """A file's number, an integer or digits in a string; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9 else None
