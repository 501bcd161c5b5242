"""ElevenLabs' protocols on a real server, with a plain WebSocket client: what is heard, and the characters with it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from rig import TIMEOUT_S, Rig, Tones, correlation, decoded, delayed_correlation, rendering, run, serving, until
from twilio_peer import calling
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.fake.engine import FakeEngine

pytestmark = pytest.mark.slow

MS_PER_CHAR = 60
LONG = "This is a very long story that will not be heard to its end. " * 4


class ElevenLabsClient:
    """A client of both protocols. `messages` are all that came, with decoded audio."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: list[dict[str, Any]] = []
        self.closed: tuple[int | None, str | None] | None = None
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for data in self.socket:
                message = json.loads(data)
                message["audio"] = base64.b64decode(message.get("audio") or "")
                self.messages.append(message)
        except ConnectionClosed:
            pass
        self.closed = (self.socket.close_code, self.socket.close_reason)

    async def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            await self.socket.send(json.dumps(message))

    async def say(self, context: str, *texts: str) -> None:
        """A whole turn, as pipecat sends it."""
        await self.send({"text": " ", "context_id": context}, *({"text": t, "context_id": context} for t in texts))
        await self.send({"context_id": context, "flush": True}, {"context_id": context, "close_context": True})

    async def final(self, context: str | None = None, within_s: float = TIMEOUT_S) -> None:
        await until(lambda: any(m.get("isFinal") for m in self.of(context)), f"no final of {context}", within_s)

    async def gone(self) -> tuple[int | None, str | None]:
        await until(lambda: self.closed is not None, "the socket is open")
        assert self.closed is not None
        return self.closed

    async def hears(self, n_bytes: int, context: str | None = None) -> None:
        await until(lambda: len(self.audio(context)) >= n_bytes, "the audio did not come")

    def of(self, context: str | None = None) -> list[dict[str, Any]]:
        return [message for message in self.messages if message.get("contextId") == context]

    def audio(self, context: str | None = None) -> bytes:
        return b"".join(message["audio"] for message in self.of(context))

    def text(self, context: str | None = None) -> str:
        return "".join("".join(message["alignment"]["chars"]) for message in self._aligned(context))

    def starts_ms(self, context: str | None = None, *, keeps_time: bool = False) -> list[float]:
        """When each character begins. As pipecat does it: a message begins where the characters before it ended."""
        begin_ms, starts = 0.0, []
        for message in self._aligned(context):
            one = message["alignment"]
            assert message["normalizedAlignment"] == one
            assert len(one["chars"]) == len(one["charStartTimesMs"]) == len(one["charDurationsMs"])
            starts += [(0 if keeps_time else begin_ms) + at for at in one["charStartTimesMs"]]
            begin_ms += one["charStartTimesMs"][-1] + one["charDurationsMs"][-1]
        return starts

    def _aligned(self, context: str | None) -> list[dict[str, Any]]:
        return [message for message in self.of(context) if message.get("alignment")]


def url(rig: Rig, kind: str = "multi-stream-input", voice: str = "tone", **options: Any) -> str:
    return rig.url(f"/v1/text-to-speech/{voice}/{kind}", **{"output_format": "pcm_8000", **options})


@asynccontextmanager
async def client(address: str, headers: dict[str, str] | None = None) -> AsyncIterator[ElevenLabsClient]:
    async with connect(address, compression=None, additional_headers=headers, proxy=None, max_queue=None) as socket:
        one = ElevenLabsClient(socket)
        yield one
        await socket.close()
        await one._reader


def assert_heard(audio: bytes, sentences: list[str], rate_hz: int = 8000, codec: str = "pcm") -> None:
    heard, wanted = decoded([audio], codec), rendering(sentences, rate_hz)
    assert correlation(heard, wanted) > 0.98
    assert 0 <= len(heard) - len(wanted) <= rate_hz // 50


# ------------------------------------------------------------------------ turns


def test_a_context_is_spoken_with_each_character_where_it_is_heard() -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig, auto_mode="true")) as bot:
            await bot.say("a", "One two.", "Four more.")
            await bot.final("a")
            assert_heard(bot.audio("a"), ["One two.", "Four more."])
            # The client sent no spaces between its sentences, and pipecat needs one behind each word.
            assert bot.text("a") == "One two. Four more. "
            starts = bot.starts_ms("a")
            sounded = "One two.Four more."
            expected = [MS_PER_CHAR * n for n in range(len(sounded))]
            assert [at for char, at in zip("One two. Four more. ", starts, strict=True) if char != " "] == [
                pytest.approx(at, abs=2) for char, at in zip(sounded, expected, strict=True) if char != " "
            ]
            # Each message's characters are within its audio, so a client that counts audio comes to the same times.
            assert all(message["audio"] for message in bot.of("a")[:-3])
            assert bot.messages[-1] == {"audio": b"", "contextId": "a", "isFinal": True}

    run(body)


def test_with_sync_alignment_the_times_are_those_of_the_context() -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig, sync_alignment="true")) as bot:
            await bot.say("a", "One two. ", "Four more.")
            await bot.final("a")
            assert bot.text("a") == "One two. Four more. "
            starts = bot.starts_ms("a", keeps_time=True)
            assert starts[4] == pytest.approx(4 * MS_PER_CHAR, abs=2)
            assert starts[9] == pytest.approx(8 * MS_PER_CHAR, abs=2)
            assert all(before <= after for before, after in pairwise(starts))

    run(body)


def test_a_number_is_spelt_as_it_was_sent() -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig)) as bot:
            await bot.say("a", "It is $42.50 now. ")
            await bot.final("a")
            spoken = rig.engine.spoken  # type: ignore[attr-defined]
            assert "42" not in spoken[0]
            assert_heard(bot.audio("a"), spoken)
            assert bot.text("a") == "It is $42.50 now. "
            assert bot.starts_ms("a")[13] == pytest.approx(MS_PER_CHAR * spoken[0].index("now"), abs=2)

    run(body)


@pytest.mark.parametrize("codec", ["ulaw", "alaw"])
def test_telephone_codecs(codec: str) -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig, output_format=f"{codec}_8000")) as bot:
            await bot.say("a", "One two.")
            await bot.final("a")
            assert_heard(bot.audio("a"), ["One two."], codec=codec)

    run(body)


@pytest.mark.parametrize("rate_hz", [16_000, 22_050, 24_000, 44_100, 48_000])
def test_sample_rates(rate_hz: int) -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig, output_format=f"pcm_{rate_hz}")) as bot:
            await bot.say("a", "One two.")
            await bot.final("a")
            assert_heard(bot.audio("a"), ["One two."], rate_hz)

    run(body)


@pytest.mark.parametrize(
    ("name", "rate_hz"), [("mp3_22050_32", 22_050), ("mp3_44100_128", 44_100), ("opus_48000_64", 48_000)]
)
def test_compressed_audio_is_one_stream_of_each_context(name: str, rate_hz: int) -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig, output_format=name)) as bot:
            await bot.say("a", "One two. Three four.")
            await bot.say("b", "Five six.")
            await bot.final("b")
            assert bot.text("a") == "One two. Three four. "
            assert sum(bool(message["audio"]) for message in bot.of("a")) > 5
            for context, sentences in {"a": ["One two.", "Three four."], "b": ["Five six."]}.items():
                heard, wanted = decompressed(bot.audio(context), rate_hz), rendering(sentences, rate_hz)
                assert delayed_correlation(heard, wanted) > 0.95

    run(body)


def decompressed(data: bytes, rate_hz: int) -> Pcm:
    av = pytest.importorskip("av")
    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate_hz)
        frames = [each for frame in container.decode(audio=0) for each in resampler.resample(frame)]
        pcm: Pcm = np.concatenate([frame.to_ndarray()[0] for frame in [*frames, *resampler.resample(None)]])
    return pcm


def test_one_text_is_spoken_and_the_connection_closed() -> None:
    """As the vendor's SDK reads it: it ends only when the server closes."""

    async def body() -> None:
        async with serving() as rig, client(url(rig, "stream-input")) as bot:
            first = {"text": " ", "try_trigger_generation": True, "voice_settings": None}
            await bot.send({**first, "generation_config": {"chunk_length_schedule": [50]}})
            await bot.send({"text": "One ", "try_trigger_generation": True}, {"text": "two. "}, {"text": ""})
            assert await bot.gone() == (1000, "closed")
            assert_heard(bot.audio(), ["One two."])
            assert bot.text() == "One two. "
            assert bot.messages[-1] == {"audio": b"", "isFinal": True}

    run(body)


def test_speed_is_of_its_context() -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig)) as bot:
            await bot.send({"text": " ", "context_id": "a", "voice_settings": {"speed": 1.5, "stability": 0.5}})
            await bot.say("a", "One two three.")
            await bot.say("b", "One two three.")
            await bot.final("b")
            assert len(bot.audio("a")) == pytest.approx(len(bot.audio("b")) / 1.5, abs=640)

    run(body)


# ---------------------------------------------------------------- interruptions


def test_the_turn_after_an_interruption_is_heard_whole_and_nothing_of_the_interrupted_one() -> None:
    async def body() -> None:
        async with serving(burst_ahead_s=0.5) as rig, client(url(rig, auto_mode="true")) as bot:
            for n in range(3):
                await bot.say(f"long{n}", LONG)
                await bot.hears(4000, f"long{n}")
                await bot.send({"context_id": f"long{n}", "close_context": True})
                await bot.send({"context_id": f"long{n}", "close_context": True})
                await bot.say(f"next{n}", "One two.")
                await bot.final(f"next{n}")
                assert_heard(bot.audio(f"next{n}"), ["One two."])
                assert bot.text(f"next{n}") == "One two. "
                at = [message.get("isFinal") for message in bot.of(f"long{n}")].index(True)
                assert at == len(bot.of(f"long{n}")) - 1
                assert LONG.startswith(bot.text(f"long{n}")) and len(bot.text(f"long{n}")) < 60
            spoken = rig.engine.spoken  # type: ignore[attr-defined]
            assert len(spoken) - spoken.count("One two.") <= 6, "the interrupted turns were spoken to their end"

    run(body)


def test_a_turn_does_not_wait_for_one_that_the_client_stopped_without_a_word() -> None:
    """livekit sends nothing for an interruption when the text is complete. Nothing is lost if it is still played."""

    async def body() -> None:
        async with serving(burst_ahead_s=0.5) as rig, client(url(rig, auto_mode="true")) as bot:
            await bot.say("long", "This is a very long story that will not be heard to its end.")
            await bot.hears(4000, "long")
            begun_s = time.monotonic()
            await bot.say("next", "One two.")
            await bot.final("next")
            assert time.monotonic() - begun_s < 2
            assert_heard(bot.audio("next"), ["One two."])
            assert_heard(bot.audio("long"), ["This is a very long story that will not be heard to its end."])

    run(body)


def test_text_still_to_come_is_stopped_by_the_first_close() -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig)) as bot:
            await bot.send({"text": LONG, "context_id": "a", "flush": True})
            await bot.hears(4000, "a")
            await bot.send({"context_id": "a", "close_context": True})
            await bot.final("a")
            await bot.send({"text": "late tokens ", "context_id": "a"})
            await bot.say("b", "One two.")
            await bot.final("b")
            assert_heard(bot.audio("b"), ["One two."])
            assert [message["error"] for message in bot.of("a") if "error" in message] == ["context_closed"]

    run(body)


def test_contexts_that_take_turns_lose_no_text() -> None:
    """A turn of ours ends when another context waits. Text that comes for it later is spoken behind that one."""

    async def body() -> None:
        async with serving() as rig, client(url(rig, auto_mode="true")) as bot:
            for n in range(4):
                await bot.send({"text": f"Alpha {n}.", "context_id": "a"}, {"text": f"Beta {n}.", "context_id": "b"})
                await asyncio.sleep(0.02)
            for context in "ab":
                await bot.send({"context_id": context, "flush": True}, {"context_id": context, "close_context": True})
            await bot.final("a")
            await bot.final("b")
            assert bot.text("a") == "Alpha 0. Alpha 1. Alpha 2. Alpha 3. "
            assert bot.text("b") == "Beta 0. Beta 1. Beta 2. Beta 3. "
            spoken = rig.engine.spoken  # type: ignore[attr-defined]
            for context, name in (("a", "Alpha"), ("b", "Beta")):
                n_chars = sum(len(text) for text in spoken if text.startswith(name))
                assert len(bot.audio(context)) / 16 >= n_chars * MS_PER_CHAR

    run(body)


def test_close_socket_lets_the_contexts_end() -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig)) as bot:
            await bot.send({"text": "One two. ", "context_id": "a"}, {"close_socket": True})
            assert await bot.gone() == (1000, "closed")
            assert_heard(bot.audio("a"), ["One two."])

    run(body)


# ------------------------------------------------------------------- handshakes


def test_keys() -> None:
    async def refused(address: str, headers: dict[str, str] | None = None) -> tuple[int | None, str | None]:
        async with client(address, headers) as bot:
            await bot.send({"text": " ", "context_id": "a", **({} if headers else {"xi_api_key": "wrong"})})
            return await bot.gone()

    async def body() -> None:
        async with serving(tokens=("secret",)) as rig:
            for address, headers in (
                (url(rig), {"xi-api-key": "secret"}),
                (url(rig), {"Authorization": "Bearer secret"}),
                (url(rig, single_use_token="secret"), None),
            ):
                async with client(address, headers) as bot:
                    await bot.say("a", "One two.")
                    await bot.final("a")
            for field in ({"xi_api_key": "secret"}, {"authorization": "Bearer secret"}):
                async with client(url(rig)) as bot:
                    await bot.send({"text": " ", "context_id": "a", **field})
                    await bot.say("a", "One two.")
                    await bot.final("a")
            for address, headers in ((url(rig), {"xi-api-key": "wrong"}), (url(rig), None)):
                code, reason = await refused(address, headers)
                assert code == 1008 and reason == "an API key is needed"

    run(body)


def test_a_client_that_sends_no_key_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telephony_tts.transport.vendor_leg._KEY_WITHIN_S", 0.1)

    async def body() -> None:
        async with serving(tokens=("secret",)) as rig, client(url(rig)) as bot:
            assert (await bot.gone())[0] == 1008

    run(body)


def test_refusals_have_the_vendors_form() -> None:
    async def refusal(address: str) -> tuple[int, dict[str, str]]:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address, proxy=None):
                pass
        response = refused.value.response
        assert response.body is not None
        return response.status_code, json.loads(response.body)["detail"]

    async def body() -> None:
        async with serving() as rig:
            status, detail = await refusal(url(rig, voice="stranger"))
            assert (status, detail["status"]) == (400, "voice_not_found") and "stranger" in detail["message"]
            status, detail = await refusal(url(rig, output_format="pcm_1"))
            assert (status, detail["status"]) == (400, "output_format_not_allowed")
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(sys.modules, "av", None)
                status, detail = await refusal(url(rig, output_format="mp3_44100_128"))
            assert status == 501 and "pip install" in detail["message"]

    run(body)


@pytest.mark.parametrize("voice", ["21m00Tcm4TlvDq8ikWAM", "None", "tone"])
def test_the_vendors_voices_are_the_default_voice(voice: str) -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig, voice=voice)) as bot:
            await bot.say("a", "One two.")
            await bot.final("a")
            assert_heard(bot.audio("a"), ["One two."])

    run(body)


# ---------------------------------------------------------------------- bad input


def test_ten_thousand_contexts_are_answered_and_the_next_turn_is_heard() -> None:
    """Each fiftieth has text and is closed in the middle of it, twice."""

    async def body() -> None:
        async with serving() as rig, client(url(rig, auto_mode="true")) as bot:
            for n in range(10_000):
                await bot.send({"text": " ", "context_id": f"c{n}"})
                if n % 50 == 0:
                    close = {"context_id": f"c{n}", "close_context": True}
                    await bot.send({"text": "Hi there.", "context_id": f"c{n}"}, close, close)
            await bot.say("last", "One two.")
            await bot.final("last", within_s=30)
            assert_heard(bot.audio("last"), ["One two."])
            assert sum(bool(message.get("isFinal")) for message in bot.messages) == 201

    run(body)


def test_too_many_contexts_close_the_connection_as_the_vendor_does() -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig)) as bot:
            await bot.send(*({"text": "Hi. ", "context_id": f"c{n}"} for n in range(6)))
            code, _ = await bot.gone()
            assert code == 1008
            assert bot.messages[-1]["error"] == "max_active_conversations"

    run(body)


def test_a_failure_of_the_engine_ends_its_context_and_not_the_connection() -> None:
    async def body() -> None:
        async with serving(FakeEngine(fail_after_chunks=3)) as rig, client(url(rig)) as bot:
            for context in "ab":
                await bot.say(context, "One two three four five.")
                await bot.final(context)
                assert [message["error"] for message in bot.of(context) if "error" in message] == ["engine_failed"]

    run(body)


@pytest.mark.parametrize("data", ["{", b"\x00", '{"text": 7}'])
def test_what_cannot_be_read_closes_the_connection(data: str | bytes) -> None:
    async def body() -> None:
        async with serving() as rig, client(url(rig)) as bot:
            await bot.socket.send(data)
            assert (await bot.gone())[0] == 1008
            assert bot.messages[-1]["message"]

    run(body)


# ------------------------------------------------------------------- joined calls


def test_a_client_joins_the_call_of_a_carrier() -> None:
    async def body() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            await until(lambda: len(rig.server.registry), "the call")
            async with client(url(rig, call="CA1", output_format="mp3_44100_128")) as bot:
                await bot.say("a", "One two. Three four.")
                await until(lambda: bot.text("a").startswith("One two."), "the first sentence")
                assert not any(message.get("isFinal") for message in bot.messages)
                await bot.final("a")
                assert bot.text("a") == "One two. Three four. "
                # Silence of the same length, as the one MP3 stream that the client asked for.
                silence = decompressed(bot.audio("a"), 8_000)
                assert abs(silence).max() < 10
                assert len(silence) == pytest.approx(len(rendering(["One two.", "Three four."])), rel=0.2)
                assert bot.starts_ms("a")[4] == pytest.approx(4 * MS_PER_CHAR, abs=3)
                assert correlation(decoded(phone.played), rendering(["One two.", "Three four."])) > 0.98
                await bot.say("long", LONG)
                n_before = len(phone.played)
                await phone.hears(n_before + 20)
                await bot.send({"context_id": "long", "close_context": True})
                await bot.final("long")
                await until(lambda: phone.n_clears > 0, "no clear")
                n_heard = len(phone.played)
                await bot.say("next", "One two.")
                await bot.final("next")
                assert correlation(decoded(phone.played[n_heard:]), rendering(["One two."])) > 0.9

    run(body)


# ---------------------------------------------------------------- the vendor's SDK

SDK_BEGIN = {"text": " ", "try_trigger_generation": True, "generation_config": {"chunk_length_schedule": [50]}}
PIECES = ["This is the first sentence. ", "And this is the second one. ", "One more. And a last one. "]


@pytest.mark.timed
def test_the_sdk_gets_one_message_for_each_piece_of_text() -> None:
    """It takes one message each time that it sends a piece. The engine gives twenty chunks for each."""

    async def main() -> None:
        async with serving() as rig, client(url(rig, "stream-input")) as sdk:
            await sdk.send(SDK_BEGIN)
            for n, piece in enumerate(PIECES):
                await sdk.send({"text": piece, "try_trigger_generation": True})
                # Longer than the speech: the end of each sentence leaves the resampler before the next one comes.
                await asyncio.sleep(len(piece) * MS_PER_CHAR / 1000 + 1)
                assert len(sdk.messages) == n + 1
            await sdk.send({"text": ""})
            await sdk.gone()
            # The drained resampler shifts the sentences a little, so each is looked for in its message.
            assert sdk.text() == "".join(PIECES)
            for message, piece in zip(sdk.messages, PIECES, strict=False):
                wanted = rendering([piece.partition(". ")[0] + "."])
                assert delayed_correlation(decoded([message["audio"]], "pcm"), wanted) > 0.9

    run(main)


@pytest.mark.timed
@pytest.mark.parametrize("begin", [SDK_BEGIN, {"text": " "}], ids=["the SDK", "another client"])
def test_first_audio_of_a_slow_engine(begin: dict[str, Any]) -> None:
    """A client that reads all the time gets the first chunk at once. The SDK gets few messages, the first a second
    after the first chunk, and all that is left when its text is complete."""

    async def main() -> None:
        engine = FakeEngine(speed=2.0)
        async with serving(engine) as rig, client(url(rig, "stream-input")) as one:
            await one.send(begin, {"text": f"{LONG.strip()} ", "try_trigger_generation": True})
            begun_s = time.monotonic()
            await until(lambda: one.messages, "audio")
            first_s = time.monotonic() - begun_s
            await asyncio.sleep(1.5)
            n_messages = len(one.messages)
            if begin is SDK_BEGIN:
                assert 0.8 < first_s < 1.6 and n_messages <= 3
            else:
                assert first_s < 0.3 and n_messages > 10
            await one.send({"text": ""})
            await until(lambda: len(one.messages) >= n_messages + 3, "the rest comes as it is made", 1.5)

    run(main)


def test_numbers_that_the_sdk_cuts_in_two_are_read_as_one() -> None:
    async def main() -> None:
        engine = Tones()
        async with serving(engine) as rig, client(url(rig, "stream-input")) as sdk:
            pieces = ["It costs ", "$42. ", "50 today. "]
            await sdk.send(SDK_BEGIN, *({"text": piece} for piece in pieces), {"text": ""})
            await sdk.gone()
            assert engine.spoken == ["It costs forty two dollars and fifty cents today."]

    run(main)
