"""The console of a server with several processes: each of them shows the calls of all, and reaches all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from front_server import FrontServer, front_server
from http_peer import HttpPeer, http_peer
from rig import Bot, delayed_correlation, greeted, rendering, run, until
from test_front_calls import at_other, bot_first

pytestmark = pytest.mark.timed

TOKENS = "server.tokens=['bot','boss']", "server.supervisor_tokens=['boss']"
BOT, BOSS = {"Authorization": "Bearer bot"}, {"Authorization": "Bearer boss"}
SENTENCE = "Your parcel left the depot on Tuesday."
FIRST = "This is a sentence that takes a while to be spoken, and then it goes on with some more words."
LONG = f"{FIRST} And on it goes." * 3


@pytest.fixture(scope="module")
def server(short_of_module: Path) -> Iterator[FrontServer]:
    with front_server(short_of_module, *TOKENS) as server:
        yield server


@asynccontextmanager
async def asking(server: FrontServer, method: str, path: str, **headers: str) -> AsyncIterator[HttpPeer]:
    """A request on a connection that a front has accepted: it had an answer before."""
    async with http_peer(server.port) as peer:
        await peer.send("GET", "/console/server.js")
        assert (await peer.answer()).status == 200
        await peer.send(method, f"/console/api/{path}", **headers)
        yield peer


@asynccontextmanager
async def one_call_each(server: FrontServer) -> AsyncIterator[dict[int, Bot]]:
    """A bot at each of the two fronts, by the front; its call is named after it."""
    async with bot_first(server, "first", audio="binary", token="bot") as (first, owner):
        second = greeted(server.url(call="second", audio="binary", token="bot"))
        async with at_other(server, owner, second) as bot:
            assert server.owner("second") == server.other(owner)
            yield {owner: first, server.other(owner): bot}


async def snapshot(peer: HttpPeer) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(await peer.chunk())
    return told


def test_each_front_shows_the_calls_of_both_and_what_is_said_only_to_a_supervisor(server: FrontServer) -> None:
    async def main() -> None:
        async with one_call_each(server) as bots:
            for bot in bots.values():
                await bot.say(LONG)
                await bot.frames_to(5)
            for front in bots:
                for headers, may_hear in ((BOSS, True), (BOT, False)):
                    connecting = asking(server, "GET", "calls", **headers)
                    async with at_other(server, server.other(front), connecting) as peer:
                        assert (await peer.head()).status == 200
                        told = await snapshot(peer)
                        while told["n_silent"]:  # the other front may need a moment after its stop
                            told = await snapshot(peer)
                        assert [call["call"] for call in told["calls"]] == ["first", "second"]
                        assert [call["state"] for call in told["calls"]] == ["speaking"] * 2
                        assert [call["said"] for call in told["calls"]] == [FIRST if may_hear else None] * 2
                        assert told["engines"]["fake"]["running"] <= 2 and told["may_hear"] is may_hear
        await until(lambda: not server.claims, "the calls to be over")

    run(main, within_s=40)


def test_a_supervisor_hears_a_call_of_another_front(server: FrontServer) -> None:
    async def main() -> None:
        async with bot_first(server, "heard", audio="binary", token="bot") as (bot, owner):
            async with at_other(server, owner, asking(server, "GET", "calls/heard/sound", **BOT)) as peer:
                assert (await peer.head()).status == 403
            n_moved = server.moved("call")
            async with at_other(server, owner, asking(server, "GET", "calls/heard/sound", **BOSS)) as peer:
                assert (await peer.head()).status == 200
                assert server.moved("call") == n_moved + 1
                await bot.say(SENTENCE)
                heard = b""
                while len(heard) < 4 * 8000 * 3:
                    heard += await peer.chunk()
            right = np.frombuffer(heard[: len(heard) // 4 * 4], "<i2").reshape(-1, 2)[:, 1]
            begin = max(0, int(np.argmax(np.abs(right) > 300)) - 1000)
            assert delayed_correlation(right[begin:], rendering([SENTENCE])) > 0.95

    run(main)


def test_a_supervisor_ends_a_call_of_another_front_and_no_other_one(server: FrontServer) -> None:
    async def main() -> None:
        async with one_call_each(server) as bots:
            owner = server.owner("second")
            assert owner is not None
            async with at_other(server, owner, asking(server, "DELETE", "calls/second", **BOT)) as peer:
                assert (await peer.answer()).status == 403
            async with at_other(server, owner, asking(server, "DELETE", "calls/second", **BOSS)) as peer:
                assert (await peer.answer(has_body=False)).status == 204
            assert (await bots[owner].gone())[0] == 1000
            await until(lambda: server.owner("second") is None, "the claim is gone")
            async with asking(server, "DELETE", "calls/second", **BOSS) as peer:
                assert (await peer.answer()).status == 404
            await bots[server.other(owner)].say(SENTENCE)
            await bots[server.other(owner)].event("done")

    run(main)


def test_a_front_that_hangs_is_told_and_the_calls_of_the_others_stay(server: FrontServer) -> None:
    async def main() -> None:
        async with one_call_each(server) as bots:
            answering, hanging = bots
            connecting = asking(server, "GET", "calls", **BOSS)
            async with at_other(server, hanging, connecting) as peer:
                await peer.head()
                with server.stopped(hanging):
                    told = await snapshot(peer)
                    while not told["n_silent"]:
                        told = await snapshot(peer)
                    assert [call["call"] for call in told["calls"]] == ["first"]
                while told["n_silent"]:
                    told = await snapshot(peer)
                assert len(told["calls"]) == 2
            assert server.owner("first") == answering

    run(main, within_s=40)
