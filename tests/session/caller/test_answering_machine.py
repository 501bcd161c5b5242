"""`answering_machine`: the bot is told of a greeting without a pause and of a beep. Simulated time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from world import World

from telephony_tts.audio.encoder import CODECS
from telephony_tts.runtime.errors import AudioError
from telephony_tts.session.settings import BargeInSettings, CallerSettings, SessionSettings
from telephony_tts.wire import messages as m

MACHINE = CallerSettings(answering_machine=True)


def by_level() -> Any:
    """A detector that takes every loud window for voice."""
    return lambda window, state: (1.0 if np.abs(window).max() > 0.05 else 0.0, state)


def never_voice() -> Any:
    return lambda window, state: (0.0, state)


def line(caller: CallerSettings = MACHINE, model: Any = never_voice, codec: str = "ulaw", rate_hz: int = 8000) -> World:
    settings = SessionSettings(first_clause_chars=0, caller=caller, codec=codec, rate_hz=rate_hz)
    return World(settings, peer=True, voice_model=model)


def tone(ms: int, hz: float = 1000, rate_hz: int = 8000) -> np.ndarray:
    return 0.2 * np.sin(2 * np.pi * hz * np.arange(ms * rate_hz // 1000) / rate_hz)


def rest(ms: int, rate_hz: int = 8000) -> np.ndarray:
    return np.zeros(ms * rate_hz // 1000)


def noise(ms: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(ms * 8) * 0.1


def hear(world: World, *parts: np.ndarray, clock: bool = True) -> None:
    settings = world.session.settings
    pcm = np.rint(np.concatenate(parts) * 32767).astype(np.int16)
    n = settings.rate_hz // 50
    for at in range(0, len(pcm) - n + 1, n):
        world.run(20)
        stamp = round(world.now_ms) - 20 if clock else None
        world.send(m.MediaAudio(CODECS[settings.codec].encode(pcm[at : at + n]), stamp))


def told(world: World) -> list[m.AnsweringMachineHeard]:
    return world.of(m.AnsweringMachineHeard)


@pytest.mark.parametrize(("codec", "rate_hz"), [("ulaw", 8000), ("alaw", 8000), ("pcm", 8000), ("pcm", 16000)])
def test_a_beep_is_told_with_its_place_on_the_peers_clock(codec: str, rate_hz: int) -> None:
    world = line(codec=codec, rate_hz=rate_hz)
    world.run(1000)  # the leg is silent before its first audio
    hear(world, rest(500, rate_hz), tone(400, rate_hz=rate_hz), rest(600, rate_hz))
    (event,) = told(world)
    assert (event.cause, event.greeting_ms) == ("beep", None)
    assert event.beep_at_ms == pytest.approx(1000 + 500 + 400, abs=32)
    assert event.beep_ms == pytest.approx(400, abs=24) and event.beep_hz == pytest.approx(1000, abs=4)


@pytest.mark.parametrize("amplitude", [0.02, 0.04, 0.2])
@pytest.mark.parametrize("ms", [300, 900])
def test_a_beep_is_not_taken_for_the_noise_of_its_line(amplitude: float, ms: int) -> None:
    """Pinned: a beep is no voice, so a long one counted as noise after a while, and its end was not heard."""
    hiss = np.random.default_rng(5).standard_normal((2000 + ms + 700) * 8) * amplitude / 2**0.5 / 10**0.5
    world = line()
    hear(world, hiss + np.concatenate([rest(2000), 5 * amplitude * tone(ms), rest(700)]))
    (event,) = told(world)
    assert event.beep_at_ms == pytest.approx(2000 + ms, abs=40) and event.beep_ms == pytest.approx(ms, abs=40)


def test_without_a_clock_the_place_counts_from_the_first_audio() -> None:
    world = line()
    world.run(1000)
    hear(world, rest(500), tone(400), rest(600), clock=False)
    assert told(world)[0].beep_at_ms == pytest.approx(900, abs=32)


def test_a_peer_that_sends_nothing_during_silence_gives_the_same_beep() -> None:
    world = line()
    hear(world, rest(500), tone(400))
    world.run(1000)
    (event,) = told(world)
    assert event.cause == "beep" and event.beep_at_ms == pytest.approx(900, abs=32)
    hear(world, rest(500))
    assert len(told(world)) == 1


def test_a_greeting_without_a_pause_is_a_hint_and_then_comes_the_beep() -> None:
    world = line(model=by_level)
    hear(world, rest(300), noise(4000), rest(700), tone(300), rest(800))
    hint, beep = told(world)
    assert hint.cause == "greeting" and 2500 <= (hint.greeting_ms or 0) <= 2560 and hint.beep_at_ms is None
    assert beep.cause == "beep" and beep.greeting_ms is None
    assert not world.of(m.CallerSpeech) and not world.of(m.Cleared)


def test_a_person_says_a_word_and_waits() -> None:
    world = line(model=by_level)
    hear(world, rest(300), noise(900), rest(2000), noise(5000), rest(800))
    assert told(world) == []


def test_it_is_off_unless_it_is_asked_for_and_can_be_turned_off() -> None:
    world = line(CallerSettings())
    hear(world, rest(300), tone(400), rest(600))
    assert told(world) == [] and not world.session.wants_audio
    world.send(m.Configure(answering_machine="on"))
    hear(world, rest(300), tone(400), rest(600))
    assert len(told(world)) == 1
    world.send(m.Configure(answering_machine="off"))
    hear(world, rest(300), tone(400), rest(600))
    assert len(told(world)) == 1 and not world.session.wants_audio


@pytest.mark.parametrize("model", [None, "broken"])
def test_beeps_are_found_without_a_voice_detector(model: Any) -> None:
    def broken() -> Any:
        raise AudioError("no model")

    world = line(model=broken if model else None)
    hear(world, rest(300), noise(3000), rest(300), tone(400), rest(600))
    assert [event.cause for event in told(world)] == ["beep"]
    assert not world.of(m.WarningEvent)


def test_the_echo_of_our_own_tones_is_no_beep() -> None:
    ours = tone(500)

    def hear_echo(of: np.ndarray) -> list[m.AnsweringMachineHeard]:
        world = line()
        hear(world, rest(300))
        begin = np.concatenate([rest(400), ours, rest(2000)])
        late = np.concatenate([rest(520), 0.1 * of, rest(2000)])
        for at in range(0, 16_000, 160):
            payload = CODECS["ulaw"].encode(np.rint(begin[at : at + 160] * 32767).astype(np.int16))
            world.session.caller.playing(payload, world.now_ns, world.now_ns)
            hear(world, late[at : at + 160])
        return told(world)

    assert hear_echo(ours) == []
    assert [event.cause for event in hear_echo(tone(500, hz=1400))] == ["beep"], "another tone is not ours"


def test_it_works_beside_barge_in() -> None:
    settings = SessionSettings(
        first_clause_chars=0, caller=MACHINE, barge_in=BargeInSettings(enabled=True, hold_off_ms=0)
    )
    world = World(settings, peer=True, voice_model=by_level)
    hear(world, rest(300), noise(1000), rest(700), tone(400), rest(700))
    assert [event.cause for event in told(world)] == ["beep"]
    assert world.of(m.CallerSpeech)[0].state == "speaking"


def test_speech_long_before_it_is_turned_on_is_no_greeting() -> None:
    settings = SessionSettings(first_clause_chars=0, barge_in=BargeInSettings(enabled=True, hold_off_ms=0))
    world = World(settings, peer=True, voice_model=by_level)
    hear(world, rest(300), noise(3000))
    world.send(m.Configure(barge_in="off"))
    hear(world, rest(60_000))
    world.send(m.Configure(answering_machine="on"))
    hear(world, rest(1000))
    assert told(world) == []
    hear(world, noise(3000))
    assert [event.cause for event in told(world)] == ["greeting"]


def test_a_greeting_is_told_if_barge_in_is_turned_off_and_on_during_it() -> None:
    settings = SessionSettings(
        first_clause_chars=0, caller=MACHINE, barge_in=BargeInSettings(enabled=True, hold_off_ms=0)
    )
    world = World(settings, peer=True, voice_model=by_level)
    hear(world, rest(300), noise(1000))
    world.send(m.Configure(barge_in="off"))
    hear(world, rest(160), noise(600), rest(160))
    world.send(m.Configure(barge_in="on"))
    hear(world, noise(1200))
    assert [event.cause for event in told(world)] == ["greeting"]
