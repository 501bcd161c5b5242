"""The network of the process: loaded in a thread when first needed, and each call is told of a failure."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from stage import READY, RecordingLeg, new_call, run, until

from telephony_tts.app import config
from telephony_tts.app.serving import serve
from telephony_tts.app.settings import session_settings
from telephony_tts.audio.voice_activity import VoiceModel
from telephony_tts.runtime.errors import AudioError, ConfigError
from telephony_tts.transport import stream_leg, voice_model
from telephony_tts.transport.voice_model import VoiceModelSource
from telephony_tts.wire import messages as m


def test_the_model_is_made_once_in_a_thread_and_does_not_block_the_loop() -> None:
    made_in: list[int] = []
    may_end = threading.Event()

    def make() -> Any:
        made_in.append(threading.get_ident())
        may_end.wait(5)
        return "the model"

    async def main() -> None:
        source = VoiceModelSource(make)
        assert [source.find() for _ in range(100)] == [None] * 100
        await until(lambda: made_in, "a thread")
        assert source.find() is None
        may_end.set()
        await until(lambda: source.find() == "the model", "the model")
        assert len(made_in) == 1 and made_in[0] != threading.get_ident()
        assert source.load() == "the model"

    run(main)


@pytest.mark.parametrize("error", [AudioError("no such file"), MemoryError("no such file")])
def test_a_failure_is_kept_for_a_while_and_reported_to_each_call(error: Exception) -> None:
    n_made = 0

    def make() -> VoiceModel:
        nonlocal n_made
        n_made += 1
        raise error

    def failed(source: VoiceModelSource) -> bool:
        try:
            return source.find() is not None
        except AudioError as told:
            return "no such file" in told.message

    async def main() -> None:
        source = VoiceModelSource(make)
        await until(lambda: failed(source), "the failure")
        assert failed(source) and n_made == 1

    run(main)


def test_a_network_that_could_not_be_loaded_once_is_loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without a free descriptor for a moment must not be deaf until it is started again."""
    clock_s, faults = [1000.0], [MemoryError("no memory"), AudioError("no descriptor")]
    monkeypatch.setattr(voice_model, "monotonic_ns", lambda: int(clock_s[0] * 1e9))
    n_made = 0

    def make() -> Any:
        nonlocal n_made
        n_made += 1
        if faults:
            raise faults.pop(0)
        return "the model"

    def found(source: VoiceModelSource) -> Any:
        try:
            return source.find()
        except AudioError as error:
            return error.message

    async def main() -> None:
        source = VoiceModelSource(make)
        for message in ("no memory", "no descriptor"):
            await until(lambda message=message: message in str(found(source)), message)
            clock_s[0] += 9
            assert message in found(source), "not tried for each frame of each call"
            clock_s[0] += 2
        await until(lambda: found(source) == "the model", "the model")
        assert n_made == 3

    run(main)


def test_without_a_free_thread_the_network_comes_later_and_no_call_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread is refused while the machine has no memory: a call must neither crash nor stay deaf."""
    clock_s, n_refused = [1000.0], 0
    monkeypatch.setattr(voice_model, "monotonic_ns", lambda: int(clock_s[0] * 1e9))
    start = threading.Thread.start

    def make() -> Any:
        return "the model"

    def refuse(thread: threading.Thread) -> None:
        nonlocal n_refused
        n_refused += 1
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        source: Any = VoiceModelSource(make)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert source.find() is None
        clock_s[0] += 0.5
        assert source.find() is None and n_refused == 1, "not tried for each frame of each call"
        monkeypatch.setattr(threading.Thread, "start", start)
        clock_s[0] += 0.6
        await until(lambda: source.find() == "the model", "the model")
        await until(lambda: not any(each.name.startswith("voice model") for each in threading.enumerate()), "its end")

    run(main)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("barge_in.enabled", True), ("caller.silent_ms", 5000), ("caller.answering_machine", True)],
)
def test_a_server_that_is_to_listen_and_cannot_does_not_start(
    setting: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> VoiceModel:
        raise AudioError("the voice model cannot be loaded (gone)")

    monkeypatch.setattr("telephony_tts.app.serving.VOICE_MODEL", VoiceModelSource(make))
    listening = {setting: value, "engines.default": "fake", "server.port": 0}
    with pytest.raises(ConfigError, match=rf"{setting}: .*\(gone\)"):
        asyncio.run(serve(config.load(None, listening, environ={})))


def test_the_settings_of_the_configuration_reach_the_session() -> None:
    text = {"enabled": True, "min_speech_ms": 320, "hold_off_ms": 0, "silence_ms": 900, "floor_dbov": -38.5}
    loaded = config.load(None, {f"barge_in.{name}": value for name, value in text.items()}, environ={})
    session = session_settings(loaded).barge_in
    assert {name: getattr(session, name) for name in text} == text


def test_a_call_is_interrupted_by_a_voice_and_the_journal_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `Call`, with a network that takes all audio for speech."""
    from telephony_tts.runtime import metrics

    def everything(window: object, state: object) -> tuple[float, object]:
        return 1.0, state

    class Source:
        find = staticmethod(lambda: everything)

    async def main() -> None:
        monkeypatch.setattr(stream_leg, "VOICE_MODEL", Source)
        call = stream_leg.new_call(new_call().session.settings, new_call()._catalog, "twilio")
        running = asyncio.create_task(call.run())
        await call.started.wait()
        bot, media = RecordingLeg(), RecordingLeg()
        call.join_bot(bot, bot.encode, READY)
        call.session.attach_media(0, marks=True, clears=True)
        call.join_media(media, media.encode)
        before = metrics.value("telephony_tts_caller_speech_total", outcome="interrupted")
        call.receive(m.Configure(barge_in="on", hold_off_ms=0))
        call.receive(m.Say("A sentence that is long enough to be interrupted by a caller.", "a"))
        await until(lambda: media.got(m.Frame), "speech")
        loud = (np.random.default_rng(1).integers(0, 2, 800) * 128).astype(np.uint8).tobytes()  # μ-law at full scale
        for _ in range(5):
            call.receive(m.MediaAudio(loud, 0))
        assert [event.reason for event in bot.got(m.Cleared)] == ["barge_in"]
        assert media.got(m.MediaClear)
        call.receive(m.Configure(barge_in="off"))
        assert [event.state for event in bot.got(m.CallerSpeech)] == ["speaking", "silent"]
        assert metrics.value("telephony_tts_caller_speech_total", outcome="interrupted") == before + 1
        call.finish(1000, "over")
        await running

    run(main)
