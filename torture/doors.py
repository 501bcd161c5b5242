"""Runs one history through its door, against a real server, with the door's oracle."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from urllib.parse import urlencode

from torture import violations as v
from torture.asterisk_door import phone_call
from torture.carriers import CarrierLink, slack_ms
from torture.dialects import DIALECTS, PTIME_MS, Dialect, Twilio
from torture.histories import CARRIERS, CallHistory, Step
from torture.http_doors import FORMS, HttpCall
from torture.joined_calls import JoinedCall
from torture.letters import MS_PER_LETTER, SLOWEST, FrameReader
from torture.links import AudioSocketLink, BotLink
from torture.oracle import NativeOracle
from torture.recordings import RATE_HZ, Recorded
from torture.script import Script
from torture.surroundings import CLAIM_S, CONNECT_S, END_S, NOTICED_S, POLL_S, RESTART_S, Surroundings
from torture.vendor_doors import vendor_call
from torture.violations import Violation

MS = 1_000_000
_BOT_S = 15.0
"""The server has given up to dial a bot by then; `bot.connect_timeout_s` is 2 s."""
_NO_MEDIA = 4404
_FAILS_S = {"zh": 12.0, "de": 8.0}
"""By language: `engines.restart_wait_s` is 10 s, and a connection over HTTP is tried twice for 3 s."""


async def run_call(call: CallHistory, number: int, around: Surroundings) -> None:
    """Run a history to its end. What did not hold is in the tally."""
    try:
        match call.door:
            case "native":
                await _native(call, number, around)
            case "bridge":
                await _bridge(call, number, around)
            case "asterisk_phone":
                await _asterisk(call, number, around)
            case "far_engine":
                await _far_engine(call, number, around)
            case "no_bot":
                await _no_bot(number, around)
            case door if door in CARRIERS:
                await _carrier(call, number, around)
            case door if door in FORMS:
                await HttpCall(call, number, around).run()
            case "joined":
                await JoinedCall(call, number, around).run()
            case _:
                await vendor_call(call, number, around)
    except OSError as error:
        around.tally.counts["calls refused"] += 1
        if not around.excuses_failed_connection(error):
            what = f"{call.door}: no connection: {str(error)[:300]}"
            around.tally.violations.append(Violation(v.CLOSE, what, number))
    except Exception as error:
        around.crashes.append(f"call {number}: {error!r}")


async def _native(call: CallHistory, number: int, around: Surroundings) -> None:
    name = f"N{uuid.UUID(int=random.getrandbits(128)).hex}"
    await _native_call(call, name, number, around)
    if call.options.get("comes_back"):
        await _come_back(call, lambda short: _native_call(short, name, number, around, is_back=True), number, around)


async def _native_call(
    call: CallHistory, name: str, number: int, around: Surroundings, *, is_back: bool = False
) -> bool:
    """Whether the server let the call in. With `is_back` its name may still be that of the call before."""
    options = {"words": "on", **call.options}
    if options.pop("comes_back", False) or call.seed % 2:
        options["call"] = name
    is_lossy = bool(options.pop("through_proxy", False)) and around.proxy_port > 0
    n_bytes = options["rate"] * options["ptime_ms"] // 1000 * (2 if options["codec"] == "pcm" else 1)
    oracle = NativeOracle(
        around.tally, around.call_stops, call=number, ptime_ms=options["ptime_ms"], frame_bytes=n_bytes,
        lead_ns=options["lead_ms"] * MS, reader=FrameReader(options["codec"], options["rate"]),
        may_fail=around.may_fail, is_lossy=is_lossy, keeps_recorded=options["rate"] == RATE_HZ,
    )  # fmt: skip
    link = BotLink(f"/v1/stream?{urlencode(options)}", around, oracle)
    await link.connect_in_time(around.proxy_port if is_lossy else around.port, CONNECT_S)
    try:
        if is_back and await link.is_taken(NOTICED_S):
            return False
        await Script(call, link, oracle, time.monotonic_ns, around.sound_address).perform(link.closed.done)
        await _end(call, around, link)
    finally:
        link.close()
        if not link.was_taken:
            oracle.finish(time.monotonic_ns(), is_torn=link.torn)
            around.recorded += [Recorded(number, *each, oracle.log_lines()) for each in oracle.recorded]
    return True


async def _come_back(
    call: CallHistory, begin: Callable[[CallHistory], Awaitable[bool]], number: int, around: Surroundings
) -> None:
    """The client connects again under the same name. The server must let it in as soon as it has noticed the end of
    the call before."""
    short = replace(call, steps=(Step(0, "say", 2), Step(0, "mark")), end="close")
    begin_ns = time.monotonic_ns()
    around.tally.n_checked[v.CLOSE] += 1
    around.tally.counts["calls that came back"] += 1
    while not await begin(short):
        lost_ns = around.call_stops.within(begin_ns, time.monotonic_ns())
        if time.monotonic_ns() - begin_ns - lost_ns > NOTICED_S * 1e9:
            if not around.may_break:
                what = f"{call.door}: the name of a call is taken {NOTICED_S:.0f} s after its end"
                around.tally.violations.append(Violation(v.CLOSE, what, number))
            return
        await asyncio.sleep(POLL_S)


async def _carrier(call: CallHistory, number: int, around: Surroundings) -> None:
    name = f"CA{uuid.UUID(int=random.getrandbits(128)).hex}"
    await _carrier_call(call, name, number, around)
    if call.options.get("comes_back"):
        await _come_back(call, lambda short: _carrier_call(short, name, number, around, is_back=True), number, around)


async def _carrier_call(
    call: CallHistory, name: str, number: int, around: Surroundings, *, is_back: bool = False
) -> bool:
    """Whether the server let both legs in. With `is_back` the call before may still have a leg of the same kind."""
    codec, rate_hz = call.options["format"]
    late, late_ms = call.options["late"], call.options["delay_ms"]
    dialect = DIALECTS[call.door](name, codec, rate_hz)
    dialect.may_refuse = around.may_refuse
    lead_ns = None if dialect.lead_ms is None else (dialect.lead_ms + _message_ms(dialect)) * MS
    oracle = NativeOracle(
        around.tally, around.call_stops, call=number, has_media=True, may_fail=around.may_fail, lead_ns=lead_ns,
        frame_bytes=dialect.frame_bytes, reader=FrameReader(codec, rate_hz), slack_ns=slack_ms(dialect, late) * MS,
        keeps_recorded=rate_hz == RATE_HZ and late != "stalling",
    )  # fmt: skip
    bot = BotLink(f"/v1/stream?call={name}&audio=none&words=on", around, oracle)
    media = CarrierLink(around, oracle, dialect, late=late, late_ms=late_ms, seed=call.seed)
    bot.telephone = media
    try:
        for link in (media, bot) if call.options["media_first"] else (bot, media):
            await link.connect_in_time(around.port, CONNECT_S)
            if link is media:
                media.start()
        if dialect.is_refused:
            raise OSError("no room for another call")
        if is_back and (await bot.is_taken(NOTICED_S) or not await bot.gets_media(media.closed, NOTICED_S)):
            bot.was_taken = True
            return False
        await Script(call, bot, oracle, time.monotonic_ns, around.sound_address).perform(bot.closed.done)
        if call.end in _MEDIA_ENDS:
            oracle.owes_answers = False
            _MEDIA_ENDS[call.end](media)
            if media.transport.is_closing():
                oracle.telephone_left(time.monotonic_ns())
            await _closes(bot, around, 1000)
        else:
            await _end(call, around, bot)
        if not bot.closed.done():
            bot.reset()
        if not media.torn and not await media.gone(_outlives_s(bot)) and not around.may_break:
            oracle.wrong(v.CLOSE, f"{call.door}: the media leg outlives its bot")
        elif (
            call.end.startswith("close") and not bot.torn and not media.torn and not media.missed_a_ping()
            and media.close_code not in (1000, None, *(_NO_MEDIA,) * bot.awaits_media)
        ):  # fmt: skip
            oracle.wrong(v.CLOSE, f"{call.door}: the media leg was closed with {media.close_code}, expected 1000")
    finally:
        bot.close()
        media.close()
        if not bot.was_taken:
            oracle.finish(time.monotonic_ns(), is_torn=bot.torn)
            around.recorded += [Recorded(number, *each, oracle.log_lines()) for each in oracle.recorded]
    return True


_MEDIA_ENDS: dict[str, Callable[[CarrierLink], None]] = {
    "hangup": CarrierLink.hang_up_call, "media_rst": CarrierLink.reset, "media_fin": CarrierLink.leave,
    "media_half_close": CarrierLink.half_close,
}  # fmt: skip
"""How the telephone side ends a call."""


def _message_ms(dialect: Dialect) -> int:
    """How much further ahead a leg may be that sends long messages: one may be filled up."""
    return (dialect.message_ms or PTIME_MS) - PTIME_MS


async def _no_bot(number: int, around: Surroundings) -> None:
    """A telephone call for which the server has to dial a bot, whose name does not resolve."""
    oracle = NativeOracle(around.tally, around.call_stops, call=number, has_media=True, is_lossy=True)
    dialect = Twilio(f"CA{uuid.UUID(int=random.getrandbits(128)).hex}")
    media = CarrierLink(around, oracle, dialect, late="fixed", late_ms=0, seed=number)
    await media.connect_in_time(around.port, CONNECT_S)
    try:
        media.start()
        is_gone = await media.gone(_BOT_S)
        around.tally.counts["calls"] += 1
        around.tally.n_checked[v.CLOSE] += 1
        if not is_gone or media.close_code != 1011:
            how = f"was closed with {media.close_code}" if is_gone else f"was not closed within {_BOT_S:.0f} s"
            what = f"a call whose bot cannot be reached {how}, expected 1011"
            around.tally.violations.append(Violation(v.CLOSE, what, number))
    finally:
        media.close()


async def _far_engine(call: CallHistory, number: int, around: Surroundings) -> None:
    """A call that is spoken by an engine that has to be found by its name. If it is not found, its turns end with an
    error in bounded time."""
    oracle = NativeOracle(
        around.tally, around.call_stops, call=number, may_fail=around.may_fail or around.may_lose_names,
        lead_ns=200 * MS, is_lossy=around.may_lose_names,
    )  # fmt: skip
    link = BotLink(f"/v1/stream?audio=binary&words=on&{urlencode(call.options)}", around, oracle)
    await link.connect_in_time(around.port, CONNECT_S)
    try:
        await Script(call, link, oracle, time.monotonic_ns, around.sound_address).perform(link.closed.done)
        await _end(call, around, link)
        _fails_in_time(oracle, around, _FAILS_S[call.options["lang"]])
    finally:
        link.close()
        oracle.finish(time.monotonic_ns(), is_torn=link.torn)


def _fails_in_time(oracle: NativeOracle, around: Surroundings, within_s: float) -> None:
    """A turn that fails does so soon after its text came, or after the turn before it."""
    free_ns = 0
    for turn in sorted(oracle.turns.values(), key=lambda each: each.ended_ns or time.monotonic_ns()):
        if turn.end == "error":
            around.tally.n_checked[v.ONE_END] += 1
            begin_ns = max(turn.begun_ns, free_ns)
            took_ns = turn.ended_ns - begin_ns - around.call_stops.within(begin_ns, turn.ended_ns)
            around.tally.counts["turns failed without a name"] += 1
            spoken_ns = round(len(turn.source) * MS_PER_LETTER * MS / SLOWEST)
            if took_ns > within_s * 1e9 + spoken_ns:
                oracle.wrong(v.ONE_END, f"{turn.id} failed after {took_ns / 1e9:.1f} s")
        free_ns = max(free_ns, turn.ended_ns)


async def _bridge(call: CallHistory, number: int, around: Surroundings) -> None:
    """A telephone call through the bridge. Its `clear` is not seen at this end: the audio only stops."""
    name = uuid.UUID(int=random.getrandbits(128))
    oracle = NativeOracle(
        around.tally, around.call_stops, call=number, frame_bytes=320, has_media=True, may_fail=around.may_fail,
        reader=FrameReader("pcm"), is_lossy=True,
    )  # fmt: skip
    bot = BotLink(f"/v1/stream?call={name}&audio=none&words=on", around, oracle)
    loop = asyncio.get_running_loop()
    telephone = AudioSocketLink(name.bytes, oracle.frame)
    try:
        await bot.connect_in_time(around.port, CONNECT_S)
        await loop.create_connection(lambda: telephone, "127.0.0.1", around.media_port)
        await Script(call, bot, oracle, time.monotonic_ns, around.sound_address).perform(bot.closed.done)
        if call.end in ("hangup", "media_rst"):
            oracle.owes_answers = False
            (telephone.hang_up if call.end == "hangup" else telephone.reset)()
            await _closes(bot, around, 1000)
        else:
            await _end(call, around, bot)
        if not bot.closed.done():
            bot.reset()
        try:
            await asyncio.wait_for(asyncio.shield(telephone.closed), _outlives_s(bot))
        except TimeoutError:
            if not around.may_break:
                oracle.wrong(v.CLOSE, "bridge: the telephone outlives its bot")
        for wrong in telephone.wrong:
            oracle.wrong(v.FRAMES, f"bridge: {wrong}")
    finally:
        bot.close()
        if telephone.transport is not None:
            telephone.transport.abort()
        oracle.finish(time.monotonic_ns(), is_torn=bot.torn)


async def _asterisk(call: CallHistory, number: int, around: Surroundings) -> None:
    """A telephone call through a real Asterisk."""
    async with phone_call(around, around.telephones, call.options["extension"]) as phone:
        oracle = NativeOracle(
            around.tally, around.call_stops, call=number, has_media=True, may_fail=around.may_fail, is_lossy=True,
        )  # fmt: skip
        bot = BotLink(f"/v1/stream?call={phone.name}&audio=none&words=on", around, oracle)
        feeding = asyncio.create_task(phone.feed(oracle))
        try:
            await bot.connect_in_time(around.port, CONNECT_S)
            await Script(call, bot, oracle, time.monotonic_ns, around.sound_address).perform(bot.closed.done)
            if call.end == "hangup":
                oracle.owes_answers = False
                phone.hang_up()
                await _closes(bot, around, 1000)
            else:
                await _end(call, around, bot)
            if not bot.closed.done():
                bot.reset()
            if not await phone.ended(_outlives_s(bot)) and not around.may_break:
                oracle.wrong(v.CLOSE, "asterisk: the telephone call outlives its bot")
        finally:
            feeding.cancel()
            bot.close()
            oracle.finish(time.monotonic_ns(), is_torn=bot.torn)


async def _end(call: CallHistory, around: Surroundings, link: BotLink) -> None:
    """End a native call as its history says."""
    if link.closed.done():
        await _closes(link, around, None)
        return
    match call.end:
        case "close" | "close_now":
            message = {"type": "close", **({"now": True} if call.end == "close_now" else {})}
            link.oracle.sent(message, time.monotonic_ns())
            link.send(message)
            await _closes(link, around, 1000)
            return
        case "rst":
            link.reset()
        case "half_close":
            link.half_close()
        case "silence":
            link.torn = True
            await link.stop_reading(300)
            link.reset()
        case _:
            link.leave()
    if not await link.gone(NOTICED_S) and not around.may_break:
        link.oracle.wrong(v.CLOSE, f"{call.end}: the server keeps the socket open")


def _outlives_s(bot: BotLink) -> float:
    """By when the other end must know that the bot has gone. If the legs have not met, it waits for another bot."""
    return CLAIM_S + END_S if bot.awaits_media else NOTICED_S


async def _closes(link: BotLink, around: Surroundings, code: int | None) -> None:
    """See `expect_close`. If the legs of a call have not met, the server waits for the other one, and then says that it
    has not come."""
    awaits_media = link.awaits_media
    within_s = (
        link.oracle.owed_s()
        + END_S
        + (RESTART_S if around.may_fail or around.may_lose_names else 0)
        + CLAIM_S * awaits_media
    )
    if what := await link.expect_close(code, within_s, *(_NO_MEDIA,) * awaits_media):
        link.oracle.wrong(v.CLOSE, what)
    around.tally.counts["calls without a media leg"] += awaits_media and link.close_code == _NO_MEDIA
