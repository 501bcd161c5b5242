"""espeak-ng, an optional formant voice for many languages: robotic, tiny, 2 ms a sentence, 22.05 kHz.

The library keeps its state in globals. So each worker has a private copy of the shared object, loaded under a name of
its own, and no lock is needed. The pitch of its voices flutters with a phase that continues from sentence to sentence.
Private voice files switch the flutter off, so a text always has the same length and timings. The samples still depend
on the text before, for an unknown reason: this engine is not bit-exact (the lowest correlation among 1,500 renderings
was 0.987).
espeak-ng is GPL-3. It is an extra that the user installs, and it is loaded at run time.
"""

from __future__ import annotations

import _ctypes
import ctypes
import re
import shutil
import unicodedata
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from telephony_tts.engines.api import Chunk, Pcm, Timing, Utterance, Voice
from telephony_tts.engines.espeak.hanja import in_hangul
from telephony_tts.engines.espeak.phonemes import VoicePhonemes, ask
from telephony_tts.engines.locked_folder import LockedFolder
from telephony_tts.engines.same_sound import with_same_sounds
from telephony_tts.engines.speech import SpokenPiece, share_time, speak_pieces, trimmed
from telephony_tts.engines.threaded_engine import ThreadedEngine
from telephony_tts.engines.words import LATIN, scripts, words
from telephony_tts.engines.workers import Cancelled, Work
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, UnknownVoice, UnsupportedText, how_to_get

SAMPLE_RATE_HZ = 22_050
WORDS_PER_MINUTE = 175
MIN_SPEED, MAX_SPEED = 0.5, 2.5
"""espeak-ng allows 80 to 450 words a minute."""

_SILENCE_DBFS = -55.0

_SCRIPT_OF_VOICE = {
    "en-us": LATIN,
    "en-gb": LATIN,
    "cmn": "CJK",
    "de": LATIN,
    "fr-fr": LATIN,
    "es": LATIN,
    "es-419": LATIN,
    "it": LATIN,
    "pt": LATIN,
    "pt-br": LATIN,
    "nl": LATIN,
    "pl": LATIN,
    "cs": LATIN,
    "sv": LATIN,
    "da": LATIN,
    "nb": LATIN,
    "fi": LATIN,
    "hu": LATIN,
    "ro": LATIN,
    "tr": LATIN,
    "vi": LATIN,
    "id": LATIN,
    "yue": "CJK",
    "ru": "CYRILLIC",
    "uk": "CYRILLIC",
    "el": "GREEK",
    "ar": "ARABIC",
    "hi": "DEVANAGARI",
    "ko": "HANGUL",
}
"""The voices and their scripts, the default first. All can also read Latin words. Japanese is missing: no kanji."""

_LANGUAGES = {
    "cmn": ("zh", "cmn"),
    "yue": ("yue",),
    "en-us": ("en-us", "en"),
    "en-gb": ("en-gb", "en"),
    "fr-fr": ("fr",),
}

_MANDARIN, _KOREAN = "cmn", "ko"
_SILENT_ER = re.compile("(?<=[会点块花今明头活们空孩天馅玩画这那哪事])儿(?![子童女科歌孙])")
"""espeak spells a syllable with this ending in English letters. Without the ending the word is understood."""
_NUMERALS = (
    "II", "III", "IV", "VI", "VII", "VIII", "IX", "XI", "XII", "XIII", "XIV", "XV", "XVI", "XVII", "XVIII", "XIX", "XX",
)  # fmt: skip
_ROMAN = re.compile(rf"(?<![\w.])(?:{'|'.join(reversed(_NUMERALS))})(?![\w.]\w)(?!\w)")
"""espeak says "roman three" for III."""
_IONG = {
    **dict.fromkeys("凶兄胸匈汹", "[[S;j'ong55]]"), **dict.fromkeys("熊雄", "[[S;j'ong35]]"),
    **dict.fromkeys("穷琼穹", "[[tS;hj'ong35]]"), **dict.fromkeys("窘迥炯", "[[tS;j'ong214]]"),
}  # fmt: skip
"""Characters that espeak spells in English letters too, in its own phonemes."""

_IN_HANGUL = frozenset({"CJK", "HIRAGANA", "KATAKANA"})
"""Letters of these scripts are read in hangul in a Korean text."""

_UNSPOKEN = frozenset({"So", "Cc", "Cs", "Co", "Cn"})

# speak_lib.h
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_DONT_EXIT = 0x8000
_CHARS_UTF8 = 1
_PHONEMES = 0x100
_AS_NAMES, _AS_IPA = 0, 2
_ENDPAUSE = 0x1000
_RATE = 1
_EVENT_LIST_TERMINATED, _EVENT_WORD = 0, 1
_BUFFER_MS = 60


class _Event(ctypes.Structure):
    """espeak_EVENT. `text_position` counts characters from 1, `audio_position` milliseconds."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


class _EspeakVoice(ctypes.Structure):
    """espeak_VOICE. `languages` is a priority byte and a language tag, repeated, then a zero byte."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_void_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


Sound = tuple[int, int, str]
"""`[start, end)` of a text, and its phoneme input in double brackets."""

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class EspeakEngine(ThreadedEngine["_Installation"]):
    """Refuses letters of a script that the voice cannot read. Without a voice it chooses one that can read them."""

    name, package = "espeak", "espeakng-loader"
    voices = tuple(
        Voice(name, "espeak", _LANGUAGES.get(name, (name,)), SAMPLE_RATE_HZ, description="espeak-ng, formant voice")
        for name in _SCRIPT_OF_VOICE
    )

    def __init__(self, *, n_workers: int = 2) -> None:
        super().__init__(n_workers)
        self._installation: _Installation | None = None

    def load(self) -> Iterator[_Installation]:
        self._installation = _install(self._n_workers)
        yield self._installation

    def unavailable(self, failure: Exception) -> EngineUnavailable:
        if isinstance(failure, ImportError):
            return EngineUnavailable(f"espeak needs the package espeakng-loader: {how_to_get('espeak')}")
        return EngineUnavailable(f"espeak could not load its library: {failure}")

    async def close(self) -> None:
        await super().close()
        if self._installation is not None:
            self._installation.close()
        self._installation = None

    def check(self, utterance: Utterance) -> None:
        self._voice(utterance)

    def work(self, loaded: _Installation, utterance: Utterance) -> tuple[Work[Chunk], Callable[[], None]]:
        voice = self._voice(utterance)
        return lambda cancelled: _speak(loaded, utterance, voice, cancelled), lambda: None

    def _voice(self, utterance: Utterance) -> str:
        """The voice by its name, else by the language, else by the text's script, else the default."""
        foreign = scripts(utterance.text) - {LATIN}
        if "HANGUL" in foreign:
            foreign -= _IN_HANGUL
        if utterance.voice is not None:
            if utterance.voice not in _SCRIPT_OF_VOICE:
                known = ", ".join(_SCRIPT_OF_VOICE)
                raise UnknownVoice(f"espeak has no voice {utterance.voice!r}; it has {known}")
            candidates = [utterance.voice]
        else:
            lang = (utterance.lang or "").lower().replace("_", "-")
            exact = [voice.name for voice in self.voices if lang in voice.languages]
            close = [
                voice.name for voice in self.voices if any(_prefix(own) == _prefix(lang) for own in voice.languages)
            ]
            candidates = [*exact, *close, *_SCRIPT_OF_VOICE]
        for name in candidates:
            if foreign <= {_SCRIPT_OF_VOICE[name]}:
                return name
        letters = "/".join(sorted(foreign)).lower()
        with_what = f"with {utterance.voice!r}" if utterance.voice is not None else "with any of its voices"
        raise UnsupportedText(f"espeak cannot read {letters} letters {with_what}")


@dataclass(frozen=True)
class _Installation:
    """The idle copies of the library, one for each worker, and the folder with the copies and the voices."""

    folder: LockedFolder
    idle: deque[_Library]
    phonemes: dict[str, VoicePhonemes] = field(default_factory=dict)
    """Of the voices that had to speak IPA so far."""

    def phonemes_of(self, voice: str) -> VoicePhonemes:
        """The phonemes of a voice, in a worker. To ask for them takes some tens of milliseconds, once."""
        found = self.phonemes.get(voice)
        if found is None:
            library = self.idle.popleft()
            try:
                found = self.phonemes[voice] = ask(library.reader(voice))
            finally:
                self.idle.append(library)
        return found

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()
        self.folder.cleanup()


class _Library:
    """One copy of libespeak-ng. Used by one thread at a time."""

    def __init__(self, copy: Path, data: Path) -> None:
        self._lib = ctypes.CDLL(str(copy))
        self._parts: list[Pcm] = []
        self._words: list[tuple[int, int]] = []
        self._cancelled: Callable[[], bool] = bool
        self._callback = _Callback(self._receive)
        options = (_AUDIO_OUTPUT_SYNCHRONOUS, _BUFFER_MS, str(data).encode(), _INITIALIZE_DONT_EXIT)
        if (rate_hz := self._lib.espeak_Initialize(*options)) != SAMPLE_RATE_HZ:
            raise OSError(f"espeak_Initialize answered {rate_hz}, not {SAMPLE_RATE_HZ} Hz")
        self._lib.espeak_SetSynthCallback(self._callback)

    def close(self) -> None:
        self._lib.espeak_Terminate()
        _ctypes.dlclose(self._lib._handle)

    def speak(
        self, text: str, voice: str, speed: float, seed: int, cancelled: Cancelled, sounds: Sequence[Sound] = ()
    ) -> SpokenPiece:
        """Speak at most a few hundred characters. The piece is empty after a cancel. `sounds` are parts of the text in
        phoneme input, in order."""
        if self._lib.espeak_SetVoiceByName(voice.encode()) != 0:
            raise EngineError(f"espeak-ng could not load the voice {voice!r}")
        self._lib.espeak_ng_SetRandSeed(ctypes.c_long(seed))
        self._lib.espeak_SetParameter(_RATE, round(WORDS_PER_MINUTE * speed), 0)
        self._parts, self._words = [], []
        self._cancelled = cancelled
        written, places = _with_phonemes(_plain(text), sounds)
        encoded = written.encode("utf-8", "replace") + b"\0"
        flags = _CHARS_UTF8 | _ENDPAUSE | (_PHONEMES if sounds else 0)
        error = self._lib.espeak_Synth(encoded, len(encoded), 0, 1, 0, flags, None, None)
        if error != 0 and not cancelled():
            raise EngineError(f"espeak_Synth answered {error}")
        if not self._parts or cancelled():
            return SpokenPiece(np.zeros(0, np.int16), SAMPLE_RATE_HZ)
        pcm = np.concatenate(self._parts)
        events = [(_origin(position, places), ms) for position, ms in self._words] if places else self._words
        return SpokenPiece(pcm, SAMPLE_RATE_HZ, _timings(text, events, len(pcm)))

    def reader(self, voice: str) -> Callable[[str, bool], str]:
        """What tells the phonemes of a text in brackets: as names, or as IPA."""
        self.speak("a", voice, 1.0, 0, bool, [(0, 1, "[[a]]")])  # from now on the library takes phonemes
        to_phonemes = self._lib.espeak_TextToPhonemes
        to_phonemes.restype = ctypes.c_char_p

        def read(text: str, as_ipa: bool) -> str:
            encoded = ctypes.create_string_buffer(text.encode())
            rest = ctypes.c_void_p(ctypes.addressof(encoded))
            clauses = []
            while rest.value:
                clause = to_phonemes(ctypes.byref(rest), _CHARS_UTF8, _AS_IPA if as_ipa else _AS_NAMES)
                clauses.append((clause or b"").decode("utf-8", "replace"))
            return " ".join(clauses)

        return read

    def voice_files(self) -> dict[str, str]:
        """Each language to its file below `lang/`. Of several files the first is used, which is the plain one."""
        self._lib.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_EspeakVoice))
        voices = self._lib.espeak_ListVoices(None)
        files: dict[str, str] = {}
        i = 0
        while voices[i]:
            voice = voices[i].contents
            files.setdefault(ctypes.string_at(voice.languages + 1).decode(), voice.identifier.decode())
            i += 1
        return files

    def _receive(
        self, samples: ctypes._Pointer[ctypes.c_short], n_samples: int, events: ctypes._Pointer[_Event]
    ) -> int:
        """t_espeak_callback: keep the samples and events. Returning 1 stops espeak at once."""
        if self._cancelled():
            return 1
        if samples and n_samples > 0:
            self._parts.append(np.ctypeslib.as_array(samples, (n_samples,)).copy())
        i = 0
        while events[i].type != _EVENT_LIST_TERMINATED:
            if events[i].type == _EVENT_WORD:
                self._words.append((events[i].text_position - 1, events[i].audio_position))
            i += 1
        return 0


def _install(n_copies: int) -> _Installation:
    import espeakng_loader

    library, data = Path(espeakng_loader.get_library_path()), Path(espeakng_loader.get_data_path())
    folder = LockedFolder("telephony-tts-espeak-")
    installation = _Installation(folder, deque())
    try:
        copies = [Path(shutil.copy(library, Path(folder.name, f"{i}-{library.name}"))) for i in range(n_copies)]
        with closing(_Library(copies[0], data)) as opened:
            files = opened.voice_files()
        own_data = _copy_data(data, Path(folder.name, "data"), files)
        for copy in copies:
            installation.idle.append(_Library(copy, own_data))
            installation.idle[-1].speak("Hello.", next(iter(_SCRIPT_OF_VOICE)), 1.0, 0, bool)  # reads the dictionary
    except BaseException:
        installation.close()
        raise
    return installation


def _copy_data(data: Path, own: Path, files: Mapping[str, str]) -> Path:
    """A data folder of links, with voice files of our own: without flutter, and named by language."""
    own.mkdir()
    for entry in data.iterdir():
        if entry.name not in ("lang", "voices"):
            Path(own, entry.name).symlink_to(entry)
    Path(own, "lang").mkdir()
    for voice in _SCRIPT_OF_VOICE:
        original = Path(data, "lang", files[voice]).read_bytes()
        Path(own, "lang", voice).write_bytes(original + b"\nflutter 0\n")
    return own


def _speak(installation: _Installation, utterance: Utterance, voice: str, cancelled: Cancelled) -> Iterator[Chunk]:
    speed = min(MAX_SPEED, max(MIN_SPEED, utterance.speed))
    phonemes = _phonemes(installation, utterance, voice)
    n_before = 0

    def speak(text: str, index: int, trail_ms: float) -> SpokenPiece:
        nonlocal n_before
        first, last = n_before, n_before + len(text)
        n_before = last  # the pieces cover the text
        sounds = [(start - first, end - first, said) for start, end, said in phonemes if first <= start and end <= last]
        library = installation.idle.popleft()  # one for each worker; a worker keeps none between pieces
        try:
            speech = library.speak(text, voice, speed, abs(utterance.seed or 0) + index, cancelled, sounds)
        finally:
            installation.idle.append(library)
        return trimmed(speech, _SILENCE_DBFS, trail_ms)

    # Only Mandarin is written in pinyin.
    sounds = utterance.pronunciations if voice == _MANDARIN else ()
    text = with_same_sounds(utterance.text, sounds)
    if voice.startswith("en"):
        text = _ROMAN.sub(_in_digits, text)
    if voice == _MANDARIN:
        text, phonemes = _mandarin(text, phonemes)
    return speak_pieces(in_hangul(text) if voice == _KOREAN else text, speak, cancelled)


def _in_digits(numeral: re.Match[str]) -> str:
    """A Roman numeral in digits, as long as before."""
    letters = [{"I": 1, "V": 5, "X": 10}[letter] for letter in numeral[0]]
    value = sum(-now if now < after else now for now, after in zip(letters, [*letters[1:], 0], strict=True))
    return str(value).ljust(len(letters))


def _mandarin(text: str, phonemes: Sequence[Sound]) -> tuple[str, list[Sound]]:
    """A text in Mandarin and its phonemes, without what espeak would spell. No character moves."""
    text = _SILENT_ER.sub(" ", text)
    given = {at for start, end, _ in phonemes for at in range(start, end)}
    more = ((at, at + 1, _IONG[char]) for at, char in enumerate(text) if char in _IONG and at not in given)
    return text, sorted([*phonemes, *more])


def _phonemes(installation: _Installation, utterance: Utterance, voice: str) -> list[Sound]:
    """The IPA of an utterance in the voice's own names. What the voice cannot say is left out."""
    wanted = [each for each in utterance.pronunciations if each.alphabet == "ipa"]
    if not wanted:
        return []
    known = installation.phonemes_of(voice)
    found = ((each, known.written(each.value)) for each in wanted)
    return [(each.start, each.end, said) for each, said in found if said is not None]


def _with_phonemes(text: str, sounds: Sequence[Sound]) -> tuple[str, list[tuple[int, int, int]]]:
    """(`text` with `sounds` in place, the stretches of that: its begin, where that is in `text`, and whether it is a
    stretch of the text (1) or a sound (0))."""
    if not sounds:
        return text, []
    parts: list[str] = []
    places: list[tuple[int, int, int]] = []
    n_chars = done = 0
    for start, end, said in (*sounds, (len(text), len(text), "")):
        for part, origin, is_text in ((text[done:start].replace("[[", "  "), done, 1), (said, start, 0)):
            places.append((n_chars, origin, is_text))
            parts.append(part)
            n_chars += len(part)
        done = end
    return "".join(parts), places


def _origin(position: int, places: Sequence[tuple[int, int, int]]) -> int:
    """The place in the text of `position` in the text with sounds: of a sound, where its word begins."""
    at, origin, is_text = places[max(0, bisect_right(places, (position, len(places), 2)) - 1)]
    return origin + (position - at) * is_text


def _prefix(lang: str) -> str:
    return lang.split("-")[0]


def _plain(text: str) -> str:
    """The text with spaces for emoji (espeak would name them), control characters and lone surrogates; same offsets."""
    return "".join(" " if unicodedata.category(char) in _UNSPOKEN else char for char in text)


def _timings(text: str, events: Sequence[tuple[int, int]], n_samples: int) -> tuple[Timing, ...]:
    """Each word lasts from the event inside it to the event of the next word. Words between two events share the time.

    In Mandarin an event may cover two or three characters. In English one word may have several events.
    """
    spans = words(text)
    begins: list[tuple[int, int]] = []
    for position, ms in events:
        index = next((i for i, (start, end) in enumerate(spans) if start <= position < end), None)
        sample = min(n_samples, ms * SAMPLE_RATE_HZ // 1000)
        if index is not None and (not begins or (index > begins[-1][0] and sample >= begins[-1][1])):
            begins.append((index, sample))
    if not begins:
        return tuple(share_time(spans, 0, n_samples))
    begins[0] = (0, begins[0][1])
    timings: list[Timing] = []
    for (index, sample), (next_index, next_sample) in pairwise([*begins, (len(spans), n_samples)]):
        timings.extend(share_time(spans[index:next_index], sample, next_sample))
    return tuple(timings)
