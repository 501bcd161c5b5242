"""What `play` asks for: sounds in the order of the speech, and the bed under it."""

from __future__ import annotations

from telephony_tts.audio.encoder import frame_samples
from telephony_tts.audio.sound import Sound
from telephony_tts.runtime.errors import SoundError
from telephony_tts.session.bed import BED_GAIN_DB, Bed
from telephony_tts.session.digits import Digits
from telephony_tts.session.effects import Effect, LoadBed
from telephony_tts.session.intake import Intake
from telephony_tts.session.sender import Sender
from telephony_tts.session.settings import SessionSettings
from telephony_tts.session.sound_insert import SoundInsert
from telephony_tts.session.sound_source import FindSound
from telephony_tts.session.supply import Supply
from telephony_tts.session.turn import Part, Turn
from telephony_tts.wire import messages as m

MOST_SOUNDS = 64
"""How many sounds of a call may wait or play."""
_SEGMENT_MS = 8_000
_SHORT_SEGMENT_MS = 2_000
"""The length of the files for a peer that plays files. Speech waits for the end of the file that plays."""


class Sounds:
    """The sounds of one call. `turns` and `out` are the session's own lists. Without `find` the call has no sounds."""

    def __init__(
        self, find: FindSound | None, turns: list[Turn], intake: Intake, supply: Supply, sender: Sender,
        out: list[Effect],
    ) -> None:  # fmt: skip
        self._find = find
        self._turns = turns
        self._intake = intake
        self._supply = supply
        self._sender = sender
        self._out = out
        self._bed: Bed | None = None
        """The bed that plays or is wanted."""
        self._is_loading = False
        """A bed is being loaded: the one that is wanted, or an earlier one."""
        self._inserts: list[SoundInsert] = []
        """Those that wait in a turn or are being played."""

    def play(self, message: m.Play, settings: SessionSettings, now_ns: int) -> None:
        """Play a sound, or end sounds."""
        name = message.name or message.url
        if message.stop:
            self._stop(message.turn)
        elif self._find is None or name is None:
            self._refuse(message, "unknown_sound", "this call has no sounds")
        elif message.under:
            self._begin_bed(message, self._find, name, settings)
        elif len(self._inserts) >= MOST_SOUNDS:
            self._refuse(message, "queue_full", f"{len(self._inserts)} sounds are waiting, the limit is {MOST_SOUNDS}")
        else:
            until_speech = message.loop == m.UNTIL_SPEECH
            insert = SoundInsert(
                self._find(name), lambda: self._intake.settings.rate_hz, message.gain_db or 0.0,
                loop=bool(message.loop), until_speech=until_speech,
            )  # fmt: skip
            turn = self._intake.insert(insert, message.turn, now_ns)
            if turn is not None:
                self._add(insert, turn)

    def _add(self, insert: SoundInsert, turn: Turn) -> None:
        insert.turn = turn.id
        self._inserts.append(insert)

    def _refuse(self, message: m.Play, code: str, why: str) -> None:
        self._out.append(m.ErrorEvent(code, why, about=message.turn))

    def turn_ended(self, turn_id: str) -> None:
        """A turn is over, and with it the bed and the sounds that belong to it."""
        if self._bed is not None and self._bed.turn == turn_id:
            self._end_bed()
        if self._inserts:
            self._inserts = [insert for insert in self._inserts if insert.turn != turn_id]

    def _stop(self, turn_id: str | None) -> None:
        if self._bed is not None and turn_id in (None, self._bed.turn):
            self._end_bed()
        for insert in self._inserts:
            insert.is_stopped |= turn_id in (None, insert.turn)
        self._cut()

    # ------------------------------------------------------------- in order

    def watch(self) -> bool:
        """End the sounds behind which speech waits. True if one was being played."""
        if not self._inserts:
            return False
        for insert in self._inserts:
            insert.segment_ms = None
        is_waited_for = False
        for turn in reversed(self._turns):
            for part in reversed(turn.parts):
                if part.insert is None or isinstance(part.insert, Digits):
                    is_waited_for = True
                elif isinstance(part.insert, SoundInsert):
                    part.insert.is_stopped |= is_waited_for and part.insert.until_speech
                    if turn.settings.whole_sentences:
                        part.insert.segment_ms = _SHORT_SEGMENT_MS if part.insert.until_speech else _SEGMENT_MS
        return self._cut()

    def end_loops(self) -> None:
        """The call is to end when its turns are over, so no sound may be endless."""
        for insert in self._inserts:
            insert.is_stopped |= insert.loop
        self._cut()

    def _cut(self) -> bool:
        """End the sound that is being played, if it was stopped. What was sent of it is still heard."""
        found = self._supply.insert
        if found is None:
            return False
        turn, part = found
        if not isinstance(part.insert, SoundInsert) or not part.insert.is_stopped:
            return False
        self._supply.drop(turn)
        turn.cut_part(part)
        self._sender.sentence_ended(turn, part)
        self._remove(part.insert)
        return True

    def continues(self, turn: Turn, part: Part, now_ns: int) -> bool:
        """All the audio of an insert has come. True if it was a segment, and another part plays the rest."""
        if not isinstance(part.insert, SoundInsert):
            return False
        self._remove(part.insert)
        rest = part.insert.rest()
        if rest is None:
            return False
        self._add(rest, turn)
        turn.repeat(part, rest, now_ns)
        return True

    def _remove(self, insert: SoundInsert) -> None:
        if insert in self._inserts:
            self._inserts.remove(insert)

    # ------------------------------------------------------------- under the speech

    def _begin_bed(self, message: m.Play, find: FindSound, name: str, settings: SessionSettings) -> None:
        if message.turn is not None and self._intake.named(message.turn, "play") is None:
            return
        self._end_bed()
        gain_db = BED_GAIN_DB if message.gain_db is None else message.gain_db
        until_speech = message.loop == m.UNTIL_SPEECH
        loop = message.loop is not False
        self._bed = Bed(find(name), gain_db, loop=loop, until_speech=until_speech, turn=message.turn)
        self._load(self._bed, settings)

    def _load(self, bed: Bed, settings: SessionSettings) -> None:
        if settings.whole_sentences:
            self._end_bed()
            why = "the media leg plays files, and nothing between them: no sound can be played under the speech"
            self._intake.warn("bed_not_supported", why, bed.turn)
        elif not self._is_loading:
            # One at a time, so that a bot that asks for many does not keep the readers from other calls.
            self._is_loading = True
            self._out.append(LoadBed(bed, settings.rate_hz))

    def format_changed(self, settings: SessionSettings) -> None:
        """Frames have this format from now on."""
        self._sender.bed = None
        if self._bed is not None and not self._bed.is_over:
            self._load(self._bed, settings)

    def bed_loaded(self, bed: Bed, sound: Sound, settings: SessionSettings) -> None:
        """The sound of a bed was read. Nothing happens if the bed has ended, or is wanted at another rate."""
        self._is_loading = False
        if bed is not self._bed or sound.rate_hz != settings.rate_hz:
            self._load_newest(settings)
            return
        bed.start(sound, settings.codec, frame_samples(settings.rate_hz, settings.ptime_ms))
        self._sender.bed = bed

    def bed_failed(self, bed: Bed, error: SoundError, settings: SessionSettings) -> None:
        """The sound of a bed cannot be played."""
        self._is_loading = False
        if bed is self._bed:
            self._bed = None
            self._out.append(m.ErrorEvent(error.code, error.message, about=bed.turn))
        else:
            self._load_newest(settings)

    def _load_newest(self, settings: SessionSettings) -> None:
        """Another bed was asked for while one was being read."""
        if self._bed is not None and not self._bed.is_over:
            self._load(self._bed, settings)

    def _end_bed(self) -> None:
        if self._bed is not None:
            self._bed.stop()
            self._bed = None
