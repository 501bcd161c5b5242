"""Triton and CosyVoice's gRPC runtime: what they are asked, when they see a cancel, and what they do wrong."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_stand_ins import GrpcStandIn, cosyvoice_stand_in, inputs_of, text_of, triton_stand_in
from http_stand_ins import until, wait_until
from others_rig import TRANSCRIPT, certificate, engine, recording, speak, started

from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.fake.engine import render
from telephony_tts.engines.others.other_engine import OtherEngine
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, ReplicaLost

pytestmark = pytest.mark.slow

TEXT = "hello there my friend"
WAVE = render(TEXT)
Work = Callable[[OtherEngine, GrpcStandIn], Coroutine[Any, Any, None]]


def heard(chunks: list[Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([chunk.pcm for chunk in chunks])


def run(stand_in: AbstractContextManager[GrpcStandIn], work: Work, **given: Any) -> None:
    async def main(server: GrpcStandIn) -> None:
        async with started(url=server.address, **given) as their_engine, asyncio.timeout(20):
            await work(their_engine, server)
            assert their_engine.stats().n_running == 0

    with stand_in as server:
        asyncio.run(main(server))
        wait_until(lambda: server.n_live == 0)


def triton(work: Work, habits: dict[str, Any] | None = None, **given: Any) -> None:
    run(triton_stand_in(**(habits or {})), work, **{"kind": "triton", "model": "cosyvoice2", **given})


def cosyvoice(work: Work, habits: dict[str, Any] | None = None, **given: Any) -> None:
    run(cosyvoice_stand_in(**(habits or {})), work, **{"kind": "cosyvoice_grpc", "voices": {"001": {}}, **given})


# ------------------------------------------------------------------- what is asked


def test_triton_gets_the_recipes_inputs(tmp_path: Path) -> None:
    async def work(their_engine: OtherEngine, server: GrpcStandIn) -> None:
        assert np.array_equal(heard(await speak(their_engine, TEXT)), WAVE)
        await speak(their_engine, "héllo 世界", voice="anna")
        first, second = server.asked
        assert (first.model_name, text_of(first)) == ("cosyvoice2", TEXT)
        assert first.id and first.id != second.id, "the recipe's models keep state under the id"
        assert text_of(second) == "héllo 世界" and text_of(second, "reference_text") == TRANSCRIPT
        inputs = inputs_of(second)
        n_samples = int.from_bytes(inputs["reference_wav_len"][2], "little")
        assert inputs["reference_wav_len"][:2] == ("INT32", (1, 1))
        assert n_samples == pytest.approx(16_000 * 0.06 * len(TRANSCRIPT), abs=2)
        datatype, shape, content = inputs["reference_wav"]
        assert (datatype, shape) == ("FP32", (1, -(-n_samples // 16_000) * 16_000)), "in whole seconds"
        wave = np.frombuffer(content, "<f4")
        assert 0.05 < np.abs(wave[:n_samples]).max() <= 1.0 and not wave[n_samples:].any()

    voices = {"anna": {"wav": recording(tmp_path), "text": TRANSCRIPT}}
    triton(work, voices=voices)


def test_triton_without_voices_sends_the_text_alone() -> None:
    async def work(their_engine: OtherEngine, server: GrpcStandIn) -> None:
        assert [voice.name for voice in their_engine.voices] == ["default"]
        await speak(their_engine, TEXT)
        assert list(inputs_of(server.asked[0])) == ["target_text"]

    triton(work)


def test_cosyvoices_runtime_gets_the_form_that_suits_the_voice(tmp_path: Path) -> None:
    path = recording(tmp_path)
    voices = {"001": {}, "anna": {"wav": path, "text": TRANSCRIPT}, "ben": {"wav": path}}

    async def work(their_engine: OtherEngine, server: GrpcStandIn) -> None:
        for voice in voices:
            assert np.array_equal(heard(await speak(their_engine, TEXT, voice=voice)), WAVE)
        named, anna, ben = server.asked
        assert (named.sft_request.spk_id, named.sft_request.tts_text) == ("001", TEXT)
        assert (anna.zero_shot_request.tts_text, anna.zero_shot_request.prompt_text) == (TEXT, TRANSCRIPT)
        assert ben.cross_lingual_request.tts_text == TEXT
        for audio in (anna.zero_shot_request.prompt_audio, ben.cross_lingual_request.prompt_audio):
            assert len(audio) == pytest.approx(2 * 16_000 * 0.06 * len(TRANSCRIPT), abs=4), "int16 at 16 kHz, no header"
        assert server.metadata[0]["authorization"] == "Bearer secret"

    cosyvoice(work, voices=voices, key="secret")


# ------------------------------------------------------------------------- cancel


@pytest.mark.parametrize("serve", [triton, cosyvoice])
def test_the_server_sees_a_cancel(serve: Callable[..., None]) -> None:
    async def work(their_engine: OtherEngine, server: GrpcStandIn) -> None:
        for n in range(5):
            stream = their_engine.synthesize(Utterance("u", TEXT))
            await anext(stream)
            await stream.aclose()
            assert their_engine.stats() == EngineStats()
            await until(lambda n=n: server.n_cancelled == n + 1)
        assert server.n_finished == 0

    serve(work, {"pause_s": 0.02}, stops_on_cancel=True)


def test_a_model_that_does_not_stop_never_has_more_requests_than_slots() -> None:
    async def work(their_engine: OtherEngine, server: GrpcStandIn) -> None:
        for _ in range(6):
            stream = their_engine.synthesize(Utterance("u", TEXT))
            await anext(stream)
            await stream.aclose()
            assert (their_engine.stats().n_queued, their_engine.stats().n_running) == (0, 0)
        assert np.array_equal(heard(await speak(their_engine, TEXT)), WAVE), "nothing of the orphans is heard"
        assert server.most_live == 2 and server.n_cancelled == 0
        await until(lambda: server.n_finished == 7)

    triton(work, {"pause_s": 0.005, "ignores_cancel": True}, slots=2)


# ------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("fault", "words", "retryable"),
    [
        ("error", "Triton says: in ensemble 'cosyvoice2', the LM failed", True),
        ("empty", "sent no audio", True),
        ("silent", r"gave no audio within engines\.others\.theirs\.audio_timeout_s", True),
        ("stall", "gave no audio within", True),
        ("endless", "sent over 19.7 s for 21 characters", True),
        ("not_finite", "samples that are not finite", True),
        ("wrong_output", "Triton sends audio; expected waveform", False),
        ("wrong_type", "sends waveform as FP16; expected FP32", False),
    ],
)
def test_a_fault_of_triton_is_an_error_that_says_what_it_is(fault: str, words: str, retryable: bool) -> None:
    async def work(their_engine: OtherEngine, server: GrpcStandIn) -> None:
        server.fault = fault
        with pytest.raises(EngineError, match=words) as caught:
            await speak(their_engine, TEXT)
        assert caught.value.retryable is retryable and not isinstance(caught.value, ReplicaLost)
        server.fault = ""
        assert np.array_equal(heard(await speak(their_engine, TEXT)), WAVE)

    triton(work, audio_timeout_s=1.5, stops_on_cancel=True)


@pytest.mark.parametrize("serve", [triton, cosyvoice])
def test_a_stream_that_breaks_lets_the_call_go_on_from_there(serve: Callable[..., None]) -> None:
    async def work(their_engine: OtherEngine, server: GrpcStandIn) -> None:
        found = []
        with pytest.raises(ReplicaLost, match="is lost: Socket closed"):
            async for chunk in their_engine.synthesize(Utterance("u", TEXT)):
                found.append(chunk)
        n_samples = len(heard(found))
        assert 0 < n_samples < len(WAVE) and np.array_equal(heard(found), WAVE[:n_samples])

    serve(work, {"fault": "break"})


def test_a_runtime_with_no_free_call_is_busy() -> None:
    async def work(their_engine: OtherEngine, server: GrpcStandIn) -> None:
        first = asyncio.create_task(speak(their_engine, TEXT))
        await until(lambda: server.n_live == 1)
        with pytest.raises(EngineError, match=r"is busy \(Concurrent RPC limit exceeded!\)") as caught:
            await speak(their_engine, TEXT)
        assert caught.value.code == "busy"
        assert np.array_equal(heard(await first), WAVE)

    cosyvoice(work, {"max_calls": 1, "pause_s": 0.03})


def refused(**given: Any) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        asyncio.run(engine(**{"start_timeout_s": 0.3, **given}).start())
    assert caught.value.message.startswith("engines.others.theirs: ")
    return caught.value.message


def test_a_model_that_triton_does_not_have_is_named() -> None:
    with triton_stand_in() as server:
        message = refused(kind="triton", url=server.address, model="cosyvoice7")
    assert "has no model 'cosyvoice7' that is ready; check engines.others.theirs.model" in message


def test_another_kind_of_server_is_named() -> None:
    with cosyvoice_stand_in() as server:
        message = refused(kind="triton", url=server.address, model="cosyvoice2")
    assert "is another kind of server" in message and "check engines.others.theirs.kind and url" in message


@pytest.mark.parametrize("given", [{"kind": "triton", "model": "m"}, {"kind": "cosyvoice_grpc", "voices": {"a": {}}}])
def test_a_server_that_is_away_is_named(given: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert f"the speech server at 127.0.0.1:{port} is lost" in refused(url=f"grpc://127.0.0.1:{port}", **given)


# ---------------------------------------------------------------------------- TLS


def credentials(files: tuple[str, str]) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials([(Path(files[1]).read_bytes(), Path(files[0]).read_bytes())])


def test_certificates(tmp_path: Path) -> None:
    right, wrong = certificate(tmp_path, "127.0.0.1"), certificate(tmp_path, "tts.example.com")

    async def work(their_engine: OtherEngine, server: GrpcStandIn) -> None:
        assert np.array_equal(heard(await speak(their_engine, TEXT)), WAVE)

    run(triton_stand_in(credentials(right)), work, kind="triton", model="cosyvoice2", ca_file=right[0])
    for trusted, served in ((right, wrong), (wrong, wrong)):
        with cosyvoice_stand_in(credentials(served)) as server:
            message = refused(kind="cosyvoice_grpc", url=server.address, voices={"a": {}}, ca_file=trusted[0])
        assert "its certificate is refused" in message, message
        assert "check the host in engines.others.theirs.url, or set engines.others.theirs.ca_file" in message
    assert "ca_file: cannot read" in refused(kind="triton", model="m", url="grpcs://127.0.0.1:1", ca_file="/away.pem")
