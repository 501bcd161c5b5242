"""Pauses on the media legs of carriers, by the bot and by the caller's voice: the caller hears each sample once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from binary_carriers import VonagePeer, platform
from carrier_peers import PlivoPeer, TelnyxPeer
from rig import correlation, decoded, rendering, run, serving, speech_settings, tones_in, until
from test_recorded_calls import letters, loud, read, recording
from test_voice_barge_in import frames_of, voice
from twilio_peer import TwilioPeer, dialling

from telephony_tts.audio.g711 import Pcm
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.failover import Failover
from telephony_tts.engines.fake.engine import FakeEngine

pytestmark = pytest.mark.timed

TEXT = "The quick brown fox jumps over the lazy dog."
LONG = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all today."
PEERS: dict[str, type[TwilioPeer]] = {"twilio": TwilioPeer, "telnyx": TelnyxPeer, "plivo": PlivoPeer}


def assert_each_sample_once(before: Pcm, after: Pcm, from_ms: int, rate_hz: int = 8_000, text: str = TEXT) -> None:
    """`before` was heard up to the pause, `after` behind it. Speech goes on at `from_ms`, in the middle of a frame."""
    place, n_frame = from_ms * rate_hz // 1000, rate_hz // 50
    assert len(before) >= place, "nothing between was left out"
    n_silent = place % n_frame
    assert np.abs(after[: max(0, n_silent - 2)]).max(initial=0) <= 8, "nothing before the place is heard again"
    whole, wanted = np.concatenate([before[:place], after[n_silent:]]), rendering([text], rate_hz)
    assert abs(len(whole) - len(wanted)) < 2 * n_frame
    assert correlation(whole, wanted) > 0.98


@pytest.mark.parametrize("carrier", PEERS)
@pytest.mark.parametrize("step_back_ms", [0, 333])
def test_a_pause_on_a_carrier(carrier: str, step_back_ms: int) -> None:
    async def main() -> None:
        async with (
            serving() as rig,
            rig.bot(call="CA1", step_back_ms=step_back_ms) as bot,
            dialling(PEERS[carrier], rig.url(f"/media/{carrier}"), "CA1") as peer,
        ):
            await peer.start(bot="sales")
            await bot.event("call")
            await bot.send({"type": "text", "text": TEXT, "turn": "a"})
            await bot.send({"type": "mark", "name": "end", "turn": "a"})
            await bot.send({"type": "end", "turn": "a"})
            await peer.hears(60)
            await bot.send({"type": "pause"})
            paused = await bot.event("paused")
            await until(lambda: peer.n_clears == 1, "the clear")
            n_before = len(peer.played)
            assert abs(paused["heard_ms"] - 20 * n_before) < 120
            await asyncio.sleep(0.4)
            assert len(peer.played) == n_before, "the caller hears nothing"
            await bot.send({"type": "resume"})
            resumed = await bot.event("resumed")
            assert resumed["from_ms"] <= paused["heard_ms"] - step_back_ms
            mark = await bot.event("mark", name="end")
            assert mark["state"] == "played"
            await bot.event("done", turn="a")
            assert [event["type"] for event in bot.events].count("mark") == 1
            before, after = decoded(peer.played[:n_before]), decoded(peer.played[n_before:])
            assert_each_sample_once(before, after, resumed["from_ms"])

    run(main)


def test_a_pause_on_vonage() -> None:
    async def main() -> None:
        async with serving() as rig, platform(VonagePeer, rig.url("/media/vonage", call="c1")) as peer:
            await peer.connected(16_000)
            async with rig.bot(call="c1", step_back_ms=210) as bot:
                await bot.say(TEXT, "a")
                await peer.hears(32_000)
                await bot.send({"type": "pause"})
                await peer.gets(action="clear")
                await bot.event("paused")
                n_before, n_audio = len(peer.heard), len(peer.audio)
                await asyncio.sleep(0.4)
                assert len(peer.heard) <= n_before + 640 and len(peer.audio) == n_audio
                n_before = len(peer.heard)
                await bot.send({"type": "resume"})
                resumed = await bot.event("resumed")
                await bot.event("done", turn="a")
                before, after = decoded([bytes(peer.heard[:n_before])], "pcm"), decoded(peer.audio[n_audio:], "pcm")
                assert_each_sample_once(before, after, resumed["from_ms"], 16_000)

    run(main)


VOICE_S = 1.0


@pytest.mark.alone
@pytest.mark.parametrize("is_long", [False, True])
def test_the_callers_voice_pauses_and_only_a_longer_one_interrupts(is_long: bool) -> None:
    """A cough, as long as a word, and a sentence. The caller's voice and Twilio's buffer are real ones in time."""

    async def main() -> None:
        options: dict[str, Any] = {"barge_in": "on", "barge_in_action": "pause", "min_speech_ms": 160}
        async with (
            serving() as rig,
            rig.bot(call="CA1", false_interruption_ms=1_500, resume_after_ms=300, **options) as bot,
            dialling(TwilioPeer, rig.url("/media/twilio"), "CA1") as peer,
        ):
            said = frames_of(voice(8000), "ulaw", 8000)
            said = said if is_long else said[: round(VOICE_S * 50)]
            await peer.start()
            await bot.event("call")
            await bot.say(LONG, "a")
            await peer.hears(50)
            speaking = asyncio.create_task(peer.speak([*said, *[b"\xff" * 160] * 100]))
            paused = await bot.event("paused")
            assert paused["reason"] == "barge_in" and paused["heard_text"]
            await until(lambda: peer.n_clears == 1, "the clear")
            n_before = len(peer.played)
            if is_long:
                cleared = await bot.event("cleared")
                assert cleared["reason"] == "barge_in" and cleared["heard_text"] == paused["heard_text"]
                assert not [event for event in bot.events if event["type"] == "resumed"]
            else:
                resumed = await bot.event("resumed")
                await bot.event("done", turn="a")
                before, after = decoded(peer.played[:n_before]), decoded(peer.played[n_before:])
                assert_each_sample_once(before, after, resumed["from_ms"], text=LONG)
            await speaking
            assert len([event for event in bot.events if event["type"] == "paused"]) == 1

    run(main)


def test_an_engine_that_fails_while_paused_ends_the_turn_with_what_was_heard() -> None:
    """The next turn is spoken: the pause is over with the turn that it held."""

    async def main() -> None:
        engine = FakeEngine(fail_after_chunks=30, speed=3.0)
        async with serving(engine, speech=speech_settings(ahead_ms=10_000)) as rig, rig.bot(audio="binary") as bot:
            await bot.say(LONG, "a")
            await bot.frames_to(20)
            await bot.send({"type": "pause"})
            paused = await bot.event("paused")
            error = await bot.event("error", turn="a")
            assert error["code"] == "engine_failed"
            assert (error["heard_text"], error["heard_ms"]) == (paused["heard_text"], paused["heard_ms"])
            engine.fail_after_chunks = None
            n_before = len(bot.frames)
            await bot.say("Yes?", "b")
            await bot.event("done", turn="b")
            assert correlation(decoded(bot.frames[n_before:]), rendering(["Yes?"])) > 0.98

    run(main)


def test_an_engine_that_is_replaced_while_paused_goes_on_after_it() -> None:
    async def main() -> None:
        engines = [
            FakeEngine(fail_after_chunks=30, speed=3.0),
            FakeEngine(name="spare", voice_names=("spare-tone",)),
        ]
        failover = Failover(engines, ["spare"], timeout_ms=500, after=3, retry_s=30)
        catalog = Catalog(engines, failover=failover)
        async with (
            serving(catalog=catalog, speech=speech_settings(ahead_ms=10_000)) as rig, rig.bot(audio="binary") as bot
        ):  # fmt: skip
            await bot.say(LONG, "a")
            await bot.frames_to(20)
            n_before = len(bot.frames)
            await bot.send({"type": "pause"})
            await bot.event("paused")
            await asyncio.sleep(1.2)  # 30 chunks of 100 ms, three times as fast as they are heard
            assert failover._circuits["fake"].n_failures == 1
            assert len(bot.frames) <= n_before + 12, "nothing is sent while paused"
            at = len(bot.frames)
            await bot.send({"type": "resume"})
            resumed = await bot.event("resumed")
            done = await bot.event("done", turn="a")
            assert done["engines"] == ["fake", "spare"]
            after = decoded(bot.frames[at:])
            wanted = rendering([LONG])[resumed["from_ms"] * 8 // 160 * 160 :]
            # The word that was broken off at 3 s ends a little earlier.
            assert abs(len(after) - len(wanted)) < 8 * 400

    run(main)


def test_a_recording_has_a_pause_where_it_was(tmp_path: Path) -> None:
    """What the pause took back is not in the recording, and the silence is as long as it was."""

    async def main() -> None:
        async with recording(tmp_path) as rig, rig.bot(call="CA1", record="on") as bot:
            await bot.event("recording", state="started")
            async with dialling(TwilioPeer, rig.url("/media/twilio"), "CA1") as peer:
                await peer.start()
                await bot.event("call")
                await bot.say("aaaaaaaaaa mmmmmmmmmm zzzzzzzzzz.", "t1")
                await peer.hears(50)
                await bot.send({"type": "pause"})
                await bot.event("paused")
                await asyncio.sleep(0.7)
                await bot.send({"type": "resume"})
                resumed = await bot.event("resumed")
                assert resumed["from_ms"] == 600, "behind the first word"
                await bot.event("done", turn="t1")
                await peer.hang_up()
                await bot.event("recording", state="ended")
                heard = tones_in(peer.played, "amz").replace(" ", "")
        pcm, rows = read(tmp_path)
        right = pcm[:, 1]
        text = letters(right, "amz").strip()
        runs = [piece for piece in text.split() if len(set(piece)) == 1 and len(piece) > 3]
        assert [piece[0] for piece in runs] == ["a", "m", "m", "z"], text
        assert abs(len(runs[0]) - 30) <= 2 and abs(len(runs[2]) - 30) <= 2 and abs(len(runs[3]) - 30) <= 2
        # Both ends of a run lie inside of a frame.
        assert abs(sum(map(len, runs)) - len(heard)) <= 2 * len(runs), "all that the caller heard"
        ends = loud(right)
        gaps_ms = [(later[0] - earlier[1]) / 8 for earlier, later in pairwise(ends)]
        assert 690 < max(gaps_ms) < 1_000
        kinds = [row["type"] for row in rows]
        assert kinds.index("paused") < kinds.index("resumed") < kinds.index("done")

    run(main)
