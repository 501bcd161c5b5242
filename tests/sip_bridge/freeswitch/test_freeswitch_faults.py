"""Event sockets that drop, do not answer or send nonsense, and calls with unexpected properties."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bridge_rig import EndReasons, get, run, until
from freeswitch_rig import UUID, assert_told, bridged, said, speech, together
from standin_freeswitch import PASSWORD, StandinFreeSwitch

from sip_bridge import metrics
from sip_bridge.freeswitch import application, call, speech_files

pytestmark = pytest.mark.slow


def test_an_event_socket_that_drops_in_the_middle_of_a_break(tmp_path: Path) -> None:
    """The break is lost with it. After the reconnect the playing file is stopped, and unheard speech is requested."""

    async def main() -> None:
        async with together(tmp_path) as (switch, rig):
            channel = switch.call(UUID)
            switch.speech(channel, 1, speech(400, 1))
            await channel.playing.wait()
            n_dropped = 0

            def drop(command: str) -> str | None:
                nonlocal n_dropped
                if "uuid_break" in command and not n_dropped:
                    n_dropped = 1
                    switch.drop_connections()
                    return ""
                return None

            switch.on_command = drop
            switch.word(channel, tts="clear", before=2)
            await until(lambda: switch.n_connections == 2, "a new connection")
            await until(lambda: channel.heard, "silence")
            assert len(channel.heard[0][2]) < 400 * 320
            await assert_told(channel, ("playing", "1"), ("again",))
            switch.speech(channel, 2, speech(5, 2))
            await assert_told(channel, ("playing", "1"), ("again",), ("playing", "2"), ("played", "2"))
            assert rig.bridge.n_calls == 1

    run(main)


def test_freeswitch_restarts_and_its_calls_are_over(tmp_path: Path) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with together(tmp_path) as (switch, rig):
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            await until(lambda: rig.bridge.n_calls == 1, "the call")
            assert (await get(rig.http_port, "/readyz"))[0] == 200
            await switch.close_socket()
            await until(lambda: not rig.bridge._freeswitch._connection, "the loss")  # type: ignore[union-attr]
            status, body = await get(rig.http_port, "/readyz")
            assert status == 503 and "freeswitch" in body
            channel.is_up = False
            await switch.open_socket()
            await until(lambda: rig.bridge.n_calls == 0, "the end of a call that FreeSWITCH no longer has", within_s=12)
            assert ended.counts == {"hangup": 1}
            newer = switch.call()
            switch.speech(newer, 1, speech(3, 1))
            await assert_told(newer, ("playing", "1"), ("played", "1"))
            assert (await get(rig.http_port, "/readyz"))[0] == 200

    run(main)


@pytest.mark.parametrize("module", ["mod_audio_stream", "mod_audio_fork"])
def test_a_call_that_the_server_ends_while_the_event_socket_is_lost_is_hung_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Pinned: the caller stayed on a silent line, because the end was not heard."""
    monkeypatch.setattr(call, "_ANSWER_S", 0.3)

    async def main() -> None:
        ended = EndReasons()
        async with together(tmp_path) as (switch, rig):
            channel = switch.call(UUID, module)
            switch.word(channel, tts="hello")
            await until(lambda: rig.bridge.n_calls == 1, "the call")
            await switch.close_socket()
            await until(lambda: rig.bridge._why_not_ready() is not None, "the loss")
            switch.word(channel, tts="hangup")
            switch.left(channel, 1011)
            await switch.open_socket()
            await until(lambda: not channel.is_up, "the hang-up", within_s=12)
            assert ended.counts == {"server_lost": 1} and said(channel) == [("again",)]

    run(main)


@pytest.mark.parametrize("answer", ["word", "file"])
def test_a_call_whose_server_answers_after_the_event_socket_was_lost_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(call, "_ANSWER_S", 0.3)

    async def main() -> None:
        async with together(tmp_path) as (switch, rig):
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            await until(lambda: rig.bridge.n_calls == 1, "the call")
            switch.drop_connections()
            await until(lambda: said(channel) == [("again",)], "asking the server again")
            if answer == "word":
                switch.word(channel, tts="hello")
            else:
                switch.speech(channel, 1, speech(3, 1))
            await asyncio.sleep(0.6)
            assert rig.bridge.n_calls == 1 and channel.is_up

    run(main)


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        ("password", "freeswitch.password"),
        ("silent", "no answer within"),
        ("deaf", "no answer within"),
        ("garbage", "is this FreeSWITCH"),
        ("rejects", "apply-inbound-acl"),
    ],
)
def test_an_unusable_event_socket_is_reported_with_the_reason(tmp_path: Path, fault: str, hint: str) -> None:
    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            match fault:
                case "password":
                    switch.password = "another"
                case "silent":
                    switch.greeting = None
                case "deaf":
                    switch.on_command = lambda command: ""
                case "garbage":
                    switch.greeting = b"220 mail.example.org ESMTP\n\n"
                case "rejects":
                    no = b"Access Denied, go away.\n"
                    switch.greeting = b"Content-Type: text/rude-rejection\nContent-Length: %d\n\n%b" % (len(no), no)
            async with bridged(switch, freeswitch__connect_timeout_s=0.3) as rig:
                for _ in range(400):
                    status, body = await get(rig.http_port, "/readyz")
                    if hint in body:
                        break
                    await asyncio.sleep(0.01)
                assert status == 503 and hint in body and PASSWORD not in body
                # The bridge tries again, and takes calls when the socket works.
                switch.password, switch.on_command = PASSWORD, lambda command: None
                switch.greeting = b"Content-Type: auth/request\n\n"
                channel = switch.call()
                await until(lambda: any("event plain" in each for each in switch.commands), "a connection", within_s=12)
                await until(lambda: said(channel) == [("again",)], "the call, which came before the bridge")
                switch.speech(channel, 1, speech(3, 1))
                await assert_told(channel, ("again",), ("playing", "1"), ("played", "1"))
                await switch.hang_up(channel)
                await until(lambda: rig.bridge.n_calls == 0, "the end")

    run(main)


def test_a_freeswitch_that_stops_answering_counts_as_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path, freeswitch__reply_timeout_s=0.2) as (switch, _):
            channel = switch.call(UUID)
            switch.on_command = lambda command: "" if "sendmsg" in command else None
            switch.speech(channel, 1, speech(3, 1))
            await until(lambda: switch.n_connections == 2, "a new connection")
            switch.on_command = lambda command: None
            await until(lambda: ("again",) in said(channel), "asking the server again")
            assert channel.is_up, "the call goes on"

    run(main)


def test_a_file_for_an_unknown_channel_is_reported_as_failed(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID)
            switch.on_command = lambda command: "-ERR memory error" if "sendmsg" in command else None
            switch.speech(channel, 1, speech(3, 1))
            await assert_told(channel, ("failed", "1"))

    run(main)


@pytest.mark.parametrize(
    "body",
    [
        "not json",
        "[]",
        '{"id":"1"}',
        '{"id":"x","file":"/tmp/UUID_0.tmp.r8"}',
        '{"id":"1","file":"/etc/passwd"}',
        '{"id":"1","file":"/tmp/UUID_0.tmp.r8 both\\napi shutdown"}',
        '{"id":"1","file":"/tmp/../etc/UUID_0.tmp.r8"}',
        '{"id":"1","file":"/tmp/other-call_0.tmp.r8"}',
    ],
)
def test_a_file_of_another_call_is_neither_played_nor_removed(tmp_path: Path, body: str) -> None:
    async def main() -> None:
        before = metrics.value("telephony_sip_bridge_bad_input_total", kind="freeswitch_event")
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            switch.event("mod_audio_stream::play", {"Unique-ID": UUID}, body.replace("UUID", UUID))
            switch.speech(channel, 7, speech(3, 1))
            await assert_told(channel, ("playing", "7"), ("played", "7"))
            assert sum("execute-app-name: playback" in command for command in switch.commands) == 1
        assert metrics.value("telephony_sip_bridge_bad_input_total", kind="freeswitch_event") == before + 1

    run(main)


def test_a_channel_name_that_contains_a_command_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, rig):
            n_before = len(switch.commands)
            for name in ("", "a b", "x\n\napi shutdown", "../../x", "a" * 65, "é"):
                switch.event("mod_audio_stream::json", {"Unique-ID": name}, '{"type":"json","data":{"tts":"hello"}}')
                switch.event("mod_audio_stream::error", {"Unique-ID": name}, "{}")
            await asyncio.sleep(0.1)
            assert rig.bridge.n_calls == 0 and len(switch.commands) == n_before

    run(main)


def test_messages_of_other_programs_streams_are_ignored(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, rig):
            channel = switch.call(UUID)
            for body in ("not json", '"text"', "[1]", '{"type":"transcription"}', '{"data":7}', "[" * 100_000):
                switch.event("mod_audio_stream::json", {"Unique-ID": UUID}, body)
            switch.left(channel, 1006)
            await asyncio.sleep(0.1)
            assert rig.bridge.n_calls == 0 and channel.is_up

    run(main)


def test_a_call_over_the_limit_is_hung_up_and_the_others_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path, freeswitch__max_calls=2) as (switch, rig):
            channels = [switch.call() for _ in range(3)]
            for channel in channels:
                switch.word(channel, tts="hello")
            await until(lambda: not channels[2].is_up, "the hang-up")
            assert [channel.is_up for channel in channels] == [True, True, False]
            assert rig.bridge.n_calls == 2

    run(main)


def test_a_drain_lets_calls_end_and_then_ends_them(tmp_path: Path) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with StandinFreeSwitch(tmp_path).running() as switch:
            async with bridged(switch, drain_s=0.3) as rig:
                await until(lambda: rig.bridge._why_not_ready() is None, "the connection")
                channel = switch.call(UUID)
                switch.word(channel, tts="hello")
                await until(lambda: rig.bridge.n_calls == 1, "the call")
            assert ended.counts == {"drain": 1}
            await until(lambda: not channel.is_up, "the telephone call's end")
            assert switch.commands[-1] == "exit"

    run(main)


def test_two_hundred_calls_leave_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, rig):
            for _ in range(200):
                channel = switch.call()
                switch.speech(channel, 1, b"")
                await until(lambda: rig.bridge.n_calls == 1, "the call")
                await switch.hang_up(channel)
                del switch.channels[channel.uuid]
                await until(lambda: rig.bridge.n_calls == 0, "its end")
            application = rig.bridge._freeswitch
            assert application is not None and application._calls == {}

    run(main)


def test_a_fault_while_leftover_files_are_looked_for_does_not_end_the_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinned: they were not looked for again before the next connection."""
    monkeypatch.setattr(application, "_LEFTOVER_S", 0.05)
    n_looks = 0

    def fail_once(folder: str, before_s: float) -> dict[str, list[str]]:
        nonlocal n_looks
        n_looks += 1
        if n_looks == 1:
            raise RuntimeError("can't start new thread")
        return {}

    monkeypatch.setattr(speech_files, "leftovers", fail_once)

    async def main() -> None:
        async with together(tmp_path):
            await until(lambda: n_looks >= 3, "it is looked again")

    run(main)
    assert caplog.messages.count("sweep_crashed") == 1
