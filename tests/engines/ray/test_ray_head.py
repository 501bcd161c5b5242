"""The head of a Ray cluster: what a front does when it dies, the ways to reach it, and a Serve config file."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from clean_run import until
from conformance import joined, speak
from ray_rig import ROOT, RayCluster, ray_cluster, ray_python, variables
from test_ray_engine import SLOW, TEXT, attached, heard_of, run

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.fake.engine import render
from telephony_tts.engines.ray.engine import RayEngine

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def free_ports(n: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


PORTS = free_ports(2)
BY_CLIENT = f"ray://127.0.0.1:{PORTS[0]}"
CRASHES = """
import os, pathlib, signal, sys

file = pathlib.Path({file!r})
if "--mode=specific-server" in sys.orig_argv and (left := int(file.read_text())) > 0:
    file.write_text(str(left - 1))
    os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with how many of the processes that the head starts for its clients will crash, as gRPC makes them."""
    folder = tmp_path_factory.mktemp("crashes")
    file = folder / "left"
    file.write_text("0")
    (folder / "sitecustomize.py").write_text(CRASHES.format(file=str(file)))
    return file


@pytest.fixture(scope="module")
def cluster(crashes: Path) -> Iterator[RayCluster]:
    client_port, dashboard_port = PORTS
    crashing = {"PYTHONPATH": f"{crashes.parent}{os.pathsep}{ROOT}"}
    with (
        pytest.MonkeyPatch.context() as patch,
        ray_cluster(crashing, ray_client_server_port=client_port, dashboard_port=dashboard_port) as running,
    ):
        for name, value in variables().items():
            patch.setenv(name, value)  # for the watchers
        running.add_node(4)
        yield running


def test_a_serve_config_file_starts_replicas_that_fronts_find(cluster: RayCluster, tmp_path: Path) -> None:
    """`deploy/ray/serve.yaml` as it is, but for the name of the application."""
    document = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text(encoding="utf-8"))
    (application,) = document["applications"]
    application["name"] = application["args"]["set"]["engines.ray.app"] = "by-file"
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(document))
    serve = str(ray_python().with_name("serve"))
    deployed = subprocess.run(
        [str(ray_python()), serve, "deploy", "--address", f"http://127.0.0.1:{PORTS[1]}", str(file)],
        capture_output=True, text=True, timeout=100, env=variables(), cwd=ROOT, check=False,
    )  # fmt: skip
    assert deployed.returncode == 0, deployed.stderr[-2000:]

    async def work() -> None:
        async with attached(cluster, "by-file", 2, start_timeout_s=60.0) as engine:
            assert np.array_equal(joined(await speak(engine, Utterance("u", TEXT))), render(TEXT))

    run(work)
    down = cluster.run("down", "engines.ray.app=by-file")
    assert down.returncode == 0 and "stopped" in down.stdout


def test_the_address_of_rays_client_serves_commands_and_fronts(cluster: RayCluster) -> None:
    settings = ("engines.ray.engine=fake", "engines.ray.app=client")
    up = cluster.run("up", *settings, address=BY_CLIENT)
    assert up.returncode == 0 and "1 running" in up.stdout, (up.stdout, up.stderr)

    async def work() -> None:
        engine = RayEngine("ray", BY_CLIENT, "client", start_timeout_s=60.0, python=str(ray_python()))
        await engine.start()
        try:
            assert np.array_equal(joined(await speak(engine, Utterance("u", TEXT))), render(TEXT))
        finally:
            await engine.close()

    run(work)
    status = cluster.run("status", *settings, address=BY_CLIENT)
    assert status.returncode == 0 and "client: running" in status.stdout, status.stderr
    down = cluster.run("down", *settings, address=BY_CLIENT)
    assert down.returncode == 0 and "stopped" in down.stdout, down.stderr


def test_a_client_whose_process_at_the_head_crashes_tries_again(cluster: RayCluster, crashes: Path) -> None:
    """It takes half a minute: so long Ray's client waits for the log of the process that crashed."""
    crashes.write_text("1")
    status = cluster.run("status", "engines.ray.app=nowhere", address=BY_CLIENT)
    assert crashes.read_text() == "0" and status.returncode == 1
    assert "nowhere: not running; start it" in status.stdout, status.stderr


def test_calls_go_on_while_the_head_is_away_and_a_new_head_is_found(cluster: RayCluster) -> None:
    """The last test of this file: it kills the head."""
    long = " ".join([TEXT] * 5)
    # Two CPUs: the head has one.
    settings = ("engines.ray.engine=fake", "engines.ray.app=headless", "engines.ray.replicas=2", "engines.ray.cpus=2",
                *SLOW)  # fmt: skip
    up = cluster.run("up", *settings)
    assert up.returncode == 0, (up.stdout, up.stderr)

    async def work() -> None:
        async with attached(cluster, "headless", 2) as engine:
            streams = [engine.synthesize(Utterance(str(n), long)) for n in range(4)]
            takers = [asyncio.create_task(heard_of(stream)) for stream in streams]
            await until(lambda: engine.stats().n_running == 4, "all speak")
            await asyncio.to_thread(cluster.kill_head)
            for taker in takers:
                assert np.array_equal(joined(await taker), render(long)), "nothing was cut"
            # Longer than a replica is remembered without news, and than the directory's answers may take.
            for n in range(6):
                chunks = await speak(engine, Utterance(f"later {n}", TEXT))
                assert np.array_equal(joined(chunks), render(TEXT))
            assert len(engine._ready) == 2, "both replicas are used"
            await asyncio.to_thread(cluster.start_head)
            before = {replica.target for replica in engine.replicas}
            await asyncio.to_thread(cluster.remove_node, 0)  # nodes of the old head have to be started again too
            await asyncio.to_thread(cluster.add_node, 4)
            again = await asyncio.to_thread(cluster.run, "up", *settings)
            assert again.returncode == 0, (again.stdout, again.stderr)
            await until(lambda: len(engine._ready) == 2, "the new replicas", 60)
            assert before.isdisjoint({replica.target for replica in engine.replicas})
            assert np.array_equal(joined(await speak(engine, Utterance("u", TEXT))), render(TEXT))

    run(work, within_s=200)
