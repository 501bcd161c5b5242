"""Text to token ids: byte-level BPE with the model directory's own vocabulary and merges (specification 3.1).

The directory's merges do not join Chinese characters. The stock Qwen2 tokenizer does, gives other ids, and the speech
stumbles. Control tokens are recognised only if the caller allows them: what a user types is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from telephony_tts.runtime.errors import EngineUnavailable, shell_command

END_OF_PROMPT = "<|endofprompt|>"
"""Ends an instruction before the text."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    END_OF_PROMPT,
    "[breath]",
    "<strong>",
    "</strong>",
    "[noise]",
    "[laughter]",
    "[cough]",
    "[clucking]",
    "[accent]",
    "[quick_breath]",
    "<laughter>",
    "</laughter>",
    "[hissing]",
    "[sigh]",
    "[vocalized-noise]",
    "[lipsmack]",
    "[mn]",
)
"""In the order of their ids, which follow the vocabulary: 151643 to 151662 in the official directory."""
CONTROL_TOKENS = SPECIAL_TOKENS[3:]
"""Tokens that a text may be allowed to contain. The others mark begin and end of the training data."""

N_BYTES = 256
"""Entries of a byte-level vocabulary that do not come from merges."""
MIN_MERGED = 0.85
"""Smallest share of the other entries that merges.txt must make: officially 0.89, and all of them in Qwen2."""

# Qwen2's pre-tokenizer: contractions, words with one leading sign, single digits, runs of signs, line ends, spaces.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class ControlledBpe:
    """A BPE whose control tokens are recognised only where the caller allows them."""

    def __init__(self, bpe: Tokenizer, special_ids: dict[str, int], n_ids: int) -> None:
        self._bpe, self.special_ids, self.n_ids = bpe, special_ids, n_ids

    def encode(self, text: str, control: Collection[str] = ()) -> list[int]:
        """Token ids, without begin or end marks; [] for "".

        The control tokens in `control` become their ids; all others are encoded like text.
        """
        text = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is not a character
        ids: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, control))})", text) if control else [text]:
            if piece in control:
                ids.append(self.special_ids[piece])
            elif piece:
                ids += self._bpe.encode(piece, add_special_tokens=False).ids
        return ids


class TextTokenizer(ControlledBpe):
    """Immutable after construction; `encode` may be called from several threads."""

    def __init__(self, directory: Path) -> None:
        """Reads vocab.json and merges.txt of `CosyVoice-BlankEN`. Raises EngineUnavailable if they do not fit."""
        try:
            model, special_ids = _read(directory)
        except ValueError as error:
            raise EngineUnavailable(
                f"the tokenizer in {directory} cannot be used, {error}: fetch the model directory again with "
                f"{shell_command('telephony-tts models pull')} {directory.parent}"
            ) from error
        bpe = Tokenizer(model)
        bpe.normalizer = normalizers.NFC()
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        super().__init__(bpe, special_ids, max(special_ids.values()) + 1)

    def save(self, path: Path, more: Sequence[str]) -> None:
        """Writes a tokenizer.json of the `tokenizers` library for other engines. It knows the special tokens and, with
        the ids after them, the tokens in `more`. It recognises all of them in any text."""
        saved = Tokenizer.from_str(self._bpe.to_str())
        saved.add_special_tokens(list(SPECIAL_TOKENS))
        saved.add_tokens([AddedToken(token, normalized=False) for token in more])
        wanted = {**self.special_ids, **{token: self.n_ids + i for i, token in enumerate(more)}}
        unlike = [token for token, number in wanted.items() if saved.token_to_id(token) != number]
        if unlike:
            raise EngineUnavailable(
                f"the vocabulary has gaps or repeats, so that {unlike[0]} gets the id {saved.token_to_id(unlike[0])} "
                f"instead of {wanted[unlike[0]]}: fetch the model directory again with "
                f"{shell_command('telephony-tts models pull')}"
            )
        saved.save(str(path))


def tokenizer_problem(directory: Path) -> str:
    """What is wrong with a tokenizer's files; "" if nothing is.

    It finds more than reading does: merges.txt has one rule in each line, so a truncated file can be read.
    """
    try:
        _read(directory)
        n_words = len(json.loads((directory / "vocab.json").read_text(encoding="utf-8"))) - N_BYTES
        n_merges = len((directory / "merges.txt").read_text(encoding="utf-8").splitlines())
    except ValueError as error:
        return str(error)
    if n_merges < MIN_MERGED * n_words:
        return f"merges.txt is cut off or of another model: {n_merges} lines for the {n_words} words of vocab.json"
    return ""


def _read(directory: Path) -> tuple[models.BPE, dict[str, int]]:
    """The vocabulary with its merges, and the ids of the special tokens. Raises ValueError that names the file."""
    vocabulary = directory / "vocab.json"
    try:
        first = max(json.loads(vocabulary.read_text(encoding="utf-8")).values()) + 1
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"vocab.json is cut off or damaged ({error})") from error
    try:
        bpe = models.BPE.from_file(str(vocabulary), str(directory / "merges.txt"))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"merges.txt is cut off, damaged or not of this vocab.json ({error})") from error
    special_ids = {token: first + i for i, token in enumerate(SPECIAL_TOKENS)}
    _check_special_ids(directory / "tokenizer_config.json", special_ids)
    return bpe, special_ids


def _check_special_ids(path: Path, special_ids: dict[str, int]) -> None:
    """Raises ValueError if the directory declares other ids for the special tokens, which index the text embedding."""
    if not path.is_file():
        return
    try:
        declared = json.loads(path.read_text(encoding="utf-8")).get("added_tokens_decoder", {})
        declared = {entry["content"]: int(number) for number, entry in declared.items()}
    except (ValueError, AttributeError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{path.name} is cut off or damaged ({error})") from error
    for token, number in declared.items():
        if special_ids.get(token, number) != number:
            raise ValueError(
                f"{path.name} gives {token} the id {number}, and after vocab.json it is {special_ids[token]}: "
                "the two are of different models"
            )
