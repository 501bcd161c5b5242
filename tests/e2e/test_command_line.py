"""The command line: files with the audio that a caller would hear, lists, and one-line errors."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from forked_process import SERVER_IMPORTS, ForkServer, fork_server
from rig import correlation, decoded, rendering

from telephony_tts.audio.wav import read_wav
from telephony_tts.cli.main import main

pytestmark = pytest.mark.slow

TONES = ("--engine", "fake")
"""For `say`. Loads no other engine: loading hibari takes longer than all else in a test here."""
FAKE_FIRST = ("--set", "engines.default=fake", "--set", "engines.hibari.workers=0")
"""Without `--engine`, the engines of the routes are loaded too."""


def said(out: Path) -> tuple[str, int, bytes]:
    wav = read_wav(str(out))
    return wav.codec, wav.rate_hz, wav.payload


Program = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def programs() -> Iterator[ForkServer]:
    with fork_server(*SERVER_IMPORTS) as forked:
        yield forked


@pytest.fixture
def program(programs: ForkServer) -> Program:
    """Runs the command line from a fork server. Tests of what the interpreter makes of its standard files, at its start
    and at its end, run `started`."""
    return lambda *arguments, **options: started(*arguments, **options, start=programs.run)


def started(
    *arguments: str, stdin: str | bytes = "", cwd: Path | None = None, start: Program = subprocess.run
) -> subprocess.CompletedProcess[bytes]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    return start(
        [sys.executable, "-m", "telephony_tts", *arguments], input=data, capture_output=True, timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "default"}, cwd=cwd,
    )


@pytest.mark.parametrize(
    ("flags", "codec", "rate_hz"),
    [
        (FAKE_FIRST, "ulaw", 8000),
        ((*TONES, "--codec", "alaw"), "alaw", 8000),
        ((*TONES, "--codec", "pcm", "--rate", "16000"), "pcm", 16000),
    ],
)
def test_say_writes_what_a_caller_would_hear(
    tmp_path: Path, flags: tuple[str, ...], codec: str, rate_hz: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.wav"
    assert main(["say", "Good morning. All is well.", str(out), *flags]) == 0
    assert said(out)[:2] == (codec, rate_hz)
    heard = decoded([said(out)[2]], codec)
    wanted = rendering(["Good morning.", "All is well."], rate_hz)
    assert correlation(heard, wanted) >= 0.99
    assert 0 <= len(heard) - len(wanted) < rate_hz // 50
    assert "s of speech" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["out.wav"]


def test_say_pcm_writes_the_engines_own_audio(tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    assert main(["say", "Good morning.", str(out), "--pcm", *TONES]) == 0
    codec, rate_hz, payload = said(out)
    assert (codec, rate_hz) == ("pcm", 24_000)
    assert np.array_equal(decoded([payload], "pcm"), rendering(["Good morning."], 24_000))


def test_say_reads_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.wav"
    monkeypatch.setattr("sys.stdin", io.StringIO("Read to you.\n"))
    assert main(["say", "-", str(out), *TONES]) == 0
    assert correlation(decoded([said(out)[2]]), rendering(["Read to you."])) >= 0.99


def test_say_with_the_embedded_voice_speaks(tmp_path: Path, program: Program) -> None:
    out = tmp_path / "out.wav"
    ended = program("say", "Your balance is $42.50.", str(out))
    assert ended.returncode == 0, ended.stderr
    codec, rate_hz, payload = said(out)
    heard = decoded([payload]).astype(float)
    assert (codec, rate_hz) == ("ulaw", 8000) and 1.0 < len(heard) / 8000 < 6.0
    assert np.sqrt(np.mean(heard**2)) > 500
    assert np.abs(heard[:160]).max() > 0 or np.abs(heard[160:480]).max() > 0, "it begins with silence"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["say", "Hello.", "{out}", "--voice", "stranger", *FAKE_FIRST], 1, ["stranger"]),
        (["say", "Hello.", "{out}", "--speed", "9", *TONES], 2, ["--speed: 9.0", "0.5 to 2"]),
        (["say", "Hello.", "{out}", "--codec", "ulaw", "--rate", "16000", *TONES], 2, ["--rate 16000", "--codec pcm"]),
        (["say", "Hello.", "{out}", "--rate", "16000", *TONES], 2, ["--rate 16000 needs --codec pcm", "--pcm is"]),
        (["say", "Hello.", "{out}", "--pcm", "--rate", "16000", *TONES], 2, ["--rate 16000 does not go with --pcm"]),
        (["say", "Hello.", "{out}", "--pcm", "--codec", "alaw", *TONES], 2, ["--codec alaw does not go with --pcm"]),
        (["say", "Hello.", "{folder}/a.mp3", *TONES], 2, ["cannot write .mp3", ".wav", ".ulaw", ".alaw", ".raw"]),
        (["say", "Hello.", "{folder}/a.wav.gz", *TONES], 2, ["cannot write .gz files", ".wav"]),
        (["say", "Hello.", "{folder}/a.ulaw", "--codec", "alaw", *TONES], 2, ["means codec ulaw", "--codec alaw"]),
        (["say", "Hello.", "{folder}/a.alaw", "--pcm", *TONES], 2, ["means codec alaw", "--pcm"]),
        (["say", "Hello.", "{folder}/a.ulaw", "--rate", "16000", *TONES], 2, ["--rate 16000", "the codec is ulaw"]),
        (["say", "Hello.", "{out}", "--voice", "", *TONES], 2, ["--voice: ''"]),
        (["say", "Hello.", "{out}", "--engine", "cosyvoice2"], 2, ["engines.cosyvoice2.model (--model): missing"]),
        (["say", "Hello.", "{out}", "--speed", "1", "--set", "speech.speed=9"], 2, ["speech.speed (--speed): 9"]),
        (["say", "Hello.", "{out}", "--engine", "siri"], 2, ["--engine: 'siri'"]),
        (["say", "", "{out}", *TONES], 2, ["no text"]),
        (["say", "?!", "{out}", *TONES], 2, ["speakable"]),
        (["say", "Hello.", "{folder}/none/out.wav", *TONES], 2, ["cannot be written"]),
        (["say", "Hello.", "{folder}", *TONES], 2, ["is a directory"]),
        (["say", "您好。", "{out}", "--set", "engines.routes={{}}", "--voice", "hibari/heart"], 1, ["English"]),
        (["say", "您好。", "{out}", "--engine", "hibari"], 1, ["hibari", "English"]),
        (["say", "Hello.", "{out}", "--engine", "fake", "--voice", "heart"], 1, ["no voice 'heart'", "fake/tone"]),
        (["say", "Hello.", "{out}", "--engine", "fake", "--voice", "hibari/heart"], 1, ["no voice 'hibari/heart'"]),
        (["say", "Hello.", "{out}", "--config", "{folder}/none.yaml"], 2, ["none.yaml"]),
        (["say", "Hello.", "{out}", "--set", "limits.calls"], 2, ["KEY=VALUE"]),
        (["say", "Hello.", "{out}", "--set", "no.such=1"], 2, ["no"]),
        (["serve", "--port", "99999", *FAKE_FIRST], 2, ["--port: 99999"]),
        (["voices", "--model", ""], 2, ["--model: ''"]),
        (["voices", "--config", "{folder}/none.yaml"], 2, ["none.yaml"]),
    ],
)
def test_an_error_is_one_line_and_leaves_no_file(
    arguments: list[str], code: int, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [a.format(out=tmp_path / "out.wav", folder=tmp_path) for a in arguments]
    assert main(filled) == code
    error = capsys.readouterr().err
    # What is wrong with the settings comes as a list, one line each; all else is one line.
    assert error.startswith("telephony-tts: ") and error.count("\n") == 1 + ("1 problem" in error), error
    assert all(word in error for word in words), error
    assert os.listdir(tmp_path) == []


def test_a_named_engine_speaks_every_language(tmp_path: Path) -> None:
    """Pinned: Chinese text went to espeak, where the default routes lead, whatever --engine said."""
    out = tmp_path / "out.wav"
    assert main(["say", "您好。", str(out), "--engine", "fake"]) == 0
    assert correlation(decoded([said(out)[2]]), rendering(["您好。"])) >= 0.99


def test_an_error_keeps_the_existing_file(tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    out.write_bytes(b"precious")
    assert main(["say", "Hello.", str(out), "--voice", "stranger", *TONES]) == 1
    assert out.read_bytes() == b"precious" and os.listdir(tmp_path) == ["out.wav"]


@pytest.mark.parametrize(
    "arguments", [[], ["sing"], ["say"], ["say", "Hi.", "x.wav", "--codec", "mp3"], ["serve", "--port", "x"]]
)
def test_wrong_use_exits_with_2_and_a_hint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: telephony-tts" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["serve"], ["say"], ["voices"], ["doctor"], ["bench"]])
def test_help_is_there_for_every_command(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert "usage: telephony-tts" in capsys.readouterr().out


def test_voices_are_listed_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["voices", *FAKE_FIRST]) == 0
    assert "fake/tone" in capsys.readouterr().out.splitlines()[0]
    assert main(["voices", "--json", "--set", "engines.default=fake"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["engine"] == "fake" and any(row["engine"] == "hibari" for row in rows)


def test_a_reader_that_closes_the_pipe_early_is_not_an_error() -> None:
    ended = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m telephony_tts voices | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.stdout.splitlines()[-1] == "0" and "Traceback" not in ended.stderr, ended.stderr


def test_doctor_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *FAKE_FIRST, "--set", "server.port=0"]) == 0
    out = capsys.readouterr().out
    assert "websockets" in out and "test speech from fake" in out
    assert all(line.split()[0] in ("ok", "missing", "in", "broken") for line in out.splitlines())


def test_doctor_says_what_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--set", "speech.voice=stranger", *FAKE_FIRST]) == 1
    assert "broken   speech" in capsys.readouterr().out


def test_text_that_is_not_utf8_on_standard_input(tmp_path: Path) -> None:
    ended = started("say", "-", str(tmp_path / "out.wav"), *TONES, stdin=b"caf\xe9 au lait")
    assert b"Traceback" not in ended.stderr, ended.stderr.decode()
    assert len(ended.stderr.splitlines()) == 1


def test_standard_output_gets_the_wav_and_nothing_else(tmp_path: Path, program: Program) -> None:
    """Pinned: `say - -` wrote a file named "-"."""
    ended = program("say", "-", "-", *TONES, stdin="Read to you.", cwd=tmp_path)
    assert ended.returncode == 0 and os.listdir(tmp_path) == []
    wav = read_wav(io.BytesIO(ended.stdout))
    assert (wav.codec, wav.rate_hz) == ("ulaw", 8000)
    assert struct.unpack_from("<I", ended.stdout, 4)[0] == len(ended.stdout) - 8, "the header has the length"
    assert correlation(decoded([wav.payload]), rendering(["Read to you."])) >= 0.99
    assert re.fullmatch(rb"standard output: \d\.\d\d s of speech\n", ended.stderr)


def test_standard_output_gets_the_engines_audio_once() -> None:
    ended = started("say", "Good morning.", "-", "--pcm", *TONES)
    wav = read_wav(io.BytesIO(ended.stdout))
    assert (wav.codec, wav.rate_hz) == ("pcm", 24_000) and ended.stdout.count(b"RIFF") == 1
    assert np.array_equal(decoded([wav.payload], "pcm"), rendering(["Good morning."], 24_000))


@pytest.mark.parametrize("wrong", [["--voice", "stranger"], ["--rate", "16000"], ["--config", "nowhere.yaml"]])
def test_an_error_writes_nothing_to_standard_output(wrong: list[str], program: Program) -> None:
    ended = program("say", "Hello.", "-", *TONES, *wrong)
    assert ended.returncode in (1, 2) and ended.stdout == b"" and ended.stderr.startswith(b"telephony-tts: ")


def test_a_wav_is_not_written_to_a_terminal(programs: ForkServer) -> None:
    controller, terminal = pty.openpty()
    try:
        ended = programs.run(
            [sys.executable, "-m", "telephony_tts", "say", "Hello.", "-", *TONES],
            stdout=terminal, stderr=subprocess.PIPE, timeout=60,
        )
        os.set_blocking(controller, False)
        with pytest.raises(BlockingIOError):
            os.read(controller, 1)
    finally:
        os.close(controller)
        os.close(terminal)
    assert ended.returncode == 2
    assert b"standard output is a terminal" in ended.stderr and b"| aplay" in ended.stderr


@pytest.mark.parametrize(
    ("ends", "status", "words"),
    [
        ("| head -c 1 >/dev/null", "0", ""),
        ("| true", "0", ""),
        (">/dev/full", "2", "standard output: cannot be written: No space left on device"),
        (">&-", "2", "standard output is closed; name a file"),
    ],
)
def test_standard_output_that_is_closed_or_full(ends: str, status: str, words: str, tmp_path: Path) -> None:
    """Speech of more than a pipe holds (64 KiB), so that it is being written when its reader goes."""
    text = tmp_path / "long.txt"
    text.write_text("A long line is read here to the end of it. " * 60)
    say = f"{sys.executable} -m telephony_tts say - - --pcm {' '.join(TONES)} <{text} {ends}"
    ended = subprocess.run(
        ["bash", "-c", f"{say}; echo ${{PIPESTATUS[0]}} >&2"], capture_output=True, text=True, timeout=60, check=False
    )
    *lines, last = ended.stderr.splitlines()
    assert last == status and ended.stdout == "", ended.stderr
    assert lines == ([f"telephony-tts: {words}"] if words.startswith("standard output: ") else lines)
    assert words in ended.stderr and len(lines) == bool(words)


def test_a_port_in_use_is_a_one_line_error(program: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended = program("serve", "--port", str(port), "--log-level", "error", *FAKE_FIRST)
    told = f"telephony-tts: cannot listen on 127.0.0.1:{port}: Address already in use; try another --port\n"
    assert (ended.returncode, ended.stderr.decode()) == (2, told)


def test_a_server_goes_on_when_its_output_is_closed() -> None:
    """Pinned: `serve | head -1` could end it with "cannot listen: Broken pipe; try --port"."""
    reader, writer = os.pipe()
    os.close(reader)
    served = subprocess.Popen(
        [sys.executable, "-m", "telephony_tts", "serve", "--port", "0", *FAKE_FIRST],
        stdout=writer, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writer)
    try:
        assert served.stderr is not None
        ready = next(line for line in served.stderr if '"ready"' in line)
        address = urllib.parse.urlsplit(json.loads(ready)["address"])
        with urllib.request.urlopen(f"http://{address.netloc}/readyz", timeout=10) as answer:
            assert re.fullmatch(rb"ready\nspeaks [a-z]{2,3}(, [a-z]{2,3})*\n", answer.read())
        served.send_signal(signal.SIGTERM)
        served.communicate(timeout=20)
        assert served.returncode == 0
    finally:
        served.kill()
        served.communicate()


def test_a_list_that_cannot_be_written_is_a_one_line_error() -> None:
    """Pinned: a traceback."""
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "telephony_tts", "voices", *FAKE_FIRST],
            stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr == b"telephony-tts: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("name", "flags", "codec", "rate_hz"),
    [
        ("a.ulaw", [], "ulaw", 8000),
        ("a.alaw", [], "alaw", 8000),
        ("a.ALAW", ["--codec", "alaw"], "alaw", 8000),
        ("a.alaw", ["--set", "speech.codec=pcm", "--set", "speech.rate_hz=16000"], "alaw", 8000),
        ("a.raw", [], "ulaw", 8000),
        ("a.raw", ["--codec", "pcm", "--rate", "16000"], "pcm", 16000),
        ("a.raw", ["--pcm"], "pcm", 24000),
        ("a.raw", ["--pcm", "--codec", "pcm"], "pcm", 24000),
    ],
)
def test_the_file_extension_chooses_a_raw_format(
    name: str, flags: list[str], codec: str, rate_hz: int, tmp_path: Path
) -> None:
    assert main(["say", "Good morning.", str(tmp_path / name), *TONES, *flags]) == 0
    payload = (tmp_path / name).read_bytes()
    assert not payload.startswith(b"RIFF")
    heard, wanted = decoded([payload], codec), rendering(["Good morning."], rate_hz)
    assert correlation(heard, wanted) >= 0.99 and 0 <= len(heard) - len(wanted) <= rate_hz // 50


@pytest.mark.parametrize("name", ["a.wav", "a.WAV", "hello", "-"])
def test_a_file_of_these_names_is_a_wav(name: str, tmp_path: Path) -> None:
    assert main(["say", "Hello.", f"{tmp_path}/{name}", *TONES]) == 0
    assert said(tmp_path / name)[:2] == ("ulaw", 8000)


def test_a_given_codec_sets_its_own_rate(tmp_path: Path) -> None:
    """Pinned: with pcm at 16000 Hz in the settings, --codec ulaw was told that speech.rate_hz does not go with it."""
    wide = ("--set", "speech.codec=pcm", "--set", "speech.rate_hz=16000")
    for flags, form in (
        ([], ("pcm", 16000)), (["--codec", "ulaw"], ("ulaw", 8000)), (["--rate", "8000"], ("pcm", 8000))
    ):  # fmt: skip
        assert main(["say", "Hello.", str(tmp_path / "a.wav"), *TONES, *wide, *flags]) == 0
        assert said(tmp_path / "a.wav")[:2] == form


def test_a_link_is_followed_and_a_pipe_is_written_to(tmp_path: Path, program: Program) -> None:
    """Pinned: both were replaced by a regular file; /dev/null was once."""
    target, link, pipe = tmp_path / "target.wav", tmp_path / "link.wav", tmp_path / "pipe"
    target.write_bytes(b"old")
    link.symlink_to(target)
    assert main(["say", "Hello.", str(link), *TONES]) == 0
    assert link.is_symlink() and read_wav(str(target)).codec == "ulaw"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    assert main(["say", "Hello.", str(pipe), *TONES]) == 0
    received, _ = reader.communicate(timeout=10)
    assert pipe.is_fifo() and received[:4] == b"RIFF" and len(received) > 2000
    ended = program("say", "Hello.", "/dev/stdout", *TONES)
    assert ended.returncode == 0 and ended.stdout == received, "the path of a pipe leads nowhere when it is resolved"
    ended = program("say", "Hello.", "/dev/stdout", "--pcm", *TONES)
    assert ended.stdout.count(b"RIFF") == 1 and read_wav(io.BytesIO(ended.stdout)).codec == "pcm"


@pytest.mark.parametrize("out", ["", ".", "/"])
def test_a_folder_as_the_output_is_an_error(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "Hello.", out, *TONES]) == 2
    assert "expected the name of a file" in capsys.readouterr().err


def test_a_random_model_directory_is_made_checked_and_spoken_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = str(tmp_path / "tiny"), tmp_path / "out.wav"
    assert main(["models", "random", model]) == 0
    assert main(["models", "check", model]) == 0
    assert "complete and compatible" in capsys.readouterr().out
    assert main(["say", "Hello there.", str(out), "--engine", "cosyvoice2", "--model", model]) == 0
    assert np.abs(decoded([read_wav(str(out)).payload])).max() > 500
    (tmp_path / "tiny" / "flow.pt").unlink()
    assert main(["models", "check", model]) == 1 and "flow.pt" in capsys.readouterr().out
    # In this process: one of the engine's own would import PyTorch only to report an error.
    here = ("--set", "engines.cosyvoice2.isolation=thread")
    assert main(["say", "Hi.", str(out), "--engine", "cosyvoice2", "--model", model, *here]) == 1
    assert "flow.pt" in capsys.readouterr().err
