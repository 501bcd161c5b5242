"""Model directories with random weights, and texts of which they make speech of a given length.

A random model cannot end its speech early: it makes 20 speech tokens for each text token. So the length of its
utterances can be chosen. Those of CosyVoice-300M have clauses, because it speaks a text in pieces: about a second,
then up to five.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from telephony_tts.engines.cosyvoice2.checkpoint.random_300m import LONG_WORD, VOICE_NAMES
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import FamilyName, Size, write_random_checkpoint
from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE2, COSYVOICE_300M, TOKENS_PER_S, ModelFamily
from telephony_tts.engines.cosyvoice2.model.file_names import RANDOM_MARK
from telephony_tts.engines.cosyvoice2.text.generation import MAX_TOKENS_PER_TEXT
from telephony_tts.runtime.errors import ConfigError

_FAMILIES: Mapping[FamilyName, ModelFamily] = {"cosyvoice2": COSYVOICE2, "300m": COSYVOICE_300M}
_FULL_SIZE: Mapping[FamilyName, str] = {"cosyvoice2": "2.6 GB", "300m": "1.7 GB"}
_LEAST_CLAUSE = 3
_CLAUSE_WORDS = (LONG_WORD, "please", "the")
"""A clause with the first of them, or two or all, is expected to take as long as its tokens do: 0.4 s each."""

def random_text(seconds: float, family: FamilyName = "cosyvoice2") -> str:
    """Text of which a random model makes `random_seconds(seconds)` of speech."""
    n_text = _n_text(seconds, family)
    if family == "cosyvoice2":
        return "a" + " the" * (n_text - 2) + "."
    # Clauses of three to five tokens: "a", one to three words, and a mark. The first is as short as can be.
    rest = n_text - _LEAST_CLAUSE
    sizes = [n_text - rest] if rest == 0 or rest >= _LEAST_CLAUSE else [n_text]
    while (rest := n_text - sum(sizes)) > 0:
        sizes.append(next(n for n in (5, 4, 3) if rest == n or rest - n >= _LEAST_CLAUSE))
    return ", ".join(" ".join(("a", *_CLAUSE_WORDS[: size - 2])) for size in sizes) + "."


def random_tokens(seconds: float, family: FamilyName = "cosyvoice2") -> int:
    """Speech tokens of the shortest speech of at least `seconds` that a random model can make: 40, 60 and so on."""
    return _n_text(seconds, family) * MAX_TOKENS_PER_TEXT


def random_seconds(seconds: float, family: FamilyName = "cosyvoice2") -> float:
    """The length of `random_tokens(seconds)`: 1.6 s, 2.4 s and so on; of CosyVoice-300M 1.2 s, 1.6 s and so on."""
    return random_tokens(seconds, family) / _FAMILIES[family].tokens_per_s


def _n_text(seconds: float, family: FamilyName) -> int:
    """The number of text tokens; a word and a mark are one each."""
    least = 2 if family == "cosyvoice2" else _LEAST_CLAUSE
    return max(least, math.ceil(round(seconds * _FAMILIES[family].tokens_per_s / MAX_TOKENS_PER_TEXT, 9)))


@contextmanager
def random_model(
    size: Size, prompt_seconds: float, keep: Path | None = None, family: FamilyName = "cosyvoice2"
) -> Iterator[Path]:
    """A model directory with random weights: a temporary one, or `keep`, which is written if it does not exist.

    `prompt_seconds`: of the voice; the voices of CosyVoice-300M have none. Raises ConfigError if `keep` holds something
    else.
    """
    n_prompt = int(prompt_seconds * TOKENS_PER_S) if family == "cosyvoice2" else None
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="telephony-tts-") as folder:
            _write(Path(folder), size, n_prompt, family)
            yield Path(folder)
        return
    if (keep / RANDOM_MARK).is_file():
        there = json.loads((keep / RANDOM_MARK).read_text(encoding="utf-8"))
        holds = [there.get("family", "cosyvoice2"), *(there.get(of) for of in ("size", "endless", "prompt_tokens"))]
        if holds != [family, size, True, n_prompt]:
            raise ConfigError(f"{keep} holds another random model: give --keep another directory")
    else:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise ConfigError(f"{keep} is not empty and not a random model: give --keep a new directory")
        # The directory is renamed when it is complete, so an interrupted write leaves no broken model.
        unfinished = keep.with_name(keep.name + ".part")
        _write(unfinished, size, n_prompt, family)
        unfinished.replace(keep)
    yield keep


def _write(directory: Path, size: Size, n_prompt: int | None, family: FamilyName) -> None:
    try:
        write_random_checkpoint(directory, size, endless=True, prompt_tokens=n_prompt or 0, family=family)
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError if the disk is full
        where = f"use --keep DIR on a disk with room: {_FULL_SIZE[family]} at full size"
        raise ConfigError(f"the random weights cannot be written ({str(error).splitlines()[0]}); {where}") from error


def random_voice(prompt_seconds: float, family: FamilyName = "cosyvoice2") -> str:
    """The name of the random model's voice with a prompt of that length; without a prompt it is "preset"."""
    if family == "300m":
        return VOICE_NAMES[0]
    return "prompted" if int(prompt_seconds * TOKENS_PER_S) else "preset"
