"""What an event socket may say wrong: FreeSWITCH's calls outlive it, one that comes another way hears every frame of
its own, and the log says what it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bridge_rig import Rig, noise, run, until
from freeswitch_rig import UUID, assert_told, said, speech, together
from log_lines import lines
from standin_asterisk import phone
from standin_freeswitch import Channel, StandinFreeSwitch
from standin_server import standin_server

from sip_bridge import metrics
from sip_bridge.freeswitch import esl

pytestmark = pytest.mark.timed

BAD = "telephony_sip_bridge_bad_input_total"


@asynccontextmanager
async def beside(folder: Path, **settings: Any) -> AsyncIterator[tuple[StandinFreeSwitch, Rig, Channel]]:
    """A call of FreeSWITCH's, and during the body one of AudioSocket's, whose frames must all arrive."""
    async with (
        standin_server() as server,
        together(folder, server__url=server.url, **settings) as (switch, rig),
        phone(rig.port) as up,
    ):
        call = await server.call(up.name)
        stop = asyncio.Event()
        n = 0

        async def talk() -> None:
            nonlocal n
            while not stop.is_set():
                n += 1
                await asyncio.gather(call.speak(noise(5, n)), up.talk(noise(5, 500 + n)))

        talking = asyncio.create_task(talk())
        channel = switch.call(UUID)
        switch.word(channel, tts="hello")
        await until(lambda: rig.bridge.n_calls == 2, "both calls")
        try:
            yield switch, rig, channel
        finally:
            stop.set()
            await talking
        await up.hears(5 * n)
        await call.until(lambda: len(call.audio) >= 1600 * n, "what the caller said")
        assert up.speech == [frame for k in range(1, n + 1) for frame in noise(5, k)]
        assert bytes(call.audio) == b"".join(frame for k in range(1, n + 1) for frame in noise(5, 500 + k))


async def speaks(switch: StandinFreeSwitch, channel: Channel, number: int) -> None:
    """A file is played whole, and told so."""
    n_heard = len(channel.heard)
    switch.speech(channel, number, speech(5, number))
    await until(lambda: ("played", str(number)) in said(channel), f"file {number} is played")
    assert channel.heard[n_heard][2] == speech(5, number)


def test_one_that_drops_in_the_middle_of_a_break_is_told_and_no_call_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with beside(tmp_path) as (switch, rig, channel):
            other = switch.call()
            switch.speech(other, 1, speech(200, 3))
            switch.speech(channel, 1, speech(400, 1))
            await channel.playing.wait()
            await other.playing.wait()

            def drop(command: str) -> str | None:
                if "uuid_break" not in command:
                    return None
                switch.on_command = lambda command: None
                switch.drop_connections()
                return ""

            switch.on_command = drop
            switch.word(channel, tts="clear", before=2)
            await until(lambda: switch.n_connections == 2, "a new connection")
            await until(lambda: channel.heard and other.heard, "silence")
            await assert_told(channel, ("playing", "1"), ("again",))
            await assert_told(other, ("playing", "1"), ("again",))  # the socket was everybody's
            assert rig.bridge.n_calls == 3
            await speaks(switch, channel, 2)
            await speaks(switch, other, 2)

    run(main)
    assert lines(caplog, "freeswitch_lost") == [{"why": "FreeSWITCH has closed it", "calls": 2}]


@pytest.mark.parametrize(
    ("garbage", "says"),
    [
        (b"Content-Length: -1\nContent-Type: text/event-plain\n\n", "cannot have a Content-Length of '-1'"),
        (b"Content-Length: 99999999\nContent-Type: text/event-plain\n\n", "cannot have a Content-Length of '99999999'"),
        (b"Content-Length: 9e3\nContent-Type: text/event-plain\n\n", "cannot have a Content-Length of '9e3'"),
        (
            b"Content-Length: 5\nContent-Type: text/event-plain\n\nEvent and more\n\n",
            "' and more' is no header of an event",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n\n\n", "is no header of an event socket: is this FreeSWITCH?"),
        (b"x" * 70_000, "65536 bytes without the empty line"),
        # Within what is possible, and never there: what follows is swallowed, and it answers nothing any more.
        (b"Content-Length: 4000000\nContent-Type: text/event-plain\n\n", "has not answered for 0.3 s"),
    ],
    ids=["negative", "huge", "no number", "too short", "another protocol", "no end", "too long"],
)
def test_a_length_that_is_wrong_costs_the_connection_and_no_call(
    garbage: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(esl, "_PING_S", 0.2)

    async def main() -> None:
        async with beside(tmp_path, freeswitch__reply_timeout_s=0.3) as (switch, rig, channel):
            await speaks(switch, channel, 1)
            for writer in list(switch._writers):
                writer.write(garbage)
            await until(lambda: switch.n_connections == 2, "a new connection")
            await until(lambda: ("again",) in said(channel), "the server is asked again")
            assert rig.bridge.n_calls == 2
            await speaks(switch, channel, 2)

    run(main)
    (line,) = lines(caplog, "freeswitch_lost")
    assert says in line["why"] and line["calls"] == 1


def test_events_that_cannot_be_read_are_counted_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        before = metrics.value(BAD, kind="freeswitch_event")
        async with beside(tmp_path) as (switch, rig, channel):
            body = b"Event-Name: DTMF\nContent-Length: -7\n\n"
            no_name = b"Unique-ID: x\n\n"
            for writer in list(switch._writers):
                for each in (body, no_name, b"no header at all", b"", b"\xff\xfe\n\n") * 20:
                    writer.write(b"Content-Length: %d\nContent-Type: text/event-plain\n\n%b" % (len(each), each))
            await until(lambda: metrics.value(BAD, kind="freeswitch_event") == before + 100, "all are counted")
            await speaks(switch, channel, 1)
            assert rig.bridge.n_calls == 2 and switch.n_connections == 1

    run(main)
    assert lines(caplog, "bad_input") == [{"kind": "freeswitch_event", "why": "an event that cannot be read"}]


def test_what_one_call_does_wrong_is_said_once_of_each_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        before = metrics.value(BAD, kind="digit_flood")
        async with beside(tmp_path) as (switch, _, channel):
            for _ in range(100):
                switch.event("mod_audio_stream::play", {"Unique-ID": UUID}, '{"id":"1","file":"/etc/passwd"}')
                switch.word(channel, tts="clear")
                switch.press(channel, "x")
            for n in range(300):
                switch.press(channel, str(n % 10))
            await until(lambda: metrics.value(BAD, kind="digit_flood") >= before + 200, "most are left out")
            await until(lambda: sum(each[0] == "dtmf" for each in said(channel)) >= 20, "the first twenty")
            digits = [each[1] for each in said(channel) if each[0] == "dtmf"]
            assert digits[:20] == [str(n % 10) for n in range(20)] and len(digits) < 100
            await speaks(switch, channel, 1)

    run(main)
    assert lines(caplog, "bad_input") == [
        {
            "call": UUID, "kind": "freeswitch_event",
            "why": "a file of speech without a number or with a path that is not this call's",
        },
        {"call": UUID, "kind": "digit_flood", "why": "more than 20 digits in a second; the rest is left out"},
    ]  # fmt: skip
