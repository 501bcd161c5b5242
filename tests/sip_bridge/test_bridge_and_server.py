"""The bridge with the server it is made for: a bot's words reach the phone, the caller's voice and digits the bot."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soxr
from bridge_rig import Ended, bridging, noise, run
from log_lines import lines
from server_settings import transport_settings
from standin_asterisk import Phone, phone
from websockets.asyncio.client import ClientConnection, connect

from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake import SAMPLE_RATE_HZ, FakeEngine, render
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport.server import Server

pytestmark = pytest.mark.timed

TOKEN = "a-token"


@asynccontextmanager
async def tts_server(**settings: Any) -> AsyncIterator[Server]:
    """The real server, with tones for a voice."""
    catalog = Catalog([FakeEngine()])
    await catalog.start()
    given = transport_settings(
        speech=replace(SessionSettings(), first_clause_chars=0), tokens=(TOKEN,), drain_s=1.0,
        max_frame_lateness_ms=60_000, **settings,
    )  # fmt: skip
    try:
        async with Server(given, catalog).running() as server:
            yield server
    finally:
        await catalog.close()


@asynccontextmanager
async def bot_of(server: Server, call: str, inbound: str = "none") -> AsyncIterator[ClientConnection]:
    url = f"ws://127.0.0.1:{server.port}/v1/stream?call={call}&token={TOKEN}"
    async with connect(url, compression=None, proxy=None, max_queue=None) as bot:
        await event(bot, "ready")
        if inbound != "none":
            await bot.send(json.dumps({"type": "config", "inbound": inbound}))
        yield bot


async def event(bot: ClientConnection, kind: str, audio: bytearray | None = None) -> dict[str, Any]:
    """The next event of a kind; the caller's audio that comes meanwhile goes into `audio`."""
    async with asyncio.timeout(8):
        while True:
            data = await bot.recv()
            if isinstance(data, bytes):
                if audio is not None:
                    audio += data
            elif (told := json.loads(data)).get("type") == kind:
                return dict(told)


def heard_by(up: Phone) -> np.ndarray:
    """All samples from the first that is not silence."""
    samples = np.frombuffer(b"".join(up.frames), "<i2").astype(float)
    return samples[int(np.argmax(samples != 0)) :]


def tones(sentences: list[str], rate_hz: int) -> np.ndarray:
    """What the engine makes of them."""
    whole = np.concatenate([render(text) for text in sentences]).astype(np.float32)
    resampled: np.ndarray = soxr.resample(whole, SAMPLE_RATE_HZ, rate_hz, "HQ")
    return resampled


def correlation(heard: np.ndarray, wanted: np.ndarray) -> float:
    """Of the two at the place where they fit best, within 20 ms."""
    wanted = wanted[int(np.argmax(np.abs(wanted) > 1)) :]
    best = 0.0
    for shift in range(-160, 160):
        a, b = heard[max(0, shift) :], wanted[max(0, -shift) :]
        n = min(len(a), len(b))
        best = max(best, float(np.corrcoef(a[:n], b[:n])[0, 1]))
    return best


@pytest.mark.parametrize(("kind", "rate_hz"), [(0x10, 8000), (0x12, 16_000)])
def test_the_phone_hears_what_the_bot_says_and_the_bot_is_told_when(kind: int, rate_hz: int) -> None:
    async def main() -> None:
        ended = Ended()
        async with tts_server() as server:
            url = f"ws://127.0.0.1:{server.port}/media/native"
            async with bridging(url, server__token=TOKEN) as rig, phone(rig.port) as up:
                up.send(kind, bytes(rate_hz // 25))
                async with bot_of(server, up.name) as bot:
                    await bot.send(json.dumps({"type": "say", "text": "Good morning. All is well.", "turn": "t1"}))
                    done = await event(bot, "done")
                    heard, wanted = heard_by(up), tones(["Good morning.", "All is well."], rate_hz)
                    assert correlation(heard, wanted) >= 0.995
                    assert abs(done["audio_ms"] - len(wanted) * 1000 / rate_hz) <= 20
                    assert done["underruns"] == 0
                    up.hang_up()
                    assert (await event(bot, "hangup"))["reason"] == "hangup"
        assert ended.counts == {"hangup": 1}

    run(main)


def test_a_barge_in_silences_the_phone_and_tells_what_was_heard() -> None:
    async def main() -> None:
        async with tts_server() as server:
            url = f"ws://127.0.0.1:{server.port}/media/native"
            how = {"server__token": TOKEN}
            async with bridging(url, **how) as rig, phone(rig.port) as up, bot_of(server, up.name) as bot:
                text = "This goes on for quite a while and is never heard to its end by anybody at all."
                await bot.send(json.dumps({"type": "say", "text": text, "turn": "t1"}))
                await up.hears(25)
                await bot.send('{"type":"clear"}')
                cleared = await event(bot, "cleared")
                n_frames = len(up.heard)
                await up.hears_any(n_frames + 25)
                assert not any(map(any, up.frames[n_frames + 1 :])), "one frame may have been on its way"
                heard_ms = 20 * len(up.speech)
                assert abs(cleared["heard_ms"] - heard_ms) <= 80
                assert text.startswith(cleared["heard_text"]) and cleared["basis"] == "marks"

    run(main)


def test_the_bot_hears_the_caller_and_his_digits() -> None:
    said = noise(50, 3)

    async def main() -> None:
        async with tts_server() as server:
            url = f"ws://127.0.0.1:{server.port}/media/native"
            async with bridging(url, server__token=TOKEN) as rig, phone(rig.port) as up:
                up.send(0x10, bytes(320))
                async with bot_of(server, up.name, inbound="binary") as bot:
                    await up.talk(said)
                    up.send(0x03, b"#")
                    audio = bytearray()
                    assert (await event(bot, "dtmf", audio))["digit"] == "#"
                    assert len(audio) >= 40 * 320 and b"".join(said).endswith(bytes(audio).lstrip(b"\0"))

    run(main)


def test_a_bot_that_leaves_ends_the_call_at_the_phone() -> None:
    async def main() -> None:
        ended = Ended()
        async with tts_server() as server:
            url = f"ws://127.0.0.1:{server.port}/media/native"
            async with bridging(url, server__token=TOKEN) as rig, phone(rig.port, uuid.uuid4()) as up:
                async with bot_of(server, up.name) as bot:
                    await bot.send(json.dumps({"type": "say", "text": "Goodbye.", "turn": "t1"}))
                    await up.hears(5)
                    await event(bot, "done")
                assert await up.is_over() == "hung up by the peer"
        assert ended.counts == {"finished": 1}

    run(main)


def test_a_wrong_token_ends_the_call_at_once() -> None:
    async def main() -> None:
        ended = Ended()
        async with tts_server() as server:
            url = f"ws://127.0.0.1:{server.port}/media/native"
            async with bridging(url, server__token="wrong") as rig, phone(rig.port) as up:
                assert await up.is_over() == "hung up by the peer"
        assert ended.counts == {"server_refused": 1}

    run(main)


@asynccontextmanager
async def speaking_beside(server: Server, port: int) -> AsyncIterator[Phone]:
    """A call whose bot speaks during the body; the phone must have heard it whole, without a gap."""
    sentences = [f"Here is sentence {n} of it." for n in "abc"]
    async with phone(port) as up, bot_of(server, up.name) as bot:
        await bot.send(json.dumps({"type": "say", "text": " ".join(sentences), "turn": "t1"}))
        await up.hears(5)
        yield up
        done = await event(bot, "done")
        assert done["underruns"] == 0 and up.ended is None
        assert correlation(heard_by(up), tones(sentences, 8000)) >= 0.995


def test_the_uuid_of_a_live_call_is_refused_and_that_call_hears_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ended = Ended()
        async with tts_server() as server:
            url = f"ws://127.0.0.1:{server.port}/media/native"
            async with bridging(url, server__token=TOKEN) as rig, speaking_beside(server, rig.port) as up:
                async with phone(rig.port, up.call) as second:
                    assert await second.is_over() == "hung up by the peer"
                    assert not second.speech, "not a word of the other's call"
                assert up.ended is None
                (line,) = lines(caplog, "server_refused")
                assert line == {
                    "peer": "127.0.0.1", "call": up.name, "code": 4409, "why": "the call already has a media leg",
                }  # fmt: skip
                (line,) = lines(caplog, "refused")
                assert (line["call"], line["reason"]) == (up.name, "call_taken"), "the server's own word"
        assert ended.counts == {"server_refused": 1, "hangup": 1}

    run(main)


def test_a_uuid_nobody_expects_is_hung_up_and_told_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        ended = Ended()
        async with tts_server(call_claim_s=0.4) as server:
            url = f"ws://127.0.0.1:{server.port}/media/native"
            async with bridging(url, server__token=TOKEN) as rig, speaking_beside(server, rig.port):
                async with phone(rig.port) as up:
                    assert await up.is_over() == "hung up by the peer"
                    assert len(up.heard) >= 10 and not up.speech, "silence while its bot was waited for"
                (line,) = lines(caplog, "server_refused")
                assert line == {
                    "peer": "127.0.0.1", "call": up.name, "code": 4404, "why": f"no bot leg came for call {up.name}",
                }  # fmt: skip
        assert ended.counts == {"server_refused": 1, "hangup": 1}

    run(main)


def test_a_wrong_token_is_told_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with tts_server() as server:
            url = f"ws://127.0.0.1:{server.port}/media/native"
            async with bridging(url, server__token="wr0ng") as rig, phone(rig.port) as up:
                assert await up.is_over() == "hung up by the peer"

    run(main)
    (line,) = lines(caplog, "server_refused")
    assert "HTTP 401" in line["why"] and "TELEPHONY_SIP_BRIDGE_TOKEN" in line["why"]
    assert "wr0ng" not in caplog.text and "wr0ng" not in str(lines(caplog))
