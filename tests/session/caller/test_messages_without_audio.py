"""The caller's silence is judged by the clock, whatever a leg sends meanwhile: messages without audio, or with too
little of it. Real speech, simulated time.

Asterisk's JITTERBUFFER(fixed) sends a message of 0 bytes for each packet that is missing, and goes on with that when
the telephone sends nothing any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from speech_line import BOT, SpeechLine, speech
from test_answering_machine import tone

from telephony_tts.audio.encoder import CODECS
from telephony_tts.doors.asterisk.codec import AsteriskCodec
from telephony_tts.doors.exotel.codec import ExotelCodec
from telephony_tts.doors.freeswitch.codec import FreeSwitchCodec
from telephony_tts.doors.genesys.codec import GenesysCodec
from telephony_tts.doors.jambonz.codec import JambonzCodec
from telephony_tts.doors.plivo.codec import PlivoCodec
from telephony_tts.doors.signalwire.codec import SignalWireCodec
from telephony_tts.doors.telnyx.codec import TelnyxCodec, TelnyxOptions
from telephony_tts.doors.twilio.codec import TwilioCodec
from telephony_tts.doors.vonage.codec import VonageCodec
from telephony_tts.session.settings import BargeInSettings, CallerSettings
from telephony_tts.wire import messages as m
from telephony_tts.wire.native_media import NativeMediaCodec
from torture.dialects import DIALECTS

PAUSES = BargeInSettings(enabled=True, action="pause")
CODECS_OF_LEGS: dict[str, Callable[[], Any]] = {
    "twilio": TwilioCodec,
    "signalwire": SignalWireCodec,
    "telnyx": lambda: TelnyxCodec(TelnyxOptions()),
    "plivo": PlivoCodec,
    "exotel": lambda: ExotelCodec(8000, 100),
    "vonage": lambda: VonageCodec("c1"),
    "native media": NativeMediaCodec,
    "asterisk": AsteriskCodec,
    "jambonz": lambda: JambonzCodec("c1", 8000),
    "freeswitch": lambda: FreeSwitchCodec(False, "c1", 8000),
    "genesys": lambda: GenesysCodec("c1"),
}


class Platform:
    """What a telephone platform sends, as its codec reads it."""

    def __init__(self, name: str) -> None:
        self.dialect = DIALECTS[name](codec="pcm" if name in ("vonage", "exotel", "jambonz", "freeswitch") else "ulaw")
        self._codec = CODECS_OF_LEGS[name]()
        for message in self.dialect.start():
            self._read(message)

    def audio(self, payload: bytes, at_ms: int) -> Any:
        return self._read(self.dialect.caller_audio(payload, at_ms))

    def _read(self, message: dict[str, Any] | bytes) -> Any:
        if isinstance(message, bytes):
            return self._codec.decode(message, True, False)
        return self._codec.decode(json.dumps({**message, **self.dialect.stamp()}).encode(), True, True)


def over_our_speech(codec: str = "ulaw", barge_in: BargeInSettings = PAUSES, **settings: Any) -> SpeechLine:
    """A line on which the caller has begun to speak over us and has paused us, 1.1 s ago."""
    line = SpeechLine(barge_in, codec=codec, **settings)
    line.say(BOT, "a")
    line.listen(4000)
    line.listen(1100, speech("Hold on, I have a question.", "en-gb")[: 8 * 1100])
    assert line.when(m.Paused) and not line.when(m.CallerSpeech, state="silent")
    return line


def only(line: SpeechLine, ms: int, message: Callable[[int], Any]) -> None:
    """Every 20 ms this message comes, and nothing else."""
    for _ in range(ms // 20):
        line.run(20)
        line.send(message(round(line.now_ms)))
        line._play()


def assert_silent_in_time(line: SpeechLine, voice_end_ms: float, late_ms: int = 0) -> None:
    (silent_ms,) = line.when(m.CallerSpeech, state="silent")
    (resumed_ms,) = line.when(m.Resumed)
    assert silent_ms - voice_end_ms < 600 + late_ms and 600 < resumed_ms - voice_end_ms < 900 + late_ms
    (silent,) = [each for each in line.of(m.CallerSpeech) if each.state == "silent"]
    assert silent.at_ms is not None and abs(silent.at_ms - voice_end_ms) < 100 + late_ms


@pytest.mark.parametrize("leg", CODECS_OF_LEGS)
def test_empty_messages_of_any_leg_are_no_audio(leg: str) -> None:
    platform = Platform(leg)
    line = over_our_speech(platform.dialect.codec)
    voice_end_ms = line.now_ms
    sound = platform.audio(bytes(320), round(line.now_ms) - 20)
    assert isinstance(sound, m.MediaAudio) and sound.payload, "the leg does bring audio"
    messages: list[Any] = []

    def empty(at_ms: int) -> Any:
        messages.append(platform.audio(b"", at_ms - 20))
        return messages[-1]

    only(line, 8000, empty)
    assert {type(each) for each in messages} == {m.MediaAudio} and not any(each.payload for each in messages)
    assert_silent_in_time(line, voice_end_ms)
    n_before = len(line.of(m.CallerSpeech))
    line.listen(1000, speech("Wait a moment.", "en-gb"))
    assert line.of(m.CallerSpeech)[n_before].state == "speaking", "the next voice is heard"


@pytest.mark.parametrize(
    ("n_samples", "dbov", "late_ms"),
    [(1, -60, 0), (8, -60, 0), (40, -60, 0), (80, -60, 0), (159, -60, 0), (40, -35, 500), (80, -35, 500)],
)
def test_audio_that_comes_slower_than_time_passes(n_samples: int, dbov: int, late_ms: int) -> None:
    """`late_ms`: for so long the network takes loud noise behind a voice for voice."""
    noise = np.random.default_rng(5)
    line = over_our_speech()
    voice_end_ms = line.now_ms

    def little(at_ms: int) -> m.MediaAudio:
        wave = 10 ** (dbov / 20) * noise.standard_normal(n_samples) * 32767
        return m.MediaAudio(CODECS["ulaw"].encode(np.rint(wave).astype(np.int16)), at_ms - 20)

    only(line, 8000, little)
    assert_silent_in_time(line, voice_end_ms, late_ms)


def test_messages_other_than_audio_do_not_count() -> None:
    line = over_our_speech()
    voice_end_ms = line.now_ms
    only(line, 8000, lambda at_ms: m.MediaMark("of no call"))
    assert_silent_in_time(line, voice_end_ms)


def test_slow_speech_is_speech() -> None:
    """A quarter of the caller's audio is lost for ever: the voice goes on."""
    line = SpeechLine(BargeInSettings(enabled=True))
    voice = speech("Hold on, I have a question about the parcel that you lost last week.", "en-gb")
    for n in range(len(voice) // 160):
        line.run(20)
        payload = CODECS["ulaw"].encode(np.rint(voice[n * 160 : n * 160 + 120] * 32767).astype(np.int16))
        line.send(m.MediaAudio(payload, None))
        line._play()
    line.run(2000)
    line._play()
    (begun_ms,), (ended_ms,) = (line.when(m.CallerSpeech, state=state) for state in ("speaking", "silent"))
    assert begun_ms < 1000 and ended_ms > len(voice) / 8


def test_a_caller_who_was_silent_before_the_hold_off_ended_does_not_interrupt() -> None:
    """The end of the hold-off meets a message, and that message is no voice."""
    line = SpeechLine(BargeInSettings(enabled=True, hold_off_ms=1500))
    line.say(BOT, "a")
    line.listen(200)
    line.listen(900, speech("Hold on, I have a question.", "en-gb")[: 8 * 900])
    assert line.when(m.CallerSpeech, state="speaking")
    only(line, 1000, lambda at_ms: m.MediaAudio(b"", at_ms - 20))
    assert not line.when(m.Cleared) and line.when(m.CallerSpeech, state="silent")


def test_a_sound_that_is_too_short_for_speech_delays_caller_silent_only_for_a_moment() -> None:
    line = SpeechLine(
        BargeInSettings(enabled=True, min_speech_ms=1000), caller=CallerSettings(silent_ms=1000)
    )
    line.listen(900, speech("Hold on.", "en-gb")[: 8 * 600])
    only(line, 6000, lambda at_ms: m.MediaAudio(b"", at_ms - 20))
    assert [each.ms for each in line.of(m.CallerSilent)] == [1000, 2000, 3000, 4000, 5000, 6000]


@pytest.mark.parametrize("payload", [b"", b"\xff", b"\xff" * 20], ids=["empty", "a sample", "2.5 ms"])
def test_a_beep_ends_although_no_audio_follows_it(payload: bytes) -> None:
    line = SpeechLine(BargeInSettings(), caller=CallerSettings(answering_machine=True))
    line.listen(600)
    line.listen(440, tone(400))
    only(line, 600, lambda at_ms: m.MediaAudio(payload, at_ms - 20))
    (heard,) = line.of(m.AnsweringMachineHeard)
    assert heard.cause == "beep" and abs(heard.beep_at_ms - 1000) < 150 and abs(heard.beep_ms - 400) < 60
