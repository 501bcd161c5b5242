"""Lexicons through a whole server: what is heard is the reading, what is reported is the bot's text."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from http_peer import ask_json
from rig import Tones, correlation, decoded, rendering, run, serving, speech_settings

from telephony_tts.app import config
from telephony_tts.app.serving import serve
from telephony_tts.ops.lexicon_files import LexiconFiles
from telephony_tts.session.lexicons import CallLexicon

pytestmark = pytest.mark.slow

TEXT = "Ask ACME-12 about our SQL."
SPOKEN = "Ask acme twelve about our sequel."


def lexicon(tmp_path: Path, **scopes: Any) -> tuple[LexiconFiles, CallLexicon]:
    """Two lexicons: `brands` for all calls, or as `scopes` say, and `cities` for none."""
    (tmp_path / "brands.yaml").write_text('SQL: sequel\n/ACME-(\\d+)/: "acme $1"\n')
    (tmp_path / "cities.yaml").write_text("Nice: neess\n")
    files = LexiconFiles({name: str(tmp_path / f"{name}.yaml") for name in ("brands", "cities")})
    return files, CallLexicon(files.shelf, **(scopes or {"languages": {"*": ("brands",)}}))


def test_the_caller_hears_the_reading_and_the_bot_is_told_its_own_text(tmp_path: Path) -> None:
    async def main() -> None:
        speech = speech_settings(lexicon=lexicon(tmp_path)[1], pace="burst")
        async with serving(speech=speech) as rig, rig.bot(audio="binary", words="on") as bot:
            await bot.say(TEXT, "a")
            sentence = await bot.event("sentence")
            words = (await bot.event("words"))["words"]
            await bot.event("done", turn="a")
            assert sentence["text"] == TEXT
            assert [TEXT[word["from"] : word["to"]] for word in words] == TEXT.split()
            assert words[2]["start_ms"] == pytest.approx(60 * SPOKEN.index("about"), abs=5)
            assert correlation(decoded(bot.frames), rendering([SPOKEN])) > 0.98
            assert correlation(decoded(bot.frames), rendering([TEXT])) < 0.9

    run(main)


def test_a_clear_inside_a_reading_reports_the_bots_text(tmp_path: Path) -> None:
    async def main() -> None:
        speech = speech_settings(lexicon=lexicon(tmp_path)[1])
        async with serving(speech=speech) as rig, rig.bot(audio="binary") as bot:
            await bot.say(TEXT, "a")
            n_ms = 60 * len("Ask acme twel")
            await bot.frames_to(n_ms // 20 + 5)
            await bot.send({"type": "clear", "heard_ms": n_ms})
            cleared = await bot.event("cleared")
            assert cleared["heard_text"] == "Ask"
            assert cleared["heard_text"] + cleared["unheard_text"] == TEXT

    run(main)


def test_a_call_names_a_lexicon_and_brings_entries(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Tones()
        async with serving(engine, speech=speech_settings(lexicon=lexicon(tmp_path)[1], pace="burst")) as rig:
            async with rig.bot(lexicon="cities") as bot:
                await bot.say("SQL in Nice.", "a")
                await bot.event("done", turn="a")
                await bot.send({"type": "config", "lexicon": {"SQL": "squeal", "...": "dots"}})
                warning = await bot.event("warning")
                assert warning["code"] == "bad_lexicon_entry" and "only punctuation" in warning["message"]
                await bot.say("SQL in Nice.", "b")
                await bot.event("done", turn="b")
                await bot.send({"type": "config", "lexicon": {"SQL": 1}})
                assert (await bot.event("error"))["code"] == "bad_field"
            assert engine.spoken == ["sequel in neess.", "squeal in neess."]
            async with rig.bot() as bot:
                await bot.say("SQL in Nice.", "a")
                await bot.event("done", turn="a")
            assert engine.spoken[2] == "sequel in Nice.", "another call has none of it"

    run(main)


def test_an_unknown_lexicon_is_a_bad_option(tmp_path: Path) -> None:
    from websockets.asyncio.client import connect

    async def main() -> None:
        for known in (lexicon(tmp_path)[1], None):
            speech = speech_settings(lexicon=known)
            async with serving(speech=speech) as rig, connect(rig.url(lexicon="none"), proxy=None) as socket:
                message = await socket.recv()
                assert "bad_option" in str(message) and "no lexicon of that name" in str(message)

    run(main)


def test_a_token_has_lexicons_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        engine = Tones()
        given = lexicon(tmp_path, languages={})[1]
        how = {"tokens": ("one", "two"), "token_lexicons": {"one": ("brands",)}}
        async with serving(engine, speech=speech_settings(lexicon=given, pace="burst"), **how) as rig:
            for token in ("one", "two"):
                async with rig.bot(headers={"Authorization": f"Bearer {token}"}) as bot:
                    await bot.say("Our SQL.", "a")
                    await bot.event("done", turn="a")
                answer = await ask_json(
                    rig.port, "/tts/stream", {"text": "Their SQL."}, Authorization=f"Bearer {token}"
                )
                assert answer.status == 200
            assert engine.spoken == ["Our sequel.", "Their sequel.", "Our SQL.", "Their SQL."]

    run(main)


def test_a_running_server_reads_a_changed_file_again(tmp_path: Path) -> None:
    """The whole of `serve`, as the command line runs it."""
    file = tmp_path / "brands.yaml"
    file.write_text("SQL: sequel")
    settings = config.load(
        None,
        {
            "server.port": 0, "engines.default": "fake", "lexicons.files": {"brands": str(file)},
            "lexicons.languages": {"*": "brands"}, "lexicons.check_s": 0.05, "speech.pace": "burst",
        },
        {},
    )  # fmt: skip

    async def main() -> None:
        from rig import greeted

        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(settings, lambda served: port.set_result(served.port)))
        async with greeted(f"ws://127.0.0.1:{await port}/v1/stream?audio=binary") as bot:
            await bot.say("SQL.", "a")
            await bot.event("done", turn="a")
            assert correlation(decoded(bot.frames), rendering(["sequel."])) > 0.98
            other = tmp_path / "other.yaml"
            other.write_text("SQL: my word")
            os.replace(other, file)
            n_turns = 0

            async def changed() -> bool:
                nonlocal n_turns
                n_turns += 1
                n_before = len(bot.frames)
                await bot.say("SQL.", f"b{n_turns}")
                await bot.event("done", turn=f"b{n_turns}")
                return correlation(decoded(bot.frames[n_before:]), rendering(["my word."])) > 0.98

            async with asyncio.timeout(10):
                while not await changed():
                    pass
        server.cancel()
        await asyncio.wait((server,))

    run(main)
