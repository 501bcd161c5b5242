"""TLS between a front and an engine server: with the right certificates it speaks, with any wrong one it says why."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import joined, speak
from engine_servers import attached, engine_server

from telephony_tts.app import config
from telephony_tts.app.engines import local_engine
from telephony_tts.engines.api import Utterance
from telephony_tts.engines.fake.engine import FakeEngine, render
from telephony_tts.engines.remote.addresses import parse_address
from telephony_tts.engines.remote.client import RemoteEngine
from telephony_tts.engines.remote.server import EngineServer
from telephony_tts.engines.remote.tls import TlsKeys, read_tls
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable

pytestmark = pytest.mark.slow

TEXT = "Your parcel arrives tomorrow."


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def new_key(folder: Path, name: str) -> tuple[str, ...]:
    return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{folder}/{name}.key"


def authority(folder: Path, name: str) -> None:
    made = folder / f"{name}.pem"
    openssl("req", "-x509", *new_key(folder, name), "-days", "2", "-subj", f"/CN={name}", "-out", made)


def certificate(folder: Path, name: str, by: str, address: str) -> None:
    asked, told = folder / f"{name}.csr", folder / f"{name}.ext"
    told.write_text(f"subjectAltName={address}\n")
    openssl("req", *new_key(folder, name), "-subj", f"/CN={name}", "-out", asked)
    openssl(
        "x509", "-req", "-in", asked, "-days", "2", "-CA", folder / f"{by}.pem", "-CAkey", folder / f"{by}.key",
        "-extfile", told, "-out", folder / f"{name}.pem",
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "strangers"):
        authority(made, name)
    certificate(made, "engine", "ours", "IP:127.0.0.1")
    certificate(made, "front", "ours", "DNS:front")
    certificate(made, "elsewhere", "ours", "IP:10.0.0.9")
    certificate(made, "stranger", "strangers", "IP:127.0.0.1")
    return made


def keys(folder: Path, ca: str | None = None, own: str | None = None) -> TlsKeys | None:
    """As `engines.remote.tls` would name them."""
    files = (None if name is None else str(folder / name) for name in (ca and f"{ca}.pem", own and f"{own}.pem"))
    return read_tls(*files, None if own is None else str(folder / f"{own}.key"))


@asynccontextmanager
async def serving(tls: TlsKeys | None) -> AsyncIterator[str]:
    """The address of an engine server in this process."""
    engine = FakeEngine()
    await engine.start()
    server = EngineServer(engine, token="sesame", tls=tls)
    address = await server.listen(parse_address("127.0.0.1:0"))
    server.engine_is_loaded()
    try:
        yield str(address)
    finally:
        await server.close()
        await engine.close()


def run(work: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


@pytest.mark.parametrize(("server_ca", "own"), [(None, None), ("ours", "front")], ids=["one-sided", "mutual"])
def test_speech_is_the_same_over_tls(folder: Path, server_ca: str | None, own: str | None) -> None:
    async def work() -> None:
        async with (
            serving(keys(folder, server_ca, "engine")) as address,
            attached(address, token="sesame", tls=keys(folder, "ours", own)) as engine,
        ):
            assert np.array_equal(joined(await speak(engine, Utterance("u", TEXT))), render(TEXT))

    run(work)


@pytest.mark.parametrize(
    ("of_server", "of_front", "why"),
    [
        ((None, "stranger"), ("ours", None), "TLS cannot begin .*CERTIFICATE_VERIFY_FAILED"),
        ((None, "elsewhere"), ("ours", None), "its certificate is for another host than 127.0.0.1:"),
        ((None, None), ("ours", None), "TLS cannot begin .*WRONG_VERSION_NUMBER"),
        (("ours", "engine"), ("ours", None), "which was made with TLS"),
        (("ours", "engine"), ("ours", "stranger"), "which was made with TLS"),
        ((None, "engine"), (None, None), "which was made without TLS"),
    ],
    ids=["another-authority", "another-host", "plain-server", "no-front-certificate", "strange-front", "plain-front"],
)
def test_a_wrong_certificate_is_refused_and_named(
    folder: Path, of_server: tuple[str | None, str | None], of_front: tuple[str | None, str | None], why: str
) -> None:
    async def work() -> None:
        async with serving(keys(folder, *of_server)) as address:
            engine = RemoteEngine("remote", [address], token="sesame", start_timeout_s=2, tls=keys(folder, *of_front))
            with pytest.raises(EngineUnavailable, match=why) as refused:
                await engine.start()
            assert "engines.remote.tls" in str(refused.value)

    run(work)


def test_the_commands_take_the_files_of_the_configuration(folder: Path) -> None:
    ours = [f"engines.remote.tls.{name}={folder}/{file}" for name, file in (
        ("ca", "ours.pem"), ("cert", "engine.pem"), ("key", "engine.key"))]  # fmt: skip
    token = {"TELEPHONY_TTS_ENGINE_TOKEN": "sesame"}
    with engine_server(*ours, listen="127.0.0.1:0", environ=token) as server:
        given = {"engines.remote.target": server.address, **dict(each.split("=") for each in ours)}
        settings = config.load(None, given, token)

        async def work() -> None:
            engine = local_engine(settings, "remote")
            await engine.start()
            try:
                assert np.array_equal(joined(await speak(engine, Utterance("u", TEXT))), render(TEXT))
            finally:
                await engine.close()

        run(work)


def test_files_that_cannot_be_used_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing\n")
    openssl("ec", "-in", folder / "engine.key", "-aes128", "-passout", "pass:x", "-out", tmp_path / "locked.key")
    pem, key = str(folder / "engine.pem"), str(folder / "engine.key")
    for files, why in (
        ((str(tmp_path / "no.pem"), None, None), r"engines\.remote\.tls\.ca: no certificate can be read"),
        ((None, pem, str(folder / "front.key")), "do not work"),
        ((None, pem, str(tmp_path / "locked.key")), "is encrypted"),
    ):
        with pytest.raises(ConfigError, match=why):
            read_tls(*files)
    for settings, why in (
        ({"ca": "/none.pem"}, r"engines\.remote\.tls\.ca: cannot read /none\.pem"),
        ({"cert": pem}, "key: missing"),
        ({"cert": pem, "key": key}, r"tls\.ca: missing"),
    ):
        tree = {f"engines.remote.tls.{name}": value for name, value in settings.items()}
        with pytest.raises(ConfigError, match=why):
            config.load(None, {"engines.remote.target": "127.0.0.1:1", **tree}, {})
