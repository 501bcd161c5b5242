"""Replicas of an engine on a real Ray cluster: speech, faults, scaling, and a front that comes and goes.

The front runs here, without Ray. All tests share the cluster, and each has an application of its own unless it takes
`slow_app`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clean_run import PATIENCE, until
from conformance import Subject, assert_keeps_the_contract, joined, speak
from ray_rig import RayCluster, ray_cluster, ray_command, ray_python, variables

from telephony_tts.engines.api import EngineStats, Utterance
from telephony_tts.engines.fake.engine import FakeEngine, render
from telephony_tts.engines.ray.engine import RayEngine
from telephony_tts.runtime.errors import EngineUnavailable, ReplicaLost

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

TEXT = "Thank you for calling, how can I help you today?"
LONG = " ".join([TEXT] * 20)
SLOW = ("engines.fake.rtf=1", "engines.fake.first_audio_ms=20")
"""The fake engine in real time."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch, ray_cluster(num_cpus=4) as running:
        for name, value in variables().items():
            patch.setenv(name, value)  # for the watchers
        running.add_node(4)
        yield running


@pytest.fixture(scope="module")
def slow_app(cluster: RayCluster) -> Iterator[str]:
    """The name of an application with two replicas in real time."""
    with cluster.application("slow-app", "engines.ray.replicas=2", *SLOW):
        yield "slow-app"


def engine_of(cluster: RayCluster, app: str, **how: Any) -> RayEngine:
    settings = {"start_timeout_s": 30.0, "python": str(ray_python()), **how}
    return RayEngine("ray", cluster.address, app, **settings)


@asynccontextmanager
async def attached(cluster: RayCluster, app: str, n: int = 1, **how: Any) -> AsyncIterator[RayEngine]:
    """A started front with `n` replicas."""
    engine = engine_of(cluster, app, **how)
    await engine.start()
    try:
        await until(lambda: len(engine._ready) >= n, f"{n} replicas", 30)
        yield engine
    finally:
        await engine.close()


def run(work: Callable[[], Any], within_s: float = 100.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(within_s * PATIENCE):
            await work()

    asyncio.run(bounded())


async def heard_of(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


def replica_pids(app: str) -> list[int]:
    """The processes of an application's replicas. Ray names them in their titles."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                title = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"ServeReplica" in title and app.encode() in title:
                found.append(int(folder.name))
    return found


@pytest.mark.usefixtures("forked_watchers")
def test_replicas_keep_the_contract_and_speak_as_the_local_engine(cluster: RayCluster) -> None:
    with cluster.application("contract", "engines.ray.replicas=2") as replicas:
        assert len(replicas) == 2
        subject = Subject(max_s_of_endless_word=601.0)
        # The fake engine renders ten thousand characters without a pause, which may take seconds on a busy machine.
        patience = {"lost_with_peers_ms": 20_000, "first_audio_timeout_ms": 20_000}
        assert_keeps_the_contract(lambda: engine_of(cluster, "contract", **patience), subject)

        # A model that is demanded: the replicas have it, or they are refused by name.
        model = " ".join(replicas[0].split()[2:])
        assert model.startswith("fake ")

        async def work() -> None:
            async with attached(cluster, "contract", 2, model=model) as engine:
                local = FakeEngine()
                for utterance in (Utterance("u", TEXT), Utterance("v", LONG, speed=1.5, voice="tone")):
                    theirs, ours = await speak(engine, utterance), await speak(local, utterance)
                    assert np.array_equal(joined(theirs), joined(ours))
                    assert [t for c in theirs for t in c.timings] == [t for c in ours for t in c.timings]
            engine = engine_of(cluster, "contract", model="fake of last week", start_timeout_s=12.0)
            with pytest.raises(EngineUnavailable, match=f"2 replicas have another model: {model}"):
                await engine.start()

        run(work)
        status = cluster.run("status", "engines.ray.app=contract")
        assert status.returncode == 0 and "contract: running" in status.stdout and "2 running" in status.stdout


@pytest.mark.usefixtures("forked_watchers")
def test_replicas_and_a_node_that_die_lose_no_sentence_and_come_back(cluster: RayCluster) -> None:
    node = cluster.add_node(4)
    with cluster.application("faults", "engines.ray.replicas=3", "engines.ray.cpus=2", *SLOW):

        async def work() -> None:
            async with attached(cluster, "faults", 3) as engine:
                streams = [engine.synthesize(Utterance(str(n), TEXT)) for n in range(9)]
                for stream in streams:
                    await anext(stream)
                assert sorted(each.n_own for each in engine.replicas) == [3, 3, 3], "spread by load"
                late = [asyncio.create_task(speak(engine, Utterance(f"late {n}", TEXT))) for n in range(3)]
                await asyncio.sleep(0)
                victim = replica_pids("faults")[0]
                killed_s = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                results = await asyncio.gather(*map(heard_of, streams), return_exceptions=True)
                lost = [each for each in results if isinstance(each, BaseException)]
                assert len(lost) == 3 and all(isinstance(each, ReplicaLost) for each in lost), lost
                for chunks in await asyncio.gather(*late):
                    assert np.array_equal(joined(chunks), render(TEXT)), "whole, once"
                await until(lambda: len(engine._ready) == 3, "a new replica in its place", 60)
                print(f"capacity back after {time.monotonic() - killed_s:.1f} s")
                # A node dies while its replica speaks.
                streams = [engine.synthesize(Utterance(str(n), TEXT)) for n in range(6)]
                for stream in streams:
                    await anext(stream)
                await asyncio.to_thread(cluster.remove_node, node)
                results = await asyncio.gather(*map(heard_of, streams), return_exceptions=True)
                assert all(isinstance(each, ReplicaLost) for each in results if isinstance(each, BaseException))
                assert any(not isinstance(each, BaseException) for each in results), "the others speak on"
                assert np.array_equal(joined(await speak(engine, Utterance("u", TEXT))), render(TEXT))
                await until(lambda: len(engine._ready) == 3, "all replicas on the other nodes", 60)

        run(work)


@pytest.mark.usefixtures("forked_watchers")
def test_replicas_are_added_under_load_and_leave_without_cutting_speech(cluster: RayCluster) -> None:
    settings = (
        "engines.ray.replicas=1", "engines.ray.max_replicas=3", "engines.ray.replica_utterances=4",
        "engines.ray.target_load=0.5", "engines.ray.upscale_delay_s=0", "engines.ray.downscale_delay_s=3", *SLOW,
    )  # fmt: skip
    with cluster.application("scaling", *settings):

        async def work() -> None:
            async with attached(cluster, "scaling") as engine:
                assert len(engine.replicas) == 1
                speaking = [engine.synthesize(Utterance(str(n), LONG)) for n in range(6)]
                takers = [asyncio.create_task(heard_of(stream)) for stream in speaking]
                await until(lambda: len(engine._ready) == 3, "three replicas", 60)
                # The others end; one goes on, also if its replica is told to leave.
                last = engine.synthesize(Utterance("last", " ".join([TEXT] * 5)))
                heard = [await anext(last)]
                for taker in takers:
                    taker.cancel()
                await asyncio.gather(*takers, return_exceptions=True)
                heard += await heard_of(last)
                assert np.array_equal(joined(heard), render(" ".join([TEXT] * 5)))
                await until(lambda: len(engine.replicas) == 1, "one replica", 60)
                assert np.array_equal(joined(await speak(engine, Utterance("u", TEXT))), render(TEXT))

        run(work)


def test_a_front_that_is_started_again_finds_the_replicas_and_its_old_slots_are_free(
    cluster: RayCluster, slow_app: str
) -> None:
    async def work() -> None:
        first = engine_of(cluster, slow_app)
        await first.start()
        streams = [first.synthesize(Utterance(str(n), LONG)) for n in range(5)]
        for stream in streams:
            await anext(stream)
        begun_s = time.monotonic()
        async with attached(cluster, slow_app, 2) as second:
            await until(lambda: second.stats().n_running == 5, "the first front's sentences")
            print(f"a front is ready after {time.monotonic() - begun_s:.1f} s")
            await first.close()
            await until(lambda: replace(second.stats(), n_replicas=1) == EngineStats(), "free slots", 1.5)
            assert np.array_equal(joined(await speak(second, Utterance("u", TEXT))), render(TEXT))

    run(work)


FORGET = """
import ray
from telephony_tts.engines.ray.replicas import NAMESPACE, directory_name
ray.init(address={address!r}, namespace=NAMESPACE, log_to_driver=False)
ray.kill(ray.get_actor(directory_name({app!r})), no_restart=True)
"""


def test_a_cluster_that_forgets_its_replicas_learns_of_them_again(cluster: RayCluster, slow_app: str) -> None:
    """The actor that knows them is gone for good. Fronts keep what they know, and replicas announce themselves anew."""

    async def work() -> None:
        async with attached(cluster, slow_app, 2) as engine:
            before = engine.replicas
            stream = engine.synthesize(Utterance("u", LONG))
            heard = [await anext(stream)]
            program = FORGET.format(address=cluster.address, app=slow_app)
            forgot = await asyncio.create_subprocess_exec(str(ray_python()), "-c", program)
            assert await forgot.wait() == 0
            begun_s = time.monotonic()
            async with attached(cluster, slow_app, 2):
                print(f"a new front knows them after {time.monotonic() - begun_s:.1f} s")
            assert engine.replicas == before and len(engine._ready) == 2, "the old front has lost none"
            await stream.aclose()
            assert heard and np.array_equal(joined(await speak(engine, Utterance("v", TEXT))), render(TEXT))

    run(work)


def test_replicas_for_which_no_gpu_is_free_are_named(cluster: RayCluster) -> None:
    settings = ("engines.ray.engine=fake", "engines.ray.app=gpus", "engines.ray.gpus=1")
    up = cluster.run("up", *settings, flags=("--within-s", "4"))
    try:
        assert up.returncode == 1, (up.stdout, up.stderr)
        assert "not all replicas run after 4 s: a replica needs 1 GPU, and 0 of 0 are free" in up.stderr
        assert "Traceback" not in up.stderr
    finally:
        down = cluster.run("down", *settings)
    assert down.returncode == 0 and "gpus: stopped" in down.stdout


def test_an_application_that_does_not_run_is_named(cluster: RayCluster) -> None:
    async def work() -> None:
        engine = engine_of(cluster, "nowhere", start_timeout_s=6.0)
        with pytest.raises(EngineUnavailable, match=r"no application 'nowhere' runs .*telephony-tts ray up"):
            await engine.start()

    run(work)
    status = cluster.run("status", "engines.ray.app=nowhere")
    assert status.returncode == 1 and "nowhere: not running; start it" in status.stdout


def test_a_cluster_of_another_version_is_named(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import ray\nray.__version__ = '2.1.0'\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")

    async def work() -> None:
        engine = engine_of(cluster, "contract", start_timeout_s=8.0)
        with pytest.raises(EngineUnavailable, match=r"cannot be used: .*[Vv]ersion mismatch"):
            await engine.start()

    run(work)


def test_a_cluster_that_is_not_there_is_named() -> None:
    ended = ray_command("status", "127.0.0.1:1", within_s=30)
    assert ended.returncode == 1 and "the Ray cluster at 127.0.0.1:1 cannot be used" in ended.stderr, ended.stderr
    assert "ray start --head" in ended.stderr and "Traceback" not in ended.stderr
