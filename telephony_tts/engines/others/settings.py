"""The settings of an engine of `engines.others`, and the facts about each kind of server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated
from urllib.parse import urlsplit

from telephony_tts.runtime.schema import Between, OneOf


@dataclass(frozen=True, slots=True)
class Kind:
    """What a server of one kind can do.

    `schemes`: of its address. `slots`: how many requests it serves at once, as it is shipped. `stops`: whether it stops
    its work when a request is cancelled. `speeds`: the speeds that it accepts for a stream, None for none. `has_names`,
    `takes_recordings`: whether a voice is a name, or a recording with its transcript. `has_default`: whether it speaks
    without either. `lists_voices`: whether it can be asked for its names. `takes_fields`: whether `fields` can be added
    to a request. `has_websocket`: whether it also streams over a WebSocket.
    """

    schemes: tuple[str, ...] = ("http", "https")
    rate_hz: int = 24_000
    slots: int = 16
    stops: bool = True
    speeds: tuple[float, float] | None = None
    has_names: bool = True
    takes_recordings: bool = False
    needs_transcript: bool = True
    has_default: bool = False
    lists_voices: bool = False
    takes_fields: bool = True
    has_websocket: bool = False


_GRPC = ("grpc", "grpcs")
KINDS: Mapping[str, Kind] = {
    "openai": Kind(speeds=(0.25, 4.0)),
    "vllm_omni": Kind(takes_recordings=True, lists_voices=True, has_websocket=True),
    "sglang_omni": Kind(speeds=(0.25, 4.0), takes_recordings=True, lists_voices=True, has_websocket=True),
    "kokoro_fastapi": Kind(speeds=(0.25, 4.0), lists_voices=True),
    "speaches": Kind(speeds=(0.5, 2.0), lists_voices=True),
    # It computes a cancelled request to its end.
    "voxserve": Kind(takes_recordings=True, has_default=True, stops=False),
    "lighttts": Kind(has_names=False, takes_recordings=True),
    "cosyvoice_fastapi": Kind(takes_recordings=True, needs_transcript=False),
    # It refuses calls beyond its `max_conc`, which is 4.
    "cosyvoice_grpc": Kind(_GRPC, slots=4, takes_recordings=True, needs_transcript=False, takes_fields=False),
    # The recipe's models never ask whether a request was cancelled; `bls_instance_num`, which is 4, run at once.
    "triton": Kind(
        _GRPC, slots=4, stops=False, has_names=False, takes_recordings=True, has_default=True, takes_fields=False
    ),
}
DEFAULT_VOICE = "default"
"""The name here of the voice of a server that has one voice without a name."""


@dataclass(frozen=True, slots=True)
class OtherVoiceSettings:
    """A voice: a name that the server knows (`name`; without it that of this section), or the recording `wav` of a
    speaker with its transcript `text`. Without `languages` it has those of the engine."""

    name: str | None = None
    wav: str | None = None
    text: str | None = None
    languages: tuple[str, ...] = ()
    gain_db: Annotated[float, Between(-40, 40)] = 0.0


@dataclass(frozen=True, slots=True)
class OtherEngineSettings:
    """A speech server of another project. What is null has the default of its kind."""

    kind: Annotated[str | None, OneOf(tuple(KINDS))] = None
    url: str | None = None
    key: str | None = field(default=None, repr=False)
    model: str | None = None
    voices: Mapping[str, OtherVoiceSettings] = field(default_factory=dict)
    languages: tuple[str, ...] = ("en",)
    rate_hz: Annotated[int | None, Between(8_000, 96_000)] = None
    slots: Annotated[int | None, Between(1, 10_000)] = None
    stops_on_cancel: bool | None = None
    websocket: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    start_timeout_s: Annotated[float, Between(0.1, 3_600)] = 60.0
    audio_timeout_s: Annotated[float, Between(0.1, 600)] = 10.0
    request_timeout_s: Annotated[float, Between(1, 3_600)] = 60.0
    request_chars: Annotated[int, Between(20, 10_000)] = 300

    @property
    def facts(self) -> Kind:
        """Of its kind, changed by what is set."""
        facts = KINDS[self.kind or "openai"]
        return replace(
            facts,
            rate_hz=self.rate_hz or facts.rate_hz,
            slots=self.slots or facts.slots,
            stops=facts.stops if self.stops_on_cancel is None else self.stops_on_cancel,
        )

    @property
    def address(self) -> str:
        """The URL without its scheme: host and port of a gRPC server."""
        return (self.url or "").partition("://")[2].rstrip("/")

    @property
    def is_encrypted(self) -> bool:
        return (self.url or "").startswith(("https://", "grpcs://"))

    def conflicts(self) -> Iterator[str]:
        if self.kind is None:
            yield f"kind: missing; expected one of {', '.join(KINDS)}"
            return
        facts = self.facts
        scheme, _, rest = (self.url or "").partition("://")
        if scheme not in facts.schemes or not _is_address(rest):
            expected = " or ".join(f"{scheme}://" for scheme in facts.schemes)
            yield f"url: {self.url!r} is wrong; expected an address beginning with {expected}"
        elif facts.schemes == _GRPC and "/" in rest.rstrip("/"):
            yield f"url: {self.url!r} has a path; expected {scheme}://HOST:PORT"
        if self.kind == "triton" and self.model is None:
            yield "model: missing; expected the name of the model on Triton, such as cosyvoice2"
        if self.websocket and not facts.has_websocket:
            yield f"websocket: {self.kind} has no stream over a WebSocket; leave it false"
        if self.fields and not facts.takes_fields:
            yield f"fields: a request to {self.kind} has no other fields"
        if self.ca_file is not None and not self.is_encrypted:
            yield f"ca_file: the connection is not encrypted; expected url to begin with {facts.schemes[1]}://"
        if self.audio_timeout_s > self.request_timeout_s:
            longer, shorter = self.audio_timeout_s, self.request_timeout_s
            yield f"audio_timeout_s: {longer:g} is above request_timeout_s ({shorter:g}), which ends the request first"
        if not self.languages:
            yield "languages: empty; expected the languages of the voices, such as [en]"
        if not self.voices and not (facts.has_default or facts.lists_voices):
            yield "voices: missing; expected at least one (docs/engines-of-others.md)"
        for name, voice in self.voices.items():
            yield from (f"voices.{name}.{problem}" for problem in _voice_conflicts(self.kind, facts, voice))


def _is_address(rest: str) -> bool:
    """Whether what stands behind the scheme of a URL has a host and, if any, a port that is one."""
    try:
        parts = urlsplit(f"//{rest}")
        return bool(parts.hostname) and parts.port != 0 and rest.isprintable() and " " not in rest
    except ValueError:
        return False


def _voice_conflicts(kind: str, facts: Kind, voice: OtherVoiceSettings) -> Iterator[str]:
    if voice.wav is None:
        if voice.text is not None:
            yield "wav: missing; a transcript needs the recording that it belongs to"
        elif not facts.has_names and not facts.has_default:
            yield f"wav: missing; a voice of {kind} is a recording with its transcript"
        elif voice.name is not None and not facts.has_names:
            yield f"name: {kind} knows no names of voices; expected wav and text, or neither"
    elif not facts.takes_recordings:
        yield f"wav: {kind} takes no recordings; expected a name that it knows"
    elif voice.name is not None:
        yield "name: a recording needs no name for the server"
    elif voice.text is None and facts.needs_transcript:
        yield "text: missing; expected the transcript of the recording, word for word"
