"""`/v1/voices`: voices are added, used and removed while the server runs. Bodies that are too large, or stop."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import re
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from rig import Rig, run, speech_settings, until
from server_settings import transport_settings

from telephony_tts.engines.api import Engine, Utterance, Voice
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.hosting.voice_maker import VoiceMaker
from telephony_tts.engines.cosyvoice2.plugin import spoken
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.engines.cosyvoice2.settings import PROMPTS_FOLDER
from telephony_tts.engines.cosyvoice2.voice_service import VoiceReader, VoiceService
from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
from telephony_tts.engines.cosyvoice2.voices.voice_records import VoiceRecords
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.http_api.asgi import http_server
from telephony_tts.ops.keys.key import Key, KeyRing, digest_of
from telephony_tts.runtime.errors import AudioError, EngineUnavailable
from telephony_tts.transport.server import Server

pytestmark = pytest.mark.slow
forked = pytest.mark.usefixtures("forked_makers")

SAID = "Thank you for calling, how can I help you today?"
LIMIT = 4_000_000
WITHIN_S = 150.0
"""Each test starts a process that imports PyTorch."""
BOUNDARY = b"a-boundary"


def speech(seconds: float = 4.0, rate_hz: int = 24_000, channels: int = 1, seed: int = 0) -> np.ndarray:
    """Noise whose level changes as that of speech does."""
    random = np.random.default_rng(seed)
    n = int(seconds * rate_hz)
    level = 0.2 * np.abs(np.sin(np.arange(n) / rate_hz * 9)) + 0.001
    return (random.standard_normal((n, channels)) * level[:, None]).clip(-0.9, 0.9).astype(np.float32)


def encoded(samples: np.ndarray, rate_hz: int = 24_000, kind: str = "WAV") -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate_hz, format=kind)
    return out.getvalue()


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(25 * 8))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def resident_bytes(pid: int | None) -> int:
    """Memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def good() -> bytes:
    return encoded(speech())


@functools.cache
def flac_bomb() -> bytes:
    """Two hours of silence are a megabyte. It takes four seconds of CPU to make."""
    return encoded(np.zeros((48_000 * 7200, 1), np.int16), 48_000, "FLAC")


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "silence": (lambda: encoded(np.zeros((24_000 * 5, 1), np.float32)), "silent"),
    "60 s": (lambda: encoded(speech(59, 16_000), 16_000), "holds 5[89].. s between"),
    "61 s": (lambda: encoded(speech(61, 16_000), 16_000), "lasts 61 s"),
    "5 channels": (lambda: encoded(speech(channels=5)), "5 channels"),
    "a PNG": (png, "cannot be read as audio"),
    "a FLAC bomb": (flac_bomb, "lasts 7200 s"),
    "half a WAV": (lambda: good()[: len(good()) // 2], "truncated"),
    "nothing": (bytes, "cannot be read as audio"),
    "1 s": (lambda: encoded(speech(1)), "holds 1.0 s"),
}
"""(what makes a recording, the problem with it). Made when they are needed, not when pytest looks for tests."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_random_checkpoint(path)
    return path


@dataclass
class Place:
    """A server with CosyVoice2 and the tones, what its voices are, and where they are."""

    rig: Rig
    engine: VoiceReader
    service: VoiceService
    maker: VoiceMaker
    folder: Path

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    async def names(self) -> list[str]:
        return [voice["name"] for voice in (await ask(self.rig, "GET", "/v1/voices")).json()["voices"]]


class NoEngine:
    """Stands in for the engine where it has no part."""

    voices: tuple[Voice, ...] = ()

    def find_voice(self, name: str) -> Voice | None:
        return None

    async def read_voices(self) -> None: ...


@asynccontextmanager
async def voiced(
    model_dir: Path, folder: Path, n_prompts: int = 3, *, with_engine: bool = True, keys: Sequence[Key] = ()
) -> AsyncIterator[Place]:
    engine: CosyVoice2Engine | NoEngine = NoEngine()
    engines: list[Engine] = [FakeEngine()]
    if with_engine:
        engine = CosyVoice2Engine(model_dir, folder, flow_steps=1)
        engines.append(engine)
    catalog = Catalog(engines)
    maker = VoiceMaker()
    service = VoiceService(engine, model_dir, folder, spoken, n_prompts=n_prompts, made_by="a test", maker=maker)
    ring, owners = KeyRing(("plain-token",) if keys else (), keys), VoiceRecords(VoiceFolder(folder))
    settings = transport_settings(speech=speech_settings(), request_bytes=LIMIT, keys=ring, owners=owners)
    server = Server(settings, catalog)
    server.http = http_server(server, service)
    await catalog.start()
    try:
        async with server.running():
            yield Place(Rig(server, engines[0]), engine, service, maker, folder)
    finally:
        await service.close()
        await catalog.close()
    assert maker.pid is None


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.json()["error"]["code"]


async def ask(rig: Rig, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    given = {"Host": "x", "Connection": "close", "Content-Length": str(len(body)), **headers}
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return await exchange(rig, f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode(), [body])


async def exchange(rig: Rig, head: bytes, pieces: list[bytes]) -> Answer:
    """Send a request and read the answer to the end of the connection. The answer may come before all is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)

    async def send() -> None:
        writer.write(head)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(120):
            data = await reader.read()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
    first, _, rest = data.partition(b"\r\n\r\n")
    lines = first.decode().split("\r\n")
    fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
    if fields.get("transfer-encoding") == "chunked":
        rest = unchunked(rest)
    return Answer(int(lines[0].split()[1]), fields, rest)


def unchunked(data: bytes) -> bytes:
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size, 16)
        out, data = out + data[:n], data[n + 2 :]
    return out


def form(audio: bytes | None, /, **fields: str) -> bytes:
    parts = [f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}'.encode() for key, value in fields.items()]
    if audio is not None:
        about = b'Content-Disposition: form-data; name="audio"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        parts.append(about + audio)
    return b"".join(b"--" + BOUNDARY + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + BOUNDARY + b"--\r\n"


async def add(rig: Rig, audio: bytes | None, accept: str = "*/*", /, **fields: str) -> Answer:
    kind = f"multipart/form-data; boundary={BOUNDARY.decode()}"
    return await ask(rig, "POST", "/v1/voices", form(audio, **fields), Content_Type=kind, Accept=accept)


def events_in(body: bytes) -> list[tuple[str, Any]]:
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        kind, data = block.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@forked
def test_a_voice_is_added_speaks_and_is_removed(model_dir: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with voiced(model_dir, tmp_path) as place:
            rig = place.rig
            before = (await ask(rig, "GET", "/v1/voices")).json()["voices"]
            assert [voice["name"] for voice in before][-2:] == ["preset", "prompted"]
            assert {voice["engine"] for voice in before} == {"fake", "cosyvoice2"}
            assert not any(voice["removable"] for voice in before)

            made = await add(rig, good(), name="anna", text=SAID)
            assert made.status == 201, made.body
            about = made.json()
            assert about["name"] == "anna" and about["engine"] == "cosyvoice2" and about["removable"]
            assert about["sample_rate_hz"] == 24_000 and "zh" in about["languages"]
            assert about["description"].startswith("zero-shot, ") and 3 < about["kept_s"] <= about["source_s"] == 4.0
            assert VoiceStore(tmp_path).load("anna").transcript == spoken(SAID)
            assert (await place.names())[-1] == "anna"

            answer = await ask(
                rig, "POST", "/tts/stream", json.dumps({"text": "Yes.", "voice": "anna"}).encode(),
                Content_Type="application/json",
            )  # fmt: skip
            assert answer.status == 200 and len(answer.body) > 10_000

            again = await add(rig, good(), name="anna")
            assert again.error == (409, "voice_exists") and "replace=true" in again.json()["error"]["message"]
            assert (await add(rig, good(), name="prompted")).error == (409, "voice_exists")
            # What is known at once is a status, also for one who wants events.
            assert (await add(rig, good(), "text/event-stream", name="anna")).error == (409, "voice_exists")
            replaced = await add(rig, good(), "text/event-stream", name="anna", replace="true")
            assert replaced.status == 200 and replaced.headers["content-type"].startswith("text/event-stream")
            *steps, (kind, about) = events_in(replaced.body)
            assert steps == [("progress", {"step": step}) for step in ("queued", "checking", "extracting", "storing")]
            assert kind == "done" and about["name"] == "anna"
            assert about["description"].startswith("cross-lingual")
            refused = await add(rig, BAD["silence"][0](), "text/event-stream", name="bert")
            kind, about = events_in(refused.body)[-1]
            assert kind == "error" and about["code"] == "bad_audio" and "silent" in about["message"]
            assert place.files() == ["anna.safetensors"]

            gone = await ask(rig, "DELETE", "/v1/voices/anna")
            assert (gone.status, gone.body) == (204, b"")
            assert "anna" not in await place.names() and place.files() == []
            assert (await ask(rig, "DELETE", "/v1/voices/anna")).error == (404, "unknown_voice")
            assert (await ask(rig, "DELETE", "/v1/voices/prompted")).error == (409, "voice_fixed")
            assert (await ask(rig, "DELETE", "/v1/voices/%2E%2E%2Fanna")).status == 404

    run(main, within_s=WITHIN_S)


@forked
def test_bad_recordings_and_forms_leave_nothing(model_dir: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with voiced(model_dir, tmp_path, with_engine=False) as place:
            for what, (make, problem) in BAD.items():
                audio = make()
                answer = await add(place.rig, audio, name="anna", text=SAID)
                assert answer.error == (400, "bad_audio"), (what, answer.body)
                assert re.search(problem, answer.json()["error"]["message"]), (what, answer.body)
                with pytest.raises(AudioError):
                    await place.service.prompt(audio, SAID)
            assert place.files() == []
            assert resident_bytes(place.maker.pid) < 1_500_000_000
            forms = {
                "no audio": await add(place.rig, None, name="anna"),
                "audio as text": await add(place.rig, None, name="anna", audio="x"),
                "no name": await add(place.rig, good()),
                "a path": await add(place.rig, good(), name="../anna"),
                "a prompt's name": await add(place.rig, good(), name="~anna"),
                "a long name": await add(place.rig, good(), name="a" * 65),
                "no words": await add(place.rig, good(), name="anna", text="..."),
                "a long text": await add(place.rig, good(), name="anna", text="word " * 300),
                "a very long text": await add(place.rig, good(), name="anna", text="a" * 500_000),
                "maybe": await add(place.rig, good(), name="anna", replace="maybe"),
                "JSON": await ask(place.rig, "POST", "/v1/voices", b"{}", Content_Type="application/json"),
                "no boundary": await ask(place.rig, "POST", "/v1/voices", b"x", Content_Type="multipart/form-data"),
            }
            assert {what: answer.error for what, answer in forms.items()} == dict.fromkeys(forms, (400, "bad_request"))
            assert place.files() == []

    run(main, within_s=WITHIN_S)


def with_noise(seconds: float = 4.0) -> np.ndarray:
    """`speech` with a pause of half a second before it, and a hiss."""
    wave = np.concatenate((np.zeros((12_000, 1), np.float32), speech(seconds)))
    return wave + 0.005 * np.random.default_rng(1).standard_normal(wave.shape).astype(np.float32)


@forked
def test_a_recording_is_checked_and_denoised_before_a_voice_is_made_of_it(model_dir: Path, tmp_path: Path) -> None:
    async def post(rig: Rig, path: str, audio: bytes | None, /, **fields: str) -> Answer:
        kind = f"multipart/form-data; boundary={BOUNDARY.decode()}"
        return await ask(rig, "POST", f"/v1/voices/{path}", form(audio, **fields), Content_Type=kind)

    async def main() -> None:
        async with voiced(model_dir, tmp_path, with_engine=False) as place:
            rig, noisy = place.rig, encoded(with_noise())
            plain = (await post(rig, "check", noisy)).json()
            assert set(plain) == {"recording"} and plain["recording"]["length_s"] == pytest.approx(4.5)
            both = (await post(rig, "check", noisy, denoise="true")).json()
            assert both["recording"] == plain["recording"]
            assert both["denoised"]["noise_dbfs"] < both["recording"]["noise_dbfs"]
            wav = await post(rig, "denoise", noisy)
            assert (wav.status, wav.headers["content-type"]) == (200, "audio/wav")
            quieter, rate_hz = soundfile.read(io.BytesIO(wav.body), dtype="float32")
            assert rate_hz == 24_000 and len(quieter) == len(with_noise())
            assert np.std(quieter[2_400:9_600]) < 0.5 * np.std(with_noise()[2_400:9_600])

            short = (await post(rig, "check", BAD["1 s"][0]())).json()["recording"]["findings"]
            assert [(each["code"], each["is_problem"]) for each in short] == [("too_short", True)]
            for what in ("61 s", "5 channels", "a PNG", "a FLAC bomb", "half a WAV", "nothing"):
                for path in ("check", "denoise"):
                    answer = await post(rig, path, BAD[what][0]())
                    assert answer.error == (400, "bad_audio"), (what, answer.body)
            assert (await post(rig, "denoise", BAD["silence"][0]())).error == (400, "bad_audio")
            assert (await post(rig, "check", None, audio="x")).error == (400, "bad_request")
            assert (await post(rig, "check", noisy, denoise="maybe")).error == (400, "bad_request")
            assert (await ask(rig, "POST", "/v1/voices/check", b"{}", Content_Type="application/json")).status == 400
            assert (await ask(rig, "GET", "/v1/voices/check")).status == 405
            assert place.files() == []

            made = await add(rig, noisy, name="quieter", denoise="true")
            assert made.status == 201 and made.json()["denoised_by"].startswith("afftdn of FFmpeg"), made.body
            assert float(made.json()["denoised_db"]) > 5
            assert "denoised_by" not in (await add(rig, noisy, name="plain")).json()
            assert (await add(rig, noisy, name="other", denoise="maybe")).error == (400, "bad_request")
            # The client cannot say that it was denoised.
            said = await add(rig, noisy, name="said", denoised_by="me", denoised_db="99")
            assert "denoised_by" not in said.json()

    run(main, within_s=WITHIN_S)


@forked
def test_a_recording_in_a_request_is_kept_by_its_content(model_dir: Path, tmp_path: Path) -> None:
    """At most `n_prompts` are on disk; the one not used for longest goes."""

    async def main() -> None:
        async with voiced(model_dir, tmp_path) as place:
            prompt = place.service.prompt
            audios = [encoded(speech(seed=seed)) for seed in range(4)]
            first, same = await asyncio.gather(prompt(audios[0], SAID), prompt(audios[0], SAID))
            assert first == same and first.startswith("~")
            assert place.files() == [f"{PROMPTS_FOLDER}/{first[1:]}.safetensors"]
            answer = await ask(
                place.rig, "POST", "/tts/stream",
                json.dumps({"text": "Yes.", "voice": first, "seed": 1}).encode(), Content_Type="application/json",
            )  # fmt: skip
            assert answer.status == 200 and len(answer.body) > 10_000
            kind = f"multipart/form-data; boundary={BOUNDARY.decode()}"
            with_prompt = form(audios[0], text="Yes.", seed="1", prompt_text=SAID)
            with_prompt = with_prompt.replace(b'"audio"', b'"prompt_audio"')
            zero_shot = await ask(place.rig, "POST", "/tts/stream", with_prompt, Content_Type=kind)
            assert zero_shot.status == 200 and zero_shot.body == answer.body
            written = os.stat(tmp_path / place.files()[0]).st_ino
            assert await prompt(audios[0], " " + SAID) == first, "the same words"
            assert os.stat(tmp_path / place.files()[0]).st_ino == written, "it was not made again"
            other = await prompt(audios[0], "")
            assert other != first
            second = await prompt(audios[1], SAID)
            assert len(place.files()) == 3
            await prompt(audios[0], SAID)
            with pytest.raises(AudioError):
                await prompt(BAD["silence"][0](), SAID)
            assert len(place.files()) == 3, "a bad recording takes no place"
            third = await prompt(audios[2], SAID)
            kept = [f"{PROMPTS_FOLDER}/{each[1:]}.safetensors" for each in (first, second, third)]
            assert place.files() == sorted(kept)
            assert place.engine.find_voice(other) is None and place.engine.find_voice(third) is not None
            assert first not in await place.names()
            assert (await ask(place.rig, "DELETE", f"/v1/voices/{first}")).error == (404, "unknown_voice")
        async with voiced(model_dir, tmp_path, n_prompts=1) as place:
            assert place.engine.find_voice(first) is not None, "kept over a restart"
            fourth = await place.service.prompt(audios[3], SAID)
            assert place.files() == [f"{PROMPTS_FOLDER}/{fourth[1:]}.safetensors"]
        async with voiced(model_dir, tmp_path, n_prompts=0) as place:
            with pytest.raises(EngineUnavailable, match="prompts is 0"):
                await place.service.prompt(audios[0], SAID)

    run(main, within_s=WITHIN_S)


@forked
def test_the_routes_of_cosyvoice_with_a_recording(model_dir: Path, tmp_path: Path) -> None:
    """Upstream's client sends GET with a form as its body, and takes raw samples."""
    routes = {
        "/inference_zero_shot": {"tts_text": "Yes.", "prompt_text": SAID},
        "/inference_cross_lingual": {"tts_text": "Yes."},
        "/inference_instruct2": {"tts_text": "Yes.", "instruct_text": "Softly."},
    }

    async def main() -> None:
        async with voiced(model_dir, tmp_path) as place:
            asked: list[Utterance] = []
            speak = place.engine.synthesize  # type: ignore[attr-defined]

            def witnessed(utterance: Utterance) -> Any:
                asked.append(utterance)
                return speak(utterance)

            place.engine.synthesize = witnessed  # type: ignore[attr-defined]
            kind = f"multipart/form-data; boundary={BOUNDARY.decode()}"
            for path, fields in routes.items():
                body = form(good(), **fields).replace(b'"audio"', b'"prompt_wav"')
                for method in ("POST", "GET"):
                    answer = await ask(place.rig, method, path, body, Content_Type=kind)
                    assert answer.status == 200, answer.body
                    assert answer.headers["content-type"] == "application/octet-stream"
                    pcm = np.frombuffer(answer.body, "<i2")
                    assert pcm.size > 5_000 and pcm.any()
            zero_shot, cross_lingual = await place.service.prompt(good(), SAID), await place.service.prompt(good(), "")
            kept = [f"{PROMPTS_FOLDER}/{each[1:]}.safetensors" for each in (zero_shot, cross_lingual)]
            assert place.files() == sorted(kept)
            assert [(each.voice, each.instruct) for each in asked[::2]] == [
                (zero_shot, None), (cross_lingual, None), (cross_lingual, "Softly."),
            ]  # fmt: skip
            assert asked[1::2] and [each.voice for each in asked[1::2]] == [each.voice for each in asked[::2]]
            for path, fields in routes.items():
                bad = form(BAD["a PNG"][0](), **fields).replace(b'"audio"', b'"prompt_wav"')
                refused = await ask(place.rig, "POST", path, bad, Content_Type=kind)
                assert refused.error == (400, "bad_audio")
            assert len(place.files()) == 2

    run(main, within_s=WITHIN_S)


@forked
def test_more_recordings_than_can_wait_are_refused(model_dir: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with voiced(model_dir, tmp_path, with_engine=False) as place:
            answers = await asyncio.gather(*(add(place.rig, good(), name=f"anna{n}") for n in range(12)))
            statuses = [answer.status for answer in answers]
            assert statuses.count(201) == 9 and statuses.count(503) == 3
            assert {answer.headers.get("retry-after") for answer in answers if answer.status == 503} == {"10"}
            assert len(place.files()) == 9

    run(main, within_s=WITHIN_S)


def test_a_process_that_dies_or_takes_too_long_is_an_error_and_the_next_voice_is_made(
    model_dir: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with voiced(model_dir, tmp_path, with_engine=False) as place:
            adding = asyncio.create_task(add(place.rig, good(), name="anna"))
            await until(lambda: place.maker.pid is not None, "a process")
            os.kill(place.maker.pid or 0, 9)
            answer = await adding
            assert answer.error == (500, "engine_failed") and "ended" in answer.json()["error"]["message"]
            place.maker._make_s = 0.5
            assert "within 0.5 s" in (await add(place.rig, good(), name="anna")).json()["error"]["message"]
            assert place.maker.pid is None and place.files() == []
            place.maker._make_s, place.maker._idle_s = 60.0, 0.05
            assert (await add(place.rig, good(), name="anna")).status == 201
            await until(lambda: place.maker.pid is None, "an idle process ends")

    run(main, within_s=WITHIN_S)


def test_without_cosyvoice2_voices_are_listed_and_cannot_be_added() -> None:
    async def main() -> None:
        catalog = Catalog([FakeEngine()])
        server = Server(transport_settings(speech=speech_settings()), catalog)
        server.http = http_server(server)
        await catalog.start()
        async with server.running():
            rig = Rig(server, catalog.engines[0])
            assert len((await ask(rig, "GET", "/v1/voices")).json()["voices"]) == len(catalog.voices)
            assert (await add(rig, good(), name="anna")).error == (501, "engine_unavailable")
            kind = f"multipart/form-data; boundary={BOUNDARY.decode()}"
            for path in ("check", "denoise"):
                answer = await ask(rig, "POST", f"/v1/voices/{path}", form(good()), Content_Type=kind)
                assert answer.error == (501, "engine_unavailable")
            assert (await ask(rig, "DELETE", "/v1/voices/anna")).error == (501, "engine_unavailable")
        await catalog.close()

    run(main, within_s=WITHIN_S)


# ------------------------------------------------------------------- whose a voice is


CONSENT = {"consent_by": "Anna Schmidt", "consent_on": "2026-01-31", "consent_for": "calls of Acme"}


def as_key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-token"}


async def add_as(rig: Rig, key: str, **fields: str) -> Answer:
    kind = f"multipart/form-data; boundary={BOUNDARY.decode()}"
    return await ask(rig, "POST", "/v1/voices", form(good(), **fields), Content_Type=kind, **as_key(key))


async def speak_as(rig: Rig, key: str, voice: str) -> Answer:
    body = json.dumps({"text": "Yes.", "voice": voice}).encode()
    return await ask(rig, "POST", "/tts/stream", body, Content_Type="application/json", **as_key(key))


async def voices_of(rig: Rig, key: str) -> dict[str, Any]:
    listed = (await ask(rig, "GET", "/v1/voices", **as_key(key))).json()["voices"]
    return {voice["name"]: voice for voice in listed}


@forked
def test_a_voice_of_a_key_is_for_that_key_alone(model_dir: Path, tmp_path: Path) -> None:
    keys = [Key(name, digest_of(f"{name}-token".encode())) for name in ("acme", "other")]

    async def main() -> None:
        async with voiced(model_dir, tmp_path, keys=keys) as place:
            rig = place.rig
            made = await add_as(rig, "acme", name="anna", text=SAID, **CONSENT)
            assert made.status == 201, made.body
            assert {name: made.json()[name] for name in ("owner", "removable", *CONSENT)} == {
                "owner": "acme", "removable": True, **CONSENT,
            }  # fmt: skip
            assert (await voices_of(rig, "acme"))["anna"]["consent_by"] == "Anna Schmidt"
            assert (await speak_as(rig, "acme", "anna")).status == 200
            for key in ("other", "plain"):
                assert "anna" not in await voices_of(rig, key)
                refused = await speak_as(rig, key, "anna")
                assert refused.error == (404, "unknown_voice"), key
                assert (await ask(rig, "DELETE", "/v1/voices/anna", **as_key(key))).error == (403, "not_yours")
                fields = {"name": "anna", "replace": "true", **CONSENT}
                assert (await add_as(rig, key, **fields)).error == (403, "not_yours")
                near = await speak_as(rig, key, "ann")
                assert near.status == 404 and b"anna" not in near.body, "its name is told to no other key"
                async with rig.bot(headers=as_key(key)) as bot:
                    await bot.send({"type": "config", "voice": "cosyvoice2/anna"})
                    assert (await bot.event("error"))["code"] == "unknown_voice"
            assert (await add_as(rig, "acme", name="anna", replace="true", **CONSENT)).status == 201
            assert (await ask(rig, "DELETE", "/v1/voices/anna", **as_key("acme"))).status == 204
            assert "anna" not in await voices_of(rig, "acme")

    run(main, within_s=WITHIN_S)


@forked
def test_a_named_key_needs_a_consent_and_a_token_without_a_name_needs_none(model_dir: Path, tmp_path: Path) -> None:
    async def main() -> None:
        acme = Key("acme", digest_of(b"acme-token"))
        async with voiced(model_dir, tmp_path, with_engine=False, keys=[acme]) as place:
            rig = place.rig
            refused = await add_as(rig, "acme", name="anna")
            assert refused.error == (400, "bad_request")
            assert "consent_by, consent_on, consent_for: missing" in refused.json()["error"]["message"]
            for wrong in ({"consent_on": "yesterday"}, {"consent_for": ""}, {"consent_by": "x" * 501}):
                refused = await add_as(rig, "acme", name="anna", **{**CONSENT, **wrong})
                assert refused.error == (400, "bad_request"), wrong
            assert place.files() == []
            assert (await add_as(rig, "plain", name="half", consent_by="Anna")).error == (400, "bad_request")
            assert (await add_as(rig, "plain", name="free")).status == 201
            assert (await add_as(rig, "plain", name="told", **CONSENT)).status == 201
            records = VoiceRecords(VoiceFolder(tmp_path))
            assert records.record(Voice("free", "cosyvoice2", (), 0)) == {}
            assert records.record(Voice("told", "cosyvoice2", (), 0)) == CONSENT
            refused = await ask(rig, "DELETE", "/v1/voices/free", **as_key("acme"))
            assert refused.error == (403, "not_yours"), "a key removes only its own"
            assert (await ask(rig, "DELETE", "/v1/voices/free", **as_key("plain"))).status == 204

    run(main, within_s=WITHIN_S)
