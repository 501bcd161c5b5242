"""What moves with a socket, and the call that decides where to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.app.config import doors
from telephony_tts.doors.asterisk.dial import call_of_dial
from telephony_tts.transport.call_address import call_in
from telephony_tts.transport.door import Doors, open_dialect
from telephony_tts.transport.fronts import MovedSocket, unpacked
from telephony_tts.transport.request_head import RequestHead
from telephony_tts.wire.fields import CALL_NAME
from telephony_tts.wire.messages import Invalid
from telephony_tts.wire.query import parse_stream_query
from telephony_tts.wire.vendor import Refused

MOVED = MovedSocket("leg", 2, ("127.0.0.1", 80), ("::1", 4000), b"read\0\xff", b"GET", b"unread", True, "acme")

DOORS = Doors(doors())


def test_a_moved_socket_survives_its_bytes() -> None:
    assert unpacked(MOVED.packed()) == MOVED
    assert unpacked(MovedSocket("request", 1, ("", 0), ("", 0), b"").packed()).may_begin is False


def test_what_is_read_is_a_secret_of_the_peer() -> None:
    assert "read" not in repr(MOVED) and "GET" not in repr(MOVED)


@given(st.binary(max_size=200))
def test_other_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpacked(data)


@given(st.integers(0, len(MOVED.packed()) - 1))
def test_cut_bytes_are_an_error(n: int) -> None:
    with pytest.raises(ValueError):
        unpacked(MOVED.packed()[:n])


def head(target: str, *headers: str) -> RequestHead:
    parsed = RequestHead(any_method=True)
    lines = [f"GET {target} HTTP/1.1", "Host: x", "Upgrade: websocket", *headers, "", ""]
    assert parsed.feed("\r\n".join(lines).encode("latin-1")) and parsed.flaw is None
    return parsed


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("/v1/stream?call=CA1", "CA1"),
        ("/v1/stream?call=a&codec=alaw&call=b", "b"),
        ("/v1/stream?call=CA1&audio=base64", "CA1"),
        ("/v1/stream?call=%43A1", "CA1"),
        ("/v1/stream", None),
        ("/v1/stream?call=", None),
        ("/v1/stream?call=a%20b", None),
        ("/v1/stream?call=CA1&codec=wrong", None),
        ("/v1/streams?call=CA1", None),
        ("/media/vonage?call=V1", "V1"),
        ("/media/genesys?call=G1", "G1"),
        ("/media/jambonz?call=J1&rate=16000", "J1"),
        ("/media/twilio?call=CA1", None),
        ("/media/telnyx?codec=PCMU", None),
        ("/media/asterisk?call=A1", None),
        ("/media/asterisk?dial=ws%3A%2F%2Fpbx%2Fmedia%2F1&call=A1", "A1"),
        ("/media/asterisk?dial=ws%3A%2F%2Fpbx%2Fmedia%2F1", None),
        ("/calls/CA1/v1/speak?model=x", "CA1"),
        ("/v1/speak?call=CA2", "CA2"),
        ("/v1/speak?model=x", None),
        ("/calls/CA1/v2/speak", "CA1"),
        ("/calls/CA1/tts/websocket?api_key=k", "CA1"),
        ("/calls/CA1/api-ws/v1/inference", "CA1"),
        ("/calls/CA1/jambonz/tts", "CA1"),
        ("/calls/CA1/v1/text-to-speech/voice/stream-input", "CA1"),
        ("/calls/CA1/v1/nothing", None),
    ],
)
def test_the_call_in_an_address(target: str, call: str | None) -> None:
    assert call_in(head(target), DOORS) == call


def test_the_call_in_a_header_of_freeswitch() -> None:
    assert call_in(head("/media/freeswitch", "X-Call: F1"), DOORS) == "F1"
    assert call_in(head("/media/freeswitch", "x-call:   F1  "), DOORS) == "F1"
    assert call_in(head("/media/freeswitch", "X-Call: F1", "X-Call: F2"), DOORS) is None
    assert call_in(head("/media/freeswitch", "X-Call: a b"), DOORS) is None
    assert call_in(head("/media/freeswitch"), DOORS) is None


QUERY = st.lists(
    st.tuples(
        st.sampled_from(["call", "codec", "rate", "audio", "dial", "model", "token", "Call", "call%20", ""]),
        st.text("CA1 %+&=#;.:-_äx", max_size=8),
    ),
    max_size=5,
).map(lambda pairs: "&".join(f"{name}={value}" for name, value in pairs))
PATHS = st.sampled_from(
    ["/v1/stream", "/media/vonage", "/media/genesys", "/v1/speak", "/calls/CA1/v1/speak", "/calls//v2/speak",
     "/calls/a%20b/tts/websocket", "/jambonz/tts", "/calls/x/jambonz/tts/", "/api-ws/v1/inference"]
)  # fmt: skip


@given(PATHS, QUERY)
def test_it_is_the_call_that_the_leg_itself_reads(path: str, query: str) -> None:
    target = f"{path}?{query}".replace(" ", "%20").replace("ä", "%C3%A4")
    vendor = DOORS.vendor_of(target)
    if vendor is not None:
        dialect = open_dialect(vendor, target)
        expected = None if isinstance(dialect, Refused) else dialect.options.call
        if expected is not None and not CALL_NAME.fullmatch(expected):
            expected = None  # the leg refuses it (`problem_of`)
    else:
        options = parse_stream_query(target)
        expected = None if isinstance(options, Invalid) else options.call
    assert call_in(head(target), DOORS) == expected


def test_the_call_of_a_dial_must_be_a_name() -> None:
    assert call_of_dial("/media/asterisk?dial=x&call=a&call=b") == "b"
    assert call_of_dial("/media/asterisk?dial=x&call=a%2Fb") is None
