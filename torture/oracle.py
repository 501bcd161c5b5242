"""What may come next on a bot's socket, by PROTOCOL.md alone. No I/O: the times come from the caller.

`NativeOracle` is told all that a bot sends and all that it gets, and adds each promise that did not hold to its tally.
With a media leg, `frame` and `media_clear` are what that leg gets. The order between two sockets is not known, so the
checks that compare them allow for `CROSS_NS`.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torture import violations as v
from torture.caller_rules import SURE_MS, CallerRules
from torture.letters import LETTERS, MS_PER_LETTER, SLOWEST, FrameReader
from torture.player import Player
from torture.sound_rules import SoundRules
from torture.violations import CROSS_NS, RecordingEnd, Stops, Tally, Violation, log_lines

MS = 1_000_000
_GAP_NS = 80 * MS
"""A recording has a gap where a mark comes this much later."""
_LONGEST_STOP_NS = 3000 * MS
_HOUR_NS = 3_600_000 * MS
_SURE_MS = 200
"""So long a voice must be for the stand-in of the detector that calls on the virtual clock have."""
_TONES_NS = 3000 * MS
"""The longest tones that are asked for."""
_REST_OF_TONE_NS = 60 * MS
"""A tone of 100 ms that was heard for 40 ms is a key, and what is left of it is not sent again."""
_SURELY_HEARD_NS = 40 * MS
"""Speech that the player still has goes on for so long at least."""
_PAUSE_NS = 200 * MS
_ATTACHED = ".,!? "
_TAG = re.compile("<[^>]*>")
_MARK = re.compile('<mark name="([^"]*)"/>')
_SOUND_S = 6.0
"""The longest sound that is played."""
_FAILURES = ("no_media", "engine_failed", "engine_unavailable")
"""How turns may end if an engine may fail. A call whose media leg does not come has `no_media` in any case."""
_WARNINGS = (
    "turn_ended",
    "empty_text",
    "dtmf_cleared",
    "dtmf_not_supported",
    "unknown_voice",
    "barge_in_unavailable",
    "no_caller_audio",
    "recording_unchanged",
)
_LOG_LINES = 2000


@dataclass(frozen=True, slots=True)
class Interruption:
    """A `clear` that the bot sent: how much of the turn was heard then, how much of its text was sent, and when."""

    heard_ns: int
    n_chars: int
    asked_ns: int


@dataclass(frozen=True, slots=True)
class HeardPlace:
    """A place that the server reported, for the figures: how far it was from the player's."""

    begin_ns: int
    end_ns: int
    error_ns: int
    by_marks: bool
    is_word_right: bool
    was_moved: bool
    """Frames were dropped and came again, so the player's place is known to some frames only."""
    has_words: bool


@dataclass(slots=True)
class TurnTrack:
    """One turn, as a client knows it."""

    id: str
    letter: str
    number: int
    begun_ns: int
    source: str = ""
    lengths: set[int] = field(default_factory=set)
    """The lengths that the text has had."""
    n_sounds: int = 0
    is_closed: bool = False
    interruptions: list[Interruption] = field(default_factory=list)
    started_ns: int | None = None
    end: str = ""
    ended_ns: int = 0
    was_hung_up: bool = False
    """Its telephone has gone, and with that the leg which would have got a clear."""
    asked_ns: int = 0
    """When the bot asked for the clear that ended it: the telephone side is told later. 0 if it was told before, by the
    clear of a pause, or if something else ended the turn."""
    left_ns: int = 0
    """How much of it the telephone side still had to play when it was cleared."""
    n_frames: int = 0
    next_ns: int = 0
    """The place of the next frame in the audio of the turn."""
    n_moves: int = 0
    """How often frames were dropped that may come again."""
    was_paused: bool = False
    """Some of it may be heard again."""
    is_under_bed: bool = False
    """A sound was under it, so silence of the turn is not told from frames of the sound alone."""
    has_letters: bool = False
    n_leading: int = 0
    """Frames before its first letter. They may be silence at the end of the turn before."""
    shares_silence: bool = False
    """Frames were dropped, and of those that came again the ones without a letter may be its own or another turn's."""
    slack_ns: int = 0
    """What a pause adds to the tolerance: the caller heard so much between its request and its answer."""
    n_sentences: int = 0
    end_ms: float = 0
    spoken: str = ""
    words: list[tuple[int, int, float, float]] = field(default_factory=list)
    """(from, to, start_ms, end_ms) of each word."""
    recording: str = ""
    """The file in which it is recorded from its first frame on."""
    recorded: list[tuple[str, bytes]] = field(default_factory=list)
    """(letter, frame) of what was sent then."""
    files: list[tuple[int, int]] = field(default_factory=list)
    """(frames before it, when the player began it) of each file of it, where the telephone side plays files."""
    audible_ns: list[int] = field(default_factory=list)
    """With a media leg: when its audible frames came."""

    @property
    def is_live(self) -> bool:
        return not self.end


@dataclass(slots=True)
class MarkTrack:
    turn: str
    offset: int
    set_ns: int
    fate: str = ""
    is_in_text: bool = False
    """It stands in the markup of its turn, so a server that refuses the turn has not set it."""


class NativeOracle:
    """One call. `lead_ns` None: frames come without a pace. `may_fail`: an engine may fail, so turns may end with an
    error. `is_exact`: messages take no time and nothing stops, as on a virtual clock. `is_lossy`: something between
    the two delays messages, so places and times are not judged. `most_error_ns`: `played_frame` gives the place of each
    frame, and heard text may be wrong by this. `most_lost_ns`: so much may be lost when a turn goes on after a clear of
    another one. `slack_ns`: so much less is known of the place of the telephone side than of one that plays frame by
    frame. `keeps_recorded`: recordings hold speech as it was sent, because
    they have its rate, and nothing stops in the middle of it."""

    def __init__(
        self,
        tally: Tally,
        stops: Stops,
        *,
        call: int | None = None,
        ptime_ms: int = 20,
        frame_bytes: int = 160,
        lead_ns: int | None = 200 * MS,
        reader: FrameReader | None = None,
        delay_ns: int = 0,
        has_media: bool = False,
        may_fail: bool = False,
        is_exact: bool = False,
        is_lossy: bool = False,
        most_error_ns: int | None = None,
        most_lost_ns: int = 0,
        slack_ns: int = 0,
        keeps_recorded: bool = False,
    ) -> None:
        self._tally = tally
        self._stops = stops
        self._call = call
        self._ptime_ns = ptime_ms * MS
        self._frame_bytes = frame_bytes
        self._lead_ns = lead_ns
        self._reader = reader or FrameReader()
        self._has_media = has_media
        self.may_fail = may_fail
        self._is_exact = is_exact
        self.is_lossy = is_lossy
        self._most_error_ns = most_error_ns
        self._most_lost_ns = most_lost_ns
        self._slack_ns = slack_ns
        self.player = Player(self._ptime_ns, delay_ns)
        self.turns: dict[str, TurnTrack] = {}
        self._n_mentioned = 0
        self._tones: deque[tuple[int, int]] = deque()
        """(which turn it would be, how many interruptions there were) of each request for tones. The server names the
        turns of tones, and says so when they start or end."""
        self._n_interruptions = 0
        self._caller = CallerRules(stops, _SURE_MS if is_exact else SURE_MS)
        self._sounds = SoundRules(stops)
        self._recording = ""
        """The file in which the call is recorded now."""
        self._recording_ns = 0
        """When that began."""
        self.recorded: list[tuple[str, list[tuple[int, bytes]]]] = []
        """(recording, parts) of each turn that a recording must hold as it was sent. A part is what was played without
        a gap: (milliseconds from the begin of the first part, samples)."""
        self._keeps_recorded = keeps_recorded
        self._is_new_file = False
        """The next frame is the first one of a file."""
        self.is_ready = False
        self.owes_answers = True
        """False once the telephone side has hung up: what the bot had sent behind that is not answered."""
        self._owners: dict[str, TurnTrack] = {}
        self._letters = deque(LETTERS)
        self._speaking: TurnTrack | None = None
        self._is_paused = False
        self._pause_asked: dict[str, int] = {}
        self._marks: dict[str, MarkTrack] = {}
        self._pings: deque[Any] = deque()
        self._n_status = 0
        self._n_invalid = 0
        self._n_refusals: Counter[str] = Counter()
        self._media_clears_ns: list[int] = []
        self._is_over = False
        self._playing_since_ns = 0
        self._last_frame_ns = 0
        self._n_silent = 0
        """Frames without a letter since the last one that had one."""
        self._hangup_ns: int | None = None
        self._telephone_left_ns: int | None = None
        self._suspicions: list[tuple[str, str, int, int, int]] = []
        """(check, what, by how much it was beyond the tolerance, from when to when stops excuse it): stops become known
        after what they delayed."""
        self._places: list[HeardPlace] = []
        self._log: deque[tuple[int, str, object]] = deque(maxlen=_LOG_LINES)

    # ------------------------------------------------------------------ the bot

    def free_letter(self) -> str | None:
        """A letter that no live turn has; the one that was used longest ago. None if all are in use."""
        for _ in range(len(self._letters)):
            letter = self._letters[0]
            self._letters.rotate(-1)
            owner = self._owners.get(letter)
            if owner is None or not owner.is_live:
                return letter
        return None

    def sent(self, message: dict[str, Any], now_ns: int, letter: str = "") -> None:
        """The bot sends this. A new turn says its `letter`."""
        self._note(now_ns, ">", message)
        self._tally.counts[f"sent {message['type']}"] += 1
        turn = self.turns.get(message.get("turn", ""))
        match message["type"]:
            case "say" | "text":
                if turn is None:
                    turn = self._owners[letter] = self._mentioned(message["turn"], letter, now_ns)
                if turn.is_live and not turn.is_closed:
                    turn.source += message["text"]
                    turn.lengths.add(len(turn.source))
                    turn.is_closed = message["type"] == "say" or message.get("last", False)
                    self._tally.counts["texts with markup"] += turn.source.startswith("<speak")
                    for found in _MARK.finditer(turn.source):
                        self._marks.setdefault(found[1], MarkTrack(turn.id, found.start(), now_ns, is_in_text=True))
            case "clear":
                self._interrupt([turn] if turn is not None else list(self.turns.values()), now_ns)
                self._n_refusals["no_active_turn"] += 1
                self._tally.counts["clears"] += 1
            case "close":
                # What was sent is still spoken, and a sound under it ends with the call.
                if message.get("now"):
                    self._sounds.bed_over(now_ns)
                    self._interrupt(list(self.turns.values()), now_ns)
            case "mark":
                # Names are not used twice, so each has one fate.
                offset = len(turn.source) if turn is not None else 0
                self._marks[message["name"]] = MarkTrack(message["turn"], offset, now_ns)
            case "pause":
                self._caller.bot_acts()
                for each in self.turns.values():
                    if each.is_live:
                        self._pause_asked.setdefault(each.id, self.player.heard_ns(each.id, now_ns))
                self._n_refusals["no_active_turn"] += 1
            case "resume":
                self._n_refusals["not_paused"] += 1
            case "flush" | "end":
                self._n_refusals["no_active_turn"] += 1
                if turn is not None and message["type"] == "end":
                    turn.is_closed = True
            case "play":
                self._sounds.asked(message, now_ns)
                if message.get("under"):
                    for each in self.turns.values():
                        each.is_under_bed |= each.is_live
                elif not message.get("stop"):
                    if turn is None:
                        turn = self._mentioned(message["turn"], "", now_ns)
                        turn.lengths.add(0)
                        turn.is_closed = True
                    turn.n_sounds += 1
            case "dtmf":
                self._tones.append((self._n_mentioned, self._n_interruptions))
                # Where the platform sends the tones, nothing is sent meanwhile.
                self._sounds.played_until(now_ns + _TONES_NS)
                self._n_mentioned += 1
            case "config":
                self._caller.configured(message, now_ns)
            case "ping":
                self._pings.append(message["id"])
            case "status":
                self._n_status += 1

    def _mentioned(self, turn_id: str, letter: str, now_ns: int, number: int | None = None) -> TurnTrack:
        """A turn that the bot mentions first, or one that the server named."""
        turn = TurnTrack(turn_id, letter, self._n_mentioned if number is None else number, now_ns)
        turn.is_under_bed = self._sounds.may_hear(now_ns)
        self._n_mentioned += number is None
        self.turns[turn_id] = turn
        self._tally.counts["turns"] += 1
        return turn

    def _turn_of_tones(self, turn_id: str, now_ns: int) -> TurnTrack | None:
        """The turn that the server made for tones. None if no tones were asked for."""
        if not self._tones:
            return None
        number, n_interruptions = self._tones.popleft()
        turn = self._mentioned(turn_id, "", now_ns, number)
        turn.lengths.add(0)
        turn.is_closed = True
        if self._n_interruptions > n_interruptions:
            turn.interruptions.append(Interruption(0, 0, 0))
        return turn

    def owed_s(self) -> float:
        """How long the text of the turns that live takes to be spoken."""
        live = [turn for turn in self.turns.values() if turn.is_live]
        speech_s = sum(len(turn.source) for turn in live) * MS_PER_LETTER / 1000 / SLOWEST
        return speech_s + sum(turn.n_sounds for turn in live) * _SOUND_S

    def sent_invalid(self) -> None:
        """The bot sends something that no server can read, or that has no effect."""
        self._n_invalid += 1

    def _interrupt(self, turns: list[TurnTrack], now_ns: int) -> None:
        self._n_interruptions += 1
        self._caller.bot_acts()
        for turn in turns:
            if turn.is_live:
                heard_ns = self.player.heard_ns(turn.id, now_ns)
                heard_ns = min(heard_ns, self._pause_asked.get(turn.id, heard_ns))
                turn.interruptions.append(Interruption(heard_ns, len(turn.source), now_ns))

    # --------------------------------------------------------------- the server

    def event(self, event: dict[str, Any], now_ns: int) -> None:
        """An event of §5 came on the bot's socket."""
        self._note(now_ns, "<", event)
        kind = event.get("type")
        if self._is_over:
            self._wrong(v.CLOSE, f"{kind} came after the close")
            return
        if (kind == "ready") is self.is_ready:
            self._wrong(v.ORDER, f"{kind} came {'again' if self.is_ready else 'before ready'}")
        self.is_ready = True
        turn = self.turns.get(event.get("turn", ""))
        match kind:
            case "started" | "sentence" | "words" | "cleared" | "done" | "paused" | "resumed":
                if turn is None:
                    turn = self._turn_of_tones(event["turn"], now_ns)
                if turn is None:
                    self._wrong(v.ORDER, f"{kind} of the unknown turn {event.get('turn')!r}")
                    return
                if not self._checked(v.ONE_END, turn.is_live):
                    self._wrong(v.ONE_END, f"{kind} of {turn.id}, which has ended with {turn.end}")
                    return
                getattr(self, f"_{kind}")(turn, event, now_ns)
            case "mark":
                self._mark(event, now_ns)
            case "error":
                self._error(turn, event, now_ns)
            case "warning":
                self._warning(turn, event)
            case "pong":
                expected = self._pings.popleft() if self._pings else None
                self._checked(v.ANSWERS)
                if event.get("id") != expected:
                    self._wrong(v.ANSWERS, f"pong {event.get('id')!r}; the next ping was {expected!r}")
            case "status":
                self._checked(v.ANSWERS)
                self._n_status -= 1
            case "recording":
                self._recording_changed(event, now_ns)
            case "call":
                self._sounds.joined(now_ns)
            case "hangup":
                self._hangup_ns = now_ns
            case "caller":
                self._checked(v.VOICE)
                self._judge_voice(self._caller.event(event, now_ns, self._speech_since_ns(now_ns)))

    def _started(self, turn: TurnTrack, event: dict[str, Any], now_ns: int) -> None:
        self._checked(v.ORDER)
        if turn.started_ns is not None:
            self._wrong(v.ORDER, f"{turn.id} started twice")
            return
        # A sound that ends when speech waits may end before it begins. Then it is done without a `started`.
        earlier = [
            t.id for t in self.turns.values()
            if t.number < turn.number and t.is_live and t.started_ns is None and t.letter
        ]  # fmt: skip
        if earlier:
            self._wrong(v.ORDER, f"{turn.id} started before {', '.join(earlier)}, mentioned first")
        turn.started_ns = now_ns
        self._speaking = turn
        if self._is_paused:
            # A clear has ended the pause: the server had not read of this turn then, and so no turn was left.
            self._is_paused = False
            self._pause_asked.clear()

    def _sentence(self, turn: TurnTrack, event: dict[str, Any], now_ns: int) -> None:
        self._checked(v.ORDER)
        if event["index"] != turn.n_sentences:
            self._wrong(v.ORDER, f"sentence {event['index']} of {turn.id}, expected {turn.n_sentences}")
        if event["start_ms"] < turn.end_ms - 1 or event["end_ms"] < event["start_ms"]:
            self._wrong(v.ORDER, f"sentence of {turn.id} at {event['start_ms']} ms, the last one ended {turn.end_ms}")
        turn.n_sentences = event["index"] + 1
        turn.end_ms = event["end_ms"]
        turn.spoken += _solid(event["text"])
        if not _solid(turn.source).startswith(turn.spoken):
            self._wrong(v.ORDER, f"the sentences of {turn.id} are not its text: {turn.spoken!r}")

    def _words(self, turn: TurnTrack, event: dict[str, Any], now_ns: int) -> None:
        turn.words += [(word["from"], word["to"], word["start_ms"], word["end_ms"]) for word in event["words"]]

    def _cleared(self, turn: TurnTrack, event: dict[str, Any], now_ns: int) -> None:
        self._check_heard(turn, event, now_ns)
        asked = turn.interruptions[0] if turn.interruptions else None
        total = event["heard_text"] + event["unheard_text"]
        if event["reason"] == "barge_in":
            self._judge_voice(self._caller.interrupts(turn.id, "cleared"))
        if event["reason"] == "clear" and asked is None:
            self._wrong(v.ONE_END, f"{turn.id} was cleared without a request")
        elif event["reason"] == "clear" and asked is not None and len(total) != asked.n_chars:
            self._wrong(v.HEARD, f"{turn.id} had {asked.n_chars} characters at its clear, reported {len(total)}")
        if event["heard_chars"] != len(event["heard_text"]):
            self._wrong(v.HEARD, f"{turn.id}: heard_chars {event['heard_chars']} of {event['heard_text']!r}")
        self._tally.counts[f"cleared by {event['reason']}"] += 1
        turn.was_hung_up = event["reason"] == "hangup"
        if asked is not None and event["reason"] in ("clear", "close") and not self._is_paused:
            turn.asked_ns = asked.asked_ns
        turn.left_ns = self.player.turn_end_ns(turn.id) - now_ns
        self._over(turn, "cleared", now_ns)

    def _done(self, turn: TurnTrack, event: dict[str, Any], now_ns: int) -> None:
        self._checked(v.DONE)
        if event["chars"] not in turn.lengths:
            self._wrong(v.DONE, f"{turn.id} is done with {event['chars']} characters, sent {sorted(turn.lengths)}")
        if turn.spoken != _solid(turn.source[: event["chars"]]):
            self._wrong(v.DONE, f"{turn.id} is done, spoken {turn.spoken!r} of {turn.source!r}")
        self._keep_recorded(turn, event, now_ns)
        audio_ns = event["audio_ms"] * MS
        n_lacking = audio_ns // self._ptime_ns - turn.n_frames
        n_unnamed = sum(each.n_leading for each in self._live_begun() if each is not turn)
        if self._most_error_ns is not None:
            self._checked(v.LOST)
            if turn.next_ns < audio_ns - self._most_error_ns:
                sent_ms = turn.next_ns / MS
                self._wrong(v.LOST, f"{turn.id} is done, and {sent_ms:.0f} of {event['audio_ms']} ms were sent")
        elif not turn.n_moves and not turn.is_under_bed:
            what = f"{turn.id} has {event['audio_ms']} ms of audio, and {turn.n_frames} frames came"
            if not self._has_media and n_lacking:
                self._wrong(v.DONE, what)
            elif self._has_media and turn.letter and not turn.n_sounds and not self._tones and n_lacking > n_unnamed:
                # Frames and events come over two sockets. After a stop of ours the events may be read first. Tones and
                # sounds have no letter, so they are not told from those of another turn, nor from silence.
                late_ns = n_lacking * self._ptime_ns
                self._suspicions.append((v.DONE, what, late_ns - CROSS_NS, now_ns - late_ns, now_ns))
        if self._most_error_ns is None and any(not each.letter and each is not turn for each in self._live_begun()):
            # Silent frames of sounds and tones behind it, which a pause took back, are not told from its own.
            self._over(turn, "done", now_ns)
            return
        left_ns = self.player.turn_end_ns(turn.id) - now_ns
        what = f"{turn.id} is done {left_ns / MS:.0f} ms before its last sample is played"
        self._suspect(v.DONE, what, left_ns - self._tolerance_ns(turn), turn, now_ns)
        self._over(turn, "done", now_ns)

    def _keep_recorded(self, turn: TurnTrack, event: dict[str, Any], now_ns: int) -> None:
        """What was sent of a turn without a gap, from its first tone to its last. Between two files there is one."""
        # Between two messages of a text there may be a gap.
        is_whole = not (turn.n_moves or turn.was_paused or turn.is_under_bed or event["underruns"])
        is_whole = is_whole and len(turn.lengths) == 1 and not turn.n_sounds and not self._tones
        # A server that stood still has read the peer's marks late, and takes that for a gap at the peer.
        is_whole = is_whole and self._stops.within(turn.started_ns or now_ns, now_ns) < _GAP_NS
        if not (turn.recording and turn.recording == self._recording and is_whole and self._keeps_recorded):
            return
        at = [n for n, (letter, _) in enumerate(turn.recorded) if letter]
        if not at:
            return
        first, end, begun_ns, parts = at[0], at[-1] + 1, 0, []
        begins = [(n, at_ns) for n, at_ns in turn.files if n <= first][-1:] or [(first, 0)]
        begins += [(n, at_ns) for n, at_ns in turn.files if first < n < end]
        for (n, at_ns), (until, _) in zip(begins, [*begins[1:], (end, 0)], strict=True):
            n, at_ns = max(n, first), at_ns + max(0, first - n) * self._ptime_ns
            begun_ns = begun_ns or at_ns
            samples = b"".join(self._reader.pcm(frame) for _, frame in turn.recorded[n:until])
            parts.append(((at_ns - begun_ns) // MS, samples))
        self.recorded.append((turn.recording, parts))

    def _recording_changed(self, event: dict[str, Any], now_ns: int) -> None:
        self._checked(v.RECORDINGS)
        self._tally.counts[f"recording {event['state']}"] += 1
        if event["state"] == "started":
            if self._recording:
                self._wrong(v.RECORDINGS, f"{event['file']} begins, and {self._recording} has not ended")
            self._recording, self._recording_ns = event["file"], now_ns
        else:
            if event["file"] != self._recording:
                self._wrong(v.RECORDINGS, f"{event['file']} ends, and {self._recording or 'none'} has begun")
            end = RecordingEnd(
                event["file"], event["reason"], event["length_ms"], self._recording_ns, now_ns, self._call
            )
            self._tally.recording_ends.append(end)
            self._recording = ""

    def _paused(self, turn: TurnTrack, event: dict[str, Any], now_ns: int) -> None:
        self._tally.counts[f"paused by {event['reason']}"] += 1
        if event["reason"] == "barge_in":
            self._judge_voice(self._caller.interrupts(turn.id, "paused"))
        self._check_heard(turn, event, now_ns, asked_ns=self._pause_asked.get(turn.id))
        for each in self._live_begun():
            asked_ns = self._pause_asked.get(each.id, 0)
            each.slack_ns += max(0, self.player.heard_ns(each.id, now_ns) - asked_ns)
            each.was_paused = True
        self._is_paused = True
        if not self._has_media:
            self._drop(now_ns)

    def _resumed(self, turn: TurnTrack, event: dict[str, Any], now_ns: int) -> None:
        self._is_paused = False
        self._pause_asked.clear()
        if self._most_error_ns is None:
            turn.next_ns = event["from_ms"] * MS // self._ptime_ns * self._ptime_ns
        turn.n_moves += 1
        if turn.started_ns is not None:
            self._speaking = turn

    def _mark(self, event: dict[str, Any], now_ns: int) -> None:
        mark = self._marks.get(event["name"])
        if mark is None:
            self._wrong(v.ONE_FATE, f"mark {event['name']!r} was never set")
            return
        if not self._checked(v.ONE_FATE, not mark.fate):
            self._wrong(v.ONE_FATE, f"mark {event['name']!r} is {event['state']} after {mark.fate}")
        mark.fate = event["state"]
        turn = self.turns.get(mark.turn)
        if turn is None or mark.fate != "played":
            return
        if turn.end not in ("", "done"):
            self._wrong(v.ONE_FATE, f"mark {event['name']!r} is played in {turn.id}, which is {turn.end}")
        if self.is_lossy:
            return
        place_ms = max((end_ms for _, to, _, end_ms in turn.words if to <= mark.offset), default=0)
        heard_ns = self.player.heard_ns(turn.id, now_ns)
        what = f"mark {event['name']!r} at {place_ms} ms is played, and {heard_ns / MS:.0f} are heard"
        self._suspect(v.ONE_FATE, what, round(place_ms * MS) - heard_ns - self._tolerance_ns(turn), turn, now_ns)

    def _error(self, turn: TurnTrack | None, event: dict[str, Any], now_ns: int) -> None:
        code = event["code"]
        self._tally.counts[f"error {code}"] += 1
        if turn is not None:
            if not self._checked(v.ONE_END, turn.is_live):
                self._wrong(v.ONE_END, f"error {code} of {turn.id}, which has ended with {turn.end}")
                return
            if code not in (_FAILURES if self.may_fail else ("no_media",)):
                self._wrong(v.ONE_END, f"{turn.id} failed with {code}: {event['message']}")
            if "heard_text" in event:
                self._check_heard(turn, event, now_ns)
            self._over(turn, "error", now_ns)
        elif code in ("bad_sound", "unknown_sound"):
            self._checked(v.SOUNDS)
            self._sounds.error(event.get("about", ""), code, now_ns)
        elif "about" not in event:
            self._checked(v.ANSWERS)
            if code == "internal":
                self._wrong(v.ANSWERS, "the server had an internal error")
            self._n_invalid -= not event["fatal"]
        elif code == "turn_closed":
            self._sounds.refused(event["about"])
        else:
            self._wrong(v.ANSWERS, f"error {code} about {event['about']!r}: {event['message']}")

    def _warning(self, turn: TurnTrack | None, event: dict[str, Any]) -> None:
        code = event["code"]
        if code == "bed_not_supported":
            self._checked(v.SOUNDS)
            self._sounds.not_possible()
        elif code == "turn_timeout" and turn is not None:
            turn.is_closed = True
        elif code in ("no_active_turn", "not_paused"):
            self._n_refusals[code] -= 1
            self._checked(v.ANSWERS)
            if self._n_refusals[code] < 0:
                self._wrong(v.ANSWERS, f"more warnings {code} than requests")
        elif code not in _WARNINGS and not (self._is_exact and code == "recording_unavailable"):
            self._wrong(v.ANSWERS, f"warning {code}: {event['message']}")

    def _over(self, turn: TurnTrack, end: str, now_ns: int) -> None:
        turn.end, turn.ended_ns = end, now_ns
        self._sounds.turn_over(turn.id, end, now_ns)
        self._sounds.silent_until(now_ns, is_spoken=True)
        if self._speaking is turn:
            self._speaking = next(iter(self._live_begun()), None)
        if end == "done":
            return
        if turn.started_ns is not None and not self._has_media and not self._is_paused:
            self._drop(now_ns)
        if not any(each.is_live for each in self.turns.values()):
            self._is_paused = False
            self._pause_asked.clear()

    # ------------------------------------------------------------------- audio

    def file(self, frames: Sequence[bytes]) -> None:
        """These frames come next, as one file of one turn: the silence at its beginning is of that turn too."""
        letter = next(filter(None, map(self._reader.letter, frames)), "")
        self._speaking = self._owners.get(letter, self._speaking)
        self._is_new_file = True

    def frame(self, payload: bytes, now_ns: int, came_ns: int | None = None) -> None:
        """A frame of speech came, on whichever leg has the audio. `came_ns`: it came then, and is played now."""
        self._tally.counts["frames"] += 1
        self._checked(v.FRAMES)
        if len(payload) != self._frame_bytes:
            self._wrong(v.FRAMES, f"a frame of {len(payload)} bytes, expected {self._frame_bytes}")
            return
        letter = self._reader.letter(payload)
        self._n_silent = 0 if letter else self._n_silent + 1
        self._note(now_ns, "<", letter or "-")
        turn = self._owners.get(letter) if letter else self._speaking
        self._note_sound(letter, payload, now_ns)
        if not letter and self._sounds.may_hear(now_ns):
            # It may be a frame of a sound alone.
            self.player.take("", 0, now_ns)
            return
        self._checked(v.SILENCE)
        if turn is None:
            if letter or not self._has_media:
                self._wrong(v.SILENCE, f"audio{' of ' + letter if letter else ''} while no turn is spoken")
            return
        if letter:
            self._speaking = turn
        if self._has_media:
            if letter:
                turn.audible_ns.append(now_ns if came_ns is None else came_ns)
        elif not turn.is_live:
            self._wrong(v.SILENCE, f"audio of {turn.id} after its {turn.end}")
            return
        elif turn.started_ns is None:
            self._wrong(v.ORDER, f"audio of {turn.id} before its started")
            return
        elif self._is_paused:
            self._wrong(v.SILENCE, f"audio of {turn.id} during a pause")
        self.player.take(turn.id, turn.next_ns, now_ns)
        if self.player.gap_ns > _PAUSE_NS and not turn.n_frames:
            # The server's schedule begins anew, at the frame before at the earliest: this one may have been read late.
            # What makes a later frame late makes the player late until the next one.
            self._playing_since_ns = max(self._last_frame_ns, now_ns - _LONGEST_STOP_NS)
        self._last_frame_ns = now_ns
        turn.next_ns += self._ptime_ns
        turn.n_frames += 1
        turn.has_letters |= bool(letter)
        turn.n_leading += not turn.has_letters
        if turn.n_frames == 1:
            turn.recording = self._recording
        if turn.recording:
            if self._is_new_file:
                turn.files.append((len(turn.recorded), now_ns))
            turn.recorded.append((letter, payload))
        self._is_new_file = False
        self._check_pace(turn, now_ns)

    def _note_sound(self, letter: str, payload: bytes, now_ns: int) -> None:
        sounds = bool(letter) or self._reader.sounds(payload)
        if sounds:
            self._sounds.played_until(self.player.end_ns)
        if letter:
            self._sounds.letter()
            return
        live = [turn for turn in self.turns.values() if turn.is_live]
        self._sounds.frame(
            now_ns, sounds=sounds, is_spoken=bool(live),
            may_be_other=bool(self._tones) or any(turn.n_sounds or not turn.letter for turn in live),
        )  # fmt: skip

    def played_frame(self, turn_id: str, place_ns: int, payload: bytes, now_ns: int) -> None:
        """The telephone side got the frame at `place_ns` of the audio of a turn. "": audio that is not of a turn."""
        if not turn_id:
            self._note_sound(self._reader.letter(payload), payload, now_ns)
            self.player.take("", 0, now_ns, len(payload) * self._ptime_ns // self._frame_bytes)
            return
        self._tally.counts["frames"] += 1
        self._checked(v.FRAMES)
        if len(payload) != self._frame_bytes:
            self._wrong(v.FRAMES, f"a frame of {len(payload)} bytes, expected {self._frame_bytes}")
        letter = self._reader.letter(payload)
        self._note_sound(letter, payload, now_ns)
        self._note(now_ns, "<", letter or "-")
        turn = self._owners.get(letter) if letter else self.turns.get(turn_id)
        self._checked(v.SILENCE)
        if turn is None or turn.id != turn_id:
            self._wrong(v.SILENCE, f"audio of {letter} in {turn_id}")
            return
        is_rest = turn.end == "done" and now_ns - turn.ended_ns <= self._tolerance_ns(turn)
        if not is_rest and (not turn.is_live or turn.started_ns is None or self._is_paused):
            when = "during a pause" if turn.is_live and self._is_paused else f"after its {turn.end}"
            self._wrong(v.SILENCE, f"audio of {turn.id} {when}")
        self._checked(v.LOST)
        # A frame that a mark tells the end of may count as played while it is played. A pause then begins behind it.
        lost_ns = max(self._most_lost_ns, self._ptime_ns * turn.was_paused)
        if self._tones and turn.was_paused:  # tones that no event named: they may be in this turn
            lost_ns += _REST_OF_TONE_NS
        if place_ns > turn.next_ns + lost_ns:
            what = f"{turn.id} goes on at {place_ns / MS:.0f} ms, and was heard up to {turn.next_ns / MS:.0f}"
            self._wrong(v.LOST, what)
        elif place_ns <= turn.next_ns - self._tolerance_ns(turn) - self._ptime_ns and not turn.was_paused:
            what = f"{turn.id} repeats {place_ns / MS:.0f} ms, and was heard up to {turn.next_ns / MS:.0f}"
            self._wrong(v.LOST, what)
        self.player.take(turn.id, place_ns, now_ns)
        turn.next_ns = place_ns + self._ptime_ns
        turn.n_frames += 1

    def may_be_padded(self) -> None:
        """The silence at the end of the audio so far may be what a message was filled up with, or silence of the
        speech. So the place in the turn is known to this length only."""
        if self._speaking is not None:
            self._speaking.slack_ns += self._n_silent * self._ptime_ns
        self._n_silent = 0

    def media_clear(self, now_ns: int) -> None:
        """The media leg is told to drop what it has not played."""
        self._note(now_ns, "<", "media clear")
        self._media_clears_ns.append(now_ns)
        self._drop(now_ns)

    def _check_pace(self, turn: TurnTrack, now_ns: int) -> None:
        if self._lead_ns is None or self.is_lossy:
            return
        self._checked(v.CLOCK)
        ahead_ns = self.player.end_ns - self.player.late_ns - now_ns
        # The frame itself, and what fades out at an interruption (§6.6): one more frame, of a turn and of a sound.
        # The loop's timers round to half a millisecond.
        allowed_ns = self._lead_ns + 2 * self._ptime_ns + self._fixed_tolerance_ns + MS
        what = f"{ahead_ns / MS:.0f} ms of {turn.id} are ahead, {allowed_ns / MS:.0f} allowed"
        self._suspect(v.CLOCK, what, ahead_ns - allowed_ns, turn, now_ns)

    def _drop(self, now_ns: int) -> None:
        self.player.drop(now_ns)
        begun = self._live_begun()
        # No event says which of them a frame of a sound or of tones belongs to: each has started already.
        shares_silence = len(begun) > 1 and not all(turn.letter for turn in begun)
        for turn in begun:
            turn.shares_silence |= shares_silence
            heard_ns = self.player.heard_ns(turn.id, now_ns)
            turn.next_ns = heard_ns if self._most_error_ns is not None else heard_ns // self._ptime_ns * self._ptime_ns
            turn.n_moves += 1

    def _live_begun(self) -> list[TurnTrack]:
        """The turns of which the telephone side has audio. Its frames may be read before the bot's `started`."""
        return [turn for turn in self.turns.values() if turn.is_live and (turn.started_ns is not None or turn.n_frames)]

    # ---------------------------------------------------------------- heard text

    def _tolerance_ns(self, turn: TurnTrack) -> int:
        """Of a place in a turn. It is less certain after each move, and unknown while a sound is under the turn."""
        if self._most_error_ns is not None:
            return self._most_error_ns
        moved_ns = turn.n_moves * self._frame_ns + turn.slack_ns
        return self._fixed_tolerance_ns + moved_ns + _HOUR_NS * turn.is_under_bed

    @property
    def _fixed_tolerance_ns(self) -> int:
        """What holds for all turns of the call."""
        if self._most_error_ns is not None:
            return self._most_error_ns
        return self._frame_ns * (1 if self._is_exact else 2) + self._slack_ns

    @property
    def _frame_ns(self) -> int:
        return self._ptime_ns if self._is_exact else max(self._ptime_ns, 20 * MS)

    def _began_at(self, turn: TurnTrack, now_ns: int) -> int:
        """When the player began the speech that this turn is a part of: its schedule dates from then."""
        return min(now_ns if turn.started_ns is None else turn.started_ns, self._playing_since_ns)

    def _check_heard(self, turn: TurnTrack, event: dict[str, Any], now_ns: int, asked_ns: int | None = None) -> None:
        """`asked_ns`: how much was heard when the bot asked for a pause."""
        text, heard_ns = event["heard_text"], event["heard_ms"] * MS
        total = text + event.get("unheard_text", turn.source[len(text) :])
        if not turn.source.startswith(total) or (len(total) not in turn.lengths and total):
            self._wrong(v.HEARD, f"{turn.id}: {total!r} is not the text {turn.source!r}")
            return
        is_unknown = (turn.is_under_bed or turn.shares_silence) and self._most_error_ns is None
        if self.is_lossy or is_unknown:
            return
        self._checked(v.HEARD)
        if event.get("basis") == "clock" and self.player.delay_ns and self._most_error_ns is None:
            # The server takes a platform that has not reported a mark yet to play at once.
            self._tally.counts["places before the first mark"] += 1
            return
        latest_ns = self.player.heard_ns(turn.id, now_ns)
        earliest_ns = latest_ns if self._most_error_ns is not None else max(0, latest_ns - 5 * self._ptime_ns)
        if asked_ns is not None:
            earliest_ns = asked_ns
        elif turn.interruptions:
            earliest_ns = turn.interruptions[0].heard_ns
        # The server rounds down to whole milliseconds.
        error_ns = max(0, earliest_ns - heard_ns - (MS - 1), heard_ns - latest_ns)
        tolerance_ns = self._tolerance_ns(turn)
        what = (
            f"{turn.id}: heard_ms {event['heard_ms']}, the player played {earliest_ns / MS:.0f} to "
            f"{latest_ns / MS:.0f} ms ({tolerance_ns / MS:.0f} ms of tolerance)"
        )
        self._suspect(v.HEARD, what, error_ns - tolerance_ns, turn, now_ns)
        by_marks = event.get("basis") == "marks"
        ptime_ms = self._ptime_ns / MS
        least, most = _heard_chars(turn, earliest_ns / MS - ptime_ms, latest_ns / MS + ptime_ms)
        self._places.append(
            HeardPlace(
                self._began_at(turn, now_ns), now_ns, error_ns, by_marks, least <= len(text) <= most,
                turn.n_moves > 0 and self._most_error_ns is None, bool(turn.words),
            )
        )  # fmt: skip
        # A word is longer than the tolerance, so one that is wrong by a whole word is found in any case.
        earliest_ms, latest_ms = (earliest_ns - tolerance_ns) / MS, (latest_ns + tolerance_ns) / MS
        least, most = _heard_chars(turn, earliest_ms, latest_ms)
        if not least <= len(text) <= most:
            what = (
                f"{turn.id}: {len(text)} characters count as heard, by the times of the words it is {least} to {most} "
                f"between {earliest_ms:.0f} and {latest_ms:.0f} ms"
            )
            self._suspect(v.HEARD, what, 1, turn, now_ns)

    def _suspect(self, check: str, what: str, excess_ns: int, turn: TurnTrack, now_ns: int) -> None:
        """Something is beyond its tolerance, if `excess_ns` is above 0. Stops may excuse it when they are known."""
        if excess_ns > 0 and not self.is_lossy:
            self._suspicions.append((check, what, excess_ns, self._began_at(turn, now_ns), now_ns))
            self._note(now_ns, "?", f"{check}: {what}")

    def _judge_suspicions(self) -> None:
        for check, what, excess_ns, begin_ns, end_ns in self._suspicions:
            if excess_ns > self._stops.within(begin_ns, end_ns):
                self._wrong(check, what)
        for place in self._places:
            if place.was_moved or self._stops.within(place.begin_ns, place.end_ns):
                continue
            errors = self._tally.heard_errors_by_marks_ms if place.by_marks else self._tally.heard_errors_ms
            errors[round(place.error_ns / MS, 1)] += 1
            if place.has_words:
                self._tally.n_words_right += place.is_word_right
                self._tally.n_words_wrong += not place.is_word_right

    # ------------------------------------------------------------- it is over

    def closed(self) -> None:
        """The socket is closed."""
        self._is_over = True

    def finish(self, now_ns: int, *, is_torn: bool) -> None:
        """The call is over. `is_torn`: a connection broke, so what had not come by then may be missing."""
        self._is_over = True
        self._tally.counts["calls"] += 1
        self._note(now_ns, "=", "torn" if is_torn else "over")
        for turn in self.turns.values():
            self._tally.counts[f"turns {turn.end or 'open'}"] += 1
        if self._has_media:
            self._check_late_audio(now_ns)
            for what in self._caller.finish(self._hangup_ns or now_ns if not is_torn else 0):
                self._judge_voice(what)
            self._judge_sounds(self._hangup_ns or now_ns)
        else:
            self._judge_sounds(now_ns)
        self._judge_suspicions()
        if is_torn:
            self._tally.counts["calls torn"] += 1
            return
        # What was sent when the telephone side had hung up, the server has not read.
        read_ns = now_ns
        if self._hangup_ns is not None:
            stopped_ns = self._stops.within(self._hangup_ns - 2 * _LONGEST_STOP_NS, self._hangup_ns)
            read_ns = self._hangup_ns - CROSS_NS - stopped_ns
        for turn in self.turns.values():
            if turn.is_live and turn.begun_ns <= read_ns:
                self._wrong(v.ONE_END, f"{turn.id} has not ended")
        for name, mark in self._marks.items():
            is_refused = mark.is_in_text and self.turns[mark.turn].end == "error"
            if not mark.fate and mark.set_ns <= read_ns and not is_refused:
                self._wrong(v.ONE_FATE, f"mark {name!r} of {mark.turn} has no fate")
        if self._hangup_ns is None and self.owes_answers and (self._pings or self._n_status or self._n_invalid):
            lacking = f"{len(self._pings)} pongs, {self._n_status} statuses and {self._n_invalid} errors"
            self._wrong(v.ANSWERS, f"{lacking} did not come")

    def telephone_left(self, now_ns: int) -> None:
        """The telephone side has broken its connection: it reads nothing more, whatever the server sends."""
        self._note(now_ns, ">", "the telephone has left")
        self._telephone_left_ns = now_ns

    # ------------------------------------------------------------- the caller

    def caller_speaks(self, begin_ns: int, ms: int) -> None:
        """The caller begins to speak, for so long."""
        self._note(begin_ns, ">", f"{ms} ms of voice")
        self._tally.counts["caller speaks"] += 1
        self._caller.speaks(begin_ns, ms)

    def caller_spoke(self, now_ns: int) -> None:
        """The caller has said it all."""
        self._caller.spoke(now_ns)

    def _speech_since_ns(self, now_ns: int) -> int | None:
        """Since when the caller has heard speech that goes on for some time yet. None if that is not so, or if a
        platform that plays late makes it uncertain."""
        # The end may be silence that has filled up a message.
        padding_ns = max((turn.slack_ns for turn in self._live_begun()), default=0)
        left_ns = self.player.end_ns - now_ns - padding_ns
        if self._is_paused or self.is_lossy or self.player.delay_ns > CROSS_NS or left_ns < _SURELY_HEARD_NS:
            return None
        begun = [turn.started_ns for turn in self._live_begun() if turn.started_ns is not None]
        return max(begun[0], self._playing_since_ns) if begun else None

    def _judge_sounds(self, now_ns: int) -> None:
        for what in self._sounds.finish(now_ns):
            self._checked(v.SOUNDS)
            if not self.is_lossy and not self.may_fail:
                self._wrong(v.SOUNDS, what)

    def _judge_voice(self, what: str) -> None:
        if what:
            self._wrong(v.VOICE, what)

    # --------------------------------------------------------------------- end

    def wrong(self, check: str, what: str) -> None:
        """Something did not hold that the caller has found."""
        self._wrong(check, what)

    def _check_late_audio(self, now_ns: int) -> None:
        """The media leg has no `cleared`. Its last `clear` about that time is the border, if it came after the bot had
        asked for it: an earlier one is that of a pause or of another turn, behind which speech goes on. If the
        telephone side has left meanwhile, it may not have read its `clear`."""
        for turn in self.turns.values():
            if turn.end not in ("cleared", "error"):
                continue
            margin_ns = self._stops.beyond(turn.ended_ns - CROSS_NS, turn.ended_ns + CROSS_NS) - turn.ended_ns
            near = [
                at for at in self._media_clears_ns
                if abs(at - turn.ended_ns) <= margin_ns and at >= turn.asked_ns and not turn.was_hung_up
            ]  # fmt: skip
            border_ns = near[-1] if near else turn.ended_ns + margin_ns
            left_ns = [at for at in (self._hangup_ns, self._telephone_left_ns) if at is not None]
            has_leg = not left_ns or min(left_ns) > turn.ended_ns + margin_ns
            if not near and has_leg and not turn.was_hung_up and turn.left_ns > CROSS_NS and not self.is_lossy:
                left_ms = turn.left_ns / MS
                self._wrong(v.SILENCE, f"{turn.id} was cleared, and its last {left_ms:.0f} ms were not dropped")
            late = [at for at in turn.audible_ns if at > border_ns]
            if late:
                after_ms = (late[-1] - border_ns) / MS
                self._wrong(v.SILENCE, f"{len(late)} frames of {turn.id} up to {after_ms:.0f} ms after its clear")

    def _checked(self, check: str, holds: bool = True) -> bool:
        self._tally.n_checked[check] += 1
        return holds

    def _note(self, now_ns: int, who: str, what: object) -> None:
        """A line of the log of this call, written when something does not hold. A frame is its letter."""
        self._log.append((now_ns, who, what))

    def log_lines(self) -> list[str]:
        """The log of this call."""
        return log_lines(self._log)

    def _wrong(self, check: str, what: str) -> None:
        self._log.append((self._log[-1][0] if self._log else 0, "!", f"{check}: {what}"))
        if self._call is not None:
            self._tally.logs[self._call] = self.log_lines()
        self._tally.violations.append(Violation(check, what, self._call))


def _solid(text: str) -> str:
    """A text without its white space and its tags."""
    return "".join(_TAG.sub("", text).split())


def _heard_chars(turn: TurnTrack, earliest_ms: float, latest_ms: float) -> tuple[int, int]:
    """(the fewest, the most) characters that count as heard if the caller was at one of these places. Words that are
    not known yet give no bound."""
    n_text = len(turn.source)
    least = max((to for _, to, _, end_ms in turn.words if end_ms <= earliest_ms), default=0)
    most = n_text
    if turn.words and turn.words[-1][3] > latest_ms:
        most = max((to for _, to, _, end_ms in turn.words if end_ms <= latest_ms), default=0)
    while most < n_text and (turn.source[most] in _ATTACHED or _TAG.match(turn.source, most)):
        tag = _TAG.match(turn.source, most)
        most = most + 1 if tag is None else tag.end()
    return min(least, n_text), most
