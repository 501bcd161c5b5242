"""Whose a call is: bridges that come late, bridges that are gone, and two bridges on one event socket.

`tests/pbx/test_freeswitch.py` has the same with a real FreeSWITCH.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bridge_rig import BridgeRig, EndReasons, run, until
from freeswitch_rig import UUID, assert_told, bridged, said, speech
from log_lines import lines
from standin_freeswitch import StandinFreeSwitch

from sip_bridge import metrics
from sip_bridge.freeswitch import application, call, ownership

pytestmark = pytest.mark.slow

ENTRY = f"telephony_tts_{UUID}"
GONE = "uuid_audio_stream:0ddba115"
"""The entry of a call whose bridge was killed."""


@asynccontextmanager
async def two_bridges(folder: Path, **settings: Any) -> AsyncIterator[tuple[StandinFreeSwitch, BridgeRig, BridgeRig]]:
    """A FreeSWITCH with an older and a newer bridge. `settings` are those of the older one."""
    async with StandinFreeSwitch(folder).running() as switch, AsyncExitStack() as stack:
        rigs = [await stack.enter_async_context(bridged(switch, **each)) for each in (settings, {})]
        for rig in rigs:
            await ready(rig)
        yield switch, rigs[0], rigs[1]
        for channel in list(switch.channels.values()):
            await switch.hang_up(channel)
        await until(lambda: not any(rig.bridge.n_calls for rig in rigs), "the calls' ends")


async def ready(rig: BridgeRig) -> None:
    await until(lambda: rig.bridge._why_not_ready() is None, "the event socket")


def drain(rig: BridgeRig) -> None:
    """As at SIGTERM, while the bridge still has a call."""
    assert rig.bridge._freeswitch is not None
    rig.bridge.draining = rig.bridge._freeswitch.draining = True


def slowly(rig: BridgeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this bridge takes calls later than any other."""
    assert rig.bridge._freeswitch is not None
    claims = rig.bridge._freeswitch._ownership
    at_once = claims.claim

    async def claim(*what: Any) -> str | None:
        await asyncio.sleep(0.2)
        return await at_once(*what)

    monkeypatch.setattr(claims, "claim", claim)


def n_plays(switch: StandinFreeSwitch) -> int:
    return sum("execute-app-name: playback" in each for each in switch.commands)


# ---------------------------------------------------------------- calls that no bridge has


@pytest.mark.parametrize("entry", ["uuid_audio_stream", GONE], ids=["never started", "killed"])
def test_a_call_that_lost_its_stream_without_a_bridge_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """Pinned: the caller stayed on a silent line without end."""
    monkeypatch.setattr(call, "_ANSWER_S", 0.3)

    async def main() -> None:
        ended = EndReasons()
        async with StandinFreeSwitch(tmp_path).running() as switch:
            channel = switch.call(UUID)
            assert switch.hashes is not None
            switch.hashes[ENTRY] = entry
            switch.word(channel, tts="hangup")
            switch.left(channel, 1000)
            async with bridged(switch):
                await until(lambda: not channel.is_up, "the hang-up")
            assert ended.counts == {"server_lost": 1} and switch.hashes == {} and switch.scheduled == {}

    run(main)


@pytest.mark.parametrize("entry", ["uuid_audio_stream", GONE], ids=["never started", "killed"])
def test_a_live_call_is_adopted_and_its_speech_requested(tmp_path: Path, entry: str) -> None:
    """What plays is stopped at once: it may have been cleared meanwhile."""

    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            channel = switch.call(UUID)
            assert switch.hashes is not None
            switch.hashes[ENTRY] = entry
            path = switch.speech(channel, 3, speech(400, 1))
            switch._enqueue(channel, str(path), 0)
            await channel.playing.wait()
            async with bridged(switch) as rig:
                await until(lambda: channel.heard, "silence")
                assert len(channel.heard[0][2]) < 400 * 320
                switch.speech(channel, 4, speech(3, 2))
                switch.press(channel, "5")
                await until(lambda: len(said(channel)) == 4, "the reports")
                assert said(channel)[0] == ("again",)
                assert set(said(channel)[1:]) == {("playing", "4"), ("played", "4"), ("dtmf", "5")}
                assert rig.bridge.n_calls == 1
                await switch.hang_up(channel)

    run(main)


def test_only_calls_of_the_dialplan_are_adopted_and_old_entries_are_removed(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            channel = switch.call(UUID)
            assert switch.hashes is not None
            switch.hashes = {
                "telephony_tts_1dd5e34e-5db4-4edb-a166-757e5d29b941": GONE,
                f"other_telephony_tts_{UUID}": "uuid_audio_stream",
                "telephony_tts_": "uuid_audio_stream",
                f"telephony_tts_{UUID}": "mod_of_another_project",
            }
            async with bridged(switch) as rig:
                await until(lambda: switch.hashes is not None and len(switch.hashes) == 3, "the removal")
                await asyncio.sleep(0.05)
                assert rig.bridge.n_calls == 0 and channel.texts == [] and channel.is_up

    run(main)


def test_a_call_that_no_bridge_comes_for_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            switch.last_resort_s = 0.2
            channel = switch.call(UUID)
            await until(lambda: not channel.is_up, "the last resort")

    run(main)


def test_a_call_that_a_bridge_keeps_outlives_the_last_resort_until_the_bridge_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_KEEP_S", 0.2)
    monkeypatch.setattr(ownership, "_LAST_RESORT_S", 1)

    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            switch.last_resort_s = 0.5
            async with bridged(switch) as rig:
                await ready(rig)
                channel = switch.call(UUID)
                switch.word(channel, tts="hello")
                await asyncio.sleep(2.5)
                assert channel.is_up and [len(each) for each in switch.scheduled.values()] == [1]
                switch.on_command = lambda command: ""  # nothing of the bridge reaches FreeSWITCH any more
                await until(lambda: not channel.is_up, "the last resort")
                switch.on_command = lambda command: None
                await until(lambda: rig.bridge.n_calls == 0, "the end")

    run(main)


@pytest.mark.parametrize("how", ["setting", "stopped"])
def test_a_call_that_goes_on_in_the_dialplan_has_no_last_resort(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            async with bridged(switch, freeswitch__hang_up=how != "setting") as rig:
                await ready(rig)
                channel = switch.call(UUID)
                switch.word(channel, tts="hello")
                await until(lambda: rig.bridge.n_calls == 1, "the call")
                if how == "stopped":
                    switch.left(channel, 1000)
                    await until(lambda: rig.bridge.n_calls == 0, "its end")
                await until(lambda: switch.scheduled == {}, "no scheduled end")
            assert channel.is_up and switch.hashes == {}

    run(main)


# ------------------------------------------------------------------------ two bridges


def test_a_bridge_that_drains_leaves_new_calls_to_another_and_goes_on_with_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned: it killed them, and both bridges played the speech of its own call."""

    async def main() -> None:
        refused = metrics.value("telephony_sip_bridge_refused_total", reason="draining")
        async with two_bridges(tmp_path) as (switch, old, new):
            drain(new)  # so that the older one gets the call
            older = switch.call(UUID)
            switch.word(older, tts="hello")
            await until(lambda: old.bridge.n_calls == 1, "the call of the old bridge")
            assert new.bridge._freeswitch is not None
            new.bridge.draining = new.bridge._freeswitch.draining = False
            drain(old)
            slowly(new, monkeypatch)
            newer = switch.call()
            switch.word(newer, tts="hello")
            words = [speech(8, 1), speech(6, 2)]
            for number, word in enumerate(words, 1):
                switch.speech(older, number, word)
                switch.speech(newer, number, word)
            for channel in (older, newer):
                await until(lambda each=channel: ("played", "2") in said(each), "both files")
                await assert_told(channel, ("playing", "1"), ("played", "1"), ("playing", "2"), ("played", "2"))
                assert channel.pcm == b"".join(words)
            await asyncio.sleep(1.2)
            assert newer.is_up and (old.bridge.n_calls, new.bridge.n_calls) == (1, 1)
            assert n_plays(switch) == 4
            assert metrics.value("telephony_sip_bridge_refused_total", reason="draining") == refused

    run(main)
    told = lines(caplog, "other_bridge")
    assert len({line["bridge"] for line in told}) == len(told) == 2, "each bridge says once that it found another"


@pytest.mark.parametrize("why", ["draining", "busy"])
def test_a_new_call_that_no_bridge_may_take_ends(tmp_path: Path, why: str) -> None:
    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch, bridged(switch, freeswitch__max_calls=1) as rig:
            await ready(rig)
            first = switch.call()
            switch.word(first, tts="hello")
            await until(lambda: rig.bridge.n_calls == 1, "the first call")
            if why == "draining":
                drain(rig)
            second = switch.call()
            switch.word(second, tts="hello")
            await until(lambda: not second.is_up, "the hang-up")
            assert first.is_up and rig.bridge.n_calls == 1
            await switch.hang_up(first)

    run(main)


@pytest.mark.parametrize("dialplan", ["shipped", "older"])
def test_of_two_bridges_exactly_one_takes_each_call(tmp_path: Path, dialplan: str) -> None:
    """An older dialplan makes no entries."""
    n_calls = 100

    async def main() -> None:
        async with two_bridges(tmp_path) as (switch, one, other):
            channels = [switch.call() for _ in range(n_calls)]
            if dialplan == "older":
                switch.hashes = {}
            for channel in channels:
                switch.word(channel, tts="hello")
                switch.speech(channel, 1, speech(2, 1))
            for channel in channels:
                await assert_told(channel, ("playing", "1"), ("played", "1"))
            assert one.bridge.n_calls + other.bridge.n_calls == n_calls == n_plays(switch)
            assert switch.hashes is not None
            assert all(value.startswith("uuid_audio_stream:") for value in switch.hashes.values())

    run(main)


@pytest.mark.parametrize("by", ["message", "search"])
def test_the_calls_of_a_bridge_that_is_gone_are_taken_by_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The other bridge was connected all the time. It learns of the loss by a message of the server, or it looks."""
    if by == "search":
        monkeypatch.setattr(application, "_KEEP_S", 0.2)

    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch, bridged(switch) as rig:
            await ready(rig)
            channel = switch.call(UUID)
            assert switch.hashes is not None
            switch.hashes[ENTRY] = GONE
            if by == "message":
                switch.speech(channel, 5, speech(3, 1))
            await assert_told(channel, ("again",))
            assert rig.bridge.n_calls == 1 and switch.hashes[ENTRY] != GONE
            switch.word(channel, tts="hangup")
            await until(lambda: not channel.is_up, "the hang-up")

    run(main)


@pytest.mark.parametrize("how", ["stalls", "loses its event socket"])
def test_a_bridge_that_does_not_answer_loses_its_call_and_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with two_bridges(tmp_path) as (switch, old, new):
            assert old.bridge._freeswitch is not None and new.bridge._freeswitch is not None
            drain(new)
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            await until(lambda: old.bridge.n_calls == 1, "the call of the old bridge")
            new.bridge._freeswitch.draining = False
            connection = old.bridge._freeswitch._connection
            assert connection is not None
            if how == "stalls":
                with monkeypatch.context() as patch:
                    patch.setattr(connection, "raise_event", lambda *_: None)
                    switch.word(channel, tts="hello", next=4)
                    await until(lambda: new.bridge.n_calls == 1, "the new bridge has it")
            else:
                with monkeypatch.context() as patch:
                    patch.setattr(application, "connect_esl", refuses)
                    connection.close()
                    await until(lambda: old.bridge._why_not_ready() is not None, "the loss")
                    switch.word(channel, tts="hello", next=4)
                    await until(lambda: new.bridge.n_calls == 1, "the new bridge has it")
                await ready(old)
            await until(lambda: old.bridge.n_calls == 0, "the old one has let it go")
            assert ended.counts == {"taken": 1} and channel.is_up and len(switch.scheduled) == 1
            switch.speech(channel, 4, speech(4, 1))
            await until(lambda: ("played", "4") in said(channel), "the speech")
            assert [each for each in said(channel) if each != ("again",)] == [("playing", "4"), ("played", "4")]
            assert n_plays(switch) == 1

    run(main)


async def refuses(*_: Any) -> Any:
    raise ownership.EslLost("no connection in this test")


def test_without_mod_hash_a_bridge_takes_every_call_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            switch.hashes = None
            async with bridged(switch) as rig:
                await ready(rig)
                channel = switch.call(UUID)
                switch.speech(channel, 1, speech(3, 1))
                await assert_told(channel, ("playing", "1"), ("played", "1"))
                await switch.hang_up(channel)
                await until(lambda: rig.bridge.n_calls == 0, "the end")

    run(main)
    assert len(lines(caplog, "freeswitch_lacks_mod_hash")) == 1
