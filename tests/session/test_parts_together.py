"""Features of a call beside each other: each test is a history that once broke a promise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from test_pause import CountingWorld, settings
from world import World

from telephony_tts.engines.api import Chunk
from telephony_tts.engines.inserts import Silence
from telephony_tts.session.digits import Digits
from telephony_tts.session.handover import hand_over
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m


class Hum:
    """A sound that never ends."""

    def chunks(self) -> Iterator[Chunk]:
        for _ in itertools.count():
            yield Chunk(np.full(1_600, 5_000, np.int16), 8_000)


@pytest.mark.parametrize("peer", [True, False])
def test_a_pause_ends_when_all_was_heard(peer: bool) -> None:
    """The turn ends with `done` because all of it was heard. The next turn must not wait for a `resume`."""
    world = World(ms_per_char=20, peer=peer, peer_delay_ms=80 if peer else 0)
    world.say("Hello there.", "a")
    world.run(235 if peer else 200)
    world.send(m.PauseSpeech(heard_ms=10_000))
    world.run(3_000)
    assert world.terminals("a")
    world.say("And you?", "b")
    world.run(3_000)
    assert [type(event) for event in world.terminals("b")] == [m.Done]


@pytest.mark.parametrize("heard_ms", [60_000, None])
def test_the_schedule_stands_still_in_a_pause_of_which_nothing_is_taken_back(heard_ms: int | None) -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=20))
    world.session.insert(Silence(8_000), None, world.now_ns)
    world.pump()
    world.run(1_000)
    world.send(m.PauseSpeech(heard_ms))
    world.run(10_000)
    n_frames = len(world.frames)
    world.send(m.ResumeSpeech())
    world.run(100)
    assert len(world.frames) - n_frames <= 8, "no burst of what was due in the pause"
    world.run(2_000)
    world.send(m.Clear())
    assert world.of(m.Cleared)[0].heard_ms <= 3_200


def test_the_callers_voice_does_not_end_a_pause_of_the_bot() -> None:
    """The bot has paused while its open turn waits for text. What was sent was heard."""
    world = World(ms_per_char=20)
    world.send(m.Text("Hello there. ", "a"))
    world.run(2_000)
    world.send(m.PauseSpeech())
    (turn,) = world.session.turns
    assert turn.playout.t0_ns is None, "it does not sound"


def test_an_endless_sound_without_a_pace_is_made_a_little_ahead() -> None:
    world = World(SessionSettings(pace="burst"))
    world.session.insert(Hum(), None, world.now_ns)
    world.pump()
    world.run(1_000)
    assert len(world.frames) * 20 < 4_000


def test_digits_that_come_while_a_sentence_is_spoken_keep_it_from_being_kept() -> None:
    world = World(SessionSettings(first_clause_chars=0, text_mode="interleaved"), ms_per_char=20)
    world.send(m.Text("Your secret code for the door is ", "a"))
    world.run(10)
    (_, opened) = world.submitted[0]
    assert opened.more is not None and not opened.has_digits
    world.send(m.Text("4711 today.", "a", True))
    world.run(10)
    (turn,) = world.session.turns
    assert hand_over(turn, turn.parts[0]).is_private


def test_digits_in_a_tag_count_as_the_bots() -> None:
    world = World()
    world.say('<speak>Your code is <sub alias="4711">secret</sub>.</speak>', "a")
    assert world.submitted[0][1].has_digits


def test_a_sentence_that_waits_for_its_engine_may_end_meanwhile() -> None:
    """A peer that plays whole sentences has enough, so the beginning of the next one is not given to an engine yet."""
    start = m.MediaStart("c", "s", "ulaw", 8_000, whole_sentences=True, ahead_ms=8_000)
    world = World(SessionSettings(first_clause_chars=0, text_mode="interleaved", lead_ms=60_000), media=False)
    world.session.attach_media(world.now_ns, marks=True, clears=True, start=start)
    world.send(m.Text("This is a long sentence that takes much more than eight seconds to speak, "
                      "because it has so many words in it, and because each takes its time, as words do. " * 2, "a"))
    world.run(300)
    world.send(m.Text("And the next one begins with a few certain words", "a"))
    world.run(300)
    world.send(m.Text(" and ends here.", "a", True))
    world.run(90_000)
    assert not world.of(m.ErrorEvent)
    assert "".join(utterance.text for _, utterance in world.submitted).endswith("ends here.")


def test_no_tone_is_heard_twice_after_a_pause() -> None:
    """Two tones of 100 ms behind 40 ms of silence, with 100 ms between them: the second begins at 240 ms."""
    digits = Digits("12", 8_000, 100, 100, by_message=False)
    assert digits.resume_ms(190) == 190, "between two tones"
    assert digits.resume_ms(300) == 340, "a receiver may have taken it for a key"
    assert digits.resume_ms(260) == 200, "too short for a key: it begins again, behind silence"
    assert digits.resume_ms(230) == 200 and digits.resume_ms(20) == 0


def test_a_drain_speaks_what_a_bot_has_paused() -> None:
    world = CountingWorld(settings())
    world.say("One two three.", "a")
    world.run(100)
    world.send(m.PauseSpeech())
    world.session.close(world.now_ns, code=1001, reason="drain")
    world.pump()
    world.run(5_000)
    assert world.of(m.Done) and world.finished is not None and world.finished.code == 1001


def test_a_call_does_not_close_before_the_platform_has_sent_its_tones() -> None:
    world = World(media=False)
    world.session.attach_media(world.now_ns, marks=False, clears=True, dtmf=True)
    world.send(m.SendDtmf("1ww23"))
    world.send(m.Close())
    world.run(1_000)
    assert world.finished is None
    world.run(2_000)
    assert world.finished is not None
