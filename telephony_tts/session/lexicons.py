"""Which lexicons apply to a sentence: those of its language, of the voice, of the API key and of the call.

Later ones win. A lexicon is looked up by its name for each sentence, so a file that was read again counts at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from telephony_tts.engines.api import language_prefix
from telephony_tts.text.lexicon import BadEntry, Lexicon, find_readings, may_begin, read_entry
from telephony_tts.text.normalizer import detect_lang, said_before
from telephony_tts.text.rewriting import Reading, spoken_spans, told_changes
from telephony_tts.text.segmenter import Segmenter

ALL_LANGUAGES = "*"

Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class CallLexicon:
    """The lexicons of one call. `shelf` has the lexicons by name; the server replaces them there.

    `languages` (by prefix, or `ALL_LANGUAGES`) and `voices` have the names of the lexicons that apply. `names` are
    those of the call's API key and of the call, in this order. `own` has the entries that the bot sent.
    """

    shelf: Mapping[str, Lexicon] = field(default_factory=dict)
    languages: Names = field(default_factory=dict)
    voices: Names = field(default_factory=dict)
    names: tuple[str, ...] = ()
    own: Lexicon | None = None

    def with_names(self, names: Iterable[str]) -> CallLexicon:
        """The same with the lexicons of these names too."""
        return replace(self, names=(*self.names, *names))

    def with_own(self, entries: Mapping[str, str]) -> tuple[CallLexicon, list[str]]:
        """(the same with these entries in place of its own, what is wrong with those that were left out)."""
        problems: list[str] = []
        read = []
        for written, say in entries.items():
            try:
                entry = read_entry(written, say)
            except BadEntry as error:
                problems.append(f"{written}: {error}")
                continue
            if entry.is_pattern:
                problems.append(f"{written}: a pattern belongs into a lexicon of the server")
            else:
                read.append(entry)
        return replace(self, own=Lexicon(read) if read else None), problems

    def readings(self, text: str, lang: str, voice: str | None) -> list[Reading]:
        """The readings of a sentence in the language `lang` that `voice` speaks. None is the default voice."""
        return find_readings(text, self._lexicons(lang, voice))

    def may_begin(self, text: str, lang: str, voice: str | None) -> int:
        """The length of the beginning of an unfinished sentence that no lexicon changes, whatever text follows."""
        return may_begin(text, self._lexicons(lang, voice))

    def _lexicons(self, lang: str, voice: str | None) -> list[Lexicon]:
        names = [
            *self.languages.get(ALL_LANGUAGES, ()),
            *self.languages.get(language_prefix(lang), ()),
            *(self._names_of(voice) if voice is not None else ()),
            *self.names,
        ]
        found = [self.shelf[name] for name in names if name in self.shelf]
        return found if self.own is None else [*found, self.own]

    def _names_of(self, voice: str) -> tuple[str, ...]:
        """The bot may write a voice with its engine, "hibari/heart"."""
        exact = self.voices.get(voice)
        return self.voices.get(voice.rpartition("/")[2], ()) if exact is None else exact


def read_sentences(
    text: str, lexicon: CallLexicon | None, lang: str | None, voice: str | None = None, control: Collection[str] = ()
) -> Iterator[tuple[dict[str, int | str], list[str]]]:
    """Each sentence of a text, for people: its text, offsets, language and reading; and what the lexicons change."""
    segmenter = Segmenter(lang)
    codes: set[str] = set()
    for sentence in [*segmenter.feed(text), *segmenter.flush()]:
        language = lang or detect_lang(sentence.text)
        readings = () if lexicon is None else lexicon.readings(sentence.text, language, voice)
        before = said_before(text, sentence.start)
        spans = spoken_spans(sentence.text, language, control, readings, before, codes)
        reading = "".join(span.spoken for span in spans).strip()
        yield {
            "text": sentence.text, "from": sentence.start, "to": sentence.end, "language": language, "reading": reading,
        }, list(told_changes(sentence.text, spans))  # fmt: skip
