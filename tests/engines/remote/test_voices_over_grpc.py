"""Voices that are added at engine servers: one replica makes a voice, all have it, and a refusal keeps its kind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc.aio
import pytest
from engine_servers import attached
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.engines.api import Utterance, Voice
from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.remote.addresses import parse_address
from telephony_tts.engines.remote.client import RemoteEngine
from telephony_tts.engines.remote.connection import MAX_FOUND, EngineConnection
from telephony_tts.engines.remote.messages import SERVICE, BadMessage
from telephony_tts.engines.remote.server import EngineServer
from telephony_tts.engines.remote.voice_client import RemoteVoices
from telephony_tts.engines.remote.voice_messages import (
    ADD,
    PIECE_BYTES,
    packed,
    pieces,
    raise_refusal,
    refusal,
    unpacked,
)
from telephony_tts.runtime.errors import (
    AudioError,
    Busy,
    ConfigError,
    EngineError,
    EngineUnavailable,
    TelephonyTTSError,
    UnknownVoice,
)

NO_RECORD: Mapping[str, str] = MappingProxyType({})
CONSENT = {"consent_by": "Anna Meier", "consent_on": "2026-11-20", "consent_for": "reminders"}
RECORDING = bytes(range(256)) * 20_000
"""More than one piece."""


@dataclass(frozen=True)
class Made:
    voice: Voice
    kept_s: float = 3.5
    source_s: float = 4.0
    warnings: tuple[str, ...] = ("it is quiet",)


class EngineOfPrompts(FakeEngine):
    """It has each voice that was made for one request, but for those that are `gone`."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[str] = set()

    def find_voice(self, name: str) -> Voice | None:
        is_listed = any(voice.name == name for voice in self.voices)
        is_there = is_listed or (name.startswith("~") and name not in self.gone)
        return Voice(name, "fake", ("en",), 24_000) if is_there else None

    def check(self, utterance: Utterance) -> None:
        if utterance.voice is None or self.find_voice(utterance.voice) is None:
            super().check(utterance)


def n_voices() -> int:
    return sum(isinstance(each, Voice) for each in gc.get_objects())


class Keeper:
    """Stores a recording as it is. Its engine has the voices of the folder beside its own."""

    def __init__(self, folder: Path, engine: FakeEngine | None = None) -> None:
        self.folder = VoiceFolder(folder)
        self.n_made = 0
        self.record = NO_RECORD
        self.denoised_names: list[str] = []
        self.is_full = False
        self.engine = engine or FakeEngine()

    def read(self) -> None:
        stored = (Voice(name, "fake", ("en",), 24_000) for name in self.folder.names())
        self.engine.voices = (FakeEngine().voices[0], *stored)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.directory.iterdir())

    def is_removable(self, voice: Voice) -> bool:
        return self.folder.has(voice.name)

    async def add(
        self,
        name: str,
        audio: bytes,
        text: str,
        *,
        replace: bool = False,
        denoise: bool = False,
        record: Mapping[str, str] = NO_RECORD,
    ) -> Made:
        if audio == b"noise":
            raise AudioError("this is noise")
        if audio == b"crash":
            raise ZeroDivisionError
        if not replace and self.folder.has(name):
            raise ConfigError(f"there is a voice {name}", code="voice_exists")
        self.n_made += 1
        self.record = record
        self.denoised_names += [name] if denoise else []
        self.folder.put(name, text.encode() + audio)
        self.read()
        return Made(Voice(name, "fake", ("en",), 24_000, description="made here"))

    async def check(self, audio: bytes, *, denoise: bool = False) -> Mapping[str, Any]:
        if audio == b"noise":
            raise AudioError("this is noise")
        return {"recording": {"length_s": len(audio)}, "denoise": denoise}

    async def denoised(self, audio: bytes) -> bytes:
        return audio[::-1]

    async def stored(self, name: str) -> bytes:
        return self.folder.path(name).read_bytes()

    async def store(self, name: str, file: bytes) -> None:
        if self.is_full:
            raise ConfigError("the folder cannot be written to", code="voice_folder")
        self.folder.put(name, file)
        self.read()

    async def remove(self, name: str) -> None:
        try:
            self.folder.remove(name)
        finally:
            self.read()


@asynccontextmanager
async def serving(keeper: Keeper | None, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    engine = keeper.engine if keeper is not None else FakeEngine()
    await engine.start()
    server = EngineServer(engine, token="sesame", voices=keeper)
    address = str(await server.listen(parse_address(listen)))
    server.engine_is_loaded()
    try:
        yield address
    finally:
        await server.close()
        await engine.close()


@asynccontextmanager
async def fleet(*keepers: Keeper) -> AsyncIterator[tuple[RemoteEngine, RemoteVoices]]:
    """A front with a replica for each."""
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(serving(each)) for each in keepers]
        engine = await stack.enter_async_context(attached(*targets, token="sesame"))
        while not all(replica.is_ready and replica.voices for replica in engine.replicas):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        yield engine, RemoteVoices(engine)


def run(work: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


def keepers(tmp_path: Path, n: int) -> list[Keeper]:
    return [Keeper(tmp_path / f"voices{number}") for number in range(n)]


@pytest.mark.slow
def test_consent_is_stored_by_the_replica_that_makes_the_voice(tmp_path: Path) -> None:
    (keeper,) = keepers(tmp_path, 1)

    async def work() -> None:
        async with fleet(keeper) as (_, voices):
            await voices.add("anna", RECORDING, "", record=CONSENT)
            assert keeper.record == CONSENT

    run(work)


async def found(engine: RemoteEngine, name: str) -> Voice:
    """A voice that is not listed, once the front knows it."""
    while (voice := engine.find_voice(name)) is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return voice


async def spoken(engine: RemoteEngine, voice: str) -> int:
    """The samples of a sentence."""
    return sum([len(chunk.pcm) async for chunk in engine.synthesize(Utterance("u", "Hello.", voice=voice))])


@pytest.mark.slow
def test_a_voice_of_one_request_stays_known_while_others_add_and_remove_voices(tmp_path: Path) -> None:
    """Pinned: the next sentence of the request was refused."""
    (keeper,) = keepers(tmp_path, 1)
    prompts = keeper.engine = EngineOfPrompts()

    async def work() -> None:
        async with fleet(keeper) as (engine, voices):
            await found(engine, "~1")
            await voices.add("anna", RECORDING, "")
            assert await spoken(engine, "~1") > 0
            await found(engine, "anna")
            await voices.remove("anna")
            assert await spoken(engine, "~1") > 0
            assert engine.find_voice("anna") is None, "a listed voice that was removed is not remembered"
            prompts.gone.add("~1")
            with pytest.raises(UnknownVoice, match="~1"):
                await spoken(engine, "~1")

    run(work)


@pytest.mark.slow
def test_a_voice_of_one_request_stays_known_when_its_engine_was_started_again(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/e.sock"

    async def work() -> None:
        async with AsyncExitStack() as first:
            await first.enter_async_context(serving(Keeper(tmp_path, EngineOfPrompts()), address))
            async with attached(address, token="sesame") as engine:
                await found(engine, "~1")
                await first.aclose()
                while engine.stats().is_ready:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                again = EngineOfPrompts()
                async with serving(Keeper(tmp_path, again), address):
                    while not engine.stats().is_ready:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                    assert await spoken(engine, "~1") > 0
                    again.gone.add("~1")
                    with pytest.raises(UnknownVoice, match="~1"):
                        await spoken(engine, "~1")

    run(work)


@pytest.mark.slow
def test_a_front_remembers_a_bounded_number_of_voices_that_were_made_for_one_request(tmp_path: Path) -> None:
    """It remembers the ones that were asked for last."""
    (keeper,) = keepers(tmp_path, 1)
    keeper.engine = EngineOfPrompts()

    async def work() -> None:
        gc.collect()
        n_before = n_voices()
        async with fleet(keeper) as (engine, _):
            for number in range(2 * MAX_FOUND):
                assert (await found(engine, f"~{number}")).name == f"~{number}"
                assert engine.find_voice("~0") is not None, "it is asked for again and again"
            gc.collect()
            assert MAX_FOUND <= n_voices() - n_before < MAX_FOUND + 10
            assert engine.find_voice("~1") is None and engine.find_voice(f"~{MAX_FOUND + 9}") is not None

    run(work)


@pytest.mark.slow
def test_a_recording_is_checked_and_denoised_by_a_replica(tmp_path: Path) -> None:
    async def main() -> None:
        (keeper,) = keepers(tmp_path, 1)
        async with fleet(keeper) as (_, voices):
            for denoise in (False, True):
                told = await voices.check(RECORDING, denoise=denoise)
                assert told == {"recording": {"length_s": len(RECORDING)}, "denoise": denoise}
            assert await voices.denoised(RECORDING) == RECORDING[::-1]
            with pytest.raises(TelephonyTTSError, match="this is noise") as refused:
                await voices.check(b"noise")
            assert refused.value.code == AudioError.code
            await voices.add("anna", RECORDING, "Hi.", denoise=True)
            await voices.add("bert", RECORDING, "Hi.")
            assert keeper.denoised_names == ["anna"]

    run(main)


@pytest.mark.slow
def test_a_voice_of_a_named_key_is_refused_since_a_front_does_not_know_its_owner(tmp_path: Path) -> None:
    (keeper,) = keepers(tmp_path, 1)

    async def work() -> None:
        async with fleet(keeper) as (_, voices):
            with pytest.raises(EngineUnavailable, match="a named key can add a voice only where CosyVoice2"):
                await voices.add("anna", RECORDING, "", record={"owner": "shop", **CONSENT})
            assert keeper.n_made == 0

    run(work)


@pytest.mark.slow
def test_a_voice_is_made_once_and_all_replicas_have_it(tmp_path: Path) -> None:
    made_by = keepers(tmp_path, 3)

    async def work() -> None:
        async with fleet(*made_by) as (engine, voices):
            assert [voices.is_removable(voice) for voice in engine.voices] == [False]
            added = await voices.add("anna", RECORDING, "Good morning.")
            assert added.voice == Voice("anna", "remote", ("en",), 24_000)
            assert (added.kept_s, added.source_s, added.warnings) == (3.5, 4.0, ("it is quiet",))
            assert [keeper.n_made for keeper in made_by] == [1, 0, 0]
            assert {keeper.folder.path("anna").read_bytes() for keeper in made_by} == {b"Good morning." + RECORDING}
            assert all(any(voice.name == "anna" for voice in each.voices) for each in engine.replicas)
            assert voices.is_removable(added.voice)
            with pytest.raises(TelephonyTTSError, match="there is a voice anna") as taken:
                await voices.add("anna", RECORDING, "")
            assert taken.value.code == "voice_exists"
            await voices.add("anna", b"another", "", replace=True)
            assert {keeper.folder.path("anna").read_bytes() for keeper in made_by} == {b"another"}
            await voices.remove("anna")
            assert not any(keeper.folder.has("anna") for keeper in made_by)
            with pytest.raises(UnknownVoice, match="anna"):
                await voices.remove("anna")

    run(work)


@pytest.mark.slow
def test_replicas_that_share_a_folder_have_one_file(tmp_path: Path) -> None:
    shared = [Keeper(tmp_path), Keeper(tmp_path)]

    async def work() -> None:
        async with fleet(*shared) as (_, voices):
            await voices.add("anna", RECORDING, "")
            assert shared[0].files() == ["anna.safetensors"]
            await voices.remove("anna")
            assert shared[0].files() == []

    run(work)


@pytest.mark.slow
def test_removing_a_voice_says_if_a_replica_that_is_not_ready_may_still_have_it(tmp_path: Path) -> None:
    """The ready ones remove it. Once the other one is back, the same request removes it there too."""
    made_by = keepers(tmp_path, 2)

    async def work() -> None:
        async with fleet(*made_by) as (engine, voices):
            for name in ("anna", "bert"):
                await voices.add(name, RECORDING, "")
            absent = engine.replicas[1]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(EngineConnection, "is_ready", property(lambda own: own is not absent))
                for _ in range(2):  # the second time no ready replica has it
                    with pytest.raises(EngineError, match=f"not ready may still have .*{absent.target}") as not_removed:
                        await voices.remove("anna")
                    assert not_removed.value.retryable and not_removed.value.retry_after_ms
                    assert [keeper.folder.has("anna") for keeper in made_by] == [False, True]
                with pytest.raises(UnknownVoice, match="clara"):
                    await voices.remove("clara")
            await voices.remove("anna")
            assert [keeper.files() for keeper in made_by] == [["bert.safetensors"]] * 2

    run(work)


@pytest.mark.slow
def test_what_goes_wrong_keeps_its_kind_and_names_the_replica(tmp_path: Path) -> None:
    one, other = made_by = keepers(tmp_path, 2)

    async def work() -> None:
        async with fleet(*made_by) as (engine, voices):
            for audio, code in ((b"noise", "bad_audio"), (b"crash", "engine_failed")):
                with pytest.raises(TelephonyTTSError) as refused:
                    await voices.add("anna", audio, "")
                assert refused.value.code == code and not one.folder.has("anna")
            with pytest.raises(TelephonyTTSError, match="not a valid name") as wrong:
                await voices.add("../anna", b"good", "")
            assert wrong.value.code == "bad_request"
            other.is_full = True
            added = await voices.add("anna", b"good", "")
            (_, warning) = added.warnings
            target = engine.replicas[1].target
            assert warning == f"{target} does not have the voice: the folder cannot be written to"
            with pytest.raises(EngineUnavailable, match="POST /v1/voices"):
                await voices.prompt(b"good", "")
            await engine.close()
            with pytest.raises(TelephonyTTSError, match="no replica of remote is ready"):
                await voices.add("bert", b"good", "")

    run(work)


@pytest.mark.slow
def test_an_engine_without_a_keeper_and_a_stranger_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(None) as address, attached(address, token="sesame") as engine:
            with pytest.raises(TelephonyTTSError, match="makes no voices") as refused:
                await RemoteVoices(engine).add("anna", b"good", "")
            assert refused.value.code == "engine_unavailable"
        keeper = Keeper(tmp_path)
        async with serving(keeper) as address, grpc.aio.insecure_channel(address) as channel:
            ask = channel.stream_stream(f"/{SERVICE}/{ADD}")
            for token, data, code in (
                ("wrong", packed({"name": "anna", "text": ""}, b"good"), grpc.StatusCode.UNAUTHENTICATED),
                ("sesame", b"no", grpc.StatusCode.INVALID_ARGUMENT),
                ("sesame", packed({"name": 7, "text": ""}), grpc.StatusCode.INVALID_ARGUMENT),
            ):
                call = ask(iter([data]), metadata=(("authorization", f"Bearer {token}"),))
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call.read()
                assert failed.value.code() is code
            assert keeper.n_made == 0

    run(work)


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.booleans())), st.binary())
def test_a_request_survives_its_bytes(fields: dict[str, object], file: bytes) -> None:
    assert unpacked(b"".join(pieces(packed(fields, file)))) == (fields, file)


@given(st.binary(max_size=40))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        fields, _ = unpacked(data)
    except BadMessage:
        return
    assert isinstance(fields, dict)


def test_pieces_have_a_limit_and_a_refusal_its_error() -> None:
    assert [len(piece) for piece in pieces(bytes(2 * PIECE_BYTES + 1))] == [PIECE_BYTES, PIECE_BYTES, 1]
    assert list(pieces(b"")) == [b""]
    told, _ = unpacked(refusal(Busy("others wait", retry_after_ms=700)))
    with pytest.raises(TelephonyTTSError, match="others wait") as raised:
        raise_refusal(told)
    assert (raised.value.code, raised.value.retryable, raised.value.retry_after_ms) == ("busy", True, 700)
    raise_refusal({"name": "anna"})
