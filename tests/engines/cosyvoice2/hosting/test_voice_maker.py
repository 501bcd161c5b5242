"""The process that makes voices ends before it has taken its work. The event loop is the server's, uvloop."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from telephony_tts.engines.cosyvoice2.hosting import voice_maker
from telephony_tts.engines.cosyvoice2.hosting.enrolment_messages import MakeVoice
from telephony_tts.engines.cosyvoice2.hosting.voice_maker import VoiceMaker
from telephony_tts.runtime import event_loop
from telephony_tts.runtime.errors import EngineError

pytestmark = pytest.mark.slow


def test_a_process_that_ends_at_once_is_an_error_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop may have seen its end before the work is written, or not. The client is told the same."""
    monkeypatch.setattr(voice_maker, "sys", SimpleNamespace(executable="/bin/false", path=[]))
    job = MakeVoice("anna", bytes(1000), "Hello.", tmp_path, tmp_path / "voices")

    async def main() -> None:
        for _ in range(25):
            maker = VoiceMaker()
            with pytest.raises(EngineError, match=r"the process that makes voices ended \(status 1\)"):
                await maker.make(job)
            await maker.close()

    event_loop.run(main())
