"""Named keys where several processes serve one port: their limits are those of all, and a reload is for all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from forked_process import ForkServer
from front_server import FrontServer, front_server
from http_peer import Answer, ask_json
from rig import Bot, greeted, run, until
from twilio_peer import TwilioPeer, calling
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from telephony_tts.fronts.front import Front
from telephony_tts.fronts.loads import Loads
from telephony_tts.fronts.runtime_folder import RuntimeFolder

pytestmark = pytest.mark.slow

T = TypeVar("T")
ACME = {"Authorization": "Bearer acme-token"}


def write_keys(folder: Path, **limits: int) -> Path:
    part, file = folder / "keys.part", folder / "keys.yaml"
    part.write_text(json.dumps({"keys": {"acme": {"token": "acme-token", **limits}}}))
    os.replace(part, file)
    return file


@asynccontextmanager
async def bot_at(server: FrontServer, front: int, call: str) -> AsyncIterator[Bot]:
    """A bot whose call this front has."""
    async with AsyncExitStack() as stack:
        with server.stopped(1 - front):
            bot = await stack.enter_async_context(greeted(server.url(call=call, audio="binary", pace="burst"), ACME))
        assert server.owner(call) == front
        yield bot


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}-token"}


@pytest.mark.parametrize("first", ["media", "bot"])
def test_a_call_belongs_to_the_key_of_its_first_bot_at_all_fronts(first: str, short: Path, forks: ForkServer) -> None:
    """Every client comes to the front that does not have the call. The telephone's side has a key of its own, which
    comes with its start."""

    async def main(server: FrontServer) -> None:
        async def at_other(coming: Coroutine[Any, Any, T]) -> T:
            """Let it come while only the other front accepts connections, and until that one has it."""
            with server.stopped(owner):
                task = asyncio.ensure_future(coming)
                await asyncio.sleep(0.15)
            return await task

        def speaks(key: str) -> Coroutine[Any, Any, Answer]:
            return ask_json(server.port, "/calls/CA1/tts/stream", {"text": "Hello."}, **bearer(key))

        async def phoned(stack: AsyncExitStack) -> TwilioPeer:
            phone = await stack.enter_async_context(calling(server.url("/media/twilio"), "CA1"))
            await phone.start(token="pbx-token")
            return phone

        async with AsyncExitStack() as stack:
            if first == "media":
                with server.stopped(1):
                    await phoned(stack)
                    await until(lambda: server.owner("CA1") == 0, "the call")
                owner = 0
            else:
                with server.stopped(1):
                    waiting = asyncio.ensure_future(speaks("acme"))
                    await until(lambda: server.owner("CA1") == 0, "the call")
                owner = 0
                await at_other(phoned(stack))
                assert (await waiting).status == 200
            for key, status in (("acme", 200), ("acme", 200), ("pbx", 409), ("other", 409), ("acme", 200)):
                assert (await at_other(speaks(key))).status == status, key
                assert server.owner("CA1") == owner
            await asyncio.sleep(0.5)  # the caller has heard it, and the bot of the requests rests
            for key in ("pbx", "other"):
                socket = await at_other(connect_to(server.url(call="CA1"), bearer(key)))
                assert json.loads(await asyncio.wait_for(socket.recv(), 5))["code"] == "call_taken", key
                await socket.wait_closed()
            socket = await at_other(connect_to(server.url(call="CA1"), bearer("acme")))
            assert json.loads(await asyncio.wait_for(socket.recv(), 5))["type"] == "ready"
            await socket.close()
        await until(lambda: server.logged("call_audit"), "the call is over")
        assert [line["key"] for line in server.logged("call_audit")] == ["acme"]

    keys = short / "keys.yaml"
    keys.write_text(json.dumps({"keys": {key: {"token": f"{key}-token"} for key in ("acme", "pbx", "other")}}))
    with front_server(short, f"keys.file={keys}", forks=forks) as server:
        run(lambda: main(server), within_s=60)


async def connect_to(url: str, headers: dict[str, str]) -> ClientConnection:
    return await connect(url, additional_headers=headers, proxy=None)


def test_the_calls_and_characters_of_a_key_count_at_all_fronts(short: Path, forks: ForkServer) -> None:
    async def main(server: FrontServer) -> None:
        async with bot_at(server, 0, "one") as first:
            await first.say("Ten chars.", "a")
            await first.event("done", turn="a")
            async with bot_at(server, 1, "two") as second:
                await asyncio.sleep(0.4)  # what the others use is told within a tenth of a second
                for front in (0, 1):
                    with pytest.raises(InvalidStatus) as raised, server.stopped(1 - front):
                        async with greeted(server.url(), ACME):
                            pass
                    assert raised.value.response.status_code == 429
                await second.say("Eleven char", "b")
                error = await second.event("error", turn="b")
                assert error["code"] == "key_limit" and "has used 10" in error["message"]
                await second.say("Ten chars.", "c")
                await second.event("done", turn="c")
        await until(lambda: not server.claims, "the calls are over")
        async with bot_at(server, 0, "three") as third:
            await third.say("One", "d")
            assert (await third.event("error", turn="d"))["code"] == "key_limit"

    keys = write_keys(short, calls=2, chars_per_day=20)
    with front_server(short, f"keys.file={keys}", "keys.check_s=0", forks=forks) as server:
        run(lambda: main(server), within_s=60)


def test_a_stop_rule_turns_an_arm_off_at_all_fronts_by_the_calls_of_all(short: Path, forks: ForkServer) -> None:
    async def main(server: FrontServer) -> None:
        async def interrupted(front: int, call: str) -> None:
            async with AsyncExitStack() as stack:
                with server.stopped(1 - front):
                    bot = await stack.enter_async_context(greeted(server.url(call=call, audio="binary")))
                assert server.owner(call) == front
                await bot.say("A sentence that is long enough to be interrupted.", "a")
                await bot.event("started", turn="a")
                await bot.send({"type": "clear"})
                await bot.event("cleared")
            await until(lambda: not server.claims, "the call is over")

        for n in range(29):
            await interrupted(n % 2, f"call-{n}")
        assert not server.logged("arm_stopped"), "neither the calls of one front nor those of all are enough"
        await asyncio.sleep(0.4)  # what the others count is told within a tenth of a second
        await interrupted(1, "call-30")
        await asyncio.sleep(0.4)
        await interrupted(0, "call-31")
        await until(lambda: len(server.logged("arm_stopped")) == 2, "both fronts have turned it off")
        assert {line["arm"] for line in server.logged("arm_stopped")} == {"e/worse"}
        await interrupted(0, "call-32")
        with_arm = [line for line in server.logged("call_audit") if line.get("arm") == "e/worse"]
        assert len(with_arm) == 31, "the last call is in no arm"

    worse = {"share": 100, "speech": {"speed": 1.1}}
    stop = {"after_calls": 30, "interruptions": 0.5}
    file = short / "experiments.yaml"
    file.write_text(json.dumps({"experiments": {"e": {"arms": {"worse": worse}, "stop": stop}}}))
    with front_server(short, f"experiments.file={file}", forks=forks) as server:
        run(lambda: main(server), within_s=90)


def test_a_hangup_signal_to_the_server_has_every_front_read_its_files(short: Path, forks: ForkServer) -> None:
    async def main(server: FrontServer) -> None:
        async def is_let_in(front: int) -> bool:
            try:
                async with AsyncExitStack() as stack:
                    with server.stopped(1 - front):
                        await stack.enter_async_context(greeted(server.url(), ACME))
                return True
            except InvalidStatus:
                return False

        assert not await is_let_in(0) and not await is_let_in(1)
        write_keys(short)
        server.served.send_signal(signal.SIGHUP)
        await until(lambda: len(server.logged("file_loaded")) == 2, "both fronts have read it")
        assert await is_let_in(0) and await is_let_in(1)
        assert server.served.poll() is None

    keys = write_keys(short, calls=0)
    with front_server(short, f"keys.file={keys}", "keys.check_s=0", forks=forks) as server:
        run(lambda: main(server), within_s=60)


def test_a_hangup_signal_leaves_a_front_alone_that_is_being_started_again(short: Path, forks: ForkServer) -> None:
    """Pinned: it killed the front, which has no handler yet."""

    async def main(server: FrontServer) -> None:
        victim = server.pids[1]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: server.pids[1] != victim, "it is being started again")
        server.served.send_signal(signal.SIGHUP)
        with server.stopped(0):
            async with greeted(server.url(), ACME):  # it is ready
                pass
        assert [line["how"] for line in server.logged("front_ended")] == ["SIGKILL"]

    keys = write_keys(short)
    with front_server(short, f"keys.file={keys}", "keys.check_s=0", forks=forks) as server:
        run(lambda: main(server), within_s=60)


def test_what_a_front_that_has_ended_had_used_of_a_day_stays_used(short: Path) -> None:
    folder = RuntimeFolder.make(str(short))
    loads = Loads(folder.loads, 2, create=True)
    try:
        first, second = Front(folder, loads, 0, 1), Front(folder, loads, 1, 1)
        use = {"day": {"day": 9}, "calls": {"acme": 3}, "chars": {"acme": 500}}
        first.publish_use(use)
        assert second.use_of_others() == [use] and first.use_of_others() == []
        loads.clear(0)
        Front(folder, loads, 0, 2)
        assert second.use_of_others() == [{**use, "calls": {}}]
    finally:
        loads.close()
        folder.remove()


def test_a_front_whose_use_cannot_be_written_or_read_says_so_once_and_goes_on(
    short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RuntimeFolder.make(str(short))
    loads = Loads(folder.loads, 2, create=True)
    try:
        first, second = Front(folder, loads, 0, 1), Front(folder, loads, 1, 1)
        uses = [{"day": {"day": 9}, "calls": {"acme": 3}, "chars": {"acme": 100 * n}} for n in range(5)]
        for n in (0, 2):
            first.publish_use(uses[n])
            assert second.use_of_others() == [uses[n]]
            away = folder.keys.rename(folder.path / "away")
            for newer in uses[n + 1 : n + 3]:
                first.publish_use(newer)
                assert second.use_of_others() == [uses[n]], "what was read last still counts"
            away.rename(folder.keys)
            told = [(record.getMessage(), record.levelname) for record in caplog.records]
            assert told == [("use_not_written", "ERROR"), ("use_not_read", "ERROR")], "once"
            caplog.clear()
            first.publish_use(uses[n + 2])
            assert second.use_of_others() == [uses[n + 2]], "it is written as soon as that is possible again"
    finally:
        loads.close()
        folder.remove()


def test_a_front_that_cannot_share_the_use_of_keys_keeps_its_calls(short: Path, forks: ForkServer) -> None:
    """Pinned: it ended with all its calls when the use of a key changed and could not be written, and text of a key
    with a limit ended its call when the use of the others could not be read."""

    async def main(server: FrontServer) -> None:
        pids = server.pids
        async with bot_at(server, 0, "one") as bot, bot_at(server, 1, "two") as other:
            await asyncio.sleep(0.4)  # what the others use is told within a tenth of a second
            await bot.say("Ten chars.", "a")
            await bot.event("done", turn="a")
            await asyncio.sleep(0.4)
            keys = server.runtime / "keys"
            keys.rename(server.runtime / "away")
            for n in range(4):
                await bot.say("Ten chars.", f"a{n}")
                await bot.event("done", turn=f"a{n}")
                await asyncio.sleep(0.3)  # the front tells its use, and reads that of the others again
            with server.stopped(1), pytest.raises(InvalidStatus) as raised:
                async with greeted(server.url(), ACME):
                    pass
            assert raised.value.response.status_code == 429, "its answer, and not that of an internal error"
            (server.runtime / "away").rename(keys)
            await asyncio.sleep(0.4)  # the use is written after all
            await other.say("Sixty-two characters are more than fifty of others leave over.", "b")
            error = await other.event("error", turn="b")
            assert error["code"] == "key_limit" and "has used 50" in error["message"]
        assert server.pids == pids and not server.logged("front_ended")

    keys = write_keys(short, calls=2, chars_per_day=100)
    with front_server(short, f"keys.file={keys}", "keys.check_s=0", forks=forks) as server:
        run(lambda: main(server), within_s=60)
    assert [line["front"] for line in server.logged("use_not_written")] == [0]
