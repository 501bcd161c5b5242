"""`/tts/websocket` against a plain client: contexts, flushes, cancels, word times and formats, judged by the audio."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import numpy as np
import pytest
from rig import TIMEOUT_S, Rig, Tones, correlation, decoded, rendering, run, serving, until
from twilio_peer import calling
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from telephony_tts.audio.g711 import decode_alaw, decode_ulaw
from telephony_tts.engines.api import Chunk, Pcm, Utterance
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow

PATH = "/tts/websocket"
FIRST, SECOND = "Your parcel left on Tuesday.", "It arrives today."
LONG = " ".join(f"This is sentence {n} of a long story." for n in ("one", "two", "three", "four", "five", "six"))
MULAW = {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000}
PCM_8 = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000}


class ContextClient:
    """A client of the vendor's protocol. `messages` is all that came, in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: list[dict[str, Any]] = []
        self.came_s: list[float] = []
        self.closed: int | None = None
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for data in self.socket:
                self.messages.append(json.loads(data))
                self.came_s.append(time.monotonic())
        except ConnectionClosed:
            pass
        self.closed = self.socket.close_code

    async def aclose(self) -> None:
        await self.socket.close()
        await self._reader

    async def push(self, context: str, transcript: str, *, more: bool = True, **fields: Any) -> None:
        message = {
            "model_id": "sonic-3", "voice": {"mode": "id", "id": "tone"}, "output_format": PCM_8, "language": "en",
            "context_id": context, "transcript": transcript, "continue": more, **fields,
        }  # fmt: skip
        await self.send(message)

    async def send(self, message: Any) -> None:
        await self.socket.send(message if isinstance(message, str | bytes) else json.dumps(message))

    def of(self, context: str | None, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.messages if each["context_id"] == context and each["type"] == kind]

    async def one(self, context: str | None, kind: str, n: int = 1) -> dict[str, Any]:
        """The `n`th message of a kind for a context, once it has come."""
        await until(lambda: len(self.of(context, kind)) >= n or self.closed, f"{kind} of {context}")
        return self.of(context, kind)[n - 1]

    def bytes_of(self, context: str) -> bytes:
        return b"".join(base64.b64decode(each["data"]) for each in self.of(context, "chunk"))

    def pcm_of(self, context: str) -> Pcm:
        return decoded([self.bytes_of(context)], "pcm")

    def words_of(self, context: str) -> list[tuple[str, float, float]]:
        times = [each["word_timestamps"] for each in self.of(context, "timestamps")]
        return [word for each in times for word in zip(each["words"], each["start"], each["end"], strict=True)]


@asynccontextmanager
async def client(
    rig: Rig, headers: dict[str, str] | None = None, path: str = PATH, **options: Any
) -> AsyncIterator[ContextClient]:
    url = rig.url(path, **options)
    async with connect(url, compression=None, additional_headers=headers, proxy=None, max_queue=None) as socket:
        bot = ContextClient(socket)
        try:
            yield bot
        finally:
            await bot.aclose()


def assert_spoken(pcm: Pcm, texts: list[str], rate_hz: int = 8000) -> None:
    """The audio is that of the texts, from its first sample to its last, and nothing else."""
    wanted = rendering(texts, rate_hz)
    assert correlation(pcm, wanted) > 0.98
    frame = rate_hz // 50
    assert len(wanted) <= len(pcm) <= len(wanted) + 2 * frame * len(texts)


# ------------------------------------------------------------------- a context


def test_a_context_is_spoken_and_ends_once() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig, cartesia_version="2025-04-16") as bot:
            await bot.push("t1", f"{FIRST} ")
            await bot.push("t1", SECOND)
            await bot.push("t1", "", more=False)
            done = await bot.one("t1", "done")
            assert done == {"type": "done", "context_id": "t1", "status_code": 206, "done": True}
            assert_spoken(bot.pcm_of("t1"), [FIRST, SECOND])
            assert rig.engine.spoken == [FIRST, SECOND]  # type: ignore[attr-defined]
            assert bot.messages[-1] == done and {each["type"] for each in bot.messages} == {"chunk", "done"}
            assert all((each["status_code"], each["done"]) == (206, False) for each in bot.of("t1", "chunk"))

    run(main)


def test_a_message_without_continue_is_a_whole_context() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            message = {"context_id": "t1", "transcript": FIRST, "voice": {"mode": "id", "id": "tone"},
                       "output_format": PCM_8, "model_id": "sonic-3", "a_field_of_tomorrow": [1]}  # fmt: skip
            await bot.send(json.dumps(message, indent=2))
            await bot.one("t1", "done")
            assert_spoken(bot.pcm_of("t1"), [FIRST])

    run(main)


def test_sentences_pushed_without_spaces_are_not_glued_together() -> None:
    """As pipecat sends them: each message is a sentence that is to be spoken at once."""

    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            for text in (FIRST, SECOND):
                await bot.push("t1", text, max_buffer_delay_ms=0, add_timestamps=True)
            await bot.push("t1", "", more=False, max_buffer_delay_ms=0, add_timestamps=True)
            await bot.one("t1", "done")
            assert rig.engine.spoken == [FIRST, SECOND]  # type: ignore[attr-defined]
            assert [word for word, _, _ in bot.words_of("t1")] == f"{FIRST} {SECOND}".split()

    run(main)


def test_tokens_are_joined_as_they_were_sent() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            for text in ("Your", " par", "cel", " ", "left", " on Tuesday", "."):
                await bot.push("t1", text)
            await bot.push("t1", " ", more=False)
            await bot.one("t1", "done")
            assert rig.engine.spoken == [FIRST]  # type: ignore[attr-defined]
            assert_spoken(bot.pcm_of("t1"), [FIRST])

    run(main)


def test_an_empty_context_ends_at_once() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("t1", " ")
            await bot.push("t1", "", more=False)
            assert await bot.one("t1", "done") == bot.messages[0]

    run(main)


# --------------------------------------------------------------------- words


def test_word_times_are_seconds_from_the_contexts_start() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("t1", f"{FIRST} ", add_timestamps=True, flush=True)
            await bot.push("t1", SECOND, more=False, add_timestamps=True)
            await bot.one("t1", "done")
            words = bot.words_of("t1")
            assert [word for word, _, _ in words] == f"{FIRST} {SECOND}".split()
            pcm = bot.pcm_of("t1")
            # A character of the fake engine takes 60 ms. The second turn begins where the audio of the first ends.
            for text, begin_s in ((FIRST, 0.0), (SECOND, words[len(FIRST.split())][1])):
                for word, start_s, end_s in words:
                    if word in text.split():
                        at = text.index(word)
                        assert start_s - begin_s == pytest.approx(0.06 * at, abs=0.05), word
                        assert end_s - begin_s == pytest.approx(0.06 * (at + len(word)), abs=0.1), word
            second_s = words[len(FIRST.split())][1]
            assert correlation(pcm[round(second_s * 8000) :], rendering([SECOND])) > 0.98
            assert words[-1][2] <= len(pcm) / 8000 + 0.001

    run(main)


def test_words_come_with_the_audio_that_speaks_them() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("t1", LONG, more=False, add_timestamps=True)
            await bot.one("t1", "done")
            heard_s, said_s = 0.0, 0.0
            for each in bot.messages:
                if each["type"] == "chunk":
                    heard_s += len(base64.b64decode(each["data"])) / 16000
                elif each["type"] == "timestamps":
                    assert each["word_timestamps"]["start"][0] >= said_s - 0.001
                    said_s = each["word_timestamps"]["end"][-1]
                    assert said_s <= heard_s + 0.001
            assert len(bot.of("t1", "timestamps")) > 3

    run(main)


def test_a_context_that_asked_for_no_words_gets_none() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("t1", FIRST, more=False, add_timestamps=True)
            await bot.push("t2", SECOND, more=False)
            await bot.one("t2", "done")
            assert not bot.of("t2", "timestamps") and len(bot.words_of("t1")) == len(FIRST.split())

    run(main)


# --------------------------------------------------------------------- flush


def test_each_flush_is_answered_behind_its_audio() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("t1", FIRST)
            await bot.push("t1", "", flush=True)
            await bot.push("t1", SECOND, flush=True)
            await bot.push("t1", "", flush=True)
            await bot.push("t1", "", more=False)
            await bot.one("t1", "done")
            flushes = bot.of("t1", "flush_done")
            assert [each["flush_id"] for each in flushes] == [1, 2, 3]
            assert flushes[0] == {"type": "flush_done", "context_id": "t1", "status_code": 206, "done": False,
                                  "flush_done": True, "flush_id": 1}  # fmt: skip
            numbers = [each.get("flush_id") for each in bot.messages if each["type"] in ("chunk", "flush_done")]
            assert numbers == sorted(numbers)
            for number, text in ((1, FIRST), (2, SECOND)):
                audio = [base64.b64decode(c["data"]) for c in bot.of("t1", "chunk") if c["flush_id"] == number]
                assert_spoken(decoded(audio, "pcm"), [text])

    run(main)


def test_text_after_a_flush_and_a_pause_continues_the_context() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("t1", FIRST, flush=True)
            await bot.one("t1", "flush_done")
            await bot.push("t1", SECOND, more=False)
            await bot.one("t1", "done")
            assert_spoken(bot.pcm_of("t1"), [FIRST, SECOND])

    run(main)


# -------------------------------------------------------------------- cancel


def test_nothing_of_a_cancelled_context_follows_and_the_next_is_heard_alone() -> None:
    async def main() -> None:
        async with serving(Tones(speed=2.0), burst_ahead_s=0.5) as rig, client(rig) as bot:
            await bot.push("t1", LONG, add_timestamps=True)
            await until(lambda: len(bot.bytes_of("t1")) > 8000, "audio")
            await bot.send({"context_id": "t1", "cancel": True})
            await bot.push("t2", FIRST, more=False)
            await bot.push("t1", "late text. ")  # an LLM's last token
            await bot.send({"context_id": "t1", "cancel": True})
            await bot.send({"context_id": "t3", "cancel": True})
            await bot.one("t2", "done")
            first = next(n for n, each in enumerate(bot.messages) if each["context_id"] == "t2")
            assert {each["context_id"] for each in bot.messages[first:]} == {"t2"}
            assert {each["type"] for each in bot.messages if each["context_id"] == "t1"} == {"chunk", "timestamps"}
            assert_spoken(bot.pcm_of("t2"), [FIRST])
            assert "late text." not in rig.engine.spoken  # type: ignore[attr-defined]

    run(main)


def test_a_cancel_stops_all_pieces_of_its_context() -> None:
    """Also those behind a flush, of which no frame may slip out while the first one is cleared."""

    async def main() -> None:
        async with serving(Tones(speed=2.0), burst_ahead_s=0.5) as rig, client(rig) as bot:
            for n in range(3):
                await bot.push("t1", f"{LONG} {n}.", flush=True)
            await until(lambda: len(bot.bytes_of("t1")) > 8000, "audio")
            await bot.send({"context_id": "t1", "cancel": True})
            await rig.empty_engine()
            n_messages = len(bot.messages)
            await bot.push("t2", FIRST, more=False)
            await bot.one("t2", "done")
            assert {each["context_id"] for each in bot.messages[n_messages:]} == {"t2"}
            assert not bot.of("t1", "flush_done")

    run(main)


# ------------------------------------------------------------- several contexts


def test_contexts_are_spoken_in_the_order_of_their_first_text() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("a", FIRST)
            await bot.push("b", SECOND)
            await bot.one("b", "chunk")  # `a` is open, but all its text has been spoken
            await bot.push("a", "One more thing.", more=False, add_timestamps=True)
            await bot.push("b", "", more=False)
            await bot.one("a", "done")
            await bot.one("b", "done")
            assert_spoken(bot.pcm_of("a"), [FIRST, "One more thing."])
            assert_spoken(bot.pcm_of("b"), [SECOND])
            assert [len(bot.of(name, "done")) for name in "ab"] == [1, 1]

    run(main)


def test_a_context_that_gave_way_while_its_audio_is_still_being_sent_loses_no_text() -> None:
    async def main() -> None:
        async with serving(burst_ahead_s=0.3) as rig, client(rig) as bot:
            await bot.push("a", FIRST, max_buffer_delay_ms=0)
            await bot.one("a", "chunk")
            await rig.empty_engine()  # all of it has been synthesised, and most has not been sent
            await bot.push("b", SECOND, more=False)
            await bot.push("a", "One more thing.", more=False)
            await bot.one("a", "done")
            await bot.one("b", "done")
            assert not [each for each in bot.messages if each["type"] == "error"]
            assert_spoken(bot.pcm_of("a"), [FIRST, "One more thing."])
            assert_spoken(bot.pcm_of("b"), [SECOND])

    run(main)


def test_voice_and_speed_belong_to_their_context() -> None:
    async def main() -> None:
        engine = Tones(voice_names=("tone", "other"))
        heard: list[tuple[str | None, float, str]] = []
        speak = engine.synthesize

        def note(utterance: Any) -> Any:
            heard.append((utterance.voice, utterance.speed, utterance.text))
            return speak(utterance)

        engine.synthesize = note  # type: ignore[method-assign]
        async with serving(engine) as rig, client(rig) as bot:
            await bot.push("a", "A.", more=False, voice={"mode": "id", "id": "other"}, generation_config={"speed": 1.5})
            await bot.push("b", "B.", more=False, voice={"mode": "id", "id": "f786b574-daa5-4673-aa0c-cbe3e8534c02"})
            await bot.push("c", "C.", more=False, voice={"mode": "embedding", "embedding": [0.1]}, language=None)
            await bot.one("c", "done")
            assert heard == [("other", 1.5, "A."), ("tone", 1.0, "B."), ("tone", 1.0, "C.")]

    run(main)


# -------------------------------------------------------------------- formats


@pytest.mark.parametrize(
    ("encoding", "rate_hz"),
    [("pcm_s16le", rate) for rate in (16000, 22050, 24000, 44100, 48000)]
    + [("pcm_mulaw", 8000), ("pcm_alaw", 8000), ("pcm_f32le", 44100)],
)
def test_the_audio_has_the_format_of_the_message(encoding: str, rate_hz: int) -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            wanted = {"container": "raw", "encoding": encoding, "sample_rate": rate_hz}
            await bot.push("t1", FIRST, more=False, output_format=wanted, add_timestamps=True)
            await bot.one("t1", "done")
            data = bot.bytes_of("t1")
            decode = {
                "pcm_s16le": lambda: np.frombuffer(data, "<i2").astype(np.int16),
                "pcm_f32le": lambda: (np.frombuffer(data, "<f4") * 32768).astype(np.int16),
                "pcm_mulaw": lambda: decode_ulaw(data),
                "pcm_alaw": lambda: decode_alaw(data),
            }
            pcm: Pcm = decode[encoding]()
            assert_spoken(pcm, [FIRST], rate_hz)
            word, start_s, _ = bot.words_of("t1")[-1]
            assert (word, start_s) == ("Tuesday.", pytest.approx(0.06 * FIRST.index("Tuesday"), abs=0.05))

    run(main)


def test_another_format_is_refused_while_a_context_speaks_and_taken_when_none_does() -> None:
    async def main() -> None:
        async with serving(burst_ahead_s=0.3) as rig, client(rig) as bot:
            await bot.push("t1", LONG)
            await bot.one("t1", "chunk")
            await bot.push("t2", FIRST, more=False, output_format=MULAW)
            error = await bot.one("t2", "error")
            assert (error["status_code"], error["done"]) == (400, True)
            assert error["message"] == (
                "this connection carries pcm_s16le at 8000 Hz while a context is spoken, not pcm_mulaw at 8000 Hz: "
                "use the same output_format in all contexts, or a connection for each format"
            )
            await bot.send({"context_id": "t1", "cancel": True})
            await bot.push("t3", FIRST, more=False, output_format=MULAW)
            await bot.one("t3", "done")
            assert_spoken(decode_ulaw(bot.bytes_of("t3")), [FIRST])
            # The audio of t3 was sent ahead: to the listener it is still being played.
            await bot.push("t4", SECOND, more=False, output_format=PCM_8)
            await bot.one("t4", "done")
            assert_spoken(bot.pcm_of("t4"), [SECOND])
            assert rig.engine.spoken.count(FIRST) == 1  # type: ignore[attr-defined]

    run(main)


# --------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"voice": {"mode": "id", "id": "stranger"}}, 404, "stranger"),
        ({"voice": 7}, 400, '"voice" must be an object'),
        ({"output_format": {**MULAW, "sample_rate": 16000}}, 400, "one of 8000 with pcm_mulaw, got 16000"),
        ({"output_format": {**PCM_8, "sample_rate": 11025}}, 400, "got 11025"),
        ({"output_format": {**PCM_8, "encoding": "opus"}}, 400, '"encoding" must be one of'),
        ({"output_format": {**PCM_8, "container": "wav"}}, 400, '"container" must be one of raw'),
        ({"transcript": 7}, 400, '"transcript" must be a string'),
        ({"transcript": "x" * 50_001}, 400, "the limit is 50000"),
        ({"generation_config": {"speed": 9}}, 400, '"speed" must be a number from 0.5 to 2.0'),
    ],
)
def test_a_context_that_cannot_be_served_ends_with_one_error(fields: dict[str, Any], status: int, word: str) -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            for _ in range(3):
                await bot.push("t1", **{"transcript": FIRST, **fields})
            await bot.push("t2", SECOND, more=False)
            await bot.one("t2", "done")
            error = bot.of("t1", "error")[0]
            assert (error["status_code"], error["done"]) == (status, True)
            assert word in error["message"] and error["error"] == error["message"]
            assert not bot.of("t1", "chunk") and not bot.of("t1", "done")
            assert_spoken(bot.pcm_of("t2"), [SECOND])

    run(main)


def test_a_field_may_not_change_within_a_context() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("t1", FIRST)
            await bot.push("t1", SECOND, language="zh")
            error = await bot.one("t1", "error")
            assert error["message"] == '"language" may not change within a context; use a new context_id'
            await bot.push("t2", SECOND, more=False)
            await bot.one("t2", "done")
            assert SECOND not in rig.engine.spoken[:-1]  # type: ignore[attr-defined]

    run(main)


def test_text_after_the_end_of_a_context_gets_one_error() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("t1", FIRST, more=False)
            await bot.one("t1", "done")
            for _ in range(3):
                await bot.push("t1", "Late. ")
            await bot.push("t1", "", more=False)
            await bot.push("t2", SECOND, more=False)
            await bot.one("t2", "done")
            assert [each["message"] for each in bot.of("t1", "error")] == [
                "the context is over; use a new context_id"
            ]
            assert rig.engine.spoken == [FIRST, SECOND]  # type: ignore[attr-defined]

    run(main)


def test_an_engine_that_fails_ends_the_context_with_an_error_and_the_next_is_spoken() -> None:
    async def main() -> None:
        engine = Tones(fail_after_chunks=3)
        async with serving(engine) as rig, client(rig) as bot:
            await bot.push("t1", LONG)
            error = await bot.one("t1", "error")
            assert (error["status_code"], error["error_code"]) == (503, "engine_failed")
            engine.fail_after_chunks = None
            await bot.push("t2", SECOND, more=False)
            await bot.one("t2", "done")
            assert_spoken(bot.pcm_of("t2"), [SECOND])
            assert not bot.of("t1", "done")

    run(main)


def test_messages_that_are_no_messages_leave_the_others_alone() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.push("t1", FIRST)
            junk: list[Any] = ["{", "[]", "7", b"\x00\x01", {"context_id": 7}, {"context_id": "x" * 999}, {"cancel": 3}]
            for message in junk:
                await bot.send(message)
            await bot.push("t1", "", more=False)
            await bot.one("t1", "done")
            assert_spoken(bot.pcm_of("t1"), [FIRST])
            errors = [each for each in bot.messages if each["type"] == "error"]
            assert len(errors) == len(junk) and all(each["status_code"] == 400 for each in errors)
            assert bot.closed is None

    run(main)


def test_a_thousand_contexts_are_refused_beyond_the_limit_and_leave_nothing_behind() -> None:
    """tests/wire/test_cartesia.py has ten thousand, without a socket."""

    class Held(Tones):
        """Speaks when it may: on a slow machine contexts would end before the last one is pushed, and make room."""

        def __init__(self) -> None:
            super().__init__()
            self.may_speak = asyncio.Event()

        async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
            await self.may_speak.wait()
            async with aclosing(super().synthesize(utterance)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def main() -> None:
        engine = Held()
        async with serving(engine) as rig, client(rig) as bot:
            for n in range(1_000):
                await bot.push(f"c{n}", "Hello.")
            await bot.push("c999", "", more=False)
            await until(lambda: bot.of("c999", "error") or bot.of("c999", "done"), "the last one's end", 30)
            errors = [each for each in bot.messages if each["type"] == "error"]
            assert len(errors) == 1_000 - 32
            assert all(each["status_code"] == 429 and "32 turns are waiting" in each["message"] for each in errors)
            for n in range(1_000):
                await bot.send({"context_id": f"c{n}", "cancel": True})
            engine.may_speak.set()
            await bot.push("last", FIRST, more=False)
            await until(lambda: bot.of("last", "done"), "the next context's end", 30)
            assert_spoken(bot.pcm_of("last"), [FIRST])
            terminals = [each["context_id"] for each in bot.messages if each["type"] in ("done", "error")]
            assert len(terminals) == len(set(terminals))

    run(main, within_s=90)


# ----------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        ({"X-API-Key": "secret"}, {}),
        ({"Authorization": "Bearer secret"}, {}),
        ({}, {"api_key": "secret", "cartesia_version": "2025-04-16"}),
    ],
)
def test_the_key_may_be_where_clients_put_it(headers: dict[str, str], options: dict[str, str]) -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            with pytest.raises(InvalidStatus) as refused:
                async with client(rig, {"X-API-Key": "wrong"}):
                    pass
            assert refused.value.response.status_code == 401
            assert json.loads(refused.value.response.body)["error_code"] == "invalid_auth"
            async with client(rig, headers, **options) as bot:
                assert bot.socket.response is not None and bot.socket.response.headers["X-Request-Id"]
                await bot.push("t1", FIRST, more=False)
                await bot.one("t1", "done")

    run(main)


# ------------------------------------------------------------- a joined call


@pytest.mark.parametrize("address", [{"call": "CA1"}, {"path": f"/calls/CA1{PATH}"}])
def test_a_bot_that_joins_a_call_is_heard_there_and_gets_its_words_with_silence(address: dict[str, str]) -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone, client(rig, **address) as bot:
            await phone.start()
            await bot.push("t1", f"{FIRST} ", add_timestamps=True, output_format=MULAW)
            await bot.push("t1", SECOND, more=False, add_timestamps=True, output_format=MULAW)
            await bot.one("t1", "done")
            assert correlation(decoded(phone.played), rendering([FIRST, SECOND])) > 0.98
            silence = bot.bytes_of("t1")
            assert set(silence) == {0xFF} and len(silence) == pytest.approx(rendering([FIRST, SECOND]).size, rel=0.05)
            words = bot.words_of("t1")
            assert [word for word, _, _ in words] == f"{FIRST} {SECOND}".split()
            assert words[4][1] == pytest.approx(0.06 * FIRST.index("Tuesday"), abs=0.05)
            assert words[-1][1] == pytest.approx(0.06 * (len(FIRST) + SECOND.index("today")), abs=0.2)
            await phone.hang_up()

    run(main)


def test_a_cancel_empties_the_phones_buffer_in_a_joined_call() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA2") as phone, client(rig, call="CA2") as bot:
            await phone.start()
            await bot.push("t1", LONG)
            await phone.hears(20)
            await bot.send({"context_id": "t1", "cancel": True})
            await until(lambda: phone.n_clears == 1, "the clear")
            await bot.push("t2", SECOND, more=False)
            await bot.one("t2", "done")
            wanted = rendering([SECOND])
            assert correlation(decoded(phone.played[-(len(wanted) // 160) :]), wanted) > 0.98
            contexts = [each["context_id"] for each in bot.messages]
            assert "t1" not in contexts[contexts.index("t2") :]
            assert {each["type"] for each in bot.messages if each["context_id"] == "t1"} == {"chunk"}
            await phone.hang_up()

    run(main, within_s=TIMEOUT_S * 4)


class Refusing(Tones):
    """Cannot speak one text."""

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        if utterance.text == "This one is broken.":
            await asyncio.sleep(0.1)  # the other pieces have come meanwhile
            raise EngineError("it broke")
        async for chunk in super().synthesize(utterance):
            yield chunk


def test_nothing_of_a_context_that_failed_is_heard_in_a_joined_call() -> None:
    """Pinned: its other pieces were spoken, and the next context waited behind them."""

    async def main() -> None:
        async with serving(Refusing()) as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            async with client(rig, call="CA1") as bot:
                await bot.push("t1", "This one is broken.", flush=True)
                await bot.push("t1", LONG, flush=True)
                await bot.push("t1", LONG, more=False)
                await bot.one("t1", "error")
                await bot.push("t2", SECOND, more=False)
                await bot.one("t2", "done")
                assert_spoken(decoded(phone.played), [SECOND])
                assert [each["type"] for each in bot.messages if each["context_id"] == "t1"] == ["error"]
            await phone.hang_up()

    run(main)


def test_contexts_of_a_joined_call_have_silence_in_their_own_formats() -> None:
    """Pinned: the second context changed the format of the first one's silence."""

    async def main() -> None:
        wide = {"container": "raw", "encoding": "pcm_f32le", "sample_rate": 24000}
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone, client(rig, call="CA1") as bot:
            await phone.start()
            await bot.push("t1", FIRST, more=False, output_format=MULAW)
            await bot.one("t1", "chunk")
            await bot.push("t2", SECOND, more=False, output_format=wide, add_timestamps=True)
            await bot.one("t2", "done")
            for context, text, sample, rate_hz in (("t1", FIRST, b"\xff", 8000), ("t2", SECOND, bytes(4), 24000)):
                silence = bot.bytes_of(context)
                assert silence == sample * (len(silence) // len(sample)), context
                assert len(silence) // len(sample) == pytest.approx(rendering([text], rate_hz).size, rel=0.05), context
            assert bot.words_of("t2")[-1][2] == pytest.approx(0.06 * len(SECOND), abs=0.2)
            await phone.hang_up()

    run(main)
