"""The head of a Ray cluster: what a front does when it dies, the ways to reach it, and a Serve config file."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from clean_run import until
from conformance import joined, speak
from ray_rig import ROOT, RayCluster, ray_cluster, ray_command, ray_python, variables
from test_ray_engine import SLOW, TEXT, attached, heard_of, run

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.fake import render
from telephony_tts.engines.ray.engine import RayEngine

pytestmark = pytest.mark.slow


def free_ports(n: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


PORTS = free_ports(2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    client_port, dashboard_port = PORTS
    with (
        pytest.MonkeyPatch.context() as patch,
        ray_cluster(ray_client_server_port=client_port, dashboard_port=dashboard_port) as running,
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


@pytest.mark.timed  # Ray's client gives its server a limited time to start
def test_the_address_of_rays_client_serves_commands_and_fronts(cluster: RayCluster) -> None:
    address = f"ray://127.0.0.1:{PORTS[0]}"
    settings = ("engines.ray.engine=fake", "engines.ray.app=client")
    up = ray_command("up", address, *settings)
    assert up.returncode == 0 and "1 running" in up.stdout, (up.stdout, up.stderr)

    async def work() -> None:
        engine = RayEngine("ray", address, "client", start_timeout_s=60.0, python=str(ray_python()))
        await engine.start()
        try:
            assert np.array_equal(joined(await speak(engine, Utterance("u", TEXT))), render(TEXT))
        finally:
            await engine.close()

    run(work)
    status = ray_command("status", address, *settings)
    assert status.returncode == 0 and "client: running" in status.stdout, status.stderr
    down = ray_command("down", address, *settings)
    assert down.returncode == 0 and "stopped" in down.stdout, down.stderr


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
