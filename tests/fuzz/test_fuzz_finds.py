"""What fuzzing has found, one test each: the input that broke a parser, and what it does now."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from telephony_tts.app import config
from telephony_tts.app.config import doors
from telephony_tts.audio.sound_file import decode_sound
from telephony_tts.runtime.errors import AudioError, ConfigError
from telephony_tts.runtime.schema import show
from telephony_tts.text.ssml import SsmlReader
from telephony_tts.transport.call_address import call_in
from telephony_tts.transport.door import Doors
from telephony_tts.transport.fronts import MovedSocket, unpacked
from telephony_tts.transport.request_head import RequestHead

MOST_S = 5.0


def refusal(text: str, folder: Path) -> str:
    """The error of a configuration."""
    file = folder / "config.yaml"
    file.write_text(text)
    begin_s = time.thread_time()
    with pytest.raises(ConfigError) as error:
        config.load(str(file), environ={})
    assert time.thread_time() - begin_s < MOST_S
    assert len(error.value.message) < 20_000
    return error.value.message


@pytest.mark.slow
def test_a_deeply_nested_configuration(tmp_path: Path) -> None:
    assert "nested too deeply" in refusal("server: " + "[" * 2_000 + "]" * 2_000, tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("server: !!map [a, b]", "not YAML"),
        ("x: !!timestamp q", "not YAML"),
        ("x: !!bool q", "not YAML"),
        ("x: !!int ''", "not YAML"),
        ("x: !!float ''", "not YAML"),
        ("x: 2026-13-40", "not YAML"),
        ("? [a]\n: b", "not YAML"),
        ("x: !!binary 'é'", "not YAML"),
        ("x: !!omap a", "not YAML"),
        ("x: !!python/object:os.system a", "not YAML"),
    ],
)
def test_a_tag_with_a_wrong_value(text: str, says: str, tmp_path: Path) -> None:
    """PyYAML raises a TypeError, AttributeError, KeyError or IndexError for each of them."""
    assert says in refusal(text, tmp_path)


def test_aliases_that_would_say_a_billion_things(tmp_path: Path) -> None:
    """The error showed the value, and `repr` wrote all of it."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "server: [[[" in refusal("\n".join([*lines, "server: *a11"]), tmp_path)
    lines = [
        "a0: &a0 {x: y}",
        *(f"a{n}: &a{n} {{{', '.join(f'k{k}: *a{n - 1}' for k in range(10))}}}" for n in range(1, 12)),
    ]
    assert "limits.calls" in refusal("\n".join([*lines, "limits: {calls: *a11}"]), tmp_path)


def test_merged_keys_that_would_be_a_billion(tmp_path: Path) -> None:
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 20)}]}}" for n in range(1, 12)]
    assert "12 problems" in refusal("\n".join(lines), tmp_path)  # PyYAML 6.0.4 merges each pair once


@pytest.mark.slow
def test_a_configuration_with_thousands_of_mistakes(tmp_path: Path) -> None:
    told = refusal("\n".join(f"key{n}: 1" for n in range(5_000)), tmp_path)
    assert "5000 problems" in told and "and 4950 more" in told
    assert len(refusal("x" * 60_000 + ": 1", tmp_path)) < 2_000


def test_a_value_is_shown_as_before_and_never_at_length() -> None:
    for value in (
        "text",
        1.5,
        None,
        [1, "a", {"b": (1, 2)}],
        {"a": [True]},
        [],
        {},
        (),
        "x" * 200,
        list(range(100)),
        {"k": "y" * 99},
    ):
        whole = repr(value)
        assert show(value) == (whole if len(whole) <= 60 else whole[:57] + "...")
    endless: list[object] = []
    endless.append(endless)
    assert len(show(endless)) == 60


@pytest.mark.parametrize(
    "facts",
    [
        b'{"stage":"leg","n_moves":1,"local":["a",1e999],"remote":["a",1],"may_begin":true}',
        b'{"stage":"leg","n_moves":1,"local":["a",1],"remote":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"stage":"leg","n_moves":1,"local":["a",1],"remote":["a",1],"may_begin":[[]]}',
        b'{"stage":["leg"],"n_moves":1,"local":["a",1],"remote":["a",1],"may_begin":true}',
        b'{"stage":"leg","n_moves":"1","local":["a",1],"remote":["a",1],"may_begin":true}',
        b'{"stage":"leg","n_moves":1,"local":["a",1],"remote":["a",1],"may_begin":true,"key":[[1]]}',
        b"[]",
        b"{}",
        b"",
        b"\xff",
    ],
)
def test_a_moved_socket_that_is_none(facts: bytes) -> None:
    with pytest.raises(ValueError):
        unpacked(bytes(12) + facts)
    moved = MovedSocket("leg", 1, ("127.0.0.1", 80), ("::1", 9), b"a", b"b", b"c", True)
    assert unpacked(moved.packed()) == moved


def test_a_sound_of_a_rate_that_nothing_plays_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A FLAC file of 32 MB can hold minutes at 655 kHz: gigabytes of samples."""
    av = pytest.importorskip("av")
    rate_hz = 655_350
    frame = av.AudioFrame(format="s16", layout="mono", samples=4_096)
    frame.rate, frame.pts = rate_hz, 0
    out = io.BytesIO()
    with av.open(out, "w", format="flac") as file:
        stream = file.add_stream("flac", rate=rate_hz, layout="mono", options={"strict": "-2"})
        for each in (frame, None):
            file.mux(stream.encode(each))
    decoded = []
    resampler = av.AudioResampler
    monkeypatch.setattr(av, "AudioResampler", lambda **how: decoded.append(how) or resampler(**how))
    with pytest.raises(AudioError, match="655350 Hz"):
        decode_sound(out.getvalue(), 600)
    assert not decoded


@pytest.mark.parametrize("call", ["c1&", "", "x" * 129, "%2e%2e"])
def test_a_call_that_a_vendors_address_misnames_is_no_call(call: str) -> None:
    """It will be refused, and until then other fronts were told that this one has it."""
    for named, is_one in ((call, False), ("c1", True)):
        head = RequestHead()
        head.feed(f"GET /calls/{named}/v1/speak HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert call_in(head, Doors(doors())) == (named if is_one else None)


def test_a_tag_with_a_very_long_name_takes_linear_time() -> None:
    """It took 10 ms for each 1,000 characters, in which no other call was served."""

    def seconds(n_chars: int) -> float:
        tries = []
        for _ in range(3):
            reader = SsmlReader()
            begin_s = time.thread_time()
            for _ in range(20):
                reader.feed("</prosody" + "od" * (n_chars // 2) + "<")
            tries.append(time.thread_time() - begin_s)
        return min(tries)

    assert seconds(800) < 6 * seconds(200)
