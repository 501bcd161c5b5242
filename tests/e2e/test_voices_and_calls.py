"""A call beside recordings that become voices, and beside those that cannot: it hears no gap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from neighbour import neighbour
from rig import run, serving
from test_http_voices import BAD, SAID, WITHIN_S, NoEngine, good

from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.plugin import spoken
from telephony_tts.engines.cosyvoice2.voice_service import VoiceService
from telephony_tts.runtime.errors import AudioError

pytestmark = [pytest.mark.timed, pytest.mark.thorough]


def test_a_call_beside_voices_that_are_made_hears_no_gap(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "model")

    async def main() -> None:
        service = VoiceService(NoEngine(), tmp_path / "model", tmp_path / "voices", spoken)
        try:
            async with serving() as rig, neighbour(rig):
                for name, audio in (("silence", BAD["silence"][0]()), ("bomb", BAD["a FLAC bomb"][0]())):
                    with pytest.raises(AudioError):
                        await service.add(name, audio, SAID)
                made = await service.add("anna", good(), SAID)
                assert np.isclose(made.source_s, 4.0)
        finally:
            await service.close()

    run(main, within_s=WITHIN_S)
