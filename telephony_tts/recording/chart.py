"""A recording as a picture: both channels, sentences, marks and interruptions, and the latencies of the turns."""

from __future__ import annotations

import io

import numpy as np

from telephony_tts.recording.replay import STAGES, Replay
from telephony_tts.runtime.errors import ConfigError, how_to_get

_N_BINS = 2_000
_MOST_LABELS = 60
_MOST_TURNS = 40
_COLOURS = {"mark": "tab:green", "interruption": "tab:red", "error": "tab:red", "dtmf": "tab:blue"}


def picture(replay: Replay) -> bytes:
    """The PNG. Raises ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"matplotlib is not installed: {how_to_get('bench')}") from error
    turns = [turn for turn in replay.turns if turn.stages][-_MOST_TURNS:]
    figure = Figure(figsize=(14, 5 + 0.22 * len(turns)), layout="constrained")
    heights = [2.0, 2.0, 1.0, max(0.6, 0.25 * len(turns))]
    caller, heard, text, waterfall = figure.subplots(4, 1, gridspec_kw={"height_ratios": heights})
    seconds = np.arange(_N_BINS) * replay.length_ms / 1000 / _N_BINS
    for channel, (axes, name, colour) in enumerate(((caller, "caller", "tab:cyan"), (heard, "heard", "tab:purple"))):
        peaks = replay.peaks(channel, _N_BINS) ** 0.6  # soft speech must be seen too
        axes.fill_between(seconds, -peaks, peaks, color=colour, linewidth=0.5)
        axes.set_ylim(-1, 1)
        axes.set_yticks([])
        axes.set_ylabel(name)
    for span in replay.lanes["speaking"]:
        caller.axvspan(span.start_ms / 1000, span.end_ms / 1000, color="tab:cyan", alpha=0.15)
    for axes in (caller, heard):
        for lane, colour in (("paused", "tab:orange"), ("holes", "tab:red")):
            for span in replay.lanes[lane]:
                axes.axvspan(span.start_ms / 1000, span.end_ms / 1000, color=colour, alpha=0.25)
        for tick in replay.ticks:
            axes.axvline(tick.ms / 1000, color=_COLOURS.get(tick.kind, "0.5"), linewidth=0.8)
    text.set_ylim(0, 1)
    text.set_yticks([])
    text.set_ylabel("said")
    room_chars = 170 / replay.length_ms
    for span in replay.lanes["sentences"][:_MOST_LABELS]:
        length_ms = span.end_ms - span.start_ms
        text.broken_barh([(span.start_ms / 1000, length_ms / 1000)], (0.1, 0.8), facecolor="tab:purple", alpha=0.2)
        shown = span.label[: max(0, int(length_ms * room_chars))]
        # A dollar sign would begin a formula.
        label = shown.replace("$", r"\$")
        text.text(span.start_ms / 1000, 0.5, label, fontsize=7, verticalalignment="center", clip_on=True)
    for axes in (caller, heard, text):
        axes.set_xlim(0, replay.length_ms / 1000)
    text.set_xlabel("seconds since the recording began")
    left = np.zeros(len(turns))
    for stage, name in STAGES:
        values = np.array([turn.stages.get(stage, 0.0) for turn in turns])
        waterfall.barh(range(len(turns)), values, left=left, label=name, height=0.7)
        left += values
    waterfall.set_yticks(range(len(turns)), [turn.turn[:20].replace("$", r"\$") for turn in turns], fontsize=7)
    waterfall.invert_yaxis()
    waterfall.set_xlabel("latency of each turn's first sentence, ms")
    if turns:
        waterfall.legend(fontsize=7, loc="upper right")
    figure.suptitle(f"call {str(replay.about.get('call', replay.name))[:80]}".replace("$", r"\$"))
    out = io.BytesIO()
    figure.savefig(out, dpi=110, format="png")
    return out.getvalue()
