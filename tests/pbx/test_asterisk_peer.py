"""The test rig itself: one or several real Asterisks start, and are stopped whatever happens to them or the test."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asterisk_peer
import pytest
from asterisk_peer import Asterisk, asterisk, free_port
from peer_process import PeerFailed, PeerProcess, n_children, wait_until
from phones import calling
from rtp_end import RtpExchange

pytestmark = [pytest.mark.slow, pytest.mark.peer]
HERE = Path(asterisk_peer.__file__).resolve().parent


def alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_asterisk_boots_and_takes_a_call_without_a_warning(media: RtpExchange) -> None:
    with asterisk() as fresh:
        assert "Asterisk 2" in fresh.cli("core show version")
        with calling(media, fresh.sip_port, "echo") as (phone,):
            phone.wait_answered()
        assert fresh.complaints() == []
        for module in ("chan_websocket", "app_audiosocket", "chan_audiosocket", "res_ari_channels", "chan_pjsip"):
            assert "Running" in fresh.cli(f"module show like {module}.so"), module


def test_two_asterisks_run_independently(pbx: Asterisk, media: RtpExchange) -> None:
    with asterisk() as second:
        ports = {pbx.sip_port, pbx.http_port, second.sip_port, second.http_port}
        assert len(ports) == 4 and second.pid != pbx.pid
        with calling(media, second.sip_port, "echo") as (phone,):
            phone.wait_answered()
            assert len(second.channels()) == 1 and pbx.channels() == []
        second.wait_for_no_channel()


def test_a_stopped_asterisk_leaves_nothing_behind() -> None:
    n_before = n_children()
    with asterisk() as running:
        folder = running.folder
        assert alive(running.pid) and n_children() == n_before + 2, "with its keeper"
    assert not alive(running.pid) and not folder.exists() and n_children() == n_before


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
def test_an_asterisk_that_hangs_or_has_died_is_stopped_too(number: signal.Signals) -> None:
    n_before = n_children()
    with asterisk() as running:
        running.process.signal(number)
        wait_until(lambda: running.process.hung() or not running.process.running(), "the signal has come", 10)
    assert not alive(running.pid) and not running.folder.exists() and n_children() == n_before


def test_a_failing_test_leaves_no_asterisk() -> None:
    with pytest.raises(ZeroDivisionError), asterisk() as running:
        _ = 1 / 0
    assert not alive(running.pid) and not running.folder.exists()


def test_a_dead_asterisk_is_reported_and_can_restart_on_its_ports(media: RtpExchange) -> None:
    with asterisk() as first:
        first.process.signal(signal.SIGKILL)
        assert first.process.wait(5)
        with pytest.raises(PeerFailed, match="console"):
            first.cli("core show version")
        with asterisk(SIP_PORT=str(first.sip_port), HTTP_PORT=str(first.http_port)) as again:
            assert (again.sip_port, again.http_port) == (first.sip_port, first.http_port)
            with calling(media, again.sip_port, "echo") as (phone,):
                phone.wait_answered()


def test_a_port_in_use_is_reported() -> None:
    """Asterisk itself would go on without the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as occupant:
        occupant.bind(("127.0.0.1", 0))
        port = str(occupant.getsockname()[1])
        with pytest.raises(asterisk_peer.PortTaken, match="in use"), asterisk(SIP_PORT=port):
            pass


def test_a_placeholder_without_a_value_is_reported(tmp_path: Path) -> None:
    (tmp_path / "extra.conf").write_text("uri = @SOMEWHERE_ELSE@\n")
    with pytest.raises(PeerFailed, match="needs values for SOMEWHERE_ELSE"), asterisk([tmp_path]):
        pass
    with asterisk([tmp_path], SOMEWHERE_ELSE="ws://x") as running:
        assert (running.folder / "etc" / "extra.conf").read_text() == "uri = ws://x\n"


def test_a_configuration_that_does_not_boot_is_reported_with_asterisks_output(tmp_path: Path) -> None:
    (tmp_path / "modules.conf").write_text("[modules]\nautoload = no\nrequire = no_such_module.so\n")
    with pytest.raises(PeerFailed, match=r"(?s)ended while it started.*no_such_module"), asterisk([tmp_path]):
        pass


_RUN = """
import sys, time
sys.path.insert(0, {here!r})
from asterisk_peer import asterisk
with asterisk() as running:
    print(running.pid, running.folder, flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def other_run() -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """Another process that runs an Asterisk; that Asterisk's process id and folder."""
    command = [sys.executable, "-c", _RUN.format(here=str(HERE))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        try:
            assert run.stdout is not None
            pid, folder = run.stdout.readline().split()
            yield run, int(pid), Path(folder)
        finally:
            run.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_aborted_test_run_leaves_nothing_behind(number: signal.Signals) -> None:
    """Ctrl-C stops it in order. A killed process can do nothing, so a separate process stops its Asterisk."""
    with other_run() as (run, pid, folder):
        assert alive(pid)
        run.send_signal(number)
        run.wait(15)
        wait_until(lambda: not alive(pid) and not folder.exists(), "nothing is left", 10)


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    stubborn = PeerProcess("stubborn", ["/bin/sh", "-c", script], tmp_path)
    wait_until(lambda: "up" in stubborn.written(), "it is up", 5)
    stubborn.stop()
    assert stubborn.returncode() == -signal.SIGKILL and not alive(stubborn.pid)
    stubborn.stop()


def test_a_free_port_is_none_that_other_sockets_are_given() -> None:
    """A test's own sockets once took the port of an Asterisk that was being started again."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port(kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM) for _ in range(20)}
    assert len(ports) > 30 and max(ports) < given


def test_free_ports_are_free() -> None:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            port = free_port(kind)
            probe.bind(("127.0.0.1", port))
            assert probe.getsockname()[1] == port
