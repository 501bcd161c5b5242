"""What docs/cosyvoice2.md lists is what the code writes: the fields of `bench engine --json`, and engines' metrics."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.metrics import MetricWrapperBase

from telephony_tts import metrics
from telephony_tts.bench import machine, runs
from telephony_tts.bench.load import Load
from telephony_tts.bench.runs import run
from telephony_tts.cli import main
from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.cosyvoice2.core.scheduler import Stage
from telephony_tts.engines.fake import FakeEngine

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "cosyvoice2.md"


def listed(first: str) -> dict[str, list[str]]:
    """The table whose first column has that title: its other cells, by what the first has between backticks."""
    lines = iter(DOCUMENT.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            break
    next(lines)
    found: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
        assert re.fullmatch("`[^`]+`", name) and name[1:-1] not in found, line
        assert all(cells), f"an empty cell: {line}"
        found[name[1:-1]] = cells
    return found


def counted() -> set[str]:
    """The documented names of what the engine counts, by stage."""
    names, stages = listed("what"), listed("stage")
    return {name.replace("STAGE", stage) for name in names for stage in stages}


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Of a document, dotted; a list of objects is NAME[], and the engine's counters are one field."""
    if isinstance(value, dict) and not path.endswith(".counters"):
        for name, part in value.items():
            yield from fields(part, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for part in value:
            yield from fields(part, f"{path}[]")
    else:
        yield path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a tiny run with barge-ins. In a thread, its counters are known at once."""
    out = tmp_path_factory.mktemp("bench") / "out.json"
    flags = ["--random", "tiny", "--seconds", "1", "--concurrency", "2", "--turns", "2", "--no-pacing"]
    flags += ["--cancel-every", "0.01", "--set", "engines.cosyvoice2.isolation=thread", "--json", str(out)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "TOLD_WITHIN_S", 0)
        assert main(["bench", "engine", *flags]) == 0
    document: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return document


class Clinging(FakeEngine):
    """Does not let go of what it was given."""

    def stats(self) -> EngineStats:
        return EngineStats(n_running=1)


def rows_of_misfortune(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Rows of loads that failed, left something or were broken off, on a GPU and where no peak is measured anew."""
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(machine, "_forget_peak", lambda: False)

    async def measure(engine: FakeEngine) -> None:
        def say(index: int, now_ns: int) -> Utterance:
            return Utterance(f"t{index}", "abc", deadline_ns=now_ns)

        await run(engine, say, Load(1, 1, 0.1, paced=False), "cuda", rows, lambda line: None)

    async def break_off() -> None:
        engine = FakeEngine(hangs=True)
        running = asyncio.create_task(measure(engine))
        for _ in range(20):  # rounds of the loop, for the caller to have begun
            await asyncio.sleep(0)
        assert engine.n_live == 1
        running.cancel()
        await asyncio.wait([running])

    for engine in (FakeEngine(fail_after_chunks=0), Clinging()):
        asyncio.run(measure(engine))
    asyncio.run(break_off())
    return rows


def test_every_field_of_a_result_is_documented_and_every_documented_one_is_written(
    measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    on_a_gpu = {"machine": machine.machine("cuda"), "results": rows_of_misfortune(monkeypatch)}
    assert set(fields(measured)) | set(fields(on_a_gpu)) == set(listed("field"))
    at_times = {name for name, (_, meaning) in listed("field").items() if re.search("only (where|with)", meaning)}
    assert set(listed("field")) - set(fields(measured)) <= at_times, "what is there only at times says so"


def test_what_the_engine_counts_is_documented(measured: dict[str, Any]) -> None:
    (row,) = measured["results"]
    assert row["cancelled"] > 0
    assert set(row["counters"]) == counted()
    assert set(listed("stage")) == {stage.name.lower() for stage in Stage}


def test_the_table_of_files_has_each_file_of_the_engine_once() -> None:
    folder = DOCUMENT.parents[1] / "telephony_tts" / "engines" / "cosyvoice2"
    there = {str(path.relative_to(folder)) for path in folder.rglob("*.py")} - {"__init__.py"}
    there = {name for name in there if not name.endswith("/__init__.py")}
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z0-9_/]+\.py)`", row.split(" | ")[0])]
    assert sorted(named) == sorted(there)


def test_the_engines_metrics_are_documented_with_their_labels() -> None:
    ours = {
        family.name: metric
        for metric in vars(metrics).values()
        if isinstance(metric, MetricWrapperBase)
        for family in metric.describe()
    }
    engines = {name for name in ours if name.startswith(("telephony_tts_engine_", "telephony_tts_synthesis_"))}
    documented = listed("metric")
    assert set(documented) == engines
    for name, (labels, *_) in documented.items():
        names = re.findall("`([a-z]+)`", labels)
        ours[name].labels(**dict.fromkeys(names, "a test's"))  # raises for others than it has
        ours[name].remove(*["a test's"] * len(names))
