"""HTTP servers that refuse, break off and send nonsense: each is an error that says what to do, and harms no other
request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from http_stand_ins import KEY, HttpStandIn, http_stand_in, until, wait_until
from others_rig import TRANSCRIPT, certificate, engine, recording, speak, started

from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.fake.engine import render
from telephony_tts.engines.others.other_engine import OtherEngine
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, ReplicaLost

pytestmark = pytest.mark.slow

TEXT = "hello there my friend"
WAVE = render(TEXT).astype("<i2").tobytes()


def run(
    work: Callable[[OtherEngine, HttpStandIn], Coroutine[Any, Any, None]], habits: dict[str, Any], **given: Any
) -> None:
    async def main(server: HttpStandIn) -> None:
        defaults = {"kind": "openai", "url": server.url, "voices": {"alloy": {}}}
        async with started(**{**defaults, **given}) as their_engine, asyncio.timeout(20):
            await work(their_engine, server)
            assert their_engine.stats().n_running == 0

    with http_stand_in(**habits) as server:
        asyncio.run(main(server))
        wait_until(lambda: server.n_live == 0)


def heard(chunks: list[Any]) -> bytes:
    return b"".join(chunk.pcm.tobytes() for chunk in chunks)


@pytest.mark.parametrize(
    ("fault", "words", "retryable"),
    [
        ("html", r"answers with text/html, not with audio \(<html><title>Sign in.*check engines\.others", True),
        ("json", r"answers with application/json, not with audio \(the queue is full\)", True),
        ("html_502", "failed with status 502: <html>Bad Gateway", True),
        ("overloaded", r"is busy \(503: overloaded\)", True),
        ("unknown_voice", "failed with status 400: no voice stranger", False),
        ("missing", r"does not exist \(404: Not Found\); check engines\.others\.theirs\.url", False),
        ("redirect", r"leads to another address \(307\); check engines\.others\.theirs\.url", False),
        ("empty", "sent no audio", True),
        ("one_byte", "sent no audio", True),
        ("half_header", "ended inside the header of a WAV file, after 30 bytes", True),
        ("wrong_rate", r"sends 44100 Hz, and engines\.others\.theirs\.rate_hz is 24000; set it to 44100", False),
        ("stereo", "2 channels; expected 16-bit PCM, mono", False),
        ("silent", r"gave no audio within engines\.others\.theirs\.audio_timeout_s \(1\.5\)", True),
        ("stall", "gave no audio within", True),
        ("endless", "sent over 19.7 s for 21 characters", True),
        ("cut_at_once", r"lost: .*(incomplete|closed)", True),
    ],
)
def test_a_fault_is_an_error_that_says_what_to_do(fault: str, words: str, retryable: bool) -> None:
    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        neighbour = asyncio.create_task(speak(their_engine, TEXT))
        await until(lambda: len(server.asked) == 1)
        server.fault = fault
        with pytest.raises(EngineError, match=words) as caught:
            await speak(their_engine, TEXT)
        assert caught.value.retryable is retryable and not isinstance(caught.value, ReplicaLost)
        assert heard(await neighbour) == WAVE, "another request is not touched"
        server.fault = ""
        assert heard(await speak(their_engine, TEXT)) == WAVE, "the next request works"

    run(work, {"pause_s": 0.01}, audio_timeout_s=1.5)


def test_a_busy_server_says_when_to_come_again() -> None:
    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        with pytest.raises(EngineError, match=r"is busy \(429: queue full\)") as caught:
            await speak(their_engine)
        assert (caught.value.code, caught.value.retry_after_ms) == ("busy", 7_000)
        stats = their_engine.stats()
        assert not stats.is_ready and 6_000 < stats.retry_after_ms <= 7_000
        assert len(server.asked) == 1, "a refusal is not tried again at once"

    run(work, {"fault": "busy"})


def test_a_body_that_breaks_off_lets_the_call_go_on_from_there() -> None:
    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        found = []
        with pytest.raises(ReplicaLost, match="is lost"):
            async for chunk in their_engine.synthesize(Utterance("u", TEXT)):
                found.append(chunk)
        n_bytes = len(heard(found))
        assert 0 < n_bytes < len(WAVE) and heard(found) == WAVE[:n_bytes]

    run(work, {"fault": "cut", "pause_s": 0.02})


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("error_event", EngineError, "the server says: out of memory"),
        ("no_done", ReplicaLost, "ended before the last one"),
        ("bad_event", EngineError, "not JSON"),
        ("cut", ReplicaLost, "is lost"),
    ],
)
def test_faults_inside_a_stream_of_events(fault: str, error: type[EngineError], words: str) -> None:
    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        found = []
        with pytest.raises(error, match=words):
            async for chunk in their_engine.synthesize(Utterance("u", TEXT)):
                found.append(chunk)
        assert found and WAVE.startswith(heard(found))

    run(work, {"fault": fault, "form": "events"})


def test_a_connection_that_broke_before_the_first_audio_is_tried_again() -> None:
    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        assert heard(await speak(their_engine, TEXT)) == WAVE
        assert len(server.asked) == 2

    run(work, {"fault": "cut_at_once", "faults_left": 1})


@pytest.mark.parametrize("stops", [True, False])
def test_the_server_sees_a_cancel_if_it_would_stop(stops: bool) -> None:
    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        stream = their_engine.synthesize(Utterance("u", TEXT))
        await anext(stream)
        await stream.aclose()
        assert their_engine.stats() == EngineStats()
        await until(lambda: server.n_live == 0)
        (asked,) = server.asked
        n_pieces = -(-len(WAVE) // 4_321)
        if stops:
            assert asked.was_cancelled and asked.n_pieces < n_pieces
        else:
            assert not asked.was_cancelled and asked.n_pieces == n_pieces, "it is read to its end"

    run(work, {"pause_s": 0.02}, stops_on_cancel=stops)


def test_the_key_is_sent_and_a_wrong_one_is_named() -> None:
    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        assert heard(await speak(their_engine, TEXT)) == WAVE

    async def refused(their_engine: OtherEngine, server: HttpStandIn) -> None:
        words = r"refused the key \(401: Incorrect API key\); check engines\.others\.theirs\.key"
        with pytest.raises(EngineError, match=words) as caught:
            await speak(their_engine)
        assert not caught.value.retryable and "wrong-key" not in caught.value.message

    run(work, {"key": KEY}, key=KEY)
    run(refused, {"key": KEY}, key="wrong-key")


def test_the_rate_in_a_header_is_held_against_the_settings() -> None:
    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        with pytest.raises(EngineError, match="sends 48000 Hz"):
            await speak(their_engine)

    run(work, {"headers": {"X-Sample-Rate": "48000"}})


def test_a_recording_arrives_as_a_file(tmp_path: Path) -> None:
    path = recording(tmp_path)
    content = Path(path).read_bytes()

    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        assert heard(await speak(their_engine, TEXT)) == WAVE
        (asked,) = server.asked
        assert asked.path == "/inference_zero_shot" and asked.fields == {"tts_text": TEXT, "prompt_text": TRANSCRIPT}
        assert asked.files == {"prompt_wav": content}

    run(work, {}, kind="cosyvoice_fastapi", voices={"anna": {"wav": path, "text": TRANSCRIPT}})


def test_voices_are_those_that_the_server_lists() -> None:
    async def work(their_engine: OtherEngine, server: HttpStandIn) -> None:
        assert [voice.name for voice in their_engine.voices] == ["af_heart", "af_sky"]
        await speak(their_engine, voice="af_sky")
        assert server.asked[0].fields["voice"] == "af_sky"

    run(work, {"voices": {"voices": [{"id": "af_heart"}, {"id": "af_sky"}]}}, kind="kokoro_fastapi", voices={})
    words = r"engines\.others\.theirs: .*does not exist"
    with http_stand_in() as server, pytest.raises(EngineUnavailable, match=words):
        asyncio.run(engine(kind="kokoro_fastapi", url=server.url, start_timeout_s=1).start())


# -------------------------------------------------------------------------- TLS


def test_a_certificate_of_another_host_is_refused_by_name(tmp_path: Path) -> None:
    files = certificate(tmp_path, "tts.example.com")
    with http_stand_in(files) as server:
        theirs = engine(kind="openai", url=server.url, voices={"a": {}}, ca_file=files[0], start_timeout_s=0.3)
        with pytest.raises(EngineUnavailable) as caught:
            asyncio.run(theirs.start())
    message = caught.value.message
    assert "its certificate is refused (IP address mismatch" in message, message
    assert "check the host in engines.others.theirs.url, or set engines.others.theirs.ca_file" in message


def test_an_unsigned_certificate_is_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    files = certificate(tmp_path, "127.0.0.1")

    async def work(url: str) -> None:
        async with started(kind="openai", url=url, voices={"a": {}}, ca_file=files[0]) as theirs:
            assert heard(await speak(theirs, TEXT)) == WAVE
        with pytest.raises(EngineUnavailable, match=r"its certificate is refused .*self.signed"):
            await engine(kind="openai", url=url, voices={"a": {}}, start_timeout_s=0.3).start()

    with http_stand_in(files) as server:
        asyncio.run(work(server.url))


def test_a_file_of_authorities_that_has_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    for content in (None, "no certificate"):
        if content is not None:
            file.write_text(content)
        theirs = engine(kind="openai", url="https://127.0.0.1:1", voices={"a": {}}, ca_file=str(file))
        with pytest.raises(EngineUnavailable, match=r"engines\.others\.theirs\.ca_file: .*ca\.pem"):
            asyncio.run(theirs.start())


def test_a_server_that_is_away_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    theirs = engine(kind="openai", url=f"http://127.0.0.1:{port}", voices={"a": {}}, start_timeout_s=0.3)
    words = rf"engines\.others\.theirs: the speech server at http://127\.0\.0\.1:{port} is lost: .*refused"
    with pytest.raises(EngineUnavailable, match=words):
        asyncio.run(theirs.start())
