"""The section `engines.ray`: where replicas on Ray Serve are, and how many. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from telephony_tts.runtime.schema import Between, Spelt

RAY_ADDRESS = Spelt(
    r"auto|(ray://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}",
    "auto for the Ray cluster of this machine, HOST:PORT of its head such as 10.0.0.2:6379, or ray://HOST:10001",
)


@dataclass(frozen=True, slots=True)
class RaySettings:
    """An engine whose replicas Ray Serve runs. Without `address` it is off. `engine` and what follows are for
    `telephony-tts ray up`; without `max_replicas` the number of replicas is fixed."""

    address: Annotated[str | None, RAY_ADDRESS] = None
    app: Annotated[str, Spelt(r"[A-Za-z0-9_-]{1,60}", "letters, digits, - and _")] = "telephony-tts"
    model: str | None = None
    start_timeout_s: Annotated[float, Between(0.1, 3_600)] = 120.0
    engine: str = "cosyvoice2"
    replicas: Annotated[int, Between(1, 10_000)] = 1
    max_replicas: Annotated[int | None, Between(1, 10_000)] = None
    cpus: Annotated[float, Between(0, 1024)] = 1.0
    gpus: Annotated[float, Between(0, 64)] = 0.0
    target_load: Annotated[float, Between(0.05, 1)] = 0.45
    replica_utterances: Annotated[int, Between(1, 10_000)] = 16
    upscale_delay_s: Annotated[float, Between(0, 3_600)] = 2.0
    downscale_delay_s: Annotated[float, Between(0, 86_400)] = 600.0

    def conflicts(self) -> Iterator[str]:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            yield f"max_replicas: {self.max_replicas} is below replicas ({self.replicas})"
