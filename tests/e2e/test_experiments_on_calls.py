"""Experiments through a whole server: what the calls of an arm get, what is counted, and files that change."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_peer import ask_json
from log_lines import lines
from rig import Rig, Tones, greeted, run, serving, speech_settings, until
from websockets.asyncio.client import connect

from telephony_tts.app import config
from telephony_tts.app.serving import serve
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.catalog import Catalog
from telephony_tts.experiments.arms import Arm, Experiment
from telephony_tts.experiments.running import Experiments
from telephony_tts.experiments.sums import StopRules
from telephony_tts.ops.keys.key import Key, KeyRing, digest_of
from telephony_tts.runtime import metrics
from telephony_tts.runtime.errors import ConfigError

pytestmark = pytest.mark.slow

WITHIN_S = 30.0
"""For a file to be read again, also on a machine that is busy."""


class Engines:
    """Two engines, of which each has two voices. `by` has what was spoken with which."""

    def __init__(self, **how: Any) -> None:
        self.by: list[str] = []
        self.one = Recorded(self.by, name="one", voice_names=("heart", "anna"))
        self.two = Recorded(self.by, name="two", voice_names=("bella", "ben"), **how)
        self.catalog = Catalog([self.one, self.two])


class Recorded(Tones):
    def __init__(self, by: list[str], **how: Any) -> None:
        super().__init__(**how)
        self._by = by

    async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
        self._by.append(f"{self.name}/{utterance.voice} {utterance.speed:g}")
        async with aclosing(super().synthesize(utterance)) as chunks:
            async for chunk in chunks:
                yield chunk


def all_in(arm: Arm, name: str = "e", **how: Any) -> Experiment:
    return Experiment(name, (arm,), **how)


@asynccontextmanager
async def experimenting(*experiments: Experiment, **how: Any) -> AsyncIterator[tuple[Rig, Engines]]:
    engines = how.pop("engines", None) or Engines()
    running = Experiments(experiments)
    speech = how.pop("speech", None) or speech_settings(pace="burst", voice="heart")
    try:
        async with serving(catalog=engines.catalog, speech=speech, experiments=running, **how) as rig:
            yield rig, engines
    finally:
        running.replace(())


async def said(rig: Rig, engines: Engines, text: str = "Hello.", **options: Any) -> str:
    """How a call speaks: "engine/voice speed"."""
    async with rig.bot(**options) as bot:
        await bot.say(text, "a")
        await bot.event("done", turn="a")
    await rig.empty()
    return engines.by[-1]


def counted(arm: str, sum: str) -> float:
    return metrics.value("telephony_tts_experiment_sums_total", experiment="e", arm=arm, sum=sum)


# -------------------------------------------------------------- what an arm changes


@pytest.mark.parametrize(
    ("arm", "options", "speaks"),
    [
        (Arm("a", 100, voice="anna"), {}, "one/anna 1"),
        (Arm("a", 100, voice="two/ben"), {}, "two/ben 1"),
        (Arm("a", 100, voice="anna"), {"voice": "heart"}, "one/heart 1"),
        (Arm("a", 100, voices={"heart": "ben"}), {"voice": "heart"}, "two/ben 1"),
        (Arm("a", 100, voices={"heart": "ben"}), {"voice": "anna"}, "one/anna 1"),
        (Arm("a", 100, voices={"heart": "ben"}), {}, "two/ben 1"),
        (Arm("a", 100, engine="two"), {}, "two/bella 1"),
        (Arm("a", 100, engine="two"), {"lang": "en"}, "two/bella 1"),
        (Arm("a", 100, engine="two"), {"voice": "anna"}, "one/anna 1"),
        (Arm("a", 100, speech={"speed": 1.5}), {}, "one/heart 1.5"),
        (Arm("a", 100, speech={"speed": 1.5}), {"speed": 1.25}, "one/heart 1.25"),
    ],
)
def test_what_a_call_of_an_arm_speaks_with(arm: Arm, options: dict[str, Any], speaks: str) -> None:
    async def main() -> None:
        async with experimenting(all_in(arm)) as (rig, engines):
            assert await said(rig, engines, **options) == speaks

    run(main)


def test_the_bot_is_told_its_arm_and_the_voice_that_follows() -> None:
    async def main() -> None:
        in_anna = all_in(Arm("anna", 100, voice="anna"), "new-voice")
        async with experimenting(in_anna) as (rig, _), rig.bot() as bot:
            assert (bot.ready["experiment"], bot.ready["arm"], bot.ready["voice"]) == ("new-voice", "anna", "anna")
        async with experimenting() as (rig, _), rig.bot() as bot:
            assert "experiment" not in bot.ready and "arm" not in bot.ready and bot.ready["voice"] == "heart"

    run(main)


def test_barge_in_settings_of_an_arm_are_those_of_the_call() -> None:
    async def main() -> None:
        arm = Arm("a", 100, barge_in={"min_speech_ms": 640})
        async with experimenting(all_in(arm)) as (rig, _), rig.bot(call="c"):
            call = rig.server.registry.find("c")
            assert call is not None and call.session.settings.barge_in.min_speech_ms == 640
            assert rig.server.settings.speech.barge_in.min_speech_ms == 200

    run(main)


def test_a_call_keeps_its_arm_when_its_bot_comes_back_and_at_every_door() -> None:
    halves = Experiment("e", (Arm("anna", 50, voice="anna"), Arm("control", 50)))

    async def main() -> None:
        async with experimenting(halves) as (rig, engines):
            for n in range(6):
                call = f"call-{n}"
                expected = "one/anna 1" if halves.arm_of(call).name == "anna" else "one/heart 1"
                for _ in range(2):
                    assert await said(rig, engines, call=call, audio="base64") == expected
                async with connect(rig.url("/media/native"), proxy=None, max_queue=None) as media:
                    await media.send(json.dumps({"type": "start", "call": call, "codec": "ulaw", "rate_hz": 8000}))
                    await until(lambda call=call: rig.server.registry.find(call) is not None, "the call")
                    async with connect(rig.url(f"/calls/{call}/v1/speak"), proxy=None) as deepgram:
                        n_before = len(engines.by)
                        await deepgram.send(json.dumps({"type": "Speak", "text": "Hello there."}))
                        await deepgram.send(json.dumps({"type": "Flush"}))
                        await until(lambda n=n_before: len(engines.by) > n, "it speaks")
                assert engines.by[-1] == expected
            names = {halves.arm_of(f"call-{n}").name for n in range(6)}
            assert names == {"anna", "control"}, "both arms are tried"

    run(main)


def test_http_requests_are_in_no_experiment() -> None:
    async def main() -> None:
        async with experimenting(all_in(Arm("a", 100, voice="anna"))) as (rig, engines):
            assert (await ask_json(rig.port, "/tts/stream", {"text": "Hello."})).status == 200
            assert engines.by == ["one/heart 1"] and counted("a", "calls") == 0

    run(main)


# ------------------------------------------------------------------ for which calls


def test_an_experiment_for_a_key_and_a_key_without_experiments() -> None:
    keys = [Key("acme", digest_of(b"acme")), Key("other", digest_of(b"other")),
            Key("none", digest_of(b"none"), experiments=())]  # fmt: skip
    for_acme = all_in(Arm("a", 100, voice="anna"), keys=("acme", "none"))

    async def main() -> None:
        async with experimenting(for_acme, keys=KeyRing((), keys)) as (rig, engines):
            for name, speaks in (("acme", "anna"), ("other", "heart"), ("none", "heart")):
                headers = {"Authorization": f"Bearer {name}"}
                assert await said(rig, engines, headers=headers) == f"one/{speaks} 1"

    run(main)


def test_the_arm_of_a_call_that_its_media_leg_began_is_that_of_its_bots_key() -> None:
    keys = [Key("acme", digest_of(b"acme")), Key("none", digest_of(b"none"), experiments=()),
            Key("pbx", digest_of(b"pbx"))]  # fmt: skip
    for_acme = all_in(Arm("a", 100, voice="anna", speech={"speed": 1.5}), keys=("acme",))
    for_all = all_in(Arm("b", 100, voice="ben"), "f")

    async def main() -> None:
        async with experimenting(for_acme, for_all, keys=KeyRing((), keys)) as (rig, engines):
            for name, speaks in (("acme", "one/anna 1.5"), ("none", "one/heart 1"), ("pbx", "two/ben 1")):
                how = {"additional_headers": {"Authorization": "Bearer pbx"}, "proxy": None, "max_queue": None}
                async with connect(rig.url("/media/native"), **how) as media:
                    await media.send(json.dumps({"type": "start", "call": name, "codec": "ulaw", "rate_hz": 8000}))
                    await until(lambda name=name: rig.server.registry.find(name) is not None, "the call")
                    async with rig.bot(call=name, headers={"Authorization": f"Bearer {name}"}) as bot:
                        n_before = len(engines.by)
                        await bot.say("Hello.", "a")
                        await until(lambda n=n_before: len(engines.by) > n, "it speaks")
                assert engines.by[-1] == speaks
                await rig.empty()
            assert counted("a", "calls") == 1

    run(main)


def test_a_number_that_comes_behind_the_bot_counts_until_the_first_turn() -> None:
    numbered = all_in(Arm("a", 100, voice="anna", barge_in={"min_speech_ms": 640}), numbers=("+4930*",))
    parameters = {"from": "+493012"}

    async def main() -> None:
        async with experimenting(numbered) as (rig, engines):
            for speaks_first, speaks in ((False, "one/anna 1"), (True, "one/heart 1")):
                call = f"c{speaks_first}"
                async with rig.bot(call=call, hold_off_ms=100) as bot:
                    if speaks_first:
                        await bot.say("Early.", "a")
                        await until(lambda: len(engines.by) == 2, "it is synthesised")
                    start = {"type": "start", "call": call, "codec": "ulaw", "rate_hz": 8000, "parameters": parameters}
                    async with connect(rig.url("/media/native"), proxy=None, max_queue=None) as media:
                        await media.send(json.dumps(start))
                        await bot.event("call")
                        n_before = len(engines.by)
                        await bot.say("Hello.", "b")
                        await until(lambda n=n_before: len(engines.by) > n, "it speaks")
                        found = rig.server.registry.find(call)
                        assert found is not None
                        spurt = found.session.caller._spurt.settings
                        assert spurt.min_speech_ms == (200 if speaks_first else 640)
                        assert spurt.hold_off_ms == 100, "what the bot has asked for stays"
                assert engines.by[-1] == speaks
                await rig.empty()

    run(main)


def test_a_key_that_may_not_use_the_voice_of_an_arm_is_not_in_the_experiment() -> None:
    ring = KeyRing((), [Key("acme", digest_of(b"acme"), voices=("heart",))])

    async def main() -> None:
        async with experimenting(all_in(Arm("a", 100, voice="anna")), keys=ring) as (rig, engines):
            assert await said(rig, engines, headers={"Authorization": "Bearer acme"}) == "one/heart 1"
            assert counted("a", "calls") == 0

    run(main)


def test_an_experiment_for_a_telephone_number() -> None:
    numbered = all_in(Arm("a", 100, voice="anna"), numbers=("+4930*",))

    async def main() -> None:
        async with experimenting(numbered) as (rig, engines):
            german, called, foreign = {"from": "+49 30 1234"}, {"from": "+33", "to": "+49301"}, {"from": "+33"}
            for n, (parameters, voice) in enumerate(((german, "anna"), (called, "anna"), (foreign, "heart"))):
                start = {"type": "start", "call": f"c{n}", "codec": "ulaw", "rate_hz": 8000, "parameters": parameters}
                async with connect(rig.url("/media/native"), proxy=None) as media:
                    await media.send(json.dumps(start))
                    await until(lambda n=n: rig.server.registry.find(f"c{n}") is not None, "the call")
                    async with rig.bot(call=f"c{n}") as bot:
                        assert bot.ready["voice"] == voice
            assert await said(rig, engines) == "one/heart 1", "a call without a number"

    run(main)


# ----------------------------------------------------------------- what is counted


def test_turns_interruptions_and_first_audio_are_counted_when_the_call_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        arm = Arm("anna", 100, voice="anna")
        async with experimenting(all_in(arm), speech=speech_settings()) as (rig, _):
            async with rig.bot(call="c1", audio="binary") as bot:
                await bot.say("Hello there, this is a long sentence.", "a")
                await bot.frames_to(10)
                await bot.send({"type": "clear"})
                await bot.event("cleared")
                await bot.say("Yes.", "b")
                await bot.event("done", turn="b")
                await bot.say("Gone at once.", "c")
                await bot.event("started", turn="c")
                assert counted("anna", "calls") == 0
            await rig.empty()
            assert counted("anna", "calls") == 1
            assert (counted("anna", "turns"), counted("anna", "started")) == (3, 3)
            assert counted("anna", "interruptions") == 1, "a hang-up is no interruption"
            assert counted("anna", "errors") == 0 and counted("anna", "turns_squared") == 9
            assert 0 < counted("anna", "first_audio_ms") < 3000
            histogram = metrics.value(
                "telephony_tts_experiment_first_audio_ms_count", experiment="e", arm="anna"
            )
            assert histogram == 3

    with caplog.at_level("INFO"):
        run(main)
    (audit,) = lines(caplog, "call_audit")
    assert audit["arm"] == "e/anna" and audit["voices"] == ["one/anna"]
    (started,) = lines(caplog, "call_started")
    assert started["arm"] == "e/anna"


def test_an_arm_whose_engine_fails_is_turned_off_and_the_calls_go_on() -> None:
    async def main() -> None:
        engines = Engines(fail_after_chunks=0)
        failing = all_in(Arm("two", 100, engine="two"), stop=StopRules(30, errors=0.2))
        async with experimenting(failing, engines=engines) as (rig, _):
            for _ in range(30):
                async with rig.bot() as bot:
                    assert bot.ready["arm"] == "two"
                    await bot.say("Hello.", "a")
                    assert (await bot.event("error", turn="a"))["code"] == "engine_failed"
            await rig.empty()
            assert await said(rig, engines) == "one/heart 1"
            assert metrics.value("telephony_tts_experiment_arm_on", experiment="e", arm="two") == 0

    run(main)


# --------------------------------------------------------------------- the files


def write(path: Path, text: str) -> None:
    """Replace a file as deployments do: at once."""
    part = path.with_suffix(".part")
    part.write_text(text)
    os.replace(part, path)


@asynccontextmanager
async def served(settings: config.Config) -> AsyncIterator[int]:
    """The whole of `serve`, as the command line runs it. Yields its port."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(settings, lambda served: port.set_result(served.port)))
    await asyncio.wait((port, server), return_when=asyncio.FIRST_COMPLETED)
    try:
        if server.done():
            server.result()
        yield await port
    finally:
        server.cancel()
        await asyncio.wait((server,))


def settings_with(tmp_path: Path, experiments: str, **more: object) -> config.Config:
    file = tmp_path / "experiments.yaml"
    file.write_text(experiments)
    how = {
        "server.port": 0, "engines.default": "fake", "experiments.file": str(file), "experiments.check_s": 0.05,
        "speech.pace": "burst", "limits.max_frame_lateness_ms": 10_000, **more,
    }  # fmt: skip
    return config.load(None, how, {})


@pytest.mark.parametrize(
    ("arm", "told"),
    [
        ("{share: 1, engine: cosyvoice2}", "experiments.e.arms.a.engine: this server has no engine 'cosyvoice2'"),
        ("{share: 1, voice: stranger}", "experiments.e.arms.a.voice: no engine of this server has a voice 'stranger'"),
        ("{share: 1, voices: {tone: stranger}}", "experiments.e.arms.a.voices.tone: no engine of this server has"),
    ],
)
def test_a_server_does_not_start_with_an_arm_that_cannot_speak(tmp_path: Path, arm: str, told: str) -> None:
    settings = settings_with(tmp_path, f"experiments: {{e: {{arms: {{a: {arm}}}}}}}")

    async def main() -> None:
        with pytest.raises((ConfigError, BaseExceptionGroup)) as raised:
            async with served(settings):
                pass
        error: BaseException = raised.value
        while isinstance(error, BaseExceptionGroup):  # of the server's tasks; the command line does the same
            error = error.exceptions[0]
        assert isinstance(error, ConfigError) and told in error.message

    run(main)


def test_a_file_that_changes_counts_for_new_calls_and_a_broken_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def text(speed: float, engine: str = "fake") -> str:
        return f"experiments: {{e: {{arms: {{a: {{share: 100, speech: {{speed: {speed}}}}}}}}}}}"

    settings = settings_with(tmp_path, text(1.5))
    file = tmp_path / "experiments.yaml"
    spoken = "A short sentence."  # 60 ms for each letter

    async def main() -> None:
        async with served(settings) as port:
            url = f"ws://127.0.0.1:{port}/v1/stream?audio=binary"

            async def n_frames() -> int:
                async with greeted(url) as bot:
                    await bot.say(spoken, "a")
                    await bot.event("done", turn="a")
                    return len(bot.frames)

            async def until_frames(are_right: Callable[[int], bool]) -> int:
                async with asyncio.timeout(WITHIN_S):
                    n = await n_frames()
                    while not are_right(n):
                        n = await n_frames()
                return n

            async with greeted(url) as old:
                fast = await n_frames()
                write(file, text(0.5))
                slow = await until_frames(lambda n: n > 2 * fast)
                await old.say(spoken, "a")
                await old.event("done", turn="a")
                assert len(old.frames) == fast, "a call keeps its arm"
            write(file, "experiments: {e: {arms: {a: {share: 100, engine: cosyvoice2}}}}")
            await until(lambda: lines(caplog, "file_kept"), "the log says that the file cannot be used", WITHIN_S)
            assert await n_frames() == slow
            write(file, "")
            plain = await until_frames(lambda n: n != slow)
            assert fast < plain < slow

    run(main)
    (kept,) = lines(caplog, "file_kept")
    assert kept["file"] == "experiments" and "this server has no engine 'cosyvoice2'" in kept["why"]
    with pytest.raises(KeyError):
        metrics.value("telephony_tts_experiment_arm_on", experiment="e", arm="a")
