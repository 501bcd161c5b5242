"""`/jambonz/tts` against a plain client that behaves as jambonz does."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rig import Rig, Tones, correlation, decoded, rendering, run, serving, until
from twilio_peer import calling
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from telephony_tts.engines.api import Pcm

pytestmark = pytest.mark.slow

FIRST, SECOND = "Your parcel left on Tuesday.", "It arrives today."
LONG = " ".join(f"This is sentence {n} of a long story." for n in ("one", "two", "three", "four", "five", "six"))


class JambonzClient:
    """jambonz's side. `audio` is all the audio, `messages` all the JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: list[dict[str, Any]] = []
        self.audio: list[bytes] = []
        self.closed: int | None = None
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for data in self.socket:
                if isinstance(data, bytes):
                    self.audio.append(data)
                    continue
                message = json.loads(data)
                if message["type"] == "data":
                    self.audio.append(base64.b64decode(message["data"]["audio"]))
                else:
                    assert self.messages or not self.audio
                    self.messages.append(message)
        except ConnectionClosed:
            pass
        self.closed = self.socket.close_code

    async def aclose(self) -> None:
        await self.socket.close()
        await self._reader

    async def tell(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def say(self, *texts: str) -> None:
        for text in texts:
            await self.tell("stream", text=text)
        await self.tell("flush")

    @property
    def pcm(self) -> Pcm:
        return decoded(self.audio, "pcm")

    async def hears(self, texts: list[str], rate_hz: int = 8000) -> None:
        """All the audio of the texts has come, and nothing else."""
        wanted = rendering(texts, rate_hz)
        await until(lambda: len(self.pcm) >= len(wanted), "the audio")
        assert correlation(self.pcm, wanted) > 0.98
        assert not self.pcm[len(wanted) + rate_hz // 25 :].any()


@asynccontextmanager
async def jambonz(rig: Rig, key: str = "secret", **options: Any) -> AsyncIterator[JambonzClient]:
    url = rig.url("/jambonz/tts", **{"voice": "tone", "language": "en-US", "sampleRate": 8000, **options})
    headers = {"Authorization": f"Bearer {key}"}
    async with connect(url, compression=None, additional_headers=headers, proxy=None, max_queue=None) as socket:
        client = JambonzClient(socket)
        try:
            yield client
        finally:
            await client.aclose()


@pytest.mark.parametrize(("rate_hz", "in_base64"), [(8000, False), (8000, True), (16000, False), (48000, True)])
def test_a_call_of_two_turns(rate_hz: int, in_base64: bool) -> None:
    async def main() -> None:
        how = {"sampleRate": rate_hz, "base64_encoding": str(in_base64).lower()}
        async with serving(tokens=("secret",)) as rig, jambonz(rig, **how) as client:
            await until(lambda: client.messages, "the first word")
            assert client.messages == [
                {"type": "connect", "data": {"sample_rate": rate_hz, "base64_encoding": in_base64}}
            ]
            await client.say("Your parcel left", "on Tuesday.")
            await client.hears([FIRST], rate_hz)
            assert rig.engine.spoken == [FIRST]  # type: ignore[attr-defined]
            client.audio.clear()
            await client.tell("keepalive")
            await client.say(SECOND)
            await client.hears([SECOND], rate_hz)
            assert len(client.messages) == 1

    run(main)


def test_a_stop_ends_the_speech_and_the_connection() -> None:
    async def main() -> None:
        async with serving(Tones(speed=2.0), tokens=("secret",)) as rig, jambonz(rig) as client:
            await client.say(LONG)
            await until(lambda: len(client.pcm) > 4000, "audio")
            await client.tell("stop")
            await until(lambda: client.closed is not None, "the close")
            assert client.closed == 1000
            assert len(client.pcm) < len(rendering([LONG])) // 2
            await rig.empty()

    run(main)


def test_after_a_clear_only_the_next_turn_is_heard() -> None:
    async def main() -> None:
        async with serving(Tones(speed=2.0), tokens=("secret",), burst_ahead_s=0.5) as rig, jambonz(rig) as client:
            await client.say(LONG)
            await until(lambda: len(client.pcm) > 4000, "audio")
            await client.tell("clear")
            await client.socket.ping()
            n_before = len(client.pcm)
            await client.say(SECOND)
            await until(lambda: len(client.pcm) - n_before >= len(rendering([SECOND])), "the next turn")
            await rig.empty_engine()
            wanted = rendering([SECOND])
            after = client.pcm[n_before:]
            begin = int(correlation_start(after, wanted))
            assert correlation(after[begin:], wanted) > 0.98
            assert len(after) - begin <= len(wanted) + 320

    run(main)


def correlation_start(pcm: Pcm, wanted: Pcm) -> int:
    """Where `wanted` begins in `pcm`, which may have some audio before it that was already on its way."""
    return max(range(0, len(pcm) - len(wanted) + 1, 160), key=lambda at: correlation(pcm[at:], wanted))


def test_a_wrong_key_voice_or_rate_is_refused_before_the_connection() -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            cases: list[tuple[dict[str, Any], int, str]] = [
                ({"key": "wrong"}, 401, "API key"),
                ({"voice": "stranger"}, 400, "stranger"),
                ({"sampleRate": 11025}, 400, "expected one of 8000"),
            ]
            for options, status, word in cases:
                with pytest.raises(InvalidStatus) as refused:
                    async with jambonz(rig, **options):
                        pass
                assert refused.value.response.status_code == status
                assert word in json.loads(refused.value.response.body)["error"]

    run(main)


def test_an_engine_that_fails_is_told_and_the_next_turn_is_spoken() -> None:
    async def main() -> None:
        engine = Tones(fail_after_chunks=2)
        async with serving(engine, tokens=("secret",)) as rig, jambonz(rig) as client:
            await client.say(LONG)
            await until(lambda: len(client.messages) > 1, "the error")
            assert client.messages[1]["type"] == "error" and "fail" in client.messages[1]["error"]
            engine.fail_after_chunks = None
            client.audio.clear()
            await client.say(SECOND)
            await client.hears([SECOND])

    run(main)


def test_a_voice_that_joins_a_call_is_heard_there() -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            bearer = {"Authorization": "Bearer secret"}
            async with (
                calling(rig.url("/media/twilio"), "CA1", headers=bearer) as phone,
                jambonz(rig, call="CA1") as client,
            ):
                await phone.start()
                await client.say(FIRST)
                wanted = rendering([FIRST])
                await phone.hears(len(wanted) // 160)
                assert correlation(decoded(phone.played), wanted) > 0.98
                silence = b"".join(client.audio)
                assert not any(silence) and len(silence) / 2 == pytest.approx(len(wanted), rel=0.05)
                await phone.hang_up()

    run(main)
