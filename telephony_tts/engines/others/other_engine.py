"""`engines.api.Engine` over a speech server of another project.

A task reads the server's answer as fast as it comes, so that a slot is held as long as the server computes, and not as
long as the caller listens. The task may also go on without its listener: many of these servers compute a cancelled
request to its end. Such an orphan keeps its slot until it has ended, and its audio is dropped. So the server never has
more requests than `slots`, whatever it does with a cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import numpy as np

from telephony_tts.engines.api import Chunk, EngineStats, Utterance, Voice
from telephony_tts.engines.others.settings import OtherEngineSettings, OtherVoiceSettings
from telephony_tts.engines.others.speech_request import SpeechRequest
from telephony_tts.engines.others.speech_server import ServerVoice, SpeechServer, listed_voices, read_voices
from telephony_tts.engines.speaking_slots import SpeakingSlots
from telephony_tts.engines.words import (
    LANGUAGE_OF_SCRIPT,
    LATIN,
    is_speakable,
    pieces,
    scripts,
    without_endless_words,
)  # fmt: skip
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, ReplicaLost, UnknownVoice, UnsupportedText

_log = logs.get(__name__)

CHUNK_MS = 200
RETRY_START_S = 0.5
_MOST_S, _MOST_S_PER_CHAR = 5.0, 0.7
"""Speech is never longer than this: a model that does not end would speak for ever."""


class OtherEngine:
    """`server` does the requests. `setting`: where the settings are, "engines.others.NAME", for messages."""

    streams_text = False

    def __init__(self, name: str, settings: OtherEngineSettings, server: SpeechServer) -> None:
        self.name = name
        self._settings = settings
        self._facts = settings.facts
        self._setting = f"engines.others.{name}"
        self._server = server
        self._voices: dict[str, ServerVoice] = {}
        self.voices: tuple[Voice, ...] = ()
        self._slots = SpeakingSlots(self._facts.slots)
        self._live: dict[asyncio.Task[None], SpeechRequest] = {}
        self._orphans: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._busy_until_ns = 0
        self._has_told_of_speed = False
        self._counts = dict.fromkeys(("requests", "retries", "orphans", "busy"), 0.0)

    # ------------------------------------------------------- beginning and end

    async def start(self) -> None:
        """Wait until the server answers. Raises EngineUnavailable."""
        if self._is_open:
            return
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.start_timeout_s
        try:
            with ThreadPoolExecutor(1) as pool:
                self._voices = await loop.run_in_executor(pool, read_voices, self._settings)
            while True:
                try:
                    await self._server.open()
                    if not self._voices:
                        self._voices = listed_voices(await self._server.voice_names(), self._facts)
                    break
                except EngineUnavailable:
                    raise
                except EngineError as error:
                    if not error.retryable or loop.time() >= end_s:
                        raise EngineUnavailable(error.message) from error
                await asyncio.sleep(min(RETRY_START_S, max(0.0, end_s - loop.time())))
        except EngineUnavailable as error:
            await self.close()
            raise EngineUnavailable(f"{self._setting}: {error.message}") from error
        except BaseException:
            await self.close()
            raise
        self.voices = tuple(self._voice(name) for name in self._voices)
        self._is_open = True

    def _voice(self, name: str) -> Voice:
        told = self._settings.voices.get(name) or OtherVoiceSettings()
        languages = told.languages or self._settings.languages
        return Voice(name, self.name, languages, self._facts.rate_hz, told.gain_db, f"of {self._settings.kind}")

    async def close(self) -> None:
        self._is_open = False
        tasks = [*self._live, *self._orphans]
        for request in self._live.values():
            request.end(EngineError(f"{self.name} was closed"))
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._server.close()

    # ------------------------------------------------------------------ Engine

    def stats(self) -> EngineStats:
        n_live = len(self._live)
        busy_ms = max(0, self._busy_until_ns - monotonic_ns()) // NS_PER_MS
        n_orphans, slots = len(self._orphans), self._facts.slots
        load = (n_live + n_orphans + 1) / slots if n_live or n_orphans >= slots else 0.0
        n_queued = sum(not request.is_asked for request in self._live.values())
        return EngineStats(n_queued, n_live - n_queued, load, busy_ms == 0, busy_ms)

    def counters(self) -> Mapping[str, float]:
        return dict(self._counts)

    @property
    def n_orphans(self) -> int:
        """Requests whose listeners are gone, and which the server still computes."""
        return len(self._orphans)

    def check(self, utterance: Utterance) -> None:
        voices = self.voices
        if utterance.voice is not None:
            voices = tuple(voice for voice in voices if voice.name == utterance.voice)
            if not voices:
                names = ", ".join(list(self._voices)[:12])
                raise UnknownVoice(f"{self.name} has no voice {utterance.voice!r}; it has {names}")
        found = scripts(utterance.text)
        if not found or LATIN in found or not voices:
            return
        languages = [LANGUAGE_OF_SCRIPT[script] for script in found if script in LANGUAGE_OF_SCRIPT]
        if not any(voice.speaks(language) for language in languages for voice in voices):
            letters = "/".join(sorted(found)).lower()
            raise UnsupportedText(f"{self.name} has no voice for {letters} letters ({self._setting}.languages)")

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.check(utterance)
        # A lone surrogate cannot be sent.
        text = without_endless_words(utterance.text.encode("utf-8", "replace").decode())
        if not is_speakable(text):
            return
        if not self.voices:
            raise EngineError(f"{self.name} does not run")
        if utterance.speed != 1.0 and self._facts.speeds is None and not self._has_told_of_speed:
            self._has_told_of_speed = True
            _log.warning("speed_ignored", engine=self.name, why=f"{self._settings.kind} has one speed")
        voice = self._voices[utterance.voice or self.voices[0].name]
        for piece in self._pieces(text):
            async with aclosing(self._request(piece, voice, utterance)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def _pieces(self, text: str) -> list[str]:
        """The text in parts that are short enough for one request; some servers cut long speech silently."""
        n_most = self._settings.request_chars
        if any(char >= "\u2e80" for char in text):
            n_most = max(20, n_most // 3)  # a Chinese character is as long as three letters
        spans = [text[start:end] for start, end in pieces(text, n_most, n_most)]
        return [span for span in spans if is_speakable(span)]

    async def _request(self, text: str, voice: ServerVoice, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        """The speech of one request. Closing it frees its slot, or leaves an orphan."""
        if not self._is_open:
            raise EngineError(f"{self.name} does not run")
        rate_hz = self._facts.rate_hz
        n_chunk_bytes = rate_hz * CHUNK_MS // 1000 * 2
        request = SpeechRequest(text, voice, utterance)
        task = asyncio.create_task(self._read(request), name=f"{self.name} {utterance.id}")
        self._live[task] = request
        try:
            odd = b""
            while (samples := await request.next()) is not None:
                samples = odd + samples
                n_whole = len(samples) & ~1
                odd = samples[n_whole:]
                for start in range(0, n_whole, n_chunk_bytes):
                    part = np.frombuffer(samples[start : min(start + n_chunk_bytes, n_whole)], "<i2")
                    yield Chunk(part.astype(np.int16, copy=False), rate_hz)
        finally:
            await self._let_go(task, request)

    async def _let_go(self, task: asyncio.Task[None], request: SpeechRequest) -> None:
        del self._live[task]
        request.drop()
        if not self._facts.stops and request.is_asked and self._is_open and not task.done():
            self._counts["orphans"] += 1
            self._orphans.add(task)
            task.add_done_callback(self._orphans.discard)
            return
        task.cancel()
        await asyncio.wait((task,))

    # --------------------------------------------------- reading in its own task

    async def _read(self, request: SpeechRequest) -> None:
        """Read the server's answer when there is a slot."""
        error: EngineError | None = EngineError(f"the connection to the server of {self.name} gave up")
        try:
            async with asyncio.timeout(self._settings.audio_timeout_s) as waiting:
                async with self._slots.held(request.utterance.deadline_ns):
                    waiting.reschedule(None)
                    request.is_asked = True
                    await self._read_again_if_lost(request)
            error = None
        except TimeoutError:
            error = EngineError(f"{self.name} had no free slot in time; see {self._setting}.slots", code="busy")
        except EngineError as failure:
            error = failure
            if failure.code == "busy":
                self._counts["busy"] += 1
                self._busy_until_ns = monotonic_ns() + (failure.retry_after_ms or 0) * NS_PER_MS
        except Exception:
            _log.exception("speech_server_crashed", engine=self.name)
            error = EngineError(f"the speech server of {self.name} failed; see the server's log")
        finally:
            request.end(error)

    async def _read_again_if_lost(self, request: SpeechRequest) -> None:
        """A connection that breaks before its first audio is tried once more: an idle one may have been closed by the
        server. Later `ReplicaLost` tells the call, which has the rest of the sentence spoken."""
        try:
            await self._read_once(request)
        except ReplicaLost as lost:
            if request.n_bytes or request.is_dropped:
                raise
            self._counts["retries"] += 1
            _log.warning("speech_request_again", engine=self.name, why=lost.message)
            try:
                await self._read_once(request)
            except ReplicaLost as again:
                if request.n_bytes:
                    raise
                raise EngineError(again.message) from again

    async def _read_once(self, request: SpeechRequest) -> None:
        self._counts["requests"] += 1
        settings, rate_hz = self._settings, self._facts.rate_hz
        left_s = settings.request_timeout_s
        most_s = (_MOST_S + _MOST_S_PER_CHAR * len(request.text)) / min(1.0, request.utterance.speed)
        async with aclosing(self._server.speak(request.text, request.voice, request.utterance)) as answer:
            while True:
                asked_ns = monotonic_ns()
                try:
                    async with asyncio.timeout(min(settings.audio_timeout_s, left_s)):
                        samples = await anext(answer, None)
                except TimeoutError:
                    raise self._late(left_s) from None
                left_s = max(0.0, left_s - (monotonic_ns() - asked_ns) / NS_PER_S)
                if samples is None:
                    break
                if (request.n_bytes + len(samples)) / 2 / rate_hz > most_s:
                    n_chars = len(request.text)
                    raise EngineError(f"the server of {self.name} sent over {most_s:.3g} s for {n_chars} characters")
                request.put(samples)
        if request.n_bytes < 2:
            raise EngineError(f"the server of {self.name} sent no audio")

    def _late(self, left_s: float) -> EngineError:
        audio_s, request_s = self._settings.audio_timeout_s, self._settings.request_timeout_s
        if left_s < audio_s:
            limit = f"{self._setting}.request_timeout_s ({request_s:g})"
            return EngineError(f"the server of {self.name} did not finish a request within {limit}")
        return EngineError(
            f"the server of {self.name} gave no audio within {self._setting}.audio_timeout_s ({audio_s:g})"
        )
