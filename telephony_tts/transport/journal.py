"""The metrics and the log line of each event of a call."""

from __future__ import annotations

from telephony_tts.experiments.running import RunningArm
from telephony_tts.experiments.sums import CallSums
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.clock import NS_PER_MS
from telephony_tts.session.effects import UnderrunEnded
from telephony_tts.session.report import stages
from telephony_tts.session.session import Session, TurnEnd
from telephony_tts.session.turn import Turn
from telephony_tts.transport.turn_traces import CallTraces
from telephony_tts.wire import messages as m

_INTERRUPTIONS = ("clear", "barge_in")
"""Why a turn is cleared that somebody interrupts. The other reasons are ends of the call."""


class Journal:
    """The journal of one call. `log` has the call's id and limits its lines. The metrics count every event."""

    def __init__(self, session: Session, log: logs.EventLogger) -> None:
        self.sums = CallSums()
        self.arm: RunningArm | None = None
        """The arm of the call's experiment."""
        self._session = session
        self.log = log
        self._n_underruns = self._n_lexicon_readings = 0
        self.door = "native"
        """A door's name in the metrics."""
        self.traces: CallTraces | None = None
        """Where turns are traced, if they are."""

    def turn_over(self, turn: Turn, event: TurnEnd) -> None:
        """A turn has ended with `event`, which `note` gets too."""
        if turn.first_frame_ns is not None:
            for stage, (begin_ns, end_ns) in stages(turn).items():
                metrics.TURN_STAGE_MS.labels(stage).observe((end_ns - begin_ns) / NS_PER_MS)
        if self.traces is not None:
            self.traces.ended(turn, event)

    def note_underrun(self, underrun: UnderrunEnded) -> None:
        metrics.UNDERRUN_MS.observe(underrun.ms, self._exemplar(underrun.turn))

    def _exemplar(self, turn_id: str) -> dict[str, str]:
        """Where to look for more about a turn. OpenMetrics allows 128 characters, so long names are cut."""
        found = {"call": self._session.settings.call[:64], "turn": turn_id[:16]}
        if self.traces is not None and (trace_id := self.traces.trace_id(self._turn(turn_id))) is not None:
            found["trace_id"] = trace_id
        return found

    def _turn(self, turn_id: str) -> Turn | None:
        return next((turn for turn in self._session.turns if turn.id == turn_id), None)

    def note_tones(self, digits: str, by: str) -> None:
        """Count digits that go to the telephone side. `w` is a pause between them."""
        metrics.DTMF_SENT.labels(by=by).inc(len(digits) - digits.count("w"))

    def note(self, event: m.ToBot) -> None:
        """Record an event that goes to the bot, and what the session has counted."""
        match event:
            case m.Started():
                metrics.FIRST_AUDIO_MS.labels(self.door).observe(event.first_audio_ms, self._exemplar(event.turn))
                self.sums.started += 1
                self.sums.first_audio_ms += event.first_audio_ms
                if self.arm is not None:
                    self.arm.turn_started(event.first_audio_ms)
                self.log.info("turn_started", turn=event.turn, first_audio_ms=round(event.first_audio_ms, 1))
            case m.Done():
                metrics.TURNS.labels(self.door, "done").inc()
                self.sums.turns += 1
                self.log.info(
                    "turn_done", turn=event.turn, audio_ms=event.audio_ms, underruns=event.underruns,
                    latency=event.latency,
                )
            case m.Cleared():
                metrics.TURNS.labels(self.door, "cleared").inc()
                self.sums.turns += 1
                self.sums.interruptions += event.reason in _INTERRUPTIONS
                self.log.info(
                    "turn_cleared", turn=event.turn, reason=event.reason, heard_ms=event.heard_ms, basis=event.basis,
                    heard=logs.speech(event.heard_text),
                )
            case m.ErrorEvent():
                metrics.ERRORS.labels(metrics.ERROR_CODES.of(event.code)).inc()
                if event.turn is not None:
                    metrics.TURNS.labels(self.door, "error").inc()
                    self.sums.turns += 1
                    self.sums.errors += 1
                self.log.warning("error", turn=event.turn or event.about, code=event.code, why=event.message)
            case m.Paused():
                metrics.PAUSES.labels(reason=event.reason).inc()
                self.log.info("speech_paused", turn=event.turn, reason=event.reason, heard_ms=event.heard_ms)
            case m.Resumed():
                self.log.info("speech_resumed", turn=event.turn, from_ms=event.from_ms)
            case m.Hold():
                self.log.info("hold", state=event.state)
            case m.MarkReached():
                metrics.MARKS.labels(state=event.state).inc()
            case m.CallerSpeech():
                if event.interrupted is not None:
                    metrics.CALLER_SPEECH.labels(outcome="interrupted" if event.interrupted else "none").inc()
                self.log.info(
                    "caller_speech", state=event.state, spoken_ms=event.spoken_ms, interrupted=event.interrupted
                )
            case m.CallerSilent():
                metrics.CALLER_SILENT.inc()
                self.log.info("caller_silent", ms=event.ms)
            case m.AnsweringMachineHeard():
                metrics.ANSWERING_MACHINES.labels(cause=event.cause).inc()
                self.log.info(
                    "answering_machine", cause=event.cause, greeting_ms=event.greeting_ms, beep_hz=event.beep_hz
                )
            case m.WarningEvent():
                if event.code == "bad_markup":
                    metrics.BAD_MARKUP.inc()
                self.log.info("warning", turn=event.turn, code=event.code)
            case m.SentenceSpoken():
                self.log.debug("sentence", turn=event.turn, index=event.index, said=logs.speech(event.text))
        session = self._session
        if session.n_underruns != self._n_underruns:
            metrics.UNDERRUNS.inc(session.n_underruns - self._n_underruns)
            self.sums.underruns += session.n_underruns - self._n_underruns
            self._n_underruns = session.n_underruns
        if session.n_lexicon_readings != self._n_lexicon_readings:
            metrics.LEXICON_READINGS.inc(session.n_lexicon_readings - self._n_lexicon_readings)
            self._n_lexicon_readings = session.n_lexicon_readings
