"""Text to token ids: byte-level BPE with the model directory's own vocabulary and merges (specification 3.1).

The directory's merges leave out those that would join Chinese characters; the stock Qwen2 tokenizer gives other ids and
a voice that stumbles. Control tokens are recognised only where the caller says so: what somebody types is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from telephony_tts.errors import EngineUnavailable

END_OF_PROMPT = "<|endofprompt|>"
"""Ends an instruction that stands before the text to be spoken."""

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
"""In the order of their ids, which follow the vocabulary's: 151643 to 151662 in the official directory."""

# Qwen2's pre-tokenizer: contractions, words with one leading sign, single digits, runs of signs, line ends, spaces.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TextTokenizer:
    """Immutable after construction; `encode` may be called from several threads."""

    def __init__(self, directory: Path) -> None:
        """Reads vocab.json and merges.txt of `CosyVoice-BlankEN`. Raises EngineUnavailable if they do not fit."""
        vocabulary = directory / "vocab.json"
        try:
            bpe = models.BPE.from_file(str(vocabulary), str(directory / "merges.txt"))
            ids = json.loads(vocabulary.read_text(encoding="utf-8")).values()
            first = max(ids) + 1
        except Exception as error:  # tokenizers raises bare Exception
            raise EngineUnavailable(
                f"the tokenizer in {directory} cannot be read ({error}): fetch the model directory anew with "
                f"telephony-tts models pull {directory.parent}"
            ) from error
        self.special_ids = {token: first + i for i, token in enumerate(SPECIAL_TOKENS)}
        self.n_ids = first + len(SPECIAL_TOKENS)
        _check_special_ids(directory / "tokenizer_config.json", self.special_ids)
        self._bpe = Tokenizer(bpe)
        self._bpe.normalizer = normalizers.NFC()
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def encode(self, text: str, control: Collection[str] = ()) -> list[int]:
        """Token ids, without begin or end marks; [] for "".

        The control tokens of `control` become their ids where they stand in the text; others are spelt like all text.
        """
        text = text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no character
        ids: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, control))})", text) if control else [text]:
            if piece in control:
                ids.append(self.special_ids[piece])
            elif piece:
                ids += self._bpe.encode(piece, add_special_tokens=False).ids
        return ids


def _check_special_ids(path: Path, special_ids: dict[str, int]) -> None:
    """The ids index rows of the text embedding: one off, and every control token is another."""
    if not path.is_file():
        return
    try:
        declared = json.loads(path.read_text(encoding="utf-8")).get("added_tokens_decoder", {})
        declared = {entry["content"]: int(number) for number, entry in declared.items()}
    except (ValueError, AttributeError, KeyError, TypeError, OSError) as error:
        raise EngineUnavailable(f"{path} cannot be read: {error}") from error
    for token, number in declared.items():
        if special_ids.get(token, number) != number:
            raise EngineUnavailable(
                f"{path} gives {token} the id {number}, and after vocab.json it is {special_ids[token]}: "
                "the two are of different models; fetch the directory anew with telephony-tts models pull"
            )
