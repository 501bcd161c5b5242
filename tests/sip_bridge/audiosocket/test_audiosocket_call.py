"""One call on a virtual clock: when each frame is written, what is in it, and how the call ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import virtual_loop
from log_lines import lines
from pretend_sides import CALL, SILENCE_8K, PretendCall, at, now_ms, play

from sip_bridge import metrics
from sip_bridge import server_leg as s
from sip_bridge.audiosocket.frames import AudioFrame, BadFrame, DigitFrame, ErrorFrame, HangupFrame, UuidFrame


def speech(value: int, rate_hz: int = 8000) -> s.ServerSpeech:
    """A frame of 20 ms with a sample value of its own."""
    return s.ServerSpeech(value.to_bytes(2, "little") * (rate_hz // 50))


def values(frames: list[AudioFrame]) -> list[int]:
    """The sample value of each frame; 0 for silence."""
    assert all(frame.pcm == frame.pcm[:2] * (len(frame.pcm) // 2) for frame in frames)
    return [int.from_bytes(frame.pcm[:2], "little") for frame in frames]


# ----------------------------------------------------------------------- pacing


def test_silence_is_sent_every_20_ms_from_the_start() -> None:
    async def act() -> None:
        stage = PretendCall(join_takes_ms=900)
        await at(50)
        assert stage.socket.written == [], "nothing is written before the call has a name"
        stage.socket.says(UuidFrame(CALL))
        await at(1045)
        stage.socket.says(HangupFrame())
        await stage.ended()
        times = [ms for ms, _ in stage.socket.written]
        assert len(times) == 50
        assert all(0 <= ms - (50 + 20 * k) <= 1 for k, ms in enumerate(times)), times
        assert {frame for _, frame in stage.socket.written} == {SILENCE_8K}

    play(act)


def test_the_schedule_does_not_drift_in_ten_minutes() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        await at(600_000 - 5)
        times = [ms for ms, _ in stage.socket.written]
        assert len(times) == 30_000
        assert all(0 <= ms - 20 * k <= 1 for k, ms in enumerate(times))
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


def test_speech_is_written_in_order_one_frame_at_a_time_and_silence_follows() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        await at(105)
        stage.leg.says(*[speech(v) for v in (1, 2, 3, 4, 5)])
        await at(305)
        stage.socket.says(HangupFrame())
        await stage.ended()
        assert values(stage.socket.audio) == [0] * 6 + [1, 2, 3, 4, 5] + [0] * 5
        assert all(len(frame) == 323 for _, frame in stage.socket.written), "a header and its payload are one write"

    play(act)


def test_after_a_stall_three_frames_come_at_once_and_the_rest_on_schedule() -> None:
    async def act() -> None:
        loop = asyncio.get_running_loop()
        stage = PretendCall()
        await stage.joined()
        await at(105)
        stage.leg.says(*[speech(v) for v in range(1, 11)])
        await at(125)
        n_before = len(stage.socket.written)
        loop.now_s += 0.2  # type: ignore[attr-defined]  # the process was held up
        await at(450)
        stage.socket.says(HangupFrame())
        await stage.ended()
        late = [ms for ms, _ in stage.socket.written[n_before:]]
        assert [ms for ms in late if ms < 326] == late[:3], "a burst of three"
        assert all(0 <= ms - (340 + 20 * k) <= 1 for k, ms in enumerate(late[3:])), late
        assert values(stage.socket.audio)[6:16] == list(range(1, 11)), "no frame lost and none twice"

    play(act)


def test_missed_silence_is_not_made_up_for() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        await at(105)
        n_before = len(stage.socket.written)
        asyncio.get_running_loop().now_s += 0.5  # type: ignore[attr-defined]
        await asyncio.sleep(0.001)
        assert len(stage.socket.written) == n_before + 1
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


def test_the_bridge_adds_less_than_a_frame_of_delay() -> None:
    def delays() -> tuple[float, float]:
        name = "telephony_sip_bridge_speech_delay_ms"
        return metrics.value(f"{name}_count"), metrics.value(f"{name}_bucket", le="20.0")

    async def act() -> None:
        before = delays()
        stage = PretendCall()
        await stage.joined()
        for k in range(40):
            await at(200 * k + 100 + k * 0.5)
            stage.leg.says(speech(9))
        await at(9000)
        stage.socket.says(HangupFrame())
        await stage.ended()
        after = delays()
        assert after[0] - before[0] == 40
        assert after[1] - before[1] >= 39, "at most one tick, and the grain of its timer"

    play(act)


def test_a_short_gap_in_speech_is_an_underrun_and_a_pause_is_not() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        before = metrics.value("telephony_sip_bridge_underruns_total")
        for ms in (105, 165, 1005, 1025):
            await at(ms)
            stage.leg.says(speech(3))
        await at(1200)
        assert metrics.value("telephony_sip_bridge_underruns_total") == before + 1
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


# -------------------------------------------------------------- marks and clear


def test_a_mark_is_reported_when_the_frame_before_it_was_written() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        await at(105)
        before, a, b, c = (s.ServerMark(name) for name in ("before", "a", "b", "c"))
        stage.leg.says(before, speech(1), speech(2), a, speech(3), b, c)
        assert stage.leg.of("mark") == ["before"]
        await at(145)
        assert stage.leg.of("mark") == ["before", "a"]
        times = {value: ms for ms, (what, value) in stage.leg.told if what == "mark"}
        written = {v: ms for (ms, _), v in zip(stage.socket.written, values(stage.socket.audio), strict=True)}
        await at(200)
        times = {value: ms for ms, (what, value) in stage.leg.told if what == "mark"}
        written = {v: ms for (ms, _), v in zip(stage.socket.written, values(stage.socket.audio), strict=True)}
        assert (times["a"], times["b"], times["c"]) == (written[2], written[3], written[3])
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


def test_after_a_clear_no_frame_and_no_mark_of_it_follows() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        await at(105)
        stage.leg.says(*[speech(7) for _ in range(20)], s.ServerMark("never"))
        await at(145)
        n_written = len(stage.socket.written)
        stage.leg.says(s.ServerClear())
        stage.leg.says(speech(8), s.ServerMark("new"))
        await at(605)
        assert values(stage.socket.audio)[n_written:] == [8] + [0] * (len(stage.socket.written) - n_written - 1)
        assert stage.leg.of("mark") == ["new"]
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


def test_a_flood_of_marks_is_bounded() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        before = metrics.value("telephony_sip_bridge_bad_input_total", kind="server_mark_flood")
        stage.leg.says(speech(1), *[s.ServerMark(f"m{k}") for k in range(5000)])
        await at(50)
        assert len(stage.leg.of("mark")) == 1000
        assert metrics.value("telephony_sip_bridge_bad_input_total", kind="server_mark_flood") == before + 4000
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


# -------------------------------------------------------------------- the caller


def test_the_caller_is_heard_in_order_in_frames_of_any_length() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        for k in range(1, 6):
            stage.socket.says(AudioFrame(8000, bytes((k, 0)) * 240))
            await asyncio.sleep(0.03)
        stage.socket.says(AudioFrame(8000, b"ab"), AudioFrame(8000, b"cd"), DigitFrame("5"), AudioFrame(8000, b"ef"))
        stage.socket.says(HangupFrame())
        await stage.ended()
        assert stage.leg.of("audio") == [bytes((k, 0)) * 240 for k in range(1, 6)] + [b"abcd", b"ef"]
        assert [what for _, (what, _) in stage.leg.told][-4:] == ["audio", "digit", "audio", "stop"]
        assert stage.leg.of("digit") == ["5"] and stage.leg.of("stop") == ["hangup"]

    play(act)


def test_caller_audio_is_dropped_and_counted_while_the_server_does_not_read() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        before = metrics.value("telephony_sip_bridge_caller_bytes_dropped_total")
        stage.leg.takes_audio = False
        stage.socket.says(AudioFrame(8000, bytes(320)))
        assert metrics.value("telephony_sip_bridge_caller_bytes_dropped_total") == before + 320
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


def test_early_digits_are_sent_when_the_server_has_joined() -> None:
    async def act() -> None:
        stage = PretendCall(join_takes_ms=500)
        stage.socket.says(UuidFrame(CALL), AudioFrame(8000, bytes(320)), DigitFrame("4"), DigitFrame("2"))
        await at(505)
        assert stage.leg.of("digit") == ["4", "2"]
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


def test_a_flood_of_digits_is_dropped() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        stage.socket.says(*[DigitFrame("1")] * 60)
        assert len(stage.leg.of("digit")) == 20
        await asyncio.sleep(1.1)
        stage.socket.says(DigitFrame("2"))
        assert stage.leg.of("digit")[-1] == "2"
        before = ends("bad_peer")
        stage.socket.says(*[DigitFrame("1")] * 100)
        await stage.ended()
        assert ends("bad_peer") == before + 1, "a flood"

    play(act)


# ------------------------------------------------------------------------- rates


@pytest.mark.parametrize(
    ("socket_hz", "server_hz"),
    [(8000, 8000), (12_000, 16_000), (16_000, 16_000), (24_000, 24_000), (32_000, 48_000), (44_100, 48_000),
     (48_000, 48_000), (96_000, 48_000), (192_000, 48_000)],
)  # fmt: skip
def test_the_first_audio_frame_sets_the_rate_of_both_directions(socket_hz: int, server_hz: int) -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined(socket_hz)
        assert stage.leg.started is not None and stage.leg.started.rate_hz == server_hz
        assert stage.leg.started.lead_ms == (100 if socket_hz == server_hz else 260)
        await at(100)
        stage.leg.says(*[s.ServerSpeech(b"\x10\x27" * (server_hz // 50)) for _ in range(30)])
        for _ in range(30):
            stage.socket.says(AudioFrame(socket_hz, b"\x10\x27" * (socket_hz // 50)))
        await at(995)
        stage.socket.says(HangupFrame())
        await stage.ended()
        audio = stage.socket.audio[1:]
        assert {frame.rate_hz for frame in audio} == {socket_hz}
        assert {len(frame.pcm) for frame in audio} == {socket_hz // 50 * 2}
        loud = [frame for frame in audio if max(frame.pcm)]
        assert 30 <= len(loud) <= 31, "600 ms of speech are 600 ms at any rate"
        n_heard = sum(len(pcm) for pcm in stage.leg.of("audio")) / 2 / server_hz
        held_back_s = 0.0 if socket_hz == server_hz else 0.1
        assert 0.6 - held_back_s <= n_heard <= 0.62
        middle = loud[15].pcm
        assert abs(int.from_bytes(middle[:2], "little", signed=True) - 10_000) < 20, "as loud as it was"

    play(act)


def test_a_silent_caller_is_joined_at_8_khz_after_a_moment() -> None:
    async def act() -> None:
        stage = PretendCall()
        stage.socket.says(UuidFrame(CALL))
        await at(195)
        assert stage.leg.started is None
        await at(205)
        assert stage.leg.started == s.LegStart(
            str(CALL), 8000, 20, 100, {"via": "audiosocket", "peer": "192.0.2.7"}
        )  # fmt: skip
        stage.socket.says(AudioFrame(16_000, b"\1\0" * 320))
        stage.leg.says(*[speech(10_000) for _ in range(10)])
        await at(505)
        late = stage.socket.audio[-15:]
        assert {frame.rate_hz for frame in late} == {16_000}, "Asterisk is spoken to at the rate it speaks"
        assert len([frame for frame in late if any(frame.pcm)]) == 10, "and 200 ms are 200 ms"
        assert abs(int.from_bytes(late[5].pcm[:2], "little") - 10_000) < 20
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


def test_audio_whose_rate_keeps_changing_ends_the_call() -> None:
    async def act() -> None:
        before = ends("bad_peer")
        stage = PretendCall()
        await stage.joined()
        for _ in range(50):
            stage.socket.says(AudioFrame(16_000, b"abcd"), AudioFrame(8000, b"ab"))
        assert {frame.rate_hz for frame in stage.socket.audio} == {8000}
        stage.socket.says(AudioFrame(16_000, b"abcd"), AudioFrame(8000, b"ab"))
        await stage.ended()
        assert ends("bad_peer") == before + 1

    play(act)


def test_a_rate_that_is_set_is_asked_for_at_once() -> None:
    async def act() -> None:
        stage = PretendCall({"audiosocket.rate_hz": 24_000})
        stage.socket.says(UuidFrame(CALL))
        await at(5)
        assert stage.leg.started is not None and stage.leg.started.rate_hz == 24_000
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)


# ---------------------------------------------------------------------- the end


def ends(reason: str) -> float:
    return metrics.value("telephony_sip_bridge_calls_total", reason=reason)


def test_when_the_bot_leaves_queued_speech_and_a_little_silence_are_played() -> None:
    async def act() -> None:
        before = ends("finished")
        stage = PretendCall()
        await stage.joined()
        await at(105)
        stage.leg.says(*[speech(v) for v in (1, 2, 3)])
        stage.leg.leaves(1000)
        await stage.ended()
        assert values(stage.socket.audio) == [0] * 6 + [1, 2, 3] + [0] * 5, "Asterisk discards what comes just before"
        assert ends("finished") == before + 1

    play(act)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1001, "server_draining"), (1006, "server_lost"), (1011, "server_lost"), (1013, "server_refused"),
     (4400, "server_refused"), (4404, "server_refused"), (4409, "server_refused")],
)  # fmt: skip
def test_each_close_code_of_the_server_gives_its_end_reason(code: int, reason: str) -> None:
    async def act() -> None:
        before = ends(reason)
        stage = PretendCall()
        await stage.joined()
        await at(505)
        stage.leg.leaves(code, "so it is")
        await stage.ended()
        assert ends(reason) == before + 1
        assert now_ms() < 605

    play(act)


@pytest.mark.parametrize("reason", ["server_refused", "server_unreachable"])
def test_a_call_that_the_server_refuses_has_silence_until_its_end(reason: str) -> None:
    async def act() -> None:
        before = ends(reason)
        stage = PretendCall(join_takes_ms=3000, refusal=s.NotJoined(reason, "why it is so"))
        stage.socket.says(UuidFrame(CALL))
        await stage.ended()
        assert ends(reason) == before + 1 and len(stage.socket.written) == 150

    play(act)


def test_a_caller_who_hangs_up_while_the_server_is_dialled_leaves_nothing() -> None:
    async def act() -> None:
        stage = PretendCall(join_takes_ms=60_000)
        stage.socket.says(UuidFrame(CALL))
        await at(100)
        stage.socket.lost.set_result("closed")
        await stage.ended()
        assert now_ms() < 101 and not stage.leg.told

    play(act)


def test_a_connection_without_a_uuid_is_ended_in_time() -> None:
    async def act() -> None:
        before = ends("no_uuid")
        stage = PretendCall({"audiosocket.uuid_timeout_s": 2})
        await stage.ended()
        assert now_ms() == 2000 and ends("no_uuid") == before + 1 and stage.socket.written == []

    play(act)


def test_garbage_ends_the_call_at_once_before_the_uuid_and_after_many_frames_later() -> None:
    async def act() -> None:
        before = ends("bad_peer")
        first = PretendCall()
        first.socket.says(BadFrame("not_audiosocket", "no"))
        await first.ended()
        second = PretendCall()
        await second.joined()
        for _ in range(10):
            second.socket.says(*[BadFrame("unknown_kind", "no")] * 49, AudioFrame(8000, b"ab"))
            second.socket.says(*[BadFrame("unknown_kind", "no")] * 48, ErrorFrame(4), DigitFrame("1"))
        assert len(second.leg.of("audio")) == 10
        second.socket.says(*[BadFrame("unknown_kind", "no")] * 50, AudioFrame(8000, b"xx"))
        await second.ended()
        assert ends("bad_peer") == before + 2 and len(second.leg.of("audio")) == 10

    play(act)


def test_an_asterisk_that_does_not_read_gets_no_partial_frame_and_its_call_ends() -> None:
    async def act() -> None:
        before = ends("slow_reader")
        stage = PretendCall()
        await stage.joined()
        await at(105)
        stage.socket.unsent_bytes = 100
        n_written = len(stage.socket.written)
        await at(1000)
        stage.socket.unsent_bytes = 0
        await at(1025)
        assert len(stage.socket.written) == n_written + 2, "it reads again, and the call goes on"
        stage.socket.unsent_bytes = 100
        await stage.ended()
        assert ends("slow_reader") == before + 1 and 3000 < now_ms() < 3100
        assert len(stage.socket.written) <= n_written + 3

    play(act)


def test_a_server_that_sends_far_too_much_ends_its_call() -> None:
    async def act() -> None:
        before = ends("queue_overflow")
        stage = PretendCall({"audiosocket.max_queue_ms": 1000})
        await stage.joined()
        stage.leg.says(*[speech(1) for _ in range(2000)])
        await stage.ended()
        assert ends("queue_overflow") == before + 1

    play(act)


def test_many_errors_of_the_server_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        stage.leg.says(*[s.ServerComplaint("bad_json", "no")] * 1000)
        await at(10_000)
        stage.leg.says(*[s.ServerComplaint("bad_json", "no")] * 1000)
        stage.socket.says(HangupFrame())
        await stage.ended()

    play(act)
    told = lines(caplog, "server_complains")
    (ended,) = lines(caplog, "call_ended")
    assert 100 <= len(told) <= 120 and len(told) + ended["lines_left_out"] == 2000


def test_a_crash_ends_the_call_with_a_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        before = ends("failed")
        stage = PretendCall()
        await stage.joined()

        def fails() -> Any:
            raise RuntimeError("a fault")

        stage.socket.on_write = fails
        await stage.ended()
        assert ends("failed") == before + 1
        assert "a fault" in caplog.text and virtual_loop.clock() < 50_000_000

    play(act)


def test_a_crash_while_joining_ends_the_call(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        before = ends("failed")
        stage = PretendCall(refusal=RuntimeError("a fault"))
        stage.socket.says(UuidFrame(CALL))
        await stage.ended()
        assert ends("failed") == before + 1 and "a fault" in caplog.text

    play(act)


def test_a_cancelled_call_leaves_nothing() -> None:
    async def act() -> None:
        stage = PretendCall()
        await stage.joined()
        await at(100)
        stage.run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage.run
        assert stage.socket.closed_ms is not None and stage.leg.closed

    play(act)
