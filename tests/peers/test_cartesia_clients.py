"""`/tts/websocket` with the packages of bots: the vendor's SDK, pipecat and livekit-agents, each as installed.

Each speaks two turns. The first is interrupted in its middle, and the second must be heard, with only its own audio.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from environment import drive
from rig import Rig, Tones, correlation, decoded, rendering, run, serving

from telephony_tts.engines.api import Pcm

pytestmark = [pytest.mark.peer, pytest.mark.timed, pytest.mark.thorough]

ONE, TWO = "This is the first sentence.", "And a second sentence follows that is longer than the first one."
NEXT = "The next turn is short."
TURN = f"{ONE} {TWO}"


async def driven(rig: Rig, script: str, *steps: str, **options: Any) -> list[dict[str, Any]]:
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return await asyncio.to_thread(drive, script, f"http://127.0.0.1:{rig.port}", *steps, *arguments, timeout_s=40)


def of(events: list[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [each for each in events if each["event"] == kind and fields.items() <= each.items()]


def heard(events: list[dict[str, Any]], **fields: Any) -> Pcm:
    return decoded([each["audio"] for each in of(events, "audio", **fields)], "pcm")


def assert_is(pcm: Pcm, texts: list[str], rate_hz: int = 8000) -> None:
    """The whole audio of the texts, and nothing behind it but silence."""
    wanted = rendering(texts, rate_hz)
    assert correlation(pcm, wanted) > 0.98
    assert len(wanted) <= len(pcm)
    assert not pcm[len(wanted) + rate_hz // 25 :].any()


def assert_begins(pcm: Pcm, texts: list[str], rate_hz: int = 8000) -> None:
    """Only the beginning of the audio of the texts."""
    wanted = rendering(texts, rate_hz)
    assert rate_hz // 2 < len(pcm) < len(wanted)
    assert correlation(pcm, wanted) > 0.98


@pytest.mark.parametrize("encoding", ["pcm_s16le", "pcm_mulaw"])
def test_the_vendors_sdk(encoding: str) -> None:
    async def main() -> None:
        async with serving(Tones(speed=2.0), tokens=("secret",), burst_ahead_s=1.0) as rig:
            events = await driven(
                rig, "cartesia_contexts.py", f"push:one:{ONE} ", f"push:one:{TWO}", "hear:800", "cancel:one",
                f"push:two:{ONE} ", "flush:two", "wait:flush_done", f"push:two:{NEXT}", "end:two", "wait:done",
                encoding=encoding,
            )  # fmt: skip
            codec = {"pcm_s16le": "pcm", "pcm_mulaw": "ulaw"}[encoding]
            first, second = (
                decoded([each["audio"] for each in of(events, "audio", context=name)], codec) for name in ("one", "two")
            )
            assert_begins(first, [ONE, TWO])
            assert correlation(second, rendering([ONE, NEXT])) > 0.98
            assert not of(events, "done", context="one") and not of(events, "error")
            times = [each["word_timestamps"] for each in of(events, "timestamps", context="two")]
            assert [word for each in times for word in each["words"]] == f"{ONE} {NEXT}".split()
            sent = events.index(of(events, "sent")[0])
            assert {each["context"] for each in events[sent + 1 :]} == {"two"}

    run(main, within_s=120)


def test_the_blocking_sdk_reads_a_context_after_a_cancelled_one() -> None:
    """It takes whatever comes for an unknown context as its own, so nothing of a cancelled one may come."""

    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            events = await driven(
                rig, "cartesia_contexts.py", f"push:one:{TURN}", "cancel:one", f"push:two:{NEXT}", "end:two",
                "read:two", client="sync", encoding="pcm_s16le", rate=24000,
            )  # fmt: skip
            assert {each["context"] for each in events if each["event"] != "sent"} <= {"one", "two"}
            assert_is(heard(events, context="two"), [NEXT], 24000)
            assert of(events, "done", context="two")

    run(main, within_s=120)


def test_the_sdks_own_defaults_are_served() -> None:
    """Without an output_format it asks for 32-bit floats at 44.1 kHz."""

    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            events = await driven(
                rig, "cartesia_contexts.py", f"push:one:{NEXT}", "end:one", "wait:done",
                encoding="pcm_f32le", rate=44100,
            )  # fmt: skip
            samples = np.frombuffer(b"".join(each["audio"] for each in of(events, "audio")), "<f4")
            assert_is((samples * 32768).astype(np.int16), [NEXT], 44100)

    run(main, within_s=120)


def test_the_sdk_shows_our_errors() -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            events = await driven(rig, "cartesia_contexts.py", f"push:one:{NEXT}", "wait:error", voice="stranger")
            error = of(events, "error")[0]
            assert (error["context"], error["status_code"]) == ("one", 404)
            assert "stranger" in error["message"]
            refused = await driven(rig, "cartesia_contexts.py", f"push:one:{NEXT}", key="wrong")
            assert refused[-1]["event"] == "refused" and refused[-1]["status"] == 401

    run(main, within_s=120)


def test_pipecat() -> None:
    async def main() -> None:
        async with serving(Tones(speed=4.0), tokens=("secret",), burst_ahead_s=1.0) as rig:
            events = await driven(
                rig, "pipecat_turns.py", f"turn:{TURN}", "hear:1200", "interrupt", f"turn:{NEXT}", "wait:stopped",
                "wait:silent", "wait:silent", service="cartesia",
            )  # fmt: skip
            assert_begins(heard(events, turn=1), [ONE, TWO])
            assert_is(heard(events, turn=2), [NEXT])
            assert not of(events, "error")
            # Not behind the rest of the first turn, which would take more than three seconds.
            assert of(events, "audio", turn=2)[0]["at_s"] - of(events, "sent")[0]["at_s"] < 1.5
            first, second = of(events, "context")[0]["said"]
            # It notes each word where it is spoken: at 1200 ms, and what it plays until it hears of the interruption.
            n_chars = round(1200 / 60)
            assert ONE.startswith(first) or TURN.startswith(first)
            assert n_chars - 12 <= len(first) <= n_chars + 12
            assert second == NEXT

    run(main, within_s=120)


def test_pipecat_notes_all_that_was_spoken() -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            events = await driven(
                rig, "pipecat_turns.py", f"turn:{TURN}", "wait:stopped", "wait:silent", f"turn:{NEXT}", "wait:stopped",
                "wait:silent", service="cartesia",
            )  # fmt: skip
            assert_is(heard(events, turn=1), [ONE, TWO])
            assert_is(heard(events, turn=2), [NEXT])
            assert of(events, "context")[0]["said"] == [TURN, NEXT]
            assert not of(events, "error")

    run(main, within_s=120)


def test_livekit() -> None:
    async def main() -> None:
        async with serving(Tones(speed=2.0), tokens=("secret",), burst_ahead_s=1.0) as rig:
            events = await driven(
                rig, "livekit_turns.py", f"push:{TURN}", "end", "hear:800", "interrupt", f"push:{NEXT}", "end",
                "wait:finished", f"push:{ONE}", "end", "wait:finished", "close", service="cartesia", voice="tone",
            )  # fmt: skip
            assert_begins(heard(events, stream=1), [ONE, TWO])
            assert_is(heard(events, stream=2), [NEXT])
            assert_is(heard(events, stream=3), [ONE])
            assert not of(events, "error")
            words = of(events, "words", stream=2)
            assert "".join(each["text"] for each in words).strip() == NEXT
            starts = [each["start_s"] for each in words]
            assert starts == pytest.approx([0.06 * NEXT.index(word) for word in NEXT.split()], abs=0.07)
            # Its own socket for the turn after the interruption, and the old one is closed without a wait.
            began_s = of(events, "audio", stream=2)[0]["at_s"] - of(events, "interrupted")[0]["at_s"]
            assert began_s < 2.0

    run(main, within_s=120)
