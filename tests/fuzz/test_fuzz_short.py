"""A short part of the fuzzing, and whether the judge finds what it must find. The long run is `make fuzz`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from telephony_tts.app.config import doors
from telephony_tts.recording.replay import read_recording
from telephony_tts.transport.door import Doors, Vendor, open_dialect
from telephony_tts.wire.messages import Invalid, MediaAudio, MediaStart, Text
from telephony_tts.wire.vendor import Refused, Reply
from torture.fuzz.__main__ import fuzz, main
from torture.fuzz.corpus_files import CORPUS, MOST_KEPT, MOST_KEPT_BYTES, kept_inputs
from torture.fuzz.file_targets import pickle_that_runs, ran_code
from torture.fuzz.judge import FuzzTarget, Judge
from torture.fuzz.mutation import MAX_BYTES, Mutator
from torture.fuzz.targets import TARGETS, known_inputs
from torture.fuzz.wire_targets import MEDIA, SEPARATOR, messages_of

ROOT = Path(__file__).resolve().parents[2]
N_INPUTS = 1_000
N_SLOW_INPUTS = 100
SLOW = {"server_config", "bridge_config", "container", "speakers", "voice", "timeline", "wav"}
"""They read files, or take milliseconds for an input."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_parser(name: str) -> None:
    judge = fuzz(TARGETS[name], N_SLOW_INPUTS if name in SLOW else N_INPUTS, seed=1)
    found = [(each.kind, each.place, each.data[:200], each.detail) for each in judge.findings.values()]
    assert not found
    assert judge.n_inputs >= N_SLOW_INPUTS


def broken(data: bytes) -> None:
    """A parser with one mistake of each kind."""
    if b"deep" in data:
        raise RecursionError
    if b"slow" in data:
        sum(range(40_000_000))
    if b"much" in data:
        globals()["_kept"] = b"x" * (200 << 20)


@pytest.mark.slow
def test_the_judge_finds_each_kind_of_mistake() -> None:
    for data, kind, most_ms in ((b"deep", "exception", 50), (b"slow", "slow", 50), (b"much", "memory", 60_000)):
        judge = Judge(FuzzTarget("broken", broken, (), most_ms=most_ms))
        assert judge.try_input(b"nothing") is None
        found = judge.try_input(data + b" and more")
        assert found is not None and found.kind == kind
        again = judge.try_input(data)
        assert list(judge.findings.values()) == [again if again is not None else found], "one mistake is one finding"
    globals().pop("_kept", None)


def test_a_mistake_behind_a_word_is_found_and_told_by_a_short_input() -> None:
    judge = fuzz(FuzzTarget("broken", broken, (b"nothing",), (b"deep",)), 2_000, seed=1)
    (finding,) = judge.findings.values()
    assert b"deep" in finding.data and len(finding.data) < 20


def test_the_same_seed_gives_the_same_inputs_and_another_one_others() -> None:
    def inputs(seed: int) -> list[bytes]:
        mutator = Mutator((b"word",), seed)
        return [mutator.new_input([b'{"a":1}', b"<p>x</p>"]) for _ in range(200)]

    assert inputs(1) == inputs(1) != inputs(2)
    assert max(map(len, inputs(1))) <= MAX_BYTES
    assert len(set(inputs(1))) > 150
    assert any(b"word" in each for each in inputs(1))


def test_nesting_reaches_the_limit_of_pythons_parsers() -> None:
    mutator = Mutator((), 1)
    made = [mutator.new_input([b'{"a":1}']) for _ in range(4_000)]
    depths = {each.count(b"[") for each in made}
    assert any(sys.getrecursionlimit() - 130 < depth < sys.getrecursionlimit() for depth in depths)
    assert sum(len(each) > 2_000 for each in made) < 400, "long inputs are slow, and should be rare"


def test_the_corpus_is_small_and_readable() -> None:
    files = sorted(CORPUS.glob("*.txt"))
    assert {file.stem for file in files} <= set(TARGETS)
    for file in files:
        kept = kept_inputs(file.stem)
        assert 0 < len(kept) <= MOST_KEPT and all(len(data) <= MOST_KEPT_BYTES for data in kept)
    assert sum(file.stat().st_size for file in files) < 1_000_000


@pytest.mark.parametrize(("name", "make", "seeds"), MEDIA, ids=[name for name, _, _ in MEDIA])
def test_the_seeds_of_telephone_platforms_are_understood(
    name: str, make: Callable[[], Any], seeds: tuple[bytes, ...]
) -> None:
    """A parser that refuses a seed at once would leave all behind that untried."""
    for seed in seeds:
        codec = make()
        told = [codec.decode(payload, True, is_text) for payload, is_text in messages_of(seed)]
        assert not [message for message in told if isinstance(message, Invalid)]
        assert any(isinstance(message, MediaStart) for message in told)
        assert any(isinstance(message, MediaAudio) and message.payload for message in told)


@pytest.mark.parametrize("vendor", Doors(doors()).vendors, ids=lambda vendor: vendor.name)
def test_the_seeds_of_vendors_are_understood(vendor: Vendor) -> None:
    for seed in TARGETS[f"{vendor.name}_bot"].seeds:
        (target, _), *messages = messages_of(seed)
        dialect = open_dialect(vendor, target.decode())
        assert not isinstance(dialect, Refused), dialect
        steps = [step for payload, is_text in messages for step in dialect.decode(payload, is_text)]
        assert any(isinstance(step, Text) for step in steps)
        assert not [step for step in steps if isinstance(step, Invalid) or (isinstance(step, Reply) and step.refused)]


def test_the_seed_of_a_timeline_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "20260101T000000Z-c1-0123456789ab.jsonl"
    path.write_bytes(TARGETS["timeline"].seeds[0])
    problems = read_recording(path).problems
    assert [problem for problem in problems if not problem.endswith("No such file or directory")] == []


@pytest.mark.slow
def test_a_pickle_that_runs_code_would_be_noticed(tmp_path: Path) -> None:
    import pickle

    assert not ran_code()
    pickle.loads(pickle_that_runs(tmp_path / "ran")).close()
    assert (tmp_path / "ran").exists(), "the seed of the target `speakers` proves nothing"


@pytest.mark.slow
def test_the_command_writes_what_it_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fuzz.json"
    assert main(["esl", "--inputs", "300", "--json", str(out)]) == 0
    assert main(["ari", "--inputs", "200", "--json", str(out)]) == 0
    assert main(["esl", "--inputs", "150", "--seed", "2", "--json", str(out)]) == 0
    assert main(["esl", "--inputs", "150", "--seed", "2", "--json", str(out)]) == 0, "the same again adds nothing"
    whole = json.loads(out.read_text())
    told = whole["targets"]
    assert (told["esl"]["inputs"], told["ari"]["inputs"], whole["inputs"]) == (450, 200, 650)
    assert told["esl"]["findings"] == 0 and told["esl"]["runs"][0]["machine"]["python"]
    assert "esl" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_fails_when_something_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TARGETS, "broken", FuzzTarget("broken", broken, (b"deep",)))
    assert main(["broken", "--inputs", "5", "--json", str(tmp_path / "f.json")]) == 1
    (finding,) = json.loads((tmp_path / "f.json").read_text())["targets"]["broken"]["runs"][0]["findings"]
    assert b"deep" in ast.literal_eval(finding["input"]) and "RecursionError" in capsys.readouterr().out


def test_an_unknown_target_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nosuch"])
    assert "no target is named nosuch" in capsys.readouterr().err


@pytest.mark.slow
def test_help_teaches() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "torture.fuzz", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "--guided" in told.stdout and "genesys" in told.stdout and "64 MB" in told.stdout


def test_every_known_input_is_tried_first() -> None:
    seen: list[bytes] = []
    target = FuzzTarget("esl", seen.append, TARGETS["esl"].seeds)
    Judge(target)
    fuzz(target, 10, seed=1)
    known = known_inputs(target)
    assert seen[len(known) : 2 * len(known)] == known


def test_an_input_of_separators_is_no_hang() -> None:
    """33,000 messages of nothing took 160 ms, 5 µs each."""
    assert len(list(messages_of(SEPARATOR * 33_000))) == len(list(messages_of(SEPARATOR * 999)))
    assert list(messages_of(b"a" + SEPARATOR + b"\0b")) == [(b"a", True), (b"b", False)]
