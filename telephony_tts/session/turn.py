"""One turn: the bot's text, the sentences cut from it, and the audio they became.

Text is cut lazily, a little at a time and only as far ahead as speech needs, so a turn of 4,000 characters costs
the event loop no more at once than a short one. A turn owns everything that is its own (segmenter, encoder,
schedule, marks) and all of it goes when the turn goes; audio that comes later finds no part to belong to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from telephony_tts.engines.api import Chunk, LangSource, TextFeed, Utterance
from telephony_tts.session.language import CallLanguage
from telephony_tts.session.marks import TurnMarks
from telephony_tts.session.playout import outlet
from telephony_tts.session.settings import SessionSettings
from telephony_tts.text.normalizer import Span, detect_lang, is_speakable, normalize_spans
from telephony_tts.text.segmenter import Segmenter, Sentence
from telephony_tts.text.settled import behind, settled_spans

# Text is fed to the segmenter in pieces of this size until two sentences wait: bounded work per poll.
_PIECE_CHARS = 256
_SENTENCES_AHEAD = 2
_PIECES_AT_ONCE = 4
# The segmenter lets an ordinary last word go only when asked again with nothing fed between.
_TIMEOUTS = 2
# How much of an open sentence is looked at beyond what was fed; the segmenter ends any sentence sooner.
_OPEN_CHARS = 512
# From this length on, an open sentence that the segmenter gives up waiting for ends with what was fed.
_LONG_CHARS = 160


@dataclass(slots=True)
class Part:
    """A sentence on its way to speech.

    While it is open the bot still writes it: `sentence` and the utterance's text are what of it was given to the
    engine so far. `ready_ns` is when the sentence was complete, of a part that began open when it began.
    """

    sentence: Sentence
    index: int
    ready_ns: int
    is_open: bool = False
    spans: list[Span] = field(default_factory=list)
    language: tuple[str, LangSource] | None = None
    """The language of an open part, told from its beginning. The whole part is read in it."""
    utterance: Utterance | None = None
    submitted_ns: int | None = None
    begun_ns: int | None = None
    """When the engine took it up; known with its first audio."""
    first_pcm_ns: int | None = None
    is_told: bool = False
    """The bot knows of its place."""
    start_sample: int | None = None
    end_sample: int | None = None
    words: list[tuple[int, int]] = field(default_factory=list)
    """(offset in `utterance.text`, sample on the turn's timeline) at which each word ends."""


@dataclass(frozen=True, slots=True)
class TurnVoice:
    """The voice settings a turn begins with."""

    voice: str | None
    lang: str | None
    speed: float
    seed: int | None
    instruct: str | None


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
    ) -> None:
        """`language` is the call's."""
        self.id = turn_id
        self.seq = seq
        self.settings = settings
        self.speaking = speaking
        self._language = language
        self.closed = False
        self.parts: list[Part] = []
        self.encoder, self.playout = outlet(settings)
        self._n_beginnings = 0
        self.begun_ns = now_ns
        self.last_text_ns = now_ns
        self.first_frame_ns: int | None = None
        self.first_audio_ms: float | None = None
        self.underruns = 0
        self.in_gap = False
        """A frame was missing when it was due: the schedule moves when the next one goes out."""
        self.is_dry = False
        """The engine or the bot was late; true until audio comes, so that one lateness counts once."""
        self.ready_since_ns = now_ns
        self.sent_all = False
        self.marks = TurnMarks()
        self.anchor: tuple[int, int] | None = None
        """(sample, time) at which the peer last told us where it was; None also where it has lost its place."""
        self.heard_samples = 0
        """Heard before the peer lost its place. We never report less, though the peer may play some of it again."""
        self.recent: deque[bytes] = deque()
        self.again: deque[bytes] = deque()
        """Frames to send once more, because a clear of an earlier turn emptied the peer's buffer."""
        self._pieces: list[str] = []
        self._text = ""
        self.n_chars = self._n_cut = 0
        self._barriers: deque[int] = deque()
        self._n_timeouts = 0
        self._segmenter = Segmenter(speaking.lang, first_clause_chars=settings.first_clause_chars)
        self.n_submitted = 0
        self.n_done = 0
        self.n_skipped = 0
        self._open: Part | None = None
        self._n_spoken = 0
        """Text before this was spoken with an open part, though the segmenter still holds some of it."""
        self._last_text: str | None = None
        """The end of what was the open part, until `more_text` hands it over."""

    # ------------------------------------------------------------------ text

    @property
    def text(self) -> str:
        """All text received so far, as the bot wrote it."""
        if self._pieces:
            self._text += "".join(self._pieces)
            self._pieces.clear()
        return self._text

    def append(self, text: str, now_ns: int) -> None:
        self._pieces.append(text)
        self.n_chars += len(text)
        self.last_text_ns = now_ns
        self._n_timeouts = 0

    def close(self, now_ns: int) -> None:
        """No more text will come."""
        self.closed = True
        self.last_text_ns = now_ns

    def flush(self) -> None:
        """What was received so far is to be spoken without waiting for the end of its sentence."""
        if not self._barriers or self._barriers[-1] < self.n_chars:
            self._barriers.append(self.n_chars)

    @property
    def cut_all(self) -> bool:
        """No received text waits in front of the segmenter (some may still be pending inside it)."""
        return self._n_cut == self.n_chars and not self._barriers

    @property
    def pending_text(self) -> bool:
        return not self.cut_all or bool(self._segmenter.pending.strip())

    @property
    def text_exhausted(self) -> bool:
        """Closed, and every sentence of it is among the parts."""
        return self.closed and not self.pending_text

    @property
    def spoken_out(self) -> bool:
        """All the audio of the turn is in the encoder."""
        return self.text_exhausted and self.n_done == len(self.parts)

    @property
    def waiting_chars(self) -> int:
        """Characters received and not yet given to the engine."""
        begun = self.parts[self.n_submitted - 1].sentence.end if self.n_submitted else 0
        return max(0, self.n_chars - begun)

    def cut(self, now_ns: int) -> bool:
        """Cut sentences until two wait for the engine or the text is used up; True if it was too much for one go."""
        end_of_work = self._n_cut + _PIECES_AT_ONCE * _PIECE_CHARS
        while len(self.parts) - self.n_submitted < _SENTENCES_AHEAD:
            if self._barriers and self._barriers[0] <= self._n_cut:
                self._barriers.popleft()
                self._add(self._segmenter.flush(), now_ns)
                continue
            if self._n_cut >= end_of_work:
                return True
            if self._n_cut < self.n_chars:
                end = min(self.n_chars, self._n_cut + _PIECE_CHARS)
                if self._barriers:
                    end = min(end, self._barriers[0])
                piece = self.text[self._n_cut : end]
                self._n_cut = end
                self._add(self._segmenter.feed(piece), now_ns)
                continue
            if self.closed and self._segmenter.pending:
                self._add(self._segmenter.flush(), now_ns)
                continue
            break
        return False

    def text_timeout_ns(self) -> int | None:
        """When the bot will have been silent for so long that pending text is spoken; None if there is none."""
        if self.closed or self._n_timeouts == _TIMEOUTS or not self.cut_all or not self._segmenter.pending.strip():
            return None
        return self.last_text_ns + (self._n_timeouts + 1) * self.settings.text_timeout_ms * 1_000_000

    def text_timed_out(self, now_ns: int) -> None:
        """Say what is pending: whole sentences at the first timeout, an ordinary last word at the second.

        Half a number or address is never said; it waits for more text or the end of the turn.
        """
        self._n_timeouts += 1
        self._add(self._segmenter.timeout(), now_ns)

    def _add(self, sentences: list[Sentence], now_ns: int) -> None:
        for sentence in sentences:
            if self._open is not None:
                # A sentence that ends inside what is being spoken already (at a clause, say) is spoken with the next,
                # but not for ever: a bot that writes no full stop is cut somewhere, as it is when text waits.
                if sentence.end >= self._open.sentence.end:
                    self._complete(self._open, sentence.end)
                elif len(self._open.sentence.text) >= _LONG_CHARS:
                    self._n_spoken = self._open.sentence.end
                    self._complete(self._open, self._n_spoken)
                continue
            rest = _behind(sentence, self._n_spoken)
            if rest is not None and is_speakable(rest.text):
                self.parts.append(Part(rest, len(self.parts), now_ns))
            elif rest is not None:
                self.n_skipped += 1

    def next_part(self) -> Part | None:
        """The first sentence the engine has not been given yet."""
        return self.parts[self.n_submitted] if self.n_submitted < len(self.parts) else None

    def open_part(self, now_ns: int) -> Part | None:
        """Begin the sentence the bot is writing, as far as its reading is certain; None if that is nothing yet."""
        if self.settings.text_mode != "interleaved" or not self.cut_all:
            return None
        pending = self._segmenter.pending
        pending = pending[max(0, self._n_spoken - (self.n_chars - len(pending))) :].lstrip()
        text = pending[:_OPEN_CHARS]
        if not settled_spans(text, self.speaking.lang, self.settings.control_tokens):
            return None
        language = self._language.of(text, self.speaking.lang)
        spans = settled_spans(text, self._known(language), self.settings.control_tokens)
        if not spans:
            return None
        start, n_settled = self.n_chars - len(pending), spans[-1].end
        sentence = Sentence(pending[:n_settled], start, start + n_settled)
        self._open = Part(sentence, len(self.parts), now_ns, is_open=True, spans=spans, language=language)
        self.parts.append(self._open)
        return self._open

    def more_text(self) -> tuple[str, bool] | None:
        """What the engine can be given now of the sentence it has begun, and whether that ends it; None for nothing."""
        if self._last_text is not None:
            text, self._last_text = self._last_text, None
            return text, True
        part = self._open
        if part is None or part.utterance is None:
            return None
        start, n_fed = part.sentence.start, len(part.sentence.text)
        text = self.text[start : start + n_fed + _OPEN_CHARS]
        more = behind(settled_spans(text, self._known(part.language), self.settings.control_tokens), n_fed)
        if not more:
            return None
        n_settled = more[-1].end
        part.sentence = Sentence(text[:n_settled], start, start + n_settled)
        return self._say_more(part, more), False

    def _complete(self, part: Part, end: int) -> None:
        """The sentence of the open part is there: it ends at `end` in the turn's text."""
        n_fed = len(part.sentence.text)
        whole = self.text[part.sentence.start : end]
        self._language.of(whole, self.speaking.lang)  # the sentences after it may not show theirs
        lang = self._known(part.language) or detect_lang(whole)
        rest = behind(normalize_spans(whole, lang, self.settings.control_tokens), n_fed)
        self._last_text = self._say_more(part, rest)
        part.sentence = Sentence(whole, part.sentence.start, end)
        part.is_open = False
        self._open = None

    def _say_more(self, part: Part, spans: list[Span]) -> str:
        """The utterance of `part` grows by what `spans` say; returns that."""
        assert part.utterance is not None
        text = "".join(span.spoken for span in spans)
        part.spans = [*part.spans, *spans]
        part.utterance = replace(part.utterance, text=part.utterance.text + text)
        return text

    def _known(self, language: tuple[str, LangSource] | None) -> str | None:
        """The language that a sentence is read in whatever follows; None where its letters decide."""
        if language is None or language[1] == "letters":
            return None
        return self._language.reading(language, self.speaking.voice)

    @property
    def waits_for_bot(self) -> bool:
        """The engine speaks a sentence whose end it was not given yet: it cannot be blamed for silence."""
        return self._last_text is not None or (self._open is not None and not self.text_exhausted)

    def submit(self, part: Part, deadline_ns: int, now_ns: int) -> Utterance:
        """Normalise the sentence and make the utterance of it; what settled of an open one was normalised already."""
        speaking = self.speaking
        text = part.sentence.text
        language = part.language or self._language.of(text, speaking.lang)
        if not part.is_open:
            lang = self._language.reading(language, speaking.voice)
            part.spans = normalize_spans(text, lang, self.settings.control_tokens)
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
            more=TextFeed() if part.is_open else None,
        )
        part.submitted_ns = now_ns
        self.n_submitted += 1
        return part.utterance

    def begin_again(self, settings: SessionSettings) -> None:
        """Nothing of it was sent: all is to be spoken anew, as `settings` have it. Its utterance was cancelled."""
        self.settings = settings
        self.encoder, self.playout = outlet(settings)
        self._n_beginnings += 1  # what a cancelled utterance leaves behind must not meet the new one's name
        self.n_submitted = self.n_done = 0
        self._last_text = None
        if self._open is not None:
            self.parts.remove(self._open)  # the segmenter still has its text
            self._open = None
        for part in self.parts:
            part.utterance = part.submitted_ns = part.begun_ns = part.first_pcm_ns = None
            part.start_sample = part.end_sample = None
            part.words.clear()
        self.marks.begin_again()

    # ----------------------------------------------------------------- audio

    def take(self, part: Part, chunk: Chunk, gain_db: float, now_ns: int) -> None:
        """Audio of `part`; it may only come for one part at a time."""
        if part.start_sample is None:
            part.first_pcm_ns = now_ns
            assert part.submitted_ns is not None
            part.begun_ns = min(part.submitted_ns + chunk.queued_ns, now_ns)
            part.start_sample = self.encoder.begin(gain_db)
        self.is_dry = False
        if not self.encoder.n_ready_frames:
            self.ready_since_ns = now_ns
        self.encoder.feed(chunk.pcm, chunk.sample_rate_hz)
        for timing in chunk.timings:
            at = part.start_sample + timing.end_sample * self.settings.rate_hz // chunk.sample_rate_hz
            part.words.append((timing.end_char, at))

    def end_part(self, part: Part) -> None:
        if part.start_sample is None:
            part.start_sample = self.encoder.begin(0.0)
        part.end_sample = self.encoder.end()
        self.n_done += 1

    def take_back_unplayed(self, now_ns: int, heard_samples: int) -> bool:
        """The peer lost what it had not played: those frames are to be sent again. False if there are none.

        A peer that plays sentences has no schedule but its own: there `heard_samples` says what it has played.
        """
        if self.settings.whole_sentences:
            n_played = heard_samples // self.frame_samples
        else:
            n_played = self.playout.played_ns(now_ns) // self.playout.ptime_ns
        n_lost = self.playout.n_sent - n_played
        if n_lost <= 0:
            return False
        self.again.extendleft(reversed(list(self.recent)[-n_lost:]))
        self.recent.clear()
        self.playout.n_sent = n_played
        self.sent_all = False
        self.marks.take_back(self.n_sent_samples)
        return True

    @property
    def frame_samples(self) -> int:
        return self.settings.rate_hz * self.settings.ptime_ms // 1000

    @property
    def n_sent_samples(self) -> int:
        return self.playout.n_sent * self.frame_samples

    def ready_ns(self) -> int:
        """Playing time of what is encoded and not yet sent."""
        return (self.encoder.n_ready_frames + len(self.again)) * self.playout.ptime_ns


def _behind(sentence: Sentence, offset: int) -> Sentence | None:
    """What of a sentence lies behind `offset` of the turn's text; None for nothing."""
    if sentence.start >= offset:
        return sentence
    text = sentence.text[offset - sentence.start :].lstrip()
    return Sentence(text, sentence.end - len(text), sentence.end) if text else None
