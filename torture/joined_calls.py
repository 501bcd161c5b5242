"""Bots whose HTTP requests join a telephone call (docs/protocol/http-calls.md §12.5); a carrier is at the other end."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from typing import Any

from harness.peer import Peer

from torture import violations as v
from torture.carriers import CarrierLink
from torture.dialects import Twilio
from torture.histories import CallHistory, Step
from torture.http_doors import FORMS, HttpClient
from torture.joined_oracle import JoinedOracle, JoinedRequest
from torture.letters import MS_PER_LETTER, sentence
from torture.surroundings import CLAIM_S, CONNECT_S, NOTICED_S, Surroundings
from torture.violations import CROSS_NS

MS = 1_000_000
_MOST_AT_ONCE = 4
_LONG_MS = 1_500
"""If so much is left to speak, the call still has its bot when another one has come and was refused."""
_BROKEN = (OSError, asyncio.IncompleteReadError, ValueError)


class JoinedCall:
    """Performs a history: each text is a request, and some are made at the same time."""

    def __init__(self, call: CallHistory, number: int, around: Surroundings) -> None:
        self._call = call
        self._around = around
        self._choose = random.Random(f"{call.seed} words")
        self._form = FORMS[call.options["form"]]
        self._name = f"CA{uuid.UUID(int=random.getrandbits(128)).hex}"
        delay_ns = call.options["delay_ms"] * MS
        self._oracle = JoinedOracle(
            around.tally, around.call_stops, call=number, delay_ns=delay_ns, may_fail=around.may_fail
        )
        dialect, late_ms = Twilio(self._name), call.options["delay_ms"]
        self._media = CarrierLink(around, self._oracle, dialect, late="fixed", late_ms=late_ms, seed=call.seed)  # type: ignore[arg-type]
        self._speaking: dict[JoinedRequest, asyncio.Task[None]] = {}
        self._is_torn = False

    async def run(self) -> None:
        if self._call.options["no_media"]:
            await self._without_telephone()
            return
        await self._media.connect_in_time(self._around.port, CONNECT_S)
        try:
            self._media.start()
            for step in self._call.steps:
                await asyncio.sleep(step.after_ms / 1000)
                if self._media.closed.done():
                    break
                await self._step(step)
            await self._end()
        finally:
            for task in self._speaking.values():
                task.cancel()
            await asyncio.gather(*self._speaking.values(), return_exceptions=True)
            self._media.close()
            self._oracle.finish(is_torn=self._is_torn or self._media.missed_a_ping())

    async def _step(self, step: Step) -> None:
        match step.do:
            case "say":
                self._begin(step.n)
            case "text":
                # The client waits for the response, as frameworks do.
                if (request := self._begin(step.n)) is not None:
                    await asyncio.wait((self._speaking[request],))
            case "say_storm":
                for _ in range(step.n):
                    self._begin(2)
            case "clear" | "clear_turn" | "clear_storm":
                for request in self._live()[-step.n :]:
                    await self._leave(request)
            case "mark":
                await self._refused(step.n)
            case "ping":
                await self._another_bot()

    def _live(self) -> list[JoinedRequest]:
        return [request for request in self._oracle.requests if request.is_live]

    def _path(self) -> str:
        if self._call.options["in_query"]:
            return f"{self._form.path}{'&' if '?' in self._form.path else '?'}call={self._name}"
        return f"/calls/{self._name}{self._form.path}"

    # ------------------------------------------------------------------ requests

    def _begin(self, n_words: int) -> JoinedRequest | None:
        letter = self._oracle.free_letter()
        if letter is None or len(self._live()) >= _MOST_AT_ONCE:
            return None
        text = sentence(self._choose, letter, n_words)
        request = self._oracle.asked(letter, len(text), time.monotonic_ns())
        self._speaking[request] = asyncio.create_task(self._speak(request, text))
        return request

    async def _speak(self, request: JoinedRequest, text: str) -> None:
        client = HttpClient(self._around)
        try:
            request.status, told = await client.ask(self._path(), self._form.body(text))
            self._oracle.checked(v.ANSWERS)
            if request.status != 200:
                request.ended_ns = time.monotonic_ns()
                self._failed(request, told)
                return
            while piece := await client.chunk():
                request.response_ms += len(piece) / self._form.bytes_per_ms
                if set(piece) - ({0} if self._form.codec == "pcm" else {0xFF, 0x7F}):
                    self._oracle.wrong(v.SILENCE, f"the response of {request.letter} is not silent")
            request.ended_ns = time.monotonic_ns()
            self._oracle.note(request.ended_ns, "<", f"the response of {request.letter} is over")
        except _BROKEN as error:
            request.ended_ns = time.monotonic_ns()
            request.status = 0
            self._broken(f"the response of {request.letter} broke off: {error!r}")
        finally:
            client.disconnect(reset=bool(request.left_ns) and request.n_chars % 2 == 0)

    async def _leave(self, request: JoinedRequest) -> None:
        """The client closes the connection, which interrupts its turn and no other one."""
        self._around.tally.counts["clears"] += 1
        request.left_ns = time.monotonic_ns()
        self._oracle.note(request.left_ns, ">", f"the client of {request.letter} leaves")
        task = self._speaking[request]
        task.cancel()
        await asyncio.wait((task,))

    def _failed(self, request: JoinedRequest, told: bytes) -> None:
        around = self._around
        around.tally.counts[f"joined http {request.status}"] += 1
        code = _code(told)
        is_late = bool(self._oracle.hung_up_ns) and code in ("call_over", "closing", "no_media")
        is_full = request.status == 503 and around.may_refuse
        if is_late or is_full or (request.status >= 500 and around.may_fail) or around.may_break:
            return
        self._oracle.wrong(v.ONE_END, f"a request of the call was answered by {request.status}: {told[:120]!r}")

    def _broken(self, what: str) -> None:
        around = self._around
        self._is_torn = True
        if not (around.may_break or around.may_refuse or around.may_fail):
            self._oracle.wrong(v.ONE_END, what)

    async def _refused(self, n: int) -> None:
        """A request that cannot be used gets one error, and the caller hears nothing of it."""
        bodies: list[Any] = [{}, {"input": 7, "text": 7}, [], self._form.body("")]
        client = HttpClient(self._around)
        try:
            status, told = await client.ask(self._path(), bodies[n % 4])
            self._oracle.checked(v.ANSWERS)
            if status not in (400, 422) and not (status >= 500 and self._around.may_refuse):
                self._oracle.wrong(v.ANSWERS, f"a bad request in a call was answered by {status}: {told[:100]!r}")
        except _BROKEN as error:
            self._broken(f"no answer to a bad request: {error!r}")
        finally:
            client.disconnect()

    async def _another_bot(self) -> None:
        """While a request is spoken, another bot is refused with 4409."""
        live = self._live()
        left_ms = sum(request.n_chars * MS_PER_LETTER - request.response_ms for request in live)
        if left_ms < _LONG_MS or not any(request.response_ms for request in live):
            return
        bot = _Bot(self._name)
        try:
            await asyncio.wait_for(bot.connect(self._around.port), CONNECT_S)
            await asyncio.wait((bot.closed, bot.is_let_in), timeout=NOTICED_S, return_when=asyncio.FIRST_COMPLETED)
            self._oracle.checked(v.CLOSE)
            if bot.close_code != 4409 and any(request.is_live for request in live) and not self._around.may_break:
                how = "was let in" if bot.is_let_in.done() else f"was closed with {bot.close_code}"
                self._oracle.wrong(v.CLOSE, f"another bot {how} while a request is spoken, expected 4409")
        except OSError as error:
            if not (self._around.may_refuse or self._around.may_break):
                self._oracle.wrong(v.CLOSE, f"another bot got no answer: {error!r}")
        finally:
            bot.close()

    # ----------------------------------------------------------------------- end

    async def _end(self) -> None:
        """The caller hangs up, while requests are spoken or behind them. Their responses end as if they were over."""
        if self._call.end == "close":
            await self._all_over(sum(r.n_chars for r in self._live()) * MS_PER_LETTER / 1000 + NOTICED_S)
            # What is sent ahead comes behind the end of a response.
            await asyncio.sleep(0.1)
        self._oracle.hung_up_ns = time.monotonic_ns()
        if self._call.end == "media_rst":
            self._media.reset()
        else:
            self._media.hang_up_call()
        # A request that comes to the server behind the hang-up begins another call, and waits for its telephone.
        newest_ns = max((request.asked_ns for request in self._live()), default=0)
        is_crossing = newest_ns > self._oracle.hung_up_ns - CROSS_NS - self._around.call_stops.within(
            newest_ns - CROSS_NS, self._oracle.hung_up_ns + CROSS_NS
        )  # fmt: skip
        await self._all_over(NOTICED_S + CLAIM_S * is_crossing)
        if not await self._media.gone(NOTICED_S) and not self._around.may_break:
            self._oracle.wrong(v.CLOSE, "the telephone's socket is open after it has hung up")

    async def _all_over(self, within_s: float) -> None:
        begin_ns = time.monotonic_ns()
        while waiting := [task for task in self._speaking.values() if not task.done()]:
            now_ns = time.monotonic_ns()
            left_s = within_s - (now_ns - begin_ns - self._around.call_stops.within(begin_ns, now_ns)) / 1e9
            if left_s <= 0:
                break
            await asyncio.wait(waiting, timeout=min(left_s, 1.0))
        if waiting and not (self._around.may_break or self._around.may_fail):
            now_ns = time.monotonic_ns()
            late = ", ".join(
                f"{each.letter} (asked {(now_ns - each.asked_ns) / MS:.0f} ms ago, {each.response_ms:.0f} ms came)"
                for each in self._live()
            )
            self._oracle.wrong(v.ONE_END, f"responses have not ended within {within_s:.0f} s: {late}")

    async def _without_telephone(self) -> None:
        """No telephone comes. The answer is 404 when the time for it is over; or the client leaves before."""
        client, tally = HttpClient(self._around), self._around.tally
        begin_ns = time.monotonic_ns()
        try:
            asking = client.ask(self._path(), self._form.body("aaa."))
            if self._call.end == "media_rst":
                try:
                    await asyncio.wait_for(asking, 1)
                except TimeoutError:
                    client.disconnect(reset=True)
                return
            status, told = await asking
            took_s = (time.monotonic_ns() - begin_ns) / 1e9
            stops_s = self._around.call_stops.within(begin_ns, time.monotonic_ns()) / 1e9
            tally.n_checked[v.ANSWERS] += 1
            is_refused = status == 503 and self._around.may_refuse
            if (status, _code(told)) != (404, "no_media") and not is_refused and not self._around.may_break:
                self._oracle.wrong(v.ANSWERS, f"no telephone came, and the answer is {status}: {told[:100]!r}")
            elif not is_refused and not CLAIM_S - 1 < took_s < CLAIM_S + 2 + stops_s and not self._around.may_break:
                self._oracle.wrong(v.ANSWERS, f"no telephone came, and that is told after {took_s:.1f} s")
        except _BROKEN as error:
            self._broken(f"no answer to a request without a telephone: {error!r}")
        finally:
            client.disconnect()
            tally.counts["calls without a media leg"] += 1
            self._oracle.finish(is_torn=True)


def _code(told: bytes) -> str:
    """The code in an error of any form."""
    try:
        found = json.loads(told)
    except ValueError:
        return ""
    for key in ("error", "detail"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    return str(found.get("code") or found.get("status") or found.get("err_code")) if isinstance(found, dict) else ""


class _Bot(Peer):
    """A bot that wants the call."""

    def __init__(self, name: str) -> None:
        super().__init__(f"/v1/stream?call={name}&audio=none")
        self.is_let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_message(self, payload: bytes, at_ns: int) -> None:
        if json.loads(payload).get("type") == "ready" and not self.is_let_in.done():
            self.is_let_in.set_result(None)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
