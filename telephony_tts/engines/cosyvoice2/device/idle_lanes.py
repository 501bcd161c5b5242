"""What lanes do while they have no step to compute: they sleep, or help other lanes with the int8 kernels.

Helping shortens what only one lane can do: the first ids of an utterance, its first block, its end. Which lane computes
a part of a call changes no bit of its result (`kernels/sharing.h`).
"""

from __future__ import annotations

import threading
from typing import Protocol

from telephony_tts.engines.kernels.library import functions


class IdleLanes(Protocol):
    """From any thread."""

    can_help: bool
    """Whether lanes that wait help the others."""

    def n_calls(self) -> int:
        """How often `call` was called. Ask before the last look for a step, and give it to `wait`."""

    def call(self) -> None:
        """There may be a step to compute: all lanes leave `wait`."""

    def wait(self, n_seen: int) -> None:
        """Returns when `n_calls` is no longer `n_seen`."""


class SleepingLanes:
    """Lanes of networks that cannot share a call."""

    can_help = False

    def __init__(self) -> None:
        self._called = threading.Condition()
        self._n_calls = 0

    def n_calls(self) -> int:
        """See `IdleLanes`."""
        return self._n_calls

    def call(self) -> None:
        """See `IdleLanes`."""
        with self._called:
            self._n_calls += 1
            self._called.notify_all()

    def wait(self, n_seen: int) -> None:
        """See `IdleLanes`."""
        with self._called:
            self._called.wait_for(lambda: self._n_calls != n_seen)


class HelpingLanes:
    """Lanes that take parts of the int8 calls of other threads. They sleep when there has been none for a while."""

    can_help = True

    def __init__(self) -> None:
        """Raises RuntimeError if int8 is not available here."""
        library = functions()
        self.n_calls, self.call, self.wait = library.recalls, library.recall, library.help
