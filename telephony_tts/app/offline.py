"""Text to a file without a server: text → sentences → engine → frames, on a simulated clock.

The session is the one of the server; only the clock differs. Time stands still while the engine works. It jumps to the
session's next deadline when there is nothing else to do, so a minute of speech takes as long as its synthesis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace

from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.session.effects import Synthesize
from telephony_tts.session.session import Session
from telephony_tts.session.settings import CallLimits, SessionSettings
from telephony_tts.wire import messages as m

Progress = Callable[[int, int], None]
"""(characters spoken, characters in all)"""


async def speak(
    text: str,
    catalog: Catalog,
    settings: SessionSettings,
    how: m.Configure | None = None,
    *,
    on_frame: Callable[[bytes], None],
    on_chunk: Callable[[Chunk], None] | None = None,
    progress: Progress | None = None,
) -> m.Done:
    """Speak `text` as one turn. `on_frame` gets the frames in order, `on_chunk` the engine's audio.

    `how` has voice settings that are not part of the configuration (seed, instruction).
    Raises the errors of the engine (UnsupportedText, UnknownVoice, ...).
    """
    session = _session(text, catalog, settings)
    now_ns = 0
    if how is not None:
        session.receive(how, now_ns)
    session.receive(m.Say(text), now_ns)
    while True:
        work: Utterance | None = None
        for effect in session.poll(now_ns):
            if isinstance(effect, Synthesize):
                work = effect.utterance
            elif isinstance(effect, m.Frame):
                on_frame(effect.payload)
            elif isinstance(effect, m.Done):
                return effect
            elif isinstance(effect, m.SentenceSpoken) and progress is not None:
                progress(min(len(text), session.turns[0].parts[effect.index].sentence.end), len(text))
        if work is not None:
            await _synthesise(session, catalog, work, now_ns, on_chunk)
            continue
        deadline_ns = session.deadline_ns()
        assert deadline_ns is not None, "a turn that is not done has a deadline"
        now_ns = max(now_ns, deadline_ns)


def utterances(text: str, catalog: Catalog, settings: SessionSettings) -> Iterator[tuple[int, str, Utterance]]:
    """What `speak` would give to the engine: where each sentence begins, as it was written, and its utterance."""
    session = _session(text, catalog, settings)
    session.receive(m.Say(text), 0)
    now_ns = 0
    while True:
        work: Utterance | None = None
        for effect in session.poll(now_ns):
            if isinstance(effect, Synthesize):
                work = effect.utterance
            elif isinstance(effect, m.Done):
                return
        if work is not None:
            turn = session.turns[0]
            part = next(each for each in turn.parts if each.utterance is work)
            yield turn.in_source(part.sentence.start), turn.text_of(part.sentence).strip(), work
            session.audio_ended(work.id, now_ns)
            continue
        deadline_ns = session.deadline_ns()
        assert deadline_ns is not None, "a turn that is not done has a deadline"
        now_ns = max(now_ns, deadline_ns)


def _session(text: str, catalog: Catalog, settings: SessionSettings) -> Session:
    unbounded = CallLimits(turn_chars=len(text) + 1, text_chars_per_s=0, idle_s=0)
    unpaced = replace(settings, pace="burst", text_mode="sentence", pause_chars=len(text) + 1, limits=unbounded)
    return Session(unpaced, 0, detect_language=catalog.detect_language, has_voice=catalog.has_voice,
                   reads_digits=catalog.reads_digits, knows_voice=catalog.knows_voice)


async def _synthesise(
    session: Session,
    catalog: Catalog,
    utterance: Utterance,
    now_ns: int,
    on_chunk: Callable[[Chunk], None] | None,
) -> None:
    try:
        engine, voice = catalog.choose(utterance)
        async with aclosing(engine.synthesize(replace(utterance, voice=voice.name))) as chunks:
            async for chunk in chunks:
                if on_chunk is not None:
                    on_chunk(chunk)
                session.audio(utterance.id, chunk, now_ns, voice.gain_db)
    except TelephonyTTSError as error:
        session.audio_failed(utterance.id, error, now_ns)
        raise
    session.audio_ended(utterance.id, now_ns)
