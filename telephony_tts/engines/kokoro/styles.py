"""The voices of Kokoro-82M v1.0 and the files of their style vectors. No event loop.

Two Mandarin voices are part of this package. `telephony-tts voices pull` puts the files of others into a folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from telephony_tts.engines.api import Voice
from telephony_tts.engines.front_ends.ipa_by_espeak import VOICES
from telephony_tts.engines.kokoro.model import MAX_SYMBOLS, N_STYLE, SAMPLE_RATE_HZ
from telephony_tts.runtime.errors import EngineUnavailable, how_to_get, shell_command

STYLE_BYTES = MAX_SYMBOLS * N_STYLE * 4
NPM_PACKAGE = "kokoro-js@1.2.1"
HUB_REPO = "onnx-community/Kokoro-82M-v1.0-ONNX"

_LANGUAGES = {
    "z": (("zh", "cmn"), "Mandarin"), "a": (("en-US", "en"), "American English"),
    "b": (("en-GB", "en"), "British English"), "j": (("ja",), "Japanese"), "e": (("es",), "Spanish"),
    "f": (("fr",), "French"), "h": (("hi",), "Hindi"), "i": (("it",), "Italian"),
    "p": (("pt-BR", "pt"), "Brazilian Portuguese"),
}  # fmt: skip
"""By the first letter of a voice's name; the second says whether it is female or male."""
_NEEDS = {"ja": ("pyopenjtalk", "japanese"), **dict.fromkeys(VOICES, ("espeakng_loader", "espeak"))}
"""The module that reads a language, and the extra that brings it."""


@cache
def known_voices() -> dict[str, tuple[Voice, str]]:
    """Every voice of Kokoro with the SHA-256 of its file. The first of each language is the default."""
    found = {}
    for line in _included("voices.txt").decode().splitlines():
        name, gain_db, sha256 = line.split()
        languages, language = _LANGUAGES[name[0]]
        about = f"{language}, {'female' if name[1] == 'f' else 'male'} (Kokoro-82M)"
        found[name] = Voice(name, "kokoro", languages, SAMPLE_RATE_HZ, float(gain_db), about), sha256
    return found


def default_folder() -> Path:
    """Where `voices pull` puts files if no setting names a folder."""
    # Without a home, as in some containers, "~" stays, and there is no such folder.
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(data) / "telephony-tts/kokoro"


def language_of_voice(voice: Voice) -> str:
    """The prefix of its language: "zh", "en", "ja"."""
    return voice.languages[-1] if voice.languages[-1] != "cmn" else "zh"


def extra_of(language: str) -> str:
    """The extra that brings what reads a language."""
    return _NEEDS.get(language, ("", "kokoro"))[1]


def what_lacks(voice: Voice, folder: Path | None) -> str:
    """The commands that bring what the voice needs to speak: a package, its file, or both. "" if it can speak."""
    commands = []
    module, extra = _NEEDS.get(language_of_voice(voice), ("", ""))
    if module and importlib.util.find_spec(module) is None:
        commands.append(how_to_get(extra))
    if _file(voice.name, folder or default_folder()) is None:
        commands.append(_how_to_pull(voice.name))
    return " and ".join(commands)


def read_styles(name: str, folder: Path | None = None) -> npt.NDArray[np.float32]:
    """The style vectors of a voice, [510, 256]. Raises EngineUnavailable if its file is missing or damaged."""
    path = _file(name, folder or default_folder())
    if path is None:
        raise EngineUnavailable(f"kokoro's voice {name} has no file {name}.bin: {_how_to_pull(name)}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EngineUnavailable(f"kokoro's voice {name}: {path} cannot be read: {error.strerror or error}") from error
    if (problem := style_problem(name, content)) is not None:
        raise EngineUnavailable(f"kokoro's voice {name} is damaged: {path} {problem}: {_how_to_pull(name)}")
    return np.frombuffer(content, np.float32).reshape(MAX_SYMBOLS, N_STYLE)


def style_problem(name: str, content: bytes) -> str | None:
    """What is wrong with the content of a voice's file, if anything is."""
    if len(content) != STYLE_BYTES:
        return f"has {len(content)} bytes"
    is_right = hashlib.sha256(content).hexdigest() == known_voices()[name][1]
    return None if is_right else "has another checksum"


def _how_to_pull(name: str) -> str:
    return shell_command(f"telephony-tts voices pull {name}")


def _file(name: str, folder: Path) -> Path | None:
    places = (Path(str(resources.files(__package__))) / "voices", folder)
    # os.path.isfile, because Path.is_file raises for a folder that must not be read.
    return next((place / f"{name}.bin" for place in places if os.path.isfile(place / f"{name}.bin")), None)


def _included(file: str) -> bytes:
    return resources.files(__package__).joinpath("voices", file).read_bytes()
