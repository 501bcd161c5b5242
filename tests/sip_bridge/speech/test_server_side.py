"""The server's side of a call: what frames the phone gets, which marks the server is told, and how the call ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
import virtual_loop
from log_lines import lines
from pretend_sides import PretendLeg

from sip_bridge import metrics
from sip_bridge import server_leg as s
from sip_bridge.config import TtsServerConfig
from sip_bridge.peer_input import MAX_DIGITS_PER_S, DigitLimit
from sip_bridge.speech.server_side import N_SILENT_AT_END, ServerSide
from sip_bridge.speech.speech_queue import SpeechQueue
from telephony_tts.runtime import logs
from telephony_tts.runtime.clock import NS_PER_S

FRAME = 160
UNDERRUNS = "telephony_sip_bridge_underruns_total"


def speech(n_frames: int) -> s.ServerSpeech:
    return s.ServerSpeech(b"\1\2" * FRAME * n_frames)


class ServedPhone:
    """A server's side that joins a pretended server at 8 kHz."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.leg = PretendLeg()
        self.ends: list[tuple[str, str | None, int | None]] = []
        self.refusal = refusal
        join, log = cast(Any, self._join), logs.get("test")
        self.side = ServerSide(lambda *end: self.ends.append(end), log, 3_000, join, virtual_loop.clock)
        self.serving = asyncio.create_task(self.side.serve(TtsServerConfig(), self._prepare))

    async def _join(self, _server: object) -> PretendLeg:
        if self.refusal is not None:
            raise self.refusal
        return self.leg

    async def _prepare(self) -> tuple[s.LegStart, SpeechQueue]:
        return s.LegStart("c", 8_000, 20, 100, {}), SpeechQueue(8_000, 8_000)

    def take(self, n_frames: int) -> list[bool]:
        """Whether each frame was speech."""
        return [bool(self.side.take_frame(FRAME, virtual_loop.clock())) for _ in range(n_frames)]


def test_a_short_silence_between_two_frames_of_speech_is_an_underrun() -> None:
    async def main() -> None:
        phone = ServedPhone()
        await phone.leg.has_started.wait()
        before = metrics.value(UNDERRUNS)
        phone.take(3)  # no speech yet
        phone.leg.says(speech(1))
        assert phone.take(2) == [True, False]
        phone.leg.says(speech(1))
        assert phone.take(1) == [True]
        assert metrics.value(UNDERRUNS) == before + 1
        phone.take(6)  # a pause between turns
        phone.leg.says(speech(1))
        assert phone.take(1) == [True] and phone.side.n_speech_frames == 3
        assert metrics.value(UNDERRUNS) == before + 1
        phone.leg.leaves(1000)
        await phone.serving

    virtual_loop.run(main())


@pytest.mark.parametrize(("code", "reason"), [(1000, "finished"), (1001, "server_draining")])
def test_a_call_that_the_server_ends_is_over_when_its_speech_was_heard(code: int, reason: str) -> None:
    async def main() -> None:
        phone = ServedPhone()
        await phone.leg.has_started.wait()
        phone.leg.says(speech(2), s.ServerMark("m"))
        phone.leg.leaves(code)
        await phone.serving
        phone.take(2 + N_SILENT_AT_END - 1)
        assert phone.ends == []
        phone.take(1)
        assert phone.ends == [(reason, None, None)]

    virtual_loop.run(main())


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1006, "server_lost"), (1011, "server_lost"), (1013, "server_refused"), (4409, "server_refused")],
)
def test_a_call_that_the_server_drops_is_over_at_once(code: int, reason: str) -> None:
    async def main() -> None:
        phone = ServedPhone()
        await phone.leg.has_started.wait()
        phone.leg.leaves(code, "why")
        await phone.serving
        assert phone.ends == [(reason, "why", code)]

    virtual_loop.run(main())


def test_early_digits_wait_for_the_server_and_marks_for_their_place() -> None:
    async def main() -> None:
        phone = ServedPhone()
        assert phone.side.send_digit("1", 0) and not phone.side.has_joined
        await phone.leg.has_started.wait()
        await asyncio.sleep(0)
        assert phone.side.send_digit("2", 0) and phone.leg.of("digit") == ["1", "2"]
        phone.leg.says(speech(1), s.ServerMark("a"), speech(1), s.ServerMark("b"))
        assert phone.take(1) == [True]
        phone.side.report_marks()
        assert phone.leg.of("mark") == ["a"]
        phone.leg.says(s.ServerClear())
        assert phone.take(1) == [False] and phone.leg.of("mark") == ["a"]
        phone.leg.leaves(1000)
        await phone.serving

    virtual_loop.run(main())


def test_a_fault_or_a_refusal_ends_the_call_and_nothing_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        refused = ServedPhone(s.NotJoined("server_refused", "no room"))
        await refused.serving
        assert refused.ends == [("server_refused", "no room", None)]
        broken = ServedPhone(RuntimeError("a fault"))
        await broken.serving
        assert broken.ends == [("failed", None, None)]

    with caplog.at_level(logging.ERROR):
        virtual_loop.run(main())
    assert len(lines(caplog, "call_crashed")) == 1


def test_input_that_cannot_be_used_is_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        phone = ServedPhone()
        await phone.leg.has_started.wait()
        bad = "telephony_sip_bridge_bad_input_total"
        before = metrics.value(bad, kind="server_message")
        phone.leg.says(*[s.BadServerMessage("server_message", "why")] * 3)
        assert metrics.value(bad, kind="server_message") == before + 3
        phone.leg.leaves(1000)
        await phone.serving

    virtual_loop.run(main())
    assert lines(caplog, "bad_input") == [{"kind": "server_message", "why": "why"}]


def test_no_more_than_20_digits_pass_in_a_second() -> None:
    limit = DigitLimit()
    assert [limit.allows(n) for n in range(MAX_DIGITS_PER_S + 1)] == [True] * MAX_DIGITS_PER_S + [False]
    assert not limit.allows(NS_PER_S - 1) and limit.allows(NS_PER_S)
