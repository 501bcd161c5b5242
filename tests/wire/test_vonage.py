"""Vonage's WebSockets: messages in the form of its documentation, a signature computed step by step, and bad input."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.doors.vonage import codec as vonage
from telephony_tts.doors.vonage.codec import MAX_TOKEN_AGE_S, TokenVerifier, VonageCodec, verify
from telephony_tts.wire import messages as m

CONNECTED = {
    "event": "websocket:connected", "content-type": "audio/l16;rate=16000", "call": "CON-7d1e",
    "caller-id": "447700900001", "vip": True, "nested": {"a": 1},
}  # fmt: skip
FRAME = bytes(range(160)) * 4
SECRET = "Zk9yLXRlc3RzLW9ubHktbm90LWEtc2VjcmV0"
NOW_S = 1_764_000_000


def started(**fields: Any) -> VonageCodec:
    codec = VonageCodec()
    assert isinstance(codec.decode(json.dumps(CONNECTED | fields).encode()), m.MediaStart)
    return codec


def connected(form: str | None, call: str | None) -> bytes:
    return json.dumps({"event": "websocket:connected", "content-type": form, "call": call}).encode()


@pytest.mark.parametrize("rate_hz", [8000, 16000, 24000])
def test_the_first_message_gives_the_rate_and_the_custom_headers(rate_hz: int) -> None:
    first = CONNECTED | {"content-type": f"audio/l16;rate={rate_hz}"}
    parameters = {"call": "CON-7d1e", "caller-id": "447700900001", "vip": "true"}
    start = m.MediaStart("CON-7d1e", "CON-7d1e", "pcm", rate_hz, parameters, ptime_ms=20)
    assert VonageCodec().decode(json.dumps(first).encode()) == start


def test_the_address_names_the_call_before_the_headers_and_call_before_uuid() -> None:
    def call(codec: VonageCodec, **headers: str) -> str:
        first = {"event": "websocket:connected", "content-type": "audio/l16;rate=8000", **headers}
        start = codec.decode(json.dumps(first).encode())
        assert isinstance(start, m.MediaStart)
        return start.call

    assert call(VonageCodec("of-address"), call="of-header") == "of-address"
    assert call(VonageCodec(), uuid="u1", call="c1") == "c1"
    assert call(VonageCodec(), uuid="63f61863-4a51-4f6b-86e1-46edebcf9356") == "63f61863-4a51-4f6b-86e1-46edebcf9356"


def test_what_vonage_sends_is_read() -> None:
    codec = started()
    assert codec.decode(FRAME, True, False) == m.MediaAudio(FRAME)
    assert codec.decode(FRAME, False, False) == m.MediaAudio(b"")
    assert codec.decode(b'{"event":"websocket:dtmf","digit":"5","duration":260}') == m.MediaDtmf("5")
    assert codec.decode(b'{"event":"websocket:notify","payload":{"id":"1.1"}}') == m.MediaMark("1.1")
    assert codec.decode(b'{"event":"websocket:cleared"}') is None


def test_what_vonage_gets() -> None:
    codec = started()
    assert codec.encode(m.Frame(FRAME)) == (FRAME, False)
    payload, is_text = codec.encode(m.MediaMark("1.1"))
    assert is_text and json.loads(payload) == {"action": "notify", "payload": {"id": "1.1"}}
    payload, is_text = codec.encode(m.MediaClear())
    assert is_text and json.loads(payload) == {"action": "clear"}


@pytest.mark.parametrize(
    ("said", "is_text", "code", "hint"),
    [
        (FRAME, False, "bad_order", "connected"),
        (b'{"event":"websocket:dtmf","digit":"5"}', True, "bad_order", "connected"),
        (connected("audio/x-mulaw;rate=8000", "c"), True, "unsupported_codec", "l16"),
        (connected("audio/l16;rate=44100", "c"), True, "unsupported_codec", "24000"),
        (connected(None, "c"), True, "unsupported_codec", "null"),
        (connected("audio/l16;rate=8000", None), True, "bad_field", "?call="),
        (connected("audio/l16;rate=8000", "a b"), True, "bad_field", "A-Z"),
        (b'{"event":["x"]}', True, "unknown_type", "a list"),
        (b"hello", True, "bad_json", "JSON"),
        (b"\xff", True, "bad_utf8", "UTF-8"),
    ],
)  # fmt: skip
def test_a_leg_that_cannot_start_says_why(said: bytes, is_text: bool, code: str, hint: str) -> None:
    answer = VonageCodec().decode(said, True, is_text)
    assert isinstance(answer, m.Invalid) and answer.code == code and hint in answer.message


@pytest.mark.parametrize(
    "said",
    [
        json.dumps(CONNECTED).encode(),
        b'{"event":"websocket:dtmf","digit":"55"}',
        b'{"event":"websocket:dtmf"}',
        b'{"event":"websocket:notify","payload":"1.1"}',
        b'{"event":"websocket:notify","payload":{}}',
        b'{"event":"websocket:gone"}',
    ],
)
def test_a_bad_message_is_refused_and_the_leg_goes_on(said: bytes) -> None:
    codec = started()
    assert isinstance(codec.decode(said), m.Invalid)
    assert isinstance(codec.decode(FRAME[:-1], True, False), m.Invalid)
    assert codec.decode(FRAME, True, False) == m.MediaAudio(FRAME)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
_KEYS = st.sampled_from(["event", "content-type", "call", "uuid", "payload", "digit", "id"])
_VALUES = _JSON | st.sampled_from(["websocket:connected", "websocket:dtmf", "websocket:notify", "audio/l16;rate=8000"])


_SAID = st.binary(max_size=40) | st.dictionaries(_KEYS, _VALUES, max_size=4)


@pytest.mark.slow
@given(st.lists(st.tuples(_SAID, st.booleans()), max_size=5))
def test_no_input_raises(said: list[tuple[bytes | dict[str, Any], bool]]) -> None:
    for codec in (VonageCodec(), VonageCodec("c"), started()):
        for data, is_text in said:
            raw = data if isinstance(data, bytes) else json.dumps(data).encode()
            answer = codec.decode(raw, True, is_text)
            kinds = m.Invalid | m.MediaStart | m.MediaAudio | m.MediaMark | m.MediaDtmf
            assert answer is None or isinstance(answer, kinds)


# -------------------------------------------------------------------- the signature


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def jwt(claims: dict[str, Any], secret: str = SECRET, **head: Any) -> str:
    """RFC 7515 §3.1, one step after the other, with HMAC written out (RFC 2104)."""
    first = base64url(json.dumps({"alg": "HS256", "typ": "JWT", **head}).encode())
    signed = f"{first}.{base64url(json.dumps(claims).encode())}"
    key = secret.encode().ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + signed.encode()).digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()
    assert outer == hmac.digest(secret.encode(), signed.encode(), "sha256")
    return f"{signed}.{base64url(outer)}"


CLAIMS = {"iss": "Vonage", "iat": NOW_S, "jti": "c5ba8f24", "api_key": "a1b2c3d", "application_id": "aaaa-bbbb"}


def test_a_token_of_vonage_is_known() -> None:
    assert verify(SECRET, jwt(CLAIMS), NOW_S)
    assert verify(SECRET, jwt(CLAIMS | {"exp": NOW_S + 900}), NOW_S + 899)


@pytest.mark.parametrize(
    "token",
    [
        "", ".", "..", "a.b.c", "tête.corps.fin", jwt(CLAIMS, "another secret"), jwt(CLAIMS, alg="none"),
        jwt(CLAIMS, alg="HS512"), jwt(CLAIMS).rpartition(".")[0] + ".", jwt(CLAIMS)[:-2],
        jwt({name: value for name, value in CLAIMS.items() if name != "iat"}), jwt(CLAIMS | {"iat": "now"}),
        jwt(CLAIMS | {"iat": True}), jwt(CLAIMS | {"iat": NOW_S + 120}), jwt(CLAIMS | {"iat": NOW_S - 301}),
        jwt(CLAIMS | {"exp": NOW_S}), jwt(CLAIMS | {"iat": NOW_S - 3600, "exp": NOW_S - 1}),
        jwt(CLAIMS | {"exp": "never"}),
    ],
)  # fmt: skip
def test_any_other_token_is_refused(token: str) -> None:
    assert not verify(SECRET, token, NOW_S)


def test_a_token_with_other_claims_is_refused() -> None:
    head, _, signature = jwt(CLAIMS).split(".")
    other = base64url(json.dumps(CLAIMS | {"application_id": "another"}).encode())
    assert not verify(SECRET, f"{head}.{other}.{signature}", NOW_S)
    assert not verify("", jwt(CLAIMS, ""), NOW_S), "an empty secret signs nothing"


@pytest.mark.parametrize("named", [{"jti": "63f61863-4a51"}, {}])
def test_a_token_is_used_once(named: dict[str, str]) -> None:
    claims = {name: value for name, value in CLAIMS.items() if name != "jti"} | named
    verifier, token, other = TokenVerifier(SECRET), jwt(claims), jwt(claims | {"iat": NOW_S - 1})
    assert verifier.flaw(token, NOW_S) is None
    assert verifier.flaw(token, NOW_S) is None, "it was not used: the server may have had no room"
    verifier.use(token, NOW_S)
    assert "replay" in (verifier.flaw(token, NOW_S + 1) or "")
    assert ("replay" in (verifier.flaw(other, NOW_S) or "")) is bool(named), "the name counts, else the whole token"
    verifier.use("a.b.c", NOW_S)
    assert "Vonage signed" in (verifier.flaw("a.b.c", NOW_S) or ""), "a stranger's token says nothing about replays"


def test_used_tokens_are_forgotten_when_they_are_no_longer_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vonage, "MAX_USED_TOKENS", 2)
    verifier = TokenVerifier(SECRET)
    tokens = [jwt(CLAIMS | {"jti": name, "iat": NOW_S + n}) for n, name in enumerate("abc")]
    for token in tokens:
        verifier.use(token, NOW_S)
    assert verifier.flaw(tokens[0], NOW_S) is None, "the oldest makes room"
    assert [verifier.flaw(token, NOW_S) is None for token in tokens[1:]] == [False, False]
    late_s = NOW_S + MAX_TOKEN_AGE_S + 3
    verifier.use(jwt(CLAIMS | {"jti": "d", "iat": late_s}), late_s)
    assert len(verifier._used) == 1, "the others were not valid any more"


@given(st.text(max_size=80))
def test_no_token_raises(token: str) -> None:
    assert not verify(SECRET, token, NOW_S)
