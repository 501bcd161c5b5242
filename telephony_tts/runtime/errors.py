"""All errors that this package raises on purpose.

TelephonyTTSError
├── ConfigError            a configuration file or a flag is wrong; raised before anything starts
├── AudioError             audio has an unsupported shape, rate or codec
│   └── FormatUnavailable  the package that encodes this audio format is not installed
├── SoundError             a sound cannot be played; the call and its turns go on without it
├── Busy                   the server refuses work that it could not do in time; says when to retry
└── EngineError            synthesis failed; ends the turn, never the call
    ├── EngineUnavailable  the engine's package or files are not installed
    ├── ReplicaLost        the replica that spoke is gone; another replica of the engine can go on
    ├── UnknownVoice       no engine has a voice of that name
    └── UnsupportedText    the engine cannot read this script; `Catalog.choose` adds the voices that can

Malformed input from a peer is not an exception. Decoders return `wire.messages.Invalid`, because a peer's mistake is
an ordinary event of a call and never ends it.
"""

from __future__ import annotations

import sys
from pathlib import Path


class TelephonyTTSError(Exception):
    """Base class of the package's errors. `code` is the stable word that is sent on the wire.

    `retry_after_ms`: when a retry may succeed, if that is known. It is a hint, not a promise.
    """

    code = "internal"
    retryable = False
    retry_after_ms: int | None = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable
        if retry_after_ms is not None:
            self.retry_after_ms = retry_after_ms


class ConfigError(TelephonyTTSError):
    code = "bad_config"


class AudioError(TelephonyTTSError):
    code = "bad_audio"


class FormatUnavailable(AudioError):
    """An audio format that is known, but whose encoder is an extra. Over HTTP this is a 501."""

    code = "format_unavailable"


class SoundError(TelephonyTTSError):
    """A sound that is not there (`unknown_sound`) or that cannot be read (`bad_sound`)."""

    code = "bad_sound"


class Busy(TelephonyTTSError):
    """New work is refused to protect live calls."""

    code = "busy"
    retryable = True
    retry_after_ms: int

    def __init__(self, message: str, *, retry_after_ms: int) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)


class EngineError(TelephonyTTSError):
    code = "engine_failed"
    retryable = True


class ReplicaLost(EngineError):
    """The process or machine that spoke an utterance is gone, or does not answer."""


class EngineUnavailable(EngineError):
    code = "engine_unavailable"
    retryable = False


class UnknownVoice(EngineError):
    code = "unknown_voice"
    retryable = False


class UnsupportedText(EngineError):
    code = "unsupported_text"
    retryable = False


def how_to_get(extra: str = "") -> str:
    """The command that installs an extra, or telephony-tts itself. An image has no pip: it is built with the extra, in
    a checkout."""
    if image := _image():
        if extra == "cosyvoice" and image == "cpu":
            return "make images IMAGES=cuda"
        return f"make images IMAGES={image}" + (f" EXTRAS={extra}" if extra else "")
    if _is_checkout():
        return shell_command(f"pip install -e '.[{extra}]'" if extra else "pip install -e .")
    return f"pip install 'telephony-tts[{extra}]'" if extra else "pip install telephony-tts"


def how_to_get_again(requirements: str) -> str:
    """The command that installs required packages anew, because their files are damaged or gone."""
    return how_to_get() if _image() else shell_command(f"pip install --force-reinstall --no-deps {requirements}")


def shell_command(line: str) -> str:
    """A command of pip or telephony-tts as it works where the user stands: in a checkout, where both are in its virtual
    environment, or with the installed package."""
    return f".venv/bin/{line}" if _is_checkout() else line


def _is_checkout() -> bool:
    folder = Path(__file__).parents[2]
    return (folder / "pyproject.toml").is_file() and (folder / "Makefile").is_file()


def _image() -> str:
    """The name of the container image that this runs in, such as "cpu"; "" outside. docker/Dockerfile writes it."""
    name = Path(sys.prefix, "image-name")
    return name.read_text(encoding="utf-8").strip() if name.is_file() else ""
