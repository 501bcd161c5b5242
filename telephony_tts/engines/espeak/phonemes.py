"""IPA in espeak-ng's own names of phonemes, for its input in double brackets: "təˈmɑːtoʊ" is [[t|@|m|'A:|t|oU]].

Each voice has phonemes of its own, and a name may mean another sound in another voice. So the voice itself is asked
what each name sounds like: espeak-ng writes the phonemes that it was given as names and as IPA. A name counts only if
the voice gives it back unchanged. IPA that has any other symbol cannot be written, and the word keeps its spelling.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Read = Callable[[str, bool], str]
"""(text with phonemes in brackets, whether as IPA) to the phonemes that the voice makes of it."""

_VOWELS = (
    "a A E e i I O o u U V @ 0 3 & y Y W 8 a: A: E: e: i: I: O: o: u: y: Y: W: 3: &: @: aI aU OI oU eI OY EI Au ei ou "
    "ai au oi eu ui ie uo iu uI oI AI Yy Wy EU eU i@ e@ U@ O@ A@ o@ u@ y@ a# a~ A~ E~ e~ O~ o~ W~ i~ u~ U~ I~ & &~ "
    "i. u\" o& E2 O2 @2 a2 I2 i2 02 r- l-"
)
_CONSONANTS = (
    "p b t d k g q G ? f v T D s z S Z C x Q X h H m n N l r j w R B J c L * n^ l^ J^ r. t. d. s. z. n. l. tS dZ ts dz "
    "pF tS; dZ; ts; dz; S; Z; s; z; t; d; n; l; p; b; m; f; v; r2 R2 w2 t[ d[ ts. x^ kh th ph tsh"
)
_FRAMES = ("a", "A:", "a:", "E", "e", "@", "i", "i:")
"""A consonant is asked for before the first of these vowels that the voice has."""
_BATCH = 16
_STRESSES = {"ˈ": "'", "'": "'", "ˌ": ","}
_DROPPED = str.maketrans("", "", "\u0361\u035c\u032f.‿|\u200d")
"""Ties, borders of syllables and the mark of a vowel that is no syllable: the names need none of them."""
_SAME = {"g": "ɡ", ":": "ː", "ɝ": "ɜː", "ε": "ɛ", "ʤ": "dʒ", "ʧ": "tʃ", "ʦ": "ts", "ʣ": "dz"}
_ALTERNATIVES = {
    "r": ("ɹ", "ɾ", "ʁ"), "ɹ": ("r",), "ɾ": ("t",), "ɫ": ("l",), "ɐ": ("ʌ", "ə"), "ʍ": ("w",),
    "ʁ": ("r",), "ʀ": ("r",),
}  # fmt: skip
"""Symbols that stand for one sound in most dictionaries. The first that the voice has is taken."""


@dataclass(frozen=True, slots=True)
class VoicePhonemes:
    """The names of a voice's phonemes by their IPA."""

    vowels: Mapping[str, str]
    consonants: Mapping[str, str]

    def written(self, ipa: str) -> str | None:
        """`ipa` as espeak-ng's phoneme input. None if a symbol is not among the voice's phonemes."""
        words = []
        for word in _plain(ipa).split():
            names = self._names(word)
            if names is None:
                return None
            words.append("|".join(names))
        return f"[[{' '.join(words)}]]" if words else None

    def _names(self, word: str) -> list[str] | None:
        names: list[str] = []
        n_vowels = stress = 0
        mark, at = "", 0
        while at < len(word):
            if word[at] in _STRESSES:
                # In IPA it stands before the syllable, in espeak-ng's names before the vowel.
                mark, stress, at = _STRESSES[word[at]], stress + 1, at + 1
                continue
            found = self._next(word, at)
            if found is None:
                return None
            n, name, is_vowel = found
            if is_vowel:
                n_vowels += 1
                name, mark = mark + name, ""
            names.append(name)
            at += n
        if n_vowels == 1 and not stress:
            names = ["'" + name if name in self.vowels.values() else name for name in names]
        return names if names and not mark else None

    def _next(self, word: str, at: int) -> tuple[int, str, bool] | None:
        """(symbols, the name, whether a vowel) of the longest phoneme at `at`."""
        for n in range(min(4, len(word) - at), 0, -1):
            symbols = word[at : at + n]
            for form in (symbols, *_ALTERNATIVES.get(symbols, ())):
                if form in self.vowels:
                    return n, self.vowels[form], True
                if form in self.consonants:
                    return n, self.consonants[form], False
        # English dictionaries often leave the length out.
        long = self.vowels.get(word[at] + "ː")
        return None if long is None else (1, long, True)


def ask(read: Read) -> VoicePhonemes:
    """Ask a voice for its phonemes."""
    vowels: dict[str, str] = {}
    for name, ipa in _asked(read, _VOWELS.split(), "s|'{}|s", "s'{}s"):
        begin, mark, rest = ipa.partition("ˈ")
        if mark and begin == "s" and rest.endswith("s"):
            vowels.setdefault(_plain(rest[:-1]), name)
    frame = next((name for name in _FRAMES if name in vowels.values()), None)
    consonants: dict[str, str] = {}
    for name, ipa in () if frame is None else _asked(read, _CONSONANTS.split(), "{}|'" + frame, "{}'" + frame):
        sound, mark, _ = ipa.partition("ˈ")
        if mark and sound:
            consonants.setdefault(_plain(sound), name)
    return VoicePhonemes(vowels, consonants)


def _asked(read: Read, names: Sequence[str], frame: str, expected: str) -> Iterator[tuple[str, str]]:
    """Each name that the voice has, with the IPA of all its `frame`. The voice must give it back as `expected`."""
    for at in range(0, len(names), _BATCH):
        batch = names[at : at + _BATCH]
        words = [f"[[{frame.format(name)}]]" for name in batch]
        back, ipas = read(" ".join(words), False).split(), read(" ".join(words), True).split()
        is_apart = len(back) == len(ipas) == len(batch)
        for n, name in enumerate(batch):
            if is_apart and back[n] == expected.format(name):
                yield name, ipas[n]
            elif read(words[n], False).strip() == expected.format(name):  # only the word before it made a difference
                yield name, read(words[n], True).strip()


def _plain(ipa: str) -> str:
    plain = unicodedata.normalize("NFD", ipa).translate(_DROPPED)
    for old, new in _SAME.items():
        plain = plain.replace(old, new)
    return plain
