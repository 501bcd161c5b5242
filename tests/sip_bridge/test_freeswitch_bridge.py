"""The bridge's side of the event socket, against a stand-in: what it orders, and what it tells the server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bridge_rig import Ended, run, until
from freeswitch_rig import UUID, speech, together, told

from sip_bridge.freeswitch_call import is_speech_file, is_uuid

# ------------------------------------------------------------------------ a call


def test_files_are_heard_in_order_and_reported(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID)
            switch.word(channel, tts="hello")
            first, second = speech(10, 1), speech(8, 2)
            paths = [switch.speech(channel, 1, first), switch.speech(channel, 2, second)]
            await told(channel, ("playing", "1"), ("played", "1"), ("playing", "2"), ("played", "2"))
            assert channel.pcm == first + second
            assert not any(path.exists() for path in paths), "played files are removed at once"

    run(main)


def test_a_clear_silences_within_the_time_of_a_break_and_the_next_file_is_heard(tmp_path: Path) -> None:
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
            await told(channel, ("playing", "1"), ("playing", "3"), ("played", "3"))
            assert [len(pcm) for _, _, pcm in channel.heard][1:] == [len(answer)]
            assert channel.heard[0][1] - cleared_s < 0.2  # 34 ms is the stand-in's own
            assert channel.heard[1][2] == answer

    run(main)


def test_digits_reach_the_server_and_a_flood_of_them_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel, stranger = switch.call(UUID), switch.call()
            switch.word(channel, tts="hello")
            for digit in "1#a":
                switch.press(channel, digit)
            switch.press(stranger, "9")
            await told(channel, ("dtmf", "1"), ("dtmf", "#"), ("dtmf", "A"))
            assert stranger.texts == [], "a call that is not ours"
            for _ in range(100):
                switch.press(channel, "5")
            switch.press(channel, "x")
            switch.press(channel, '1"} evil')
            await asyncio.sleep(0.1)
            assert len(channel.texts) == 20
            assert all(" " not in text for text in channel.texts)

    run(main)


@pytest.mark.parametrize("hang_up", [True, False])
def test_when_the_server_ends_a_call_so_is_the_telephone_call(tmp_path: Path, hang_up: bool) -> None:
    async def main() -> None:
        ended = Ended()
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
def test_a_stream_that_was_stopped_leaves_the_call_and_one_that_was_lost_ends_it(
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


@pytest.mark.parametrize("refusal", [None, 1013, 4400])
def test_a_caller_whose_stream_never_came_to_be_does_not_wait_for_ever(tmp_path: Path, refusal: int | None) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID)
            if refusal is None:
                await switch.stream(channel, "ws://127.0.0.1:9/media/freeswitch")
            else:
                switch.left(channel, refusal)
            await until(lambda: not channel.is_up, "the hang-up")

    run(main)


def test_a_fork_speaks_its_own_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with together(tmp_path) as (switch, _):
            channel = switch.call(UUID, "mod_audio_fork")
            switch.word(channel, tts="hello")
            switch.speech(channel, 1, speech(100, 1))
            await channel.playing.wait()
            switch.word(channel, tts="clear", before=2)
            await until(lambda: channel.heard, "silence")
            switch.press(channel, "4")
            await told(channel, ("playing", "1"), ("dtmf", "4"))
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
                await told(channel, ("playing", "1"), ("played", "1"))
                assert channel.pcm == word

    run(main)


# ------------------------------------------------------------- what may be an order


@pytest.mark.parametrize("name", [UUID, "a", "call-7"])
def test_names_of_channels(name: str) -> None:
    assert is_uuid(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "-a", "a;b", "a'b", "ü", "a" * 65])
def test_names_that_are_none(name: str) -> None:
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
        ("", False),
    ],
)
def test_paths_of_speech(path: str, is_one: bool) -> None:
    assert is_speech_file(path, UUID) is is_one
