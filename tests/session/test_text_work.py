"""Text that the session may not work on at once: it waits, and nothing else changes."""

from __future__ import annotations

from world import MS, World

from telephony_tts.session.effects import Synthesize
from telephony_tts.session.session import Session
from telephony_tts.session.settings import CallLimits, SessionSettings
from telephony_tts.wire import messages as m

LONG = SessionSettings(first_clause_chars=0, limits=CallLimits(turn_chars=100_000))
SENTENCE = "One two three four five. "


class Time:
    """So many pieces of text may still be worked on."""

    def __init__(self, n_pieces: int) -> None:
        self.n_pieces = n_pieces

    def may_work(self) -> bool:
        self.n_pieces -= 1
        return self.n_pieces >= 0


def synthesized(session: Session, now_ns: int) -> list[str]:
    return [effect.utterance.text for effect in session.poll(now_ns) if isinstance(effect, Synthesize)]


def test_text_waits_until_there_is_time() -> None:
    time = Time(0)
    session = Session(LONG, 0, may_work=time.may_work)
    session.receive(m.Say(SENTENCE, "a"), 0)
    assert synthesized(session, 0) == [] and session.text_waits
    deadline_ns = session.deadline_ns()
    assert deadline_ns is None or deadline_ns > 0, "it does not ask again by itself: who has the time says when"
    time.n_pieces = 4
    assert synthesized(session, 5 * MS) == [], "not before it is told"
    session.read_on()
    assert synthesized(session, 5 * MS) == [SENTENCE.strip()] and not session.text_waits


def test_a_turn_takes_no_more_pieces_than_there_is_time_for() -> None:
    time = Time(1)
    session = Session(LONG, 0, may_work=time.may_work)
    session.receive(m.Say("(" * 4000, "a"), 0)
    session.poll(0)
    (turn,) = session.turns
    assert (turn._n_cut, session.text_waits) == (256, True)
    time.n_pieces = 2
    session.read_on()
    session.poll(0)
    assert (turn._n_cut, session.text_waits) == (768, True)


def test_long_markup_is_read_in_pieces() -> None:
    time = Time(0)
    session = Session(LONG, 0, may_work=time.may_work)
    session.receive(m.Say(f"<speak>{SENTENCE * 1000}</speak>", "a"), 0)
    session.poll(0)
    (turn,) = session.turns
    assert turn.n_chars < 1024 and turn.n_source_chars == len(SENTENCE) * 1000 + len("<speak></speak>")
    for n in range(2, 5):
        time.n_pieces = 1
        session.read_on()
        session.poll(0)
        assert 1024 * n - 20 < turn.n_chars < 1024 * n, "a kilobyte of markup is a piece"
    assert turn.closed and not turn.text_exhausted


def test_what_is_sent_behind_long_markup_stands_behind_all_of_it() -> None:
    world = World(LONG)
    text = f"<speak>{SENTENCE * 60}"
    world.session.receive(m.Text(text, "a"), world.now_ns)
    world.session.receive(m.Mark("behind", "a"), world.now_ns)
    world.session.receive(m.Text("Six seven eight.</speak>", "a", last=True), world.now_ns)
    world.pump()
    world.run(120_000)
    at = next(n for n, effect in enumerate(world.log) if isinstance(effect, m.MarkReached))
    n_frames = sum(isinstance(effect, m.Frame) for effect in world.log[:at])
    before, behind = world.of(m.SentenceSpoken)[-2:]
    assert behind.text.startswith("Six") and before.end_ms <= 20 * n_frames < behind.end_ms


def test_a_tag_over_two_pieces_is_one_tag() -> None:
    text = "word " * 204
    assert len(text) == 1020
    world = World(LONG)
    world.say(f'<speak>{text}. <sub alias="instead">never</sub>.</speak>', "a")
    world.run(300_000)
    assert world.of(m.WarningEvent) == []
    assert [utterance.text for _, utterance in world.submitted][-1].endswith("word . instead.")


def test_markup_that_turns_out_to_be_plain_loses_nothing() -> None:
    """A turn that begins with what could be `<speak>`."""
    world = World(LONG)
    world.session.receive(m.Text("<", "a"), world.now_ns)
    world.session.receive(m.Text("7 is small. " + SENTENCE * 100, "a", last=True), world.now_ns)
    world.pump()
    world.run(600_000)
    assert "".join(utterance.text for _, utterance in world.submitted).count("five") == 100
