"""How the server's process starts: what it refuses, what it warns about, and that it never prompts on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_process import SERVER_IMPORTS, ForkServer, fork_server
from served import process

pytestmark = pytest.mark.slow

TONES = ("--set", "engines.default=fake", "--set", "engines.hibari.workers=0", "--port", "0")
PASSPHRASE = "correct horse battery staple"
Ended = tuple[int, str]
"""Exit status and output."""


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkServer]:
    with fork_server(*SERVER_IMPORTS) as forked:
        yield forked


@pytest.fixture(autouse=True)
def forks(programs: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server forks the servers here."""
    monkeypatch.setattr(subprocess, "Popen", programs.Popen)


@pytest.mark.parametrize(("flags", "n_warnings"), [(("twilio.auth_token=x", "server.open=true"), 1), ((), 0)])
def test_an_intentionally_open_server_warns_once(flags: tuple[str, ...], n_warnings: int) -> None:
    given = [part for flag in flags for part in ("--set", flag)]
    with process(*given) as (served, _):
        served.terminate()
        _, log = served.communicate(timeout=20)
    assert served.returncode == 0 and log.count('"open_to_everyone"') == n_warnings, log


@pytest.mark.parametrize("processes", [1, 2])
def test_the_library_that_detects_voices_is_there_before_a_call(processes: int) -> None:
    """The first call that listened loaded it, and all calls were 50 to 100 ms late meanwhile."""
    with process("--set", f"server.processes={processes}") as (served, _):
        pids = _children(served.pid) if processes > 1 else [served.pid]
        assert len(pids) >= processes
        for pid in pids:
            command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
            assert "onnxruntime" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"), command


def _children(pid: int) -> list[int]:
    """The fronts of a server."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


# ------------------------------------------------------------------------- keys


def openssl(*arguments: str) -> None:
    made = subprocess.run(["openssl", *arguments], capture_output=True, check=False)
    assert made.returncode == 0, made.stderr


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem and its key: plain.pem, pkcs8.pem and traditional.pem (encrypted), and other.pem."""
    folder = tmp_path_factory.mktemp("keys")
    plain = str(folder / "plain.pem")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-keyout", plain, "-out", str(folder / "cert.pem"))  # fmt: skip
    encrypted = ("-aes256", "-passout", f"pass:{PASSPHRASE}", "-out")
    openssl("rsa", "-in", plain, *encrypted, str(folder / "pkcs8.pem"))
    openssl("rsa", "-in", plain, "-traditional", *encrypted, str(folder / "traditional.pem"))
    openssl("genrsa", *encrypted, str(folder / "other.pem"), "2048")
    assert "BEGIN ENCRYPTED" in (folder / "pkcs8.pem").read_text()
    assert "Proc-Type: 4,ENCRYPTED" in (folder / "traditional.pem").read_text()
    (folder / "right").write_text(f"{PASSPHRASE}\n")
    (folder / "right_of_windows").write_bytes(f"{PASSPHRASE}\r\nsecond line\r\n".encode())
    (folder / "wrong").write_text("incorrect horse\n")
    (folder / "empty").write_text("\nsecond line\n")
    (folder / "long").write_text("x" * 1025 + "\n")
    return folder


def command(keys: Path, key: str, passphrase: str | None = None) -> list[str]:
    given = ["--set", f"server.tls.cert={keys / 'cert.pem'}", "--set", f"server.tls.key={keys / key}"]
    if passphrase is not None:
        given += ["--set", f"server.tls.passphrase_file={keys / passphrase}"]
    return [sys.executable, "-m", "telephony_tts", "serve", *TONES, *given]


def without_terminal(command: list[str]) -> Ended:
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False,
        start_new_session=True,
    )  # fmt: skip
    return ended.returncode, ended.stderr


def with_terminal(command: list[str]) -> Ended:
    """Run the command on a terminal of its own without input. A prompt would appear in the output, and hang."""
    controller, terminal = pty.openpty()
    try:
        ended = subprocess.run(
            command, stdin=terminal, stdout=terminal, stderr=terminal, timeout=30, check=False, start_new_session=True
        )
        os.set_blocking(controller, False)
        return ended.returncode, os.read(controller, 1 << 16).decode()
    finally:
        os.close(controller)
        os.close(terminal)


@pytest.mark.parametrize("run", [without_terminal, with_terminal])
@pytest.mark.parametrize(
    ("key", "passphrase", "says"),
    [
        ("pkcs8.pem", None, "key: {keys}/pkcs8.pem is encrypted; put its passphrase into a file and name it in "
         "server.tls.passphrase_file\n"),
        ("traditional.pem", None, "key: {keys}/traditional.pem is encrypted; "),
        ("pkcs8.pem", "wrong", "passphrase_file: the passphrase in {keys}/wrong does not open {keys}/pkcs8.pem\n"),
        ("traditional.pem", "wrong", "passphrase_file: the passphrase in {keys}/wrong does not open {keys}/trad"),
        ("pkcs8.pem", "empty", "passphrase_file: the first line of {keys}/empty is empty; expected the passphrase\n"),
        ("pkcs8.pem", "long", "passphrase_file: the first line of {keys}/long is too long; expected at most 1024"),
    ],
)  # fmt: skip
def test_an_encrypted_key_that_cannot_be_opened_is_one_line_and_no_prompt(
    run: Callable[[list[str]], Ended], key: str, passphrase: str | None, says: str, keys: Path
) -> None:
    """Pinned: OpenSSL prompted twice, and without a terminal the error was `[Errno 22] Invalid argument`."""
    status, said = run(command(keys, key, passphrase))
    said = said.replace("\r\n", "\n")
    assert status == 2 and said.count("\n") == 1, said
    assert said.startswith("telephony-tts: server.tls." + says.format(keys=keys)) and PASSPHRASE not in said


def test_a_key_of_another_certificate_is_not_called_a_wrong_passphrase(keys: Path) -> None:
    status, said = without_terminal(command(keys, "other.pem", "right"))
    assert status == 2 and f"{keys / 'cert.pem'} and {keys / 'other.pem'} do not work: " in said, said


def test_a_missing_passphrase_file_is_listed_with_the_other_problems(keys: Path) -> None:
    status, said = without_terminal(command(keys, "pkcs8.pem", "none"))
    assert status == 2 and f"server.tls.passphrase_file: cannot read {keys / 'none'}\n" in said, said


@pytest.mark.parametrize(
    ("key", "passphrase"),
    [("pkcs8.pem", "right"), ("traditional.pem", "right_of_windows"), ("plain.pem", "wrong")],
)
def test_a_key_is_opened_with_its_passphrase_and_a_plain_one_without(key: str, passphrase: str, keys: Path) -> None:
    served = subprocess.Popen(
        command(keys, key, passphrase), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert served.stdout is not None
        ready = next(line for line in served.stdout if "is ready" in line or "failed" in line)
        assert "is ready at wss://127.0.0.1:" in ready
    finally:
        served.terminate()
        _, log = served.communicate(timeout=20)
    assert served.returncode == 0 and PASSPHRASE not in log, log
