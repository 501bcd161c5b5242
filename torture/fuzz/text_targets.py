"""What is read out of texts: SSML, lexicons, and the configuration of the server and of the bridge."""

from __future__ import annotations

import sip_bridge.config
from telephony_tts.app import config
from telephony_tts.ops import lexicon_files
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.text.lexicon import find_readings
from telephony_tts.text.ssml import MarkupBreak, MarkupEvent, SsmlReader, begins_with_speak
from torture.fuzz.judge import FuzzTarget
from torture.fuzz.scratch import FOLDER

_SECRET = "the-secret-that-must-not-be-seen"
_MOST_ERROR_CHARS = 100_000
"""Of a configuration's error: it has a line for each of its problems."""
_MOST_SILENCE_MS = 60_000
_MOST_TURN_CHARS = 4_000
"""The default of `limits.turn_chars`: no reader gets more."""
_MOST_START_MS = 5_000.0
"""A configuration is read once, before there are calls."""
_file = FOLDER / "config.yaml"


def read_ssml(data: bytes) -> None:
    """The same markup in one piece and in pieces, whose size is the first byte. Both must say the same."""
    text = data[1:].decode("utf-8", "surrogateescape")[:_MOST_TURN_CHARS]
    size = max(1, data[0] if data else 1, len(text) // 50)  # each piece is a message, with its own time
    begins_with_speak(text)
    spoken = [_spoken(text, len(text) or 1), _spoken(text, size)]
    assert spoken[0] == spoken[1], "what is spoken depends on where the stream is cut"


def _spoken(text: str, size: int) -> tuple[str, int]:
    """The text to speak, and all its silence in ms."""
    reader = SsmlReader()
    events: list[MarkupEvent] = []
    for at in range(0, len(text), size):
        events += reader.feed(text[at : at + size])
    events += reader.close()
    said = "".join(event for event in events if isinstance(event, str))
    for end in {0, len(said) // 2, len(said)}:
        assert 0 <= reader.map.source(end) <= len(text), "a place outside of the markup"
    silence_ms = sum(event.ms for event in events if isinstance(event, MarkupBreak))
    assert silence_ms <= _MOST_SILENCE_MS, f"{silence_ms} ms of silence"
    return said, silence_ms


def read_lexicon(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        lexicon = lexicon_files.compiled(lexicon_files.parse(text, "fuzzed.yaml"), "fuzzed.yaml")
    except ConfigError as error:
        assert len(error.message) < _MOST_ERROR_CHARS
        return
    spoken = text[:200] + " SQL and the 42 cats."
    for reading in find_readings(spoken, [lexicon]):
        assert 0 <= reading.start < reading.end <= len(spoken)


def read_server_config(data: bytes) -> None:
    _file.write_bytes(data)
    try:
        config.load(str(_file), environ={"TELEPHONY_TTS_TOKENS": _SECRET})
    except ConfigError as error:
        _check_error(error)


def read_bridge_config(data: bytes) -> None:
    _file.write_bytes(data)
    try:
        sip_bridge.config.load(str(_file), environ={sip_bridge.config.TOKEN_VARIABLE: _SECRET})
    except ConfigError as error:
        _check_error(error)


def _check_error(error: ConfigError) -> None:
    assert _SECRET not in error.message, "an error shows a secret"
    assert len(error.message) < _MOST_ERROR_CHARS, f"an error of {len(error.message)} characters"
    error.message.encode()


_SSML = (
    '<speak><p><s>Hi <break time="300ms"/> there.</s></p></speak>',
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]><speak version="1.1">a &amp; b &#x41; &a; <!-- c --></speak>',
    '<say-as interpret-as="date" format="dmy">1.2.2026</say-as><sub alias="World Wide Web">WWW</sub>',
    '<phoneme alphabet="ipa" ph="təˈmeɪtoʊ">tomato</phoneme><mark name="m1"/><emphasis level="strong">x</emphasis>',
    '<voice name="en"><lang xml:lang="de-DE"><prosody rate="slow">a</prosody></lang></voice><![CDATA[<b>]]>',
    '<prosody rate="+20%" pitch="high">x<break strength="strong"></prosody> 1 < 2 & 3 <unknown a=b c="d">',
)
_CONFIG = (
    "server: {host: 127.0.0.1, port: 8080, tokens: ['t'], tls: {cert: a.pem}}\nlimits:\n  calls: 20\n",
    "engines: {default: fake, routes: {zh: espeak, 'no': fake}, fallback: [espeak], cosyvoice2: {workers: auto}}\n",
    "speech: &a {lead_ms: 100, ptime_ms: 20}\nbarge_in: {<<: *a, enabled: true}\nlog: {level: debug}\n",
    "sounds: {urls: ['https://a.example/'], max_s: 1.5}\nlexicons: {files: {a: a.yaml}, languages: {'*': a}}\n",
    "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nserver: *c\n",
    "server: !!map [a, b]\nx: !!int ''\ny: 2026-13-40\nz: !!timestamp q\n? [a]\n: b\n",
)
_BRIDGE = (
    "server: {url: 'ws://127.0.0.1:8080/media/native'}\naudiosocket: {allowed: [10.0.0.0/8], rate_hz: 8000}\n",
    "ari: {enabled: true, password: secret, originate: {token: 12345678, endpoints: [PJSIP/]}}\ndrain_s: 3\n",
    "freeswitch: {enabled: true, password: ClueCon}\nhttp: {port: 0}\nlog: {format: text}\n",
)
_YAML_WORDS = (
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!map ",
    b"!!set ",
    b"!!binary ",
    b"!!float ",
    b"!!timestamp ",
    b"!!omap ",
    b"- ",
    b"? ",
    b": ",
    b"\n  ",
    b"| ",
    b"> ",
    b"---\n",
    b"...\n",
    b"%YAML 1.1\n",
    b"{",
    b"}",
    b"~",
    b".inf",
    b".nan",
    b"0o17",
    b"1:20",
    b"yes",
)

TEXT_TARGETS = (
    FuzzTarget(
        "ssml",
        read_ssml,
        tuple(bytes((1 + number,)) + text.encode() for number, text in enumerate(_SSML)),
        (
            b"<break ",
            b'time="',
            b"</",
            b"/>",
            b"<!--",
            b"-->",
            b"<![CDATA[",
            b"]]>",
            b"&#x",
            b"<?",
            b"?>",
            b"<say-as ",
            b"<p>",
        ),
    ),
    FuzzTarget(
        "lexicon",
        read_lexicon,
        (
            b"SQL: sequel\nno: number\n'Dr.': {say: Doctor, case: exact}\n",
            "行: 'háng'\n重庆: chong2 qing4\n".encode(),
            b"/(\\d+) cats?/: '\\1 felines'\noptions: {polyphones: false}\n",
            b"a: b\na: c\nb: {say: [x]}\nc: ~\n",
            "tomato: '[təˈmeɪtoʊ]'\n".encode(),
        ),
        (*_YAML_WORDS, b"/", b"(?i)", b"(?:", b"\\1", b"{say: ", b"case: exact", b"[0-9]{1,9}", b"(a|b)*"),
    ),
    FuzzTarget(
        "server_config", read_server_config, tuple(map(str.encode, _CONFIG)), _YAML_WORDS, most_ms=_MOST_START_MS
    ),
    FuzzTarget(
        "bridge_config", read_bridge_config, tuple(map(str.encode, _BRIDGE)), _YAML_WORDS, most_ms=_MOST_START_MS
    ),
)
