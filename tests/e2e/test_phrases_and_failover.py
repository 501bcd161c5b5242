"""Phrases that are kept, and engines that replace one another, through the real server and the command line."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from telephony_tts.app import config
from telephony_tts.app.engines import build_catalog
from telephony_tts.app.settings import transport_settings
from telephony_tts.cli.main import main as command_line
from telephony_tts.engines import phrase_store
from telephony_tts.engines.api import Chunk, EngineStats, Utterance
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.runtime import metrics
from telephony_tts.transport.server import Server

pytestmark = pytest.mark.slow

WITHIN_S = 120
"""Until a test counts as hanging. It loads engines, which beside other tests wait for a core."""


def settings(**own: Any) -> config.Config:
    keys = {name.replace("__", "."): value for name, value in own.items()}
    return config.load(None, {"server.port": 0, "engines.default": "fake", "speech.pace": "burst", **keys}, environ={})


async def spoken(server: Server, *messages: dict[str, Any]) -> list[tuple[bytes, dict[str, Any]]]:
    """(the audio, the `done`) of each turn of one call."""
    turns, audio = [], b""
    async with connect(f"ws://127.0.0.1:{server.port}/v1/stream?audio=binary") as socket:
        for message in messages:
            await socket.send(json.dumps(message))
            async for data in socket:
                if isinstance(data, bytes):
                    audio += data
                elif (event := json.loads(data))["type"] in ("done", "error"):
                    turns.append((audio, event))
                    audio = b""
                    break
    return turns


async def served(of: config.Config, *messages: dict[str, Any]) -> list[tuple[bytes, dict[str, Any]]]:
    catalog = build_catalog(of)
    await catalog.start()
    try:
        server = Server(transport_settings(of), catalog)
        async with server.running():
            return await asyncio.wait_for(spoken(server, *messages), 30)
    finally:
        await catalog.close()


def found() -> dict[str, float]:
    return {what: metrics.value("telephony_tts_phrases_total", found=what) for what in metrics.PHRASE_PLACES}


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "say", "text": text, **more}


def test_a_server_finds_what_was_warmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    diskcache = pytest.importorskip("diskcache")
    phrases = ["Thank you for calling, please hold the line. We will be with you soon.", "Goodbye!", "It is 5 o'clock."]
    file, kept = tmp_path / "phrases.txt", str(tmp_path / "kept")
    file.write_text("# greetings\n\n" + "\n".join(phrases) + "\n", encoding="utf-8")
    warm = ["phrases", "warm", str(file), "--folder", kept, "--engine", "fake"]
    assert command_line(["phrases", "stats", "--folder", kept]) == 2
    assert "there is no such folder of phrases" in capsys.readouterr().err
    assert command_line(warm) == 0
    n = int(capsys.readouterr().out.split(" made")[0].split()[-1])
    assert n >= 3
    get = diskcache.Cache.get

    def get_late(*of: Any, **how: Any) -> Any:
        time.sleep(0.3)
        return get(*of, **how)

    with monkeypatch.context() as slow:
        slow.setattr(diskcache.Cache, "get", get_late)
        assert command_line(warm) == 0
    assert f"0 made, {n} were there, 1 not kept" in capsys.readouterr().out
    assert command_line(["phrases", "stats", "--folder", kept]) == 0
    assert capsys.readouterr().out.startswith(f"fake/tone                      {n:>7}\n{n} sentences, ")

    before = found()
    monkeypatch.setattr(phrase_store, "_WAIT_S", 5.0)
    on = settings(phrases__enabled=True, phrases__folder=kept)
    turns = asyncio.run(served(on, *map(say, phrases), say("Goodbye!"), say("Goodbye!", private=True)))
    got = {what: found()[what] - before[what] for what in before}
    assert got == {"disk": n, "memory": 1, "made": 0, "not_kept": 2}
    plain = asyncio.run(served(settings(), *map(say, phrases), say("Goodbye!"), say("Goodbye!", private=True)))
    assert [audio for audio, _ in turns] == [audio for audio, _ in plain] and all(audio for audio, _ in turns)

    assert command_line(["phrases", "clear", "--folder", kept]) == 0
    assert f"{n} sentences removed" in capsys.readouterr().out
    assert command_line(["phrases", "stats", "--folder", kept]) == 0
    assert capsys.readouterr().out.startswith("0 sentences")


def test_what_is_wrong_with_the_command_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("diskcache")
    file = tmp_path / "phrases.txt"
    for arguments, status, said in (
        (["warm", "none.txt"], 2, "where are the phrases kept?"),
        (["warm", str(tmp_path / "none.txt"), "--folder", str(tmp_path / "k")], 2, "cannot be read: No such file"),
        (["warm", str(file), "--folder", str(tmp_path / "k")], 2, "has no phrase"),
        (["stats", "--folder", str(file)], 2, "there is no such folder"),
        (["warm", str(tmp_path / "some.txt"), "--folder", str(file), "--engine", "fake"], 2, "cannot be used to keep"),
        (["warm", str(tmp_path / "some.txt"), "--folder", str(tmp_path / "k"), "--voice", "no-one"], 1, "1: no voice"),
    ):  # fmt: skip
        file.write_text("# nothing\n", encoding="utf-8")
        (tmp_path / "some.txt").write_text("Hello there.\n", encoding="utf-8")
        assert command_line(["phrases", *arguments]) == status, arguments
        assert said in capsys.readouterr().err, arguments


def test_private_is_for_the_whole_turn_and_its_first_message_decides() -> None:
    async def main() -> None:
        on = settings(phrases__enabled=True)
        before = found()
        catalog = build_catalog(on)
        await catalog.start()
        server = Server(transport_settings(on), catalog)
        async with server.running(), connect(f"ws://127.0.0.1:{server.port}/v1/stream?audio=none") as socket:
            for turn, private in (("a", True), ("b", False)):
                for n, text in enumerate(("Your name is Smith. ", "Is that right?")):
                    piece = {"type": "text", "turn": turn, "text": text, "last": n == 1, "private": private == (n == 0)}
                    await socket.send(json.dumps(piece))
                async for data in socket:
                    if json.loads(data)["type"] == "done":
                        break
        await catalog.close()
        got = {what: found()[what] - before[what] for what in before}
        assert got == {"memory": 0, "disk": 0, "made": 2, "not_kept": 2}

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))


class Faulty(FakeEngine):
    """The engine "espeak", with a fault: it is silent for ever, has too much work, or fails at once."""

    def __init__(self, fault: str) -> None:
        super().__init__(name="espeak", hangs=fault == "hangs", fail_after_chunks=0 if fault == "fails" else None)
        self.fault = fault
        self.n_asked = 0
        self.load = 0.0

    def check(self, utterance: Utterance) -> None:
        super().check(utterance)
        if self.fault == "overloaded":
            self.load = 2.0  # only now, or the server would take no call

    def stats(self) -> EngineStats:
        return EngineStats(load=self.load)

    def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self.n_asked += 1
        return super().synthesize(utterance)


@pytest.mark.timed
@pytest.mark.parametrize(
    ("fault", "reasons", "n_asked"),
    [("hangs", ["timeout", "timeout", "open"], 2), ("fails", ["failed", "failed", "open"], 2),
     ("overloaded", ["overloaded"] * 3, 0)],
)  # fmt: skip
def test_a_server_replaces_an_engine_that_is_late_overloaded_or_left_out(
    monkeypatch: pytest.MonkeyPatch, fault: str, reasons: list[str], n_asked: int
) -> None:
    """The third turn does not wait for the engine that failed twice: its circuit is open."""
    faulty = Faulty(fault)
    monkeypatch.setattr("telephony_tts.engines.espeak.engine.EspeakEngine", lambda **_: faulty)
    on = settings(
        engines__default="espeak", engines__fallback=["fake"], engines__first_audio_timeout_ms=200,
        engines__fallback_after=2,
    )  # fmt: skip
    before = {reason: n_failovers(reason) for reason in set(reasons)}
    turns = asyncio.run(served(on, *[say("Thank you for calling.")] * 3))
    assert [done["engines"] for _, done in turns] == [["fake"]] * 3
    assert len({audio for audio, _ in turns}) == 1 and len(turns[0][0]) > 8_000
    assert {reason: n_failovers(reason) - n for reason, n in before.items()} == dict(Counter(reasons))
    assert faulty.n_asked == n_asked
    first_ms = [done["latency"]["first_audio_ms"] for _, done in turns]
    if fault == "hangs":
        assert min(first_ms[:2]) >= 200 > first_ms[2]


def n_failovers(reason: str) -> float:
    try:
        return metrics.value("telephony_tts_failovers_total", engine="espeak", reason=reason)
    except KeyError:  # no server of this process had a fallback yet
        return 0


def test_a_server_with_a_fallback_speaks_on_when_its_engine_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(FakeEngine):
        def __init__(self, **_: object) -> None:
            super().__init__(name="espeak", fail_after_chunks=6)

    monkeypatch.setattr("telephony_tts.engines.espeak.engine.EspeakEngine", lambda **_: Dying())
    on = settings(engines__default="espeak", engines__fallback=["fake"], engines__first_audio_timeout_ms=500)
    (turn,) = asyncio.run(served(on, say("Thank you for calling, please hold the line.")))
    audio, done = turn
    assert done["type"] == "done" and done["engines"] == ["espeak", "fake"]
    (plain,) = asyncio.run(served(settings(), say("Thank you for calling, please hold the line.")))
    assert "engines" not in plain[1]
    assert abs(len(audio) - len(plain[0])) <= 8 * 1000, "at most one word more or less a pause"
