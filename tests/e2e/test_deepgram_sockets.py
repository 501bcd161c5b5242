"""Deepgram's protocols with a plain WebSocket client: what is heard, the errors, and a joined carrier's leg."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rig import Bot, Rig, Tones, correlation, decoded, rendering, run, serving, until
from twilio_peer import calling
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from telephony_tts.audio.encoder import CODECS
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.fake.engine import MS_PER_CHAR, FakeEngine

pytestmark = pytest.mark.slow

LONG = "All our lines are busy at the moment and an agent will be with you as soon as they possibly can."
SHORT = "Goodbye for now."
EIGHT = {"encoding": "linear16", "sample_rate": 8000}


@asynccontextmanager
async def client(rig: Rig, path: str = "/v1/speak", **options: Any) -> AsyncIterator[Bot]:
    """A connected client. It has its greeting."""
    async with connect(rig.url(path, **{**EIGHT, **options}), proxy=None, max_queue=None) as socket:
        bot = Bot(socket)
        try:
            await bot.event("Metadata" if path == "/v1/speak" else "Connected")
            yield bot
        finally:
            await bot.aclose()


async def say(bot: Bot, *texts: str, flush: bool = True) -> None:
    for text in texts:
        await bot.send({"type": "Speak", "text": text})
    if flush:
        await bot.send({"type": "Flush"})


def audio_in(log: list[dict[str, Any] | bytes]) -> list[bytes]:
    return [entry for entry in log if isinstance(entry, bytes)]


def kinds(log: list[dict[str, Any] | bytes]) -> list[str]:
    """The types of the messages, with "audio" for one or more binary messages in a row."""
    found: list[str] = []
    for entry in log:
        kind = "audio" if isinstance(entry, bytes) else entry["type"]
        if kind != "audio" or found[-1:] != ["audio"]:
            found.append(kind)
    return found


def assert_speaks(audio: list[bytes], text: str, codec: str = "pcm", rate_hz: int = 8000) -> None:
    """The audio is that of this text, from its first sample to its last, filled up to a whole frame."""
    heard, wanted = decoded(audio, codec), rendering([text], rate_hz)
    n_frame = rate_hz // 50
    assert len(heard) == -(-len(wanted) // n_frame) * n_frame
    assert correlation(heard, wanted) > 0.99


def heard_by(text: str, ms: float) -> str:
    """The whole words of the text that the fake engine has spoken after `ms`."""
    ends = [at for at in range(1, len(text) + 1) if at == len(text) or text[at] == " "]
    return max((text[:end] for end in ends if end * MS_PER_CHAR <= ms), key=len, default="")


# ------------------------------------------------------------------ what is heard


@pytest.mark.parametrize("path", ["/v1/speak", "/v2/speak"])
@pytest.mark.parametrize(
    ("encoding", "rate_hz"),
    [*(("linear16", rate) for rate in (8000, 16000, 24000, 32000, 44100, 48000)), ("mulaw", 8000), ("alaw", 8000)],
)
def test_every_encoding_carries_what_the_engine_spoke(path: str, encoding: str, rate_hz: int) -> None:
    async def main() -> None:
        async with serving() as rig, client(rig, path, encoding=encoding, sample_rate=rate_hz) as bot:
            await say(bot, SHORT)
            await bot.event("Flushed")
            codec = {"linear16": "pcm", "mulaw": "ulaw"}.get(encoding, encoding)
            assert all(len(part) % CODECS[codec].bytes_per_sample == 0 for part in bot.frames)
            assert_speaks(bot.frames, SHORT, codec, rate_hz)

    run(main)


def test_one_word_per_message_is_one_text() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await say(bot, *(f"{word} " for word in LONG.split()))
            await bot.event("Flushed")
            assert_speaks(bot.frames, LONG)
            assert rig.engine.spoken == [LONG]  # type: ignore[attr-defined]

    run(main)


def test_turns_follow_each_other_and_each_is_flushed() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await say(bot, "One. ")
            await say(bot, "Two. ")
            await bot.send({"type": "Flush"})
            for number in range(3):
                assert (await bot.event("Flushed"))["sequence_id"] == number
            log = [entry for _, entry in bot.log]
            assert kinds(log) == ["Metadata", "audio", "Flushed", "audio", "Flushed", "Flushed"]
            at = log.index({"type": "Flushed", "sequence_id": 0})
            assert_speaks(audio_in(log[:at]), "One.")
            assert_speaks(audio_in(log[at:]), "Two.")

    run(main)


def test_after_a_clear_comes_only_the_next_turn() -> None:
    async def main() -> None:
        async with serving(Tones(speed=20)) as rig, client(rig) as bot:
            await say(bot, LONG)
            await bot.frames_to(3)
            await bot.send({"type": "Clear"})
            await say(bot, SHORT)
            await bot.event("Flushed")
            after = bot.after("Cleared")
            assert kinds(after) == ["audio", "Flushed"]
            assert_speaks(audio_in(after), SHORT)
            assert len(decoded(bot.frames, "pcm")) < len(rendering([LONG]))

    run(main)


def test_audio_is_sent_ahead_but_not_without_end() -> None:
    async def main() -> None:
        async with serving(burst_ahead_s=2.0) as rig, client(rig) as bot:
            await say(bot, LONG)
            await until(lambda: len(b"".join(bot.frames)) >= 2 * 16_000, "two seconds of audio")
            await asyncio.sleep(0.1)
            assert len(b"".join(bot.frames)) < 2.5 * 16_000
            await bot.send({"type": "Clear"})
            await bot.event("Cleared")

    run(main)


def test_close_speaks_the_rest() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await say(bot, SHORT, flush=False)
            await bot.send({"type": "Close"})
            await say(bot, "Too late. ")
            assert await bot.gone() == (1000, "closed")
            assert_speaks(bot.frames, SHORT)

    run(main)


@pytest.mark.parametrize("path", ["/v1/speak", "/v2/speak"])
def test_a_close_frame_is_answered_at_once(path: str) -> None:
    """livekit's next turn waits for it. Its Flush and Close come before, in the middle of a turn."""

    async def main() -> None:
        async with serving(Tones(speed=1)) as rig, client(rig, path) as bot:
            await say(bot, LONG)
            await bot.frames_to(1)
            await bot.send({"type": "Flush"})
            await bot.send({"type": "Close"})
            begun_s = time.monotonic()
            await bot.socket.close()
            assert time.monotonic() - begun_s < 1.0, "the rest of the turn was sent first"
            await rig.empty()
            assert time.monotonic() - begun_s < 1.5, "the engine worked on"

    run(main)


class VoiceNoted(Tones):
    """Notes the voice and the speed of what it speaks."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.asked: list[tuple[str | None, float]] = []

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.asked.append((utterance.voice, utterance.speed))
        async for chunk in super().synthesize(utterance):
            yield chunk


def test_models_become_voices_and_speed_is_kept() -> None:
    async def main() -> None:
        engine = VoiceNoted(voice_names=("tone", "low"))
        async with serving(engine, vendors_voice_names={"aura-2-zeus-en": "low"}) as rig:
            for model in ("aura-2-thalia-en", "aura-2-zeus-en", "low"):
                async with client(rig, model=model, speed=1.25) as bot:
                    await say(bot, SHORT)
                    await bot.event("Flushed")
            async with client(rig, "/v2/speak", model="flux-alexis-en", speed=0.8) as bot:
                for speed in (None, 1.5):
                    if speed is not None:
                        await bot.send({"type": "Configure", "speed": speed})
                        assert (await bot.event("ConfigureSuccess"))["applied"] == {"speed": speed}
                    await say(bot, SHORT)
                    await bot.event("SpeechMetadata")
        assert engine.asked == [("tone", 1.25), ("low", 1.25), ("low", 1.25), ("tone", 0.8), ("tone", 1.5)]

    run(main)


# ---------------------------------------------------------------------------- Flux


def test_a_speech_from_beginning_to_end() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig, "/v2/speak") as bot:
            await say(bot, *(f" {word}" if at else word for at, word in enumerate(LONG.split())))
            await say(bot, SHORT)
            first = await bot.event("SpeechMetadata")
            second = await bot.event("SpeechMetadata")
            await bot.send({"type": "Close"})
            assert await bot.gone() == (1000, "closed")
            log = [entry for _, entry in bot.log]
            speech = ["SpeechStarted", "audio", "Flushed", "SpeechMetadata"]
            assert kinds(log) == ["Connected", *speech, *speech, "SessionMetadata"]
            at = log.index(first)
            assert_speaks(audio_in(log[:at]), LONG)
            assert_speaks(audio_in(log[at:]), SHORT)
            assert first["input_character_count"] == len(LONG)
            assert first["audio_duration_ms"] == len(b"".join(audio_in(log[:at]))) // 16
            totals = first["audio_duration_ms"] + second["audio_duration_ms"]
            assert bot.events[-1]["total_audio_duration_ms"] == totals

    run(main)


def test_an_offset_splits_the_text_exactly() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig, "/v2/speak") as bot:
            await say(bot, SHORT)
            first = await bot.event("SpeechMetadata")
            await say(bot, LONG)
            await until(lambda: len(b"".join(bot.frames)) > 5 * 16_000, "five seconds of audio")
            offset_ms = first["audio_duration_ms"] + 1700
            await bot.send({"type": "Interrupt", "playback_offset": {"type": "time_ms", "value": offset_ms}})
            told = await bot.event("SpeechInterrupted")
            assert told["audio_played_ms"] == offset_ms
            assert told["text_spoken"] == heard_by(LONG, 1700) == "All our lines are busy at"
            assert told["text_spoken"] + told["text_remaining"] == LONG
            await say(bot, SHORT)
            await bot.event("SpeechMetadata")
            after = bot.after("SpeechInterrupted")
            assert kinds(after) == ["SpeechStarted", "audio", "Flushed", "SpeechMetadata"]
            assert_speaks(audio_in(after), SHORT)
            # The speech that was cut counts as far as it was heard.
            await bot.send({"type": "Interrupt", "playback_offset": {"type": "time_ms", "value": offset_ms + 500}})
            assert (await bot.event("SpeechInterrupted"))["text_spoken"] == heard_by(SHORT, 500) == "Goodbye"

    run(main)


@pytest.mark.timed
def test_without_an_offset_our_clock_splits_the_text() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig, "/v2/speak") as bot:
            await say(bot, LONG)
            await bot.event("SpeechMetadata")
            begun_s = next(at_s for at_s, entry in bot.log if isinstance(entry, bytes))
            await asyncio.sleep(1.6)
            await bot.send({"type": "Interrupt"})
            told = await bot.event("SpeechInterrupted")
            assert abs(told["audio_played_ms"] - (time.monotonic() - begun_s) * 1000) < 100
            assert told["text_spoken"] == heard_by(LONG, told["audio_played_ms"]) != ""
            assert told["text_spoken"] + told["text_remaining"] == LONG
            await bot.send({"type": "Interrupt"})
            assert (await bot.event("Warning"))["code"] == "NO_ACTIVE_SPEECH"

    run(main)


def test_text_that_cannot_be_spoken_ends_its_speech() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig, "/v2/speak") as flux, client(rig) as speak:
            for bot in (flux, speak):
                await say(bot, " … ")
            assert (await flux.event("Warning"))["code"] == "NO_SYNTHESIZABLE_TEXT"
            assert (await flux.event("SpeechMetadata"))["audio_duration_ms"] == 0
            await speak.event("Flushed")
            assert flux.frames == speak.frames == []

    run(main)


@pytest.mark.parametrize(("path", "last"), [("/v1/speak", "Flushed"), ("/v2/speak", "SpeechMetadata")])
def test_an_engine_that_fails_ends_the_turn_and_not_the_connection(path: str, last: str) -> None:
    async def main() -> None:
        engine = FakeEngine(fail_after_chunks=2)
        async with serving(engine) as rig, client(rig, path) as bot:
            await say(bot, LONG)
            assert (await bot.event("Warning"))["description"]
            await bot.event(last)
            engine.fail_after_chunks = None
            n_before = len(bot.frames)
            await say(bot, SHORT)
            await bot.event(last)
            assert_speaks(bot.frames[n_before:], SHORT)

    run(main)


# ----------------------------------------------------------------------- bad input


@pytest.mark.parametrize("path", ["/v1/speak", "/v2/speak"])
@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"model": "stranger"}, 400, "Bad Request"),
        ({"encoding": "mp3"}, 400, "UNSUPPORTED_AUDIO_FORMAT"),
        ({"sample_rate": 12345}, 400, "UNSUPPORTED_AUDIO_FORMAT"),
        ({"call": "not%20a%20name"}, 400, "INVALID_CALL"),
    ],
)
def test_a_handshake_is_refused_in_the_vendors_form(path: str, query: dict[str, Any], status: int, code: str) -> None:
    async def main() -> None:
        async with serving() as rig:
            with pytest.raises(InvalidStatus) as refusal:
                await connect(rig.url(path, **{**EIGHT, **query}), proxy=None)
            response = refusal.value.response
            body = json.loads(response.body or b"")
            assert (response.status_code, body["err_code"]) == (status, code)
            assert response.headers["dg-error"] == body["err_msg"][:200]
            assert response.headers["dg-request-id"] == body["request_id"]
            assert response.headers["Content-Type"] == "application/json"

    run(main)


@pytest.mark.parametrize("path", ["/v1/speak", "/v2/speak"])
def test_keys(path: str) -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            url = rig.url(path, **EIGHT)
            for headers in ({}, {"Authorization": "Token wrong"}, {"Authorization": "Bearer wrong"}):
                with pytest.raises(InvalidStatus) as refusal:
                    await connect(url, additional_headers=headers, proxy=None)
                response = refusal.value.response
                assert response.status_code == 401 and response.headers["dg-error"]
                assert json.loads(response.body or b"")["err_code"] == "INVALID_AUTH"
            for scheme in ("Token", "token", "Bearer"):
                async with connect(url, additional_headers={"Authorization": f"{scheme} secret"}, proxy=None) as socket:
                    assert "request_id" in json.loads(await socket.recv())
            protocols = [Subprotocol("token"), Subprotocol("secret")]  # from a browser
            async with connect(url, subprotocols=protocols, proxy=None) as socket:
                assert "request_id" in json.loads(await socket.recv())

    run(main)


@pytest.mark.parametrize("path", ["/v1/speak", "/v2/speak"])
@pytest.mark.parametrize(
    ("message", "close_code"),
    [
        (b"audio?", 1003),
        ("{", 1003),
        ('{"type":"Sing"}', 1008),
        ('{"type":"Speak"}', 1008),
        (json.dumps({"type": "Speak", "text": "x" * 1_000_000}), 1009),
    ],
    ids=["binary", "no JSON", "unknown type", "no text", "1 MB"],
)
def test_a_bad_message_closes_with_the_vendors_code(path: str, message: str | bytes, close_code: int) -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as neighbour, client(rig, path) as bot:
            await say(neighbour, LONG)
            await bot.socket.send(message)
            code, reason = await bot.gone()
            assert code == close_code and reason
            if close_code == 1009:
                assert reason.startswith("BIG-0000" if path == "/v2/speak" else "BIG-0001")
            if path == "/v2/speak":
                assert bot.events[-1]["type"] == "Error" and reason.startswith(bot.events[-1]["code"])
            await neighbour.event("Flushed")
            assert_speaks(neighbour.frames, LONG)

    run(main)


def test_2001_characters_close_and_2000_are_spoken() -> None:
    async def main() -> None:
        async with serving(Tones(ms_per_char=2)) as rig, client(rig) as bot:
            await say(bot, "word " * 400)
            await bot.event("Flushed")
            assert sum(len(text.split()) for text in rig.engine.spoken) == 400  # type: ignore[attr-defined]
            await say(bot, "x" * 2001)
            code, reason = await bot.gone()
            assert code == 1009 and (reason or "").startswith("BIG-0001")

    run(main)


# ------------------------------------------------------------------ a carrier's call


@asynccontextmanager
async def on_the_telephone(path: str) -> AsyncIterator[tuple[Rig, Bot, Any]]:
    async with (
        serving() as rig,
        calling(rig.url("/media/twilio"), "CA1") as peer,
        client(rig, path, call="CA1") as bot,
    ):
        await peer.start()
        yield rig, bot, peer


@pytest.mark.timed
@pytest.mark.parametrize(("path", "last"), [("/v1/speak", "Flushed"), ("/v2/speak", "SpeechMetadata")])
def test_a_joined_call_is_heard_at_the_carrier_and_flushed_when_it_was_played(path: str, last: str) -> None:
    async def main() -> None:
        async with on_the_telephone(path) as (_, bot, peer):
            await say(bot, SHORT)
            told = await bot.event(last)
            assert correlation(decoded(peer.played), rendering([SHORT])) > 0.99
            n_ms = round(len(SHORT) * MS_PER_CHAR)
            assert len(peer.played) * 20 >= n_ms, "it was told before it was played"
            if path == "/v2/speak":
                assert told["audio_duration_ms"] == n_ms
            assert b"".join(bot.frames) == bytes(n_ms * 16), "silence of the same length"

    run(main)


@pytest.mark.timed
def test_an_interrupted_joined_call_tells_what_the_caller_heard() -> None:
    async def main() -> None:
        async with on_the_telephone("/v2/speak") as (_, bot, peer):
            await say(bot, LONG)
            # The middle of the word "moment". The client's own offset is wrong, as its socket has no audio.
            wanted = "All our lines are busy at the"
            await peer.hears(round((len(wanted) + 4) * MS_PER_CHAR / 20))
            await bot.send({"type": "Interrupt", "playback_offset": {"type": "time_ms", "value": 5}})
            told = await bot.event("SpeechInterrupted")
            assert told["text_spoken"] == wanted
            assert told["text_remaining"] == LONG.removeprefix(wanted)
            n_heard = len(peer.played)
            assert abs(told["audio_played_ms"] - n_heard * 20) <= 100
            await until(lambda: peer.n_clears == 1, "a clear at the carrier")
            await say(bot, SHORT)
            await bot.event("SpeechMetadata")
            assert correlation(decoded(peer.played[-len(SHORT) * 3 :]), rendering([SHORT])) > 0.99
            assert kinds(bot.after("SpeechInterrupted")) == ["SpeechStarted", "audio", "Flushed", "SpeechMetadata"]
            assert set(b"".join(bot.frames)) <= {0}

    run(main)


@pytest.mark.timed
def test_a_clear_in_a_joined_call_reaches_the_carrier() -> None:
    async def main() -> None:
        async with on_the_telephone("/v1/speak") as (_, bot, peer):
            await say(bot, LONG)
            await peer.hears(20)
            await bot.send({"type": "Clear"})
            await bot.event("Cleared")
            await until(lambda: peer.n_clears == 1, "a clear at the carrier")
            n_heard = len(peer.played)
            await say(bot, SHORT)
            await bot.event("Flushed")
            assert correlation(decoded(peer.played[n_heard:]), rendering([SHORT])) > 0.99
            assert kinds(bot.after("Cleared")) == ["audio", "Flushed"]
            assert set(b"".join(bot.frames)) <= {0}

    run(main)


@pytest.mark.timed
def test_a_hang_up_closes_the_bots_socket() -> None:
    async def main() -> None:
        async with on_the_telephone("/v2/speak") as (_, bot, peer):
            await say(bot, LONG)
            await peer.hears(10)
            await peer.hang_up()
            assert (await bot.gone())[0] == 1000
            assert bot.events[-3]["type"] == "SpeechInterrupted"

    run(main)
