"""`telephony-tts` with the reference's formula for the flow: every chunk computes all frames so far once more.

    python benchmarks/harness/recompute.py bench engine --random full --no-pacing --concurrency 1

All else is this engine: its kernels, precisions, lanes, language model and vocoder. The profile is upstream's, with its
growing chunks and cross-fades. First audio is not held back. The formula is at its best here: two lanes may compute two
chunks of an utterance at once, and the end is one more chunk. In the reference all frames of the end see all others,
for which this engine has no int8 kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from telephony_tts.cli import main as cli
from telephony_tts.engines.cosyvoice2.core.jobs import Job
from telephony_tts.engines.cosyvoice2.device.requests import TokenBlock
from telephony_tts.engines.cosyvoice2.device.runner import Runner, Track
from telephony_tts.engines.cosyvoice2.hosting import loading
from telephony_tts.engines.cosyvoice2.model.config import FRAMES_PER_TOKEN
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.flow.page_table import PageTable
from telephony_tts.engines.cosyvoice2.model.flow.stream import BlockRequest, FlowBlock, FlowPrompt

FLAGS = (
    "--profile", "upstream",
    "--set", "engines.cosyvoice2.finish=causal",
    "--set", "engines.cosyvoice2.isolation=thread",
)  # fmt: skip
"""Only an engine in this process computes with what this module replaces."""


class RecomputingRunner(Runner):
    """A block of a stream is a new stream of all its ids so far, whose prompt shares nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ids: dict[int, list[int]] = {}
        """Ids of all blocks that have begun, by the identity of their track."""

    def open(self, *args: Any, **kwargs: Any) -> Track:
        track = super().open(*args, **kwargs)
        self._ids[id(track)] = []
        return track

    @torch.inference_mode()
    def begin(self, tracks: Sequence[Track], blocks: Sequence[TokenBlock]) -> list[FlowBlock]:
        return [self._begin(track, block) for track, block in zip(tracks, blocks, strict=True)]

    def _begin(self, track: Track, block: TokenBlock) -> FlowBlock:
        if block.all_ids is not None:
            return super().begin([track], [block])[0]
        flow, prompt, ids = self.model.flow, track.prompt, self._ids[id(track)]
        assert isinstance(flow, Flow)
        n_before = len(ids)
        ids += block.new
        unshared = FlowPrompt(prompt.flow.spk, prompt.flow_tokens, prompt.flow_mel.to(flow.dtype), PageTable())
        (begun,) = flow.begin([BlockRequest(flow.start(unshared), list(ids), block.ahead)])
        begun.n_hidden += FRAMES_PER_TOKEN * n_before
        return begun


def main(arguments: Sequence[str]) -> int:
    loading.Runner = RecomputingRunner  # type: ignore[misc]
    Job.may_be_heard = lambda *_: True  # type: ignore[method-assign]
    return cli.main([*arguments, *FLAGS])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
