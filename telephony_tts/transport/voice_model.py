"""The network that detects the caller's voice: one for the process, loaded in a thread when a call first needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from telephony_tts.audio.voice_activity import VoiceModel
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_S, monotonic_ns
from telephony_tts.runtime.daemon_pool import DaemonPool
from telephony_tts.runtime.errors import AudioError

_AGAIN_S = 10
"""How soon after a failure the network is loaded again: the machine may have had no memory or descriptor left."""
_NO_THREAD_S = 1
"""How soon it is tried again to start a thread. Until then calls wait for the network, and are not told of a failure,
after which they would not listen any more."""

_log = logs.get(__name__)


class VoiceModelSource:
    """Loads the network once. `make` makes it and may raise AudioError. The network is kept, and an error for
    `_AGAIN_S`."""

    def __init__(self, make: Callable[[], VoiceModel] = VoiceModel) -> None:
        self._make = make
        self._model: VoiceModel | None = None
        self._error: AudioError | None = None
        self._again_ns = 0
        """It is not tried again before this time."""
        self._is_loading = False

    def load(self) -> VoiceModel:
        """Load the network now, and return it. Raises AudioError."""
        if self._model is None:
            self._model = self._make()
        return self._model

    def find(self) -> VoiceModel | None:
        """The network if it is loaded, else None, and a thread loads it. Raises AudioError if that failed in the last
        `_AGAIN_S`.

        Only for the event loop.
        """
        if self._model is not None:
            return self._model
        if self._is_loading or monotonic_ns() < self._again_ns:
            if self._error is not None:
                raise AudioError(self._error.message)
            return None
        self._error = None
        pool = DaemonPool(1, "voice model")
        try:
            loading = asyncio.get_running_loop().run_in_executor(pool, self.load)
        except RuntimeError as error:  # the machine or the container has as many threads as it may have
            self._again_ns = monotonic_ns() + _NO_THREAD_S * NS_PER_S
            _log.warning("voice_model_waits", why=str(error))
            return None
        pool.shutdown(wait=False)
        self._is_loading = True
        loading.add_done_callback(self._loaded)
        return None

    def _loaded(self, loading: asyncio.Future[VoiceModel]) -> None:
        self._is_loading = False
        if loading.cancelled():
            return
        error = loading.exception()
        if error is not None:
            why = str(error) or type(error).__name__
            message = error.message if isinstance(error, AudioError) else f"the voice model cannot be made: {why}"
            self._error, self._again_ns = AudioError(message), monotonic_ns() + _AGAIN_S * NS_PER_S
            _log.error("voice_model_unavailable", why=message)


VOICE_MODEL = VoiceModelSource()
"""The network that all calls share."""
