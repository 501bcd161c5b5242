"""Text to token ids for CosyVoice-300M: Whisper's byte-level BPE (specification 300M, 3).

The vocabulary is a file of ranks: one entry in each line, its bytes in base64 and its id. A pair of entries may be
joined if the joined bytes are an entry, and the pair with the lowest id is joined first. The ids after the entries are
control tokens.

The official model directory does not have the file. It is looked for there first, and then in the installed package
openai-whisper, of which nothing is imported (docs/adr/0017-whisper-ranks.md).
"""

from __future__ import annotations

import base64
import importlib.util
import shlex
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from telephony_tts.engines.cosyvoice2.model.file_names import RANKS_FILE
from telephony_tts.engines.cosyvoice2.text.tokenizer import ControlledBpe
from telephony_tts.runtime.errors import EngineUnavailable, shell_command

N_BYTES = 256
N_CONTROL = 1609
"""Ids after the entries: end and start of a transcript, 100 languages, six tasks and marks, 1501 times."""
_LANGUAGES_AFTER = 2
LANGUAGE_PLACES = {"<|en|>": 0, "<|zh|>": 1, "<|ko|>": 5, "<|ja|>": 7, "<|yue|>": 99}
"""The languages of the model, by their places among Whisper's 100."""
LANGUAGE_TAGS = tuple(LANGUAGE_PLACES)
"""Tokens that a text may begin with, to name its language."""


class WhisperTokenizer(ControlledBpe):
    """Immutable after construction; `encode` may be called from several threads."""

    def __init__(self, model_dir: Path) -> None:
        """Raises EngineUnavailable if there is no file of ranks, or if it is damaged."""
        path = ranks_path(model_dir)
        if path is None:
            raise EngineUnavailable(how_to_get_ranks(model_dir))
        try:
            ranks = read_ranks(path)
        except ValueError as error:
            raise EngineUnavailable(f"{path} {error}: {_REMEDY} --force-reinstall") from error
        bpe = Tokenizer(_bpe(ranks))
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        n = len(ranks)
        special_ids = {tag: n + _LANGUAGES_AFTER + place for tag, place in LANGUAGE_PLACES.items()}
        super().__init__(bpe, special_ids, n + N_CONTROL)


_REMEDY = f"{shell_command('pip install')} --no-deps openai-whisper"


def ranks_path(model_dir: Path) -> Path | None:
    """The file of ranks: in the model directory, else in the installed package openai-whisper; None if in neither."""
    own = model_dir / RANKS_FILE
    if own.is_file():
        return own
    package = importlib.util.find_spec("whisper")  # finds it without importing it
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        path = Path(folder) / "assets" / RANKS_FILE
        if path.is_file():
            return path
    return None


def how_to_get_ranks(model_dir: Path) -> str:
    """What to do if there is no file of ranks."""
    return (
        f"CosyVoice-300M reads text with Whisper's vocabulary, {RANKS_FILE}, which its model directory does not have. "
        f"It is in the Python package openai-whisper: {_REMEDY} (its own dependencies are not needed), or copy "
        f"whisper/assets/{RANKS_FILE} of that package into {shlex.quote(str(model_dir))}"
    )


def read_ranks(path: Path) -> dict[bytes, int]:
    """The entries and their ids. Raises ValueError whose message continues a sentence that begins with the path."""
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            entry, rank = line.split()
            # The official file has an entry without bytes, written "=".
            ranks[b"" if entry == "=" else base64.b64decode(entry, validate=True)] = int(rank)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read, it is cut off or damaged ({error})") from error
    if sorted(ranks.values()) != list(range(len(ranks))) or any(bytes([byte]) not in ranks for byte in range(N_BYTES)):
        raise ValueError("lacks entries, it is cut off or damaged")
    return ranks


def byte_letters() -> dict[int, str]:
    """The printable letter for each byte in a byte-level vocabulary, in the order of the official ids."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(N_BYTES) if byte not in letters]
    return letters | {byte: chr(N_BYTES + i) for i, byte in enumerate(others)}


def _bpe(ranks: dict[bytes, int]) -> models.BPE:
    """Every pair of entries whose joined bytes are an entry, the lowest id first."""
    letters = byte_letters()
    spelt = {entry: "".join(letters[byte] for byte in entry) for entry in ranks}
    merges = []
    for entry in sorted(ranks, key=ranks.__getitem__):
        for at in range(1, len(entry)):
            left, right = entry[:at], entry[at:]
            if left in ranks and right in ranks:
                merges.append((spelt[left], spelt[right]))
    return models.BPE({spelt[entry]: rank for entry, rank in ranks.items()}, merges)
