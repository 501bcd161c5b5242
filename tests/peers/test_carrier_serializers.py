"""Vonage and Genesys as pipecat knows them: its serializers are bots, so they send what our legs must send to those
carriers, and read what our legs must read from them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environment import drive

from telephony_tts.audio.g711 import decode_ulaw, encode_ulaw
from telephony_tts.doors.genesys.codec import GenesysCodec
from telephony_tts.doors.vonage.codec import VonageCodec
from telephony_tts.wire import messages as m

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SPEECH = (1000 * (np.arange(3200) % 50 - 25)).astype("<i2")
"""What the driver's bot says."""

TONE = (8000 * np.sin(2 * np.pi * 440 * np.arange(1600) / 8000)).astype("<i2")
"""What the caller says."""

Said = dict[str, Any] | bytes


def meets(kind: str, rate_hz: int, said: list[Said], folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What pipecat reads of each message of the carrier, and what it sends, by its occasion."""
    lines = [
        {"audio": base64.b64encode(each).decode()} if isinstance(each, bytes) else {"text": json.dumps(each)}
        for each in said
    ]
    file = folder / "said.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    events = drive("carrier_serializers.py", kind, str(rate_hz), str(file))
    sent = {event["what"]: event.get("audio") or event.get("text") for event in events if event["event"] == "sent"}
    return [event for event in events if event["event"] == "read"], {
        what: json.loads(data) if isinstance(data, str) else data for what, data in sent.items()
    }


def ours(codec: VonageCodec | GenesysCodec, said: list[Said]) -> list[m.FromMedia | None]:
    """What our codec reads of the same messages."""
    return [
        codec.decode(each if isinstance(each, bytes) else json.dumps(each).encode(), True, not isinstance(each, bytes))
        for each in said
    ]


def agree(foreign: dict[str, Any], message: m.FromMedia | None, decode: Any) -> None:
    """pipecat and our codec read the same in one message of the carrier."""
    if isinstance(message, m.MediaAudio):
        assert foreign["frame"] == "InputAudioRawFrame"
        assert np.array_equal(np.frombuffer(foreign["audio"], "<i2"), decode(message.payload))
    elif isinstance(message, m.MediaDtmf):
        assert (foreign["frame"], foreign["digit"]) == ("InputDTMFFrame", message.digit)
    else:
        assert foreign["frame"] in (None, "OutputTransportMessageUrgentFrame")


# --------------------------------------------------------------------------- Vonage


@pytest.mark.parametrize("rate_hz", [8000, 16000, 24000])
def test_vonage(rate_hz: int, tmp_path: Path) -> None:
    audio = TONE.tobytes()[: rate_hz // 50 * 2]
    said: list[Said] = [
        {"event": "websocket:connected", "content-type": f"audio/l16;rate={rate_hz}", "call": "c1"},
        audio,
        *({"event": "websocket:dtmf", "digit": digit, "duration": 260} for digit in "0123456789*#"),
        {"event": "websocket:notify", "payload": {"id": "1.1"}},
        {"event": "websocket:cleared"},
        audio,
    ]
    foreign, sent = meets("vonage", rate_hz, said, tmp_path)
    codec = VonageCodec()
    read = ours(codec, said)
    kinds = [m.MediaStart, m.MediaAudio, *[m.MediaDtmf] * 12, m.MediaMark, type(None), m.MediaAudio]
    assert [type(message) for message in read] == kinds
    for theirs, message in zip(foreign, read, strict=True):
        agree(theirs, message, lambda payload: np.frombuffer(payload, "<i2"))
    # pipecat leaves the length of a message to its transport; the samples are the same.
    frames = [codec.encode(m.Frame(SPEECH.tobytes()[at : at + rate_hz // 25])) for at in range(0, 6400, rate_hz // 25)]
    assert b"".join(payload for payload, _ in frames) == sent["speech"]
    assert not any(is_text for _, is_text in frames)
    payload, is_text = codec.encode(m.MediaClear())
    assert is_text and json.loads(payload) == sent["interruption"]


# -------------------------------------------------------------------------- Genesys

PCMU = {"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}
OPEN = {
    "organizationId": "o", "conversationId": "c1",
    "participant": {"id": "p", "ani": "+1", "aniName": "x", "dnis": "+2"}, "media": [PCMU],
    "inputVariables": {"k": "v"},
}  # fmt: skip


def numbered(kinds: list[tuple[str, dict[str, Any]] | bytes]) -> list[Said]:
    said: list[Said] = []
    seq = 0
    for kind in kinds:
        if isinstance(kind, bytes):
            said.append(kind)
            continue
        seq += 1
        envelope = {"version": "2", "id": "e1", "seq": seq, "serverseq": 0, "position": f"PT{seq}.5S"}
        said.append({**envelope, "type": kind[0], "parameters": kind[1]})
    return said


def form(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what only one side sends: pipecat adds the peer's position, and a variable for the flow."""
    parameters = {name: value for name, value in message["parameters"].items() if name != "outputVariables"}
    return {**{name: value for name, value in message.items() if name != "position"}, "parameters": parameters}


def genesys_answers(said: list[Said]) -> tuple[GenesysCodec, list[m.FromMedia | None], list[dict[str, Any]]]:
    codec = GenesysCodec()
    read, answers = [], []
    for each in said:
        read += ours(codec, [each])
        replies = [codec.opened()] if isinstance(read[-1], m.MediaStart) else codec.replies()
        answers += [json.loads(payload) for payload, _ in replies]
    return codec, read, answers


def test_genesys(tmp_path: Path) -> None:
    audio = encode_ulaw(TONE)
    said = numbered(
        [
            ("open", OPEN), ("ping", {"rtt": "PT0.02S"}), audio,
            *(("dtmf", {"digit": digit}) for digit in "0123456789*#"),
            ("playback_started", {}), ("playback_completed", {}), ("error", {"code": 429, "message": "slow down"}),
            audio,
        ]
    )  # fmt: skip
    foreign, sent = meets("genesys", 8000, said, tmp_path)
    codec, read, answers = genesys_answers(said)
    kinds = [
        m.MediaStart, type(None), m.MediaAudio, *[m.MediaDtmf] * 12, m.MediaPlayback, m.MediaPlayback, m.Invalid,
        m.MediaAudio,
    ]  # fmt: skip
    assert [type(message) for message in read] == kinds
    for theirs, message in zip(foreign, read, strict=True):
        agree(theirs, message, decode_ulaw)
    assert [form(sent["opened"]), form(sent["pong"])] == answers
    assert codec.encode(m.Frame(encode_ulaw(SPEECH))) == (sent["speech"], False)
    for occasion, wire in (("interruption", codec.encode(m.MediaClear())), ("end", codec.disconnect("completed"))):
        assert wire is not None and wire[1] and json.loads(wire[0]) == form(sent[occasion]), occasion


def test_genesys_closes(tmp_path: Path) -> None:
    said = numbered([("open", OPEN), ("close", {"reason": "end"})])
    _, sent = meets("genesys", 8000, said, tmp_path)
    _, read, answers = genesys_answers(said)
    assert read[1] == m.MediaStop("end")
    assert [form(sent["opened"]), form(sent["closed"])] == answers
