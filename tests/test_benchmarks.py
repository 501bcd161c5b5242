"""Every benchmark runs in its tiny form and writes a result that another program can read. No figure is judged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from forked_process import SERVER_IMPORTS, ForkServer, fork_server

_BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
_NAMES = (
    "capacity", "doors", "first_audio", "barge_in", "pauses", "memory", "frontend", "voice_activity", "precision",
    "ratios", "floors", "voice_mail", "lexicon", "phrases", "recording", "failover", "remote_engine",
    "processes", "fleet", "fleet_local", "ops", "noise_reduction", "host_work", "intelligibility", "kokoro",
    "neighbours",
)  # fmt: skip

_BY_THE_CLOCK = ("first_audio", "barge_in", "pauses", "ops", "fleet_local")
"""Their calls are cut, or their engine is taken for lost, where other tests take all the CPU time."""
_REAL = "pauses"
"""The run whose script, servers and callers are processes of their own from their start. The others are forked."""
_IMPORTS = (
    "harness.synthesis", "gpu.side", "telephony_tts.engines.cosyvoice2.core.core", "telephony_tts.bench.runs",
    "telephony_tts.engines.cosyvoice2.service", "harness.load_generator", *SERVER_IMPORTS,
)  # fmt: skip
"""What the scripts, their servers and their callers import. PyTorch takes four seconds of CPU, a server three."""
_WITHIN_S = 330
"""For a run that ends: where other tests take the CPU time, the longest one takes minutes."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the benchmarks read Linux's /proc"),
]


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkServer]:
    """A fork server with the imports of the scripts and of their servers, which are forked too."""
    with fork_server(*_IMPORTS, folders=[_BENCHMARKS], nested=True) as programs:
        yield programs


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forked: ForkServer
) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """The results by name of the tiny runs that the chosen tests judge. Two runs go at a time, since half of a run is
    waiting."""

    def run(name: str) -> dict[str, Any]:
        out = folder / f"{name}.json"
        command = [sys.executable, str(_BENCHMARKS / f"{name}.py"), "--quick", "--json", str(out)]
        start = subprocess.run if name == _REAL else forked.run
        # In a session of its own: a run that is late is killed with its servers.
        done = start(command, capture_output=True, text=True, timeout=_WITHIN_S, start_new_session=True)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found

    folder = tmp_path_factory.mktemp("bench")
    with ThreadPoolExecutor(2) as pool:
        chosen = {item.callspec.params.get("result") for item in request.session.items if hasattr(item, "callspec")}
        yield {name: pool.submit(run, name) for name in _NAMES if name in chosen}
        pool.shutdown(cancel_futures=True)


_MARKED = [pytest.param(name, marks=pytest.mark.timed) if name in _BY_THE_CLOCK else name for name in _NAMES]


@pytest.fixture(scope="module", params=_MARKED)
def result(request: pytest.FixtureRequest, runs: dict[str, Future[dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
    """The name of a benchmark and the result of its tiny run."""
    return request.param, runs[request.param].result()


def test_a_result_has_machine_commit_and_settings(result: tuple[str, dict[str, Any]]) -> None:
    _, document = result
    assert set(document) == {"machine", "commit", "settings", "results"}
    assert document["machine"]["cores"] >= 1 and document["machine"]["libraries"]["websockets"]
    assert document["settings"]["quick"] is True


def test_a_result_names_no_path_of_this_machine(result: tuple[str, dict[str, Any]]) -> None:
    _, document = result
    assert not re.search(r"/(home|root|tmp|work|usr)/", json.dumps(document))


def test_a_result_has_figures(result: tuple[str, dict[str, Any]]) -> None:
    name, document = result
    results = document["results"]
    if name == "capacity":
        assert results["cost"]["rounds"][0]["ours"]["ours"]["frames"] > 0
        assert results["ramp"][0]["frames"] > 0 and results["ramp"][0]["errors"] == []
    elif name == "processes":
        assert [w["processes"] for w in results["windows"]] == [1, 2]
        assert all(w["frames"] > 0 and w["errors"] == [] for w in results["windows"])
    elif name == "first_audio":
        assert results[0]["seen_ms"]["n"] > 0 and results[0]["failed"] == []
    elif name == "barge_in":
        assert all(w["clears"] > 0 and w["frames_judged"] > 0 and w["stale_frames"] == 0 for w in results)
    elif name == "pauses":
        assert all(w["pauses"] > 0 and w["first_frame_ms"]["n"] > 0 == w["stray_frames"] for w in results)
        assert not any(w["failed"] for w in results)
    elif name == "lexicon":
        assert all(us > 0 for us in results["find_us"]["10000 entries"].values())
    elif name == "phrases":
        assert [row["kept"] for row in results] == ["off", "memory", "disk"]
        assert all(row["found"] == {row["kept"]: row["ms"]["n"]} for row in results[1:])
    elif name == "failover":
        by_fault = {row["fault"]: row for row in results}
        assert len(by_fault) == 7 and all(row["told_ms"]["n"] == 2 and row["words_lost"] == 0 for row in results)
        assert by_fault["none"]["engines"] == "faulty" and by_fault["dead, circuit open"]["engines"] == "spare"
        assert by_fault["dead"]["told_ms"]["p50"] >= 300
        assert by_fault["fails in the middle"]["engines"] == "faulty+spare"
        assert by_fault["fails in the middle, estimated"]["words_again"] > 0 == by_fault["none"]["words_again"]
    elif name == "remote_engine":
        assert set(results["summary"]) == {"local", "unix", "tcp"}
        assert all(row["turns"] > 0 and row["ratio"] > 0 and row["failed"] == 0 for row in results["summary"].values())
    elif name == "ops":
        others = results["engines_of_others"]
        assert len(others["rows"]) == 4
        for kind in ("openai", "triton"):
            assert others[kind]["failed"] == 0 and others[kind]["rounds"][0]["direct"]["seen_ms"]["p50"] >= 50
            assert others[kind]["rounds"][0]["through"]["seen_ms"]["p50"] >= 50
            cancel = others[kind]["cancel"]
            assert cancel["errors"] == [] and cancel["seen"] == cancel["clears"] == 8
        reload = results["reload"]
        assert reload["wrong_turns"] == 0 and reload["errors"] == [] and reload["turns"] >= reload["calls"]
        assert reload["reloads"] >= 2 and all(n >= 1 for n in reload["files_loaded"].values())
        watching = results["watching"]
        assert watching["scraped"]["scrape_ms"]["p50"] > 0 and watching["scraped"]["n_series"] > 50
        assert watching["traced"][0]["n_spans"] > 0 and watching["traced"][0]["ratio"] > 0
    elif name == "doors":
        assert all(row["n"] > 0 and row["p50"] > 0 for row in results["first_audio"].values())
        assert results["cost"]["failed"] == 0
        assert all(row["ms_per_audio_s"] > 0 and row["ratio"] > 0 for row in results["cost"]["rows"].values())
        for row in results["interruption"].values():
            assert row["last_audio_ms"]["n"] > 0 and row["unanswered"] == row["stale_bytes"] == 0
        assert results["http"]["calls"]["frames"] > 0 and results["http"]["streams"]["complete"] == 3
    elif name == "memory":
        assert len(results["calls"]["rss_kib"]) == 4 and min(results["calls"]["rss_kib"]) > 1000
        assert results["in_process"]["alive"] == {}
    elif name == "recording":
        assert results["summary"]["ratio"] > 0 and results["summary"]["on"]["ms_per_call_s"] > 0
        assert all(one["on"]["recorded_mb"] > 0 == one["off"]["recorded_mb"] for one in results["rounds"])
    elif name == "kokoro":
        assert [row["way"] for row in results["load and memory"]] == ["kernels", "onnxruntime"]
        assert [(row["way"], row["spoken in"]) for row in results["utterances"]] == [
            (way, kind) for way in ("kernels", "onnxruntime") for kind in ("parts", "whole clauses")
        ]
        assert all(row["CPU for a second, s"] > 0 < row["first audio p50, s"] for row in results["utterances"])
        assert all(row["n"] == 2 for row in results["cancel until the core is free, ms"])
    elif name == "host_work":
        (row,), (median,) = results["rounds"], results["medians"]
        assert (row["callers"], row["turns"], row["failed"]) == (2, 2, 0)
        assert 50 < median["batches_ms"] < median["first_audio_ms_p50"] <= median["first_audio_ms_p95"]
    elif name == "fleet":
        assert results["simulated"] is True and results["calls_on_one_replica"] == 8
        assert results["replicas_needed"] == 2 and all(row["reaches"] for row in results["tried"])
        assert all(row["turns"] > 0 < row["busy"] < 1 for row in results["tried"])
    elif name == "fleet_local":
        assert results["kill"]["rows"][0]["measured"] == "0 of 3" and results["restart"]["rounds"][0]["frames"] > 100
        assert results["drain"]["statuses"] == [0] and results["drain"]["calls"]["cut"] == []
        assert results["drain"]["calls"]["done"] > 3 and results["drain"]["calls"]["frames"] > 100
        assert all(one["happened"]["back_ms"] > 0 for one in results["kill"]["rounds"])
        assert results["restart"]["rounds"][0]["happened"]["statuses"] == [0, 0]
    elif name == "voice_activity":
        assert all(us > 0 for part in ("us_per_20_ms", "us_per_window") for us in results[part].values())
    elif name == "noise_reduction":
        assert all(row["reduced"]["afftdn"]["si_sdr_db"] > 1 < row["reduced"]["afftdn"]["pauses_db"] for row in results)
    elif name == "intelligibility":
        # The first run installs the recogniser.
        assert [row["voice"] for row in results] == ["kokoro/zm_yunxi", "kokoro/zm_yunxi", "espeak/cmn"]
        ours, whole, espeak = (row["rates"]["caller"]["syllables"]["percent"] for row in results)
        assert ours < 30 > whole and espeak > 80 and results[1]["joints"]["length_ratio"]["p50"] > 0.9
        assert results[0]["lines"][0]["engine"]["heard"] and results[0]["sound"]["leading_ms"]["p50"] < 50
    elif name == "neighbours":
        brackets, ssml = results["brackets"], results["ssml readings"]
        assert brackets["requests"] == 3 and ssml["answered"] == "2 × 200"
        assert all(row["late_ms"]["n"] > 20 and row["healthz_ms"]["n"] > 5 for row in results.values())
    elif name == "voice_mail":
        assert results["beeps"]["all"]["n"] == 6 and results["beeps"]["all"]["missed"] == 0
        assert results["without_a_beep"]["speech"]["seconds"] > 5 and all(results["us_per_20_ms"].values())
    elif name == "precision":
        assert results["lm"]["n_steps"] == 80 and results["speech"]["seconds"] == 3.2
        for precision in ("bfloat16", "int8"):
            ids, speech = results["lm"][precision], results["speech"][precision]
            # Of a tiny model: loud enough to be real, and no other utterance.
            assert -60 < ids["logits_db"] < -20 and ids["greedy"] > 0.9 and ids["overlap"] > 0.9
            assert -60 < speech["mel_db"] < -20 and -80 < speech["vocoder_db"] < -30
            assert speech["chain_same_pitch_db"] < -30 and speech["chain_db"] <= speech["chain_db_worst"]
    elif name == "ratios":
        assert set(results["median"]) == {"now", "formula"} and results["ratio"]["now"]["rtf"] == 1
        # Two blocks: a block that was computed once more must not be spoken once more.
        assert all(side["rtf"] > 0 and side["audio_s"] == pytest.approx(3.2) for side in results["median"].values())
    elif name == "floors":
        assert all(speed > 0 for speed in results["speeds"].values())
        assert set(results["stages"]) == {"prompt", "language model", "flow", "vocoder"}
        assert all(0 < stage["floor_s"] < stage["measured_s"] for stage in results["stages"].values())
        maps = {name: stage["giga_products"].get("int8 maps", 0) for name, stage in results["stages"].items()}
        # 25 steps with one row each go through the same layers as the prompt's rows.
        assert maps["prompt"] / 20 < maps["language model"] < maps["prompt"] * 20
    else:
        parts = ("segmenter", "ssml_off_on", "encoder", "session")
        assert all(figure > 0 for part in parts for figure in results[part].values())


_HELP_OF_EACH = """
import contextlib, io, json, runpy, sys

folder, *names = sys.argv[1:]
sys.path.insert(0, folder)  # as for a script of this folder
told = {}
for name in names:
    sys.argv = [f"{folder}/{name}.py", "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        runpy.run_path(sys.argv[0], run_name="__main__")
    told[name] = out.getvalue()
print(json.dumps(told))
"""


def test_help_has_examples(tmp_path: Path, forked: ForkServer) -> None:
    """All in one process, because most of each is what it imports."""
    script = tmp_path / "help_of_each.py"
    script.write_text(_HELP_OF_EACH, encoding="utf-8")
    command = [sys.executable, str(script), str(_BENCHMARKS), *_NAMES]
    done = forked.run(command, capture_output=True, text=True, timeout=_WITHIN_S, start_new_session=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [name for name in _NAMES if f"python benchmarks/{name}.py" not in told[name]] == []


def test_make_bench_runs_every_measuring_benchmark_with_existing_flags() -> None:
    told = subprocess.run(
        ["make", "-n", "bench"], cwd=_BENCHMARKS.parent, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    measuring = {path.name for path in _BENCHMARKS.glob("*.py")} - {"schedule.py", "fleet.py", "gpu_check.py"}
    assert set(re.findall(r"benchmarks/(\w+\.py)", told)) == measuring
    (command,) = re.findall(r"telephony-tts bench engine (.*)", told.replace("\\\n", " "))
    words = command.split()
    flags = dict(zip(words[::2], words[1::2], strict=True))
    help_text = subprocess.run(
        [sys.executable, "-m", "telephony_tts", "bench", "engine", "--help"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert [flag for flag in flags if flag not in help_text] == []
    assert (_BENCHMARKS.parent / flags["--config"]).is_file()
    assert Path(flags["--json"]).parent == Path("benchmarks/results")
