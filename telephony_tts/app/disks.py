"""The free space of the folders that the server writes to."""

from __future__ import annotations

import asyncio
import shutil

from telephony_tts.app.config import Config
from telephony_tts.app.engines import voice_folders
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.daemon_pool import DaemonPool

_log = logs.get(__name__)

_MB = 1_000_000
_DISK_CHECK_S = 15.0
_LOW_DISK_MB = 200
"""Below this much free space a warning is logged. Recordings of 100 calls, 32 kB/s each, fill it in a minute."""


async def watch_disks(config: Config) -> None:
    """Measure the free space of the folders that the server writes to, beside the event loop: a disk of the network may
    hang."""
    folders = {
        "recordings": config.recordings.folder,
        "phrases": config.phrases.folder if config.phrases.enabled else None,
        "voices": next((str(folder) for folder in voice_folders(config)), None),
    }
    written = {name: folder for name, folder in folders.items() if folder is not None}
    pool = DaemonPool(1, "disks")
    low: set[str] = set()
    try:
        while written:
            for name, folder in written.items():
                try:
                    usage = await asyncio.wrap_future(pool.submit(shutil.disk_usage, folder))
                except (OSError, RuntimeError):
                    continue  # it does not exist yet, or no thread could be started
                metrics.DISK_FREE_BYTES.labels(name).set(usage.free)
                metrics.DISK_SIZE_BYTES.labels(name).set(usage.total)
                if usage.free >= _LOW_DISK_MB * _MB:
                    low.discard(name)
                elif name not in low:
                    low.add(name)
                    _log.warning("disk_nearly_full", what=name, folder=folder, free_mb=usage.free // _MB)
            await asyncio.sleep(_DISK_CHECK_S)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
