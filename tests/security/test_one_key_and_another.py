"""What a named key sees and touches of the calls, lexicons and voices of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from http_peer import ask, ask_json, http_peer
from media_peer import leg
from rig import Rig, Tones, run, serving, until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from telephony_tts.http_api.asgi import http_server
from telephony_tts.http_api.console_routes import ConsoleTools
from telephony_tts.ops.keys.key import Key, KeyRing, digest_of
from telephony_tts.ops.lexicon_files import LexiconFiles

pytestmark = pytest.mark.slow


START = {"type": "start", "codec": "ulaw", "rate_hz": 8000}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}-token"}


def ring(**limits: dict[str, Any]) -> KeyRing:
    """Named keys with these limits, and the token `plain-token`."""
    keys = [Key(name, digest_of(f"{name}-token".encode()), **how) for name, how in limits.items()]
    return KeyRing(("plain-token",), keys)


async def shown_calls(rig: Rig, key: str) -> dict[str, Any]:
    """The first line that the console gets of the calls."""
    async with http_peer(rig.port) as peer:
        await peer.send("GET", "/console/api/calls", **bearer(key))
        answer = await peer.head()
        assert answer.status == 200
        shown: dict[str, Any] = json.loads(await peer.chunk())
        return shown


def test_the_console_shows_a_named_key_its_own_calls() -> None:
    """The id of a call is what a bot needs to join it."""

    async def main() -> None:
        keys = ring(acme={}, other={}, boss={"supervises": True})
        async with (
            serving(keys=keys) as rig,
            rig.bot(call="acmes", headers=bearer("acme")),
            rig.bot(call="others", headers=bearer("other")),
            leg(rig, "/media/native", **bearer("plain")) as media,
        ):
            await media.tell({**START, "call": "waiting"})
            await until(lambda: rig.server.registry.find("waiting") is not None, "the call without a bot")
            for key, names in (
                ("acme", {"acmes"}), ("other", {"others"}), ("boss", {"acmes", "others", "waiting"}),
                ("plain", {"acmes", "others", "waiting"}),
            ):  # fmt: skip
                shown = await shown_calls(rig, key)
                assert {call["call"] for call in shown["calls"]} == names, key
                assert "key" not in shown["calls"][0], "a named key sees no names of other keys"

    run(main)


def test_a_named_key_reads_the_lexicons_that_it_may_use(tmp_path: Path) -> None:
    async def main() -> None:
        for name in ("mine", "theirs"):
            (tmp_path / f"{name}.yaml").write_text("SQL: sequel\n")
        files = LexiconFiles({name: str(tmp_path / f"{name}.yaml") for name in ("mine", "theirs")})
        keys = ring(acme={"lexicons": ("mine",)}, boss={"lexicons": ("mine",), "supervises": True}, all={})
        async with serving(keys=keys) as rig:
            rig.server.http = http_server(rig.server, None, ConsoleTools(lexicons=files))
            at = "/console/api/lexicons"
            for key in ("acme", "boss"):
                listed = (await ask(rig.port, "GET", at, **bearer(key))).json()["lexicons"]
                assert [each["name"] for each in listed] == ["mine"], key
                assert (await ask(rig.port, "GET", f"{at}/mine", **bearer(key))).status == 200
                assert (await ask(rig.port, "GET", f"{at}/theirs", **bearer(key))).status == 404, key
            version = (await ask(rig.port, "GET", f"{at}/theirs", **bearer("all"))).json()["version"]
            body = json.dumps({"text": "SQL: x\n", "version": version}).encode()
            saved = await ask(rig.port, "PUT", f"{at}/theirs", body, Content_Type="application/json", **bearer("boss"))
            assert saved.status == 404 and (tmp_path / "theirs.yaml").read_text() == "SQL: sequel\n"

    run(main)


def test_only_people_of_the_operator_examine_the_machine_and_try_lexicons() -> None:
    """An examination tells of files and packages. A lexicon's patterns are built in one step, in which no call of the
    server gets a frame."""

    async def main() -> None:
        async with serving(keys=ring(acme={}, boss={"supervises": True})) as rig:
            assert (await ask(rig.port, "GET", "/console/api/doctor", **bearer("acme"))).code == "not_supervisor"
            assert (await ask(rig.port, "GET", "/console/api/doctor", **bearer("boss"))).status == 501
            assert (await ask(rig.port, "GET", "/console/api/doctor", **bearer("plain"))).status == 501
            test = {"text": "SQL: sequel", "sentence": "SQL."}
            for key in ("acme", "plain"):
                tried = await ask_json(rig.port, "/console/api/lexicons/check", test, **bearer(key))
                assert (tried.status, tried.code) == (403, "not_supervisor"), key
            tried = await ask_json(rig.port, "/console/api/lexicons/check", test, **bearer("boss"))
            (sentence,) = tried.json()["sentences"]
            assert sentence == {"text": "SQL.", "from": 0, "to": 4, "language": "en", "reading": "sequel."}

    run(main)


def test_a_named_key_cannot_take_the_call_of_the_operators_bot() -> None:
    async def main() -> None:
        async with (
            serving(keys=ring(acme={})) as rig,
            leg(rig, "/media/native", **bearer("plain")) as media,
        ):
            await media.tell({**START, "call": "c"})
            await until(lambda: rig.server.registry.find("c") is not None, "the call")
            call = rig.server.registry.find("c")
            assert call is not None
            async with connect(rig.url("/calls/c/v1/speak"), additional_headers=bearer("plain"), proxy=None):
                await until(lambda: call.bot is not None, "the operator's bot")
            await until(lambda: call.bot is None, "the bot has left, and may come back")
            async with connect(rig.url(call="c"), additional_headers=bearer("acme"), proxy=None) as socket:
                assert json.loads(await socket.recv())["code"] == "call_taken"
            answer = await ask_json(rig.port, "/calls/c/tts/stream", {"text": "Hello."}, **bearer("acme"))
            assert answer.code == "call_taken"
            async with connect(rig.url("/calls/c/v1/speak"), additional_headers=bearer("plain"), proxy=None):
                await until(lambda: call.bot is not None, "the operator's bot again")

    run(main)


def test_a_stranger_is_not_told_the_names_of_voices() -> None:
    """This vendor's clients may send the key in their first message, so their handshake has none."""

    async def main() -> None:
        engine = Tones(voice_names=("secret-project",))
        async with serving(engine, keys=ring(acme={})) as rig:
            path = rig.url("/v1/text-to-speech/secret-projec/stream-input")
            with pytest.raises(InvalidStatus) as raised:
                async with connect(path, additional_headers=bearer("acme"), proxy=None):
                    pass
            assert b"secret-project" in raised.value.response.body, "who has a key is helped"
            async with connect(path, proxy=None) as socket:
                await socket.send(json.dumps({"text": " ", "xi_api_key": "wrong"}))
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
            assert socket.close_code == 1008
            async with connect(path, proxy=None) as socket:
                await socket.send(json.dumps({"text": " ", "xi_api_key": "acme-token"}))
                told = json.loads(await socket.recv())
                assert told["error"] == "unknown_voice" and "secret-project" in told["message"]

    run(main)
