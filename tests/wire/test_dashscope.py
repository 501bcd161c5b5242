"""DashScope's protocol: messages recorded from its SDK, tasks and their turns, wrong input.

The messages of CLIENT were recorded from `SpeechSynthesizer` of dashscope 2.0.2 against this server: `streaming_call`
twice, `streaming_flush`, `streaming_complete`, and `streaming_cancel` of another task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.app.config import doors
from telephony_tts.audio.wav import wav_header
from telephony_tts.doors.dashscope import codec as dashscope
from telephony_tts.doors.dashscope.codec import DashScopeTasks, count_chars, open_inference
from telephony_tts.transport.door import Doors
from telephony_tts.wire import messages as m
from telephony_tts.wire.vendor import ChangeAudio, CloseSocket, Reply, Step, VendorOptions

RUN = (
    '{"header": {"action": "run-task", "task_id": "58a85d72d11a419f80a536cf201f4b53", "streaming": "duplex"}, '
    '"payload": {"model": "cosyvoice-v2", "task_group": "audio", "task": "tts", "function": "SpeechSynthesizer", '
    '"input": {}, "parameters": {"voice": "tone", "volume": 50, "text_type": "PlainText", "sample_rate": 8000, '
    '"rate": 1.0, "format": "pcm", "pitch": 1.0, "seed": 0, "type": 0}}}'
)
TEXTS = [
    '{"header": {"action": "continue-task", "task_id": "58a85d72d11a419f80a536cf201f4b53", "streaming": "duplex"}, '
    '"payload": {"model": "cosyvoice-v2", "task_group": "audio", "task": "tts", "function": "SpeechSynthesizer", '
    '"input": {"text": "\\u4f60\\u597d\\uff0c"}}}',
    '{"header": {"action": "continue-task", "task_id": "58a85d72d11a419f80a536cf201f4b53", "streaming": "duplex"}, '
    '"payload": {"model": "cosyvoice-v2", "task_group": "audio", "task": "tts", "function": "SpeechSynthesizer", '
    '"input": {"text": "world. "}}}',
]
FLUSH = (
    '{"header": {"action": "continue-task", "task_id": "58a85d72d11a419f80a536cf201f4b53", "streaming": "duplex"}, '
    '"payload": {"model": "cosyvoice-v2", "task_group": "audio", "task": "tts", "function": "SpeechSynthesizer", '
    '"input": {"flush": true}}}'
)
FINISH = (
    '{"header": {"action": "finish-task", "task_id": "58a85d72d11a419f80a536cf201f4b53", "streaming": "duplex"}, '
    '"payload": {"input": {}}}'
)
CANCEL = FINISH.replace('"input": {}', '"input": {"directive": "cancel"}')
TASK = "58a85d72d11a419f80a536cf201f4b53"
TONE = m.Configure(voice="tone", lang="", speed=1.0, seed=0, instruct="")


class Talk:
    """A conversation. `send` returns the steps; replies, and what events cause, go to `got` as JSON or bytes."""

    def __init__(self, target: str = "/api-ws/v1/inference") -> None:
        self.dialect = open_inference(target)
        self.got: list[Any] = []
        self.refused: list[str] = []
        """Why each reply was a refusal, or empty."""
        self.on_step: dict[type, m.ErrorEvent] = {}
        """Errors that the session answers a kind of step with."""
        self.cleared: list[m.Clear] = []
        """What events have cleared."""

    def send(self, message: str | bytes | dict[str, Any]) -> list[Step]:
        data = json.dumps(message) if isinstance(message, dict) else message
        steps: list[Step] = []
        for step in self.dialect.decode(data.encode() if isinstance(data, str) else data, isinstance(data, str)):
            if isinstance(step, Reply):
                self._take([step.wire])
                self.refused.append(step.refused)
                continue
            steps.append(step)
            if type(step) in self.on_step:
                self.tell(self.on_step.pop(type(step)))
        return steps

    def tell(self, event: Any) -> None:
        self._take(self.dialect.event(event))

    def hear(self, turn: str, payload: bytes) -> None:
        self._take(self.dialect.audio(turn, payload, None))

    def _take(self, wires: Iterable[Any]) -> None:
        for wire in wires:
            assert not isinstance(wire, CloseSocket)
            if isinstance(wire, m.Clear):
                self.cleared.append(wire)
                continue
            self.got.append(json.loads(wire[0]) if wire[1] else wire[0])

    def took(self) -> list[Any]:
        """What came since the last call: bytes as they are, of JSON its event, and its task if it is not TASK."""
        got, self.got = self.got, []
        return [each if isinstance(each, bytes) else _brief(each) for each in got]


def _brief(message: dict[str, Any]) -> Any:
    header, payload = message["header"], message["payload"]
    name = header["event"] if header["task_id"] == TASK else (header["task_id"], header["event"])
    if header["event"] == "task-failed":
        return name, header["error_code"], header["error_message"]
    return (name, payload["output"]["type"]) if header["event"] == "result-generated" else name


def message(action: str, task: str = TASK, inputs: Any = None, **parameters: Any) -> dict[str, Any]:
    header = {"action": action, "task_id": task, "streaming": "duplex"}
    return {"header": header, "payload": {"parameters": parameters, "input": inputs or {}}}


def run_task(task: str = TASK, **parameters: Any) -> dict[str, Any]:
    return message("run-task", task, **{"format": "pcm", "sample_rate": 8000, **parameters})


def speak(text: str, task: str = TASK) -> dict[str, Any]:
    return message("continue-task", task, {"text": text})


def finish(task: str = TASK) -> dict[str, Any]:
    return message("finish-task", task)


def cleared(turn: str, reason: str = "clear") -> m.Cleared:
    return m.Cleared(turn, "Hel", 3, 180, "lo", "clock", reason)


# ------------------------------------------------------------------ a recorded conversation


def test_the_recorded_conversation() -> None:
    talk = Talk()
    assert talk.send(RUN) == [ChangeAudio("pcm", 8000), TONE, m.Text("", "1")]
    assert talk.got == [{"header": {"task_id": TASK, "event": "task-started", "attributes": {}}, "payload": {}}]
    talk.got.clear()
    assert [talk.send(text) for text in TEXTS] == [[m.Text("你好，", "1")], [m.Text("world. ", "1")]]
    assert talk.send(FLUSH) == [m.Flush("1")]
    talk.hear("1", b"\x01\x02")
    talk.tell(m.SentenceSpoken("1", 0, "你好，world.", 0, 900))
    talk.hear("1", b"\x03\x04")
    assert talk.got[0]["payload"] == {"output": {"sentence": {"index": 0, "words": []}, "type": "sentence-synthesis"}}
    assert talk.got[2]["payload"] == {
        "output": {"sentence": {"index": 0, "words": []}, "type": "sentence-end", "original_text": "你好，world."},
        "usage": {"characters": 12},
    }
    assert talk.took() == [
        ("result-generated", "sentence-synthesis"), b"\x01\x02", ("result-generated", "sentence-end"),
        ("result-generated", "sentence-synthesis"), b"\x03\x04",
    ]  # fmt: skip
    assert talk.send(FINISH) == [m.End("1")]
    assert talk.took() == [], "not before its last audio"
    talk.tell(m.TurnSent("1"))
    (last,) = talk.got
    assert last["header"] == {"task_id": TASK, "event": "task-finished", "attributes": {}}
    assert last["payload"]["usage"] == {"characters": 12}


def test_a_cancelled_task_is_finished_at_once_and_has_no_audio_afterwards() -> None:
    talk = Talk()
    talk.send(RUN)
    talk.send(TEXTS[0])
    talk.hear("1", b"\x01\x02")
    talk.got.clear()
    assert talk.send(CANCEL) == [m.Clear("1")]
    assert talk.took() == ["task-finished"]
    talk.tell(cleared("1"))
    talk.hear("1", b"\x03\x04")
    talk.tell(m.SentenceSpoken("1", 0, "x", 0, 1))
    assert talk.send(TEXTS[1]) == talk.send(FINISH) == talk.send(CANCEL) == [], "late messages"
    assert talk.took() == []
    assert talk.send(run_task("next", voice="tone")) == [m.Text("", "2")]
    talk.hear("2", b"\x05\x06")
    assert talk.took() == [("next", "task-started"), (("next", "result-generated"), "sentence-synthesis"), b"\x05\x06"]


def test_a_task_whose_text_was_all_sent_can_still_be_cancelled() -> None:
    talk = Talk()
    for each in (RUN, TEXTS[0], FINISH):
        talk.send(each)
    assert talk.send(CANCEL) == [m.Clear("1")]
    assert talk.took() == ["task-started", "task-finished"]


def test_a_task_without_text_is_finished() -> None:
    talk = Talk()
    talk.send(RUN)
    assert talk.send(FINISH) == [m.End("1")]
    talk.tell(m.TurnSent("1"))
    assert talk.took() == ["task-started", "task-finished"]


def test_a_task_may_have_the_id_of_one_that_ended() -> None:
    talk = Talk()
    for n in (1, 2):
        assert talk.send(RUN)[-1] == m.Text("", str(n))
        assert talk.send(FINISH) == [m.End(str(n))]
        talk.tell(m.TurnSent(str(n)))
    assert talk.took() == ["task-started", "task-finished"] * 2


# ---------------------------------------------------------------------- several tasks


def test_tasks_at_the_same_time_are_told_apart_by_their_ids() -> None:
    talk = Talk()
    talk.send(run_task("a", voice="x"))
    assert talk.send(run_task("b", voice="y", rate=2))[-1] == m.Text("", "2")
    talk.took()
    assert talk.send(speak("One.", "b")) == [m.Text("One.", "2")]
    talk.hear("2", b"bb")
    talk.hear("1", b"aa")
    assert talk.took() == [
        (("b", "result-generated"), "sentence-synthesis"), b"bb",
        (("a", "result-generated"), "sentence-synthesis"), b"aa",
    ]  # fmt: skip
    talk.send(finish("a"))
    talk.send(finish("b"))
    talk.tell(m.TurnSent("1"))
    assert talk.took() == [("a", "task-finished")]
    talk.tell(m.TurnSent("2"))
    assert talk.took() == [("b", "task-finished")]


def test_a_turn_that_gave_way_has_a_successor_with_the_settings_of_its_task() -> None:
    talk = Talk()
    _, a, _ = talk.send(run_task("a", voice="x", instruction="softly"))
    assert a == m.Configure(voice="x", lang="", speed=1.0, seed=0, instruct="softly")
    assert talk.send(run_task("b", voice="y")) == [replace(a, voice="y", instruct=""), m.Text("", "2")]
    talk.tell(m.TurnSent("1"))
    assert talk.send(speak("More.", "a")) == [a, m.Text("", "3"), m.Text("More.", "3")]
    assert talk.send(finish("a")) == [m.End("3")]
    talk.tell(m.TurnSent("3"))
    assert talk.took() == [("a", "task-started"), ("b", "task-started"), ("a", "task-finished")]


def test_text_for_a_turn_that_was_closed_and_not_yet_sent_is_not_lost() -> None:
    """It has given way, but its audio is still being sent."""
    talk = Talk()
    talk.send(RUN)
    talk.on_step[m.Text] = m.ErrorEvent("turn_closed", "turn 1 was ended", about="1")
    assert talk.send(speak("More.")) == [m.Text("More.", "1"), m.Text("", "2"), m.Text("More.", "2")]
    assert talk.send(finish()) == [m.End("2")]
    talk.tell(m.TurnSent("1"))
    assert talk.took() == ["task-started"]
    talk.tell(m.TurnSent("2"))
    assert talk.took() == ["task-finished"]


def test_a_cancel_clears_all_turns_of_the_task_and_no_other() -> None:
    talk = Talk()
    talk.send(RUN)
    talk.on_step[m.Text] = m.ErrorEvent("turn_closed", "turn 1 was ended", about="1")
    talk.send(speak("More."))
    talk.send(run_task("other", voice="tone"))
    assert talk.send(CANCEL) == [m.Clear("1"), m.Clear("2")]
    assert talk.send(message("finish-task", "other", {"directive": "cancel"})) == [m.Clear("3")]


@pytest.mark.parametrize("target", ["/api-ws/v1/inference", "/api-ws/v1/inference?call=CA1"])
def test_the_format_may_change_between_tasks_and_not_among_them(target: str) -> None:
    talk = Talk(target)
    assert talk.send(run_task("a", format="ulaw"))[0] == ChangeAudio("ulaw", 8000)
    assert (talk.dialect.options.codec, talk.dialect.options.rate_hz) == ("ulaw", 8000)
    assert talk.send(run_task("b")) == []
    talk.send(finish("a"))
    talk.tell(m.TurnSent("1"))
    assert talk.send(run_task("c"))[0] == ChangeAudio("pcm", 8000)
    started, failed, finished, again = talk.took()
    assert (started, finished, again) == (("a", "task-started"), ("a", "task-finished"), ("c", "task-started"))
    assert failed[:2] == (("b", "task-failed"), "InvalidParameter")


def test_too_many_tasks_are_refused_and_the_others_go_on() -> None:
    talk = Talk()
    for n in range(dashscope.MAX_TASKS + 1):
        talk.send(run_task(f"t{n}"))
    *started, refused = talk.took()
    assert {kind for _, kind in started} == {"task-started"} and len(started) == dashscope.MAX_TASKS
    assert refused[:2] == ((f"t{dashscope.MAX_TASKS}", "task-failed"), "Throttling")
    assert talk.send(speak("Hi.", "t0")) == [m.Text("Hi.", "1")]


# ------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("parameters", "audio"),
    [
        ({"format": "pcm", "sample_rate": 44100}, ChangeAudio("pcm", 44_100)),
        ({"format": "pcm"}, ChangeAudio("pcm", 22_050)),
        ({"format": "wav", "sample_rate": 16000}, ChangeAudio("pcm", 16_000)),
        ({"format": "alaw"}, ChangeAudio("alaw", 8_000)),
        ({"format": "Default", "sample_rate": 0}, ChangeAudio("pcm", 22_050, "mp3")),
        ({}, ChangeAudio("pcm", 22_050, "mp3")),
        ({"format": "mp3", "sample_rate": 8000}, ChangeAudio("pcm", 16_000, "mp3")),
        ({"format": "opus", "sample_rate": 22050, "bit_rate": 32}, ChangeAudio("pcm", 24_000, "opus")),
    ],
)
def test_formats(parameters: dict[str, Any], audio: ChangeAudio) -> None:
    talk = Talk()
    assert talk.send(message("run-task", **parameters))[0] == audio
    options = talk.dialect.options
    assert (options.codec, options.rate_hz, options.container) == (audio.codec, audio.rate_hz, audio.container)
    assert talk.took() == ["task-started"]


def test_a_wav_has_one_header_for_each_task() -> None:
    talk = Talk()
    for turn in ("1", "2"):
        talk.send(run_task(format="wav", sample_rate=24000))
        talk.hear(turn, b"abcd")
        talk.hear(turn, b"efgh")
        talk.send(CANCEL)
        audio = [each for each in talk.took() if isinstance(each, bytes)]
        assert audio == [wav_header("pcm", 24000, None) + b"abcd", b"efgh"]


def test_settings() -> None:
    talk = Talk()
    said = run_task(
        voice="longxiaochun_v2", rate=1.5, seed=7, instruction="speak softly", language_hints=["zh", "en"], volume=100,
        pitch=0.5, type=0, hot_fix={"replace": [{"a": "b"}]}, enable_ssml=True, word_timestamp_enabled=True,
    )  # fmt: skip
    settings = m.Configure(voice="longxiaochun_v2", lang="zh", speed=1.5, seed=7, instruct="speak softly")
    assert talk.send(said)[1] == settings
    assert talk.send(run_task("other"))[0] == m.Configure(voice="default", lang="", speed=1.0, seed=0, instruct="")


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"text_type": "SSML"}, "SSML"),
        ({"format": "flac"}, "format"),
        ({"format": ["pcm"]}, "format"),
        ({"sample_rate": 11025}, "sample_rate"),
        ({"format": "ulaw", "sample_rate": 16000}, "sample_rate"),
        ({"rate": 3}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"seed": 70000}, "seed"),
        ({"voice": 7}, "voice"),
        ({"instruction": {}}, "instruction"),
    ],
)
def test_a_wrong_parameter_fails_the_task(parameters: dict[str, Any], says: str) -> None:
    talk = Talk()
    assert talk.send(run_task(**parameters)) == []
    ((event, code, text),) = talk.took()
    assert (event, code) == ("task-failed", "InvalidParameter") and says in text
    assert talk.refused == [f"InvalidParameter: {text}"], "for the log"
    assert talk.send(speak("Late.")) == [] and talk.took()[0][:2] == ("task-failed", "InvalidParameter")


def test_a_voice_that_is_unknown_fails_the_task() -> None:
    talk = Talk()
    talk.on_step[m.Configure] = m.ErrorEvent("unknown_voice", "no voice 'stranger'")
    assert m.Text("", "1") not in talk.send(run_task(voice="stranger"))
    assert talk.took() == [("task-failed", "InvalidParameter", "no voice 'stranger'")]
    assert talk.send(run_task("next"))[0] == m.Configure(voice="default", lang="", speed=1.0, seed=0, instruct="")
    assert talk.took() == [("next", "task-started")]


def test_a_format_that_is_not_installed_fails_the_task() -> None:
    talk = Talk()
    talk.on_step[ChangeAudio] = m.ErrorEvent("format_unavailable", "mp3 needs PyAV")
    assert talk.send(run_task(format="mp3")) == [ChangeAudio("pcm", 16_000, "mp3")]
    assert talk.took() == [("task-failed", "InvalidParameter", "mp3 needs PyAV")]
    assert talk.send(run_task(format="mp3"))[0] == ChangeAudio("pcm", 16_000, "mp3")


# ----------------------------------------------------------------------- text and limits


@pytest.mark.parametrize(
    ("text", "n"), [("你好", 4), ("中A文123", 8), ("中 文。", 6), ("かな한글", 4), ("", 0), ("𠮷", 2)]
)
def test_characters_are_counted_as_the_vendor_does(text: str, n: int) -> None:
    assert count_chars(text) == n


@pytest.mark.parametrize("text", ["x" * 20_001, "你" * 10_001])
def test_a_message_that_is_too_long_fails_the_task(text: str) -> None:
    talk = Talk()
    talk.send(RUN)
    assert talk.send(speak(text)) == [m.Clear("1")]
    assert talk.took()[1][:2] == ("task-failed", "InvalidParameter")


def test_a_task_that_is_too_long_fails() -> None:
    talk = Talk()
    talk.send(RUN)
    for _ in range(20):
        assert talk.send(speak("你" * 5_000)) == [m.Text("你" * 5_000, "1")]
    assert talk.send(speak("x")) == [m.Clear("1")]
    assert talk.took()[1][:2] == ("task-failed", "InvalidParameter")


def test_ssml_is_left_to_the_session() -> None:
    talk = Talk()
    talk.send(run_task(enable_ssml=True))
    assert talk.send(speak("<speak>Hi.</speak>")) == [m.Text("<speak>Hi.</speak>", "1")]


def test_a_task_without_messages_for_too_long_fails_when_its_text_is_spoken() -> None:
    talk = Talk()
    talk.send(RUN)
    talk.tell(m.WarningEvent("turn_timeout", "no text for too long", "1"))
    assert talk.send(speak("Late.")) == talk.send(FINISH) == []
    talk.hear("1", b"aa")
    talk.tell(m.TurnSent("1"))
    *_, audio, failed = talk.took()
    assert audio == b"aa" and failed[:2] == ("task-failed", "CLIENT_ERROR")


# ------------------------------------------------------------------ what happens to the call


def test_a_turn_that_the_engine_cannot_speak_fails_the_task() -> None:
    talk = Talk()
    talk.send(RUN)
    talk.tell(m.ErrorEvent("engine_failed", "out of memory", turn="1"))
    assert talk.took() == ["task-started", ("task-failed", "InternalError", "out of memory")]
    talk.hear("1", b"aa")
    assert talk.send(TEXTS[0]) == [] and talk.took() == []


def test_a_task_that_fails_takes_its_other_turns_with_it() -> None:
    talk = Talk()
    talk.send(run_task("a"))
    talk.send(run_task("b"))
    talk.on_step[m.Text] = m.ErrorEvent("turn_closed", "turn 1 was ended", about="1")
    assert m.Text("Yes.", "3") in talk.send(speak("Yes.", "a")), "its first turn has given way, and is still being sent"
    talk.tell(m.ErrorEvent("engine_failed", "out of memory", turn="3"))
    assert talk.cleared == [m.Clear("1")]
    talk.hear("1", b"aa")
    assert talk.took()[2:] == [(("a", "task-failed"), "InternalError", "out of memory")]


def test_text_that_the_session_refuses_fails_the_task() -> None:
    talk = Talk()
    talk.send(RUN)
    talk.on_step[m.Text] = m.ErrorEvent("rate_limited", "more than 2000 characters a second", about="1")
    assert talk.send(TEXTS[0]) == [m.Text("你好，", "1"), m.Clear("1")]
    assert talk.took()[1:] == [("task-failed", "Throttling", "more than 2000 characters a second")]


def test_a_turn_that_the_session_refuses_fails_the_task() -> None:
    talk = Talk()
    talk.on_step[m.Text] = m.ErrorEvent("queue_full", "32 turns are waiting", turn="1")
    talk.send(RUN)
    assert talk.took() == [("task-failed", "Throttling", "32 turns are waiting")]


def test_a_caller_who_interrupts_ends_the_task() -> None:
    """The SDK waits for the end of the task."""
    talk = Talk("/api-ws/v1/inference/?call=CA1")
    assert talk.dialect.options == VendorOptions(call="CA1")
    # The phone's format stays. The client gets silence in the format that it asks for.
    assert talk.send(RUN) == [ChangeAudio("pcm", 8000), TONE, m.Text("", "1")]
    talk.tell(cleared("1", "barge_in"))
    output = talk.got[-1]["payload"]["output"]
    assert (output["type"], output["reason"], output["heard_text"], output["heard_ms"]) == (
        "interrupted", "barge_in", "Hel", 180
    )  # fmt: skip
    assert talk.took() == ["task-started", "task-finished"]
    assert talk.send(TEXTS[0]) == [] and talk.took() == []


def test_a_fatal_error_ends_all_tasks() -> None:
    talk = Talk()
    talk.send(run_task("a"))
    talk.send(run_task("b"))
    talk.took()
    talk.tell(m.ErrorEvent("internal", "an internal error", fatal=True))
    assert talk.took() == [((task, "task-failed"), "InternalError", "an internal error") for task in ("a", "b")]


# ---------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x00\x01", "[]", "{", '{"header":7}', '{"header":{"action":"run-task"}}',
        '{"header":{"action":"run-task","task_id":""}}', '{"header":{"action":"run-task","task_id":"a\\n"}}',
    ],
)  # fmt: skip
def test_a_message_of_no_task_gets_an_error_and_the_socket_stays(wrong: str | bytes) -> None:
    talk = Talk()
    assert talk.send(wrong) == []
    ((event, code, _),) = talk.took()
    assert (event, code) == (("", "task-failed"), "InvalidParameter")
    assert talk.send(RUN) and talk.took() == ["task-started"]


@pytest.mark.parametrize(
    "wrong",
    [
        message("sing-task"), message("continue-task", "none", {"text": "x"}), message("finish-task", "none"),
        {"header": {"action": "run-task", "task_id": "none", "streaming": "out"}},
        {"header": {"action": "run-task", "task_id": "none"}, "payload": []},
        {"header": {"action": "run-task", "task_id": "none"}, "payload": {"parameters": 1}},
    ],
)  # fmt: skip
def test_a_wrong_message_of_another_task_leaves_a_task_alone(wrong: dict[str, Any]) -> None:
    talk = Talk()
    talk.send(run_task("a"))
    wrong["header"]["task_id"] = "none"
    assert talk.send(wrong) == []
    assert talk.took()[1][:2] == (("none", "task-failed"), "InvalidParameter")
    assert talk.send(speak("Hi.", "a")) == [m.Text("Hi.", "1")]


@pytest.mark.parametrize(
    "wrong",
    [
        RUN, message("sing-task"), message("continue-task", inputs={"text": 7}), message("continue-task", inputs=["x"]),
        message("continue-task", inputs={"flush": "yes"}), message("finish-task", inputs={"directive": "pause"}),
    ],
)  # fmt: skip
def test_a_wrong_message_of_a_task_fails_it(wrong: Any) -> None:
    talk = Talk()
    talk.send(RUN)
    assert talk.send(wrong) == [m.Clear("1")]
    assert talk.took()[1][:2] == ("task-failed", "InvalidParameter")


def test_the_address() -> None:
    for path in ("/api-ws/v1/inference", "/api-ws/v1/inference/"):
        vendor = Doors(doors()).vendor_of(path)
        assert vendor is not None and vendor.name == "dashscope"
        assert vendor.own_voice.fullmatch("longxiaochun_v2") and vendor.own_voice.fullmatch("loongstella")
        assert not vendor.own_voice.fullmatch("stranger")
    assert Doors(doors()).vendor_of("/api-ws/v1/inference/x") is None
    assert json.loads(dashscope.refuse(401, "INVALID_AUTH", "no key").body)["code"] == "InvalidApiKey"


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        name: json_values | st.sampled_from(["pcm", 8000, True, "cancel", "Hi.", ["zh"], 1.5])
        for name in ("format", "sample_rate", "voice", "rate", "seed", "text", "flush", "directive", "language_hints",
                     "instruction", "text_type", "enable_ssml")
    },
)  # fmt: skip
messages = st.fixed_dictionaries(
    {
        "header": json_values | st.fixed_dictionaries(
            {"action": st.sampled_from(dashscope.ACTIONS), "task_id": st.sampled_from(["a", "b", "c"])}
        ),
        "payload": json_values | st.fixed_dictionaries({}, optional={"parameters": fields, "input": fields}),
    }
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.binary(max_size=60) | messages | st.sampled_from([RUN, FINISH, CANCEL, FLUSH, *TEXTS]), max_size=12))
def test_any_messages_are_answered_and_never_raise(said: list[Any]) -> None:
    talk = Talk()
    live: set[str] = set()
    for each in said:
        for step in talk.send(json.dumps(each) if isinstance(each, dict) else each):
            match step:
                case m.Text("", turn) if turn is not None:
                    live.add(turn)
                case m.Text(_, turn) | m.Flush(turn) | m.End(turn):
                    assert turn in live, "only open turns get text"
                case m.Clear(turn):
                    assert turn is not None
                    live.remove(turn)
    for got in talk.got:
        assert isinstance(got, dict) and got["header"]["event"] in ("task-started", "task-finished", "task-failed")
    assert len({id(task) for task in talk.dialect._tasks.values()}) == len(live), "each running task has its turn"


def test_any_bytes_are_answered() -> None:
    dialect = DashScopeTasks(VendorOptions())
    for data in (b"", b"\xff", b'{"header":{}}', b"[" * 100_000, b'{"header":{"a":' + b"9" * 5000 + b"}}"):
        assert [type(step) for step in dialect.decode(data, True)] == [Reply]
