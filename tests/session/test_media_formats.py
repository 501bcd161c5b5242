"""A media leg with another codec, rate or frame length than expected, and the caller's audio in the bot's format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from world import STEP, World

from telephony_tts.audio.encoder import CODECS
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

TEXT = "One two three. Four five six."
OTHERS = [("alaw", 8000, 20), ("pcm", 16000, 20), ("pcm", 48000, 10), ("pcm", 22050, 20), ("ulaw", 8000, 60)]


def joined(world: World, codec: str, rate_hz: int, ptime_ms: int | None = None, lead_ms: int | None = None) -> None:
    start = m.MediaStart("c", "s", codec, rate_hz, ptime_ms=ptime_ms, lead_ms=lead_ms)
    world.session.attach_media(world.now_ns, marks=True, clears=True, start=start)
    world.pump()


def loud(world: World, codec: str, n_samples: int = 80) -> list[int]:
    """The turn of each piece of `n_samples` of the sent audio."""
    pcm = np.concatenate([CODECS[codec].decode(payload) for _, _, payload in world.frames]).astype(int)
    return [round(level / STEP) for level in np.abs(pcm[::n_samples])]


@pytest.mark.parametrize(("codec", "rate_hz", "ptime_ms"), OTHERS)
def test_turns_from_before_the_media_leg_are_spoken_in_the_legs_format(codec: str, rate_hz: int, ptime_ms: int) -> None:
    world = World(media=False)
    world.send(m.Text("One two three. ", "a"))
    world.send(m.Mark("middle", "a"))
    world.send(m.Text("Four five six.", "a", last=True))
    world.run(700)
    assert world.submitted and not world.frames
    world.events.clear()
    joined(world, codec, rate_hz, ptime_ms)
    world.run(300)
    sent = [effect.name for effect in world.log if isinstance(effect, m.MediaMark)]
    for name in sent:
        world.send(m.MediaMark(name))
    world.run(5000)
    for name in [effect.name for effect in world.log if isinstance(effect, m.MediaMark)][len(sent) :]:
        world.send(m.MediaMark(name))
    world.run(3000)
    (done,) = world.of(m.Done)
    n_bytes = rate_hz * ptime_ms // 1000 * CODECS[codec].bytes_per_sample
    assert {len(payload) for _, _, payload in world.frames} == {n_bytes}
    assert len(world.frames) * ptime_ms == done.audio_ms
    assert 1400 <= done.audio_ms < 1400 + 60 + ptime_ms
    assert set(loud(world, codec)) <= {0, 1} and loud(world, codec).count(1) > 0.9 * len(loud(world, codec))
    assert [mark.name for mark in world.of(m.MarkReached)] == ["middle"]
    ids = [utterance.id for _, utterance in world.submitted]
    assert len(set(ids)) == len(ids), "late audio of an utterance must not match another one's id"


@pytest.mark.parametrize("run_ms", [0, 30, 200, 650, 900, 3000])
def test_each_sentence_is_reported_once_whenever_the_leg_joins(run_ms: int) -> None:
    world = World(media=False, first_audio_ms=50, chunk_interval_ms=70)
    world.say(TEXT, "a")
    world.run(run_ms)
    joined(world, "pcm", 16000)
    world.run(8000)
    told = world.of(m.SentenceSpoken)
    assert [(each.index, each.text, each.start_ms) for each in told] == [
        (0, "One two three.", 0), (1, "Four five six.", told[0].end_ms),
    ]  # fmt: skip
    assert len(world.of(m.Done)) == 1
    assert set(loud(world, "pcm", 160)) <= {0, 1} and loud(world, "pcm", 160).count(1) > 130


def test_a_leg_with_the_expected_format_gets_the_ready_audio_at_once() -> None:
    world = World(media=False)
    world.say(TEXT, "a")
    world.run(700)
    n_submitted = len(world.submitted)
    joined(world, "ulaw", 8000)
    assert world.frames and not world.cancelled and len(world.submitted) == n_submitted


@pytest.mark.parametrize("run_ms", [0, 30, 260, 450])
@pytest.mark.parametrize("whole_first", [False, True])
def test_a_sentence_that_is_still_being_written_is_begun_again_too(run_ms: int, whole_first: bool) -> None:
    sentence = "I am looking at your account now, please stay with me."
    world = World(SessionSettings(first_clause_chars=0, text_mode="interleaved"), media=False)
    for word in sentence.split(" ")[:7]:
        world.send(m.Text(word + " ", "a"))
    world.run(run_ms)
    assert world.submitted[0][1].more is not None, "the engine has begun it"
    rest = m.Text(" ".join(sentence.split(" ")[7:]), "a", last=True)
    if whole_first:
        world.send(rest)
    joined(world, "alaw", 8000)
    if not whole_first:
        world.send(rest)
    world.run(20_000)
    (done,) = world.of(m.Done)
    assert abs(done.audio_ms - 50 * len(sentence)) <= 40
    assert [each.text for each in world.of(m.SentenceSpoken)] == [sentence]


def test_a_legs_own_lead_limits_what_is_sent_even_in_burst() -> None:
    """Pinned: Asterisk's queue holds 20 s. With a delay of 40 ms its XOFF came too late, and the rest was lost."""
    world = World(SessionSettings(first_clause_chars=0, pace="burst"), media=False)
    joined(world, "ulaw", 8000, lead_ms=200)
    world.say(" ".join([TEXT] * 20), "a")
    world.run(300)
    assert len(world.frames) == (300 + 200) // 20 + 1
    assert len(world.submitted) < 20, "not all of it is synthesised at once"


def test_the_lead_is_the_legs_own() -> None:
    world = World(media=False)
    joined(world, "ulaw", 8000, lead_ms=40)
    world.say(TEXT, "a")
    world.run(500)
    assert len(world.frames) == (500 + 40) // 20 + 1


def test_after_the_clear_of_a_leg_with_another_codec_nothing_is_sent() -> None:
    world = World(media=False)
    world.say(TEXT, "a")
    world.run(500)
    joined(world, "pcm", 16000)
    world.run(300)
    world.send(m.Clear())
    n_frames = len(world.frames)
    world.run(3000)
    assert len(world.frames) == n_frames
    (cleared,) = world.of(m.Cleared)
    assert TEXT.startswith(cleared.heard_text) and cleared.heard_ms <= 320


# ------------------------------------------------------------------- the caller's audio


def tone(rate_hz: int) -> np.ndarray[Any, Any]:
    return np.rint(8000 * np.sin(2 * np.pi * 440 * np.arange(rate_hz) / rate_hz)).astype(np.int16)


def listened(world: World, codec: str, rate_hz: int) -> bytes:
    """What the bot gets of a second of a tone in that codec."""
    payload = CODECS[codec].encode(tone(rate_hz))
    n = len(payload) // 50
    for i in range(0, len(payload), n):
        world.send(m.MediaAudio(payload[i : i + n], 1000 * i // len(payload)))
    return b"".join(event.payload for event in world.of(m.InboundAudio))


@pytest.mark.parametrize(("codec", "rate_hz"), [("ulaw", 8000), ("alaw", 8000), ("pcm", 16000), ("pcm", 48000)])
@pytest.mark.parametrize("asked_first", [True, False])
def test_the_bot_gets_caller_audio_in_the_requested_codec_and_rate(
    codec: str, rate_hz: int, asked_first: bool
) -> None:
    world = World(media=False)
    wish = m.Configure(inbound="binary", inbound_codec="pcm", inbound_rate_hz=16000)
    if asked_first:
        world.send(wish)
    joined(world, codec, rate_hz)
    if not asked_first:
        world.send(wish)
    pcm = np.frombuffer(listened(world, codec, rate_hz), "<i2")
    expected = tone(16000)
    assert len(pcm) == 16000
    n_late = 0 if rate_hz == 16000 else 32 if rate_hz < 16000 else 16
    assert np.corrcoef(pcm[n_late + 800 :], expected[800 : len(pcm) - n_late])[0, 1] > 0.999
    assert [event.timestamp_ms for event in world.of(m.InboundAudio)][:3] == [0, 20, 40]


def test_without_a_request_caller_audio_is_passed_on_unchanged() -> None:
    world = World(media=False)
    joined(world, "alaw", 8000)
    world.send(m.Configure(inbound="binary"))
    assert listened(world, "alaw", 8000) == CODECS["alaw"].encode(tone(8000))


def test_an_impossible_inbound_format_is_reported_and_the_legs_format_is_used() -> None:
    world = World(media=False)
    joined(world, "ulaw", 8000)
    world.send(m.Configure(inbound="binary", inbound_codec="alaw", inbound_rate_hz=16000))
    (error,) = world.of(m.ErrorEvent)
    assert error.code == "bad_field" and "alaw at 16000 Hz" in error.message and not error.fatal
    assert listened(world, "ulaw", 8000) == CODECS["ulaw"].encode(tone(8000))


@pytest.mark.parametrize(
    ("wishes", "n_bytes"),
    [
        ([{"inbound_codec": "pcm"}, {"inbound_rate_hz": 16000}], 32_000),
        ([{"inbound_codec": "pcm", "inbound_rate_hz": 16000}, {"inbound_rate_hz": 8000}], 16_000),
        ([{"inbound_codec": "pcm", "inbound_rate_hz": 16000}, {"inbound_codec": "alaw"}], 8000),
    ],
    ids=["codec, then rate", "another rate", "a codec without that rate"],
)
@pytest.mark.parametrize("asked_first", [True, False])
def test_a_config_leaves_the_half_of_the_inbound_format_that_it_does_not_name(
    wishes: list[dict[str, Any]], n_bytes: int, asked_first: bool
) -> None:
    """Pinned: a message with only the rate or the codec reset the other."""
    world = World(media=False)
    if not asked_first:
        joined(world, "ulaw", 8000)
    for wish in wishes:
        world.send(m.Configure(inbound="binary", **wish))
    if asked_first:
        joined(world, "ulaw", 8000)
    assert not world.of(m.ErrorEvent)
    assert abs(len(listened(world, "ulaw", 8000)) - n_bytes) <= 100


def test_caller_audio_that_is_not_needed_is_not_processed() -> None:
    world = World(media=False)
    joined(world, "ulaw", 8000)
    assert listened(world, "ulaw", 8000) == b""


# ------------------------------------------------------------- sockets of vendors' clients


def test_a_turn_that_was_sent_stays_in_its_format_when_the_format_changes() -> None:
    """A client names the format anew while it still plays what was sent ahead."""
    world = World(settings=replace(SessionSettings(), separate_turns=True, lead_ms=5000, codec="pcm"))
    world.say(TEXT, "a")
    world.run(500)
    assert world.of(m.TurnSent) == [m.TurnSent("a")] and not world.of(m.Done)
    world.session.change_format("pcm", 16000)
    world.say("Seven eight.", "b")
    world.run(6000)
    first, second = world.of(m.Done)
    assert (first.turn, second.turn) == ("a", "b")
    assert first.audio_ms == pytest.approx(1400, abs=60)
    assert [utterance.turn for _, utterance in world.submitted] == ["a", "a", "b"]
    sizes = [len(payload) for _, _, payload in world.frames]
    assert set(sizes) == {320, 640} and sizes == sorted(sizes)


def test_a_voice_that_a_turn_had_is_not_that_of_the_next_one_which_asks_for_none() -> None:
    world = World(settings=replace(SessionSettings(), voice="first", lang="en", speed=1.25))
    world.send(m.Configure(voice="other", lang="zh", speed=0.75))
    world.say("One two.", "a")
    world.send(m.Configure(voice="", lang="", speed=0.0))
    world.say("Three four.", "b")
    world.run(4000)
    voices = [(utterance.voice, utterance.lang, utterance.speed) for _, utterance in world.submitted]
    assert voices == [("other", "zh", 0.75), ("first", "en", 1.25)]
