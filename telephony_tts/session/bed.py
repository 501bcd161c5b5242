"""The bed of a call: a sound under the speech, and alone while there is no speech.

It is mixed into frames that are encoded already, as they are sent. So it changes neither when frames are sent nor what
the speech is, and a call without a bed does nothing for it.
"""

from __future__ import annotations

import numpy as np

from telephony_tts.audio.encoder import CODECS, Codec, fade_in, limit
from telephony_tts.audio.resampler import Samples, fit
from telephony_tts.audio.sound import Sound
from telephony_tts.session.sound_source import SoundSource

BED_GAIN_DB = -18.0
_FADE_MS = 20
"""How fast the bed becomes silent for keys, and is heard again behind them."""


class Bed:
    """One bed. It has no sound before `start`, which says in which format its frames are.

    `turn` ends it when it ends, None leaves it to the call. With `until_speech` the first frame of speech ends it.
    """

    def __init__(
        self, source: SoundSource, gain_db: float, *, loop: bool, until_speech: bool, turn: str | None
    ) -> None:
        self.source = source
        self.until_speech = until_speech
        self.turn = turn
        self.is_over = False
        self._loop = loop
        self._gain = np.float32(10 ** (gain_db / 20))
        self._sound: Sound | None = None
        self._codec: Codec = CODECS["pcm"]
        self._n_frame_samples = 0
        self._at = 0
        self._level = 1.0
        self._is_ending = False

    @property
    def rate_hz(self) -> int | None:
        """The rate of its frames. None while it has no sound."""
        return None if self._sound is None else self._sound.rate_hz

    def start(self, sound: Sound, codec: str, n_frame_samples: int) -> None:
        """Play `sound`. If another rate of it was being played, it goes on at the same place."""
        if self._sound is not None:
            self._at = self._at * sound.rate_hz // self._sound.rate_hz
        self._sound, self._codec, self._n_frame_samples = sound, CODECS[codec], n_frame_samples

    def stop(self) -> None:
        """End with the next frame, which fades out."""
        self._is_ending = True

    def frame(self, is_quiet: bool = False) -> bytes:
        """The next frame of the sound alone. It fades out if it is to be quiet."""
        return self._encoded(self._next(self._n_frame_samples, is_quiet))

    def mix(self, payload: bytes, is_quiet: bool) -> bytes:
        """A frame of speech with the next audio of the sound added. The sound fades out if it is to be quiet."""
        speech = self._codec.decode(payload)
        return self._encoded(speech + self._next(len(speech), is_quiet))

    def _encoded(self, samples: Samples) -> bytes:
        # The limiter leaves nothing that would have to be clipped.
        return self._codec.encode(np.rint(limit(samples)).astype(np.int16))

    def _next(self, n: int, is_quiet: bool) -> Samples:
        if self._sound is None or self.is_over:
            return np.zeros(n, np.float32)
        sound, at = self._sound, self._at
        if self._loop:
            samples: Samples = sound.cut(at, n) * self._gain
        else:
            samples = fit(sound.pcm[at : at + n] * self._gain, n)
            self.is_over = at + n >= len(sound.pcm)
        self._at = at + n
        if is_quiet or self._level < 1:
            steps = np.arange(1, n + 1) * (1000 / (_FADE_MS * sound.rate_hz))
            levels = np.clip(self._level - steps if is_quiet else self._level + steps, 0, 1)
            samples, self._level = samples * levels.astype(np.float32), float(levels[-1])
        if self._is_ending:
            samples = samples * fade_in(n)[::-1]
            self.is_over = True
        return samples
