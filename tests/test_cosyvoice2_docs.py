"""docs/cosyvoice2.md and docs/benchmarks.md match the code: metrics, and the fields of `bench engine --json`."""

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

from telephony_tts.bench import machine, runs
from telephony_tts.bench.load import Load
from telephony_tts.bench.runs import run
from telephony_tts.cli.main import main
from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.cosyvoice2.core.scheduler import Stage
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime import metrics

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
ENGINE_PAGE = ROOT / "docs" / "cosyvoice2.md"
BENCHMARKS_PAGE = ROOT / "docs" / "benchmarks.md"


def listed(first: str, page: Path = ENGINE_PAGE) -> dict[str, list[str]]:
    """The page's table whose first column has the title `first`: its other cells by the name in the first cell."""
    lines = iter(page.read_text(encoding="utf-8").splitlines())
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
    """The documented names of the engine's counters, for each stage."""
    names, stages = listed("what"), listed("stage")
    return {name.replace("STAGE", stage) for name in names for stage in stages}


def fields(value: Any, path: str = "") -> Iterator[str]:
    """The dotted names of a document's fields. A list of objects is NAME[]; the engine's counters are one field."""
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
    """The result of a tiny run with barge-ins. With `isolation: thread` its counters are known at once."""
    out = tmp_path_factory.mktemp("bench") / "out.json"
    flags = ["--random", "tiny", "--seconds", "1", "--concurrency", "2", "--turns", "2", "--no-pacing"]
    flags += ["--cancel-every", "0.01", "--set", "engines.cosyvoice2.isolation=thread", "--json", str(out)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "TOLD_WITHIN_S", 0)
        assert main(["bench", "engine", *flags]) == 0
    document: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return document


class LeakyEngine(FakeEngine):
    """Reports an utterance that is still running after its end."""

    def stats(self) -> EngineStats:
        return EngineStats(n_running=1)


def rows_of_faulty_loads(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Rows of loads that failed, leaked an utterance or were interrupted, on a GPU and without a peak reset."""
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(machine, "_forget_peak", lambda: False)

    async def measure(engine: FakeEngine) -> None:
        def say(index: int, now_ns: int) -> Utterance:
            return Utterance(f"t{index}", "abc", deadline_ns=now_ns)

        await run(engine, say, Load(1, 1, 0.1, paced=False), "cuda", rows, lambda line: None)

    async def interrupt() -> None:
        engine = FakeEngine(hangs=True)
        running = asyncio.create_task(measure(engine))
        for _ in range(20):  # iterations of the event loop: after them the caller has begun
            await asyncio.sleep(0)
        assert engine.n_live == 1
        running.cancel()
        await asyncio.wait([running])

    for engine in (FakeEngine(fail_after_chunks=0), LeakyEngine()):
        asyncio.run(measure(engine))
    asyncio.run(interrupt())
    return rows


def test_every_field_of_a_result_is_documented_and_every_documented_one_is_written(
    measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    documented = listed("field", BENCHMARKS_PAGE)
    on_a_gpu = {"machine": machine.machine("cuda"), "results": rows_of_faulty_loads(monkeypatch)}
    assert set(fields(measured)) | set(fields(on_a_gpu)) == set(documented)
    conditional = {name for name, (_, meaning) in documented.items() if re.search("only (where|with|if)", meaning)}
    assert set(documented) - set(fields(measured)) <= conditional, "a conditional field must say when it is present"


def test_the_counters_of_the_engine_are_documented(measured: dict[str, Any]) -> None:
    (row,) = measured["results"]
    assert row["cancelled"] > 0
    assert set(row["counters"]) == counted()
    assert set(listed("stage")) == {stage.name.lower() for stage in Stage}


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
