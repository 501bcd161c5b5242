"""PROTOCOL.md and docs/protocol/*.md match the code.

Every example on these pages goes through the codecs, and every table is compared with the code.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from protocol_index import FOLDER, INDEX, PAGES, sections, with_contents

import telephony_tts.wire as wire_package
from telephony_tts.doors.asterisk.codec import AsteriskCodec
from telephony_tts.doors.bandwidth.codec import BandwidthCodec
from telephony_tts.doors.cartesia.codec import open_contexts
from telephony_tts.doors.dashscope.codec import DashScopeTasks
from telephony_tts.doors.deepgram.codec import DeepgramSpeak
from telephony_tts.doors.deepgram.flux import DeepgramFlux
from telephony_tts.doors.elevenlabs.codec import ElevenLabsStream, open_stream
from telephony_tts.doors.exotel.codec import ExotelCodec
from telephony_tts.doors.freeswitch.codec import FreeSwitchCodec
from telephony_tts.doors.genesys.codec import GenesysCodec
from telephony_tts.doors.jambonz.codec import JambonzCodec
from telephony_tts.doors.jambonz.tts_codec import JambonzVoice, open_tts
from telephony_tts.doors.plivo.codec import PlivoCodec
from telephony_tts.doors.signalwire.codec import SignalWireCodec
from telephony_tts.doors.telnyx.codec import TelnyxCodec
from telephony_tts.doors.twilio.codec import TwilioCodec
from telephony_tts.doors.vonage.codec import VonageCodec
from telephony_tts.http_api.responses import STATUS
from telephony_tts.ops.lexicon_files import parse
from telephony_tts.runtime import errors
from telephony_tts.session.settings import CallLimits
from telephony_tts.transport.connection import MAX_FRAGMENTS
from telephony_tts.transport.request_head import MAX_HEAD_BYTES, MAX_HEADERS, MAX_LINE_BYTES
from telephony_tts.wire import messages
from telephony_tts.wire.media_stream import MediaStreamCodec
from telephony_tts.wire.messages import Configure, Frame, InboundAudio, Invalid, MediaClear, MediaMark, Text
from telephony_tts.wire.native import CLIENT_TYPES, EVENT_TYPES, NativeCodec
from telephony_tts.wire.native_media import NativeMediaCodec
from telephony_tts.wire.query import StreamOptions, parse_stream_query
from telephony_tts.wire.vendor import ChangeAudio, CloseSocket, Reply, Step, VendorDialect, VendorEvent, VendorOptions

ROOT = Path(__file__).parents[2]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
PAGE = "\n".join(TEXTS.values())
"""The pages as one text: a section has its number on one of them only."""
MAX_BYTES_OF_THE_FIRST_PAGE = 30_000

_BLOCK = re.compile(r"^```(.+?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DIALECTS = (
    "twilio", "native-media", "asterisk", "freeswitch", "telnyx", "plivo", "signalwire", "exotel", "vonage", "genesys",
    "jambonz", "bandwidth", "deepgram", "elevenlabs", "cartesia", "dashscope", "jambonz-tts",
)  # fmt: skip
_EVENT_CLASSES = {name: event for event, name in EVENT_TYPES.items()}
_CLIENT_CLASSES = {
    "say": messages.Say,
    "text": messages.Text,
    "end": messages.End,
    "flush": messages.Flush,
    "clear": messages.Clear,
    "mark": messages.Mark,
    "config": messages.Configure,
    "status": messages.Status,
    "ping": messages.Ping,
    "close": messages.Close,
    "dtmf": messages.SendDtmf,
    "pause": messages.PauseSpeech,
    "resume": messages.ResumeSpeech,
    "play": messages.Play,
    "record": messages.Record,
}


def examples(info: str) -> list[str]:
    """The lines of every block marked ```info."""
    return [line for found, body in _BLOCK.findall(PAGE) if found == info for line in body.splitlines()]


def transcripts(sign: str) -> list[str]:
    return [line[2:] for line in examples("text session") if line.startswith(f"{sign} ")]


def section(heading: str) -> str:
    """The text from the heading, given without its signs, to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n", PAGE, re.MULTILINE)
    assert found is not None, heading
    return re.split(rf"^#{{1,{len(found[1])}}} ", PAGE[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def first_column(text: str) -> list[str]:
    """The names in backquotes in the first column of the section's tables."""
    cells = re.findall(r"^\| *(`[^|]+) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def _headings(part: int) -> list[tuple[str, str]]:
    """The type and the heading of each message with a section in part 4 or 5, in the order of their numbers."""
    found = re.findall(rf"^#+ ({part}\.(\d+) `(\w+)`)$", PAGE, re.MULTILINE)
    return [(kind, heading) for heading, _, kind in sorted(found, key=lambda one: int(one[1]))]


# ---------------------------------------------------------------------- examples


def test_the_lexicon_file_can_be_used() -> None:
    (page,) = [block for info, block in _BLOCK.findall(PAGE) if info == "yaml lexicon"]
    read = parse(page, "page")
    assert read.polyphones
    assert [entry.written for entry in read.entries] == ["SQL", "hibari", r"ACME-(\d+)", "tomato", "重庆", "nice"]
    assert read.entries[3].ipa and read.entries[4].syllables == ("chong2", "qing4") and read.entries[5].any_case


def test_every_code_block_is_of_a_kind_that_is_tested() -> None:
    dialects = {f"json {dialect}-{way}" for dialect in _DIALECTS for way in ("in", "out")}
    known = {"json bot", "json server", "text session", "text address", "json freeswitch-fork-out"} | dialects
    known |= {"json elevenlabs-stream-in", "json elevenlabs-stream-out"}
    known |= {"json deepgram-flux-in", "json deepgram-flux-out"}
    known |= {"sh curl"}  # tests/e2e/test_http_api.py runs them
    known |= {"yaml lexicon"}
    infos = {info for info, _ in _BLOCK.findall(PAGE)}
    assert {info for info in infos - known if not re.fullmatch(r"json invalid \w+", info)} == set()
    assert PAGE.count("```") == 2 * len(_BLOCK.findall(PAGE))


@pytest.mark.parametrize("line", examples("json bot") + transcripts(">"))
def test_the_bots_messages_are_read(line: str) -> None:
    message = NativeCodec().decode(line)
    if line == '{"type":"shout"}':  # the one mistake in the transcript; the error is the next line
        assert isinstance(message, Invalid)
        return
    assert not isinstance(message, Invalid), message
    if not line.startswith("{"):
        assert messages.Say(line) == message
        return
    said = json.loads(line)
    assert _CLIENT_CLASSES[said.pop("type")] is type(message)
    if isinstance(message, Text) and "token" in said:
        said["text"] = said.pop("token")
    assert {name: getattr(message, name) for name in said} == said


INVALID = [
    (code, line) for code in ("bad_json", "unknown_type", "bad_field") for line in examples(f"json invalid {code}")
]


@pytest.mark.parametrize(("code", "line"), INVALID)
def test_invalid_examples_give_the_error_code_of_the_page(code: str, line: str) -> None:
    answer = NativeCodec().decode(line)
    assert isinstance(answer, Invalid)
    assert answer.code == code


@pytest.mark.parametrize("line", examples("json server") + transcripts("<"))
def test_the_servers_messages_are_written_byte_for_byte(line: str) -> None:
    said: dict[str, Any] = json.loads(line)
    if "event" in said:
        media = said["media"]
        payload = base64.b64decode(media["payload"], validate=True)
        if media.get("track") == "inbound":
            assert NativeCodec().encode(InboundAudio(payload, int(media["timestamp"]))) == (line.encode(), True)
        else:
            assert NativeCodec(stream_id=said["streamSid"]).encode(Frame(payload)) == (line.encode(), True)
        return
    event = _EVENT_CLASSES[said.pop("type")](**said)
    assert NativeCodec().encode(event) == (line.encode(), True)


@pytest.mark.parametrize("line", [line for line in transcripts("<") if '"unknown_type"' in line])
def test_the_error_in_the_transcript_is_the_codecs_own(line: str) -> None:
    said = json.loads(line)
    assert NativeCodec().decode('{"type":"shout"}') == Invalid(said["code"], said["message"])


def test_heard_and_unheard_text_of_the_barge_in_are_the_text_sent_before() -> None:
    """§6.4 on the page's own examples: `cleared` cuts the text received so far in two, in code points."""
    sent: dict[str, str] = {}
    n_checked = 0
    for line in examples("text session"):
        if not line.startswith(("> {", "< {")):
            continue
        said = json.loads(line[2:])
        if line.startswith(">") and said["type"] in ("say", "text"):
            sent[said["turn"]] = sent.get(said["turn"], "") + said["text"]
        elif said["type"] == "cleared":
            assert sent[said["turn"]] == said["heard_text"] + said["unheard_text"]
            assert len(said["heard_text"]) == said["heard_chars"]
            n_checked += 1
    assert n_checked == 3


def test_the_complete_call_keeps_the_guarantees() -> None:
    """§6.1 on the recorded call: each turn and each mark ends once, and the frames are those of the turns' audio."""
    lines = [
        line
        for info, body in _BLOCK.findall(section("10.2 A complete call"))
        if info == "text session"
        for line in body.splitlines()
    ]
    frames = [int(match[1]) for line in lines if (match := re.match(r"  \((\d+) frames?\b", line))]
    assert len(frames) + sum(line.startswith(("> ", "< ")) for line in lines) == len(lines)
    sent = [json.loads(line[2:]) for line in lines if line.startswith("> ")]
    received = [json.loads(line[2:]) for line in lines if line.startswith("< ")]
    assert [event["type"] for event in received[:1]] == ["ready"]
    ends = [event for event in received if event["type"] in ("done", "cleared", "error")]
    assert [event["turn"] for event in ends] == list(dict.fromkeys(m["turn"] for m in sent if "text" in m))
    marks = [(event["name"], event["state"]) for event in received if event["type"] == "mark"]
    assert dict(marks) == {"balance-told": "played", "all-told": "cleared"} and len(marks) == 2
    assert {message["name"] for message in sent if message["type"] == "mark"} == dict(marks).keys()
    spoken_ms = sum(event.get("audio_ms", event.get("heard_ms")) for event in ends)
    ahead_ms = received[0]["lead_ms"] + 2 * received[0]["ptime_ms"]  # sent and not heard when the `clear` came
    assert spoken_ms <= sum(frames) * received[0]["ptime_ms"] <= spoken_ms + ahead_ms


def test_twilio_examples_are_read_and_written() -> None:
    codec = TwilioCodec()
    read = [codec.decode(line) for line in examples("json twilio-in")]
    kinds = ["NoneType", "MediaStart", "MediaAudio", "MediaDtmf", "MediaMark", "MediaStop"]
    assert [type(message).__name__ for message in read] == kinds
    audio = read[2]
    assert isinstance(audio, messages.MediaAudio)
    spoken = [codec.encode(m)[0].decode() for m in (Frame(audio.payload), MediaMark("1.1"), MediaClear())]
    assert spoken == examples("json twilio-out")


CARRIERS: dict[str, tuple[type[MediaStreamCodec], messages.MediaStart, list[str]]] = {
    "telnyx": (
        TelnyxCodec,
        messages.MediaStart(
            "v3:abc_D-1", "32de0001", "ulaw", 8000,
            {"from": "+4930123456", "to": "+4930654321", "call_session_id": "s1", "client_state": "aGk="}
            | {"bot": "sales"},
            ptime_ms=20, caller_format=("ulaw", 8000),
        ),
        ["NoneType", "MediaStart", "MediaAudio", "MediaDtmf", "MediaMark", "Invalid", "MediaStop"],
    ),
    "plivo": (
        PlivoCodec,
        messages.MediaStart("c0001", "s0001", "ulaw", 8000, {"bot": "sales"}),
        ["MediaStart", "MediaAudio", "MediaDtmf", "MediaMark", "NoneType", "MediaStop"],
    ),
    "signalwire": (
        SignalWireCodec,
        messages.MediaStart("5a1f0001-22aa-41b0", "3e0d0001-7d0c-4c2f", "pcm", 16000, {"bot": "sales"}),
        ["NoneType", "MediaStart", "MediaAudio", "MediaDtmf", "MediaMark", "MediaStop"],
    ),
    "exotel": (
        ExotelCodec,
        messages.MediaStart(
            "CA0001", "MZ0001", "pcm", 8000, {"from": "+919876543210", "to": "+918047491899", "bot": "sales"},
            20, 500, 200,
        ),
        ["NoneType", "MediaStart", "MediaAudio", "MediaDtmf", "MediaMark", "MediaStop"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_examples_of_other_carriers_are_read_and_written(carrier: str) -> None:
    kind, start, kinds = CARRIERS[carrier]
    codec = kind()
    read = [codec.decode(line) for line in examples(f"json {carrier}-in")]
    assert [type(message).__name__ for message in read] == kinds
    assert start in read and messages.MediaDtmf("5") in read and MediaMark("1.1") in read
    audio = next(message for message in read if isinstance(message, messages.MediaAudio))
    said: list[messages.ToMedia] = [Frame(audio.payload), MediaMark("1.1"), MediaClear()]
    said += [messages.MediaTones("1w2")] if carrier in ("signalwire", "plivo") else []
    assert [codec.encode(message) for message in said] == [
        (line.encode(), True) for line in examples(f"json {carrier}-out")
    ]


def test_bandwidth_examples_are_read_and_written() -> None:
    codec = BandwidthCodec()
    start, audio, stop = (codec.decode(line.encode()) for line in examples("json bandwidth-in"))
    assert start == messages.MediaStart("c-15ac29a2-6e9d", "s-2b1a", "ulaw", 8000, {"bot": "sales"})
    assert isinstance(audio, messages.MediaAudio) and stop == messages.MediaStop()
    said = [codec.encode(message) for message in (Frame(audio.payload), MediaClear())]
    assert said == [(line.encode(), True) for line in examples("json bandwidth-out")]


def test_native_media_examples_are_read_and_written() -> None:
    codec = NativeMediaCodec()
    read = [codec.decode(line.encode()) for line in examples("json native-media-in")]
    parameters = {"from": "+4930123456"}
    assert read == [
        messages.MediaStart("c1", "s1", "pcm", 16000, parameters, ptime_ms=20, lead_ms=40),
        MediaMark("1.1"),
        messages.MediaDtmf("5"),
        messages.MediaHold(True),
        messages.MediaHold(False),
        messages.MediaStop("hangup"),
    ]
    assert codec.sends_dtmf
    told: list[messages.ToMedia] = [MediaMark("1.1"), MediaClear(), messages.MediaTones("12#")]
    said = [*map(codec.encode, told), codec.complaint(Invalid("bad_field", "…"))]
    assert [(payload.decode(), is_text) for payload, is_text in said] == [
        (line, True) for line in examples("json native-media-out")
    ]


def test_asterisk_examples_are_read_and_written() -> None:
    codec = AsteriskCodec()
    read = [codec.decode(line.encode()) for line in examples("json asterisk-in")]
    kinds = ["MediaStart", "MediaMark", "MediaDtmf", "MediaFlow", "MediaFlow", "MediaBuffered", "Invalid"]
    assert [type(message).__name__ for message in read] == kinds
    assert read[1:6] == [
        MediaMark("1.1"), messages.MediaDtmf("5"), messages.MediaFlow(False), messages.MediaFlow(True),
        messages.MediaBuffered(3),
    ]  # fmt: skip
    mark, clear = codec.encode(MediaMark("1.1")), codec.encode(MediaClear())
    start, stop, *rest = (
        codec.command(name)
        for name in ("START_MEDIA_BUFFERING", "STOP_MEDIA_BUFFERING", "GET_STATUS", "CONTINUE_MEDIA", "HANGUP")
    )
    said = [codec.command("ANSWER"), start, mark, stop, clear, *rest]
    assert [(payload.decode(), is_text) for payload, is_text in said] == [
        (line, True) for line in examples("json asterisk-out")
    ]


def test_freeswitch_examples_are_read_and_written() -> None:
    codec = FreeSwitchCodec(is_fork=False)
    read = [codec.decode(line.encode()) for line in examples("json freeswitch-in")]
    parameters = {"call": "c1", "rate_hz": "8000", "from": "+4930123456"}
    assert read == [
        messages.MediaStart("c1", "c1", "pcm", 8000, parameters, 20, 60_000, whole_sentences=True, ahead_ms=8000),
        messages.MediaPlayback("playing", "1"),
        messages.MediaPlayback("played", "1"),
        messages.MediaPlayback("failed", "2"),
        messages.MediaPlayback("again"),
        messages.MediaDtmf("5"),
    ]
    said = [codec.hello(), codec.file("1", bytes(4)), codec.clear(2), codec.hello(2)]
    said += [codec.tones(messages.MediaTones("12#")), codec.hang_up()]
    assert [(payload.decode(), is_text) for payload, is_text in said] == [
        (line, True) for line in examples("json freeswitch-out")
    ]
    codec.is_fork = True
    said = [codec.file("1", bytes(4))]
    assert [(payload.decode(), is_text) for payload, is_text in said] == [
        (line, True) for line in examples("json freeswitch-fork-out")
    ]


def test_vonage_examples_are_read_and_written() -> None:
    codec = VonageCodec()
    read = [codec.decode(line.encode()) for line in examples("json vonage-in")]
    parameters = {"call": "c1", "plan": "gold"}
    assert read == [
        messages.MediaStart("c1", "c1", "pcm", 16000, parameters, 20), messages.MediaDtmf("5"), MediaMark("1.1"), None,
    ]  # fmt: skip
    said = [codec.encode(MediaMark("1.1")), codec.encode(MediaClear())]
    assert [payload.decode() for payload, _ in said] == examples("json vonage-out")


def test_genesys_examples_are_read_and_written() -> None:
    codec = GenesysCodec()
    read, said = [], []
    for line in examples("json genesys-in"):
        if '"close"' in line:
            said += [codec.encode(MediaClear()), codec.disconnect("completed")]
        read.append(codec.decode(line.encode()))
        said += [codec.opened()] if isinstance(read[-1], messages.MediaStart) else codec.replies()
    kinds = ["MediaStart", "NoneType", "MediaDtmf", "MediaPlayback", "MediaPlayback", "NoneType", "NoneType", "Invalid"]
    assert [type(message).__name__ for message in read] == [*kinds, "MediaStop"]
    assert [wire[0].decode() for wire in said if wire is not None] == examples("json genesys-out")


def test_jambonz_examples_are_read_and_written() -> None:
    codec = JambonzCodec()
    start, *read = [codec.decode(line.encode()) for line in examples("json jambonz-in")]
    assert isinstance(start, messages.MediaStart) and (start.call, start.rate_hz) == ("c1", 8000)
    assert read == [messages.MediaDtmf("2"), MediaMark("1.1"), None]
    said = [codec.encode(MediaMark("1.1")), codec.clear_marks(), codec.encode(MediaClear()), codec.hang_up()]
    assert [payload.decode() for payload, _ in said] == examples("json jambonz-out")


@pytest.mark.parametrize(("kind", "suffix"), [("stream-input", "-stream"), ("multi-stream-input", "")])
def test_elevenlabs_examples_are_read_and_written(kind: str, suffix: str) -> None:
    dialect = open_stream(f"/v1/text-to-speech/tone/{kind}")
    assert isinstance(dialect, ElevenLabsStream)
    said: list[str] = []
    steps: list[Any] = []
    for line in examples(f"json elevenlabs{suffix}-in"):
        got = list(dialect.decode(line.encode(), True))
        steps += [step for step in got if not isinstance(step, Reply)]
        said += [step.wire[0].decode() for step in got if isinstance(step, Reply)]
        if messages.End("1") in got:
            spoken = messages.SpokenText("Hi", 0, (0.0, 60.0, 120.0))
            wires = [*dialect.audio("1", bytes(3), spoken), *dialect.event(messages.TurnSent("1"))]
            said += [wire[0].decode() for wire in wires if not isinstance(wire, CloseSocket)]
    assert said == examples(f"json elevenlabs{suffix}-out")
    assert steps[:2] == [Configure(speed=1.1), Text("Hi. ", "1")]


def test_dashscope_examples_are_read_and_written() -> None:
    run, text, flush, finish, cancel = (line.encode() for line in examples("json dashscope-in"))
    said: list[tuple[str, bool]] = []
    steps: list[object] = []

    def do(dialect: DashScopeTasks, line: bytes) -> None:
        for step in dialect.decode(line, True):
            if isinstance(step, Reply):
                said.append((step.wire[0].decode(), step.wire[1]))
            else:
                steps.append(step)

    talk, failing, cancelled = (DashScopeTasks(VendorOptions()) for _ in range(3))
    for line in (run, text, flush):
        do(talk, line)
    said += [(payload.decode(), is_text) for payload, is_text in talk.audio("1", b"12", None)]
    for event in (messages.SentenceSpoken("1", 0, "你好，world.", 0, 900), messages.TurnSent("1")):
        if isinstance(event, messages.TurnSent):
            do(talk, finish)
        said += [(wire[0].decode(), wire[1]) for wire in talk.event(event) if isinstance(wire, tuple)]
    assert steps == [
        ChangeAudio("pcm", 8000), Configure(voice="longxiaochun_v2", lang="", speed=1.0, seed=0, instruct=""),
        Text("", "1"), Text("你好，world.", "1"), messages.Flush("1"), messages.End("1"),
    ]  # fmt: skip
    do(failing, run)
    said.pop()
    error = messages.ErrorEvent("unknown_voice", "…", turn="1")
    said += [(wire[0].decode(), wire[1]) for wire in failing.event(error) if isinstance(wire, tuple)]
    started, synthesis, audio, *others = said
    assert audio == ("12", False)
    assert [started, synthesis, *others] == [(line, True) for line in examples("json dashscope-out")]
    do(cancelled, run)
    do(cancelled, cancel)
    assert steps[-1] == messages.Clear("1") and '"task-finished"' in said[-1][0]


def without_ids(payload: str | bytes) -> dict[str, Any]:
    """A message of a vendor's protocol without what each connection invents."""
    text = payload if isinstance(payload, str) else payload.decode()
    made: dict[str, Any] = json.loads(re.sub(r"dg_sp_[0-9a-f]{12}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "", text))
    return made


def answers(dialect: VendorDialect, line: str, *events: VendorEvent) -> list[dict[str, Any]]:
    """What the client gets for a message, if `events` happen in its course."""
    got, pending = [], list(events)
    for step in dialect.decode(line.encode(), True):
        if isinstance(step, Reply):
            got.append(without_ids(step.wire[0]))
        while pending and isinstance(step, messages.End | messages.Clear):
            told = dialect.event(pending.pop(0))
            got += [without_ids(wire[0]) for wire in told if not isinstance(wire, CloseSocket)]
    return got


def test_deepgram_examples_are_read_and_written() -> None:
    dialect = DeepgramSpeak(VendorOptions(voice="aura-2-thalia-en"))
    speak, flush, clear, close = examples("json deepgram-in")
    got = [without_ids(wire) for wire, _ in dialect.greeting()]
    assert answers(dialect, speak) == []
    got += answers(dialect, flush, messages.TurnSent("0"))
    got += answers(dialect, clear)
    warned = messages.WarningEvent("language_mismatch", "the text is in French, and the voice speaks English")
    got += [without_ids(wire[0]) for wire in dialect.event(warned) if not isinstance(wire, CloseSocket)]
    assert got == [without_ids(line) for line in examples("json deepgram-out")]
    assert list(dialect.decode(close.encode(), True)) == [CloseSocket(1000, "closed")]


def test_deepgram_flux_examples_are_read_and_written() -> None:
    dialect = DeepgramFlux(VendorOptions(rate_hz=8000, voice="flux-alexis-en"))
    speak, flush, interrupt, configure, close = examples("json deepgram-flux-in")
    got = [without_ids(wire) for wire, _ in dialect.greeting()]
    started, text = dialect.decode(speak.encode(), True)
    assert isinstance(started, Reply) and isinstance(text, Text) and text.turn is not None
    got.append(without_ids(started.wire[0]))
    assert list(dialect.audio(text.turn, bytes(1140 * 16), None)) == [(bytes(1140 * 16), False)]
    got += answers(dialect, flush, messages.TurnSent(text.turn))
    cleared = messages.Cleared(text.turn, "Sure, let me", 12, 900, " check.", "client", "clear")
    got += answers(dialect, interrupt, cleared)
    got += answers(dialect, configure) + answers(dialect, '{"type":"Configure","speed":9}')
    got += answers(dialect, '{"type":"Interrupt"}')
    failed = DeepgramFlux(VendorOptions()).decode(b"", False)
    got += [without_ids(step.wire[0]) for step in failed if isinstance(step, Reply)]
    got += answers(dialect, close)
    assert got == [without_ids(line) for line in examples("json deepgram-flux-out")]


def steps_of(dialect: VendorDialect, kind: str) -> list[Step]:
    """What all the examples of a kind ask for."""
    return [step for line in examples(kind) for step in dialect.decode(line.encode(), True)]


def lines_of(*wires: Any) -> list[str]:
    return [wire[0].decode() for some in wires for wire in some]


def test_cartesia_examples_are_read_and_written() -> None:
    dialect = open_contexts("/tts/websocket")
    asked = [type(step).__name__ for step in steps_of(dialect, "json cartesia-in")]
    assert asked == ["ChangeAudio", "Configure", "Text", "Flush", "End", "Clear"]
    dialect = open_contexts("/tts/websocket")
    text, flush, end, _ = examples("json cartesia-in")
    for line in (text, flush):
        assert not [step for step in dialect.decode(line.encode(), True) if isinstance(step, Reply)]
    spoken = messages.SpokenText("Good morning.", 0, tuple(60.0 * n for n in range(14)))
    said = lines_of(dialect.audio("1", b"\xff", spoken), dialect.event(messages.TurnSent("1")))
    said += [step.wire[0].decode() for step in dialect.decode(end.encode(), True) if isinstance(step, Reply)]
    for step in dialect.decode(text.replace('"t1"', '"t2"').encode(), True):
        if isinstance(step, Configure):
            said += lines_of(dialect.event(messages.ErrorEvent("unknown_voice", "there is no voice unknown-name")))
    assert said == examples("json cartesia-out")


def test_jambonz_tts_examples_are_read_and_written() -> None:
    dialect = open_tts("/jambonz/tts?base64_encoding=true")
    assert isinstance(dialect, JambonzVoice)
    assert steps_of(dialect, "json jambonz-tts-in") == [
        Text("Hello, how can I help you today? ", "0"), messages.End("0"), messages.Clear(), messages.Clear(),
        CloseSocket(1000, "stopped"),
    ]  # fmt: skip
    refused = [step.wire for step in dialect.decode(b'{"type":"speak"}', True) if isinstance(step, Reply)]
    assert lines_of(dialect.greeting(), dialect.audio("0", bytes(2), None), refused) == examples("json jambonz-tts-out")


@pytest.mark.parametrize("address", examples("text address") + re.findall(r"'(ws://.+?)'", PAGE))
def test_addresses_are_read_without_a_warning(address: str) -> None:
    options = parse_stream_query(address)
    assert isinstance(options, StreamOptions)
    assert options.unknown == ()


# ------------------------------------------------------------------------ tables


@pytest.mark.parametrize(("kind", "heading"), _headings(4))
def test_the_fields_a_bot_may_send_are_those_of_the_code(kind: str, heading: str) -> None:
    assert first_column(section(heading)) == [field.name for field in fields(_CLIENT_CLASSES[kind])]


@pytest.mark.parametrize(("kind", "heading"), _headings(5))
def test_the_fields_of_an_event_are_those_of_the_code(kind: str, heading: str) -> None:
    assert first_column(section(heading)) == [field.name for field in fields(_EVENT_CLASSES[kind])]


def test_every_message_and_event_has_its_section() -> None:
    assert [kind for kind, _ in _headings(4)] == list(CLIENT_TYPES) == list(_CLIENT_CLASSES)
    assert {kind for kind, _ in _headings(5)} == set(_EVENT_CLASSES)


def test_the_options_are_those_of_the_code() -> None:
    table = re.compile(r"^\| `(\w+)` \| ([^|]+) \|", re.MULTILINE)
    rows = table.findall(section("3. Options"))
    (others,) = re.findall(r"are options too, .+? except (.+?)\.$", section("3. Options"), re.MULTILINE | re.DOTALL)
    only_fields = re.findall(r"`(\w+)`", others)
    rows += [row for row in table.findall(section("4.9 `config`")) if row[0] not in only_fields]
    attributes = {field.name for field in fields(StreamOptions)} - {"unknown"}
    assert {"rate_hz" if name == "rate" else name for name, _ in rows} == attributes
    for name, values in rows:
        for value in re.findall(r"`(\S+)`", values):
            if name != "call":
                assert isinstance(parse_stream_query(f"?{name}={value}"), StreamOptions), (name, value)
        nonsense = parse_stream_query(f"?{name}={'%00' * 4097}")
        assert isinstance(nonsense, Invalid), name
        allowed = nonsense.message.partition(": expected ")[2]
        if allowed.startswith("one of "):
            assert re.findall(r"`(\S+)`", values) == allowed.removeprefix("one of ").split(", ")


def test_every_code_the_codecs_and_error_classes_use_is_in_the_table() -> None:
    source = "".join(path.read_text() for path in Path(wire_package.__path__[0]).glob("*.py"))
    used = set(re.findall(r'(?:Invalid|invalid)\(\s*"(\w+)"', source))
    used |= set(re.findall(r'BadField\(\s*[^()]*(?:\([^()]*\)[^()]*)*, "(\w+)"\s*\)', source))
    used |= {"bad_field"}
    assert {"bad_json", "unknown_type", "text_too_long", "bad_order", "unsupported_codec"} <= used
    used |= {e.code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.TelephonyTTSError)}
    used -= {errors.ConfigError.code}  # raised before there is a wire
    listed = first_column(section("8.1 Errors"))
    assert used - set(listed) == set()
    assert len(listed) == len(set(listed))


def test_every_code_in_the_package_is_in_its_table() -> None:
    root = Path(wire_package.__path__[0]).parent
    source = "".join(path.read_text() for path in sorted(root.rglob("*.py")))
    refused = set(re.findall(r'\bErrorEvent\(\s*"(\w+)"', source))
    assert refused - set(first_column(section("8.1 Errors"))) == set()
    warned = set(re.findall(r'\b(?:WarningEvent|warn)\(\s*"(\w+)"', source))
    assert warned - set(first_column(section("8.2 Warnings"))) == set()


def test_the_limits_are_those_of_the_session() -> None:
    names = first_column(section("7. Limits"))
    of_speech = {"pause_chars", "resume_chars", "pending_marks"}
    ours = {field.name for field in fields(CallLimits)} | of_speech | {"message_bytes", "message_fragments"}
    assert set(names) == ours
    assert f"empty ones included: {MAX_FRAGMENTS} |" in section("7. Limits")
    ready = next(json.loads(line) for line in examples("json server") if '"ready"' in line)
    assert set(ready["limits"]) <= set(names)


def test_the_limits_of_a_request_are_those_of_its_reader() -> None:
    told = f"{MAX_LINE_BYTES:,} bytes a line, {MAX_HEADERS} headers, {MAX_HEAD_BYTES:,} bytes in all"
    assert told in section("2.3 Answers to the handshake")


def test_the_errors_of_http_are_those_of_the_code() -> None:
    table = section("12.1 HTTP: `/tts/stream`").partition("| status |")[2]
    told = {
        code: int(status)
        for status, codes in re.findall(r"^\| (\d+) \| (`[^|]+) \|", table, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", codes)
    }
    assert told == {code: status for code, status in STATUS.items() if code != "client_gone"}


def test_every_section_quoted_exists() -> None:
    known = {number for number, _ in sections(PAGE)}
    quoted = set(re.findall(r"§(\d+(?:\.\d+)?)", PAGE))
    assert len(quoted) > 30
    folders = ("telephony_tts", "sip_bridge", "tests", "benchmarks", "torture", "configs", "docs")
    files = [*ROOT.glob("*.md"), *(path for name in folders for path in (ROOT / name).rglob("*.*"))]
    for path in files:
        if path.suffix in (".py", ".md", ".yaml"):
            text = path.read_text(encoding="utf-8")
            # "PROTOCOL.md §4 and §5", "[PROTOCOL.md](PROTOCOL.md) §9.4"
            for quote in re.findall(r"PROTOCOL\.md(?:\]\([^)]*\))?,? (§[\d.]+(?:(?:, | and )§[\d.]+)*)", text):
                quoted |= {number.rstrip(".") for number in re.findall(r"§([\d.]+)", quote)}
            for page, number in re.findall(r"docs/protocol/([\w-]+\.md) §(\d+(?:\.\d+)?)", text):
                on_that_page = {found for found, _ in sections(TEXTS[FOLDER / page])}
                assert number in on_that_page, f"{path}: {page} §{number}"
    assert quoted - known == set()


def test_the_index_has_each_section_once_and_in_order() -> None:
    index = INDEX.read_text(encoding="utf-8")
    assert index == with_contents(index), "run python tests/wire/protocol_index.py"
    numbers = [number for number, _ in sections(PAGE)]
    assert len(numbers) == len(set(numbers)), "two sections have the same number"


def test_every_page_is_linked_from_the_first_one_or_from_the_index() -> None:
    linking = TEXTS[ROOT / "PROTOCOL.md"] + INDEX.read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((?:docs/protocol/)?([\w-]+\.md)", linking))
    assert {page.name for page in FOLDER.glob("*.md")} - linked == set()
    assert {f"{dialect}.md" for dialect in _DIALECTS} - linked == set()


def test_the_first_page_stays_short() -> None:
    assert (ROOT / "PROTOCOL.md").stat().st_size <= MAX_BYTES_OF_THE_FIRST_PAGE


def test_config_limits_on_the_page_are_the_codecs() -> None:
    for setting, ok, bad in (("speed", (0.5, 2.0), (0.49, 2.01)), ("seed", (0, 4294967295), (-1, 4294967296))):
        table = section("4.9 `config`")
        row = next(line for line in table.splitlines() if line.startswith(f"| `{setting}`"))
        for value in ok:
            assert str(value) in row
            assert isinstance(NativeCodec().decode(json.dumps({"type": "config", setting: value})), Configure)
        for value in bad:
            assert isinstance(NativeCodec().decode(json.dumps({"type": "config", setting: value})), Invalid)
