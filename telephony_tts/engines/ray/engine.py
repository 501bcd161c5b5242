"""The engine whose replicas Ray Serve runs. A process beside this one watches where they are (`watcher`)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from telephony_tts.engines.ray.replicas import ReplicaEntry, usable
from telephony_tts.engines.remote.client import RemoteEngine
from telephony_tts.runtime import logs

_log = logs.get(__name__)

BACKOFF_S = (0.2, 1.0, 2.0, 5.0, 10.0)
"""Pauses before each new watcher after failures in a row; the last one repeats."""
TERM_S = 2.0
LINE_BYTES = 4_000_000
_ROOT = str(Path(__file__).resolve().parents[3])
"""Where this package lies: the watcher runs the same files."""
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from telephony_tts.engines.ray.watcher import main; main()"
)


class RayEngine(RemoteEngine):
    """`address`: of the Ray cluster, as `ray.init` takes it. `app`: the application of Ray Serve. `model`: the model
    that replicas must have; None is that of most of them.

    The replicas stay in use when the cluster's head is not there: audio does not flow through Ray.
    """

    def __init__(
        self,
        name: str,
        address: str,
        app: str,
        *,
        model: str | None = None,
        start_timeout_s: float = 120.0,
        wait_ready_s: float = 10.0,
        first_audio_timeout_ms: int = 1_500,
        lost_with_peers_ms: int = 1_500,
        python: str = sys.executable,
    ) -> None:
        super().__init__(
            name,
            (),
            start_timeout_s=start_timeout_s,
            wait_ready_s=wait_ready_s,
            first_audio_timeout_ms=first_audio_timeout_ms,
            lost_with_peers_ms=lost_with_peers_ms,
        )
        self._address = address
        self._app = app
        self._model = model
        self._python = python
        self._watch: asyncio.Task[None] | None = None
        self.problem = "the cluster was not reached yet"
        """Why the replicas are not known."""
        self.refused: list[ReplicaEntry] = []
        """Replicas with another model."""

    async def start(self) -> None:
        """Wait until a replica is ready. Raises EngineUnavailable."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_replicas(), name=f"{self.name} watcher")
        try:
            await super().start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait((watch,))
        await super().close()

    def _problems(self) -> str:
        if not self.replicas and self.refused:
            return f"{len(self.refused)} replicas have another model: {self.refused[0].model}"
        return super()._problems() if self.replicas else self.problem

    async def _watch_replicas(self) -> None:
        """Run a watcher, and another one when it ends."""
        n_failed = 0
        while True:
            n_lines = 0
            try:
                n_lines = await self._run_watcher()
            except Exception as error:
                self.problem = f"the watcher failed: {str(error) or type(error).__name__}"
                _log.exception("replica_watcher_crashed", engine=self.name)
            n_failed = 0 if n_lines else n_failed + 1
            _log.warning("replica_watcher_ended", engine=self.name, why=self.problem)
            await asyncio.sleep(BACKOFF_S[min(n_failed, len(BACKOFF_S) - 1)])

    async def _run_watcher(self) -> int:
        """Returns how many lists it told."""
        try:
            child = await asyncio.create_subprocess_exec(
                self._python, "-P", "-c", _CHILD, _ROOT, self._address, self._app,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}, limit=LINE_BYTES,
            )  # fmt: skip
        except OSError as error:  # too many open files, no memory
            self.problem = f"the watcher cannot be started: {error.strerror or error}"
            return 0
        n_lists = 0
        try:
            assert child.stdout is not None
            async for line in child.stdout:
                n_lists += self._take(line)
        except ValueError as error:
            self.problem = f"the watcher sent what cannot be read: {error}"
        finally:
            with suppress(ProcessLookupError):
                child.kill()  # it holds nothing that must be put in order
            await asyncio.wait((asyncio.ensure_future(child.wait()),), timeout=TERM_S)
        return n_lists

    def _take(self, line: bytes) -> bool:
        """True for a list of replicas. Raises ValueError."""
        told: Any = json.loads(line)
        if not isinstance(told, dict) or not isinstance(told.get("replicas", []), list):
            raise ValueError("not a list of replicas")
        if "replicas" not in told:
            before, self.problem = self.problem, str(told.get("problem"))
            if self.problem != before:
                _log.warning("replicas_not_known", engine=self.name, why=self.problem)
            self._replica_changed()
            return False
        entries, refused = usable([ReplicaEntry.of(each) for each in told["replicas"]], self._model)
        for entry in refused:
            if entry not in self.refused:
                _log.error("replica_refused", engine=self.name, address=entry.address, model=entry.model)
        self.refused = refused
        self.problem = "the application has no replica"
        self.set_targets({entry.address: entry.token for entry in entries})
        _log.info("replicas_known", engine=self.name, n=len(entries), refused=len(refused))
        return True
