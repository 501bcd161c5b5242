"""wscat, the command-line client from npm, against a real server with the embedded voice."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from announced import announced, command_with, self_made_certificate
from page_commands import ROOT, blocks
from rig import decoded
from served import process
from wscat_peer import installed, typing

pytestmark = [pytest.mark.peer, pytest.mark.timed]


@pytest.fixture(scope="module")
def wscat() -> Path:
    return installed()


def test_a_typed_line_is_spoken_and_a_typed_clear_stops_it(wscat: Path) -> None:
    with (
        process("--set", "engines.default=hibari", "--set", "engines.hibari.workers=2") as (_, port),
        typing(wscat, f"ws://127.0.0.1:{port}/v1/stream") as person,
    ):
        ready = person.read_until("ready")
        assert ready["codec"] == "ulaw" and ready["voice"]
        person.type("Hello there.")
        started = person.read_until("started")
        done = person.read_until("done")
        assert done["turn"] == started["turn"] and done["underruns"] == 0
        assert len(person.speech) * 20 == done["audio_ms"] > 300
        assert {len(frame) for frame in person.speech} == {160}
        heard = decoded(person.speech).astype(float)
        assert np.sqrt(np.mean(heard**2)) > 500, "that is silence"

        person.type("This is a much longer line, which is going to be interrupted before it comes to its end.")
        begun = person.read_until("started", turn="t2")
        person.type('{"type":"clear"}')
        cleared = person.read_until("cleared", turn=begun["turn"])
        assert cleared["reason"] == "clear" and cleared["unheard_text"].endswith("its end.")
        person.type('{"type":"shout"}')
        assert person.read_until("error")["code"] == "unknown_type"


def test_wscat_sends_one_message_and_exits(wscat: Path) -> None:
    """`-x` and `-w`, as in a script, with a subprotocol and a token, which wscat sends in its own way."""
    environment = {"TELEPHONY_TTS_TOKENS": "secret"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with process() as (_, port):
            url = f"ws://127.0.0.1:{port}/v1/stream?audio=none"
            flags = ("-H", "Authorization: Token secret", "-s", "media", "-x", '{"type":"say","text":"Hi."}', "-w", "2")
            with typing(wscat, url, *flags) as script:
                assert script.read_until("done")["audio_ms"] == 180
            with typing(wscat, url) as tokenless, pytest.raises(AssertionError, match="401"):
                tokenless.read_until("ready", within_s=3)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def test_wscat_takes_the_command_that_a_server_prints(wscat: Path, tmp_path: Path) -> None:
    """With a token and a self-signed certificate."""
    started = [sys.executable, "-m", "telephony_tts"]
    flags = ["--host", "0.0.0.0", *self_made_certificate(tmp_path)]
    environment = {"TELEPHONY_TTS_TOKENS": "open-sesame"}
    with announced(started, *flags, cwd=tmp_path, environment=environment) as lines:
        command = command_with("/v1/stream", lines).replace("TOKEN", environment["TELEPHONY_TTS_TOKENS"])
        npx, name, connect, url, *others = shlex.split(command)
        assert (npx, name, connect) == ("npx", "wscat", "-c")
        with typing(wscat, url, *others) as person:
            assert person.read_until("ready")["voice"] == "tone"
            person.type("Hello there.")
            assert person.read_until("done")["underruns"] == 0
        with typing(wscat, url, "-H", others[-1]) as careful, pytest.raises(AssertionError, match="self-signed"):
            careful.read_until("ready", within_s=5)


def wscat_block(page: str) -> tuple[str, list[str]]:
    """The address on a page, and the lines behind it: typed (`> `) or printed (`< `), in their order."""
    (block,) = [block.text for block in blocks(ROOT / page) if "npx wscat" in block.text]
    command, *lines = block.splitlines()
    program, name, flag, url = shlex.split(command.removeprefix("$ "), comments=True)
    assert (program, name, flag) == ("npx", "wscat", "-c")
    return url, lines


@pytest.mark.parametrize("page", ["examples/README.md", "README.md", "README.zh.md"])
def test_the_lines_on_a_page(page: str, wscat: Path) -> None:
    """They are typed into wscat, and it prints the page's events, with the page's fields and sentences."""
    url, lines = wscat_block(page)
    text, clear = [line.removeprefix("> ") for line in lines if line.startswith("> ")]
    with (
        process("--set", "engines.default=hibari", "--set", "engines.hibari.workers=2") as (_, port),
        typing(wscat, url.replace(":8080", f":{port}")) as person,
    ):
        person.read_until("ready")
        person.type(text)
        person.read_until("started", turn="t1")
        shown = [json.loads(line[2:].replace(", …}", "}")) for line in lines if line.startswith("< ")]
        for event in shown:
            if event["type"] == "sentence":
                assert person.read_until("sentence", turn="t1")["text"] == event["text"]
        person.type(clear)
        cleared = person.read_until("cleared", turn="t1")
        assert cleared["heard_text"] + cleared["unheard_text"] == text
        for event in shown:
            assert set(event) <= set(person.read_until(event["type"])), "the page shows fields that the event has"
            assert event["type"] != "cleared" or event["heard_text"] + event["unheard_text"] == text
        assert not person.speech, "it shows events and not audio"
