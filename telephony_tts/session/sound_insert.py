"""A sound in the order of the speech: an insert that is read when its turn comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from telephony_tts.audio.sound import Sound, amplified
from telephony_tts.engines.api import Chunk
from telephony_tts.session.sound_source import SoundSource

_CHUNK_MS = 200


class SoundInsert:
    """One sound that `play` asked for. With `until_speech` it ends when speech waits behind it.

    `segment_ms` is for a peer that plays files: the sound ends after that time, and another insert continues it.
    """

    def __init__(
        self,
        source: SoundSource,
        rate_hz: Callable[[], int],
        gain_db: float,
        *,
        turn: str = "",
        loop: bool,
        until_speech: bool,
        start_ms: int = 0,
    ) -> None:
        """`rate_hz` gives the rate of the media leg, which may change until the sound is read."""
        self.turn = turn
        self.loop = loop
        self.until_speech = until_speech
        self.is_stopped = False
        self.segment_ms: int | None = None
        self._source = source
        self._rate_hz = rate_hz
        self._gain_db = gain_db
        self._start_ms = start_ms
        self._sound: Sound | None = None

    async def load(self) -> None:
        """Read the sound, unless it is here already. Raises SoundError."""
        rate_hz = self._rate_hz()
        if not self.is_stopped and (self._sound is None or self._sound.rate_hz != rate_hz):
            self._sound = await self._source.load(rate_hz)

    def chunks(self) -> Iterator[Chunk]:
        sound = self._sound
        if sound is None:
            return
        rate_hz = sound.rate_hz
        at, n_chunk = self._start_ms * rate_hz // 1000, _CHUNK_MS * rate_hz // 1000
        end = None if self.loop else len(sound.pcm)
        if self.segment_ms is not None:
            segment_end = at + self.segment_ms * rate_hz // 1000
            end = segment_end if end is None else min(end, segment_end)
        while not self.is_stopped and (end is None or at < end):
            n = n_chunk if end is None else min(n_chunk, end - at)
            yield Chunk(amplified(sound.cut(at, n), self._gain_db), rate_hz)
            at += n

    def rest(self) -> SoundInsert | None:
        """What follows the segment that was played. None if it was the last."""
        if self.segment_ms is None or self._sound is None or self.is_stopped:
            return None
        start_ms = self._start_ms + self.segment_ms
        if not self.loop and start_ms >= self._sound.duration_ms:
            return None
        rest = SoundInsert(
            self._source, self._rate_hz, self._gain_db, turn=self.turn, loop=self.loop,
            until_speech=self.until_speech, start_ms=start_ms,
        )  # fmt: skip
        rest._sound = self._sound  # its file may be gone by now
        return rest
