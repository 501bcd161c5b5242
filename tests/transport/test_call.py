"""The driver of a session: its tasks end with it, and its errors do not reach other calls."""

from __future__ import annotations

import asyncio

import pytest
from stage import READY, ClingingEngine, RecordingLeg, new_call, run, until

from telephony_tts.transport.call import Call
from telephony_tts.wire import messages as m
from telephony_tts.wire.native import NativeCodec

TEXT = "This is a sentence of some length, for it is to be interrupted."


async def live(call: Call) -> asyncio.Task[None]:
    task = asyncio.create_task(call.run())
    await call.started.wait()
    return task


def on_one_socket(call: Call) -> RecordingLeg:
    leg = RecordingLeg()
    call.frames_to_bot(leg, leg.encode)
    call.join_bot(leg, leg.encode, READY)
    return leg


def test_a_call_returns_only_when_its_engine_slot_is_free() -> None:
    async def main() -> None:
        engine = ClingingEngine()
        call = new_call(engine)
        task = await live(call)
        leg = on_one_socket(call)
        call.receive(m.Say(TEXT))
        await until(lambda: leg.got(m.Frame), "speech")
        call.bot_left(leg, "gone")
        assert call.over and leg.ended == [(1000, "the bot has left")]
        await asyncio.sleep(0.02)
        assert not task.done() and engine.n_held == 1
        engine.let_go.set()
        await task
        assert engine.n_held == 0

    run(main)


@pytest.mark.parametrize("refused", ['"voice":"no such voice"', '"speed":9'], ids=["voice", "speed"])
def test_a_refused_config_leaves_the_form_of_the_callers_audio(refused: str) -> None:
    """Pinned: after a refused voice the caller's audio came in the form that the same message had asked for."""

    async def main() -> None:
        call = new_call()
        task = await live(call)
        leg, codec = RecordingLeg(), NativeCodec("none")
        call.join_bot(leg, lambda message: leg.sent.append(codec.encode(message)), READY)
        as_text = b'{"event":"media","media":{"track":"inbound","timestamp":"0","payload":"//8="}}', True
        as_binary = b"\xff\xff", False
        for form, rest, wires in (
            ("base64", '"seed":1', [as_text]),
            ("binary", refused, [as_text]),
            ("binary", '"seed":1', [as_binary]),
            ("none", refused, [as_binary]),
            ("none", '"seed":1', []),
        ):
            call.receive(codec.decode(f'{{"type":"config","inbound":"{form}",{rest}}}'))
            leg.sent.clear()
            call.receive(m.MediaAudio(b"\xff\xff", 0))
            assert leg.sent == wires, (form, rest)
        call.finish(1000, "over")
        await task

    run(main)


def test_an_engine_that_frees_its_slot_late_delays_no_turn() -> None:
    async def main() -> None:
        engine = ClingingEngine()
        call = new_call(engine)
        task = await live(call)
        leg = on_one_socket(call)
        for n in range(3):
            call.receive(m.Say(TEXT, f"t{n}"))
            await until(lambda n=n: len(leg.got(m.Started)) == n + 1, "the next turn is spoken meanwhile")
            call.receive(m.Clear())
        assert engine.n_held == 3 and [c.turn for c in leg.got(m.Cleared)] == ["t0", "t1", "t2"]
        engine.let_go.set()
        call.finish(1000, "over")
        await task

    run(main)


def test_turns_cancelled_before_their_first_step_leave_no_trace() -> None:
    async def main() -> None:
        call = new_call()
        task = await live(call)
        on_one_socket(call)
        for _ in range(100):
            call.receive(m.Say(TEXT))
            call.receive(m.Clear())
        assert not call._runs
        call.finish(1000, "over")
        await task

    run(main)


def test_nothing_is_done_or_timed_after_the_end() -> None:
    async def main() -> None:
        call = new_call()
        task = await live(call)
        leg = on_one_socket(call)
        call.receive(m.Say(TEXT))
        await until(lambda: leg.got(m.Frame), "speech")
        call.expect("media", 0.01)  # only now: on a slow machine it would expire before the end
        call.finish(1000, "over")
        call.finish(1011, "a second time")
        n_sent = len(leg.sent)
        call.receive(m.Say("Too late."))
        call.receive(m.Ping(1))
        call.writable(True)
        call.drain(1001, "late")
        call.cut_off("drain", 1001, "late")
        call.media_left(leg, "late")
        call.expect("media", 0.01)
        await task
        await asyncio.sleep(0.03)
        assert len(leg.sent) == n_sent and leg.ended == [(1000, "over")]
        late = RecordingLeg()
        call.join_bot(late, late.encode, READY)
        assert late.ended == [(1000, "over")], "a leg that joins a call that is over is closed at once"

    run(main)


def test_a_leg_of_another_call_can_leave_without_effect() -> None:
    async def main() -> None:
        call = new_call(media=False)
        task = await live(call)
        bot, media, other_leg = RecordingLeg(), RecordingLeg(), RecordingLeg()
        call.join_bot(bot, bot.encode, READY)
        call.join_media(media, media.encode)
        call.bot_left(other_leg, "refused")
        call.media_left(other_leg, "refused")
        assert not call.over and not bot.ended and not media.ended
        call.media_left(media, "hangup")
        await task
        assert bot.got(m.Hangup) == [m.Hangup("hangup")] and bot.ended

    run(main)


def test_a_late_bot_gets_the_kept_events_it_missed() -> None:
    async def main() -> None:
        call = new_call(media=False)
        task = await live(call)
        for n in range(200):
            call.receive(m.MediaDtmf(str(n % 10)))
        bot = RecordingLeg()
        call.join_bot(bot, bot.encode, READY)
        assert bot.sent[0] == READY
        assert [event.digit for event in bot.got(m.Dtmf)] == [str(n % 10) for n in range(136, 200)]
        call.finish(1000, "over")
        await task

    run(main)


@pytest.mark.parametrize("missing", ["bot", "media"])
def test_the_wait_for_a_missing_leg_times_out(missing: str) -> None:
    async def main() -> None:
        call = new_call(media=False)
        task = await live(call)
        there = RecordingLeg()
        if missing == "media":
            call.join_bot(there, there.encode, READY)
        else:
            call.join_media(there, there.encode)
        call.expect(missing, 0.02)
        await task
        assert there.ended[0][0] == 4404
        if missing == "media":
            assert there.got(m.ErrorEvent)[0].code == "no_media" and there.got(m.ErrorEvent)[0].fatal

    run(main)


@pytest.mark.parametrize("where", ["encode", "receive", "poll", "interrupt"])
def test_an_internal_error_ends_the_call_with_1011_and_a_traceback(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    async def main() -> None:
        engine = ClingingEngine()
        engine.let_go.set()
        call = new_call(engine)
        task = await live(call)
        leg = on_one_socket(call)
        call.receive(m.Say(TEXT))
        await until(lambda: leg.got(m.Frame), "speech")
        if where == "encode":
            call._encode_bot = broken  # type: ignore[assignment]
            call.receive(m.Ping(1))
        else:
            monkeypatch.setattr(call.session, where, broken)
            if where == "receive":
                call.receive(m.Ping(1))
            elif where == "interrupt":
                call.bot_left(leg, "gone")
        await task
        assert leg.ended == [(1011, "internal error")]
        assert engine.n_held == 0

    run(main)
    record = next(record for record in caplog.records if record.message == "call_crashed")
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


def test_a_task_of_the_call_that_breaks_closes_both_legs() -> None:
    async def main() -> None:
        call = new_call(media=False)
        task = await live(call)
        bot, media = RecordingLeg(), RecordingLeg()
        call.join_bot(bot, bot.encode, READY)
        call.join_media(media, media.encode)

        async def breaks() -> None:
            raise ZeroDivisionError("a bug of ours")

        call.spawn(breaks(), "breaks")
        with pytest.raises(ExceptionGroup):
            await task
        assert bot.ended == media.ended == [(1011, "internal error")]

    run(main)


def test_the_voice_of_the_greeting_is_the_one_that_will_speak() -> None:
    async def main() -> None:
        call = new_call()
        assert call.voice_name("tone") == call.voice_name(None) == call.voice_name("stranger") == "tone"
        assert call.voice_name("fake/tone") == "fake/tone"

    run(main)


def broken(*_: object) -> None:
    raise ZeroDivisionError("a bug of ours")


class BrokenLeg(RecordingLeg):
    def end(self, code: int, reason: str) -> None:
        super().end(code, reason)
        broken()


class BrokenRecording:
    end = broken


@pytest.mark.parametrize("what", ["recording", "media leg", "bot leg", "id"])
def test_a_call_ends_with_both_legs_whatever_fails_at_its_end(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Pinned: the call stayed for ever, and with it its place and the drain."""

    async def main() -> None:
        call = new_call(media=False)
        task = await live(call)
        bot = BrokenLeg() if what == "bot leg" else RecordingLeg()
        media = BrokenLeg() if what == "media leg" else RecordingLeg()
        call.join_bot(bot, bot.encode, READY)
        call.join_media(media, media.encode)
        freed: list[bool] = []

        def free() -> None:
            freed.append(True)
            if what == "id":
                broken()

        call.on_over = free
        if what == "recording":
            call.recording = BrokenRecording()  # type: ignore[assignment]
        call.finish(1000, "over")
        await task
        assert bot.ended == media.ended == [(1000, "over")] and freed == [True]

    run(main, within_s=5)
    (record,) = [record for record in caplog.records if record.message == "end_crashed"]
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError
