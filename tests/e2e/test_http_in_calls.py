"""HTTP requests that join a call: the caller hears the speech, and the response is silence of the same length."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import socket
import time
from typing import Any

import numpy as np
import pytest
from http_peer import Answer, ask, ask_json, http_peer, request
from log_lines import lines
from rig import correlation, decoded, rendering, run, serving, speech_settings, until
from test_voice_barge_in import frames_of, voice
from twilio_peer import TwilioPeer, calling
from websockets.asyncio.client import connect

from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.session.settings import BargeInSettings, CallLimits
from telephony_tts.transport.settings import ServerSettings

pytestmark = pytest.mark.timed

TEXT = "Hello there, my friend."
LONG = "All our lines are busy at the moment and an agent will be with you as soon as they possibly can."
CHAR_MS = 60
"""What the engine speaks of a character."""


def openai(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tts-1", "voice": "alloy", "input": text, "response_format": "pcm", **more}


WAYS: dict[str, tuple[str, Any, int, int]] = {
    "openai": ("/v1/audio/speech", openai, 24_000, 0),
    "tts": ("/tts/stream", lambda text: {"text": text, "sample_rate": 8000, "format": "wav"}, 8_000, 44),
    "vapi": ("/vapi/voice", lambda text: {"message": {"type": "voice-request", "text": text, "sampleRate": 16_000}},
             16_000, 0),
    "jambonz": ("/jambonz/tts", lambda text: {"text": text, "voice": "default"}, 8_000, 0),
}  # fmt: skip
"""The path, its body, the rate of its response, and the bytes before the samples."""


def assert_heard(phone: TwilioPeer, texts: list[str], since: int = 0) -> None:
    heard, wanted = decoded(phone.played[since:]), rendering(texts)
    assert correlation(heard, wanted) > 0.98
    assert 0 <= len(heard) - len(wanted) < 320 * len(texts)


async def played_to_its_end(phone: TwilioPeer, texts: list[str], since: int = 0) -> None:
    await phone.hears(since + len(rendering(texts)) // 160)


@pytest.mark.parametrize("address", ["{path}?call=CA1", "/calls/CA1{path}"])
@pytest.mark.parametrize("way", WAYS)
def test_the_caller_hears_the_speech_and_the_client_gets_silence(way: str, address: str) -> None:
    path, body, rate_hz, n_head = WAYS[way]

    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            begun_s = time.monotonic()
            got = await ask_json(rig.port, address.format(path=path), body(TEXT))
            took_s = time.monotonic() - begun_s
            assert got.status == 200 and got.is_whole
            assert got.body[n_head:] == bytes(2 * len(TEXT) * CHAR_MS * rate_hz // 1000)
            assert took_s > len(TEXT) * CHAR_MS / 1000 - 0.5, "the silence goes as the speech goes"
            await played_to_its_end(phone, [TEXT])
            assert_heard(phone, [TEXT])
            assert rig.server.registry.n_requests == 0, "the request is a turn of the call, and no call of its own"

    run(main)


def test_a_query_of_tts_stream_in_a_call() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            got = await ask(rig.port, "GET", "/tts/stream?text=Hello.&format=ulaw&call=CA1")
            assert got.body == b"\xff" * (len("Hello.") * CHAR_MS * 8)
            await played_to_its_end(phone, ["Hello."])
            assert_heard(phone, ["Hello."])

    run(main)


@pytest.mark.parametrize("format", ["mp3", "opus"])
def test_the_silence_has_the_format_that_was_asked_for(format: str) -> None:
    av = pytest.importorskip("av")

    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            got = await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT, response_format=format))
            with av.open(io.BytesIO(got.body)) as file:
                pcm = np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])
                rate_hz = file.streams.audio[0].codec_context.sample_rate
            assert abs(len(pcm) / rate_hz - len(TEXT) * CHAR_MS / 1000) < 0.15
            assert np.abs(pcm.astype(float)).max() < (1 if pcm.dtype.kind == "i" else 1e-4)

    run(main)


def test_sentence_after_sentence_has_no_gap() -> None:
    """As pipecat and livekit ask: the next request comes when the response to the one before has ended."""
    sentences = ["This is the first one.", "Here is another.", "And the last of them."]

    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            for sentence in sentences:
                assert (await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(sentence))).status == 200
            await played_to_its_end(phone, sentences)
            assert_heard(phone, sentences)
            late_s = [at - phone.came_s[0] - n * 0.02 for n, at in enumerate(phone.came_s)]
            assert max(late_s) <= 0.01, "a player that begins with the first frame never waits for one"

    run(main)


def test_requests_at_the_same_time_are_spoken_in_their_order() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            first = asyncio.create_task(ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT)))
            await until(lambda: rig.engine.spoken == [TEXT], "the first request")  # type: ignore[attr-defined]
            second = asyncio.create_task(ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai("And me.")))
            for answer, text in ((await first, TEXT), (await second, "And me.")):
                assert len(answer.body) == 2 * len(text) * CHAR_MS * 24
            await played_to_its_end(phone, [TEXT, "And me."])
            assert_heard(phone, [TEXT, "And me."])

    run(main)


@pytest.mark.parametrize("ends", ["close", "reset"])
def test_a_client_that_goes_away_interrupts_its_turn(ends: str) -> None:
    async def main() -> None:
        engine = FakeEngine(speed=3.0)
        async with serving(engine) as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            async with http_peer(rig.port) as peer:
                body = json.dumps(openai(LONG)).encode()
                await peer.send("POST", "/calls/CA1/v1/audio/speech", body, Content_Type="application/json")
                assert (await peer.head()).status == 200
                await phone.hears(20)
                if ends == "reset":
                    peer.reset()
            await until(lambda: phone.n_clears == 1, "the clear")
            await until(lambda: engine.n_live == 0, "the engine is free")
            n_heard = len(phone.played)
            assert n_heard < 60
            (call,) = rig.server.registry.calls()
            assert not call.over and not call.session.turns
            assert (await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT))).status == 200
            await played_to_its_end(phone, [TEXT], n_heard)
            assert_heard(phone, [TEXT], len(phone.played) - len(rendering([TEXT])) // 160)

    run(main)


@pytest.mark.parametrize("ends", ["close", "reset"])
def test_a_request_whose_client_has_left_is_not_begun(ends: str) -> None:
    """The event loop was late, and finds a request whose client has closed its connection already."""

    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            body = json.dumps(openai(LONG)).encode()
            sent = request("POST", "/calls/CA1/v1/audio/speech", body, Content_Type="application/json")
            async with http_peer(rig.port) as peer:
                # The connection is there, and a first answer shows that it is served.
                await peer.send("POST", "/calls/CA1/v1/audio/speech", b"{}", Content_Type="application/json")
                assert (await peer.answer()).status == 400
                with socket.socket(fileno=os.dup(peer.writer.get_extra_info("socket").fileno())) as sock:
                    sock.send(sent)  # the server's loop, which is this one, does not run meanwhile
                    peer.reset() if ends == "reset" else sock.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(0.4)
            assert not phone.played and rig.engine.spoken == []  # type: ignore[attr-defined]
            (call,) = rig.server.registry.calls()
            assert not call.over and not call.session.turns
            assert (await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT))).status == 200
            await played_to_its_end(phone, [TEXT])
            assert_heard(phone, [TEXT])

    run(main)


def test_a_client_that_reads_nothing_does_not_stop_the_speech() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            async with http_peer(rig.port, receive_buffer=2048) as peer:
                body = json.dumps(openai(LONG, response_format="wav")).encode()
                await peer.send("POST", "/calls/CA1/v1/audio/speech", body, Content_Type="application/json")
                await played_to_its_end(phone, [LONG])
                assert_heard(phone, [LONG])
                answer = await peer.answer()
                assert len(answer.body) == 44 + 2 * len(LONG) * CHAR_MS * 24

    run(main, within_s=20)


def test_a_request_waits_for_the_media_leg_of_its_call() -> None:
    async def main() -> None:
        async with serving() as rig:
            asking = asyncio.create_task(ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT)))
            await until(lambda: rig.server.registry.find("CA1") is not None, "the call")
            async with calling(rig.url("/media/twilio"), "CA1") as phone:
                await phone.start()
                assert len((await asking).body) == 2 * len(TEXT) * CHAR_MS * 24
                await played_to_its_end(phone, [TEXT])
                assert_heard(phone, [TEXT])

    run(main)


def test_a_call_whose_media_leg_never_comes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "telephony_tts")

    async def main() -> None:
        async with serving(call_claim_s=0.3) as rig:
            got = await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT))
            error = got.json()["error"]
            assert (got.status, error["code"], error["type"]) == (404, "no_media", "not_found_error")
            assert "CA1" in error["message"]
            got = await ask_json(rig.port, "/calls/CA1/tts/stream", {"text": TEXT})
            assert (got.status, got.code) == (404, "no_media")
            # A client that does not wait so long leaves nothing behind.
            async with http_peer(rig.port) as peer:
                body = json.dumps(openai(TEXT)).encode()
                await peer.send("POST", "/calls/CA2/v1/audio/speech", body, Content_Type="application/json")
                await until(lambda: rig.server.registry.find("CA2") is not None, "the call")
            await until(lambda: rig.server.registry.find("CA2") is None, "the end of the call", 0.2)

    run(main)
    assert [line["code"] for line in lines(caplog, "call_ended")] == [4404, 4404, 1000]
    assert {line["reason"] for line in lines(caplog, "refused")} == {"no_media"}


def test_a_call_has_one_bot() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            async with rig.bot(call="CA1") as bot:
                got = await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT))
                assert (got.status, got.code) == (409, "call_taken")
                await bot.say("I am here.")
                await bot.event("done")
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            async with rig.bot() as bot:
                own = str(bot.ready["call"])
                got = await ask_json(rig.port, f"/calls/{own}/tts/stream", {"text": TEXT})
                assert (got.status, got.code) == (409, "call_taken"), "its audio is on its own socket"
            asking = asyncio.create_task(
                ask_json(rig.port, "/calls/CA1/tts/stream", {"text": TEXT, "speed": 2.0, "format": "pcm"})
            )
            await until(lambda: rig.engine.spoken == [TEXT], "the request")  # type: ignore[attr-defined]
            async with connect(rig.url(call="CA1"), proxy=None) as other:
                await asyncio.wait_for(other.wait_closed(), 5)
                assert other.close_code == 4409
            assert (await asking).status == 200
            (call,) = rig.server.registry.calls()
            await until(lambda: call.bot is None, "all is heard")
            n_before = len(phone.played)
            assert n_before * 160 < 0.6 * len(rendering([TEXT])), "the request had a speed of its own"
            async with rig.bot(call="CA1") as bot:  # between two requests another bot may come
                await bot.say(TEXT)
                await bot.event("done")
                await played_to_its_end(phone, [TEXT], n_before)
                assert_heard(phone, [TEXT], n_before)

    run(main)


def test_a_caller_who_hangs_up_ends_the_response() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            asking = asyncio.create_task(ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(LONG)))
            await phone.hears(20)
            await phone.hang_up()
            got = await asking
            assert got.status == 200 and got.is_whole, "a framework would repeat what was cut off"
            assert not any(got.body) and 0 < len(got.body) < 2 * len(LONG) * CHAR_MS * 24

    run(main)


def test_a_caller_who_interrupts_ends_all_responses() -> None:
    async def main() -> None:
        speech = speech_settings(barge_in=BargeInSettings(enabled=True))
        async with serving(speech=speech) as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            voice(8000)  # its synthesis is not the caller's time
            await phone.start()
            asking = [
                asyncio.create_task(ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(LONG))) for _ in range(2)
            ]
            await phone.hears(60)
            await phone.speak(frames_of(voice(8000), "ulaw", 8000))
            answers: list[Answer] = await asyncio.gather(*asking)
            assert all(answer.status == 200 and answer.is_whole and not any(answer.body) for answer in answers)
            spoken, waiting = sorted(len(answer.body) for answer in answers)[::-1]
            assert spoken < 2 * len(LONG) * CHAR_MS * 24
            assert waiting == 2 * 100 * 24, "a response without audio would be asked for again"

    run(main, within_s=20)


def test_what_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "telephony_tts")
    tokens = ServerSettings(host="127.0.0.1", port=0, tokens=("secret",))

    async def main() -> None:
        key = {"Authorization": "Bearer secret"}
        speech = speech_settings(limits=CallLimits(queued_turns=1))
        async with serving(server=tokens, speech=speech) as rig:
            url = rig.url("/media/twilio?token=secret")
            async with calling(url, "CA1", headers=key) as phone:
                await phone.start()
                answers = [
                    await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT)),
                    await ask_json(rig.port, "/calls/no%20name/v1/audio/speech", openai(TEXT), **key),
                    await ask_json(rig.port, "/v1/audio/speech?call=", openai(TEXT), **key),
                    await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT, voice="ghost"), **key),
                    await ask_json(rig.port, "/calls/CA1/v1/nothing", {}, **key),
                ]
                told = [(each.status, each.code) for each in answers[:-1]]
                assert told == [
                    (401, "unauthorized"), (400, "bad_request"), (400, "bad_request"), (404, "unknown_voice"),
                ]  # fmt: skip
                assert answers[-1].status == 405, "no path of HTTP"
                speaking = asyncio.create_task(
                    ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT), **key)
                )
                await phone.hears(5)
                got = await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT), **key)
                assert (got.status, got.code, got.headers["retry-after"]) == (429, "queue_full", "1")
                assert (await speaking).status == 200
                (call,) = rig.server.registry.calls()
                await until(lambda: call.bot is None, "nothing of the refused requests is left")
            rig.server.ready = False
            got = await ask_json(rig.port, "/calls/CA9/v1/audio/speech", openai(TEXT), **key)
            assert (got.status, got.code) == (503, "busy") and "retry-after" in got.headers
            rig.server.ready = True

    run(main)
    codes = [line["reason"] for line in lines(caplog, "refused")]
    assert {"unauthorized", "bad_request", "unknown_voice", "queue_full", "busy"} <= set(codes)


def test_an_engine_that_fails_in_a_call() -> None:
    async def main() -> None:
        async with serving(FakeEngine(fail_after_chunks=0)) as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            got = await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT))
            assert (got.status, got.code) == (500, "engine_failed")
            (call,) = rig.server.registry.calls()
            await until(lambda: call.bot is None, "the request is over")
            assert not call.over, "the call goes on"

    run(main)


def test_a_call_without_requests_lasts_as_long_as_one_with_a_silent_bot() -> None:
    """Between two answers of the bot the caller may speak for longer than a socket may be away (`rejoin_s`)."""

    async def main() -> None:
        speech = speech_settings(limits=CallLimits(idle_s=2))
        async with (
            serving(speech=speech, rejoin_s=0.1, call_claim_s=0.5) as rig,
            calling(rig.url("/media/twilio"), "CA1") as phone,
        ):
            await phone.start()
            assert (await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai("Hi."))).status == 200
            await asyncio.sleep(1)
            assert (await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai("Hi."))).status == 200
            ended_s = time.monotonic()
            await phone.gone()
            assert 1.8 < time.monotonic() - ended_s < 3

    run(main)


def test_a_thousand_requests_that_are_broken_off_leave_nothing() -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as phone:
            await phone.start()
            body = json.dumps(openai(LONG)).encode()
            head = request("POST", "/calls/CA1/v1/audio/speech", body, Content_Type="application/json")

            async def one(n: int) -> None:
                async with http_peer(rig.port) as peer:
                    peer.writer.write(head if n % 3 else head[: len(head) - 5])
                    await asyncio.sleep(0.001 * (n % 7))

            for _ in range(50):
                await asyncio.gather(*(one(n) for n in range(20)))
            (call,) = rig.server.registry.calls()
            await until(lambda: call.bot is None and not call.session.turns, "all is over")
            await asyncio.sleep(0.3)  # the telephone plays the last fade
            n_before = len(phone.played)
            assert (await ask_json(rig.port, "/calls/CA1/v1/audio/speech", openai(TEXT))).status == 200
            await played_to_its_end(phone, [TEXT], n_before)
            assert_heard(phone, [TEXT], n_before)

    run(main, within_s=40)

