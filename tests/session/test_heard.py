"""What the caller heard, as a place in the bot's text."""

from __future__ import annotations

import pytest
from world import World

from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

# 50 ms per character: "Your balance is" ends at 750 ms.
BALANCE = "Your balance is forty euros. Thank you for calling."


def cleared_at(ms: float, text: str = BALANCE, **shape: object) -> m.Cleared:
    world = World(**shape)  # type: ignore[arg-type]
    world.say(text, "a")
    world.run(ms)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.heard_text + cleared.unheard_text == text
    return cleared


@pytest.mark.parametrize("timings", [True, False])
@pytest.mark.parametrize(
    ("ms", "heard"),
    [(0, ""), (150, ""), (210, "Your"), (590, "Your"), (610, "Your balance"), (760, "Your balance is")],
)
def test_cut_at_the_last_whole_word(ms: float, heard: str, timings: bool) -> None:
    cleared = cleared_at(ms, timings=timings)
    assert cleared.heard_text == heard
    assert (cleared.heard_chars, cleared.basis, cleared.reason) == (len(heard), "clock", "clear")


def test_heard_ms_is_what_was_played_and_not_what_was_sent() -> None:
    world = World()
    world.say(BALANCE)
    world.run(760)
    assert len(world.frames) * 20 == 980
    world.send(m.Clear())
    assert world.of(m.Cleared)[0].heard_ms == 760


def test_a_heard_sentence_keeps_its_full_stop() -> None:
    assert cleared_at(1420).heard_text == "Your balance is forty euros."


def test_a_number_half_spoken_was_not_heard() -> None:
    # "$42.50" is read out as words, and counts as heard only when all of it was heard.
    text = "It is $42.50 today, sir."
    spoken = World()
    spoken.say(text)
    spoken.run(1)
    utterance = spoken.submitted[0][1].text
    assert "42" not in utterance
    end_ms = 50 * utterance.index(" today")
    assert cleared_at(end_ms - 30, text).heard_text == "It is"
    assert cleared_at(end_ms + 30, text).heard_text == "It is $42.50"


def test_chinese_is_cut_at_a_character() -> None:
    # one "word" without timings: five of nine characters at 50 ms each
    cleared = cleared_at(255, "您的订单已经发出了。", timings=False)
    assert cleared.heard_text == "您的订单已"


def test_while_the_sentence_is_still_being_synthesised() -> None:
    world = World(chunk_interval_ms=10_000)
    world.say("one two three four five six")
    world.run(5000)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.heard_ms <= 100
    assert cleared.heard_text == ""


def test_the_clients_heard_ms_overrides_the_clock() -> None:
    world = World()
    world.say(BALANCE, "a")
    world.run(1000)
    world.send(m.Clear("a", heard_ms=620))
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_text, cleared.heard_ms, cleared.basis) == ("Your balance", 620, "client")


def test_a_client_cannot_have_heard_what_was_not_sent() -> None:
    world = World()
    world.say(BALANCE, "a")
    world.run(100)
    world.send(m.Clear("a", heard_ms=60_000))
    assert world.of(m.Cleared)[0].heard_ms <= 320


def test_less_was_heard_of_a_peer_that_plays_late() -> None:
    """The echo of the first mark shows that the peer began 150 ms late. The clock alone would report too much."""
    by_clock = cleared_at(760)
    world = World(peer=True, peer_delay_ms=150)
    world.say(BALANCE, "a")
    world.run(760)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.basis == "marks"
    assert 590 <= cleared.heard_ms <= 630
    assert (by_clock.heard_text, cleared.heard_text) == ("Your balance is", "Your balance")


def test_without_mark_reports_the_clock_counts() -> None:
    world = World()
    world.session.attach_media(world.now_ns, marks=True, clears=True)
    world.say(BALANCE)
    world.run(760)
    world.send(m.Clear())
    assert (world.of(m.Cleared)[0].heard_ms, world.of(m.Cleared)[0].basis) == (760, "clock")


def test_nothing_counts_as_heard_beyond_a_missing_mark_report() -> None:
    """The peer echoed only the first frame's mark, so the end of the sentence was not played, whatever the time."""
    world = World()
    world.session.attach_media(world.now_ns, marks=True, clears=True)
    world.send(m.Text("One two three. Four five six.", "a"))
    world.send(m.Mark("end", "a"))
    world.send(m.End("a"))
    world.run(20)
    names = [effect.name for effect in world.log if isinstance(effect, m.MediaMark) and effect.name != "0.0"]
    world.send(m.MediaMark(names[0]))
    world.run(2500)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert (cleared.heard_text, cleared.heard_ms, cleared.basis) == ("One two three.", 700, "marks")
    assert [(mark.name, mark.state) for mark in world.of(m.MarkReached)] == [("end", "cleared")]


def test_a_mark_without_a_report_is_not_played_even_at_its_exact_place() -> None:
    world = World()
    world.session.attach_media(world.now_ns, marks=True, clears=True)
    world.send(m.Text("One two three. ", "a"))
    world.send(m.Mark("here", "a"))
    world.send(m.Text("Four five six.", "a", last=True))
    world.run(20)
    first = next(e.name for e in world.log if isinstance(e, m.MediaMark) and e.name != "0.0")
    world.send(m.MediaMark(first))
    world.run(1200)
    world.send(m.Clear())
    assert world.of(m.Cleared)[0].heard_ms == 700
    assert [(mark.name, mark.state) for mark in world.of(m.MarkReached)] == [("here", "cleared")]


def test_underruns_do_not_count_as_heard() -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=0), chunk_interval_ms=400)
    world.say("one two three four five six.")
    world.run(1000)
    n_ms = len(world.frames) * 20
    world.send(m.Clear())
    assert world.of(m.Cleared)[0].heard_ms <= n_ms < 500


def test_a_clear_of_all_turns_reports_what_was_heard_of_each() -> None:
    world = World()
    world.say("One two.", "a")
    world.say("Three four.", "b")
    world.say("Five.", "c")
    world.run(700)
    world.send(m.Clear())
    heard = {event.turn: event.heard_text for event in world.of(m.Cleared)}
    assert heard == {"b": "Three", "c": ""}
    assert [done.turn for done in world.of(m.Done)] == ["a"]


@pytest.mark.parametrize(
    ("text", "ms", "heard"),
    [
        ("𠮷野家在这里等您。", 55, "𠮷"),
        ("안녕하세요 고객님 반갑습니다.", 330, "안녕하세요"),
        ("안녕하세요 고객님.", 155, ""),
    ],
)
def test_a_rare_ideograph_stands_alone_and_korean_is_written_in_words(text: str, ms: float, heard: str) -> None:
    assert cleared_at(ms, text, timings=False).heard_text == heard


@pytest.mark.parametrize("delay_ms", [0, 150, 500])
@pytest.mark.parametrize(("lead_ms", "bulk_ms"), [(100, 0), (1000, 200)])
def test_a_pause_of_the_bot_does_not_count_as_heard(lead_ms: int, bulk_ms: int, delay_ms: int) -> None:
    """Pinned: the clock ran on from the last mark before it, up to all that had been sent ahead. A peer that plays late
    plays late behind the pause too."""
    settings = SessionSettings(first_clause_chars=0, lead_ms=lead_ms, bulk_ms=bulk_ms)
    world = World(settings, peer=True, peer_delay_ms=delay_ms)
    world.send(m.Text("One two three. ", "a"))
    world.send(m.Flush("a"))
    world.run(2700)
    world.send(m.Text("Four five six seven eight nine ten eleven.", "a", last=True))
    begun_ms = world.now_ms
    world.run(300 + delay_ms)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.basis == "marks" and cleared.heard_text == "One two three. Four"
    assert abs(cleared.heard_ms - (700 + world.now_ms - begun_ms - delay_ms)) <= 20


@pytest.mark.parametrize(("lead_ms", "bulk_ms"), [(100, 0), (1000, 200)])
def test_a_gap_of_the_engine_does_not_count_as_heard(lead_ms: int, bulk_ms: int) -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=lead_ms, bulk_ms=bulk_ms), peer=True)
    world.say("one two three four five six seven eight nine ten eleven twelve.", "a")
    name = world.submitted[0][1].id
    rest, world._queued[name][5:] = world._queued[name][5:], []
    world.open[name] = "the rest is to come"
    world.run(1100)
    n_before = len(world.frames)
    world._queued[name] = rest
    del world.open[name]
    world._starved.discard(name)
    world._give(name)
    world.pump()
    world.run(100)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.basis == "marks" and abs(cleared.heard_ms - (n_before * 20 + 100)) <= 20
