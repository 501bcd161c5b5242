"""Checks recordings and makes voices from them in a process of its own, one at a time.

The server's process must not do it: PyTorch and the networks take seconds to load, and hold the interpreter's lock
meanwhile. A recording that crashes a decoder, or takes too long, ends that process only. It starts with the first
voice, and ends when no further one comes for `IDLE_S`.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from telephony_tts.engines.cosyvoice2.hosting.enrolment_messages import (
    CheckRecording,
    Done,
    Job,
    MakeVoice,
    MakingStep,
    NoiseReduced,
    RecordingChecked,
    ReduceNoise,
    VoiceMade,
    VoiceRefused,
)
from telephony_tts.engines.cosyvoice2.hosting.process_messages import HEADER, packed
from telephony_tts.engines.cosyvoice2.voices.voice_folder import partial_path, voice_path
from telephony_tts.runtime.errors import EngineError

IDLE_S = 60.0
MAKE_S = 120.0
"""A voice takes 2 to 20 s, depending on the machine. After this long the process is killed."""
END_S = 5.0

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from telephony_tts.engines.cosyvoice2.hosting.voice_maker_process import main; main()"
)
"""As in `process_host`: it takes the module path of this process."""


class VoiceMaker:
    """Belongs to one event loop."""

    def __init__(self, idle_s: float = IDLE_S, make_s: float = MAKE_S) -> None:
        self._idle_s = idle_s
        self._make_s = make_s
        self._one_at_a_time = asyncio.Lock()
        self._process: Process | None = None
        self._end_later: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    async def make(self, job: MakeVoice, tell: Callable[[str], None] = lambda step: None) -> VoiceMade:
        """Make a voice and store it. `tell` is called with each step.

        Raises AudioError, ConfigError or EngineUnavailable as `enrolment.enrol` does, and EngineError if the process
        fails. Nothing of the voice is left then, also if this is cancelled.
        """
        made = await self._run(job, tell)
        assert isinstance(made, VoiceMade)
        return made

    async def check(self, audio: bytes, denoise: bool) -> Mapping[str, Any]:
        """What is found in a recording: see `enrolment.check_recording`. Raises as `make` does."""
        done = await self._run(CheckRecording(audio, denoise))
        assert isinstance(done, RecordingChecked)
        return done.told

    async def reduce_noise(self, audio: bytes) -> bytes:
        """A recording with less noise: see `enrolment.denoised_wav`. Raises as `make` does."""
        done = await self._run(ReduceNoise(audio))
        assert isinstance(done, NoiseReduced)
        return done.wav

    async def _run(self, job: Job, tell: Callable[[str], None] = lambda step: None) -> Done:
        async with self._one_at_a_time:
            if self._is_closed:
                raise EngineError("the server is stopping")
            if self._end_later is not None:
                self._end_later.cancel()
            try:
                async with asyncio.timeout(self._make_s):
                    answer = await self._answer(job, tell)
            except TimeoutError:
                await self._kill(job)
                what = "the voice was not made" if isinstance(job, MakeVoice) else "the recording was not checked"
                raise EngineError(f"{what} within {self._make_s:g} s") from None
            except (OSError, EOFError) as error:
                how = await self._kill(job)
                raise EngineError(f"the process that makes voices ended ({how})") from error
            except BaseException:
                await self._kill(job)
                raise
            self._end_later = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)
        if isinstance(answer, VoiceRefused):
            raise answer.error
        return answer

    async def close(self) -> None:
        """End the process. Idempotent."""
        self._is_closed = True
        if self._end_later is not None:
            self._end_later.cancel()
        self._end_idle()
        if self._ending:
            await asyncio.wait(self._ending)

    async def _answer(self, job: Job, tell: Callable[[str], None]) -> Done | VoiceRefused:
        process = self._process
        if process is None or process.returncode is not None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", _PROGRAM, *sys.path, stdin=PIPE, stdout=PIPE, env=environment
            )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        work = packed(job)
        try:
            process.stdin.write(work)
        except RuntimeError as error:  # of uvloop, if the process has ended already
            raise BrokenPipeError("it has ended") from error
        await process.stdin.drain()
        while True:
            (n,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
            message: MakingStep | Done | VoiceRefused = pickle.loads(await process.stdout.readexactly(n))
            if not isinstance(message, MakingStep):
                return message
            tell(message.step)

    async def _kill(self, job: Job) -> str:
        """End the process at once, and remove what it has not finished. Returns how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "it could not be started"
        with suppress(ProcessLookupError):
            process.kill()
        code = await asyncio.shield(process.wait())
        if isinstance(job, MakeVoice):
            partial_path(voice_path(job.directory, job.name), process.pid).unlink(missing_ok=True)
        return f"status {code}"

    def _end_idle(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            ending = asyncio.ensure_future(_ended(process))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


async def _ended(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
