"""Calls on a real server whose engine runs in other processes: replicas die, hang and drain while the calls speak."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from rig import Bot, Rig, decoded, gather, serving, speech_settings
from tone_text import tone_text

from telephony_tts.engines.remote.client import RemoteEngine
from telephony_tts.runtime import metrics

sys.path.append(str(Path(__file__).parents[1] / "engines" / "remote"))
from engine_servers import ServerProcess, engine_server

pytestmark = [pytest.mark.slow, pytest.mark.timed, pytest.mark.thorough]

WORDS = ["abc", "defg", "hij", "klmno", "pqr", "stuv", "wxyz"]
TEXT = " ".join(WORDS * 4)
"""Eight seconds of tones."""
N_CALLS = 12
FIRST_AUDIO_MS = 1_500
QUICK = ("engines.fake.rtf=0.4", "engines.fake.first_audio_ms=20")


def lost_words(heard: str) -> list[str]:
    """The words of TEXT that are not in `heard`, in order. A word may come twice: it was broken off."""
    missing, at = [], 0
    letters = heard.replace(" ", "")
    for word in WORDS * 4:
        found = letters.find(word, at)
        if found < 0 or found - at > len(max(WORDS, key=len)):
            missing.append(word)
        else:
            at = found + len(word)
    return missing


def longest_gap_ms(bot: Bot) -> float:
    """The longest time between two frames of speech."""
    times = [at for at, entry in bot.log if isinstance(entry, bytes)]
    return max(1000 * (late - early) for early, late in pairwise(times))


def calls_survive(servers: list[ServerProcess], harm: signal.Signals) -> None:
    """Twelve calls speak, one replica is harmed, and every call says all of its words."""

    async def talk(bot: Bot) -> dict[str, object]:
        await bot.say(TEXT, "t")
        return await bot.event("done", within_s=30, turn="t")

    async def main() -> None:
        engine = RemoteEngine("remote", [server.address for server in servers], first_audio_timeout_ms=FIRST_AUDIO_MS)
        async with serving(engine, speech=speech_settings()) as rig:
            async with AsyncExitStack() as open_bots:
                bots = [await open_bots.enter_async_context(rig.bot(audio="binary")) for _ in range(N_CALLS)]
                talks = [asyncio.create_task(talk(bot)) for bot in bots]
                await gather(*(bot.frames_to(40) for bot in bots))
                os.kill(servers[0].pid, harm)
                done = await gather(*talks)
            affected = [n for n, event in enumerate(done) if event.get("engines")]
            assert 0 < len(affected) < N_CALLS, "the replica that was harmed spoke for some of them"
            assert all(done[n]["engines"] == ["remote", "remote#2"] for n in affected)
            for n, bot in enumerate(bots):
                assert lost_words(tone_text(decoded(bot.frames))) == [], n
                gap_ms = longest_gap_ms(bot)
                assert gap_ms < (FIRST_AUDIO_MS + 300 if n in affected else 300), (n, gap_ms)
            print(f"{harm.name}: {len(affected)} affected, longest gap {max(map(longest_gap_ms, bots)):.0f} ms")
            await check_idle(rig)

    asyncio.run(asyncio.wait_for(main(), 60))


async def check_idle(rig: Rig) -> None:
    await rig.empty()
    assert rig.engine.stats().n_running == 0


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_replica_that_dies_or_hangs_costs_no_call_and_no_word(harm: signal.Signals) -> None:
    metrics.REPLICAS_LOST.labels(engine="remote")
    before = metrics.value("telephony_tts_replicas_lost_total", engine="remote")
    with engine_server(*QUICK) as one, engine_server(*QUICK) as two, engine_server(*QUICK) as three:
        calls_survive([one, two, three], harm)
    assert metrics.value("telephony_tts_replicas_lost_total", engine="remote") > before


def test_a_replica_that_drains_cuts_nothing() -> None:
    """The rolling restart: the sentence is finished, and the next one goes to another replica."""

    async def talk(bot: Bot) -> None:
        for n in range(3):
            await bot.say(" ".join(WORDS), f"t{n}")
        await bot.event("done", within_s=30, turn="t2")

    async def main() -> None:
        with engine_server(*QUICK) as one, engine_server(*QUICK) as two:
            engine = RemoteEngine("remote", [one.address, two.address])
            async with serving(engine, speech=speech_settings()) as rig:
                async with AsyncExitStack() as open_bots:
                    bots = [await open_bots.enter_async_context(rig.bot(audio="binary")) for _ in range(6)]
                    talks = [asyncio.create_task(talk(bot)) for bot in bots]
                    await gather(*(bot.frames_to(20) for bot in bots))
                    one.child.send_signal(signal.SIGTERM)
                    await gather(*talks)
                assert await asyncio.to_thread(one.child.wait, 10) == 0
                for bot in bots:
                    assert tone_text(decoded(bot.frames)).replace(" ", "") == "".join(WORDS) * 3
                    assert not any(event.get("engines") for event in bot.events), "no sentence was moved"
                    assert longest_gap_ms(bot) < 300

    asyncio.run(asyncio.wait_for(main(), 60))
