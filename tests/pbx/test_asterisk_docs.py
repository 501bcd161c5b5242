"""The commands of docs/asterisk.md and docs/zh/asterisk.md, run against a real Asterisk as a reader would.

A telephone hears speech, and the server's log says in whose voice. What is heard is not recognised as words, and half a
second of it is enough: other tests may take the machine's time.
"""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import wave
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from asterisk_peer import Asterisk, asterisk, free_port
from baresip_phone import Baresip, baresip
from page_commands import ROOT, PageCommands, blocks, made
from page_reader import START_S, PageReader, events, loud_s, voices
from peer_process import PeerProcess, wait_until
from phones import calling
from rtp_end import RtpExchange

from telephony_tts.audio.g711 import Pcm

pytestmark = [pytest.mark.peer, pytest.mark.slow]

ENGLISH, CHINESE = ROOT / "docs/asterisk.md", ROOT / "docs/zh/asterisk.md"
PAGES = pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["en", "zh"])
VOICES = {ENGLISH: "hibari/heart", CHINESE: "kokoro/zm_yunxi"}
NOT_RUN = {
    # Debian's installation as root, a telephone with a sound card, and ARI, which tests/pbx/test_ari.py has.
    ENGLISH: r"^(apt-get|mmdebstrap|chroot|baresip|curl|export|same)|'module reload (http|res_ari)|'http |ari\.enabled",
    # The next test has the demo, and tests/test_readme_commands.py what needs no Asterisk.
    CHINESE: r"^make asterisk-|say --show",
}


def commands_that_change_files(page: Path) -> str:
    """What a shell can run of the page's blocks that name /etc/asterisk, without the commands to Asterisk itself."""
    changing = [block.text for block in blocks(page) if re.search(r">>|cp .*/etc/asterisk", block.text)]
    assert len(changing) >= 2, "the dialplan and the telephone"
    return re.sub(r"^ *asterisk -rx .*$", "", "\n".join(changing), flags=re.M)


@PAGES
def test_the_commands_can_be_run_twice(page: Path) -> None:
    """Pinned: they appended whole files, so a second run had every section twice."""
    with asterisk() as running:
        folder = running.folder / "etc"
        script = commands_that_change_files(page).replace("/etc/asterisk", str(folder))
        for _ in range(2):
            subprocess.run(["sh", "-euc", script], cwd=ROOT, check=True, timeout=10)
        for part in ("websocket_client", "extensions", "pjsip"):
            own = (folder / f"{part}.conf").read_text(encoding="utf-8")
            assert own.count(f"#include telephony_tts_{part}.conf") == 1
        running.cli("dialplan reload")
        shown = running.cli("dialplan show 700@telephony-tts")
        assert shown.count("Dial(WebSocket/telephony_tts/c(ulaw)f(json)") == 1, shown


class AsteriskReader(PageReader):
    """An Asterisk that has none of our files yet, and a reader who adds them as the page says."""

    def __init__(self, page: Path, running: Asterisk, folder: Path) -> None:
        self.asterisk = running
        super().__init__(
            page, folder, {"asterisk": f'exec {shlex.join(running.command())} "$@"'},
            {"/etc/asterisk": str(running.folder / "etc"), "configs/asterisk/": f"{folder}/"},
            port_5060=free_port(socket.SOCK_DGRAM),
        )  # fmt: skip
        for own in (ROOT / "configs/asterisk").glob("*.conf"):
            (folder / own.name).write_text(self.here(own.read_text(encoding="utf-8")), encoding="utf-8")

    @property
    def sip_port(self) -> int:
        return self.ports[5060]

    def dial(self, extension: str) -> Pcm:
        """Dial with the page's command; gives what the telephone has heard."""
        path = self.folder / f"{extension}.wav"
        words = [*shlex.split(self.here(self.page.take(rf"demo\.py --call {extension}"))), "--wav", str(path)]
        words += ["--sip-port", str(self.sip_port)]
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}\n{self.asterisk.log()}"
        with wave.open(str(path)) as file:
            return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int16)

    @contextmanager
    def called(self, command: str, seconds: int) -> Iterator[Baresip]:
        """Run a command that calls out. The number on the page is a telephone of this test."""
        with baresip(self.sip_port, None, np.zeros(0, np.int16), seconds) as phone:
            phone.wait_ready()
            (order,) = re.findall(r"asterisk -rx '(channel originate .*)'", command)
            self.asterisk.cli(re.sub(r"PJSIP/\S+", f"PJSIP/demo/sip:phone@127.0.0.1:{phone.port}", order))
            yield phone


@pytest.mark.timed
@PAGES
def test_a_reader_hears_the_bot(page: Path, tmp_path: Path) -> None:
    """The page's commands in their order, up to the call through the bridge; then the bot's part is typed."""
    own = tmp_path / "own"
    own.mkdir()
    for name in ("extensions", "pjsip", "websocket_client"):
        (own / f"{name}.conf").write_text("; the reader's own file\n")
    with asterisk([own]) as running:
        reader = AsteriskReader(page, running, tmp_path)
        assert "1 modules loaded" in reader.shell("module show like chan_websocket").splitlines()[-1]
        with ExitStack() as ten_minutes:
            server = ten_minutes.enter_context(reader.server(reader.page.take(r"^make run .*bot\.url")))
            assert f"voice {VOICES[page]}" in server.written(10_000)
            bot = ten_minutes.enter_context(reader.bot())
            for pattern in ("^for part", "reload res_websocket_client", "dialplan reload"):
                reader.shell(pattern)
            assert "Dial(WebSocket/telephony_tts/c(ulaw)f(json))" in reader.shell("dialplan show 700")
            for pattern in ("^cp configs/asterisk/pjsip", "^grep -qs telephony_tts_pjsip", "reload res_pjsip"):
                reader.shell(pattern)
            assert f"127.0.0.1:{reader.sip_port}" in reader.shell("pjsip show transports")
            assert loud_s(reader.dial("700")) > 0.5
            (begun,) = events(server, "call_started")
            assert f"a call: {begun['call']}" in bot.written()
            ten_minutes.enter_context(reader.bridge())
            assert loud_s(reader.dial("701")) > 0.5
            calls = ["700", "701"]
            if page == CHINESE:
                with reader.called(reader.page.take("channel originate"), 8) as phone:
                    phone.wait_ended(30)
                    assert loud_s(phone.heard()) > 0.5
                calls.append("called")
            wait_until(lambda: len(events(server, "call_audit")) == len(calls), f"{calls} are over", 10)
            assert voices(server) == {VOICES[page]}
        type_the_bots_part(reader, page)
        assert [each for each in reader.page.left if not re.search(NOT_RUN[page], each)] == []


CLAIM = "make run SERVE_ARGS='--set limits.call_claim_s=120'"


def type_the_bots_part(reader: AsteriskReader, page: Path) -> None:
    """The English page names the flag in a sentence; the Chinese page has the command, and a dialplan of its own."""
    command = reader.page.take("^make run .*call_claim_s") if page == CHINESE else CLAIM
    extension = "710" if page == CHINESE else "700"
    if page == CHINESE:
        (dialplan,) = [block.text for block in blocks(page) if block.language == "ini"]
        assert " same => n,Queue(agents)\n" in dialplan
        with (reader.asterisk.folder / "etc/extensions.conf").open("a") as own:
            own.write(dialplan.replace("Queue(agents)", "Verbose(1,a caller for the agents)"))
        reader.asterisk.cli("dialplan reload")
    out = f"asterisk -rx 'channel originate PJSIP/x extension {extension}@telephony-tts'"
    with reader.server(command) as server, reader.called(out, 40):
        wait_until(lambda: events(server, "call_started"), "the call is there", 20)
        (call,) = [event["call"] for event in events(server, "call_started")]
        with reader.typing(call) as person:
            person.type('{"type":"close"}')
            wait_until(lambda: not reader.asterisk.channels(), "the call is over", 20)
        assert ("a caller for the agents" in reader.asterisk.log(1 << 16)) == (page == CHINESE)


@pytest.mark.timed
def test_the_first_commands_of_the_chinese_page_give_a_call_in_mandarin(tmp_path: Path) -> None:
    """`make asterisk-demo` and `make asterisk-call`, as make runs them, with another port."""
    page = PageCommands(CHINESE)
    port = ("--sip-port", str(free_port(socket.SOCK_DGRAM)))
    demo = PeerProcess("demo", [*shlex.split(made(page.take("^make asterisk-demo"))), *port], tmp_path)
    try:
        wait_until(lambda: "Ctrl-C" in demo.written() or not demo.running(), "the demo is ready", START_S)
        called = subprocess.run(
            [*shlex.split(made(page.take("^make asterisk-call"))), *port], cwd=tmp_path, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert called.returncode == 0, called.stderr
        shown = re.search(r"==> heard\.wav: [\d.]+ s, ([\d.]+) s of it speech", called.stdout)
        assert shown is not None and float(shown[1]) > 0.5, called.stdout
        (log,) = re.findall(r"\S+/telephony-tts\.out", demo.written())
        assert '"voices": ["kokoro/zm_yunxi"]' in Path(log).read_text(encoding="utf-8")
    finally:
        demo.stop()


def test_the_chinese_pages_way_to_let_it_ring(media: RtpExchange, tmp_path: Path) -> None:
    """With the page's two applications in front of the answer, a caller gets SIP's 180 and then, later, its 200."""
    assert "在拨号方案的 `Answer()` 之前加 `Ringing()` 和 `Wait(3)`" in CHINESE.read_text(encoding="utf-8")
    dialplan = "[phones]\nexten => 700,1,Ringing()\n same => n,Wait(3)\n same => n,Answer()\n same => n,Wait(9)\n"
    (tmp_path / "extensions.conf").write_text(dialplan)
    with asterisk([tmp_path]) as running:
        running.cli("pjsip set logger on")
        with calling(media, running.sip_port, "700") as (phone,):
            phone.wait_answered()
        answers = re.findall(r"SIP/2.0 (180|200) ", running.log(1 << 16))
        assert answers[:2] == ["180", "200"]
