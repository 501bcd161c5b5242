"""The engine `ray`: replicas of an engine on a Ray cluster, which `telephony-tts ray up` starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from telephony_tts.engines.plugin import CommandLine, EnginePlugin, Setup
from telephony_tts.engines.ray.settings import RaySettings
from telephony_tts.engines.remote import need_grpc, remote_voices
from telephony_tts.runtime.errors import EngineUnavailable, how_to_get
from telephony_tts.runtime.schema import show

if TYPE_CHECKING:
    from telephony_tts.engines.api import Engine
    from telephony_tts.engines.ray.engine import RayEngine


class _Ray(EnginePlugin[RaySettings]):
    name = "ray"
    settings = RaySettings
    rank = 70
    modules = ("ray",)
    extra = "ray"
    is_elsewhere = True

    def missing_setting(self, own: RaySettings) -> str | None:
        return None if own.address else "address: missing (a Ray cluster, for example auto)"

    def conflicts(self, own: RaySettings, plugins: Sequence[EnginePlugin[Any]]) -> Iterator[str]:
        local = [each.name for each in plugins if not (each.is_elsewhere or each.are_named_by_operator)]
        if own.engine not in local and own != RaySettings():
            yield f"engine: {show(own.engine)} is wrong; expected one of {', '.join(local)}"

    def is_wanted(self, setup: Setup[RaySettings]) -> bool:
        return setup.settings.address is not None

    def build(self, setup: Setup[RaySettings]) -> RayEngine:
        """The front itself imports no Ray: the process that watches the replicas does."""
        need_grpc()
        need_ray()
        from telephony_tts.engines.ray.engine import RayEngine

        own = setup.settings
        assert own.address is not None
        return RayEngine(
            self.name,
            own.address,
            own.app,
            model=own.model,
            start_timeout_s=own.start_timeout_s,
            wait_ready_s=setup.timeouts.restart_wait_s,
            first_audio_timeout_ms=setup.timeouts.first_audio_timeout_ms,
        )

    def voice_service(self, setup: Setup[RaySettings], engine: Engine, *, is_shared: bool = False) -> Any:
        from telephony_tts.engines.ray.engine import RayEngine

        return remote_voices(engine) if isinstance(engine, RayEngine) else None

    def add_commands(self, line: CommandLine) -> None:
        from telephony_tts.engines.ray.commands import add_ray

        add_ray(line)


PLUGIN = _Ray()


def need_ray() -> None:
    """Raises EngineUnavailable where Ray Serve is not installed."""
    if not PLUGIN.is_installed():
        raise EngineUnavailable(f"replicas on Ray Serve need ray: {how_to_get('ray')}")
