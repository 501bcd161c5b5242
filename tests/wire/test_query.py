"""The options of /v1/stream (PROTOCOL.md §3)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telephony_tts.wire.messages import Invalid
from telephony_tts.wire.query import StreamOptions, parse_stream_query


def parse(query: str) -> StreamOptions | Invalid:
    return parse_stream_query(f"/v1/stream?{query}")


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/stream?", "", "//[", "/v1/stream#codec=alaw"])
def test_without_options_nothing_is_set(path: str) -> None:
    assert StreamOptions() == parse_stream_query(path)


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("codec=ulaw", StreamOptions(codec="ulaw")),
        ("codec=alaw&rate=8000", StreamOptions(codec="alaw", rate_hz=8000)),
        ("codec=pcm&rate=24000&ptime_ms=10", StreamOptions(codec="pcm", rate_hz=24000, ptime_ms=10)),
        ("audio=binary&pace=burst", StreamOptions(audio="binary", pace="burst")),
        ("audio=none&call=CA1:b.c-d_e", StreamOptions(audio="none", call="CA1:b.c-d_e")),
        ("lead_ms=0", StreamOptions(lead_ms=0)),
        ("lead_ms=60000", StreamOptions(lead_ms=60000)),
        ("voice=%E4%B8%AD&lang=zh-CN", StreamOptions(voice="中", lang="zh-CN")),
        ("voice=a+b", StreamOptions(voice="a b")),
        ("speed=1.2", StreamOptions(speed=1.2)),
        ("speed=0.5", StreamOptions(speed=0.5)),
        ("speed=2", StreamOptions(speed=2.0)),
        ("speed=9&speed=1.00", StreamOptions(speed=1.0)),
        ("token=a%2Bb%3D", StreamOptions(token="a+b=")),
        ("token=", StreamOptions(token="")),
        ("token=\ud800", StreamOptions(token="\ufffd")),
        ("inbound=base64", StreamOptions(inbound="base64")),
        ("codec=alaw&codec=ulaw", StreamOptions(codec="ulaw")),
        ("codec=opus&codec=ulaw", StreamOptions(codec="ulaw")),
        ("codec=alaw#codec=ulaw", StreamOptions(codec="alaw")),
        ("Codec=alaw&x=1&x=2", StreamOptions(unknown=("Codec", "x"))),
        (f"{'n' * 99}=1", StreamOptions(unknown=("n" * 40,))),
    ],
)
def test_an_option_is_read(query: str, options: StreamOptions) -> None:
    assert options == parse(query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("codec=opus", 'codec="opus": expected one of ulaw, alaw, pcm'),
        ("codec=", 'codec="": expected one of ulaw, alaw, pcm'),
        ("codec=ulaw&codec=opus", 'codec="opus": expected one of ulaw, alaw, pcm'),
        ("rate=44100", 'rate="44100": expected one of 8000, 16000, 24000, 48000'),
        ("rate=08000", 'rate="08000": expected one of 8000, 16000, 24000, 48000'),
        ("ptime_ms=25", 'ptime_ms="25": expected one of 10, 20, 30, 40, 60'),
        ("audio=wav", 'audio="wav": expected one of base64, binary, none'),
        ("pace=fast", 'pace="fast": expected one of realtime, burst'),
        ("lead_ms=60001", 'lead_ms="60001": expected a whole number of milliseconds from 0 to 60000'),
        ("lead_ms=-1", 'lead_ms="-1": expected a whole number of milliseconds from 0 to 60000'),
        ("lead_ms=%D9%A1", 'lead_ms="١": expected a whole number of milliseconds from 0 to 60000'),
        ("lead_ms=" + "9" * 5000, "from 0 to 60000"),
        *(
            (f"speed={raw}", "expected a number from 0.5 to 2.0")
            for raw in ("", "fast", "0.49", "2.01", "-1", "+1", "1,2", "1e0", "1.", "nan", "inf", "1_0", "%D9%A1")
        ),
        ("speed=3", 'speed="3": expected a number from 0.5 to 2.0'),
        ("speed=" + "1" * 5000, "expected a number from 0.5 to 2.0"),
        ("voice=", "1 to 128 printable characters"),
        ("voice=" + "v" * 129, "1 to 128 printable characters"),
        ("voice=a%0Ab", "1 to 128 printable characters"),
        ("lang=" + "x" * 36, "1 to 35 printable characters"),
        ("call=", "1 to 128 of the characters A-Z a-z 0-9 _ . : -"),
        ("call=a/b", 'call="a/b": expected 1 to 128'),
        ("call=%C3%A9", "expected 1 to 128"),
        ("call=a%0A", "expected 1 to 128"),
        ("call=" + "c" * 129, "expected 1 to 128"),
        ("inbound=yes", 'inbound="yes": expected one of base64, binary, none'),
        ("&".join(f"x{i}=1" for i in range(65)), "more than 64 options"),
    ],
)
def test_a_bad_value_names_what_is_allowed(query: str, message: str) -> None:
    answer = parse(query)
    assert isinstance(answer, Invalid)
    assert answer.code == "bad_option"
    assert message in answer.message
    assert len(answer.message) < 200


def test_a_token_shows_neither_in_an_error_nor_in_a_log() -> None:
    assert "hush" not in repr(parse("token=hush"))
    answer = parse("token=" + "hush" * 1025)
    assert isinstance(answer, Invalid)
    assert "hush" not in answer.message
    assert "at most 4096 characters" in answer.message


OPTION_NAMES = [
    "codec",
    "rate",
    "ptime_ms",
    "audio",
    "pace",
    "lead_ms",
    "voice",
    "lang",
    "speed",
    "call",
    "token",
    "inbound",
    "x",
]


@settings(deadline=None)
@given(
    st.text(st.characters())
    | st.lists(
        st.sampled_from(OPTION_NAMES).flatmap(
            lambda name: st.text(st.characters(), max_size=8).map(lambda value: f"{name}={value}")
        )
    ).map("&".join)
)
def test_parsing_never_raises_and_gives_only_what_can_be_passed_on(query: str) -> None:
    answer = parse(query)
    assert isinstance(answer, StreamOptions | Invalid)
    repr(answer).encode()
