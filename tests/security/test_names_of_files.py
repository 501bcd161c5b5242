"""Names that peers choose never become paths out of their folder: calls, recordings, voices, sounds, lexicons."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from rig import run, serving

from sip_bridge.freeswitch.speech_files import is_speech_file
from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
from telephony_tts.recording.folder import create, name_for, replace
from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.transport.settings import SoundSettings
from telephony_tts.transport.sound_store import SoundStore

NASTY = [
    "../secret",
    "..",
    ".",
    "/etc/passwd",
    "a/../../secret",
    "..\\secret",
    "C:\\secret",
    "secret\0.wav",
    "a\nb",
    "~root",
    "%2e%2e%2fsecret",
    "．．/secret",
    "….//secret",
    "file:///etc/passwd",
    "con",
    "-rf",
    "a" * 300,
    "",
    " ",
    "$(id)",
    "`id`",
    "\u202egnp.exe",
    "secret.wav/.",
    "../" * 40 + "etc/passwd",
]
UUID = "5b2c7c3e-1111-4222-8333-444455556666"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder beside a secret. Nothing outside of it may be read, written or removed."""
    inside = tmp_path / "inside"
    inside.mkdir()
    secret = tmp_path / "secret"
    for name in ("secret", "secret.wav", "secret.safetensors", "secret.jsonl"):
        (tmp_path / name).write_text("hidden")
    yield inside
    assert {path.name for path in tmp_path.iterdir()} == {
        "inside",
        "secret",
        "secret.wav",
        "secret.safetensors",
        "secret.jsonl",
    }
    assert secret.read_text() == "hidden"


@pytest.mark.parametrize("name", NASTY)
def test_a_recording_of_any_call_stays_in_its_folder(name: str, folder: Path) -> None:
    path = folder / f"{name_for(name, 1_700_000_000)}.wav"
    assert path.resolve().parent == folder.resolve()
    with open(create(path), "wb") as file:
        file.write(b"x")
    assert [each.name for each in folder.iterdir()] == [path.name]


def test_a_recording_does_not_follow_a_link(folder: Path) -> None:
    link = folder / "20260101T000000Z-c1-0123456789ab.wav"
    link.symlink_to(folder.parent / "secret")
    with pytest.raises(OSError):
        create(link)
    replace(link, b"new")
    assert not link.is_symlink() and link.read_bytes() == b"new"


@pytest.mark.parametrize("name", NASTY)
def test_a_voice_of_any_name_stays_in_its_folder(name: str, folder: Path) -> None:
    voices = VoiceFolder(folder)
    assert not voices.has(name)
    with pytest.raises(TelephonyTTSError):
        voices.remove(name)
    try:
        path = voices.path(name)
    except TelephonyTTSError as error:
        assert error.code == "bad_request"
    else:
        assert path.resolve().parent == folder.resolve() and path.name.endswith(".safetensors")


@pytest.mark.parametrize("name", NASTY)
def test_a_sound_of_any_name_is_not_looked_for_elsewhere(name: str, folder: Path) -> None:
    store = SoundStore(SoundSettings(folder=str(folder)))

    async def main() -> None:
        with pytest.raises(TelephonyTTSError) as error:
            await store.find(name).load(8_000)
        assert error.value.code == "unknown_sound" and "hidden" not in error.value.message

    asyncio.run(main())


@pytest.mark.parametrize("name", NASTY)
def test_a_file_that_freeswitch_names_is_only_removed_if_its_module_wrote_it(name: str) -> None:
    for path in (
        name,
        f"/tmp/{name}",
        f"/tmp/{name}/{UUID}_1.tmp.r8",
        f"/tmp/{UUID}_1.tmp.r8/{name}",
        f"/tmp/{UUID}{name}.tmp.r8",
    ):
        plain = name in ("con", "-rf") and path == f"/tmp/{name}/{UUID}_1.tmp.r8"  # harmless names of folders
        assert is_speech_file(path, UUID) is plain, path
    assert is_speech_file(f"/tmp/x/{UUID}_1.tmp.r8", UUID)
    assert not is_speech_file(f"/tmp/{UUID}_1.tmp.r8", f"../{UUID}")


@pytest.mark.slow
def test_nasty_names_over_the_socket_and_over_http_are_refused_and_leave_no_file(folder: Path) -> None:
    store = SoundStore(SoundSettings(folder=str(folder)))

    async def main() -> None:
        async with serving(find_sound=store.find) as rig, rig.bot(audio="none") as bot:
            for name in NASTY:
                await bot.send({"type": "play", "name": name})
                await bot.event("error")
                for method, path in (
                    ("DELETE", f"/v1/voices/{quote(name, safe='')}"),
                    ("GET", f"/calls/{quote(name, safe='')}/v1/voices"),
                ):
                    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
                    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                    told = await asyncio.wait_for(reader.read(), 8)
                    writer.close()
                    status = int(told.split()[1])
                    assert status in (200, 400, 404, 405, 501), (name, told)
                    assert b"hidden" not in told and str(folder).encode() not in told
            await bot.send({"type": "config", "lexicon": {"../x": json.dumps(NASTY)[:200]}})
            await bot.say("Still here.", "t")
            await bot.event("done", turn="t")

    run(main)
