"""The hibari network as a function: English text in, trimmed PCM and word timings out. No threads, no event loop.

It does not use the package's `Hibari` class, which reports no durations and makes its own session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from telephony_tts.engines.api import Timing
from telephony_tts.engines.speech import SpokenPiece, share_time, trimmed
from telephony_tts.engines.words import words

SAMPLE_RATE_HZ = 24_000

_DURATIONS = "/Clip_output_0"
"""The node of hibari 0.2.1 with the duration of each phoneme."""
_N_SAMPLES_PER_DURATION = 600
"""A unit of the durations is 25 ms."""
_ONSET_MS = 40.0
"""At speed 1 a word begins this much before its duration says: the median of 15 word starts after a pause.

Divided by the speed it fits 0.7 (57 against a measured 62, 22 starts) and is too much for 1.6 (25 against 0, 7 starts).
"""
_SILENCE_DBFS = -55.0
"""30 dB below hibari's speech. The loudest 5 ms that was cut before an onset had -59 dBFS, in 17 sentences."""

_DIGIT_GROUPS = re.compile(r"(?<![\w.,:/-])(?!\d{4}-\d\d-\d\d\b)\d+(?:[-\u2010-\u2013]\d+){2,}(?![\w-])")
_DIGITS = re.compile(r"(?<![\d.,:/-])\d+(?!\d|[.,:/-]\d)")


@dataclass(frozen=True, slots=True)
class _Reading:
    """The input of the network: phoneme ids with padding, and the span of ids of each word."""

    ids: list[int]
    words: list[str]
    spans: list[tuple[int, int]]


class HibariModel:
    """Loads everything in its constructor (about 0.5 s). Several threads may call `speak` at once."""

    def __init__(self) -> None:
        import onnxruntime
        from hibari import dsp
        from hibari.g2p import G2P
        from hibari.g2p.normalize import normalize
        from hibari.voices import ASSETS, DEFAULT, voice_path

        self._dsp = dsp
        self._normalize = normalize
        self._g2p = G2P()
        self._g2p.oov("warmup")  # built on first use without a lock, so not by two threads
        self._vocabulary: dict[str, int] = json.loads(Path(ASSETS, "vocab.json").read_text(encoding="utf-8"))
        model = Path(voice_path(DEFAULT, download_missing=False)).read_bytes()
        self._session, self.has_durations = _open(onnxruntime, model)
        if self.has_durations:
            self.has_durations = self._durations_add_up()

    def speak(
        self,
        text: str,
        *,
        speed: float = 1.0,
        seed: int = 0,
        trail_ms: float = 120.0,
        sounds: Sequence[tuple[int, int, str]] = (),
    ) -> SpokenPiece:
        """Speak at most a few hundred characters. Silence is cut to 10 ms before and to `trail_ms` after.

        `sounds` has words of the text with their IPA: (start, end, IPA). The PCM is empty if the text has nothing to
        say. The same arguments give the same samples.
        """
        reading = self._read(text, sounds)
        if len(reading.ids) < 3:
            return SpokenPiece(np.zeros(0, np.int16), SAMPLE_RATE_HZ)
        wave, durations = self._run(reading.ids, speed, seed)
        pcm = np.round(np.clip(wave, -1.0, 1.0) * 32767.0).astype(np.int16)
        if durations is None:
            timings = share_time(words(text), 0, len(pcm))
        else:
            n_early = round(_ONSET_MS / speed * SAMPLE_RATE_HZ / 1000)
            edges = np.concatenate(([0], np.cumsum(durations))) * _N_SAMPLES_PER_DURATION - n_early
            timings = _aligned(text, reading, edges.astype(int).tolist())
        return trimmed(SpokenPiece(pcm, SAMPLE_RATE_HZ, tuple(timings), durations is None), _SILENCE_DBFS, trail_ms)

    def _read(self, text: str, sounds: Sequence[tuple[int, int, str]] = ()) -> _Reading:
        """The phonemes of each word of hibari's normalised text, whose words may differ from those of the text."""
        plain = _spell_ids(text.translate(_NO_MARKUP))
        tokens = self._g2p.tokenize(self._normalize(plain))
        if sounds:
            _give_sounds(tokens, text, sounds)
        tokens = self._g2p.phonemize_tokens(tokens)
        reading = _Reading([0], [], [])
        word, start = "", 1
        for token in tokens:
            word += token.text
            reading.ids.extend(self._ids(token.phonemes or ""))
            if token.whitespace or token is tokens[-1]:
                if (key := _key(word)) and len(reading.ids) > start:
                    reading.words.append(key)
                    reading.spans.append((start, len(reading.ids)))
                if len(reading.ids) > 1:
                    reading.ids.extend(self._ids(" "))
                word, start = "", len(reading.ids)
        while len(reading.ids) > 1 and reading.ids[-1:] == self._ids(" "):
            reading.ids.pop()
        reading.ids.append(0)
        return reading

    def _ids(self, phonemes: str) -> list[int]:
        return [self._vocabulary[char] for char in phonemes if char in self._vocabulary]

    def _run(
        self, ids: Sequence[int], speed: float, seed: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        feeds = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        outputs = self._session.run(None, feeds)
        durations = outputs[6].reshape(-1) if self.has_durations else None
        spectra = [output[0] for output in outputs[:6]]
        return self._dsp.synth(*spectra, np.random.default_rng(seed)), durations

    def _durations_add_up(self) -> bool:
        for speed in (1.0, 1.5):
            ids = self._read("Hello, how can I help you today?").ids
            wave, durations = self._run(ids, speed, 0)
            if durations is None or durations.shape != (len(ids),):
                return False
            if abs(int(durations.sum()) * _N_SAMPLES_PER_DURATION - len(wave)) > _N_SAMPLES_PER_DURATION:
                return False
        return True


_NO_MARKUP = str.maketrans("[]", "  ")
"""hibari reads `[word](/phonemes/)` as phonemes; text from a bot must not have that effect."""


_IN_OTHER_LETTERS = {
    "eɪ": "A", "oʊ": "O", "əʊ": "O", "aɪ": "I", "aʊ": "W", "ɔɪ": "Y", "dʒ": "ʤ", "tʃ": "ʧ", "ɝ": "ɜɹ", "ɚ": "əɹ",
    "r": "ɹ", "g": "ɡ", "ɫ": "l", "ʍ": "w", "ɐ": "ə", "ɒ": "ɑ", "e": "ɛ", "o": "O", "a": "ɑ",
}  # fmt: skip
"""IPA in the letters of hibari, which has one for each diphthong and affricate. The longer ones are replaced first."""
_NOT_IN_HIBARI = re.compile("[ː.̩̯͜͡]")
"""Length, syllables and ties."""
_STRESS = re.compile("([ˈˌ])([^ˈˌAIOWYæɑəɛɜɪiɔuʊʌ]+)")


def hibari_phonemes(ipa: str) -> str:
    """English IPA in hibari's letters. Its stress marks stand before the vowel, not before the syllable."""
    phonemes = _NOT_IN_HIBARI.sub("", ipa)
    for written, ours in _IN_OTHER_LETTERS.items():
        phonemes = phonemes.replace(written, ours)
    return _STRESS.sub(r"\2\1", phonemes)


def _give_sounds(tokens: list[Any], text: str, sounds: Sequence[tuple[int, int, str]]) -> None:
    """Make each word of `sounds` one token with its phonemes. hibari's normaliser may have moved it, so it is found as
    the same occurrence of its letters. A word that was changed keeps its usual sound."""
    for start, end, ipa in sounds:
        word = text[start:end]
        n_before = len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text[:start]))
        places = [(n, n_tokens) for n in range(len(tokens)) if (n_tokens := _n_tokens(tokens, n, word))]
        if n_before < len(places):
            first, n_tokens = places[n_before]
            token, last = tokens[first], tokens[first + n_tokens - 1]
            token.text, token.whitespace = word, last.whitespace
            token.phonemes, token.rating = hibari_phonemes(ipa), 5
            del tokens[first + 1 : first + n_tokens]


def _n_tokens(tokens: list[Any], n: int, word: str) -> int:
    """How many tokens from number `n` together are `word`; 0 if they are not."""
    letters = ""
    for end in range(n, len(tokens)):
        letters += tokens[end].text
        if letters == word:
            return end + 1 - n
        letters += tokens[end].whitespace
        if not word.startswith(letters):
            return 0
    return 0


def _spell_ids(text: str) -> str:
    """Separate the digits that hibari would misread: three hyphenated groups, leading zeros, "#", seven and more.

    The text should already be in words; this is a safeguard. "1-800-555-0199" would lose its zeros.
    """

    def spell(match: re.Match[str]) -> str:
        run = match[0]
        is_id = len(run) >= 7 or (run[0] == "0" and len(run) > 1) or text[: match.start()].endswith("#")
        return " ".join(run) if is_id else run

    text = _DIGIT_GROUPS.sub(lambda match: ", ".join(" ".join(run) for run in re.split(r"\D", match[0])), text)
    return _DIGITS.sub(spell, text)


def _key(word: str) -> str:
    return "".join(char for char in word.lower() if char.isalnum())


def _aligned(text: str, reading: _Reading, edges: list[int]) -> list[Timing]:
    """The timings of the text's words from those of the normalised words; `edges[i]` is the first sample of phoneme i.

    Equal words are matched. If normalising changed some words, the written words share their time by length.
    """
    written = words(text)
    keys = [_key(text[start:end]) for start, end in written]
    timings: list[Timing] = []
    for _, w0, w1, r0, r1 in SequenceMatcher(None, keys, reading.words, autojunk=False).get_opcodes():
        if r0 == r1 or w0 == w1:
            continue
        if w1 - w0 == r1 - r0:
            for (start, end), (first, last) in zip(written[w0:w1], reading.spans[r0:r1], strict=True):
                timings.append(Timing(start, end, edges[first], edges[last]))
        else:
            timings.extend(share_time(written[w0:w1], edges[reading.spans[r0][0]], edges[reading.spans[r1 - 1][1]]))
    return timings


def _open(onnxruntime: Any, model: bytes) -> tuple[Any, bool]:
    """A session with one thread; the durations are a seventh output if the graph has that node."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(model + _graph_output(_DURATIONS), options, providers=providers), True
    except Exception:
        return onnxruntime.InferenceSession(model, options, providers=providers), False


def _graph_output(name: str) -> bytes:
    """Bytes that add a graph output when they follow a serialised ONNX ModelProto.

    Protobuf merges repeated occurrences of a message field: ModelProto.graph (7) gets one more GraphProto.output (12),
    a ValueInfoProto with only its name (1). Lengths below 128 take one byte.
    """
    encoded = name.encode()
    value_info = b"\x0a" + bytes([len(encoded)]) + encoded
    output = b"\x62" + bytes([len(value_info)]) + value_info
    return b"\x3a" + bytes([len(output)]) + output
