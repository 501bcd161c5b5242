"""A voice that comes over the HTTP of a front: CosyVoice2 at two engine servers, which share no folder, speaks it."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked_process import ForkServer, fork_server
from front_server import FrontServer, front_server
from rig import Bot, run
from test_http_voices import good
from test_shared_engine import TEXT, names, request
from voice_form import voice_form
from websockets.asyncio.client import connect

from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint

sys.path.append(str(Path(__file__).parents[1] / "engines" / "remote"))

import engine_servers
from engine_servers import engine_server

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.fixture(scope="module")
def folders(short_of_module: Path) -> tuple[Path, Path]:
    return short_of_module / "one", short_of_module / "other"


@contextmanager
def engine_servers_forked() -> Iterator[None]:
    """A fork server that has imported PyTorch forks the engine servers."""
    engine = "telephony_tts.engines.cosyvoice2"
    modules = ("telephony_tts.cli.main", "telephony_tts.app.serving", "telephony_tts.engines.remote.server",
               f"{engine}.service", f"{engine}.core.core", f"{engine}.hosting.loading")  # fmt: skip
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with fork_server(*modules, environment=one_thread) as forks, pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_servers, "subprocess", forks)
        yield


@pytest.fixture(scope="module")
def server(short_of_module: Path, folders: tuple[Path, Path], forks: ForkServer) -> Iterator[FrontServer]:
    model = short_of_module / "model"
    write_random_checkpoint(model)
    tiny = ("engines.default=cosyvoice2", f"engines.cosyvoice2.model={model}", "engines.cosyvoice2.workers=1",
            "engines.cosyvoice2.threads=1", "engines.cosyvoice2.dtype=float32", "engines.cosyvoice2.flow_steps=3",
            "engines.cosyvoice2.isolation=thread")  # fmt: skip
    with (
        engine_servers_forked(),
        engine_server(*tiny, f"engines.cosyvoice2.voices={folders[0]}") as one,
        engine_server(*tiny, f"engines.cosyvoice2.voices={folders[1]}") as other,
        front_server(
            short_of_module, "engines.default=remote", f"engines.remote.target={one.address},{other.address}",
            forks=forks,
        ) as server,
    ):
        yield server


@pytest.mark.timed  # replicas, fronts and a caller all have deadlines
def test_a_voice_is_added_spoken_and_removed(server: FrontServer, folders: tuple[Path, Path]) -> None:
    head, body = voice_form({"name": "anna", "text": "Thank you for calling."}, good())
    made = json.loads(request(server, "/v1/voices", body, "POST", Content_Type=head))
    assert (made["name"], made["engine"], made["removable"]) == ("anna", "remote", True)
    assert made["warnings"] and not any("does not have the voice" in each for each in made["warnings"])
    assert 3 < made["kept_s"] <= made["source_s"] == 4.0
    files = [(folder / "anna.safetensors").read_bytes() for folder in folders]
    assert files[0] == files[1]
    for front in (0, 1):
        with server.stopped(front):
            time.sleep(0.5)  # a front that was stopped, or did not add the voice, is told by the replicas
            assert "anna" in names(server)

    async def main() -> None:
        # Both at once, so that both replicas speak.
        urls = [server.url(call=f"R{n}", audio="binary", voice="anna") for n in range(2)]
        bots = [Bot(await connect(url, proxy=None)) for url in urls]
        for bot in bots:
            await bot.say(TEXT, "a")
        for bot in bots:
            await bot.event("done", turn="a", within_s=40)
            assert sum(map(len, bot.frames)) > 2_000
            await bot.aclose()

    run(main, within_s=90)
    taken = refused(server, body, head)
    assert taken == (409, "voice_exists")
    head, body = voice_form({"name": "bert", "text": ""}, b"no recording")
    assert refused(server, body, head) == (400, "bad_audio")
    request(server, "/v1/voices/anna", method="DELETE")
    assert not any((folder / "anna.safetensors").exists() for folder in folders)
    end_s = time.monotonic() + 3
    while "anna" in names(server):  # the other front is told by the replicas, five times a second
        assert time.monotonic() < end_s
        time.sleep(0.1)


def refused(server: FrontServer, body: bytes, content_type: str) -> tuple[int, str]:
    """The status and the code of an error."""
    with pytest.raises(urllib.error.HTTPError) as error:
        request(server, "/v1/voices", body, "POST", Content_Type=content_type)
    with error.value as answer:
        return answer.code, json.load(answer)["error"]["code"]
