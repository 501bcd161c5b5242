"""Whole FreeSWITCH calls: bot, server, bridge, and a stand-in for FreeSWITCH with its module.

There is no package of FreeSWITCH, so the stand-in repeats what was recorded of a real one; see docs/freeswitch.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from bridge_rig import bridging, run, until
from process_rig import running
from server_rig import TOKEN, bot_of, event, tones, tts_server
from standin_freeswitch import PASSWORD, StandinChannel, StandinFreeSwitch
from websockets.asyncio.client import ClientConnection

from telephony_tts.runtime import metrics
from telephony_tts.transport.server import Server

pytestmark = pytest.mark.timed

SENTENCES = ["Your parcel left the depot on Tuesday.", "It will be with you on Friday.", "Good bye."]
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class FreeSwitchCallerLine:
    server: Server
    switch: StandinFreeSwitch
    channel: StandinChannel
    url: str
    bot: ClientConnection


@asynccontextmanager
async def lined(
    folder: Path, *, rate_hz: int = 8000, module: str = "mod_audio_stream", inbound: str = "none",
    by_header: bool = True,
) -> AsyncIterator[FreeSwitchCallerLine]:  # fmt: skip
    """An answered call whose module has connected, and its bot."""
    async with tts_server() as server, StandinFreeSwitch(folder).running() as switch:
        url = f"ws://127.0.0.1:{server.port}/media/freeswitch?rate={rate_hz}"
        async with bridging(
            "ws://127.0.0.1:9/", freeswitch__enabled=True, freeswitch__port=switch.port, freeswitch__password=PASSWORD
        ) as rig:
            await until(lambda: rig.bridge._why_not_ready() is None, "the event socket")
            channel = switch.call(module=module)
            headers = AUTHORISED | ({"X-Call": channel.uuid} if by_header else {})
            metadata = json.dumps({"from": "+4930", **({} if by_header else {"call": channel.uuid})})
            assert await switch.stream(channel, url, metadata=metadata, headers=headers)
            async with bot_of(server, channel.uuid, inbound) as bot:
                yield FreeSwitchCallerLine(server, switch, channel, url, bot)
                await switch.hang_up(channel)
            await until(lambda: rig.bridge.n_calls == 0 and not len(server.registry), "the end of the call")


def ends_s(channel: StandinChannel, sentence: str, rate_hz: int = 8000) -> list[float]:
    """When the telephone had heard each whole sentence: a file may have several, and one may be heard twice."""
    wanted = tones([sentence], rate_hz).astype(float)
    found = []
    for begun_s, _, pcm in channel.heard:
        heard = np.frombuffer(pcm, "<i2").astype(float)
        if len(heard) < len(wanted):
            continue
        n = 1 << (len(heard) + len(wanted)).bit_length()
        fits = np.fft.irfft(np.fft.rfft(heard, n) * np.conj(np.fft.rfft(wanted, n)), n)[: len(heard) - len(wanted) + 1]
        energy = np.concatenate(([0.0], np.cumsum(heard * heard)))
        at = int(np.argmax(fits / np.sqrt(energy[len(wanted) :] - energy[: len(fits)] + 1e6)))
        if np.corrcoef(heard[at : at + len(wanted)], wanted)[0, 1] > 0.999:
            found.append(begun_s + (at + len(wanted)) / rate_hz)
    return found


def heard_whole(channel: StandinChannel, sentences: list[str], rate_hz: int = 8000) -> list[float]:
    """The end of each sentence. Each must be heard exactly once, in order, and nothing else."""
    ends = [ends_s(channel, sentence, rate_hz) for sentence in sentences]
    assert [len(each) for each in ends] == [1] * len(sentences), ends
    assert abs(len(channel.pcm) // 2 - sum(len(tones([each], rate_hz)) for each in sentences)) < 800 * len(sentences)
    whole = [end_s for each in ends for end_s in each]
    assert whole == sorted(whole)
    return whole


def correlation(heard: np.ndarray, wanted: np.ndarray) -> float:
    n = min(len(heard), len(wanted))
    assert abs(len(heard) - len(wanted)) < 800, (len(heard), len(wanted))
    return float(np.corrcoef(heard[:n], wanted[:n])[0, 1])


@pytest.mark.parametrize(
    ("rate_hz", "module", "by_header"),
    [(8000, "mod_audio_stream", True), (16000, "mod_audio_stream", False), (8000, "mod_audio_fork", False)],
)
def test_a_bots_sentences_are_heard_whole_and_reported(
    tmp_path: Path, rate_hz: int, module: str, by_header: bool
) -> None:
    async def main() -> None:
        async with lined(tmp_path, rate_hz=rate_hz, module=module, by_header=by_header) as line:
            call = await event(line.bot, "call")
            assert (call["codec"], call["rate_hz"], call["parameters"]["from"]) == ("pcm", rate_hz, "+4930")
            await line.bot.send(json.dumps({"type": "text", "text": " ".join(SENTENCES[:2]), "turn": "a"}))
            await line.bot.send(json.dumps({"type": "mark", "name": "here", "turn": "a"}))
            await line.bot.send(json.dumps({"type": "text", "text": " " + SENTENCES[2], "turn": "a", "last": True}))
            loop = asyncio.get_running_loop()
            assert (await event(line.bot, "mark"))["name"] == "here"
            here_s = loop.time()
            await event(line.bot, "done")
            done_s = loop.time()
            ends = heard_whole(line.channel, SENTENCES, rate_hz)
            assert len(line.channel.heard) <= 3, "no file is less than a sentence"
            assert here_s == pytest.approx(ends[1], abs=0.08)
            assert done_s == pytest.approx(line.channel.heard[-1][1], abs=0.08)

    run(main)


def test_speech_from_before_the_call_is_heard_in_sentences_too(tmp_path: Path) -> None:
    """Speech that was made for a telephone with frames is made again for one with files."""

    async def main() -> None:
        async with lined(tmp_path) as line:
            later = line.switch.call()
            async with bot_of(line.server, later.uuid) as bot:
                await bot.send(json.dumps({"type": "say", "text": " ".join(SENTENCES), "turn": "a"}))
                await asyncio.sleep(0.2)
                await line.switch.stream(later, line.url, headers=AUTHORISED | {"X-Call": later.uuid})
                await event(bot, "done")
            heard_whole(later, SENTENCES)
            assert len(later.heard) <= 3, "no file is less than a sentence"
            await until(lambda: not later.is_up, "the end, for its bot has left")

    run(main)


@pytest.mark.parametrize("module", ["mod_audio_stream", "mod_audio_fork"])
def test_a_clear_silences_the_telephone_and_reports_the_heard_text(tmp_path: Path, module: str) -> None:
    async def main() -> None:
        async with lined(tmp_path, module=module, by_header=False) as line:
            await line.bot.send(json.dumps({"type": "say", "text": " ".join(SENTENCES), "turn": "a"}))
            await until(lambda: line.channel.heard, "the first sentence")
            await line.channel.playing.wait()
            await asyncio.sleep(0.5)
            cleared_s = asyncio.get_running_loop().time()
            await line.bot.send('{"type":"clear"}')
            cleared = await event(line.bot, "cleared")
            await line.bot.send(json.dumps({"type": "say", "text": SENTENCES[2], "turn": "b"}))
            await event(line.bot, "done")
            (_, _, first), (from_s, to_s, _), *rest = line.channel.heard
            assert to_s - cleared_s < 0.15
            heard_ms = len(first) / 16 + (to_s - from_s) * 1000
            assert cleared["basis"] == "marks"
            assert heard_ms - 150 < cleared["heard_ms"] <= heard_ms
            assert cleared["heard_text"].startswith(SENTENCES[0]) and SENTENCES[2] in cleared["unheard_text"]
            spoken = np.concatenate([np.frombuffer(pcm, "<i2") for _, _, pcm in rest if pcm])
            assert correlation(spoken, tones([SENTENCES[2]], 8000)) > 0.999, "the new turn, and nothing of the old"

    run(main)


def test_the_callers_voice_and_digits_reach_the_bot(tmp_path: Path) -> None:
    async def main() -> None:
        async with lined(tmp_path, inbound="binary") as line:
            voice = np.random.default_rng(1).integers(-9000, 9000, 8000).astype("<i2").tobytes()
            await asyncio.sleep(0.05)
            await line.switch.hears_caller(line.channel, voice)
            audio = bytearray()
            line.switch.press(line.channel, "7")
            assert (await event(line.bot, "dtmf", audio))["digit"] == "7"
            assert bytes(audio) == voice

    run(main)


def test_a_hang_up_inside_a_file_is_reported_and_is_not_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with lined(tmp_path) as line:
            await line.bot.send(json.dumps({"type": "say", "text": " ".join(SENTENCES), "turn": "a"}))
            await line.channel.playing.wait()
            await asyncio.sleep(0.3)
            await line.switch.hang_up(line.channel)
            cleared = await event(line.bot, "cleared")
            assert cleared["reason"] == "hangup" and 200 <= cleared["heard_ms"] <= 450
            await event(line.bot, "hangup")

    run(main)


def test_a_bot_that_leaves_ends_the_telephone_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with lined(tmp_path) as line:
            await line.bot.send(json.dumps({"type": "say", "text": "Good bye.", "turn": "a"}))
            await event(line.bot, "done")
            await line.bot.close()
            await until(lambda: not line.channel.is_up, "the hang-up")
            assert len(line.channel.heard) == 1, "the caller heard the last sentence"

    run(main)


def test_a_lost_event_socket_loses_no_speech(tmp_path: Path) -> None:
    """A file that was not played to its end is sent again; the turn ends normally."""

    async def main() -> None:
        async with lined(tmp_path) as line:
            await line.bot.send(json.dumps({"type": "say", "text": " ".join(SENTENCES), "turn": "a"}))
            await until(lambda: line.channel.heard, "the first sentence")
            await line.channel.playing.wait()
            line.switch.drop_connections()
            done = await event(line.bot, "done")
            assert done["turn"] == "a"
            assert all(ends_s(line.channel, sentence) for sentence in SENTENCES), "a sentence was never heard whole"

    run(main)


def test_a_lost_event_socket_ends_no_silent_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says that it still has the call, though it has nothing to send again."""
    monkeypatch.setattr("sip_bridge.freeswitch.call._ANSWER_S", 0.5)

    async def main() -> None:
        async with lined(tmp_path) as line:
            line.switch.drop_connections()
            await until(lambda: line.channel.reports == [{"esl": "again"}], "asking the server again")
            await asyncio.sleep(0.8)
            assert line.channel.is_up
            await line.bot.send(json.dumps({"type": "say", "text": "Good bye.", "turn": "a"}))
            await event(line.bot, "done")

    run(main)


def test_a_restarted_bridge_loses_no_sentence_and_reports_true_marks(tmp_path: Path) -> None:
    """`kill -9` while the first sentence plays; three seconds later a new process finds the live call."""
    sentences = [
        "Your first parcel left the depot on Monday.",
        "Your second parcel left it on Tuesday.",
        "Your third parcel left it on Wednesday.",
        "Your fourth parcel left it on Thursday.",
    ]

    async def main() -> None:
        async with tts_server() as server, StandinFreeSwitch(tmp_path).running() as switch:
            loop = asyncio.get_running_loop()
            settings = (
                "freeswitch.enabled=true", f"freeswitch.port={switch.port}", f"freeswitch.password={PASSWORD}",
            )  # fmt: skip
            channel = switch.call()
            url = f"ws://127.0.0.1:{server.port}/media/freeswitch"
            async with running("ws://127.0.0.1:9/", *settings) as (process, _, _):
                await until(lambda: switch.n_connections == 1, "the event socket")
                assert await switch.stream(channel, url, headers=AUTHORISED | {"X-Call": channel.uuid})
                async with bot_of(server, channel.uuid) as bot:
                    for n, sentence in enumerate(sentences):
                        last = n == len(sentences) - 1
                        await bot.send(json.dumps({"type": "text", "text": f" {sentence}", "turn": "a"}))
                        await bot.send(json.dumps({"type": "mark", "name": f"after {n}", "turn": "a"}))
                    await bot.send(json.dumps({"type": "text", "text": "", "turn": "a", "last": last}))
                    await channel.playing.wait()
                    await asyncio.sleep(1.2)
                    process.kill()
                    await asyncio.sleep(3)
                    async with running("ws://127.0.0.1:9/", *settings):
                        played_s: dict[str, float] = {}
                        async with asyncio.timeout(30):
                            while "done" not in played_s:
                                told = json.loads(await bot.recv())
                                if told["type"] == "mark":
                                    assert told["state"] == "played"
                                    played_s[told["name"]] = loop.time()
                                elif told["type"] == "done":
                                    played_s["done"] = loop.time()
                        await switch.hang_up(channel)
            for n, sentence in enumerate(sentences):
                ends = ends_s(channel, sentence)
                assert ends, f"sentence {n} was never heard whole"
                assert any(abs(played_s[f"after {n}"] - end_s) < 0.15 for end_s in ends), f"the mark after {n} lies"
            assert played_s["done"] >= channel.heard[-1][1] - 0.05

    run(main)


@pytest.mark.parametrize("rate_hz", [8000, 16000])
def test_the_callers_audio_has_only_the_gaps_that_freeswitch_makes(tmp_path: Path, rate_hz: int) -> None:
    """FreeSWITCH drops the latest audio at each file's beginning and end; the bot gets everything else in order."""

    async def main() -> None:
        async with lined(tmp_path, inbound="binary", rate_hz=rate_hz) as line:
            audio = bytearray()
            talking = asyncio.create_task(line.switch.hears_caller_talk(line.channel, 150, rate_hz))
            await line.bot.send(json.dumps({"type": "say", "text": "Good bye.", "turn": "a"}))
            await event(line.bot, "done", audio)
            sent = await talking
            line.switch.press(line.channel, "7")
            await event(line.bot, "dtmf", audio)
            samples = np.frombuffer(bytes(audio), "<i2")
            assert len(samples) == len(sent) * rate_hz // 50 and samples[:: rate_hz // 50].tolist() == sent
            lost = sorted(set(range(150)) - set(sent))
            assert 2 <= len(lost) <= 6, "a file's beginning and its end: 40 ms each"

    run(main)


@pytest.mark.parametrize("module", ["mod_audio_stream", "mod_audio_fork"])
def test_a_server_that_is_killed_ends_the_telephone_call(tmp_path: Path, module: str) -> None:
    async def main() -> None:
        async with lined(tmp_path, module=module, by_header=False) as line:
            await line.bot.send(json.dumps({"type": "say", "text": " ".join(SENTENCES), "turn": "a"}))
            await line.channel.playing.wait()
            assert line.channel.socket is not None
            line.channel.socket.transport.abort()  # seen by the module as an end without a close frame
            await until(lambda: not line.channel.is_up, "the hang-up")

    run(main)


def test_without_a_bridge_the_call_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("telephony_tts.doors.freeswitch.leg._REPORT_TIMEOUT_S", 0.4)

    async def main() -> None:
        async with tts_server() as server, StandinFreeSwitch(tmp_path).running() as switch:
            channel = switch.call()
            url = f"ws://127.0.0.1:{server.port}/media/freeswitch"
            await switch.stream(channel, url, headers=AUTHORISED | {"X-Call": channel.uuid})
            live = metrics.value("telephony_tts_calls_live", media="freeswitch")
            async with bot_of(server, channel.uuid) as bot:
                await bot.send(json.dumps({"type": "say", "text": "Hello.", "turn": "a"}))
                cleared = await event(bot, "cleared")
                assert (cleared["heard_text"], cleared["heard_ms"]) == ("", 0)
                assert (await event(bot, "hangup"))["reason"] == "playback_failed"
            await until(lambda: not len(server.registry), "the end of the call")
            assert metrics.value("telephony_tts_calls_live", media="freeswitch") <= live

    run(main)


@pytest.mark.parametrize(
    ("headers", "metadata", "is_taken"),
    [({}, '{"call":"c1"}', False), (AUTHORISED, "{}", True), (AUTHORISED | {"X-Call": "a b"}, "{}", True)],
)
def test_a_leg_without_a_token_is_refused_and_one_without_a_name_ends(
    tmp_path: Path, headers: dict[str, str], metadata: str, is_taken: bool
) -> None:
    async def main() -> None:
        async with tts_server() as server, StandinFreeSwitch(tmp_path).running() as switch:
            server.settings = server.settings.__class__(
                **{name: getattr(server.settings, name) for name in server.settings.__slots__} | {"media_start_s": 0.3}
            )
            channel = switch.call()
            url = f"ws://127.0.0.1:{server.port}/media/freeswitch"
            assert await switch.stream(channel, url, metadata=metadata, headers=headers) is is_taken
            if is_taken:
                assert channel.socket is not None
                await asyncio.wait_for(channel.socket.wait_closed(), 5)
                assert channel.socket.close_code == 4400
            assert len(server.registry) == 0

    run(main)
