"""One turn: the bot's text, the sentences cut from it, and the audio they became.

Text is cut a little at a time, only as far ahead as speech needs. So a turn of 4,000 characters costs the event loop no
more at once than a short turn. A turn owns its segmenter, encoder, schedule and marks, and they end with it. Audio that
comes later finds no part and is dropped.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from telephony_tts.engines.api import Chunk, Insert, LangSource, Pronunciation, TextFeed, Utterance
from telephony_tts.engines.inserts import Silence
from telephony_tts.session.language import CallLanguage
from telephony_tts.session.marks import TurnMarks
from telephony_tts.session.markup import TurnMarkup
from telephony_tts.session.playout import outlet
from telephony_tts.session.settings import SessionSettings, TurnVoice
from telephony_tts.text.characters import TERMINATORS
from telephony_tts.text.normalizer import SpokenSpan, detect_lang, is_speakable, said_before
from telephony_tts.text.rewriting import spoken_spans
from telephony_tts.text.segmenter import Segmenter, Sentence
from telephony_tts.text.settled import behind, settled_spans
from telephony_tts.text.ssml import (
    MarkupBreak,
    MarkupCut,
    MarkupEmphasis,
    MarkupEvent,
    MarkupMark,
    MarkupReading,
    MarkupStyle,
)
from telephony_tts.text.thinking import Thinking

# Text is fed to the segmenter in pieces of this size until two sentences wait, so the work of a poll is bounded. Markup
# is read in larger pieces, which take about as long.
_PIECE_CHARS = 256
_SENTENCES_AHEAD = 2
_PIECES_AT_ONCE = 4
_MARKUP_PIECE_CHARS = 1024
MayWork = Callable[[], bool]
"""Whether there is time now for a piece of text, which takes up to 3 ms."""
# The segmenter gives an ordinary last word only at the second timeout in a row.
_TIMEOUTS = 2
# How much text of an open sentence is looked at beyond the text that was fed. The segmenter ends any sentence sooner.
_OPEN_CHARS = 512
# An open sentence of this length ends with the text that was fed, when the segmenter ends it at an earlier place.
_LONG_CHARS = 160
STEP_BACK_NS = 3_000_000_000
"""How far behind what was heard speech can go on after a pause: frames that were heard are kept for so long."""
_DIGIT = re.compile(r"\d")


@dataclass(slots=True)
class Part:
    """A sentence of a turn, its utterance, and its place in the audio.

    While a part is open the bot still writes it: `sentence` and the utterance have the text that the engine was given
    so far. `ready_ns` is when the sentence was complete. For a part that began open, it is when the part began.
    A part with `insert` has no text and no words. `n_inserts` counts the inserts of the turn up to this part.
    """

    sentence: Sentence
    index: int
    ready_ns: int
    is_open: bool = False
    insert: Insert | None = None
    n_inserts: int = 0
    spans: list[SpokenSpan] = field(default_factory=list)
    speaking: TurnVoice | None = None
    """How it is spoken, where markup says that. None: as the turn."""
    language: tuple[str, LangSource] | None = None
    """The language of an open part, detected from its beginning. The whole part is read in this language."""
    utterance: Utterance | None = None
    submitted_ns: int | None = None
    begun_ns: int | None = None
    """When the engine began to work on it. Known with its first audio."""
    first_pcm_ns: int | None = None
    is_told: bool = False
    """The bot was told its place in the audio."""
    start_sample: int | None = None
    end_sample: int | None = None
    engine_offset: int = 0
    """Where in `utterance.text` the engine began that speaks now. Above 0 it goes on for one that failed."""
    engine_sample: int | None = None
    """Where its audio begins on the turn's timeline. None until it gave audio."""
    engine_pcm: tuple[int, int] = (0, 1)
    """(samples that it gave, their rate)."""
    engine_estimates: bool = False
    """Its timings of words are estimated."""
    engines: tuple[str, ...] = ()
    """The engines that spoke it, in order, if they are reported."""
    words: list[tuple[int, int]] = field(default_factory=list)
    """(offset in `utterance.text`, sample on the turn's timeline) at which each word ends."""
    word_starts: list[tuple[int, int]] = field(default_factory=list)
    """The same for where each word begins."""
    estimates: bool = False
    """The timings of some words are estimated."""

    def forget_audio(self) -> None:
        """It is spoken again from its beginning."""
        self.start_sample = self.end_sample = self.engine_sample = None
        self.engine_offset = 0
        self.engine_estimates = False
        self.engines = ()
        self.words.clear()
        self.word_starts.clear()


class Turn:
    """See the module text. `seq` is unique within the call and names the turn towards the peer."""

    def __init__(
        self,
        turn_id: str,
        seq: int,
        settings: SessionSettings,
        speaking: TurnVoice,
        language: CallLanguage,
        now_ns: int,
        thinking: Thinking,
        markup: TurnMarkup | None = None,
    ) -> None:
        """`language` is the language of the call. `thinking` leaves out what a reasoning model thinks. `markup` reads
        the text if the bot writes SSML."""
        self.id = turn_id
        self.seq = seq
        self.settings = settings
        self.speaking = speaking
        self._language = language
        self.markup = markup
        self._thinking = thinking
        self._codes_before: dict[int, frozenset[str]] = {}
        """The codes that the call had said before each sentence of the turn, by its place."""
        self.closed = False
        self.is_private = False
        """The engines must not keep its audio."""
        self.traceparent: str | None = None
        """The bot's span that the turn belongs to, as in W3C Trace Context."""
        self.parts: list[Part] = []
        self.encoder, self.playout = outlet(settings)
        self._n_beginnings = 0
        self.begun_ns = now_ns
        self.last_text_ns = now_ns
        self.first_frame_ns: int | None = None
        self.first_audio_ms: float | None = None
        self.is_begun_at_peer = False
        """A peer without marks has reported that it plays the turn."""
        self.underruns = 0
        self.in_gap = False
        """A frame was missing when it was due. The schedule moves when the next frame is sent."""
        self.gap_is_underrun = False
        """The gap is the engine's fault."""
        self.is_dry = False
        """The engine or the bot was late. True until audio comes, so that one underrun counts once."""
        self.ready_since_ns = now_ns
        self.sent_all = False
        self.is_hurried = False
        """It is sent as fast as it is synthesised, because another turn waits behind it."""
        self.marks = TurnMarks()
        self.anchor: tuple[int, int] | None = None
        """(sample, time) of the peer's last report of its place. None too while it has lost its place."""
        self.late: tuple[int, int] = (0, 0)
        """(our `t0_ns`, by how many nanoseconds the peer was late then) at the peer's last report."""
        self.heard_samples = 0
        """Heard before the peer lost its place, or before a pause. We never report less, though some audio may be heard
        again."""
        self.recent: deque[bytes] = deque(maxlen=self._n_kept_frames)
        """The frames that were sent last."""
        self.again: deque[bytes] = deque()
        """Frames to send again, because a pause or a clear of an earlier turn emptied the peer's buffer."""
        self.resumes_at: int | None = None
        """The sample from which speech goes on after a pause. The frame that has it is silent before it."""
        self._unread = ""
        """What the bot wrote and `markup` has not read yet."""
        self._is_read = markup is None
        """`markup` has read all of a turn that is closed."""
        self._pieces: list[str] = []
        self._text = ""
        self.n_chars = self._n_cut = 0
        self._barriers: deque[tuple[int, Insert | None]] = deque()
        """Offsets at which the text is cut, and the insert that follows there."""
        self.n_inserts = 0
        self._n_timeouts = 0
        self._segmenter = Segmenter(speaking.lang, first_clause_chars=settings.first_clause_chars)
        self.n_submitted = 0
        self.n_done = 0
        self.n_skipped = 0
        self.n_lexicon_readings = 0
        """Words that a lexicon read."""
        self._open: Part | None = None
        self._n_spoken = 0
        """Text before this offset was spoken with an open part, though the segmenter still holds some of it."""
        self._last_text: str | None = None
        """The last text of a part that was open, until `more_text` returns it."""

    # ------------------------------------------------------------------ text

    @property
    def text(self) -> str:
        """All text that was received and read so far, without markup. All offsets in the turn refer to it."""
        if self._pieces:
            self._text += "".join(self._pieces)
            self._pieces.clear()
        return self._text

    @property
    def source(self) -> str:
        """All text that was received, as the bot wrote it."""
        return self._thinking.source

    @property
    def n_source_chars(self) -> int:
        return self._thinking.n_chars

    def in_source(self, offset: int) -> int:
        """Where the text before `offset` ends in what the bot wrote: behind the closing tags at this place."""
        return offset if self.markup is None else self.markup.offset(offset)

    def begin_in_source(self, offset: int) -> int:
        """Where the character at `offset` stands in what the bot wrote: behind all tags at this place."""
        return offset if self.markup is None else self.markup.begin(offset)

    def text_of(self, sentence: Sentence) -> str:
        """A sentence as the bot wrote it, with its tags."""
        if self.markup is None and not self._thinking.found:
            return sentence.text
        return self.source[self.in_source(sentence.start) : self.in_source(sentence.end)]

    def append(self, text: str, now_ns: int) -> None:
        self.last_text_ns = now_ns
        self._n_timeouts = 0
        self._take_text(self._thinking.feed(text))

    def _take_text(self, text: str) -> None:
        if self.markup is not None:
            was_read = not self._unread
            self._unread += text
            if was_read:
                self._read_piece(self.markup)
            return
        self._pieces.append(text)
        self.n_chars += len(text)

    def close(self, now_ns: int) -> None:
        """No more text will come."""
        if rest := self._thinking.close():
            self._take_text(rest)
        self.closed = True
        self.last_text_ns = now_ns
        if self.markup is not None and not self._unread:
            self._read_piece(self.markup)

    def read_all(self) -> None:
        """Read all markup that was received: something is to be placed behind it."""
        while self.markup is not None and self._unread:
            self._read_piece(self.markup)

    def _read_piece(self, markup: TurnMarkup) -> None:
        """Read the next piece of what the bot wrote, and the end of the markup behind the last one."""
        piece, self._unread = self._unread[:_MARKUP_PIECE_CHARS], self._unread[_MARKUP_PIECE_CHARS:]
        if piece:
            self._follow(markup, markup.feed(piece))
        if self.closed and not self._unread and not self._is_read:
            self._is_read = True
            self._follow(markup, markup.close())

    def _follow(self, markup: TurnMarkup, events: list[MarkupEvent]) -> None:
        """Do what the bot's markup says, at the end of the text so far."""
        for event in events:
            match event:
                case str():
                    self._pieces.append(event)
                    self.n_chars += len(event)
                case MarkupReading():
                    markup.add_reading(event, self.text[self.n_chars - event.n_chars :], self.n_chars)
                case MarkupBreak(ms):
                    self._insert(Silence(ms))
                case MarkupMark(name):
                    markup.marks.append((name, self.n_chars, self.n_inserts))
                case MarkupStyle():
                    self._flush()
                    markup.begin_style(event, self.n_chars)
                case MarkupEmphasis(is_on):
                    markup.begin_emphasis(is_on, self.n_chars, self.settings.control_tokens)
                case MarkupCut():
                    self._flush()
        if markup.is_plain and self.markup is not None:
            self.markup = None
            self._pieces += (markup.source, self._unread)
            self.n_chars = markup.n_chars + len(self._unread)
            self._unread = ""

    def hurry(self) -> None:
        """Do not pace the rest of the turn."""
        self.is_hurried = True
        self.playout.hurry()
        self.recent = deque(self.recent, maxlen=self._n_kept_frames)

    def flush(self) -> None:
        """Speak the text received so far without waiting for the end of its sentence."""
        self.read_all()
        self._flush()

    def _flush(self) -> None:
        if not self._barriers or self._barriers[-1][0] < self.n_chars:
            self._barriers.append((self.n_chars, None))

    def insert(self, insert: Insert) -> None:
        """Play `insert` behind all the text so far. The text is cut there, as by `flush`."""
        self.read_all()
        self._insert(insert)

    def _insert(self, insert: Insert) -> None:
        self._barriers.append((self.n_chars, insert))
        self.n_inserts += 1

    def inserts(self) -> list[Insert]:
        """All inserts of the turn, in order."""
        found = [part.insert for part in self.parts] + [insert for _, insert in self._barriers]
        return [insert for insert in found if insert is not None]

    def sentence_index(self, part: Part) -> int:
        """The number of a sentence among the sentences of the turn, from 0: inserts have no number."""
        return sum(each.insert is None for each in self.parts[: part.index])

    @property
    def cut_all(self) -> bool:
        """The segmenter has all the text that was received. Some of it may still be pending there."""
        return self._n_cut == self.n_chars and not self._barriers and not self._unread

    @property
    def pending_text(self) -> bool:
        return not self.cut_all or bool(self._segmenter.pending.strip())

    @property
    def is_caught_up(self) -> bool:
        """All the speech that the text so far makes was sent. No sentence waits for a sign that it is complete."""
        waits = self._segmenter.pending.rstrip()[-1:] in TERMINATORS
        return self.cut_all and not waits and self.n_done == len(self.parts) and not self.encoder.n_ready_frames

    @property
    def text_exhausted(self) -> bool:
        """The turn is closed, and every sentence of it is among the parts."""
        return self.closed and not self.pending_text

    @property
    def spoken_out(self) -> bool:
        """All the audio of the turn is in the encoder."""
        return self.text_exhausted and self.n_done == len(self.parts)

    @property
    def waiting_chars(self) -> int:
        """Characters that were received and that the engine does not have yet. Thinking does not wait for it."""
        if self._thinking.found and self.n_submitted == len(self.parts) and not self.pending_text:
            return 0
        begun = self.parts[self.n_submitted - 1].sentence.end if self.n_submitted else 0
        return max(0, self.n_source_chars - self.in_source(begun))

    def cut(self, now_ns: int, may_work: MayWork | None = None) -> bool:
        """Read markup to its end, and cut sentences until two wait for the engine or the text is used up. True if there
        is work left for later. `may_work` is asked before each piece."""
        n_pieces = 0
        while self.markup is not None and self._unread:
            if n_pieces == _PIECES_AT_ONCE or not (may_work is None or may_work()):
                return True
            n_pieces += 1
            self._read_piece(self.markup)
        while len(self.parts) - self.n_submitted < _SENTENCES_AHEAD:
            if self._barriers and self._barriers[0][0] <= self._n_cut:
                offset, insert = self._barriers.popleft()
                self._add(self._segmenter.flush(), now_ns)
                if insert is not None:
                    self._add_insert(insert, offset, now_ns)
                continue
            if self._n_cut < self.n_chars:
                if n_pieces == _PIECES_AT_ONCE or not (may_work is None or may_work()):
                    return True
                n_pieces += 1
                end = min(self.n_chars, self._n_cut + _PIECE_CHARS)
                if self._barriers:
                    end = min(end, self._barriers[0][0])
                piece = self.text[self._n_cut : end]
                if self.markup is not None:
                    piece = self.markup.masked(piece, self._n_cut)
                self._n_cut = end
                self._add(self._segmenter.feed(piece), now_ns)
                continue
            if self.closed and self._segmenter.pending:
                self._add(self._segmenter.flush(), now_ns)
                continue
            break
        return False

    def text_timeout_ns(self) -> int | None:
        """When pending text is spoken because the bot was silent. None if no text is pending."""
        if self.closed or self._n_timeouts == _TIMEOUTS or not self.cut_all or not self._segmenter.pending.strip():
            return None
        return self.last_text_ns + (self._n_timeouts + 1) * self.settings.text_timeout_ms * 1_000_000

    def text_timed_out(self, now_ns: int) -> None:
        """Speak pending text: whole sentences at the first timeout, an ordinary last word at the second.

        Half a number or half an address is never spoken. It waits for more text or for the end of the turn.
        """
        self._n_timeouts += 1
        self._add(self._segmenter.timeout(), now_ns)

    def _add(self, sentences: list[Sentence], now_ns: int) -> None:
        for sentence in sentences:
            if self._open is not None:
                # A sentence that ends inside the text that is already spoken (at a clause, for example) is spoken with
                # the next one. The length is bounded: text without a full stop is cut somewhere in any case.
                if sentence.end >= self._open.sentence.end:
                    self._complete(self._open, sentence.end)
                elif len(self._open.sentence.text) >= _LONG_CHARS:
                    self._n_spoken = self._open.sentence.end
                    self._complete(self._open, self._n_spoken)
                continue
            rest = _behind(sentence, self._n_spoken)
            if rest is not None and is_speakable(rest.text, self.settings.control_tokens):
                part = Part(rest, len(self.parts), now_ns)
                if self.markup is not None:
                    part.sentence = Sentence(self.text[rest.start : rest.end], rest.start, rest.end)
                    part.speaking = self.markup.voice_at(rest.start, self.speaking)
                self._append(part)
            elif rest is not None:
                self.n_skipped += 1

    def _add_insert(self, insert: Insert, offset: int, now_ns: int) -> None:
        self._append(Part(Sentence("", offset, offset), len(self.parts), now_ns, insert=insert))

    def _append(self, part: Part) -> None:
        before = self.parts[-1].n_inserts if self.parts else 0
        part.n_inserts = before + (part.insert is not None)
        self.parts.append(part)

    def next_part(self) -> Part | None:
        """The first sentence that the engine does not have yet."""
        return self.parts[self.n_submitted] if self.n_submitted < len(self.parts) else None

    def open_part(self, now_ns: int) -> Part | None:
        """Begin the sentence that the bot is writing, as far as its reading is certain. None if no text is certain.

        With markup none is begun: a tag that comes later may say how its text is read."""
        if self.settings.text_mode != "interleaved" or not self.cut_all or self.markup is not None:
            return None
        pending = self._segmenter.pending
        pending = pending[max(0, self._n_spoken - (self.n_chars - len(pending))) :].lstrip()
        start, text = self.n_chars - len(pending), pending[:_OPEN_CHARS]
        if said_before(self.text, start).strip():
            return None  # it may be read in another way than its beginning tells
        if not settled_spans(text, self.speaking.lang, self.settings.control_tokens):
            return None
        language = self._language.of(text, self.speaking.lang)
        text = self._certain(text, language)
        spans = settled_spans(text, self._known(language), self.settings.control_tokens)
        if not spans:
            return None
        n_settled = spans[-1].end
        sentence = Sentence(pending[:n_settled], start, start + n_settled)
        self._open = Part(sentence, len(self.parts), now_ns, is_open=True, spans=spans, language=language)
        self._append(self._open)
        return self._open

    def more_text(self) -> tuple[str, bool] | None:
        """(more text for the sentence that the engine speaks, whether it is the last). None if there is no more now."""
        if self._last_text is not None:
            text, self._last_text = self._last_text, None
            return text, True
        part = self._open
        if part is None or part.utterance is None:
            return None
        start, n_fed = part.sentence.start, len(part.sentence.text)
        text = self._certain(self.text[start : start + n_fed + _OPEN_CHARS], part.language)
        more = behind(settled_spans(text, self._known(part.language), self.settings.control_tokens), n_fed)
        if not more:
            return None
        n_settled = more[-1].end
        part.sentence = Sentence(text[:n_settled], start, start + n_settled)
        return self._say_more(part, more), False

    def _complete(self, part: Part, end: int) -> None:
        """The sentence of the open part is complete. It ends at `end` in the turn's text."""
        if part.utterance is None:
            # No engine has its beginning yet: it is read as any other sentence.
            part.sentence = Sentence(self.text[part.sentence.start : end], part.sentence.start, end)
            part.is_open, part.spans, self._open = False, [], None
            return
        n_fed = len(part.sentence.text)
        whole = self.text[part.sentence.start : end]
        self._language.of(whole, self.speaking.lang)  # the sentences after it may not show their language
        lang = self._known(part.language) or detect_lang(whole)
        rest = behind(self._read(Sentence(whole, part.sentence.start, end), lang, part.language, self.speaking), n_fed)
        self._last_text = self._say_more(part, rest)
        part.sentence = Sentence(whole, part.sentence.start, end)
        part.is_open = False
        self._open = None

    def _say_more(self, part: Part, spans: list[SpokenSpan]) -> str:
        """Append the spoken text of `spans` to the utterance of `part`, and return that text."""
        assert part.utterance is not None
        text = "".join(span.spoken for span in spans)
        part.spans = [*part.spans, *spans]
        part.utterance = replace(part.utterance, text=part.utterance.text + text)
        return text

    def _read(
        self, sentence: Sentence, lang: str, language: tuple[str, LangSource] | None, speaking: TurnVoice
    ) -> list[SpokenSpan]:
        """The spoken form of a sentence by the rules of `lang`. `language` is what it is written in."""
        text, control, lexicon, markup = sentence.text, self.settings.control_tokens, speaking.lexicon, self.markup
        before = said_before(self.text, sentence.start)
        # A sentence that is read again, for another engine, is read the same: it does not know its own codes.
        codes = set(self._codes_before.setdefault(sentence.start, frozenset(self._language.codes)))
        readings = [] if markup is None else markup.readings(text, sentence.start, lang)
        if lexicon is not None:
            found = lexicon.readings(text, lang if language is None else language[0], speaking.voice)
            self.n_lexicon_readings += len(found)
            tagged = list(readings)
            readings += [each for each in found if all(each.end <= t.start or t.end <= each.start for t in tagged)]
        spans = spoken_spans(text, lang, control, readings, before, codes)
        self._language.codes |= codes
        return spans if markup is None else markup.emphasised(spans, sentence.start, sentence.end, control)

    def _certain(self, text: str, language: tuple[str, LangSource] | None) -> str:
        """The beginning of a sentence that is being written, as far as no lexicon changes it."""
        lexicon = self.speaking.lexicon
        if lexicon is None:
            return text
        lang = detect_lang(text) if language is None else language[0]
        return text[: lexicon.may_begin(text, lang, self.speaking.voice)]

    def _known(self, language: tuple[str, LangSource] | None) -> str | None:
        """The language in which a sentence is read, whatever text follows. None if its letters decide: not those that
        Japanese has in common with Chinese."""
        if language is None or (language[1] == "letters" and language[0] != "ja"):
            return None
        return self._language.reading(language, self.speaking.voice)

    def given_text(self, part: Part) -> tuple[str, bool]:
        """(the text of the utterance that its engine was given so far, whether that is all of it)."""
        assert part.utterance is not None
        text, waiting = part.utterance.text, self._last_text
        if waiting is None or part is not self.parts[self.n_submitted - 1]:
            return text, not part.is_open
        return text[: len(text) - len(waiting)], False

    @property
    def waits_for_bot(self) -> bool:
        """The engine speaks a sentence of which it lacks text, so silence is not the engine's fault."""
        return self._last_text is not None or (self._open is not None and not self.text_exhausted)

    def submit(self, part: Part, deadline_ns: int, now_ns: int) -> Utterance:
        """Normalise the sentence and make its utterance. The settled text of an open part is normalised already."""
        speaking = part.speaking or self.speaking
        text = part.sentence.text
        language = part.language or self._language.of(text, speaking.lang)
        if not part.is_open and part.insert is None:
            lang = self._language.reading(language, speaking.voice)
            part.spans = self._read(part.sentence, lang, language, speaking)
        part.utterance = Utterance(
            id=f"{self.settings.session}/{self.seq}/{part.index}" + "'" * self._n_beginnings,
            text="".join(span.spoken for span in part.spans),
            voice=speaking.voice,
            lang=language[0],
            lang_source=language[1],
            speed=speaking.speed,
            seed=speaking.seed,
            instruct=speaking.instruct,
            call=self.settings.call,
            turn=self.id,
            deadline_ns=deadline_ns,
            follows=self.n_submitted > 0,
            can_wait=self.settings.patience_ms > 0,
            more=TextFeed() if part.is_open else None,
            insert=part.insert,
            is_private=self.is_private,
            has_digits=_DIGIT.search(text) is not None or self._has_digits_in_tags(part.sentence),
            pronunciations=_pronunciations(part.spans) if speaking.lexicon or self.markup else (),
        )
        part.submitted_ns = now_ns
        self.n_submitted += 1
        return part.utterance

    def _has_digits_in_tags(self, sentence: Sentence) -> bool:
        """Whether the bot wrote digits in tags around or inside the sentence, such as those of an alias."""
        if self.markup is None:
            return False
        return _DIGIT.search(self.source[self.in_source(sentence.start) : self.in_source(sentence.end)]) is not None

    def begin_again(self, settings: SessionSettings) -> None:
        """Synthesise the whole turn again, with `settings`. None of it was sent, and its utterance was cancelled."""
        self.settings = settings
        self.encoder, self.playout = outlet(settings)
        self.recent = deque(maxlen=self._n_kept_frames)
        self._n_beginnings += 1  # late audio of the cancelled utterance must not match the new one's id
        self.n_submitted = self.n_done = 0
        self._last_text = None
        if self._open is not None:
            self.parts.remove(self._open)  # the segmenter still has its text
            self._open = None
        for part in self.parts:
            part.utterance = part.submitted_ns = part.begun_ns = part.first_pcm_ns = None
            part.forget_audio()
        self.marks.begin_again()

    # ----------------------------------------------------------------- audio

    def take(self, part: Part, chunk: Chunk, gain_db: float, now_ns: int) -> None:
        """Take audio of `part`. Audio comes for one part at a time."""
        if part.engine_sample is None:
            part.engine_sample, part.engine_pcm = self.encoder.begin(gain_db), (0, 1)
        if part.start_sample is None:
            part.first_pcm_ns = now_ns
            assert part.submitted_ns is not None
            part.begun_ns = min(part.submitted_ns + chunk.queued_ns, now_ns)
            part.start_sample = part.engine_sample
        self.is_dry = False
        if not self.encoder.n_ready_frames:
            self.ready_since_ns = now_ns
        self.encoder.feed(chunk.pcm, chunk.sample_rate_hz)
        part.estimates |= chunk.estimates
        part.engine_estimates |= chunk.estimates
        part.engine_pcm = part.engine_pcm[0] + len(chunk.pcm), chunk.sample_rate_hz
        for timing in chunk.timings:
            for offset, sample, known in (
                (timing.start_char, timing.start_sample, part.word_starts),
                (timing.end_char, timing.end_sample, part.words),
            ):
                at = part.engine_sample + sample * self.settings.rate_hz // chunk.sample_rate_hz
                known.append((part.engine_offset + offset, at))

    def cut_part(self, part: Part) -> None:
        """Drop the audio of `part`, which the engine has not ended, as far as it was not sent."""
        if part.start_sample is not None:
            self.encoder.cut_open(part.start_sample)
        self.end_part(part)

    def repeat(self, part: Part, insert: Insert, now_ns: int) -> None:
        """Play `insert` behind `part`, the last one that was submitted, as its continuation."""
        more = Part(part.sentence, 0, now_ns, insert=insert, n_inserts=part.n_inserts)
        self.parts.insert(self.n_submitted, more)
        for index, each in enumerate(self.parts):
            each.index = index

    def end_part(self, part: Part) -> None:
        if part.engine_sample is None:
            part.engine_sample = self.encoder.begin(0.0)
        if part.start_sample is None:
            part.start_sample = part.engine_sample
        part.end_sample = self.encoder.end()
        self.n_done += 1

    def fade_frame(self) -> bytes | None:
        """A frame that fades out what would be sent next. None if nothing is ready. It takes no audio."""
        return self.encoder.fade_frame(self.again[0] if self.again else None)

    def take_back_unplayed(self, n_played: int) -> bool:
        """The peer dropped the frames that it had not played, so they are sent again. False if it dropped none."""
        if n_played >= self.playout.n_sent:
            return False
        self.take_back(n_played)
        return True

    def take_back(self, n_frames: int) -> None:
        """Send the frames from number `n_frames` on again, as far as they are kept. The schedule starts anew then."""
        n_lost = min(self.playout.n_sent - n_frames, len(self.recent))
        for _ in range(n_lost):
            self.again.appendleft(self.recent.pop())
        self.playout.stop(self.playout.n_sent - n_lost)
        self.sent_all = self.in_gap = self.gap_is_underrun = False
        self.marks.take_back(self.n_sent_samples)

    @property
    def _n_kept_frames(self) -> int:
        """How many frames that were sent are kept: those that the peer may not have played, because a clear of an
        earlier turn makes the peer drop them, and those that may be repeated after a pause. A peer that keeps turns
        apart drops none."""
        if self.settings.separate_turns:
            return 0
        return (self.playout.lead_ns + STEP_BACK_NS) // self.playout.ptime_ns + 1

    @property
    def frame_samples(self) -> int:
        return self.settings.rate_hz * self.settings.ptime_ms // 1000

    @property
    def n_sent_samples(self) -> int:
        return self.playout.n_sent * self.frame_samples

    def ready_ns(self) -> int:
        """Playing time of the frames that are encoded and not sent yet."""
        return (self.encoder.n_ready_frames + len(self.again)) * self.playout.ptime_ns


def _pronunciations(spans: list[SpokenSpan]) -> tuple[Pronunciation, ...]:
    """The sounds of `spans`, in the characters of their spoken text."""
    found: list[Pronunciation] = []
    at = 0
    for span in spans:
        end = at + len(span.spoken)
        if span.sounds is not None:
            found.append(Pronunciation(end - len(span.spoken.lstrip()), end, *span.sounds))
        at = end
    return tuple(found)


def _behind(sentence: Sentence, offset: int) -> Sentence | None:
    """The rest of a sentence behind `offset` of the turn's text. None if there is no rest."""
    if sentence.start >= offset:
        return sentence
    text = sentence.text[offset - sentence.start :].lstrip()
    return Sentence(text, sentence.end - len(text), sentence.end) if text else None
