"""AudioHook version 2: messages in the form of Genesys's reference implementation, and those of a broken peer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.doors.genesys.codec import NO_CONVERSATION, GenesysCodec, duration_ms
from telephony_tts.wire import messages as m

ID = "e160e428-53e2-487c-977d-96989bf5c99d"
PCMU = {"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}
STEREO = {"type": "audio", "format": "PCMU", "channels": ["internal", "external"], "rate": 8000}
L16 = {"type": "audio", "format": "L16", "channels": ["external"], "rate": 8000}
OPEN = {
    "organizationId": "d7934305-0972-4844-938e-9060eef73d05",
    "conversationId": "090eaa2f-72fa-480a-83e0-8667ff89c0ec",
    "participant": {"id": "883efee8", "ani": "+1-555-555-1234", "aniName": "John Doe", "dnis": "+1-800-555-6789"},
    "media": [PCMU],
    "language": "en-US",
    "inputVariables": {"queue": "billing", "vip": True},
}
PACKET = bytes(range(200)) * 8


class Peer:
    """Numbers its messages as Genesys does, and gives them to a codec."""

    def __init__(self, codec: GenesysCodec | None = None) -> None:
        self.codec = codec or GenesysCodec()
        self.seq = 0
        self.answers: list[dict[str, Any]] = []

    def say(self, kind: str, position: str = "PT0S", seq: int | None = None, **parameters: Any) -> m.FromMedia | None:
        self.seq = self.seq + 1 if seq is None else seq
        server_seq = self.answers[-1]["seq"] if self.answers else 0
        said = {
            "version": "2", "type": kind, "id": ID, "seq": self.seq, "serverseq": server_seq, "position": position,
            "parameters": parameters,
        }  # fmt: skip
        return self.raw(json.dumps(said).encode())

    def raw(self, data: bytes, is_text: bool = True) -> m.FromMedia | None:
        answer = self.codec.decode(data, True, is_text)
        for payload, as_text in self.codec.replies():
            assert as_text
            self.answers.append(json.loads(payload))
        return answer


def opened(media: list[dict[str, Any]] | None = None) -> Peer:
    peer = Peer()
    assert isinstance(peer.say("open", **OPEN | {"media": media or [PCMU]}), m.MediaStart)
    peer.answers.append(json.loads(peer.codec.opened()[0]))
    return peer


def test_open_starts_the_call_and_is_answered() -> None:
    peer = Peer()
    start = peer.say("open", **OPEN)
    parameters = {
        "organizationId": OPEN["organizationId"], "conversationId": OPEN["conversationId"], "language": "en-US",
        "ani": "+1-555-555-1234", "aniName": "John Doe", "dnis": "+1-800-555-6789", "queue": "billing", "vip": "true",
    }  # fmt: skip
    call = str(OPEN["conversationId"])
    assert start == m.MediaStart(call, ID, "ulaw", 8000, parameters, 20, lead_ms=400, bulk_ms=200)
    assert peer.answers == []
    payload, is_text = peer.codec.opened()
    assert is_text and json.loads(payload) == {
        "version": "2", "type": "opened", "id": ID, "seq": 1, "clientseq": 1,
        "parameters": {"startPaused": False, "media": [PCMU]},
    }  # fmt: skip


def test_the_flow_or_the_address_may_name_the_call() -> None:
    def call(codec: GenesysCodec, **variables: str) -> str:
        start = Peer(codec).say("open", **OPEN | {"inputVariables": variables})
        assert isinstance(start, m.MediaStart)
        return start.call

    assert call(GenesysCodec("of-address"), call="of-flow") == "of-address"
    assert call(GenesysCodec(), call="of-flow") == "of-flow"
    assert call(GenesysCodec()) == OPEN["conversationId"]


@pytest.mark.parametrize(
    ("offered", "chosen", "codec"),
    [
        ([STEREO, PCMU, L16], PCMU, "ulaw"),
        ([L16, PCMU], L16, "pcm"),
        ([STEREO], STEREO, "ulaw"),
        ([{**PCMU, "rate": 16000}, {**PCMU, "format": "OPUS"}, "?", L16], L16, "pcm"),
    ],
)
def test_the_callers_channel_alone_is_preferred(offered: list[Any], chosen: dict[str, Any], codec: str) -> None:
    peer = Peer()
    start = peer.say("open", **OPEN | {"media": offered})
    assert isinstance(start, m.MediaStart) and start.codec == codec
    assert json.loads(peer.codec.opened()[0])["parameters"]["media"] == [chosen]


def test_audio_has_the_media_clock_of_genesys() -> None:
    peer = opened()
    assert peer.raw(PACKET, False) == m.MediaAudio(PACKET, 0)
    assert peer.raw(PACKET, False) == m.MediaAudio(PACKET, 200)
    peer.say("resumed", "PT5.04S", start="PT0.4S", discarded="PT4.64S")
    assert peer.raw(PACKET, False) == m.MediaAudio(PACKET, 5040)


def test_only_the_callers_channel_is_passed_on() -> None:
    peer = opened([STEREO])
    assert peer.raw(b"aAbBcC", False) == m.MediaAudio(b"ABC", 0)
    peer = opened([{**L16, "channels": ["external", "internal"]}])
    assert peer.raw(b"eeiiEEII", False) == m.MediaAudio(b"eeEE", 0)
    assert isinstance(peer.raw(b"eeii??", False), m.Invalid)


def test_each_message_is_read_and_answered_in_order() -> None:
    peer = opened()
    assert peer.say("ping", rtt="PT0.02S") is None
    assert peer.say("dtmf", digit="5") == m.MediaDtmf("5")
    assert peer.say("playback_started") == m.MediaPlayback("playing")
    assert peer.say("playback_completed") == m.MediaPlayback("played")
    assert peer.say("update", language="de-DE") is None
    for kind in ("paused", "resumed", "discarded", "pause", "resume", "reconnect"):
        assert peer.say(kind) is None
    refused = peer.say("error", code=429, message="too many messages", retryAfter="PT1S")
    assert isinstance(refused, m.Invalid) and "429" in refused.message and "too many" in refused.message
    assert peer.say("close", reason="end") == m.MediaStop("end")
    told = [(said["type"], said["seq"], said["clientseq"], said["id"]) for said in peer.answers]
    assert told == [("opened", 1, 1, ID), ("pong", 2, 2, ID), ("updated", 3, 6, ID), ("closed", 4, 14, ID)]


def test_what_genesys_gets() -> None:
    codec = opened().codec
    assert codec.encode(m.Frame(PACKET)) == (PACKET, False)
    assert codec.encode(m.MediaMark("1.1")) is None
    said = [codec.encode(m.MediaClear()), codec.disconnect("completed"), codec.disconnect("error", "why")]
    assert [json.loads(payload) for payload, _ in filter(None, said)] == [
        {"version": "2", "type": kind, "id": ID, "seq": seq, "clientseq": 1, "parameters": parameters}
        for seq, kind, parameters in (
            (2, "event", {"entities": [{"type": "barge_in", "data": {}}]}),
            (3, "disconnect", {"reason": "completed"}),
            (4, "disconnect", {"reason": "error", "info": "why"}),
        )
    ]


def test_a_probe_is_answered_and_starts_no_call() -> None:
    peer = Peer()
    assert peer.say("open", **OPEN | {"conversationId": NO_CONVERSATION, "media": [PCMU]}) is None
    assert isinstance(peer.say("close", reason="end"), m.MediaStop)
    assert [said["type"] for said in peer.answers] == ["opened", "closed"]


@pytest.mark.parametrize("seq", [1, 2, 4, 0, 2**53 - 1])
def test_a_gap_in_the_sequence_ends_the_session(seq: int) -> None:
    peer = opened()
    peer.say("ping")
    answer = peer.say("ping", seq=seq)
    assert isinstance(answer, m.Invalid) and answer.code == "bad_order" and peer.codec.is_broken
    assert peer.answers[-1]["type"] == "disconnect"
    assert peer.answers[-1]["parameters"] == {"reason": "error", "info": f'"seq" is {seq}; expected 3'}
    n_answers = len(peer.answers)
    assert peer.say("ping", seq=3) is None and peer.raw(PACKET, False) is None
    assert len(peer.answers) == n_answers, "nothing but a close is answered now"
    assert peer.say("close", seq=99, reason="error") == m.MediaStop("error")
    assert peer.answers[-1]["type"] == "closed"


def test_other_breaches_of_the_protocol_end_the_session() -> None:
    for change in ({"serverseq": 2}, {"id": "another"}):
        peer = opened()
        said = {"version": "2", "type": "ping", "id": ID, "seq": 2, "serverseq": 1, "parameters": {}, **change}
        assert isinstance(peer.raw(json.dumps(said).encode()), m.Invalid)
        assert peer.codec.is_broken and peer.answers[-1]["parameters"]["reason"] == "error"


@pytest.mark.parametrize(
    ("change", "code", "hint"),
    [
        ({"media": []}, "unsupported_codec", "PCMU or L16"),
        ({"media": [{**PCMU, "rate": 16000}]}, "unsupported_codec", "8000"),
        ({"media": [{**PCMU, "channels": ["internal"]}]}, "unsupported_codec", "external"),
        ({"media": [{**PCMU, "channels": [[]]}]}, "unsupported_codec", "external"),
        ({"conversationId": "a b"}, "bad_field", "A-Z"),
        ({"conversationId": 7}, "bad_field", "conversationId"),
    ],
)
def test_an_open_that_cannot_be_served_ends_the_session(change: dict[str, Any], code: str, hint: str) -> None:
    peer = Peer()
    answer = peer.say("open", **OPEN | change)
    assert isinstance(answer, m.Invalid) and answer.code == code and hint in answer.message
    assert peer.answers[-1]["type"] == "disconnect" and hint in peer.answers[-1]["parameters"]["info"]


def test_what_comes_before_open_is_refused() -> None:
    peer = Peer()
    for answer in (peer.raw(PACKET, False), peer.say("dtmf", digit="1")):
        assert isinstance(answer, m.Invalid) and answer.code == "bad_order" and "open" in answer.message
    assert not peer.codec.is_broken


@pytest.mark.parametrize(
    "raw",
    [
        b"hello", b"[]", b"\xff", b'{"version":"1","type":"ping","id":"x","seq":2}',
        b'{"version":"2","type":"ping","seq":2}', b'{"version":"2","type":"ping","id":"x","seq":"2"}',
        b'{"version":"2","type":"ping","id":"x"}',
    ],
)  # fmt: skip
def test_a_message_that_is_none_does_not_count(raw: bytes) -> None:
    peer = opened()
    assert isinstance(peer.raw(raw), m.Invalid) and not peer.codec.is_broken
    assert peer.say("ping") is None and peer.answers[-1]["clientseq"] == 2


def test_a_bad_message_counts_in_the_sequence() -> None:
    peer = opened()
    for answer in (peer.say("sing"), peer.say("dtmf", digit="55"), peer.say("dtmf"), peer.say("open", **OPEN)):
        assert isinstance(answer, m.Invalid)
    peer = opened()
    assert isinstance(peer.say("sing"), m.Invalid)
    assert peer.say("ping") is None and peer.answers[-1]["type"] == "pong"


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT0S", 0), ("PT1.5S", 1500), ("PT0.020S", 20), ("PT2M3S", 123_000), ("PT1H0.5S", 3_600_500),
        ("PT24H", 86_400_000), ("PT24H0.001S", None), ("PT", None), ("P1D", None), ("PT1,5S", None), ("1.5", None),
        (1.5, None), (None, None),
    ],
)  # fmt: skip
def test_durations(text: Any, ms: float | None) -> None:
    assert duration_ms(text) == ms


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_TYPES = st.sampled_from(["open", "close", "ping", "update", "dtmf", "error", "paused", "playback_started", "?"])
_OPEN = st.fixed_dictionaries(
    {"conversationId": st.just("c") | _JSON, "media": st.just([PCMU]) | st.just([STEREO]) | _JSON},
    optional={"inputVariables": _JSON, "participant": _JSON},
)
_SAID = st.fixed_dictionaries(
    {
        "version": st.just("2") | _JSON,
        "type": _TYPES | _JSON,
        "id": st.just(ID) | _JSON,
        "seq": st.integers(0, 4) | _JSON,
    },
    optional={"serverseq": st.integers(0, 4) | _JSON, "position": st.just("PT1S") | _JSON, "parameters": _OPEN | _JSON},
)


@pytest.mark.slow
@given(st.lists(st.tuples(st.binary(max_size=24) | _SAID, st.booleans(), st.booleans()), max_size=6))
def test_no_input_raises(said: list[tuple[bytes | dict[str, Any], bool, bool]]) -> None:
    for codec in (GenesysCodec(), opened().codec, opened([{**L16, "channels": ["external", "internal"]}]).codec):
        for data, is_text, want_audio in said:
            raw = data if isinstance(data, bytes) else json.dumps(data).encode()
            answer = codec.decode(raw, want_audio, is_text)
            kinds = m.Invalid | m.MediaStart | m.MediaAudio | m.MediaDtmf | m.MediaPlayback | m.MediaStop
            assert answer is None or isinstance(answer, kinds)
            assert all(json.loads(payload)["version"] == "2" for payload, _ in codec.replies())
