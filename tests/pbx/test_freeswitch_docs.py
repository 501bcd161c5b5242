"""The commands of docs/freeswitch.md and docs/zh/freeswitch.md, run beside a real FreeSWITCH where one was built.

That FreeSWITCH has our files already, at other ports, so the copies are only compared with them; nor is a module built.
"""

from __future__ import annotations

import shlex
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from asterisk_peer import free_port
from freeswitch_peer import freeswitch, needs_freeswitch
from page_commands import ROOT, blocks
from page_reader import PageReader, events, loud_s, voices
from peer_process import wait_until
from phones import Phone, calling
from rtp_end import RtpExchange

pytestmark = [pytest.mark.peer, pytest.mark.timed, needs_freeswitch]

ENGLISH, CHINESE = ROOT / "docs/freeswitch.md", ROOT / "docs/zh/freeswitch.md"
VOICES = {ENGLISH: "hibari/heart", CHINESE: "kokoro/zm_yunxi"}
CLAIM = "make run SERVE_ARGS='--set limits.call_claim_s=120'"


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_a_reader_hears_the_bot(page: Path, media: RtpExchange, tmp_path: Path) -> None:
    """The page's commands in their order; the telephone is one of ours."""
    port = free_port(socket.SOCK_STREAM)
    with freeswitch(port) as switch:
        program = {"fs_cli": f'shift; exec {shlex.join(switch.command())} "$@"'}
        reader = PageReader(page, tmp_path, program, {"/etc/freeswitch": str(tmp_path / "etc")}, port_8080=port)
        prepare(reader)
        with ExitStack() as ten_minutes:
            server = ten_minutes.enter_context(reader.server(reader.page.take(r"^make run .*bot\.url")))
            assert f"voice {VOICES[page]}" in server.written(10_000)
            bot = ten_minutes.enter_context(reader.bot())
            password = reader.page.take("^export TELEPHONY_SIP_BRIDGE_ESL_PASSWORD=").removeprefix("export ")
            ten_minutes.enter_context(reader.bridge(password, freeswitch__port=switch.esl_port))
            wait_until(lambda: status(reader.ports[9093]) == 200, "the bridge has connected", 20)
            assert "ready" in reader.shell("^curl .*readyz")
            with calling(media, switch.sip_port, "700") as (phone,):
                phone.wait_answered()
                wait_until(lambda: spoken_s(phone) > 0.5, "the greeting is heard", 20)
            (begun,) = events(server, "call_started")
            assert f"a call: {begun['call']}" in bot.written()
            wait_until(lambda: events(server, "call_audit"), "the call is over", 10)
            assert voices(server) == {VOICES[page]}
        command = reader.page.take("^make run .*call_claim_s") if page == CHINESE else CLAIM
        with reader.server(command) as server, calling(media, switch.sip_port, "700") as (phone,):
            wait_until(lambda: events(server, "call_started"), "the call is there", 20)
            (call,) = [event["call"] for event in events(server, "call_started")]
            with reader.typing(call):
                pass
    assert reader.page.left == []


def prepare(reader: PageReader) -> None:
    """Everything before the server: this FreeSWITCH has the module and the files already."""
    etc = reader.folder / "etc"
    for part in ("autoload_configs", "dialplan/default"):
        (etc / part).mkdir(parents=True)
    if reader.path == CHINESE:
        assert reader.shell(r"^fs_cli -x 'eval").strip().endswith("/conf")
    reader.shell("load mod_audio_stream")
    assert "uuid_audio_stream" in reader.shell("show api")
    for name in ("telephony_tts_vars", "event_socket", "telephony_tts_dialplan"):
        reader.shell(f"^cp configs/freeswitch/{name}")
    copied = sorted(path.read_bytes() for path in etc.glob("**/*.xml"))
    assert copied == sorted(path.read_bytes() for path in (ROOT / "configs/freeswitch").iterdir())
    (include,) = [block.text for block in blocks(reader.path) if block.language == "xml"]
    assert include in (Path(__file__).parent / "freeswitch_conf/freeswitch.xml").read_text(encoding="utf-8")
    assert "+OK" in reader.shell("reloadxml")
    reader.shell("reload mod_event_socket")


def spoken_s(phone: Phone) -> float:
    return loud_s(phone.rtp.heard().pcm) if phone.rtp.audio_packets() else 0.0


def status(port: int) -> int:
    """Of the bridge's /readyz."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
