"""What is found in a recording before a voice is made of it: its level, noise, clipping, silence and length."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from telephony_tts.engines.cosyvoice2.voices.voice import (
    Finding,
    Recording,
    clipped_share,
    frame_levels_db,
    judged,
    speech_span,
)

GOOD_S = 5.0
"""A shorter recording works, but holds only a few of the sounds of a language."""
MIN_CONTRAST_DB = 20.0
"""Between the loud moments and the pauses of a good recording."""
PAUSE_SHARE, LOUD_SHARE = 0.1, 0.9
"""The level that a tenth of the frames do not reach is that of the pauses. A tenth exceed that of the speech."""
TELEPHONE_HZ = 4_200.0
MIN_ABOVE_TELEPHONE = 1e-5
"""Share of the energy above the telephone band. A recording from a telephone line has almost none there."""


@dataclass(frozen=True, slots=True)
class RecordingCheck:
    """The figures of a recording, and what was found.

    Levels and noise are those of the part that would be kept. For a version with less noise they are those of the same
    part: its own may have lost a pause that is silent now.
    """

    rate_hz: int
    channels: int
    length_s: float
    kept_s: float
    """Without the silence at both ends."""
    level_dbfs: float
    """Of the speech."""
    noise_dbfs: float
    """Of the pauses."""
    snr_db: float
    """Between both."""
    clipped_share: float
    findings: tuple[Finding, ...]
    span: slice
    """The samples that were measured."""

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Why no voice can be made of it."""
        return tuple(each for each in self.findings if each.is_problem)

    def told(self) -> dict[str, Any]:
        """As values of JSON."""
        values = asdict(self).items()
        figures = {name: round(value, 4) for name, value in values if name not in ("findings", "span")}
        findings = [{"code": e.code, "message": e.message, "is_problem": e.is_problem} for e in self.findings]
        return {**figures, "findings": findings}


def checked(recording: Recording, original: RecordingCheck | None = None) -> RecordingCheck:
    """The check of a recording. It raises nothing: what is wrong is a finding.

    `original`: the check of the recording that it was made from. Its problems remain, even if they no longer show.
    """
    kept, found = judged(recording)
    known = original.problems if original is not None else ()
    problems = [*known, *(each for each in found if each.code not in {other.code for other in known})]
    span = original.span if original is not None else _span(recording)
    noise_dbfs, level_dbfs = _pauses_and_speech(recording, span)
    snr_db = level_dbfs - noise_dbfs
    warnings = [] if problems else recording_warnings(kept, snr_db)
    return RecordingCheck(
        recording.rate_hz, recording.n_channels, recording.seconds, kept.seconds, level_dbfs, noise_dbfs, snr_db,
        clipped_share(recording.wave), (*problems, *warnings), span,
    )  # fmt: skip


def recording_warnings(recording: Recording, snr_db: float) -> list[Finding]:
    """Warnings about a recording that is accepted but may make a poor voice. It is the part that is kept."""
    found = []
    if recording.seconds < GOOD_S:
        told = f"it holds only {recording.seconds:.1f} s: {GOOD_S:.0f} to 15 s usually give a better likeness"
        found.append(Finding("short", told))
    if snr_db < MIN_CONTRAST_DB:
        told = (
            f"its quietest tenth is only {snr_db:.0f} dB below its loudest: there is noise, an echo or "
            "music behind the voice, and the model imitates that; record in a quiet room"
        )
        found.append(Finding("noisy", told))
    power = torch.fft.rfft(recording.wave).abs().square()
    above = power[int(TELEPHONE_HZ * recording.wave.numel() / recording.rate_hz) :]
    if float(above.sum()) < MIN_ABOVE_TELEPHONE * float(power.sum()):
        told = "it holds nothing above 4 kHz, like a telephone line: the voice will always sound muffled"
        found.append(Finding("muffled", told))
    return found


def _span(recording: Recording) -> slice:
    levels = frame_levels_db(recording.wave, recording.rate_hz)
    return speech_span(recording.rate_hz, levels) if levels.numel() else slice(0, 0)


def _pauses_and_speech(recording: Recording, span: slice) -> tuple[float, float]:
    """The levels of the pauses and of the speech, in dBFS."""
    levels = frame_levels_db(recording.wave[span], recording.rate_hz)
    if not levels.numel():
        return -120.0, -120.0
    return float(levels.quantile(PAUSE_SHARE)), float(levels.quantile(LOUD_SHARE))
