"""ARI's messages as Asterisk really sends them, the leftovers of calls, and the settings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sip_bridge.ari import messages as a
from sip_bridge.ari.leftovers import Leftovers, MixingBridge, bridges_of, channels_of, rtp_end_of
from sip_bridge.ari.media import dial_url
from sip_bridge.config import load
from telephony_tts.runtime.errors import ConfigError

# As Asterisk 22.10 sent them.
STASIS_START = """{"type":"StasisStart","timestamp":"2026-11-20T19:55:26.894+0000","args":[],"channel":
{"id":"test-1795204526.1","name":"PJSIP/phone-00000000","state":"Ring","protocol_id":"1-phones-vr_l87gz","caller":
{"name":"Ada","number":"phone"},"connected":{"name":"","number":""},"accountcode":"","dialplan":{"context":"phones",
"exten":"ari","priority":1,"app_name":"Stasis","app_data":"tts,x"},"creationtime":"2026-11-20T19:55:26.888+0000",
"language":"en"},"asterisk_id":"02:fc:00:00:00:01","application":"tts"}"""
DESTROYED = """{"type":"ChannelDestroyed","timestamp":"2026-11-20T19:55:26.268+0000","cause":3,"cause_txt":
"No route to destination","channel":{"id":"x1","name":"WebSocket/tts_media/0x7f8c18016770","state":"Down"},
"application":"tts"}"""
RESPONSE = """{"type":"RESTResponse","transaction_id":"t","request_id":"3","status_code":404,
"reason_phrase":"Not Found","uri":"channels/nope","content_type":"application/json",
"message_body":"{\\"message\\":\\"Channel not found\\"}"}"""
VARSET = """{"variable":"STASISSTATUS","value":"","type":"ChannelVarset","channel":{"id":"media-2"}}"""


def test_what_asterisk_sends_is_read() -> None:
    name = "PJSIP/phone-00000000"
    channel = a.AriChannel("test-1795204526.1", name, "Ring", "phone", "Ada", "ari", ("Stasis", "tts"))
    assert a.decode(STASIS_START.encode()) == a.ChannelEntered(channel)
    assert a.decode(DESTROYED.encode()) == a.ChannelLeft("x1", 3, "No route to destination")
    assert a.decode(RESPONSE.encode()) == a.AriAnswer("3", 404, {"message": "Channel not found"})
    assert a.decode(VARSET.encode()) is None
    assert a.decode(b'{"type":"ApplicationReplaced"}') == a.ApplicationReplaced()
    for kind, state, is_on in (("Hold", "Up", True), ("Unhold", "Up", False), ("StateChange", "Ringing", True),
                               ("StateChange", "Up", False)):  # fmt: skip
        event = {"type": f"Channel{kind}", "channel": {"id": "x1", "state": state}}
        assert a.decode(json.dumps(event).encode()) == a.AriHold("x1", is_on)
    replaced = json.loads(STASIS_START) | {"replace_channel": {"id": "x1", "state": "Up"}}
    assert a.decode(json.dumps(replaced).encode()) == a.ChannelEntered(channel, "x1")


def test_requests_have_asterisks_form() -> None:
    query, body = {"variable": "A&B=1"}, {"variables": {"X": "y"}}
    sent = json.loads(a.request("7", "POST", "channels/x%2Fy/variable", query, body))
    assert sent == {
        "type": "RESTRequest", "transaction_id": "7", "request_id": "7", "method": "POST",
        "uri": "channels/x%2Fy/variable", "query_strings": [{"name": "variable", "value": "A&B=1"}],
        "content_type": "application/json", "message_body": '{"variables": {"X": "y"}}',
    }  # fmt: skip


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    message = a.decode(data)
    assert message is None or type(message).__module__ == a.__name__


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.sampled_from([*a.EVENTS, "RESTResponse"]), st.fixed_dictionaries({}, optional={
    "channel": _JSON | st.fixed_dictionaries({"id": _JSON, "caller": _JSON, "dialplan": _JSON}), "digit": _JSON,
    "replace_channel": _JSON | st.fixed_dictionaries({"id": _JSON}),
    "cause": _JSON, "request_id": _JSON, "status_code": _JSON, "message_body": _JSON,
}))  # fmt: skip
def test_no_fields_raise(kind: str, fields: dict[str, object]) -> None:
    read = a.decode(json.dumps({"type": kind, **fields}).encode())
    assert isinstance(read, a.AriAnswer | a.ChannelEvent | a.BadAriMessage)


# ------------------------------------------------------------------------- leftovers

OWN, OTHER = "tts-0000aaaa", "tts-0000bbbb"


def left(
    *rounds: tuple[list[a.AriChannel], list[MixingBridge]],
    live: frozenset[str] = frozenset(),
    unheard: frozenset[str] = frozenset(),
) -> list[list[tuple[str, ...]]]:
    leftovers = Leftovers("tts", OWN)
    return [leftovers.requests(channels, bridges, live, unheard) for channels, bridges in rounds]


def caller(name: str, app: str = "tts") -> a.AriChannel:
    return a.AriChannel(name, state="Up", application=("Stasis", app))


def test_leftovers_of_this_process_are_removed_at_once_and_live_calls_stay() -> None:
    names = ("c-1", "c-2", f"{OWN}-1-media", f"{OWN}-2-media", f"{OWN}-3-out")
    channels = [caller(name) for name in names]
    bridges = [MixingBridge(f"{OWN}-1", ("c-1", f"{OWN}-1-media")), MixingBridge(f"{OWN}-2", ("c-2", f"{OWN}-2-media"))]
    live = frozenset({"c-2", f"{OWN}-2", f"{OWN}-2-media"})
    assert left((channels, bridges), live=live) == [[
        ("POST", "channels", "c-1", "continue"), ("DELETE", "channels", f"{OWN}-1-media"),
        ("DELETE", "bridges", f"{OWN}-1"), ("DELETE", "channels", f"{OWN}-3-out"),
    ]]  # fmt: skip


def test_leftovers_of_another_process_are_removed_the_second_time_if_unusable() -> None:
    channels = [caller(f"{OTHER}-1-media"), caller(f"{OTHER}-5-out"), caller("stuck"), caller("c-2"),
                caller("of-another-app", "queue"), caller(f"{OTHER}-2-media"),
                a.AriChannel(f"{OTHER}-6-out", state="Ring")]  # fmt: skip
    in_use = MixingBridge(f"{OTHER}-2", ("c-2", f"{OTHER}-2-media"))
    bridges = [in_use, MixingBridge(f"{OTHER}-3", ()), MixingBridge("conference", ())]
    first, second = left((channels, bridges), (channels, bridges))
    assert first == []
    assert set(second) == {
        ("DELETE", "channels", f"{OTHER}-1-media"), ("POST", "channels", "stuck", "continue"),
        ("DELETE", "bridges", f"{OTHER}-3"), ("DELETE", "channels", f"{OTHER}-5-out"),
    }  # fmt: skip
    # An object that disappears in between counts as seen for the first time again.
    assert left((channels, bridges), ([], []), (channels, bridges))[2] == []


def test_a_bridge_with_unused_rtp_is_removed_the_second_time() -> None:
    media = {number: f"{OTHER}-{number}-media" for number in (1, 2)}
    channels = [caller("c-1"), caller(media[1]), caller("c-2"), caller(media[2])]
    bridges = [MixingBridge(f"{OTHER}-1", ("c-1", media[1])), MixingBridge(f"{OTHER}-2", ("c-2", media[2])),
               MixingBridge("conference", ("of-another", "x"))]  # fmt: skip
    first, second = left((channels, bridges), (channels, bridges), unheard=frozenset({media[2]}))
    assert first == []
    assert second == [
        ("POST", "channels", "c-2", "continue"), ("DELETE", "channels", media[2]), ("DELETE", "bridges", f"{OTHER}-2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("UnicastRTP/127.0.0.1:37996-0x7f2898018950", ("127.0.0.1", 37996)),
        ("UnicastRTP/[fd00::7]:4000-0x1", ("fd00::7", 4000)),
        ("WebSocket/tts_media/0x7f01", None),
        ("UnicastRTP/pbx.example:4000-0x1", None),
        ("UnicastRTP/127.0.0.1:4000", None),
        ("PJSIP/UnicastRTP/127.0.0.1:4000-0x1", None),
    ],
)
def test_the_rtp_address_is_in_the_channels_name(name: str, end: tuple[str, int] | None) -> None:
    assert rtp_end_of(a.AriChannel(f"{OTHER}-1-media", name)) == end
    assert rtp_end_of(a.AriChannel("of-a-caller", name)) is None


@pytest.mark.parametrize("body", [None, {}, "[]", 7, [{"id": "c-1"}, {}], [{"id": ""}], [None]])
def test_a_bad_list_of_channels_is_not_an_empty_one(body: object) -> None:
    with pytest.raises(ValueError, match="Asterisk"):
        channels_of(body)


def test_a_bad_list_of_bridges_is_not_an_empty_one() -> None:
    with pytest.raises(ValueError, match="Asterisk"):
        bridges_of({"message": "no"})
    assert bridges_of([{"id": "b-1", "channels": ["c-1", 7]}, {"id": 7}, "x"]) == [MixingBridge("b-1", ("c-1",))]


# -------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ari.enabled": True}, "ari.password: is needed"),
        ({"ari.app": "a b"}, "1 to 64 of the characters"),
        ({"ari.user": "a:b"}, "without a colon"),
        ({"ari.url": "http://pbx/ari"}, "ws:// or wss://"),
        ({"ari.media": "websocket"}, "websocket_client, websocket_server, rtp"),
        ({"ari.variables": ["SHELL(ls)"]}, "name of a channel variable"),
        ({"ari.variables": [f"V{n}" for n in range(16)]}, "at most 15"),
        ({"ari.call_variable": "CALLERID(num)"}, "name of a channel variable"),
        ({"ari.rtp_first_port": 20_000}, "below rtp_last_port"),
        ({"ari.rtp_first_port": 30_000, "ari.rtp_last_port": 20_000}, "below rtp_last_port"),
        ({"ari.originate.token": "short"}, "at least 8"),
        ({"ari.originate.endpoints": ["PJSIP"]}, "such as PJSIP/"),
        ({"ari.rtp_host": "pbx.example"}, "an IP address"),
        ({"ari.format": "slin16", "ari.media": "rtp"}, "Asterisk takes ulaw, alaw, g722"),
        ({"ari.format": "g722"}, "over a WebSocket use slin16"),
    ],
    ids=str,
)
def test_wrong_settings_are_reported(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match="1 problem\n") as caught:
        load(None, settings, {})
    assert says in caught.value.message and next(iter(settings)).rpartition(".")[0] in caught.value.message


def test_secrets_come_from_the_environment_and_are_never_shown() -> None:
    names = ("TELEPHONY_SIP_BRIDGE_ARI_PASSWORD", "TELEPHONY_SIP_BRIDGE_ORIGINATE_TOKEN")
    environment = {name: "s3cret-of-it" for name in names}
    config = load(None, {"ari.enabled": True, "ari.url": "ws://u:s3cret@h/ari"}, environment)
    assert config.ari.password == config.ari.originate.token == "s3cret-of-it"
    assert "s3cret" not in repr(config)


def test_addresses_are_derived_from_the_url() -> None:
    assert load(None, {"ari.url": "ws://pbx:8088/ari"}, {}).ari.incoming_url == "ws://pbx:8088/media"
    assert load(None, {"ari.url": "wss://pbx/x/ari/"}, {}).ari.incoming_url == "wss://pbx/x/media"
    told = load(None, {"ari.media_url": "ws://10.0.0.7:8088/media/"}, {}).ari
    assert told.incoming_url == "ws://10.0.0.7:8088/media"
    asked = "dial=ws%3A%2F%2Fpbx%2Fmedia%2Fid&call=c%3A1"
    assert dial_url("ws://h:1/media/native", "ws://pbx/media/id", "c:1") == f"ws://h:1/media/asterisk?{asked}"
    with_token = dial_url("wss://h/tts/media/native?token=x", "ws://pbx/media/id", "c:1")
    assert with_token == f"wss://h/tts/media/asterisk?token=x&{asked}"
