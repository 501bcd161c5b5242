"""The bridge's side of the event socket, with a stand-in: its commands, and its reports to the server."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from bridge_rig import EndReasons, run, until
from freeswitch_rig import UUID, assert_told, bridged, said, speech, together
from standin_freeswitch import StandinFreeSwitch

from sip_bridge.freeswitch.esl_messages import is_uuid
from sip_bridge.freeswitch.speech_files import is_speech_file

pytestmark = pytest.mark.slow

# ------------------------------------------------------------------------ a call


def test_files_are_heard_in_order_and_reported(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            first, second = speech(10, 1), speech(8, 2)
            paths = [switch.speech(channel, 1, first), switch.speech(channel, 2, second)]
            await assert_told(channel, ("playing", "1"), ("played", "1"), ("playing", "2"), ("played", "2"))
            assert channel.pcm == first + second
            assert not any(path.exists() for path in paths), "played files are removed at once"

    run(main)


def test_a_clear_silences_as_fast_as_a_break_and_the_next_file_is_heard(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID)
            loop = asyncio.get_running_loop()
            switch.speech(channel, 1, speech(200, 1))
            switch.speech(channel, 2, speech(50, 2))
            await channel.playing.wait()
            await asyncio.sleep(0.1)
            cleared_s = loop.time()
            switch.word(channel, tts="clear", before=3)
            answer = speech(6, 3)
            switch.speech(channel, 3, answer)
            await assert_told(channel, ("playing", "1"), ("playing", "3"), ("played", "3"))
            assert [len(pcm) for _, _, pcm in channel.heard][1:] == [len(answer)]
            assert channel.heard[0][1] - cleared_s < 0.2  # at most 20 ms are due to the stand-in
            assert channel.heard[1][2] == answer

    run(main)


@pytest.mark.timed
def test_a_file_begins_without_lead_frames_and_the_next_one_follows(tmp_path: Path) -> None:
    """The stand-in takes 25 ms itself. `uuid_broadcast` takes 100 ms more for each file, as in a real FreeSWITCH."""

    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            loop = asyncio.get_running_loop()
            asked_s = loop.time()
            for number in (1, 2, 3):
                switch.speech(channel, number, speech(10, number))
            await until(lambda: len(channel.heard) == 3, "three files")
            starts = [begun_s for begun_s, _, _ in channel.heard]
            ends = [asked_s, *(ended_s for _, ended_s, _ in channel.heard)]
            assert [begun_s - ended_s for begun_s, ended_s in zip(starts, ends, strict=False)] == [
                pytest.approx(0.025, abs=0.04)
            ] * 3
            assert channel.pcm == b"".join(speech(10, number) for number in (1, 2, 3))

    run(main)


@pytest.mark.timed
def test_after_a_clear_before_the_first_sound_only_new_speech_is_heard(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            switch.begin_s = 0.1
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            loop = asyncio.get_running_loop()
            for number in range(1, 21, 2):
                n_sent = len(switch.commands)
                switch.speech(channel, number, speech(100, number))
                await until(lambda n=n_sent: any("sendmsg" in each for each in switch.commands[n:]), "the order")
                await asyncio.sleep(number * 0.002)  # before and after FreeSWITCH takes it from its queue
                cleared_s = loop.time()
                switch.word(channel, tts="clear", before=number + 1)
                switch.speech(channel, number + 1, speech(4, number + 1))
                await until(lambda n=number: ("played", str(n + 1)) in said(channel), "the new speech")
                begun_s, _, pcm = channel.heard[-1]
                assert pcm == speech(4, number + 1)
                assert begun_s - cleared_s < 0.4, "some 0.2 s are the stand-in's own; not the limit of 500 ms more"
            assert channel.pcm == b"".join(speech(4, number) for number in range(2, 21, 2))

    run(main)


@pytest.mark.timed
@pytest.mark.parametrize("remove_files", [True, False])
def test_a_break_that_is_too_early_is_repeated(tmp_path: Path, remove_files: bool) -> None:
    """FreeSWITCH has taken the file from its queue, and resets the break when the file begins."""

    async def main() -> None:
        async with together(tmp_path, freeswitch__remove_files=remove_files) as (switch, _):
            switch.busy_s = 0.1
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            switch.speech(channel, 1, speech(200, 1))
            await until(lambda: any("sendmsg" in each for each in switch.commands), "the order")
            await asyncio.sleep(0.04)
            switch.word(channel, tts="clear", before=2)
            switch.speech(channel, 2, speech(6, 2))
            await assert_told(channel, ("playing", "2"), ("played", "2"))
            *cut, (_, _, last) = channel.heard
            assert last == speech(6, 2)
            # Without its file FreeSWITCH plays nothing. If the file stays: one frame, plus delays of the machine.
            assert sum(len(pcm) for _, _, pcm in cut) <= (0 if remove_files else 5 * 320)

    run(main)


@pytest.mark.timed
@pytest.mark.parametrize("seed", range(3))
def test_a_clear_at_any_moment_silences_its_file_and_the_next_one_is_heard_once(tmp_path: Path, seed: int) -> None:
    """FreeSWITCH may have the file in its queue, begin it, play it, or have just ended it."""

    async def main() -> None:
        async with together(tmp_path, freeswitch__remove_files=seed != 0) as (switch, _):
            chance = random.Random(seed)
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            loop = asyncio.get_running_loop()
            kept: list[bytes] = []
            number = 0
            for _ in range(25):
                switch.queue_s, switch.busy_s = chance.choice([0.0, 0.01, 0.03]), chance.choice([0.0, 0.0, 0.03])
                n_before = len(channel.heard)
                switch.speech(channel, number + 1, speech(3, 2 * number))
                await asyncio.sleep(chance.uniform(0.0, 0.15))
                cleared_s = loop.time()
                switch.word(channel, tts="clear", before=number + 2)
                switch.speech(channel, number + 2, speech(2, 2 * number + 1))
                await until(lambda n=number + 2: ("played", str(n)) in said(channel), "the new speech")
                *cut, (_, _, pcm) = channel.heard[n_before:]
                assert pcm == speech(2, 2 * number + 1), "whole"
                assert all(begun_s < cleared_s + 0.1 and ended_s < cleared_s + 0.15 for begun_s, ended_s, _ in cut)
                kept.append(pcm)
                number += 2
            heard = [pcm for _, _, pcm in channel.heard]
            assert [heard.count(pcm) for pcm in kept] == [1] * 25

    run(main)


def test_the_speech_of_a_call_of_another_bridge_is_stopped_and_requested_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with StandinFreeSwitch(tmp_path).running() as switch:
            async with bridged(switch, freeswitch__hang_up=False) as rig:
                await until(lambda: rig.bridge._why_not_ready() is None, "the connection")
                channel = switch.call(UUID)
                switch.word(channel, tts="hello")
                switch.speech(channel, 1, speech(400, 1))
                await channel.playing.wait()
            async with bridged(switch) as rig:
                await until(lambda: rig.bridge._why_not_ready() is None, "the connection")
                switch.speech(channel, 4, speech(5, 4))
                await assert_told(channel, ("playing", "1"), ("again",))
                await until(lambda: len(channel.heard) == 1, "silence")
                switch.word(channel, tts="clear", before=5)
                for number in (5, 6):
                    switch.speech(channel, number, speech(5, number))
                await until(lambda: ("played", "6") in said(channel), "what was sent again")
                assert len(channel.heard[0][2]) < 400 * 320
                assert [pcm for _, _, pcm in channel.heard[1:]] == [speech(5, 5), speech(5, 6)]
                await switch.hang_up(channel)
                await until(lambda: rig.bridge.n_calls == 0, "the end")
        assert os.listdir(tmp_path) == []

    run(main)


@pytest.mark.parametrize(
    ("word", "reports"),
    [
        ({"tts": "hello"}, []),
        ({"tts": "hello", "next": 1}, []),
        ({"tts": "hello", "next": 4}, [("again",)]),
        ({"tts": "hello", "next": "nonsense"}, []),
        ({"tts": "clear", "before": 4}, []),
    ],
)
def test_the_servers_hello_tells_whether_another_bridge_had_the_call(
    tmp_path: Path, word: dict[str, object], reports: list[tuple[str, ...]]
) -> None:
    """It sends hello with the number of the next file while it gets no report."""

    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID)
            for _ in range(2):
                switch.word(channel, **word)
            switch.speech(channel, 4, speech(3, 4))
            await assert_told(channel, *reports, ("playing", "4"), ("played", "4"))

    run(main)


def test_digits_reach_the_server_and_a_flood_of_them_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel, other_channel = switch.call(UUID), switch.call()
            switch.word(channel, tts="hello")
            for digit in "1#a":
                switch.press(channel, digit)
            switch.press(other_channel, "9")
            await assert_told(channel, ("dtmf", "1"), ("dtmf", "#"), ("dtmf", "A"))
            assert other_channel.texts == [], "a call that is not ours"
            for _ in range(100):
                switch.press(channel, "5")
            switch.press(channel, "x")
            switch.press(channel, '1"} evil')
            await asyncio.sleep(0.1)
            assert len(channel.texts) == 20
            assert all(" " not in text for text in channel.texts)

    run(main)


def test_the_bots_tones_are_sent_by_freeswitch(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel, other_channel = switch.call(UUID), switch.call()
            switch.word(channel, tts="hello")
            switch.word(channel, tts="dtmf", digits="12#w", on_ms=80, off_ms=70)
            for digits in ("1 2", "", "5@9", None, "1\nuuid_kill"):
                switch.word(channel, tts="dtmf", digits=digits)
            switch.word(channel, tts="dtmf", digits="9", on_ms="nonsense")
            switch.speech(channel, 1, speech(3, 4))
            await assert_told(channel, ("playing", "1"), ("played", "1"))
            assert channel.tones == ["12#w@80", "9@100"] and other_channel.tones == []

    run(main)


@pytest.mark.parametrize("hang_up", [True, False])
def test_when_the_server_ends_a_call_the_channel_is_hung_up(tmp_path: Path, hang_up: bool) -> None:
    async def main() -> None:
        ended = EndReasons()
        async with together(tmp_path, freeswitch__hang_up=hang_up) as (switch, rig):
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            switch.word(channel, tts="hangup")
            await until(lambda: ended.counts == {"finished": 1}, "the end")
            await asyncio.sleep(0.05)
            assert channel.is_up is not hang_up
            assert rig.bridge.n_calls == 0

    run(main)


@pytest.mark.parametrize(("code", "is_killed"), [(1000, False), (1006, True), (1011, True)])
def test_a_stopped_stream_leaves_the_call_up_and_a_lost_one_ends_it(
    tmp_path: Path, code: int, is_killed: bool
) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, rig):
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            await until(lambda: rig.bridge.n_calls == 1, "the call")
            switch.left(channel, code)
            await until(lambda: rig.bridge.n_calls == 0, "its end")
            await asyncio.sleep(0.05)
            assert channel.is_up is not is_killed

    run(main)


@pytest.mark.parametrize("module", ["mod_audio_stream", "mod_audio_fork"])
def test_a_server_that_is_killed_ends_its_calls_and_no_others(tmp_path: Path, module: str) -> None:
    """mod_audio_stream then raises `::error` with code 1, not `::disconnect`."""

    async def main() -> None:
        ended = EndReasons()
        async with together(tmp_path) as (switch, rig):
            channel, other_channel = switch.call(UUID, module), switch.call(None, module)
            switch.word(channel, tts="hello")
            await until(lambda: rig.bridge.n_calls == 1, "the call")
            switch.reset(channel)
            switch.reset(other_channel)
            await until(lambda: not channel.is_up, "the hang-up")
            assert ended.counts == {"server_lost": 1}
            await asyncio.sleep(0.05)
            assert other_channel.is_up, "nothing says that it was a call of our server's"

    run(main)


@pytest.mark.parametrize("refusal", [None, 1013, 4400])
def test_a_call_whose_stream_never_connects_is_hung_up(tmp_path: Path, refusal: int | None) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID)
            if refusal is None:
                await switch.stream(channel, "ws://127.0.0.1:9/media/freeswitch")
            else:
                switch.left(channel, refusal)
            await until(lambda: not channel.is_up, "the hang-up")
            assert channel.heard == []

    run(main)


def test_mod_audio_fork_has_its_own_events(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID, "mod_audio_fork")
            switch.word(channel, tts="hello")
            switch.speech(channel, 1, speech(100, 1))
            await channel.playing.wait()
            switch.word(channel, tts="clear", before=2)
            await until(lambda: channel.heard, "silence")
            switch.press(channel, "4")
            await assert_told(channel, ("playing", "1"), ("dtmf", "4"))
            assert f"api uuid_audio_fork {UUID} send_text " in " ".join(switch.commands)

    run(main)


def test_many_calls_do_not_hear_each_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channels = [switch.call() for _ in range(20)]
            words = [speech(5, seed) for seed in range(20)]
            for channel, word in zip(channels, words, strict=True):
                switch.speech(channel, 1, word)
            for channel, word in zip(channels, words, strict=True):
                await assert_told(channel, ("playing", "1"), ("played", "1"))
                assert channel.pcm == word

    run(main)


# ------------------------------------------------------------- names and paths in commands


@pytest.mark.parametrize("name", [UUID, "a", "call-7"])
def test_names_of_channels(name: str) -> None:
    assert is_uuid(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "-a", "a;b", "a'b", "ü", "a" * 65])
def test_invalid_channel_names(name: str) -> None:
    assert not is_uuid(name)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        (f"/tmp/{UUID}_0.tmp.r8", True),
        (f"/var/lib/freeswitch/tmp/{UUID}_12.tmp.r16", True),
        (f"/{UUID}_0.tmp.r8", True),
        (f"{UUID}_0.tmp.r8", False),
        (f"/tmp/./{UUID}_0.tmp.r8", False),
        (f"/tmp//{UUID}_0.tmp.r8", False),
        (f"/tmp/x{UUID}_0.tmp.r8", False),
        (f"/tmp/{UUID[::-1]}_0.tmp.r8", False),
        (f"/tmp/{UUID}_0.tmp.r8\n", False),
        (f"/tmp/{UUID}_0.tmp.wav", False),
        (f"/tmp/{UUID}_.tmp.r8", False),
        (f"/{'x' * 250}/{UUID}_0.tmp.r8", False),
        (f"/..tmp/{UUID}_1.tmp.r8", True),  # a folder with an odd name, and no way upwards
        ("", False),
    ],
)
def test_paths_of_speech(path: str, is_one: bool) -> None:
    assert is_speech_file(path, UUID) is is_one
