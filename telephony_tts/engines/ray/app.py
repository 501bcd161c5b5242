"""The application of Ray Serve: replicas that host an engine and its engine server.

`build` is the import path for a Serve config file. `telephony-tts ray up` uses it too. No request goes through Serve: a
replica listens on a port of its own and announces it to a small actor, the directory, which fronts watch.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from telephony_tts.app import config
from telephony_tts.app.config import Config
from telephony_tts.app.engines import engine_voices, served_engine
from telephony_tts.engines.api import HasVersion
from telephony_tts.engines.ray.autoscaling import replica_load, wanted_replicas
from telephony_tts.engines.ray.plugin import PLUGIN
from telephony_tts.engines.ray.replicas import ANNOUNCE_S, NAMESPACE, ReplicaEntry, ReplicaTable, directory_name
from telephony_tts.engines.remote import EngineAddress, serve_engine
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import monotonic_ns

_log = logs.get(__name__)

DEPLOYMENT = "EngineReplica"
ANSWER_S = 5.0
"""The directory answers within this time, or is looked for again."""


class ReplicaDirectory:
    """The actor that knows where the replicas are. It may be restarted: the replicas announce themselves again."""

    def __init__(self) -> None:
        self._table = ReplicaTable(monotonic_ns())

    async def announce(self, entry: Mapping[str, str]) -> None:
        self._table.announce(ReplicaEntry.of(entry), monotonic_ns())

    async def leave(self, replica_id: str) -> None:
        self._table.leave(replica_id)

    async def changed_since(self, version: int | None, wait_s: float) -> tuple[int, list[dict[str, str]]] | None:
        """(version, replicas) when the list is not `version` any more. None if it still is after `wait_s`."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        while True:
            current = self._table.current(monotonic_ns())
            if current is not None and self._table.version != version:
                return self._table.version, [entry.plain() for entry in current]
            if loop.time() >= end_s:
                return None
            await asyncio.sleep(0.05)  # announcements come every second, so there is no event for an expiry


def directory(app_name: str) -> Any:
    """The directory of an application, which is made if it is not there."""
    options = {
        "name": directory_name(app_name),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_concurrency": 1000,
    }
    return ray.remote(ReplicaDirectory).options(**options).remote()


class EngineReplica:
    """A replica: the engine `engines.ray.engine` of the configuration and its engine server.

    Serve waits for `__init__`, so a replica that is running has loaded and warmed its engine.
    """

    async def __init__(self, settings: Config) -> None:  # type: ignore[misc]  # Serve awaits it
        logs.setup(settings.log)
        ray_settings = PLUGIN.own(settings.engines)
        self._settings = ray_settings
        self._drain_s = settings.server.drain_s
        self._id = serve.get_replica_context().replica_id.unique_id
        own = replace(settings, engines=replace(settings.engines, default=ray_settings.engine))
        self._engine = served_engine(own)
        token = secrets.token_hex(32)
        self._voices = engine_voices(own, self._engine)
        self._server = serve_engine(self._engine, token=token, voices=self._voices)
        await self._engine.start()
        address = await self._server.listen(EngineAddress(host=ray.util.get_node_ip_address(), port=0))
        self._server.engine_is_loaded()
        self._entry = ReplicaEntry(self._id, str(address), token, self._engine.name, self._model())
        self._announcing = asyncio.create_task(self._announce())
        _log.info("replica_ready", replica=self._id, address=str(address), engine=self._engine.name)

    def _model(self) -> str:
        """What tells this engine's audio from another one's, without the stored voices."""
        engine = self._engine
        version = getattr(engine, "model_version", None)
        if version is None and isinstance(engine, HasVersion) and engine.voices:
            version = engine.version(engine.voices[0].name)
        return f"{engine.name} {version or ''}".strip()

    async def _announce(self) -> None:
        """Tell the directory every second that the replica is there.

        While the cluster's head is away, a question for the directory has no answer for a minute. It waits in a thread:
        this loop has the audio.
        """
        known: Any = None
        is_told = True
        while True:
            try:
                if known is None:
                    known = await asyncio.to_thread(directory, self._settings.app)
                async with asyncio.timeout(ANSWER_S):
                    await known.announce.remote(self._entry.plain())
                is_told = True
            except Exception as error:
                known = None
                if is_told:
                    _log.warning("replica_not_announced", replica=self._id, why=str(error) or type(error).__name__)
                is_told = False
            await asyncio.sleep(ANNOUNCE_S)

    async def _leave(self) -> None:
        known = await asyncio.to_thread(directory, self._settings.app)
        await known.leave.remote(self._id)

    async def check_health(self) -> None:
        """Serve calls it. Raises if the engine takes no utterances: then Serve replaces the replica."""
        stats = self._engine.stats()
        if not stats.is_ready:
            raise RuntimeError(f"the engine {self._engine.name} is not ready")
        if self._announcing.done():
            raise RuntimeError("the replica does not announce itself any more")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve calls it for `policy`."""
        stats = self._engine.stats()
        n_utterances = stats.n_queued + stats.n_running
        return {"load": replica_load(stats.load, n_utterances, self._settings.replica_utterances)}

    async def __del__(self) -> None:
        """Serve calls it once when the replica is to stop: what it speaks is finished first."""
        server = getattr(self, "_server", None)
        if server is None:
            return
        if hasattr(self, "_announcing"):
            self._announcing.cancel()
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._leave()
        except Exception:
            _log.exception("replica_not_removed", replica=self._id)
        await server.drain(self._drain_s)
        await server.close()
        if self._voices is not None:
            await self._voices.close()
        await self._engine.close()


class LoadPolicy:
    """Serve's autoscaling policy: as many replicas as bring the mean load to `target_load`."""

    def __init__(self, target_load: float) -> None:
        self._target_load = target_load

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        metrics = context.aggregated_metrics or {}
        loads = list(metrics.get("load", {}).values())
        return wanted_replicas(loads, context.current_num_replicas, self._target_load), {}


def build(args: Mapping[str, Any]) -> Any:
    """The application. `args`: `config`, the path of a settings file on the machine that builds it, and `set`, settings
    by dotted key; or `settings`, a `Config`."""
    settings = args.get("settings")
    if settings is None:
        settings = config.load(args.get("config"), dict(args.get("set", {})))
    chosen = PLUGIN.own(settings.engines)
    scale: dict[str, Any] = {"num_replicas": chosen.replicas}
    if chosen.max_replicas is not None:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=chosen.replicas,
                max_replicas=chosen.max_replicas,
                initial_replicas=chosen.replicas,
                upscale_delay_s=chosen.upscale_delay_s,
                downscale_delay_s=chosen.downscale_delay_s,
                metrics_interval_s=1.0,
                look_back_period_s=2.0,
                policy=AutoscalingPolicy(
                    policy_function=LoadPolicy, policy_kwargs={"target_load": chosen.target_load}
                ),
            )
        }
    deployment = serve.deployment(
        name=DEPLOYMENT,
        ray_actor_options={"num_cpus": chosen.cpus, "num_gpus": chosen.gpus},
        health_check_period_s=2.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=settings.server.drain_s + 10.0,
        **scale,
    )(EngineReplica)
    return deployment.bind(settings)
