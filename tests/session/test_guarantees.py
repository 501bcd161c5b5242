"""The written guarantees (PROTOCOL.md §6.1) hold under random histories."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from world import World, heard_turn

from telephony_tts.runtime.errors import EngineError
from telephony_tts.session.effects import CancelSynthesis, FeedText, Synthesize
from telephony_tts.session.settings import CallLimits, SessionSettings
from telephony_tts.wire import messages as m

TEXTS = [
    "Hello. ", "Your balance is fine", " today. Thank you", "!", "One two three four five six.", "😀", "",
    "I am looking at your account now", ", please stay with me", "好的，请稍等。", "wait", "A. B. C. D. ", "... ",
    '<speak>One <break time="300ms"/><prosody rate="fast">two &amp; three</prosody>.</speak>', "<speak",
    "<voice name='x'",
]
PIECES = ["One two three. ", "Four, five! ", "Six seven eight nine", " ten."]
TURNS = [None, None, "a", "b", "c"]

text = st.tuples(st.just("text"), st.sampled_from(TEXTS), st.sampled_from(TURNS), st.booleans())
say = st.tuples(st.just("say"), st.sampled_from(TEXTS), st.sampled_from(TURNS))
MODES = ["sentence", "interleaved"]
LEADS_MS = [(200, 0), (1000, 200), (100, 100)]
"""(lead_ms, bulk_ms)"""

verb = st.tuples(st.sampled_from(["end", "flush", "clear", "mark"]), st.sampled_from(TURNS))
time = st.tuples(st.sampled_from(["run", "run", "jump"]), st.sampled_from([0, 1, 5, 19, 20, 21, 150, 400, 1500]))
OTHERS = ["status", "blocked", "unblocked", "fail", "dtmf", "heard", "invalid", "config", "pause", "pause", "resume"]
other = st.tuples(st.sampled_from([*OTHERS, "tones", "tones"]))
action = st.one_of(text, text, say, verb, time, time, other)
worlds = st.fixed_dictionaries(
    {
        "first_audio_ms": st.sampled_from([0, 30, 300]),
        "chunk_interval_ms": st.sampled_from([0, 60, 130]),
        "ms_per_char": st.sampled_from([7, 20]),
        "timings": st.booleans(),
        "peer": st.booleans(),
        "peer_dtmf": st.sampled_from([True, True, False]),
        "peer_delay_ms": st.sampled_from([0, 80]),
    }
)


class HistoryJudge:
    """Performs actions on a world, and counts marks and invalid messages."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.n_marks = 0
        self.n_invalid = 0
        self.tones: dict[str, int] = {}
        """The digits of each request that was taken, and how many marks were set before it."""

    def do(self, action: tuple[Any, ...]) -> None:
        world, session = self.world, self.world.session
        match action:
            case ("text", piece, turn, last):
                world.send(m.Text(piece, turn, last))
            case ("say", piece, turn):
                world.send(m.Say(piece, turn))
            case ("end", turn):
                world.send(m.End(turn))
            case ("flush", turn):
                world.send(m.Flush(turn))
            case ("clear", turn):
                n_before = len(world.of(m.MediaTones))
                world.send(m.Clear(turn))
                if turn is None:
                    assert len(world.of(m.MediaTones)) == n_before, "tones behind a clear"
            case ("mark", turn):
                self.n_marks += 1
                world.send(m.Mark(f"m{self.n_marks}", turn))
            case ("run", ms):
                world.run(ms)
            case ("jump", ms):
                world.jump(ms)
            case ("blocked",) | ("unblocked",):
                session.writable(action[0] == "unblocked")
                world.pump()
            case ("fail",):
                if world.submitted:
                    session.audio_failed(world.submitted[-1][1].id, EngineError("broken"), world.now_ns)
                    world.pump()
            case ("dtmf",):
                world.send(m.MediaDtmf("5"))
            case ("tones",):
                digits, n_before = f"{len(self.tones):02}w", len(world.of(m.ErrorEvent))
                world.send(m.SendDtmf(digits))
                if len(world.of(m.ErrorEvent)) == n_before:
                    self.tones[digits] = self.n_marks
            case ("heard",):
                world.send(m.Clear(None, 120))
            case ("status",):
                world.send(m.Status())
            case ("invalid",):
                self.n_invalid += 1
                world.send(m.Invalid("bad_json", "not JSON"))
            case ("pause",):
                world.send(m.PauseSpeech())
            case ("resume",):
                world.send(m.ResumeSpeech())
            case ("config",):
                world.send(m.Configure(speed=1.2, lang="en"))


def assert_tones_in_order(world: World, judge: HistoryJudge) -> None:
    """A platform gets the digits of each request once, or the bot is warned of them. They are sent in order, and no
    mark that was set before them is played behind them."""
    sent = [tones.digits for tones in world.of(m.MediaTones)]
    warned = "".join(
        warning.message.rpartition(": ")[2] for warning in world.of(m.WarningEvent) if warning.code == "dtmf_cleared"
    )
    assert sent == sorted(sent)
    if world.peer_dtmf:
        assert Counter(sent) + Counter(re.findall("..w", warned)) == Counter(list(judge.tones))
        assert len(warned) % 3 == 0
    else:
        assert not sent
    for digits in sent:
        behind = world.log[world.log.index(m.MediaTones(digits)) :]
        played = {event.name for event in behind if isinstance(event, m.MarkReached) and event.state == "played"}
        assert not played & {f"m{n + 1}" for n in range(judge.tones[digits])}, "a mark of before"


def assert_guarantees(world: World, judge: HistoryJudge) -> None:
    world.session.writable(True)
    world.send(m.ResumeSpeech())
    world.session.close(world.now_ns)
    world.pump()
    world.run(120_000)
    assert world.finished is not None, "a closing session must finish"
    assert not world.session.turns

    over: dict[str, Any] = {}
    for event in world.log:
        if isinstance(event, m.ErrorEvent) and event.retryable and event.turn in TURNS and event.heard_text is None:
            continue  # a `say` that never began and may be said again
        if isinstance(event, m.Done | m.Cleared) or (isinstance(event, m.ErrorEvent) and event.turn is not None):
            assert event.turn not in over, f"{event.turn} ended twice: {over[event.turn]} and {event}"
            over[event.turn] = event
    started = {event.turn for event in world.of(m.Started)}
    assert started <= over.keys()
    assert {turn for turn in over if not isinstance(over[turn], m.ErrorEvent)} <= {e.turn for e in over.values()}

    assert sum(event.code == "bad_json" for event in world.of(m.ErrorEvent)) == judge.n_invalid
    marks = Counter(event.name for event in world.of(m.MarkReached))
    refused = sum(event.code == "unknown_turn" for event in world.of(m.ErrorEvent))
    assert set(marks.values()) <= {1}
    assert len(marks) + refused == judge.n_marks

    assert_tones_in_order(world, judge)

    waiting: set[str] = set()
    for event in world.log:
        if isinstance(event, Synthesize) and event.utterance.more is not None:
            waiting.add(event.utterance.id)
        elif isinstance(event, FeedText):
            assert event.utterance_id in waiting, "text came for an utterance that is complete or cancelled"
            if event.last:
                waiting.remove(event.utterance_id)
        elif isinstance(event, CancelSynthesis):
            waiting.discard(event.utterance_id)
    assert not waiting, "an engine waits for text that will not come"

    numbers = world.turn_numbers
    silent: set[int] = set()
    for event in world.log:
        if isinstance(event, m.Cleared | m.ErrorEvent) and event.turn in numbers:
            silent.add(numbers[event.turn])
        elif isinstance(event, m.Frame):
            assert heard_turn(event.payload) not in silent, "audio of a turn after it was cleared"

    is_paused = False
    for event in world.log:
        if isinstance(event, m.Paused):
            is_paused = True
        elif isinstance(event, m.Resumed | m.Cleared | m.ErrorEvent):
            is_paused = False  # a clear of one of several turns does not end a pause, and that is not looked at here
        assert not (is_paused and isinstance(event, m.Frame)), "audio during a pause"

    for event in world.of(m.Cleared):
        assert event.heard_text + event.unheard_text == world.texts[event.turn]
        assert event.heard_chars == len(event.heard_text)
        assert event.heard_text == event.heard_text.rstrip()
        assert event.basis in ("marks", "clock", "client")


@pytest.mark.slow
@given(st.lists(action, max_size=25), worlds, st.sampled_from(MODES), st.sampled_from(LEADS_MS))
@example(
    [("say", "Hello. ", "a"), ("run", 150), ("clear", None), ("run", 400)], {"first_audio_ms": 30}, "sentence", (200, 0)
)
@example(
    [("say", "Hello. ", "a"), ("say", "wait", "b"), ("mark", "b"), ("run", 150), ("clear", "a"), ("run", 1500)],
    {"peer": True, "ms_per_char": 20},
    "sentence",
    (200, 0),
)
@example(
    [("text", "I am looking at your account now", "a", False), ("mark", "a"), ("run", 150), ("fail",), ("run", 400)],
    {"ms_per_char": 20},
    "interleaved",
    (200, 0),
)
@example(
    [("text", "Hello. ", "a", False), ("flush", "a"), ("tones",), ("run", 1500), ("clear", None)],
    {"peer": True, "peer_dtmf": True, "ms_per_char": 7},
    "sentence",
    (200, 0),
)
@example(
    [("say", "Hello. ", "a"), ("tones",), ("run", 19), ("clear", None)],
    {"peer": True, "peer_dtmf": True, "ms_per_char": 20},
    "sentence",
    (200, 0),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_random_histories(
    history: list[tuple[Any, ...]], shape: dict[str, Any], mode: str, leads_ms: tuple[int, int]
) -> None:
    lead_ms, bulk_ms = leads_ms
    limits = CallLimits(queued_turns=6, turn_idle_s=5)
    how = SessionSettings(first_clause_chars=0, text_mode=mode, limits=limits, lead_ms=lead_ms, bulk_ms=bulk_ms)
    world = World(how, **shape)
    bot = HistoryJudge(world)
    for step in history:
        bot.do(step)
    assert_guarantees(world, bot)


@given(st.lists(action, max_size=15), worlds, st.sampled_from(["hangup", "close", "both"]), st.sampled_from(MODES))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_random_histories_that_end_at_once(
    history: list[tuple[Any, ...]], shape: dict[str, Any], how: str, mode: str
) -> None:
    """A hang-up or a `close` ends every turn and every mark once, and then the call, at any moment."""
    world = World(SessionSettings(first_clause_chars=0, text_mode=mode, limits=CallLimits(queued_turns=6)), **shape)
    bot = HistoryJudge(world)
    for step in history:
        bot.do(step)
    if how != "hangup":
        world.send(m.Close(now=True))
    if how != "close":
        world.send(m.MediaStop())
    assert_guarantees(world, bot)


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6),
    st.lists(st.integers(0, 300), max_size=20),
    st.sampled_from([0, 40, 250]),
    st.booleans(),
    st.sampled_from(LEADS_MS),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_an_uninterrupted_turn_is_heard_whole_and_on_time(
    pieces: list[str], stalls: list[int], first_audio_ms: int, peer: bool, leads_ms: tuple[int, int]
) -> None:
    """Despite stalls of the loop all frames are sent, in order, and none earlier than the lead allows."""
    lead_ms, bulk_ms = leads_ms
    how = SessionSettings(first_clause_chars=0, lead_ms=lead_ms, bulk_ms=bulk_ms)
    world = World(how, first_audio_ms=first_audio_ms, peer=peer)
    world.send(m.Text("".join(pieces), "a", last=True))
    for stall in stalls:
        world.jump(stall)
        world.pump()
        world.run(20)
    world.run(60_000)
    (done,) = world.of(m.Done)
    quiet = World()
    quiet.send(m.Text("".join(pieces), "a", last=True))
    quiet.run(60_000)
    if not done.underruns:
        assert [payload for _, _, payload in world.frames] == [payload for _, _, payload in quiet.frames]
    t0_ms = world.frames[0][0]
    for n, (at_ms, _, _) in enumerate(world.frames):
        assert at_ms >= t0_ms + n * 20 - lead_ms - 0.001
