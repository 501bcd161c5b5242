"""The engine `remote`: one that engine servers speak for, in other processes or on other machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from telephony_tts.engines.plugin import EnginePlugin, Package, Setup
from telephony_tts.engines.remote import connect, remote_voices
from telephony_tts.engines.remote.settings import RemoteSettings

if TYPE_CHECKING:
    from telephony_tts.engines.api import Engine
    from telephony_tts.engines.remote.client import RemoteEngine


class _Remote(EnginePlugin[RemoteSettings]):
    name = "remote"
    settings = RemoteSettings
    rank = 60
    modules = ("grpc",)
    extra = "remote"
    packages = (Package("grpcio", "remote", "engines in other processes or on other machines"),)
    paths = files = ("tls.ca", "tls.cert", "tls.key")
    is_elsewhere = True

    def environment(self, section: Mapping[Any, Any]) -> Mapping[str, str]:
        return {"TELEPHONY_TTS_ENGINE_TOKEN": "token"}

    def missing_setting(self, own: RemoteSettings) -> str | None:
        return None if own.target else "target: missing (the address of an engine server)"

    def is_wanted(self, setup: Setup[RemoteSettings]) -> bool:
        return setup.settings.target is not None

    def build(self, setup: Setup[RemoteSettings]) -> RemoteEngine:
        return connect(self.name, setup.settings.targets, setup.settings, setup.timeouts)

    def voice_service(self, setup: Setup[RemoteSettings], engine: Engine, *, is_shared: bool = False) -> Any:
        from telephony_tts.engines.remote.client import RemoteEngine

        return remote_voices(engine) if isinstance(engine, RemoteEngine) else None


PLUGIN = _Remote()
