"""PROTOCOL.md over a real socket: what a bot sends, what it receives, and that the two match."""

from __future__ import annotations

import itertools
import json
import re
import time
from typing import Any

import numpy as np
import pytest
from rig import (
    FRAME_BYTES,
    Bot,
    Tones,
    correlation,
    decoded,
    gather,
    rendering,
    run,
    serving,
    speech_settings,
    tones_in,
)

from telephony_tts.engines.fake.engine import MS_PER_CHAR

pytestmark = pytest.mark.timed

SENTENCES = "Your parcel is here. It weighs little. Shall I send it on?"


def test_a_plain_line_speaks() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot() as bot:
            assert {"codec": "ulaw", "rate_hz": 8000, "ptime_ms": 20, "voice": "tone"}.items() <= bot.ready.items()
            await bot.send("Hello there.")
            await bot.send({"type": "status"})
            done = await bot.event("done")
            assert all("null" not in json.dumps(event) for event in bot.events)
            kinds = [e.get("type") for e in bot.events]
            assert kinds.index("ready") < kinds.index("started") < kinds.index("done")
            assert done["chars"] == 12 and done["underruns"] == 0 and done["audio_ms"] == 20 * len(bot.frames)
            assert correlation(decoded(bot.frames), rendering(["Hello there."])) >= 0.99

    run(main)


@pytest.mark.parametrize(
    ("codec", "rate", "frame_bytes"),
    [("ulaw", 8000, 160), ("alaw", 8000, 160), ("pcm", 8000, 320), ("pcm", 16000, 640), ("pcm", 48000, 1920)],
)
@pytest.mark.parametrize("audio", ["binary", "base64"])
def test_a_turn_is_the_engines_audio_sample_for_sample(codec: str, rate: int, frame_bytes: int, audio: str) -> None:
    """Several sentences on one timeline: no gap, no overlap and the exact duration, in every codec."""

    async def main() -> None:
        async with serving() as rig, rig.bot(codec=codec, rate=rate, audio=audio, pace="burst") as bot:
            await bot.say(SENTENCES)
            await bot.event("started")
            n_frames = await _all_frames(bot)
            assert {len(frame) for frame in bot.frames} == {frame_bytes}
            wanted = rendering(rig.engine.spoken, rate)  # type: ignore[attr-defined]
            assert n_frames == -(-len(wanted) // (rate // 50)), "neither a frame more nor one less"
            heard = decoded(bot.frames, codec)
            assert correlation(heard, wanted) >= 0.99
            assert not np.abs(heard[len(wanted) :]).max(initial=0) > 300, "only silence pads the last frame"
            await bot.send({"type": "close", "now": True})
            assert (await bot.gone())[0] == 1000

    run(main)


async def _all_frames(bot: Bot) -> int:
    """Wait for a whole turn in burst mode: for the last `sentence` event and all frames before its end."""
    while True:
        last = await bot.event("sentence")
        if last["text"].rstrip().endswith("?"):
            break
    n_frames = -(-last["end_ms"] // 20)
    await bot.frames_to(n_frames)
    await bot.send({"type": "ping", "id": "all"})
    await bot.event("pong", id="all")
    return len(bot.frames)


def test_audio_none_runs_by_the_clock_without_audio() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(audio="none") as bot:
            begun_s = time.monotonic()
            await bot.say("Hello there.")
            done = await bot.event("done")
            assert not bot.frames and time.monotonic() - begun_s > 0.6
            assert done["audio_ms"] == 720

    run(main)


def test_text_in_pieces_is_the_same_turn() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(pace="burst", audio="binary") as bot:
            for piece in re.findall(r".{1,3}", SENTENCES):
                await bot.send({"type": "text", "turn": "a", "text": piece})
            await bot.send({"type": "end", "turn": "a"})
            await _all_frames(bot)
            assert correlation(decoded(bot.frames), rendering(rig.engine.spoken)) >= 0.99  # type: ignore[attr-defined]
            assert " ".join(e["text"] for e in bot.events if e.get("type") == "sentence") == SENTENCES

    run(main)


def test_flush_speaks_before_the_sentence_ends_and_config_changes_what_follows() -> None:
    async def main() -> None:
        engine = Tones(voice_names=("tone", "low"))
        async with serving(engine) as rig, rig.bot(audio="none", lead_ms=0) as bot:
            await bot.send({"type": "text", "turn": "a", "text": "One moment"})
            await bot.send({"type": "flush", "turn": "a"})
            await bot.event("started", turn="a")
            assert engine.spoken == ["One moment"]
            await bot.send({"type": "clear"})
            await bot.event("cleared", turn="a")
            await bot.send({"type": "config", "voice": "low", "speed": 2.0})
            await bot.say("Half as long.", "b")
            assert (await bot.event("done", turn="b"))["audio_ms"] == pytest.approx(13 * 30, abs=20)
            await bot.send({"type": "config", "voice": "stranger"})
            error = await bot.event("error")
            assert error["code"] == "unknown_voice" and not error["fatal"] and "turn" not in error

    run(main)


def test_status_ping_and_close_after_the_last_word() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(audio="binary") as bot:
            await bot.say("Good bye now.", "a")
            await bot.event("started", turn="a")
            await bot.send({"type": "status"})
            status = await bot.event("status")
            assert status["speaking"] == "a" and status["media"] == "attached" and status["turns"][0]["closed"]
            await bot.send({"type": "ping", "id": 7})
            assert (await bot.event("pong"))["id"] == 7
            await bot.send({"type": "close"})
            await bot.say("Too late.", "b")
            assert (await bot.event("error", turn="b"))["code"] == "closing"
            await bot.event("done", turn="a")
            assert (await bot.gone())[0] == 1000
            assert correlation(decoded(bot.frames), rendering(["Good bye now."])) >= 0.99

    run(main)


def test_frames_are_sent_on_schedule_with_their_lead() -> None:
    """Frame n comes no earlier than its time less the lead, and the mean does not drift."""

    async def main() -> None:
        async with serving() as rig, rig.bot(audio="binary", lead_ms=100) as bot:
            await bot.say("aaaa bbbb cccc dddd eeee ffff.")
            await bot.event("done")
            times = [at for at, entry in bot.log if isinstance(entry, bytes)]
            assert len(times) == 90
            offsets_ms = [(at - times[0]) * 1000 - 20 * n for n, at in enumerate(times)]
            # The first five or six are sent at once; from there on each is due 100 ms after it is sent.
            assert len([at for at in times if at - times[0] < 0.010]) in range(5, 8)
            assert min(offsets_ms) > -100 - 10
            late_ms = np.sort([offset + 100 for offset in offsets_ms[6:]])
            assert np.median(late_ms) < 15, "the schedule has not moved"
            assert abs(np.median(late_ms[-20:]) - np.median(late_ms[:20])) < 40

    run(main)


# ------------------------------------------------------------------------- guarantees (PROTOCOL.md §6)


def test_no_audio_of_a_turn_follows_its_cleared() -> None:
    """Each turn has a tone of its own, so audio after `cleared` shows the turn it belongs to."""

    async def main() -> None:
        async with serving() as rig, rig.bot(audio="binary", lead_ms=60) as bot:
            for n, (letter, wait_frames) in enumerate(zip("akuz", (1, 4, 9, 3), strict=True)):
                turn = f"t{letter}"
                n_before = len(bot.frames)
                await bot.say(f"{letter * 9} {letter * 9} {letter * 9}.", turn)
                await bot.event("started", turn=turn)
                await bot.frames_to(n_before + wait_frames)
                await bot.send({"type": "clear"})
                cleared = await bot.event("cleared", turn=turn)
                assert cleared["heard_text"] + cleared["unheard_text"] == f"{letter * 9} {letter * 9} {letter * 9}."
                assert bot.terminals(turn) == ["cleared"], n
            await bot.say("mmmm.", "last")
            await bot.event("done", turn="last")
            for letter, later in itertools.pairwise("akuzm"):
                frames = [entry for entry in bot.after("cleared", turn=f"t{letter}") if isinstance(entry, bytes)]
                heard = set(tones_in(frames, "akuzm"))
                assert letter not in heard and later in heard

    run(main)


def test_clear_overtakes_a_turn_of_4000_characters() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(audio="binary") as bot:
            text = ("The quick brown fox jumps over the lazy dog again. " * 80)[:4000]
            await bot.say(text, "long")
            await bot.event("started", turn="long")
            await bot.send({"type": "text", "turn": "next", "text": "And then some more."})
            sent_s = time.monotonic()
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared", turn="long")
            assert time.monotonic() - sent_s < 0.5
            assert cleared["heard_text"] + cleared["unheard_text"] == text
            assert text.startswith(cleared["heard_text"]) and cleared["heard_chars"] == len(cleared["heard_text"]) < 60
            await bot.event("cleared", turn="next")
            n_frames = len(bot.frames)
            await rig.empty_engine()
            await bot.send({"type": "ping"})
            await bot.event("pong")
            assert len(bot.frames) == n_frames

    run(main)


def test_one_end_per_turn_and_one_outcome_per_mark() -> None:
    """Clears at every moment of short and long turns: each turn and each mark ends exactly once."""

    async def main() -> None:
        async with serving() as rig, rig.bot(audio="binary", lead_ms=40) as bot:
            names: list[str] = []
            for n in range(24):
                turn = f"t{n}"
                await bot.send({"type": "text", "turn": turn, "text": "Yes. " * (n % 4 + 1)})
                names.append(f"m{n}")
                await bot.send({"type": "mark", "turn": turn, "name": names[-1]})
                await bot.send({"type": "text", "turn": turn, "text": "Well.", "last": True})
                if n % 3 == 2:
                    await bot.frames_to(len(bot.frames) + n % 5)
                    await bot.send({"type": "clear"} if n % 2 else {"type": "clear", "turn": turn})
                if n % 8 == 7:
                    await bot.send({"type": "clear"})
            await bot.say("Over.", "over")
            await bot.event("done", turn="over", within_s=15)
            for n, name in enumerate(names):
                assert len(bot.terminals(f"t{n}")) == 1, f"t{n}"
                states = [e["state"] for e in bot.events if e.get("type") == "mark" and e["name"] == name]
                assert len(states) == 1 and states[0] in ("played", "cleared"), name
                order = [e["type"] for e in bot.events if e.get("turn") == f"t{n}" and e["type"] != "sentence"]
                assert order.index("mark") < len(order) - 1, f"a mark after the end of its turn: {order}"

    run(main)


def test_heard_text_is_what_the_caller_heard() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot(audio="binary", lead_ms=0) as bot:
            await bot.say("aaaa bbbb cccc dddd eeee.", "a")
            await bot.frames_to(40)  # 800 ms: two words of 300 ms and a part of the third
            await bot.send({"type": "clear"})
            cleared = await bot.event("cleared")
            assert cleared["basis"] == "clock" and cleared["reason"] == "clear"
            words = cleared["heard_text"].split()
            assert len(words) == (cleared["heard_ms"] + 60) // 300 and cleared["heard_ms"] >= 760
            heard = tones_in(bot.frames, "abcde")
            assert all(word[0] in heard for word in words)

    run(main)


@pytest.mark.alone
def test_fifty_bots_leave_nothing_behind() -> None:
    async def main() -> None:
        async with serving() as rig:

            async def one(n: int) -> None:
                async with rig.bot(audio="binary") as bot:
                    await bot.say(f"Hello number {n}." if n % 2 else "A long one, of which not all is heard. " * 4)
                    if n % 2:
                        assert (await bot.event("done", within_s=15))["underruns"] == 0
                    else:
                        await bot.event("started")
                    assert bot.frames

            await gather(*(one(n) for n in range(50)))

    run(main, plain_loop=True)


def test_an_empty_and_an_unspeakable_turn_end_at_once() -> None:
    async def main() -> None:
        async with serving() as rig, rig.bot() as bot:
            await bot.say("", "a")
            assert (await bot.event("done", turn="a"))["audio_ms"] == 0
            await bot.say("?!… 🙂", "b")
            await bot.event("warning", code="empty_text", turn="b")
            assert (await bot.event("done", turn="b"))["audio_ms"] == 0
            assert not bot.frames

    run(main)


@pytest.mark.parametrize("speed", [0.5, 1.2, 2])
def test_the_speed_in_the_address_is_that_of_every_turn_until_a_config(speed: float) -> None:
    """Pinned: the address did not accept this option."""

    async def main() -> None:
        async with serving() as rig, rig.bot(speed=speed, pace="burst") as bot:
            for wanted in (speed, speed, 1.0):
                if wanted != speed:
                    await bot.send({"type": "config", "speed": wanted})
                await bot.say("Hello there.")
                sentence = await bot.event("sentence")
                assert sentence["end_ms"] == pytest.approx(12 * MS_PER_CHAR / wanted, abs=1)
                await bot.event("done")

    run(main)


def test_options_are_echoed_and_unknown_ones_get_a_warning() -> None:
    async def main() -> None:
        async with serving(Tones(voice_names=("tone", "low")), speech=speech_settings(lead_ms=200)) as rig:
            async with rig.bot(codec="alaw", lead_ms=60, ptime_ms=40, pace="burst", voice="low", colour="red") as bot:
                wanted: dict[str, Any] = {
                    "codec": "alaw", "rate_hz": 8000, "ptime_ms": 40, "pace": "burst", "lead_ms": 60, "voice": "low"
                }
                assert wanted.items() <= bot.ready.items()
                assert (await bot.event("warning"))["code"] == "unknown_option"
                await bot.say("Hi.")
                await bot.frames_to(3)
                assert {len(frame) for frame in bot.frames} == {2 * FRAME_BYTES}
            async with rig.bot(voice="stranger") as bot:
                assert bot.ready["voice"] == "tone"
                assert (await bot.event("error"))["code"] == "unknown_voice"
                await bot.say("Hi.", "a")
                await bot.event("started", turn="a")

    run(main)
