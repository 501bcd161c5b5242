"""What carriers do that Twilio does not: marks inside long messages, silence that fills messages up, marks that are
lost at a clear, tones, and a codec in each direction."""

from __future__ import annotations

import numpy as np
import pytest
from world import World

from telephony_tts.audio.encoder import CODECS
from telephony_tts.session.settings import DtmfSettings, SessionSettings
from telephony_tts.wire import messages as m

TEXT = "One two three. Four five six."


def reached(world: World) -> list[tuple[str, str]]:
    return [(event.name, event.state) for event in world.of(m.MarkReached)]


def with_marks(world: World) -> None:
    world.session.attach_media(world.now_ns, marks=True, clears=True)


def test_a_mark_that_was_reached_a_while_ago_counts_from_then() -> None:
    """The peer had the mark behind a message, 80 ms after its own place."""
    for ago_ms in (0, 80):
        world = World()
        with_marks(world)
        world.say(TEXT, "a")
        world.run(20)
        first = next(e.name for e in world.log if isinstance(e, m.MediaMark) and e.name != "0.0")  # behind 20 ms
        world.run(80)
        world.send(m.MediaMark(first, ago_ms=ago_ms))
        world.run(400)
        world.send(m.Clear())
        (cleared,) = world.of(m.Cleared)
        assert (cleared.heard_ms, cleared.basis) == (420 + ago_ms, "marks")


def test_silence_behind_a_turn_delays_the_next_one() -> None:
    starts = []
    for silence_ms in (0, 80):
        world = World()
        with_marks(world)
        world.say("One two three.", "a")  # 700 ms
        world.run(505)
        assert world.session.turns[0].sent_all
        world.session.padded(silence_ms, world.now_ns)
        world.say("Four five six.", "b")
        world.run(600)
        starts.append(next(at_ms for at_ms, turn, _ in world.frames if turn == 2))
    assert starts[1] - starts[0] == pytest.approx(80 - 5)


def test_silence_inside_a_turn_delays_the_rest_of_it_and_no_mark_lies() -> None:
    heard_ms = []
    for silence_ms in (0, 60):
        world = World(SessionSettings(first_clause_chars=0, lead_ms=100), peer=True)
        world.say("One two three four five six seven.", "a")
        world.run(400)
        n_before = len(world.frames)
        if silence_ms:
            world._peer_end_ns += silence_ms * 1_000_000
            world.session.padded(silence_ms, world.now_ns)
        world.run(200)
        assert len(world.frames) - n_before == (200 - silence_ms) // 20
        world.run(200)
        world.send(m.Clear())
        (cleared,) = world.of(m.Cleared)
        assert cleared.basis == "marks"
        heard_ms.append(cleared.heard_ms)
    assert heard_ms[0] - heard_ms[1] == 60


@pytest.mark.parametrize("echoes", [True, False])
def test_a_turn_that_stays_does_not_wait_for_marks_that_a_clear_threw_away(echoes: bool) -> None:
    """Pinned: the peer plays 100 ms later than our clock says, so the mark that the clock had passed was in its buffer.
    Plivo and Asterisk drop it there, and the turn waited two seconds for its echo."""
    settings = SessionSettings(first_clause_chars=0, lead_ms=1000)
    world = World(settings, peer=True, peer_delay_ms=100, echoes_cleared=echoes)
    world.send(m.Text("One two three four ", "a"))
    world.send(m.Mark("here", "a"))  # behind 900 ms
    world.send(m.Text("five six seven.", "a", last=True))  # 1700 ms
    world.say("Nine ten.", "b")
    world.run(950)
    assert [turn.playout.n_sent > 0 for turn in world.session.turns] == [True, True] and not reached(world)
    world.send(m.Clear("b"))
    world.run(1100)
    assert reached(world) == [("here", "played")]
    assert [done.turn for done in world.of(m.Done)] == ["a"]


def test_tones_go_to_a_leg_that_can_send_them() -> None:
    world = World()
    world.session.attach_media(world.now_ns, marks=True, clears=True, dtmf=True)
    world.say(TEXT, "a")
    world.run(100)
    world.send(m.SendDtmf("12#"))
    assert not world.of(m.MediaTones), "they wait for the speech before them"
    world.run(5000)
    assert world.of(m.MediaTones) == [m.MediaTones("12#", 100, 100)] and not world.of(m.WarningEvent)
    assert [done.turn for done in world.of(m.Done)] == ["a", "t2"]


@pytest.mark.parametrize(
    ("media", "leg", "why"), [(True, False, "no message"), (False, False, "no media leg"), (False, True, "no message")]
)
def test_tones_that_cannot_be_sent_are_a_warning(media: bool, leg: bool, why: str) -> None:
    world = World(SessionSettings(first_clause_chars=0, dtmf=DtmfSettings("message")), media=media)
    if leg:
        with_marks(world)
    world.say(TEXT, "a")
    world.send(m.SendDtmf("12#"))
    (warning,) = world.of(m.WarningEvent)
    assert warning.code == "dtmf_not_supported" and why in warning.message and warning.turn is None
    assert not world.of(m.MediaTones) and not world.of(m.ErrorEvent)
    if media or leg:
        world.run(5000)
        assert [done.turn for done in world.of(m.Done)] == ["a"]


def listened(world: World, payload: bytes) -> bytes:
    world.send(m.MediaAudio(payload))
    return b"".join(event.payload for event in world.of(m.InboundAudio))


def test_the_callers_audio_may_have_another_codec_than_the_speech() -> None:
    start = m.MediaStart("c", "s", "pcm", 16000, caller_format=("alaw", 8000))
    tone = np.rint(8000 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)).astype(np.int16)
    world = World(media=False)
    world.send(m.Configure(inbound="binary"))
    world.session.attach_media(world.now_ns, marks=True, clears=True, start=start)
    heard = np.frombuffer(listened(world, CODECS["alaw"].encode(tone)), "<i2")
    wanted = 8000 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert len(heard) == 16000
    assert np.corrcoef(heard[800:], wanted[768:-32])[0, 1] > 0.999, "in the format of the speech, 2 ms later"
    world.say("One.", "a")
    world.run(100)
    assert {len(payload) for _, _, payload in world.frames} == {640}
    asks = World(media=False)
    asks.send(m.Configure(inbound="binary", inbound_codec="alaw", inbound_rate_hz=8000))
    asks.session.attach_media(asks.now_ns, marks=True, clears=True, start=start)
    assert listened(asks, CODECS["alaw"].encode(tone)) == CODECS["alaw"].encode(tone), "as it came"
