"""Messages of the command line: damaged models, voices, help, and the text that a ready server prints."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from telephony_tts.app.config import doors
from telephony_tts.app.serving import Served, _host_here
from telephony_tts.audio.wav import write_wav
from telephony_tts.cli import bench as cli_bench
from telephony_tts.cli.main import main
from telephony_tts.engines.api import EngineStats, Voice
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

ROOT = Path(__file__).parents[1]
SAID = "Thank you for calling. Your parcel is on its way and arrives tomorrow. Is there anything else I can do?"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "model"
    write_random_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "a.wav"
    assert main(["say", SAID, str(path), "--pcm"]) == 0
    return path


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    """A model directory of this test that is not marked as random."""
    path = tmp_path / "model"
    shutil.copytree(original, path)
    (path / "random.json").unlink()
    return path


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The error output, which must be one line."""
    error = capsys.readouterr().err
    assert error.startswith("telephony-tts: ") and error.count("\n") == 1, error
    return error


# ------------------------------------------------------------------------ models check


def test_a_path_that_is_not_a_directory_is_named_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "check", str(tmp_path / "none")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path}/none: there is no such directory"
    assert lines[1] == f".venv/bin/telephony-tts models pull {tmp_path}/none fetches what is missing or damaged"
    (tmp_path / "a file").touch()
    assert main(["models", "check", str(tmp_path / "a file")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path}/a file: it is a file, not a directory" and "the name of a new one" in lines[1]


def test_each_damage_of_a_model_is_a_line_and_the_last_line_is_the_remedy(
    model: Path, original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "llm.pt").write_bytes((model / "llm.pt").read_bytes()[:100_000])
    (model / "campplus.onnx").unlink()
    assert main(["models", "check", str(model)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{model}: campplus.onnx is missing",
        f"{model}: llm.pt cannot be read: it is cut off or damaged",
        f".venv/bin/telephony-tts models pull {model} fetches what is missing or damaged",
    ]
    shutil.copy(original / "random.json", model)
    assert main(["models", "check", str(model)]) == 1
    assert f"telephony-tts models random {model} writes" in capsys.readouterr().out.splitlines()[-1]


# ------------------------------------------------------------------------------ voices


@pytest.mark.parametrize("damage", ["cut", "swapped"])
def test_adding_a_voice_names_the_wrong_onnx_file(
    damage: str, model: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = model / "speech_tokenizer_v2.onnx"
    data = graph.read_bytes()[:1000] if damage == "cut" else (model / "campplus.onnx").read_bytes()
    graph.write_bytes(data)
    assert main(["voices", "add", "anna", "--wav", str(recording), "--model", str(model)]) == 1
    error = told(capsys)
    assert f"{graph} is " in error and f"models pull {model}" in error
    assert ("cut off" if damage == "cut" else "another network: its inputs are input,") in error


@pytest.mark.parametrize("voices", ["voices: my voices, ", ""])
def test_the_command_for_a_first_voice_stores_it_where_the_engine_reads_it(
    voices: str, model: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed command works with the configuration's voice folder and with the default one."""
    (model / "spk2info.pt").unlink()
    model = model.rename(tmp_path / "the model")
    file = tmp_path / "server.yaml"
    file.write_text(f"engines: {{cosyvoice2: {{{voices}isolation: thread, model: the model}}}}\n")
    speak = ["say", "Yes.", str(tmp_path / "out.wav"), "--engine", "cosyvoice2", "--config", str(file)]
    assert main(speak) == 1
    command = told(capsys).partition("Make one from a recording: .venv/bin/telephony-tts ")[2]
    assert main(["doctor", "--config", str(file)]) == 1
    assert f".venv/bin/telephony-tts {command}" in capsys.readouterr().out
    named = {"NAME": "anna", "FILE": str(recording), "WHAT IS SAID": SAID}
    assert main([named.get(word, word) for word in shlex.split(command)]) == 0
    assert main([*speak, "--voice", "anna"]) == 0
    assert (tmp_path / ("my voices" if voices else "the model/voices") / "anna.safetensors").is_file()


def test_the_printed_command_replaces_a_damaged_voice(
    model: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pinned: it lacked the recording, the model and --replace."""
    (model / "voices").mkdir()
    (model / "voices" / "anna.safetensors").write_bytes(b"nothing")
    assert main(["voices", "--model", str(model)]) == 0
    command = told(capsys).partition("make it again with .venv/bin/telephony-tts ")[2]
    named = {"FILE": str(recording), "DIR": str(model)}
    assert main([named.get(word, word) for word in shlex.split(command)]) == 0
    capsys.readouterr()
    assert main(["voices", "--model", str(model)]) == 0
    listed = capsys.readouterr()
    assert "cosyvoice2/anna " in listed.out and listed.err == ""


def test_a_voice_of_the_model_file_cannot_be_removed(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = torch.load(model / "spk2info.pt", weights_only=True)
    torch.save({**entries, "bad": {"embedding": torch.zeros(1, 192)}}, model / "spk2info.pt")
    for name in ("preset", "bad"):
        assert main(["voices", "remove", name, "--model", str(model)]) == 1
        error = told(capsys)
        assert f"no voice {name}" in error and f"{model}/spk2info.pt and cannot be removed here" in error
    assert main(["voices", "remove", "anna", "--model", str(model)]) == 1
    assert "spk2info" not in told(capsys)
    assert main(["voices", "import", str(model / "spk2info.pt"), "--only", "preset", "--model", str(model)]) == 0
    assert main(["voices", "remove", "preset", "--model", str(model)]) == 0, "a stored voice can be removed"


@pytest.mark.parametrize(
    ("name", "words"),
    [("README.md", "not a plain file of tensors"), ("llm.pt", "does not hold speakers by name"), ("cut.pt", "cut off")],
)
def test_a_file_without_speakers_is_refused_in_one_line(
    name: str, words: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "cut.pt").write_bytes((model / "spk2info.pt").read_bytes()[:20_000])
    assert main(["voices", "import", str(model / name), "--model", str(model)]) == 2
    error = told(capsys)
    assert f"{model}/{name} " in error and words in error and "not a spk2info.pt" in error
    assert "weights_only" not in error and "PyTorch" not in error and len(error) < 250 + len(str(model))


def test_an_empty_file_of_speakers_is_valid(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({}, tmp_path / "spk2info.pt")
    assert main(["voices", "import", str(tmp_path / "spk2info.pt"), "--model", str(model)]) == 1
    assert "no voice of" in told(capsys)
    shutil.copy(tmp_path / "spk2info.pt", model)
    assert main(["models", "check", str(model)]) == 0


# --------------------------------------------------------------------------------- use

COMMANDS = ("serve", "say", "voices", "voices list", "voices add", "voices remove", "voices import", "sounds", "doctor",
            "models", "models pull", "models check", "models random", "models convert", "bench")  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_described_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and shown.startswith(f"usage: telephony-tts {command} ")
    assert f"examples:\n  telephony-tts {command.removesuffix(' list')}" in shown
    paragraph = shown.split("\n\n")[1]
    assert paragraph[0].isupper() and paragraph.rstrip().endswith("."), "the description is a sentence"


def test_an_unknown_benchmark_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, words in (
        ([], "required: NAME\n"),
        (["speed"], "unknown benchmark 'speed'; expected one of engine, plot, first_audio, "),
        (
            ["isolation", "--", "--quick"],
            "source checkout (barge_in_by_voice, console, doors, failover, fleet, fleet_local, floors, gpu_check, "
            "host_work, intelligibility, isolation, kokoro, lexicon, neighbours, noise_reduction, "
            "ops, pauses, pbx, phrases, precision, processes, ratios, recording, remote_engine, "
            "schedule, small_model, voice_activity, voice_mail): ",
        ),
        (["schedule"], ".venv/bin/python benchmarks/NAME.py --help\n"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["bench", *wrong])
        error = capsys.readouterr().err
        assert ended.value.code == 2 and words in error
        assert error.startswith("usage: telephony-tts bench [-h] NAME [-- FLAGS ...]\n")


def test_an_installed_package_names_no_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_bench, "__file__", str(tmp_path / "telephony_tts" / "cli" / "bench.py"))
    with pytest.raises(SystemExit):
        main(["bench", "isolation"])
    assert "another script of the source checkout: .venv/bin/python benchmarks/NAME.py" in capsys.readouterr().err


@pytest.mark.parametrize("seed", [-1, 2**32, 10**30])
def test_a_seed_out_of_range_is_an_error(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say = ["say", "Hello.", str(tmp_path / "a.wav"), "--set", "engines.default=fake", "--seed"]
    assert main([*say, str(seed)]) == 2
    assert f"--seed is {seed}; expected a whole number from 0 to 4294967295" in told(capsys)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_smallest_and_the_largest_seed_are_accepted(seed: int, tmp_path: Path) -> None:
    assert main(["say", "Hello.", str(tmp_path / "a.wav"), "--set", "engines.default=fake", "--seed", str(seed)]) == 0


def test_random_weights_refuse_a_negative_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "random", str(tmp_path / "m"), "--seed", "-1"]) == 2
    assert "--seed is -1" in told(capsys) and os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_no_example_is_changed_by_the_shell(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Pinned: "Your balance is $42.50." is "Your balance is 2.50." to a shell."""
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    examples = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  telephony-tts ")]
    assert examples
    for line in examples:
        assert not re.search(r'"[^"]*[$`!\\][^"]*"', line), line


@pytest.mark.parametrize(
    ("host", "error", "told"),
    [
        ("::1", OSError(errno.EADDRINUSE, "more words"), "[::1]:8080: Address already in use; try another --port"),
        ("::1", OSError(errno.EADDRNOTAVAIL, ""), "[::1]:8080: Cannot assign requested address; try another --host"),
        ("a.invalid", socket.gaierror(-2, "Name not known"), "a.invalid:8080: Name not known; try another --host"),
        ("127.0.0.1", OSError("of no number"), "127.0.0.1:8080: of no number; try another --host"),
    ],
)
def test_an_unusable_address_is_reported_with_the_flag_to_change(
    host: str, error: OSError, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pinned: --port was the remedy for a host of another machine."""

    def run(settings: object, announce: object) -> None:
        raise BaseExceptionGroup("of a task group", [error])

    monkeypatch.setattr("telephony_tts.app.processes.run", run)
    assert main(["serve", "--host", host]) == 2
    assert capsys.readouterr().err == f"telephony-tts: cannot listen on {told}\n"


# ------------------------------------------------------------------------------- ready


def announced(flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The text that `serve` prints when a server with two engines is ready."""
    voices = (
        Voice("heart", "hibari", ("en",), 24_000),
        Voice("emma", "hibari", ("en-GB",), 24_000),
        Voice("anna", "cosyvoice2", ("zh", "en"), 24_000),
    )
    served = Served("ws://127.0.0.1:8080", 8080, voices, {n: EngineStats() for n in ("hibari", "cosyvoice2")})
    monkeypatch.setattr("telephony_tts.app.processes.run", lambda settings, announce: announce(served))
    assert main(["serve", *flags]) == 0
    return capsys.readouterr().out


def test_a_server_without_the_console_does_not_announce_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = announced(["--set", "server.console=false"], monkeypatch, capsys)
    assert "/console/" not in shown and "is ready at" in shown.strip().splitlines()[0]


@pytest.mark.parametrize(
    ("flags", "voice"),
    [
        ([], "hibari/heart"),
        (["--voice", "anna"], "cosyvoice2/anna"),
        (["--voice", "hibari/emma"], "hibari/emma"),
        (["--set", "speech.voice=emma"], "hibari/emma"),
        (["--set", "speech.lang=en-GB"], "hibari/emma"),
        (["--set", "speech.lang=zh"], "cosyvoice2/anna"),
        (["--set", "speech.lang=zh", "--set", "engines.routes={zh: espeak}"], "cosyvoice2/anna"),
    ],
)
def test_the_announced_command_speaks_with_the_voice_of_a_call(
    flags: list[str], voice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = announced(flags, monkeypatch, capsys)
    assert f"is ready at ws://127.0.0.1:8080, voice {voice}\n" in shown
    assert shown.lstrip().startswith("Type, hear and interrupt in a browser: http://127.0.0.1:8080/console/\n")
    line, *mandarin = [line for line in shown.splitlines() if " say " in line]
    assert bool(mandarin) == (", with cosyvoice2/anna:" in shown), "another voice speaks Mandarin"
    started = [sys.executable, "-m", "telephony_tts"]  # tests/e2e has the installed program
    assert shlex.split(line) == [*started, "say", "Hello there.", "hello.wav", *flags]


def test_the_announced_command_has_only_the_flags_of_speech(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my server.yaml"
    file.write_text("speech: {voice: anna}\n")
    flags = ["--config", str(file), "--port", "9000", "--set", "bot.token=secret", "--set", "speech.speed=1.2"]
    shown = announced(flags, monkeypatch, capsys)
    assert "voice cosyvoice2/anna" in shown and "secret" not in shown
    assert f"say 'Hello there.' hello.wav --config '{file}' --set speech.speed=1.2\n" in shown


def test_the_announced_command_has_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.yaml").touch()
    own = ["--set", "engines.cosyvoice2.model=models/tiny", "--set", "engines.cosyvoice2.voices=null"]
    shown = announced(["--config", "server.yaml", *own], monkeypatch, capsys)
    wanted = f"hello.wav --config {tmp_path}/server.yaml --set engines.cosyvoice2.model={tmp_path}/models/tiny --set "
    assert f"{wanted}engines.cosyvoice2.voices=null\n" in shown


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "A telephony platform on this machine connects to ws://127.0.0.1:8080/media/NAME"),
        (["--host", "10.1.2.3"], "A telephony platform connects to ws://127.0.0.1:8080/media/NAME"),
        (["--host", "0.0.0.0"], "A telephony platform connects to ws://tts-7:8080/media/NAME"),
        (["--host", "::"], "A telephony platform connects to ws://tts-7:8080/media/NAME"),
        (["--set", "server.public_url=https://voice.example.com/"], "connects to wss://voice.example.com/media/NAME"),
        (["--host", "::", "--set", "server.public_url=ws://a.example:81"], "connects to ws://a.example:81/media/NAME"),
        (["--set", "speech.codec=pcm", "--set", "speech.rate_hz=16000"], "and get 16 kHz 16-bit PCM frames:"),
    ],
)
def test_the_announced_address_for_a_platform(
    flags: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "tts-7")
    shown = announced(flags, monkeypatch, capsys)
    assert told in shown
    names = [door.name for door in doors() if door.media is not None]
    assert "twilio" in names and f"/media/NAME, with NAME one of {', '.join(names)}.\n" in shown


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("fd00::2", "[fd00::2]"),
        ("10.1.2.3", "10.1.2.3"),
        ("tts.example.com", "tts.example.com"),
    ],
)
def test_the_address_of_a_server_on_its_own_machine(host: str, here: str) -> None:
    assert _host_here(host) == here


def test_without_npx_the_announced_client_is_that_of_websockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = announced([], monkeypatch, capsys)
    assert f"{sys.executable} -m websockets ws://127.0.0.1:8080/v1/stream\n" in shown and "wscat" not in shown


# -------------------------------------------------------------------------------- make


def test_make_model_says_how_to_resume_a_failed_download(tmp_path: Path) -> None:
    """The installed program is replaced by one that prints its arguments and may fail."""
    program = tmp_path / "bin" / "telephony-tts"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\nexit "$CODE"\n')
    program.chmod(0o755)
    for name in ("bin/python", ".installed", ".installed-cosyvoice2"):
        (tmp_path / name).touch()
    make = ["make", "--no-print-directory", "model", f"VENV={tmp_path}", "MODEL=m", "PULL_ARGS=--source modelscope"]
    ended = [
        subprocess.run(make, cwd=ROOT, env={**os.environ, "CODE": code}, capture_output=True, text=True, timeout=30,
                       check=False)
        for code in ("0", "1")
    ]  # fmt: skip
    assert [each.stdout for each in ended] == ["models pull m --source modelscope\n"] * 2
    assert ended[0].returncode == 0 and ended[0].stderr == ""
    assert ended[1].returncode != 0 and "run make model again to continue" in ended[1].stderr
    assert "PULL_ARGS='--source modelscope'" in ended[1].stderr


def test_sounds_lists_what_can_be_played_and_says_what_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wav(tmp_path / "welcome.wav", bytes(2 * 12_000), "pcm", 8_000)
    assert main(["sounds", "--set", f"sounds.folder={tmp_path}"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["hold", "ringback", "typing", "welcome"]
    assert lines[-1] == ["welcome", "1.5", "s", "8000", "Hz"]
    (tmp_path / "empty.wav").touch()
    assert main(["sounds", "--set", f"sounds.folder={tmp_path}"]) == 1
    assert "sound 'empty' cannot be played: the file is empty" in capsys.readouterr().err
    assert main(["sounds", "--set", f"sounds.folder={tmp_path / 'none'}"]) == 2
    assert f"sounds.folder: no folder {tmp_path / 'none'}" in capsys.readouterr().err
