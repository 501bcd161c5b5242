"""The bot's text: which turn it belongs to, what is refused, and which events come back."""

from __future__ import annotations

from typing import Any

import pytest
from world import World

from telephony_tts.runtime.errors import EngineError, UnsupportedText
from telephony_tts.session.settings import CallLimits, SessionSettings
from telephony_tts.wire import messages as m


def spoken(world: World) -> list[str]:
    return [utterance.text for _, utterance in world.submitted]


def codes(world: World, kind: type) -> list[str]:
    return [event.code for event in world.of(kind)]


def with_limits(**limits: Any) -> World:
    own = {name: limits.pop(name) for name in ("pause_chars", "resume_chars") if name in limits}
    return World(SessionSettings(first_clause_chars=0, limits=CallLimits(**limits), **own))


# ------------------------------------------------------------------ which turn


def test_tokens_become_sentences_as_they_arrive() -> None:
    world = World()
    for token in ["Your", " parcel", " is", " here", ".", " Anything"]:
        world.send(m.Text(token))
    world.run(10)
    assert spoken(world) == ["Your parcel is here."]
    world.send(m.Text(" else?", last=True))
    world.run(5000)
    assert spoken(world) == ["Your parcel is here.", "Anything else?"]
    (done,) = world.of(m.Done)
    assert (done.turn, done.chars) == ("t1", 35)


def test_text_without_an_id_joins_the_open_turn_and_starts_a_new_one_after_its_end() -> None:
    world = World()
    world.send(m.Text("One. "))
    world.send(m.Text("Two."))
    world.send(m.End())
    world.send(m.Text("Three.", last=True))
    world.run(9000)
    assert [(d.turn, d.chars) for d in world.of(m.Done)] == [("t1", 9), ("t2", 6)]


def test_our_names_do_not_collide_with_the_bots() -> None:
    world = World()
    world.say("One.", "t1")
    world.say("Two.")
    world.run(9000)
    assert [d.turn for d in world.of(m.Done)] == ["t1", "t2"]


def test_turns_speak_in_the_order_of_their_first_mention() -> None:
    world = World()
    world.send(m.Text("One ", "a"))
    world.send(m.Text("two.", "b", last=True))
    world.run(3000)
    assert world.of(m.Done) == [], "b waits for a"
    world.send(m.Text("half.", "a", last=True))
    world.run(9000)
    assert [d.turn for d in world.of(m.Done)] == ["a", "b"]
    assert [utterance.turn for _, utterance in world.submitted][-1] == "b", "the engine was not given b first either"


def test_an_utterance_says_whether_it_follows_another_of_its_turn() -> None:
    """Silence before the first sentence of a turn is waiting. Before the others it is a gap."""
    world = World()
    world.send(m.Text("One. Two. ", "a"))
    world.run(5000)
    world.send(m.Text("Three.", "a", last=True))
    world.send(m.Text("Four.", "b", last=True))
    world.run(9000)
    told = [(utterance.turn, utterance.text.strip(), utterance.follows) for _, utterance in world.submitted]
    assert told == [("a", "One.", False), ("a", "Two.", True), ("a", "Three.", True), ("b", "Four.", False)]


def test_a_whole_turn_ends_the_one_left_open() -> None:
    world = World()
    world.send(m.Text("Left open"))
    world.say("Next.")
    world.run(9000)
    assert [d.turn for d in world.of(m.Done)] == ["t1", "t2"]


def test_late_tokens_of_a_cleared_turn_do_not_speak_again() -> None:
    world = World()
    world.send(m.Text("One two three. ", "a"))
    world.run(100)
    world.send(m.Clear())
    n = len(world.frames)
    for token in ["Four ", "five. ", "Six."]:
        world.send(m.Text(token, "a"))
    world.run(5000)
    assert len(world.frames) == n
    assert codes(world, m.WarningEvent) == ["turn_ended"], "one warning, not one for each token"
    assert len(world.terminals("a")) == 1


def test_late_text_does_not_change_how_its_turn_ended() -> None:
    world = World()
    world.say("One.", "a")
    world.run(2000)
    world.send(m.Text("late", "a"))
    world.send(m.Mark("x", "a"))
    assert [(mark.name, mark.state) for mark in world.of(m.MarkReached)] == [("x", "played")]


def test_waiting_behind_an_earlier_turn_is_not_latency() -> None:
    world = World(first_audio_ms=40)
    world.say("One two three.", "a")
    world.say("Four.", "b")
    world.run(5000)
    assert [event.first_audio_ms for event in world.of(m.Started)] == [40, 0]


def test_text_without_an_id_after_a_clear_is_a_new_turn() -> None:
    world = World()
    world.send(m.Text("One two three. "))
    world.run(100)
    world.send(m.Clear())
    world.send(m.Text("Four.", last=True))
    world.run(3000)
    assert [event.turn for event in world.events if isinstance(event, m.Cleared | m.Done)] == ["t1", "t2"]


def test_text_after_the_end_of_a_turn_still_playing_is_refused() -> None:
    world = World()
    world.say("One two three.", "a")
    world.send(m.Text("More.", "a"))
    world.say("Again.", "a")
    world.run(5000)
    assert codes(world, m.ErrorEvent) == ["turn_closed", "turn_exists"]
    assert all(event.about == "a" and event.turn is None for event in world.of(m.ErrorEvent))
    assert [type(event) for event in world.terminals("a")] == [m.Done]


# --------------------------------------------------------------- end of a turn


def test_flush_speaks_what_is_there_and_leaves_the_turn_open() -> None:
    world = World()
    world.send(m.Text("One moment", "a"))
    world.run(200)
    assert spoken(world) == []
    world.send(m.Flush())
    world.run(10)
    assert spoken(world) == ["One moment"]
    world.send(m.Text(" please.", "a", last=True))
    world.run(5000)
    assert spoken(world) == ["One moment", "please."]
    assert world.of(m.Done)[0].chars == 18


def test_pending_text_is_spoken_after_the_text_timeout() -> None:
    world = World(SessionSettings(first_clause_chars=0, text_timeout_ms=700))
    world.send(m.Text("One moment please, your code is 12", "a"))
    world.run(699)
    assert spoken(world) == []
    world.run(10)
    assert spoken(world) == ["One moment please, your code is"], "the number may go on"
    world.send(m.Text("34.", "a", last=True))
    world.run(9000)
    assert len(spoken(world)) == 2 and world.of(m.Done)


def test_an_ordinary_last_word_waits_for_a_second_timeout() -> None:
    """"exam" may become "example.com". After two pauses it is a word."""
    world = World(SessionSettings(first_clause_chars=0, text_timeout_ms=700))
    world.send(m.Text("Please hold on", "a"))
    world.run(1399)
    assert spoken(world) == []
    world.run(2)
    assert spoken(world) == ["Please hold on"]


def test_a_turn_left_open_is_ended_with_a_warning() -> None:
    world = with_limits(turn_idle_s=5)
    world.send(m.Text("One.", "a"))
    world.say("Two.", "b")
    world.run(4990)
    assert world.of(m.Done) == []
    world.run(3000)
    assert codes(world, m.WarningEvent) == ["turn_timeout"]
    assert [d.turn for d in world.of(m.Done)] == ["a", "b"]


def test_without_a_turn_limit_the_text_timeout_still_works() -> None:
    world = with_limits(turn_idle_s=0)
    world.send(m.Text("One moment", "a"))
    world.run(2000)
    assert spoken(world) == ["One moment"]


@pytest.mark.parametrize("text", ["", "   ", "…!?", "😀👍", "**"])
def test_a_turn_without_a_speakable_character_is_done_with_a_warning(text: str) -> None:
    world = World()
    world.say(text, "a")
    world.run(100)
    (done,) = world.terminals("a")
    assert isinstance(done, m.Done) and done.audio_ms == 0
    assert codes(world, m.WarningEvent) == ["empty_text"]
    assert world.of(m.Started) == []


def test_an_unspeakable_piece_does_not_stop_the_rest() -> None:
    world = World()
    world.say("😀😀\n\nHello there.", "a")
    world.run(3000)
    assert spoken(world)[-1].endswith("Hello there.")
    assert isinstance(world.terminals("a")[0], m.Done)


# --------------------------------------------------------------------- limits


def test_a_turn_too_long_is_refused_whole() -> None:
    world = with_limits(turn_chars=20)
    world.say("x" * 21, "a")
    (error,) = world.terminals("a")
    assert (error.code, error.fatal) == ("text_too_long", False)
    world.say("Short.", "b")
    world.run(3000)
    assert [d.turn for d in world.of(m.Done)] == ["b"]


def test_a_running_turn_keeps_what_it_has() -> None:
    world = with_limits(turn_chars=20)
    world.send(m.Text("Hello there. ", "a"))
    world.send(m.Text("This is too much.", "a"))
    world.send(m.End("a"))
    world.run(5000)
    (error,) = world.of(m.ErrorEvent)
    assert (error.code, error.turn, error.about) == ("text_too_long", None, "a")
    assert spoken(world) == ["Hello there."]
    assert [type(event) for event in world.terminals("a")] == [m.Done]


@pytest.mark.parametrize("is_last", [True, False])
def test_a_turn_whose_last_text_is_refused_ends(is_last: bool) -> None:
    """Pinned: a refused text with `last` left its turn open, and the turns behind it waited."""
    world = with_limits(turn_chars=20)
    world.send(m.Text("Hello there. ", "a"))
    world.send(m.Text("This is too much.", "a", is_last))
    if not is_last:
        world.send(m.End("a"))
    world.say("Short.", "b")
    world.run(5000)
    assert codes(world, m.ErrorEvent) == ["text_too_long"]
    assert spoken(world) == ["Hello there.", "Short."]
    assert [done.turn for done in world.of(m.Done)] == ["a", "b"]


def test_queued_turns_have_a_bound() -> None:
    world = with_limits(queued_turns=3)
    for n in range(5):
        world.say("One.", f"q{n}")
    refused = world.of(m.ErrorEvent)
    assert [(e.code, e.turn, e.retryable) for e in refused] == [("queue_full", "q3", True), ("queue_full", "q4", True)]
    world.run(20_000)
    assert [d.turn for d in world.of(m.Done)] == ["q0", "q1", "q2"]


def test_text_faster_than_allowed_is_refused_and_then_accepted_again() -> None:
    world = with_limits(text_chars_per_s=100, turn_chars=100)
    for n in range(4):
        world.say("x" * 80, f"r{n}")
    assert codes(world, m.ErrorEvent) == ["rate_limited", "rate_limited"]
    world.run(2000)
    world.say("Back again.", "r9")
    assert codes(world, m.ErrorEvent) == ["rate_limited", "rate_limited"]


def test_text_backpressure_asks_for_a_pause_and_lifts_it() -> None:
    world = with_limits(pause_chars=200, resume_chars=50)
    world.send(m.Text("This is a sentence of text. " * 12, "a"))
    (pause,) = world.of(m.Pause)
    assert pause.buffered_chars > 200 and world.of(m.Resume) == []
    world.send(m.End("a"))
    world.run(60_000)
    (resume,) = world.of(m.Resume)
    assert 0 < resume.buffered_chars <= 50
    assert len(world.of(m.Pause)) == 1 and len(spoken(world)) == 12


def test_an_idle_call_is_closed_and_a_speaking_one_is_not() -> None:
    world = with_limits(idle_s=2)
    world.say("one two three four five six seven eight nine ten eleven twelve.", "a")
    world.run(2500)
    assert world.finished is None
    world.run(3000)
    assert world.finished is not None and world.finished.code == 1008
    assert world.of(m.ErrorEvent)[-1].code == "idle"


# ------------------------------------------------------------ config and status


def test_settings_hold_for_the_turns_that_begin_after_them() -> None:
    world = World()
    world.send(m.Text("One. ", "a"))
    world.send(m.Configure(voice="v2", speed=1.5, seed=7, instruct="kind", lang="en"))
    world.send(m.Text("Two.", "a", last=True))
    world.say("Three.", "b")
    world.send(m.Configure(speed=1.0))
    world.say("Four.", "c")
    world.run(9000)
    settings = [(u.text, u.voice, u.speed, u.seed, u.instruct) for _, u in world.submitted]
    assert settings == [
        ("One.", None, 1.0, None, None),
        ("Two.", None, 1.0, None, None),
        ("Three.", "v2", 1.5, 7, "kind"),
        ("Four.", "v2", 1.0, 7, "kind"),
    ]


def test_status_and_ping() -> None:
    world = World()
    world.say("one two three four five six seven.", "a")
    world.say("Next.", "b")
    world.run(500)
    world.send(m.Status())
    world.send(m.Ping(7))
    report = world.of(m.StatusReport)[0]
    assert report.speaking == "a" and [turn["turn"] for turn in report.turns] == ["a", "b"]
    assert report.buffered_ms > 0 and report.media == "attached"
    assert world.of(m.Pong)[0].id == 7


def test_invalid_input_is_an_error_event_and_the_call_goes_on() -> None:
    world = World()
    world.say("one two three.", "a")
    world.send(m.Invalid("bad_json", "no"))
    world.run(3000)
    (error,) = world.of(m.ErrorEvent)
    assert (error.code, error.fatal, error.turn) == ("bad_json", False, None)
    assert isinstance(world.terminals("a")[0], m.Done)


def test_end_flush_and_clear_without_a_turn_get_a_warning() -> None:
    world = World()
    for message in (m.Clear(), m.End(), m.Flush(), m.Clear("zz"), m.End("zz")):
        world.send(message)
    assert codes(world, m.WarningEvent) == ["no_active_turn"] * 5


# ------------------------------------------------------------------- stopping


def test_engine_failure_ends_its_turn_and_the_next_one_speaks() -> None:
    world = World(first_audio_ms=50)
    world.say("One.", "a")
    world.say("Two.", "b")
    world.run(1)
    failure = UnsupportedText("hibari speaks English; espeak can say this")
    world.session.audio_failed(world.submitted[0][1].id, failure, world.now_ns)
    world.pump()
    (error,) = world.terminals("a")
    assert (error.code, error.heard_text, error.unheard_text) == ("unsupported_text", "", "One.")
    world.run(5000)
    assert isinstance(world.terminals("b")[0], m.Done)


def test_an_engine_that_hangs_ends_its_turn_and_not_the_call() -> None:
    world = World(SessionSettings(engine_timeout_ms=5000), first_audio_ms=7000)
    world.say("One.", "a")
    world.run(4999)
    assert world.terminals("a") == []
    world.run(2)
    (error,) = world.terminals("a")
    assert (error.code, error.retryable) == ("engine_failed", True) and len(world.cancelled) == 1
    world.first_audio_ms = 0
    world.say("Two.", "b")
    world.run(9000)
    assert isinstance(world.terminals("b")[0], m.Done)


def test_clear_overtakes_everything_and_cancels_the_engine() -> None:
    world = World(chunk_interval_ms=20)
    world.send(m.Text("One two three four. " * 100, "a"))
    world.say("Queued.", "b")
    world.run(500)
    n = len(world.frames)
    world.send(m.Clear())
    assert world.cancelled == [world.submitted[-1][1].id]
    assert [event.turn for event in world.of(m.Cleared)] == ["a", "b"]
    world.run(5000)
    assert [turn for _, turn, _ in world.frames[n:] if turn] in ([], [1]), "at most the faded end"
    world.say("After.", "c")
    world.run(3000)
    assert isinstance(world.terminals("c")[0], m.Done)


def test_the_last_frame_of_a_clear_fades_to_silence_before_cleared() -> None:
    world = World()
    world.say("one two three four five.", "a")
    world.run(400)
    n_log = len(world.log)
    world.send(m.Clear())
    kinds = [type(effect).__name__ for effect in world.log[n_log:]]
    assert kinds.index("Frame") < kinds.index("Cleared")
    tail = world.frames[-1][2]
    assert tail[0] not in (0xFF, 0x7F) and set(tail[80:]) == {0xFF}


def test_a_peer_that_can_clear_gets_a_clear_and_no_more_audio() -> None:
    world = World(peer=True)
    world.say("one two three four five.", "a")
    world.run(400)
    n, n_log = len(world.frames), len(world.log)
    world.send(m.Clear())
    kinds = [type(effect).__name__ for effect in world.log[n_log:]]
    assert kinds == ["MediaClear", "Cleared"] and len(world.frames) == n


def test_clearing_one_turn_sends_the_next_one_again() -> None:
    """The peer had b's first frames when a's clear emptied its buffer. They must not be lost."""
    world = World(peer=True)
    world.say("one two.", "a")
    world.say("three four five six.", "b")
    world.run(300)
    assert {turn for _, turn, _ in world.frames} == {1, 2}
    n = len(world.frames)
    world.send(m.Clear("a"))
    world.run(5000)
    again = [payload for _, turn, payload in world.frames[n:]]
    alone = World(peer=True)
    alone.say("x", "filler")
    alone.run(1000)
    n_alone = len(alone.frames)
    alone.say("three four five six.", "b")
    alone.run(5000)
    assert again == [payload for _, _, payload in alone.frames[n_alone:]]
    assert [type(event) for event in world.terminals("b")] == [m.Done]


def test_hanging_up_ends_all_turns_and_the_call() -> None:
    world = World(peer=True)
    world.say("one two three.", "a")
    world.say("four.", "b")
    world.run(200)
    world.send(m.MediaDtmf("5"))
    world.send(m.MediaStop())
    assert [event.reason for event in world.of(m.Cleared)] == ["hangup", "hangup"]
    assert isinstance(world.events[-1], m.Hangup) and world.of(m.Dtmf)[0].digit == "5"
    assert world.finished is not None and world.finished.code == 1000
    world.say("Nobody there.", "c")
    world.run(1000)
    assert world.terminals("c") == []


def test_close_finishes_speaking_first() -> None:
    world = World()
    world.say("one two three.", "a")
    world.send(m.Close())
    world.say("Too late.", "b")
    assert world.of(m.ErrorEvent)[0].code == "closing"
    world.run(600)
    assert world.finished is None
    world.run(300)
    assert [type(event) for event in world.terminals("a")] == [m.Done] and world.finished is not None


def test_close_now_clears_first() -> None:
    world = World()
    world.say("one two three.", "a")
    world.run(100)
    world.send(m.Close(now=True))
    assert isinstance(world.terminals("a")[0], m.Cleared) and world.finished is not None


def test_inbound_audio_goes_to_the_bot_only_when_asked() -> None:
    world = World(peer=True)
    world.send(m.MediaAudio(b"abc", 20))
    world.send(m.Configure(inbound="base64"))
    world.send(m.MediaAudio(b"def", 40))
    assert world.of(m.InboundAudio) == [m.InboundAudio(b"def", 40)]


def test_done_reports_the_latency_of_each_stage() -> None:
    world = World(first_audio_ms=120)
    world.send(m.Text("Hello", "a"))
    world.run(300)
    world.send(m.Text(" there.", "a", last=True))
    world.run(5000)
    latency = world.of(m.Done)[0].latency
    assert latency == {"text_to_sentence_ms": 300, "queue_ms": 0, "first_pcm_ms": 120, "first_audio_ms": 120}
    assert world.of(m.Started)[0].first_audio_ms == 120


_NOT_YET: dict[str, Any] = {"queue_ms": None, "first_pcm_ms": None, "first_audio_ms": None}


@pytest.mark.parametrize(
    ("after_ms", "known"),
    [
        (None, {}),
        (50, {"text_to_sentence_ms": 300, **_NOT_YET}),
        (600, {"text_to_sentence_ms": 300, "queue_ms": 40, "first_pcm_ms": 80, "first_audio_ms": 120}),
    ],
)
def test_an_interrupted_turn_reports_the_stages_that_it_came_through(
    after_ms: int | None, known: dict[str, Any]
) -> None:
    """It is interrupted so long after its sentence was complete, or before."""
    world = World(first_audio_ms=120, queued_ms=40)
    world.send(m.Text("Hello", "a"))
    world.run(300)
    if after_ms is not None:
        world.send(m.Text(" there.", "a", last=True))
        world.run(after_ms)
    world.send(m.Clear())
    (cleared,) = world.of(m.Cleared)
    assert cleared.latency == known


def test_a_turn_that_failed_reports_the_stages_that_it_came_through() -> None:
    world = World(first_audio_ms=120, ms_per_char=200)
    world.say("Hello there.", "a")
    world.run(500)
    world.session.audio_failed(world.submitted[0][1].id, EngineError("gone"), world.now_ns)
    world.pump()
    (error,) = world.terminals("a")
    assert error.latency == {"text_to_sentence_ms": 0, "queue_ms": 0, "first_pcm_ms": 120, "first_audio_ms": 120}


def test_latency_separates_the_engines_queue_from_its_computing() -> None:
    """An engine may report a longer wait with its first audio than the time since the utterance was submitted."""
    for queued_ms, told in ((0, 0), (90, 90), (500, 120)):
        world = World(first_audio_ms=120, queued_ms=queued_ms)
        world.send(m.Text("Hello there.", "a", last=True))
        world.run(5000)
        latency = world.of(m.Done)[0].latency
        assert (latency["queue_ms"], latency["first_pcm_ms"]) == (told, 120 - told)
        assert latency["first_audio_ms"] == 120


def test_clearing_the_turn_before_an_empty_one() -> None:
    """Pinned: the empty turn was sent to its end without a schedule."""
    world = World()
    world.say("Hello there.", "a")
    world.say("", "b")
    world.run(500)
    world.send(m.Clear("a"))
    world.run(100)
    assert [type(event) for event in world.terminals("b")] == [m.Done]


@pytest.mark.parametrize("peer", [False, True])
def test_clearing_the_first_of_several_turns_keeps_the_order_of_the_rest(peer: bool) -> None:
    """Pinned: c was sent together with b and reported as heard, because both were due again from now."""
    world = World(SessionSettings(first_clause_chars=0, lead_ms=2000), peer=peer)
    for turn in "abc":
        world.say("Hello you.", turn)
    world.run(300)
    assert {turn for _, turn, _ in world.frames} >= {1, 2, 3}
    n = len(world.frames)
    world.send(m.Clear("a"))
    world.run(300)
    world.send(m.Status())
    assert world.of(m.StatusReport)[0].speaking == "b"
    world.run(5000)
    again = [turn for _, turn, _ in world.frames[n:] if turn]
    assert sorted(again[1:]) == again[1:], "at most the faded end of a, then b, then c"
    assert again.count(2) == again.count(3) >= 24
    assert [event.turn for event in world.of(m.Started)] == ["a", "b", "c"]
    assert [event.turn for event in world.of(m.Done)] == ["b", "c"]


def test_frames_dropped_by_a_clear_do_not_count_as_heard() -> None:
    world = World(SessionSettings(first_clause_chars=0, lead_ms=2000), peer=True)
    for turn in "abc":
        world.say("Hello you.", turn)
    world.run(300)
    world.send(m.Clear("a"))
    world.run(100)
    world.send(m.Clear())
    heard = {event.turn: event.heard_ms for event in world.of(m.Cleared)}
    assert heard["a"] == 300 and heard["b"] == 100 and heard["c"] == 0


def test_a_refused_say_can_be_sent_again() -> None:
    world = with_limits(queued_turns=1)
    world.say("One.", "a")
    world.say("Two.", "b")
    (error,) = world.of(m.ErrorEvent)
    assert (error.code, error.turn, error.retryable) == ("queue_full", "b", True)
    world.run(3000)
    world.say("Two.", "b")
    world.run(3000)
    assert [d.turn for d in world.of(m.Done)] == ["a", "b"]


def test_idle_time_begins_when_the_speech_has_ended() -> None:
    world = with_limits(idle_s=2)
    world.say("one two three four five six seven eight nine ten eleven twelve.", "a")
    world.run(3150 + 1900)
    assert len(world.of(m.Done)) == 1 and world.finished is None
    world.run(200)
    assert world.finished is not None


def test_many_flushes_leave_one_barrier() -> None:
    world = World()
    world.send(m.Text("One two", "a"))
    for _ in range(1000):
        world.session.receive(m.Flush("a"), world.now_ns)
    assert len(world.session.turns[0]._barriers) == 1
    world.pump()
    world.run(10)
    assert spoken(world) == ["One two"]


def test_a_long_unspeakable_turn_is_cut_in_bounded_pieces() -> None:
    world = World()
    world.session.receive(m.Say("—" * 4000, "a"), world.now_ns)
    world.session.poll(world.now_ns)
    assert world.session.turns and not world.session.turns[0].cut_all, "not all in one go"
    assert world.session.deadline_ns() == world.now_ns
    world.run(10)
    assert isinstance(world.terminals("a")[0], m.Done)


def test_control_tokens_reach_the_engine_where_they_are_allowed() -> None:
    text = "Well [laughter] that is 3 <strong>good</strong> jokes."
    for allowed, said in (
        ((), "Well  that is three good jokes."),
        (("[laughter]",), "Well [laughter] that is three good jokes."),
        (("[laughter]", "<strong>", "</strong>"), "Well [laughter] that is three <strong>good</strong> jokes."),
    ):
        world = World(SessionSettings(control_tokens=allowed))
        world.send(m.Say(text, "a"))
        world.run(3000)
        assert spoken(world) == [said]
