"""Sounds through the real server: on carriers, on the bot's own socket, and with files that cannot be played."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from carrier_peers import ExotelPeer, PlivoPeer, SignalWirePeer, TelnyxPeer
from neighbour import neighbour
from rig import Bot, correlation, decoded, get, greeted, rendering, run, serving
from served import process
from twilio_peer import TwilioPeer, dialling

from telephony_tts.audio.g711 import Pcm, encode_ulaw
from telephony_tts.audio.sound import Sound
from telephony_tts.audio.wav import write_wav
from telephony_tts.transport.settings import SoundSettings
from telephony_tts.transport.sound_store import SoundStore

pytestmark = pytest.mark.timed

PEERS: dict[str, tuple[type[TwilioPeer], dict[str, str]]] = {
    "twilio": (TwilioPeer, {}),
    "telnyx": (TelnyxPeer, {"codec": "alaw"}),
    "plivo": (PlivoPeer, {}),
    "signalwire": (SignalWirePeer, {}),
    "exotel": (ExotelPeer, {"codec": "pcm"}),
}


def melody(n: int, seed: int = 3) -> Pcm:
    """Noise that is the same forwards only: a correlation finds its place."""
    return np.random.default_rng(seed).integers(-8_000, 8_000, n).astype(np.int16)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    write_wav(tmp_path / "melody.wav", melody(12_000).tobytes(), "pcm", 8_000)
    yield tmp_path


def store(folder: Path) -> SoundStore:
    return SoundStore(SoundSettings(str(folder), max_mb=1))


@asynccontextmanager
async def calling(carrier: str, folder: Path) -> AsyncIterator[tuple[Bot, TwilioPeer]]:
    """A bot with the sounds of `folder`, and a carrier that has started."""
    kind, how = PEERS[carrier]
    async with (
        serving(find_sound=store(folder).find) as rig,
        rig.bot(call="CA1") as bot,
        dialling(kind, rig.url(f"/media/{carrier}"), "CA1", **how) as peer,
    ):
        await peer.start(bot="sales")
        await bot.event("call")
        yield bot, peer


def heard(peer: TwilioPeer) -> Pcm:
    return decoded(peer.played, getattr(peer, "spoken_codec", "ulaw"))


def place_of(needle: Pcm, hay: Pcm) -> tuple[int, float]:
    """(where `needle` is most like `hay`, how much)."""
    size = 1 << (len(hay) + len(needle)).bit_length()
    spectrum = np.fft.rfft(hay.astype(float), size) * np.conj(np.fft.rfft(needle.astype(float), size))
    at = int(np.fft.irfft(spectrum, size)[: max(1, len(hay) - len(needle) + 1)].argmax())
    return at, correlation(hay[at : at + len(needle)], needle)


@pytest.mark.parametrize("carrier", PEERS)
def test_a_sound_between_sentences_on_a_carrier(carrier: str, folder: Path) -> None:
    async def main() -> None:
        async with calling(carrier, folder) as (bot, peer):
            await bot.send({"type": "text", "turn": "t", "text": "Please wait. "})
            await bot.send({"type": "play", "name": "melody", "turn": "t"})
            await bot.send({"type": "mark", "turn": "t", "name": "behind"})
            await bot.send({"type": "text", "turn": "t", "text": "Here it is.", "last": True})
            assert (await bot.event("mark"))["state"] == "played"
            n_heard = len(heard(peer))
            done = await bot.event("done", turn="t")
            got = heard(peer)
            at, likeness = place_of(melody(12_000), got)
            assert likeness > 0.99
            assert abs(at - len(rendering(["Please wait."]))) < 200
            slack = 2_000 if isinstance(peer, ExotelPeer) else 500  # its messages are of 100 ms
            assert abs(n_heard - (at + 12_000)) < slack, "the mark came when the sound had been heard"
            assert abs(done["audio_ms"] - (12 * 60 + 1_500 + 11 * 60)) <= 60
            assert correlation(got[at + 12_000 :], rendering(["Here it is."])) > 0.98

    run(main)


@pytest.mark.parametrize("carrier", ["twilio", "telnyx", "exotel"])
def test_a_bed_under_the_speech_of_a_carrier_until_it_is_stopped(carrier: str, folder: Path) -> None:
    async def main() -> None:
        async with calling(carrier, folder) as (bot, peer):
            await bot.send({"type": "play", "name": "melody", "under": True, "gain_db": -12})
            await peer.hears(25)
            await bot.say("oooo oooo oooo.", "t")
            await bot.event("done", turn="t")
            n_spoken = len(peer.played)
            await peer.hears(n_spoken + 25)
            await bot.send({"type": "play", "stop": True})
            await asyncio.sleep(0.3)
            n = len(peer.played)
            await asyncio.sleep(0.3)
            got = heard(peer)
            assert len(peer.played) == n, "a stop ends it"
            bed = np.tile(melody(12_000), 8)[: len(got)] / 10 ** (12 / 20)
            alone = got[800:3_200]
            assert correlation(alone, bed[800:3_200]) > 0.98
            at, likeness = place_of(rendering(["oooo oooo oooo."]), got)
            assert at >= 25 * 160 - 400 and likeness > 0.8, "the speech, with the bed under it"
            rest = got[at : at + 7_200] - rendering(["oooo oooo oooo."])[:7_200].astype(float)
            assert correlation(rest, bed[at : at + 7_200]) > 0.9, "the bed, with the speech taken off"

    run(main)


def test_sounds_on_the_bots_own_socket_and_the_included_ones() -> None:
    async def main() -> None:
        find = SoundStore(SoundSettings()).find
        async with serving(find_sound=find) as rig, rig.bot(codec="pcm", rate=16000) as bot:
            for name, duration_ms in (("ringback", 6_000), ("typing", 8_000)):
                await bot.send({"type": "play", "name": name, "turn": name})
                await bot.event("started", turn=name)
                await bot.send({"type": "clear"})
                cleared = await bot.event("cleared", turn=name)
                assert cleared["heard_ms"] < 500 < duration_ms
            await bot.send({"type": "play", "name": "typing", "loop": "until_speech", "under": True})
            await bot.frames_to(len(bot.frames) + 10)
            await bot.say("Done.", "t")
            await bot.event("done", turn="t")
            n = len(bot.frames)
            await asyncio.sleep(0.2)
            assert len(bot.frames) == n, "speech ended it"

    run(main)


def test_bad_sounds_of_one_call_touch_neither_its_speech_nor_another_call(folder: Path) -> None:
    def stereo_192k() -> bytes:
        body = np.repeat(melody(19_200), 2).astype("<i2").tobytes()
        fmt = struct.pack("<HHIIHH", 1, 2, 192_000, 192_000 * 4, 4, 16)
        rest = b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", len(body)) + body
        return b"RIFF" + struct.pack("<I", len(rest)) + rest

    (folder / "inner").mkdir()
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("This is not a sound.\n" * 50)
    (folder / "fine.wav").write_bytes(stereo_192k())
    with (folder / "big.wav").open("wb") as file:
        file.truncate(4 << 30)
    expected = {
        "inner": "unknown_sound", "empty": "bad_sound", "text": "bad_sound", "big": "bad_sound",
        "melodi": "unknown_sound", "../melody": "unknown_sound", "/etc/passwd": "unknown_sound",
    }  # fmt: skip

    async def main() -> None:
        async with serving(find_sound=store(folder).find) as rig, neighbour(rig), rig.bot() as bot:
            for n, (name, code) in enumerate(expected.items()):
                for under in (False, True):
                    play = {"type": "play", "name": name, "under": under, **({} if under else {"turn": f"s{n}"})}
                    await bot.send(play)
                    error = await bot.event("error")
                    assert error["code"] == code and not error["fatal"], (name, error)
                    assert error.get("about") == (None if under else f"s{n}") and "turn" not in error
                    if not under:
                        assert (await bot.event("done"))["audio_ms"] == 0
            assert any("near it: melody" in event.get("message", "") for event in bot.events)
            await bot.send({"type": "play", "name": "fine", "turn": "fine"})
            assert (await bot.event("done", turn="fine"))["audio_ms"] == 100
            await bot.say("All is well.", "t")
            await bot.event("done", turn="t")
            assert bot.terminals("t") == ["done"]

    run(main)


def test_a_file_that_is_removed_while_it_plays_is_played_to_its_end(folder: Path) -> None:
    async def main() -> None:
        async with serving(find_sound=store(folder).find) as rig, rig.bot() as bot:
            await bot.send({"type": "play", "name": "melody", "turn": "a"})
            await bot.event("started", turn="a")
            (folder / "melody.wav").unlink()
            assert (await bot.event("done", turn="a"))["audio_ms"] == 1_500
            data = b"".join(bot.frames)
            assert data[40:11_960] == encode_ulaw(melody(12_000))[40:11_960]
            await bot.send({"type": "play", "name": "melody", "turn": "b"})
            assert (await bot.event("error"))["code"] == "unknown_sound"
            assert (await bot.event("done", turn="b"))["audio_ms"] == 0

    run(main)


def test_a_hang_up_during_a_loop_and_during_a_bed_leaves_nothing(folder: Path) -> None:
    async def main() -> None:
        for under in (False, True):
            async with calling("twilio", folder) as (bot, peer):
                await bot.send({"type": "play", "name": "melody", "loop": True, "under": under})
                await peer.hears(20)
                await peer.hang_up()
                await bot.event("hangup")
                assert (await bot.gone())[0] == 1000

    run(main)


def test_a_caller_who_interrupts_ends_the_loop_and_not_the_bed(folder: Path) -> None:
    """As a clear does, which comes by the same way."""

    async def main() -> None:
        async with serving(find_sound=store(folder).find) as rig, rig.bot() as bot:
            await bot.send({"type": "play", "name": "melody", "under": True, "gain_db": -30})
            await bot.send({"type": "play", "name": "melody", "loop": True, "turn": "loop"})
            await bot.event("started", turn="loop")
            await bot.frames_to(40)
            await bot.send({"type": "clear"})
            await bot.event("cleared", turn="loop")
            n = len(bot.frames)
            await bot.frames_to(n + 30)
            quiet = decoded(bot.frames[n + 2 :])
            assert 50 < int(np.abs(quiet).max()) < 500, "the bed alone"
            await stops(bot)

    async def stops(bot: Bot) -> None:
        await bot.send({"type": "play", "stop": True})
        await asyncio.sleep(0.1)
        n = len(bot.frames)
        await asyncio.sleep(0.2)
        assert len(bot.frames) == n

    run(main)


def test_the_command_serves_the_sounds_of_its_folder_and_counts_them(folder: Path) -> None:
    with process("--set", f"sounds.folder={folder}") as (served, port):

        async def main() -> None:
            async with greeted(f"ws://127.0.0.1:{port}/v1/stream") as bot:
                await bot.send({"type": "play", "name": "melody", "turn": "a"})
                assert (await bot.event("done", turn="a"))["audio_ms"] == 1_500
                assert b"".join(bot.frames)[40:11_960] == encode_ulaw(melody(12_000))[40:11_960]
                await bot.send({"type": "play", "name": "nothing", "under": True})
                assert (await bot.event("error"))["code"] == "unknown_sound"
            _, _, page = await get(port, "/metrics")
            assert 'telephony_tts_sounds_total{outcome="played"} 1.0' in page
            assert 'telephony_tts_sounds_total{outcome="failed"} 1.0' in page

        run(main)
        served.terminate()
        assert served.wait(10) == 0


def test_a_bed_that_fails_in_an_unknown_way_is_an_error_and_the_call_goes_on() -> None:
    class Broken:
        async def load(self, rate_hz: int) -> Sound:
            raise RuntimeError("a fault of ours")

    async def main() -> None:
        async with serving(find_sound=lambda name: Broken()) as rig, rig.bot() as bot:
            await bot.send({"type": "play", "name": "hold", "under": True})
            error = await bot.event("error")
            assert (error["code"], error["fatal"]) == ("bad_sound", False) and "server's log" in error["message"]
            await bot.say("All is well.", "t")
            await bot.event("done", turn="t")

    run(main)
