"""The engines of `engines.others`: speech servers of other projects, each under a name that the operator chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from telephony_tts.engines.others.settings import OtherEngineSettings
from telephony_tts.engines.plugin import EnginePlugin, Package, Setup, has_module
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable, how_to_get

if TYPE_CHECKING:
    from telephony_tts.engines.others.other_engine import OtherEngine
    from telephony_tts.engines.others.speech_server import SpeechServer

Others = dict[str, OtherEngineSettings]


class _Others(EnginePlugin[Others]):
    name = "others"
    settings = Others
    rank = 80
    packages = tuple(Package(name, "others", "speech servers of other projects") for name in ("httpx2", "protobuf"))
    paths = ("*.ca_file", "*.voices.*.wav")
    are_named_by_operator = True

    def environment(self, section: Mapping[Any, Any]) -> Mapping[str, str]:
        named = [name for name, each in section.items() if isinstance(name, str) and isinstance(each, dict)]
        return {f"TELEPHONY_TTS_KEY_{name.upper().replace('-', '_')}": f"{name}.key" for name in named}

    def conflicts(self, own: Others, plugins: Sequence[EnginePlugin[Any]]) -> Iterator[str]:
        for name in own:
            if any(name == each.name for each in plugins if each is not self):
                yield f"{name}: {name} is an engine of telephony-tts; choose another name"

    def of_front(self, own: Others, part: Callable[[int], int], n_fronts: int) -> Others:
        for name, each in own.items():
            if each.slots is not None and each.slots < n_fronts:
                raise ConfigError(
                    f"engines.others.{name}.slots is {each.slots}, too few for {n_fronts} processes "
                    "(server.processes): each process needs one. Set server.processes to at most "
                    f"{each.slots}"
                )
        return {name: replace(each, slots=part(each.facts.slots)) for name, each in own.items()}

    def is_wanted(self, setup: Setup[Others]) -> bool:
        return True

    def build(self, setup: Setup[Others]) -> OtherEngine:
        return other_engine(setup.name, setup.settings[setup.name])


PLUGIN = _Others()


def other_engine(name: str, settings: OtherEngineSettings) -> OtherEngine:
    """A speech server of another project. Its packages are an extra, and imported only when one is configured."""
    is_grpc = settings.kind in ("triton", "cosyvoice_grpc")
    for package in ("grpc", "google.protobuf") if is_grpc else ("httpx2",):
        if not has_module(package):
            raise EngineUnavailable(f"engines.others.{name} needs {package}: {how_to_get('others')}")
    from telephony_tts.engines.others.other_engine import OtherEngine

    return OtherEngine(name, settings, _speech_server(settings, f"engines.others.{name}"))


def _speech_server(settings: OtherEngineSettings, setting: str) -> SpeechServer:
    if settings.kind == "triton":
        from telephony_tts.engines.others.triton import TritonModel

        return TritonModel(settings, setting)
    if settings.kind == "cosyvoice_grpc":
        from telephony_tts.engines.others.cosyvoice_grpc import CosyVoiceGrpc

        return CosyVoiceGrpc(settings, setting)
    if settings.websocket:
        from telephony_tts.engines.others.omni_socket import OmniSocket

        return OmniSocket(settings, setting)
    from telephony_tts.engines.others.http_speech import HttpSpeech

    return HttpSpeech(settings, setting)
