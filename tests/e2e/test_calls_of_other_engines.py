"""Calls on a real server whose speech comes from servers of other projects: barge-in, failover, and going on."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from rig import Bot, Rig, correlation, decoded, get, rendering, serving, speech_settings
from test_phrases_and_failover import served
from tone_text import tone_text

from telephony_tts.app import config
from telephony_tts.engines.api import Engine
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.fake.engine import FakeEngine

sys.path.append(str(Path(__file__).parents[1] / "engines" / "others"))
from grpc_stand_ins import cosyvoice_stand_in, triton_stand_in
from http_stand_ins import HttpStandIn, http_stand_in, until
from others_rig import engine
from socket_stand_ins import socket_stand_in

pytestmark = pytest.mark.slow

WORDS = ["abc", "defg", "hij", "klmno", "pqr", "stuv", "wxyz"]
TEXT = " ".join(WORDS * 2)


def call(
    work: Callable[[Rig, Bot], Coroutine[Any, Any, None]], theirs: Engine, spare: Engine | None = None
) -> None:
    """Run `work` as the bot of a call. `spare` speaks if `theirs` fails."""

    async def main() -> None:
        engines = [theirs] if spare is None else [theirs, spare]
        failover = Failover(engines, [spare.name], timeout_ms=500, after=3, retry_s=30) if spare is not None else None
        catalog = Catalog(engines, failover=failover)
        async with serving(catalog=catalog, speech=speech_settings()) as rig, rig.bot(audio="binary") as bot:
            await work(rig, bot)

    asyncio.run(asyncio.wait_for(main(), 60))


def openai(server: HttpStandIn, **given: Any) -> Engine:
    return engine(**{"kind": "openai", "url": server.url, "voices": {"alloy": {}}, **given})


def test_the_caller_hears_what_the_server_sent() -> None:
    async def work(rig: Rig, bot: Bot) -> None:
        await bot.say(TEXT, "t")
        await bot.event("done", within_s=20, turn="t")
        assert correlation(decoded(bot.frames), rendering([TEXT])) > 0.99

    with http_stand_in(form="wavff") as server:
        call(work, openai(server))


@pytest.mark.parametrize("serve", [http_stand_in, triton_stand_in, cosyvoice_stand_in, socket_stand_in])
def test_a_barge_in_reaches_the_other_server(serve: Callable[..., Any]) -> None:
    async def work(rig: Rig, bot: Bot) -> None:
        await bot.say(TEXT, "t")
        await bot.frames_to(10)
        await bot.send({"type": "clear"})
        await bot.event("cleared", turn="t")
        await until(lambda: server.n_live == 0)
        is_cancelled = {
            http_stand_in: lambda: server.asked[0].was_cancelled,
            socket_stand_in: lambda: server.n_left == 1,
        }.get(serve, lambda: server.n_cancelled == 1 and server.n_finished == 0)
        assert is_cancelled()

    with serve(pause_s=0.08) as server:
        given: dict[str, Any] = {
            http_stand_in: {"kind": "openai", "voices": {"a": {}}},
            triton_stand_in: {"kind": "triton", "model": "cosyvoice2", "stops_on_cancel": True},
            cosyvoice_stand_in: {"kind": "cosyvoice_grpc", "voices": {"a": {}}},
            socket_stand_in: {"kind": "vllm_omni", "websocket": True},
        }[serve]
        call(work, engine(url=getattr(server, "url", "") or server.address, **given))


def test_a_stream_that_breaks_goes_on_behind_the_words_that_were_heard() -> None:
    async def work(rig: Rig, bot: Bot) -> None:
        await bot.say(TEXT, "t")
        await bot.event("done", within_s=20, turn="t")
        heard = tone_text(decoded(bot.frames)).replace(" ", "")
        at = 0
        for word in WORDS * 2:
            at = heard.find(word, at)
            assert at >= 0, f"{word} is missing in {heard}"
        assert len(server.asked) == 2 and server.asked[1].fields["input"] in TEXT

    with http_stand_in(fault="cut", faults_left=1, pause_s=0.02) as server:
        call(work, openai(server))


@pytest.mark.parametrize(
    "fault", ["html", "busy", "cut_at_once", "empty", "half_header", "wrong_rate", "silent", "missing"]
)
def test_another_engine_speaks_if_the_server_fails(fault: str) -> None:
    spare = FakeEngine(name="spare")

    async def work(rig: Rig, bot: Bot) -> None:
        await bot.say(TEXT, "t")
        done = await bot.event("done", within_s=20, turn="t")
        assert done["engines"][-1] == "spare"
        assert correlation(decoded(bot.frames), rendering([TEXT])) > 0.99

    with http_stand_in(fault=fault) as server:
        call(work, openai(server), spare)


def test_a_server_that_is_busy_for_some_seconds_is_not_asked_in_that_time() -> None:
    async def work(rig: Rig, bot: Bot) -> None:
        for n in range(3):
            await bot.say("abc", f"t{n}")
            done = await bot.event("done", within_s=20, turn=f"t{n}")
            assert done["engines"][-1] == "spare"
        assert len(server.asked) == 1

    with http_stand_in(fault="busy") as server:
        call(work, openai(server), FakeEngine(name="spare"))


@pytest.mark.parametrize(
    ("serve", "given"),
    [
        (triton_stand_in, {"kind": "triton", "model": "cosyvoice2"}),
        (cosyvoice_stand_in, {"kind": "cosyvoice_grpc", "voices": {"a": {}}}),
        (socket_stand_in, {"kind": "vllm_omni", "websocket": True}),
        (http_stand_in, {"kind": "cosyvoice_fastapi", "voices": {"a": {}}}),
    ],
)
def test_hibari_speaks_for_each_of_them(serve: Callable[..., Any], given: dict[str, Any]) -> None:
    """As it is configured, and with the real embedded voice."""
    with serve(fault="error" if serve is socket_stand_in else "empty", faults_left=1) as server:
        url = getattr(server, "url", "") or server.address
        overrides = {
            "server.port": 0, "speech.pace": "burst", "engines.default": "theirs", "engines.fallback": ("hibari",),
            "engines.others": {"theirs": {**given, "url": url}}, "speech.detect_language": False,
        }  # fmt: skip
        say = {"type": "say", "text": "hello there"}
        (audio, failed), (_, spoken) = asyncio.run(served(config.load(None, overrides, {}), say, say))
    assert failed["type"] == "done" and failed["engines"] == ["hibari"] and len(audio) > 4_000
    assert spoken["type"] == "done" and spoken.get("engines", ["theirs"]) == ["theirs"]


def test_an_error_without_a_fallback_reaches_the_bot_with_its_setting() -> None:
    async def work(rig: Rig, bot: Bot) -> None:
        await bot.say(TEXT, "t")
        error = await bot.event("error", within_s=20, turn="t")
        assert error["code"] == "engine_failed" and "engines.others.theirs.rate_hz" in error["message"]
        server.fault = "busy"
        await bot.say(TEXT, "u")
        error = await bot.event("error", within_s=20, turn="u")
        assert (error["code"], error["retryable"], error["retry_after_ms"]) == ("busy", True, 7_000)

    with http_stand_in(fault="wrong_rate") as server:
        call(work, openai(server))


def test_our_own_second_server_is_one_of_them() -> None:
    """telephony-tts speaks OpenAI's protocol, so one server can be the engine of another."""

    async def main() -> None:
        async with serving() as inner:
            theirs = engine(kind="openai", url=f"http://127.0.0.1:{inner.port}", voices={"tone": {}}, model="tts-1")
            async with serving(theirs, speech=speech_settings()) as outer, outer.bot(audio="binary") as bot:
                await bot.say(TEXT, "t")
                await bot.event("done", within_s=20, turn="t")
                assert correlation(decoded(bot.frames), rendering([TEXT])) > 0.99
                await bot.say(TEXT, "u")
                n_frames = len(bot.frames)
                await bot.frames_to(n_frames + 10)
                await bot.send({"type": "clear"})
                await bot.event("cleared", turn="u")
                await inner.empty()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_two_servers_of_one_kind_speak_in_one_call() -> None:
    with http_stand_in() as one, http_stand_in(rate_hz=48_000, form="wav0") as two:
        theirs = [
            engine("one", kind="openai", url=one.url, voices={"alloy": {}}),
            engine("two", kind="openai", url=two.url, voices={"alloy": {}}, rate_hz=48_000),
        ]

        async def main() -> None:
            catalog = Catalog(theirs)
            async with serving(catalog=catalog, speech=speech_settings()) as rig, rig.bot(audio="binary") as bot:
                for name, server in (("one", one), ("two", two)):
                    await bot.send({"type": "config", "voice": f"{name}/alloy"})
                    await bot.say("abc", name)
                    await bot.event("done", within_s=20, turn=name)
                    assert len(server.asked) == 1
                assert tone_text(decoded(bot.frames)).split() == ["abcabc"]

        asyncio.run(asyncio.wait_for(main(), 30))


def test_the_voices_are_listed_over_http() -> None:
    async def work(rig: Rig, bot: Bot) -> None:
        status, _, body = await get(rig.port, "/v1/voices", ("Connection: close",))
        assert status == 200
        listed = [(voice["engine"], voice["name"], voice["languages"]) for voice in json.loads(body)["voices"]]
        assert listed == [("theirs", "af_heart", ["en"]), ("theirs", "af_sky", ["en"])]

    with http_stand_in(voices=["af_heart", "af_sky"]) as server:
        call(work, engine(kind="kokoro_fastapi", url=server.url))


