"""The program of the process that checks recordings and makes voices from them. Its parent is `voice_maker`.

It reads jobs from its standard input and writes what becomes of them to its standard output. It ends with its input.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import BinaryIO

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
from telephony_tts.runtime.errors import EngineError, TelephonyTTSError

NICENESS = 10
"""The calls go first."""
MAX_READ_S = 60.0
"""A longer recording is refused before it is decoded. Up to 30 s become a voice; the rest may be silence."""


def main() -> None:
    """Make voices until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    os.nice(NICENESS)
    # A library that prints must not write between the messages.
    with os.fdopen(os.dup(1), "wb") as out, os.fdopen(os.dup(0), "rb") as jobs:
        os.dup2(2, 1)
        while (job := _next(jobs)) is not None:
            _write(out, _done(job, out))


def _next(jobs: BinaryIO) -> Job | None:
    header = jobs.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (n,) = HEADER.unpack(header)
    data = jobs.read(n)
    if len(data) < n:
        return None
    job: Job = pickle.loads(data)
    return job


def _write(out: BinaryIO, message: object) -> None:
    try:
        out.write(packed(message))
        out.flush()
    except BrokenPipeError:
        sys.exit(0)  # the parent is gone


def _done(job: Job, out: BinaryIO) -> Done | VoiceRefused:
    from telephony_tts.engines.cosyvoice2.voices.enrolment import check_recording, denoised_wav

    try:
        if isinstance(job, CheckRecording):
            return RecordingChecked(check_recording(job.audio, denoise=job.denoise, max_read_s=MAX_READ_S))
        if isinstance(job, ReduceNoise):
            return NoiseReduced(denoised_wav(job.audio, MAX_READ_S))
        return _made(job, out)
    except TelephonyTTSError as error:
        return VoiceRefused(error)
    except Exception as error:  # other exceptions may be impossible to pickle
        what = "the voice could not be made" if isinstance(job, MakeVoice) else "the recording could not be read"
        return VoiceRefused(EngineError(f"{what}: {error}"))


def _made(job: MakeVoice, out: BinaryIO) -> VoiceMade:
    from telephony_tts.engines.cosyvoice2.voices.enrolment import STORING, enrol
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

    def tell(step: str) -> None:
        if step == STORING:
            for path in job.makes_room:
                path.unlink(missing_ok=True)
        _write(out, MakingStep(step))

    made = enrol(
        job.name, job.audio, job.transcript, job.model_dir, VoiceStore(job.directory), replace=job.replace,
        denoise=job.denoise, made_by=job.made_by, max_read_s=MAX_READ_S, tell=tell, record=job.record,
    )  # fmt: skip
    about = made.features.provenance
    return VoiceMade(made.features.description, float(about["kept_s"]), float(about["source_s"]), made.warnings)
