"""Cartesia's protocol: what each message asks for, and what the client gets, in order.

The messages of pipecat, livekit-agents and the vendor's SDK are those that these packages were seen to send.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telephony_tts.doors.cartesia import codec as cartesia
from telephony_tts.doors.cartesia.codec import CartesiaContexts, open_contexts
from telephony_tts.wire.messages import (
    Clear,
    Cleared,
    Configure,
    End,
    ErrorEvent,
    Flush,
    SpokenText,
    Text,
    TurnSent,
    WarningEvent,
)
from telephony_tts.wire.vendor import ChangeAudio, Reply, Step

PCM = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000}
FIELDS = {"model_id": "sonic-3", "voice": {"mode": "id", "id": "tone"}, "output_format": PCM, "language": "en"}
VOICE = Configure(voice="tone", lang="en", speed=0.0)


class Bot:
    """A client without a socket: `send` gives the steps of a message, and `told` collects what it got."""

    def __init__(self, target: str = "/tts/websocket", **fields: Any) -> None:
        self.dialect: CartesiaContexts = open_contexts(target)
        self.fields = FIELDS | fields
        self.told: list[dict[str, Any]] = []
        self.dropped: list[Clear] = []
        """What events have cleared."""

    def send(self, message: Any) -> list[Step]:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        taken = []
        for step in self.dialect.decode(data, True):
            if isinstance(step, Reply):
                self.told.append(json.loads(step.wire[0]))
            else:
                taken.append(step)
        return taken

    def push(self, context: str, transcript: str, more: bool = True, **fields: Any) -> list[Step]:
        return self.send({**self.fields, "context_id": context, "transcript": transcript, "continue": more, **fields})

    def event(self, event: Any) -> None:
        for step in self.dialect.event(event):
            if isinstance(step, Clear):
                self.dropped.append(step)
            else:
                assert isinstance(step, tuple)
                self.told.append(json.loads(step[0]))

    def audio(self, turn: str, payload: bytes = b"\0\0", spoken: SpokenText | None = None) -> None:
        self.told += [json.loads(wire[0]) for wire in self.dialect.audio(turn, payload, spoken)]

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(each["context_id"], each["type"]) for each in self.told]


# ------------------------------------------------------------- what clients send


def test_pipecats_turn() -> None:
    bot = Bot(use_normalized_timestamps=False, max_buffer_delay_ms=0, add_timestamps=True)
    format_ = ChangeAudio("pcm", 8000)
    assert bot.push("a", "One is here.") == [format_, VOICE, Text("One is here.", "1"), Flush("1")]
    assert bot.push("a", "Two is here.") == [Text(" Two is here.", "1"), Flush("1")]
    assert bot.push("a", "", more=False) == [End("1")]
    bot.event(TurnSent("1"))
    assert bot.kinds == [("a", "done")]
    assert bot.dialect.needs_alignment


def test_pipecats_interruption() -> None:
    bot = Bot(max_buffer_delay_ms=0)
    bot.push("a", "One is here.")
    assert bot.send({"context_id": "a", "cancel": True}) == [Clear("1")]
    bot.audio("1")  # frames that were under way
    bot.event(Cleared("1", "One", 3, 200, " is here.", "clock", "clear"))
    assert bot.push("b", "Two.") == [VOICE, Text("Two.", "2"), Flush("2")]
    bot.audio("2")
    assert bot.kinds == [("b", "chunk")]


def test_livekits_turn() -> None:
    bot = Bot("/tts/websocket?cartesia_version=2025-04-16", max_buffer_delay_ms=0, add_timestamps=True)
    bot.push("a", "One is here. ")
    assert bot.push("a", "Two is here. ") == [Text("Two is here. ", "1"), Flush("1")]
    assert bot.push("a", " ", more=False) == [End("1")]
    bot.event(TurnSent("1"))
    assert bot.kinds == [("a", "done")]


def test_the_sdks_turn() -> None:
    bot = Bot()
    assert bot.push("a", "Hel")[2:] == [Text("Hel", "1")]
    assert bot.push("a", "lo ") == [Text("lo ", "1")]
    assert bot.push("a", "", flush=True) == [End("1")]
    assert bot.push("a", "World.") == [VOICE, Text("World.", "2")]
    assert bot.push("a", "", more=False) == [End("2")]
    bot.event(TurnSent("1"))
    bot.event(TurnSent("2"))
    assert bot.kinds == [("a", "flush_done"), ("a", "done")]
    assert bot.send(b'{\n  "cancel": true,\n  "context_id": "b"\n}') == []


# --------------------------------------------------------------------- contexts


def test_a_message_without_a_context_id_gets_one() -> None:
    bot = Bot()
    bot.send({**FIELDS, "transcript": "One."})
    bot.event(TurnSent("1"))
    (done,) = bot.told
    assert done["type"] == "done" and len(done["context_id"]) == 36


def test_done_waits_for_all_turns_of_the_context() -> None:
    bot = Bot()
    bot.push("a", "One.", flush=True)
    bot.push("a", "Two.", more=False)
    bot.event(TurnSent("2"))
    assert bot.kinds == []
    bot.event(TurnSent("1"))
    bot.event(TurnSent("1"))
    assert bot.kinds == [("a", "flush_done"), ("a", "done")]


def test_text_for_a_turn_that_has_ended_begins_another_in_the_same_context() -> None:
    bot = Bot()
    bot.push("a", "One.")
    bot.event(TurnSent("1"))
    assert bot.kinds == []
    assert bot.push("a", "Two.", more=False) == [VOICE, Text("Two.", "2"), End("2")]
    bot.event(TurnSent("2"))
    assert bot.kinds == [("a", "done")]


def test_text_for_a_turn_that_was_closed_meanwhile_is_not_lost() -> None:
    bot = Bot()
    bot.push("a", "One.")
    steps = iter(bot.dialect.decode(json.dumps({**FIELDS, "context_id": "a", "transcript": "Two."}).encode(), True))
    assert next(steps) == Text("Two.", "1")
    bot.event(ErrorEvent("turn_closed", "…", about="1"))
    assert list(steps) == [VOICE, Text("Two.", "2"), End("2")]
    bot.event(TurnSent("1"))
    assert bot.kinds == []
    bot.event(TurnSent("2"))
    assert bot.kinds == [("a", "done")]


def test_a_cancel_clears_the_last_turn_first_and_is_not_answered() -> None:
    bot = Bot()
    for text in ("One.", "Two.", "Three."):
        bot.push("a", text, flush=True)
    assert bot.send({"context_id": "a", "cancel": True}) == [Clear("3"), Clear("2"), Clear("1")]
    assert bot.send({"context_id": "a", "cancel": True}) == []
    assert bot.push("a", "Late.") == []
    for turn in "321":
        bot.event(Cleared(turn, "", 0, 0, "", "clock", "clear"))
    assert bot.told == []


def test_a_cancel_after_done_takes_back_what_was_sent_ahead() -> None:
    """Otherwise the next turn would be sent as if the client played the cancelled one to its end."""
    bot = Bot()
    bot.push("a", "One.", flush=True)
    bot.push("a", "Two.", more=False)
    bot.event(TurnSent("1"))
    bot.event(TurnSent("2"))
    assert bot.send({"context_id": "a", "cancel": True}) == [Clear("2"), Clear("1")]
    assert bot.send({"context_id": "a", "cancel": True}) == []
    assert bot.kinds == [("a", "flush_done"), ("a", "done")]


def test_an_interruption_by_the_callers_voice_ends_the_context() -> None:
    bot = Bot("/tts/websocket?call=CA1")
    bot.push("a", "One.", flush=True)
    bot.push("a", "Two.")
    bot.event(Cleared("1", "", 0, 0, "One.", "marks", "barge_in"))
    bot.event(Cleared("2", "", 0, 0, "Two.", "marks", "barge_in"))
    bot.push("a", "Three.", more=False)
    assert bot.kinds == [("a", "done"), ("a", "error")]


def test_text_behind_the_end_of_the_text_ends_the_context_with_an_error() -> None:
    bot = Bot()
    bot.push("a", "One.", more=False)
    bot.push("a", "", more=False)
    assert bot.told == []
    assert bot.push("a", "Two.") == [Clear("1")]
    bot.event(Cleared("1", "", 0, 0, "", "clock", "clear"))
    assert bot.kinds == [("a", "error")]
    assert bot.told[0]["error_code"] == "context_closed"


def test_a_piece_that_fails_takes_the_other_pieces_of_its_context_with_it() -> None:
    bot = Bot()
    for text in ("One.", "Two.", "Three."):
        bot.push("a", text, flush=True)
    bot.push("b", "Four.", more=False)
    bot.event(ErrorEvent("engine_failed", "it broke", turn="1"))
    assert bot.dropped == [Clear("3"), Clear("2")]
    bot.audio("2")
    bot.event(TurnSent("4"))
    assert bot.kinds == [("a", "error"), ("b", "done")]


def test_text_that_the_session_refuses_ends_its_context_with_what_came_before_it() -> None:
    bot = Bot()
    bot.push("a", "One.", flush=True)
    bot.push("a", "Two.")
    steps = bot.dialect.decode(json.dumps({**FIELDS, "context_id": "a", "transcript": "Three."}).encode(), True)
    for step in steps:
        assert step == Text("Three.", "2")
        bot.event(ErrorEvent("rate_limited", "too fast", about="2", retryable=True))
    assert bot.dropped == [Clear("2"), Clear("1")]
    assert [(each["type"], each["status_code"]) for each in bot.told] == [("error", 429)]


@pytest.mark.slow
def test_ten_thousand_contexts_are_not_all_remembered() -> None:
    bot = Bot()
    for n in range(10_000):
        bot.push(f"c{n}", "One.")
        bot.event(TurnSent(str(n + 1)))  # it gave way to the next one, so it is still open
    assert len(bot.dialect._contexts) == cartesia.MAX_CONTEXTS
    assert bot.kinds == [(f"c{n}", "done") for n in range(10_000 - cartesia.MAX_CONTEXTS)]


@pytest.mark.slow
def test_ten_thousand_bad_contexts_are_not_all_remembered() -> None:
    bot = Bot()
    for n in range(10_000):
        bot.push(f"c{n}", "One.", voice=3)
        bot.send({"context_id": f"x{n}", "cancel": True})
    assert len(bot.dialect._contexts) <= cartesia.MAX_CONTEXTS
    assert bot.kinds == [(f"c{n}", "error") for n in range(10_000)]


# ----------------------------------------------------------------- voice and audio


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, VOICE),
        ({"voice": {"mode": "id", "id": None}}, Configure(voice="", lang="en", speed=0.0)),
        ({"voice": {"mode": "embedding", "embedding": [0.1]}}, Configure(voice="", lang="en", speed=0.0)),
        ({"voice": None, "voice_id": "anna"}, Configure(voice="anna", lang="en", speed=0.0)),
        ({"voice": "anna", "language": None}, Configure(voice="anna", lang="", speed=0.0)),
        ({"language": "zh-CN", "generation_config": {"speed": 1.25}}, Configure(voice="tone", lang="zh", speed=1.25)),
        ({"generation_config": {"emotion": "calm", "volume": 2}, "speed": "slow", "duration": 3}, VOICE),
    ],
)
def test_a_context_brings_its_voice(fields: dict[str, Any], expected: Configure) -> None:
    bot = Bot()
    assert expected in bot.push("a", "One.", **fields)
    assert bot.told == []


def test_the_error_of_a_voice_is_that_of_its_context_and_its_text_is_not_spoken() -> None:
    bot = Bot()
    taken = []
    for step in bot.dialect.decode(json.dumps({**FIELDS, "context_id": "a", "transcript": "One."}).encode(), True):
        taken.append(step)
        if isinstance(step, Configure):
            bot.event(ErrorEvent("unknown_voice", "no voice"))
    assert not any(isinstance(step, Text) for step in taken)
    assert [(each["context_id"], each["status_code"]) for each in bot.told] == [("a", 404)]
    bot.event(ErrorEvent("idle", "no message for too long", fatal=True))
    assert len(bot.told) == 1  # it is about no context


@pytest.mark.parametrize(
    ("encoding", "rate_hz", "change"),
    [("pcm_s16le", 22050, ("pcm", 22050)), ("pcm_mulaw", 8000, ("ulaw", 8000)), ("pcm_alaw", 8000, ("alaw", 8000)),
     ("pcm_f32le", 44100, ("pcm", 44100))],
)  # fmt: skip
def test_the_format_of_the_first_context_is_that_of_the_socket(
    encoding: str, rate_hz: int, change: tuple[str, int]
) -> None:
    bot = Bot(output_format={"container": "raw", "encoding": encoding, "sample_rate": rate_hz})
    assert bot.push("a", "One.")[0] == ChangeAudio(*change)
    assert (bot.dialect.options.codec, bot.dialect.options.rate_hz) == change
    assert not any(isinstance(step, ChangeAudio) for step in bot.push("b", "Two."))


def test_a_joined_call_has_its_own_format() -> None:
    bot = Bot("/tts/websocket?call=CA1")
    bot.push("a", "One.")
    bot.fields["output_format"] = {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000}
    # The phone's format stays. The client gets silence in the format that it asks for.
    assert bot.push("b", "Two.") == [ChangeAudio("ulaw", 8000), VOICE, Text("Two.", "2")]
    assert bot.told == []


def test_the_silence_of_a_joined_call_has_the_format_of_its_context() -> None:
    alaw, floats = {**PCM, "encoding": "pcm_alaw"}, {**PCM, "encoding": "pcm_f32le", "sample_rate": 22050}
    bot = Bot("/tts/websocket?call=CA1", output_format=alaw)
    bot.push("a", "One.", flush=True)
    bot.push("b", "Two.", output_format=floats)
    bot.push("a", "Three.", output_format=None)
    options = bot.dialect.options
    payload = {"pcm": b"\0\0", "ulaw": b"\xff", "alaw": b"\xd5"}[options.codec] * (options.rate_hz // 10)
    for turn in "123":
        bot.audio(turn, payload)
    assert [base64.b64decode(each["data"]) for each in bot.told] == [b"\xd5" * 800, bytes(4 * 2205), b"\xd5" * 800]


def test_samples_become_floats() -> None:
    bot = Bot(output_format={"container": "raw", "encoding": "pcm_f32le", "sample_rate": 8000})
    bot.push("a", "One.")
    bot.audio("1", struct.pack("<3h", 0, 16384, -32768))
    assert base64.b64decode(bot.told[0]["data"]) == struct.pack("<3f", 0.0, 0.5, -1.0)


# ----------------------------------------------------------------------- words


def test_words_have_seconds_from_the_contexts_start() -> None:
    bot = Bot(add_timestamps=True)
    bot.push("a", "Hi there. ", flush=True)
    bot.push("a", "Yes.")
    times_ms = tuple(100.0 * n for n in range(11))
    bot.audio("1", bytes(16_000), SpokenText("Hi there.", 0, times_ms[:10]))
    bot.audio("1", b"", SpokenText(" ", 9, times_ms[:2]))
    bot.audio("2", bytes(8_000), SpokenText("Yes.", 0, times_ms[:5]))
    first, second = [each["word_timestamps"] for each in bot.told if each["type"] == "timestamps"]
    assert first == {"words": ["Hi", "there."], "start": [0.0, 0.3], "end": [0.2, 0.9]}
    assert second == {"words": ["Yes."], "start": [1.0], "end": [1.4]}


def test_each_chinese_character_is_a_word() -> None:
    bot = Bot(add_timestamps=True)
    bot.push("a", "你好, Anna。")
    bot.audio("1", b"", SpokenText("你好, Anna。", 0, tuple(map(float, range(10)))))
    assert bot.told[0]["word_timestamps"]["words"] == ["你", "好", ",", "Anna。"]


# ------------------------------------------------------------------------- fuzz

_NUMBERS = st.integers() | st.floats()
_SCALAR = st.none() | st.booleans() | _NUMBERS | st.text(max_size=6) | st.lists(_NUMBERS, max_size=2)
_MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "context_id": st.sampled_from(["a", "b"]) | _SCALAR,
        "transcript": st.sampled_from(["One. ", " ", ""]) | _SCALAR,
        "continue": st.booleans() | _SCALAR,
        "flush": st.booleans() | _SCALAR,
        "cancel": st.booleans() | _SCALAR,
        "voice": st.just(FIELDS["voice"]) | st.dictionaries(st.sampled_from(["id", "mode"]), _SCALAR) | _SCALAR,
        "language": st.just("en") | _SCALAR,
        "output_format": st.just(PCM) | st.dictionaries(st.sampled_from([*PCM]), _SCALAR) | _SCALAR,
        "generation_config": st.dictionaries(st.just("speed"), _SCALAR) | _SCALAR,
        "max_buffer_delay_ms": st.just(0) | _SCALAR,
        "add_timestamps": st.booleans() | _SCALAR,
    },
)
_EVENT = st.sampled_from(["sent", "cleared", "error", "closed", "warned"])


@settings(max_examples=60)
@given(st.lists(st.tuples(_MESSAGE, st.none() | st.tuples(_EVENT, st.integers(1, 4))), max_size=8))
def test_any_messages_and_events_give_each_context_at_most_one_end(story: list[tuple[dict[str, Any], Any]]) -> None:
    bot = Bot()
    for message, event in story:
        steps = bot.send(message)
        assert all(isinstance(step, Text | End | Flush | Clear | Configure | ChangeAudio) for step in steps)
        if event is not None:
            kind, turn = event[0], str(event[1])
            bot.audio(turn)
            bot.event(
                {
                    "sent": TurnSent(turn),
                    "cleared": Cleared(turn, "", 0, 0, "", "clock", "barge_in"),
                    "error": ErrorEvent("engine_failed", "it broke", turn=turn),
                    "closed": ErrorEvent("turn_closed", "it is closed", about=turn),
                    "warned": WarningEvent("empty_text", "nothing to say", turn),
                }[kind]
            )
    told = [each for each in bot.told if each.get("error_code") != "context_closed" and each["context_id"] is not None]
    ended: set[str] = set()
    for each in told:
        assert each["context_id"] not in ended, bot.told
        if each["type"] in ("done", "error"):
            ended.add(each["context_id"])


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_give_steps(data: bytes, is_text: bool) -> None:
    kinds = Reply | Text | End | Configure
    assert all(isinstance(step, kinds) for step in open_contexts("/tts/websocket").decode(data, is_text))
