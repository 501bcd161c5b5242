"""DashScope's protocol on a real server: a plain WebSocket client whose audio is compared with what the engine gave."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest
from rig import Rig, Tones, correlation, decoded, rendering, run, serving, speech_settings, until
from twilio_peer import calling
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from telephony_tts.doors.dashscope.door import DOOR
from telephony_tts.engines.api import Chunk, Utterance
from telephony_tts.engines.fake.engine import render
from telephony_tts.session.settings import CallLimits
from telephony_tts.transport.door import Doors

pytestmark = pytest.mark.timed

PATH = "/api-ws/v1/inference"
LONG = "I will now read you every single item of your long order, one after the other, until you stop me."
PCM = {"format": "pcm", "sample_rate": 8000}


class Client:
    """Keeps what comes by task: `audio` and `events`. `order` has (task, what) as it came."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.audio: dict[str, bytes] = defaultdict(bytes)
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.order: list[tuple[str, str]] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        speaker = ""
        try:
            async for data in self.socket:
                if isinstance(data, bytes):
                    self.audio[speaker] += data
                    self.order.append((speaker, "audio"))
                    speaker = "audio that was not announced"
                    continue
                message = json.loads(data)
                task, event = message["header"]["task_id"], message["header"]["event"]
                if event == "result-generated":
                    speaker = task
                self.events[task].append(message)
                self.order.append((task, event))
        except ConnectionClosed:
            pass

    async def send(self, action: str, task: str, inputs: dict[str, Any] | None = None, **parameters: Any) -> None:
        header = {"action": action, "task_id": task, "streaming": "duplex"}
        payload = {"model": "cosyvoice-v2", "parameters": parameters, "input": inputs or {}}
        await self.socket.send(json.dumps({"header": header, "payload": payload}))

    async def run(self, task: str, **parameters: Any) -> None:
        await self.send("run-task", task, **{**PCM, **parameters})

    async def say(self, task: str, *texts: str) -> None:
        for text in texts:
            await self.send("continue-task", task, {"text": text})

    async def finish(self, task: str) -> dict[str, Any]:
        await self.send("finish-task", task)
        return await self.ended(task)

    async def cancel(self, task: str) -> dict[str, Any]:
        await self.send("finish-task", task, {"directive": "cancel"})
        return await self.ended(task)

    async def ended(self, task: str) -> dict[str, Any]:
        """The payload of task-finished, else the header of task-failed."""
        await until(lambda: self.last(task) in ("task-finished", "task-failed"), f"the end of {task}")
        message = self.events[task][-1]
        found: dict[str, Any] = message["payload" if self.last(task) == "task-finished" else "header"]
        return found

    def last(self, task: str) -> str:
        return self.events[task][-1]["header"]["event"] if self.events[task] else ""

    async def whole(self, task: str, *texts: str, **parameters: Any) -> dict[str, Any]:
        """A task from its beginning to its end."""
        await self.run(task, **parameters)
        await self.say(task, *texts)
        return await self.finish(task)


@asynccontextmanager
async def client(rig: Rig, path: str = PATH, key: str = "bearer secret", **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": key}
    async with connect(rig.url(path, **options), compression=None, additional_headers=headers, proxy=None) as socket:
        here = Client(socket)
        yield here
        await socket.close()
        await here._reader


def assert_speaks(audio: bytes, sentences: list[str], rate_hz: int = 8000, codec: str = "pcm") -> None:
    """The audio is that of the sentences, no less and no more."""
    wanted, got = rendering(sentences, rate_hz), decoded([audio], codec)
    assert correlation(got, wanted) > 0.99
    assert abs(len(got) - len(wanted)) <= rate_hz // 25, "a frame or two of rest"


def likeness(heard: Any, wanted: Any) -> float:
    """The correlation of the two at the place where they agree best."""
    n = len(heard) + len(wanted)
    products = np.fft.irfft(np.fft.rfft(heard, n) * np.conj(np.fft.rfft(wanted, n)), n)
    return float(products.max() / np.linalg.norm(heard) / np.linalg.norm(wanted))


# ------------------------------------------------------------------------ what is heard


@pytest.mark.parametrize("path", [PATH, PATH + "/"])
def test_a_task_speaks_its_text(path: str) -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as rig, client(rig, path) as bot:
            await bot.run("a", voice="longxiaochun_v2")
            await bot.say("a", "Your par", "cel is he", "re. Anything", " else?")
            assert (await bot.finish("a"))["usage"] == {"characters": 35}
            assert_speaks(bot.audio["a"], ["Your parcel is here.", "Anything else?"])
            events = bot.events["a"]
            assert events[0]["header"]["event"] == "task-started"
            outputs = [each["payload"]["output"] for each in events[1:-1]]
            ends = [(each["sentence"]["index"], each["original_text"]) for each in outputs if "original_text" in each]
            assert ends == [(0, "Your parcel is here."), (1, "Anything else?")]

    run(main)


def test_chinese_in_pieces() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            end = await bot.whole("a", "你", "好，今天", "天气很好。", "再见。", language_hints=["zh"])
            assert end["usage"] == {"characters": 23}
            assert isinstance(rig.engine, Tones)
            assert_speaks(bot.audio["a"], rig.engine.spoken)
            assert "".join(rig.engine.spoken) == "你好，今天天气很好。再见。"

    run(main)


@pytest.mark.parametrize(
    ("form", "rate_hz"),
    [("pcm", 16000), ("pcm", 22050), ("pcm", 44100), ("wav", 24000), ("wav", 48000), ("ulaw", 8000), ("alaw", 8000)],
)
def test_formats_of_samples(form: str, rate_hz: int) -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.whole("a", "Hello there. Bye.", format=form, sample_rate=rate_hz)
            audio = bot.audio["a"]
            if form == "wav":
                assert audio[:4] == b"RIFF" and int.from_bytes(audio[24:28], "little") == rate_hz
                assert audio.count(b"RIFF") == 1
                audio = audio[44:]
            assert_speaks(audio, ["Hello there.", "Bye."], rate_hz, form if form.endswith("law") else "pcm")

    run(main)


@pytest.mark.parametrize(
    ("form", "rate_hz", "heard_hz"), [("Default", 0, 22_050), ("mp3", 24_000, 24_000), ("opus", 16_000, 48_000)]
)
def test_formats_that_are_encoded(form: str, rate_hz: int, heard_hz: int) -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            await bot.whole("a", "Hello there. Bye.", format=form, sample_rate=rate_hz)
            with av.open(io.BytesIO(bot.audio["a"])) as file:
                stream = file.streams.audio[0]
                assert stream.rate == heard_hz
                parts = [frame.to_ndarray()[0].astype(float) for frame in file.decode(stream)]
            heard, wanted = np.concatenate(parts), rendering(["Hello there.", "Bye."], heard_hz).astype(float)
            assert 0 <= len(heard) - len(wanted) < heard_hz // 5, "the end of the file is there too"
            assert likeness(heard, wanted) > 0.9, "the encoder begins with a little silence"
            await bot.whole("b", "Again.")
            assert_speaks(bot.audio["b"], ["Again."])

    run(main)


def test_the_settings_of_a_task_are_for_this_task_only() -> None:
    said: list[Utterance] = []

    class Listening(Tones):
        async def synthesize(self, utterance: Utterance) -> AsyncGenerator[Chunk, None]:
            said.append(utterance)
            async with aclosing(super().synthesize(utterance)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def main() -> None:
        engine = Listening(voice_names=("tone", "bell"))
        async with serving(engine, vendors_voice_names={"longcheng_v2": "bell"}) as rig, client(rig) as bot:
            await bot.whole("a", "One.", voice="longcheng_v2", rate=2, seed=7, instruction="Softly.", pitch=2)
            await bot.whole("b", "Two.", voice="longxiaochun_v2")
            await bot.whole("c", "Three.", voice="bell", text_type="PlainText", enable_ssml=True)
            assert_speaks(bot.audio["b"], ["Two."])
            fast = decoded([bot.audio["a"]], "pcm")
            assert abs(len(fast) - len(render("One.", sample_rate_hz=8000, speed=2.0))) <= 320

    run(main)
    assert [(u.voice, u.speed, u.seed, u.instruct) for u in said] == [
        ("bell", 2.0, 7, "Softly."), ("tone", 1.0, 0, None), ("bell", 1.0, 0, None)
    ]  # fmt: skip


def test_a_flush_speaks_what_has_no_end_yet() -> None:
    async def main() -> None:
        async with serving(speech=speech_settings(text_timeout_ms=60_000)) as rig, client(rig) as bot:
            await bot.run("a")
            await bot.say("a", "Please wait")
            await asyncio.sleep(0.2)
            assert not bot.audio["a"]
            await bot.send("continue-task", "a", {"flush": True})
            await until(lambda: len(bot.audio["a"]) >= 11 * 60 * 16, "the text")
            n_flushed = len(bot.audio["a"])
            await bot.say("a", " a moment.")
            await bot.finish("a")
            assert_speaks(bot.audio["a"][:n_flushed], ["Please wait"])
            rest = decoded([bot.audio["a"][n_flushed:]], "pcm").astype(float)
            assert likeness(rest, rendering(["a moment."]).astype(float)) > 0.99

    run(main)


# -------------------------------------------------------------------------- several tasks


def test_tasks_follow_each_other_and_change_the_format() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            tasks = [("One.", "pcm", 8000), ("Two.", "ulaw", 8000), ("Three.", "pcm", 48000), ("Four.", "pcm", 8000)]
            for text, form, rate_hz in tasks:
                await bot.whole(text, text, format=form, sample_rate=rate_hz)
            for text, codec, rate_hz in tasks:
                assert_speaks(bot.audio[text], [text], rate_hz, codec)
            assert isinstance(rig.engine, Tones)
            assert len(rig.engine.spoken) == 4, "a change of format must not speak an earlier task again"

    run(main)


def test_tasks_at_the_same_time() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            for task in "ab":
                await bot.run(task)
            for n in ("one", "two", "three"):
                await bot.say("a", f"Alpha {n}. ")
                await bot.say("b", f"Beta {n}. ")
                await asyncio.sleep(0.05)
            await asyncio.gather(bot.finish("b"), bot.finish("a"))
            assert_speaks(bot.audio["a"], ["Alpha one.", "Alpha two.", "Alpha three."])
            assert_speaks(bot.audio["b"], ["Beta one.", "Beta two.", "Beta three."])
            assert set(bot.audio) == {"a", "b"}

    run(main)


def test_a_cancel_is_answered_at_once_and_the_next_task_has_only_its_own_audio() -> None:
    async def main() -> None:
        async with serving(Tones(speed=4.0)) as rig, client(rig) as bot:
            await bot.run("a")
            await bot.say("a", LONG)
            await until(lambda: len(bot.audio["a"]) > 8000, "half a second of speech")
            begun_s = time.monotonic()
            await bot.cancel("a")
            assert time.monotonic() - begun_s < 0.5
            end = await bot.whole("b", "Something else.")
            assert_speaks(bot.audio["b"], ["Something else."])
            assert end["usage"] == {"characters": 15}
            assert len(bot.audio["a"]) < 2 * len(render(LONG, sample_rate_hz=8000)) * 0.8
            at = bot.order.index(("a", "task-finished"))
            assert {task for task, _ in bot.order[at + 1 :]} == {"b"}, "nothing of the cancelled task follows its end"
            await bot.say("a", "Late text.")
            await bot.whole("c", "And now.")
            assert_speaks(bot.audio["c"], ["And now."])

    run(main)


def test_a_cancel_leaves_a_task_at_the_same_time_alone() -> None:
    async def main() -> None:
        async with serving(Tones(speed=4.0)) as rig, client(rig) as bot:
            await bot.run("a")
            await bot.run("b")
            await bot.say("a", LONG)
            await bot.say("b", "Beta is here.")
            await until(lambda: len(bot.audio["a"]) > 4000, "some speech")
            await bot.cancel("a")
            await bot.finish("b")
            assert_speaks(bot.audio["b"], ["Beta is here."])

    run(main)


# ---------------------------------------------------------------------------- mistakes


def test_a_wrong_key_is_refused() -> None:
    async def main() -> None:
        async with serving(tokens=("secret",)) as rig:
            for key in ("Bearer wrong", "secret", ""):
                with pytest.raises(InvalidStatus) as refused:
                    async with client(rig, key=key):
                        pass
                assert refused.value.response.status_code == 401
                assert json.loads(refused.value.response.body or b"")["code"] == "InvalidApiKey"
            async with client(rig, key="Bearer secret") as bot:
                await bot.whole("a", "Hello.")
                assert_speaks(bot.audio["a"], ["Hello."])

    run(main)


def test_mistakes_fail_the_task_and_the_socket_goes_on() -> None:
    async def main() -> None:
        async with serving(Tones(languages=("en", "zh", "de"))) as rig, client(rig) as bot:
            mistakes: list[dict[str, Any]] = [
                {"voice": "stranger"}, {"text_type": "SSML"}, {"format": "flac"}, {"sample_rate": 1}, {"rate": 9}
            ]  # fmt: skip
            for n, parameters in enumerate(mistakes):
                await bot.run(f"t{n}", **parameters)
                header = await bot.ended(f"t{n}")
                assert header["error_code"] == "InvalidParameter"
                assert next(iter(parameters)) in header["error_message"]
            await bot.socket.send("nonsense")
            assert (await bot.ended(""))["error_code"] == "InvalidParameter"
            await bot.run("long")
            await bot.say("long", "x" * 20_001)
            assert (await bot.ended("long"))["error_code"] == "InvalidParameter"
            await bot.whole("good", "Hello.")
            assert_speaks(bot.audio["good"], ["Hello."])

    run(main)


def test_an_engine_that_fails_fails_the_task() -> None:
    async def main() -> None:
        async with serving(Tones(fail_after_chunks=1)) as rig, client(rig) as bot:
            assert (await bot.whole("a", "Hello there."))["error_code"] == "InternalError"

    run(main)


@pytest.mark.parametrize(("ours_s", "vendors_s"), [(1, 23), (30, 1), (0, 1)])
def test_a_task_that_gets_nothing_for_too_long_fails_after_its_audio(ours_s: int, vendors_s: int) -> None:
    (vendor,) = DOOR.bots
    ways = Doors([replace(DOOR, bots=(replace(vendor, turn_idle_s=vendors_s),))])
    speech = speech_settings(limits=CallLimits(turn_idle_s=ours_s))

    async def main() -> None:
        async with serving(speech=speech, doors=ways) as rig, client(rig) as bot:
            await bot.run("a")
            await bot.say("a", "Hello.")
            await bot.run("b")
            header = await bot.ended("b")
            assert header["error_code"] == "CLIENT_ERROR" and "timeout" in header["error_message"]
            await bot.finish("a")
            assert_speaks(bot.audio["a"], ["Hello."])

    run(main)


def test_very_many_tasks_are_refused_and_the_first_ones_go_on() -> None:
    async def main() -> None:
        async with serving() as rig, client(rig) as bot:
            n_tasks = 2_000
            for n in range(n_tasks):
                await bot.run(f"t{n}")
            await bot.ended(f"t{n_tasks - 1}")
            failed = {task for task in bot.events if bot.last(task) == "task-failed"}
            codes = {bot.events[task][-1]["header"]["error_code"] for task in failed}
            assert codes == {"Throttling"} and n_tasks - len(failed) == 64
            await bot.say("t0", "Hello.")
            await bot.finish("t0")
            assert_speaks(bot.audio["t0"], ["Hello."])

    run(main)


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind() -> None:
    """`serving` checks it."""

    async def main() -> None:
        async with serving(Tones(speed=2.0)) as rig, client(rig) as bot:
            await bot.run("a", format="mp3")
            await bot.say("a", LONG)
            await until(lambda: bot.audio["a"], "speech")

    run(main)


# ------------------------------------------------------------------- in the call of a carrier


@pytest.mark.parametrize("path", [PATH + "?call=CA1", "/calls/CA1" + PATH])
def test_a_bot_that_joins_a_call_speaks_to_the_caller(path: str) -> None:
    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as peer:
            await peer.start()
            await until(lambda: len(rig.server.registry), "the call")
            async with client(rig, path) as bot:
                await bot.run("a", format="mp3", sample_rate=22050)
                await bot.say("a", "Hello ", "caller.")
                await bot.finish("a")
                heard = len(peer.played)
                assert_speaks(b"".join(peer.payloads), ["Hello caller."], 8000, "ulaw")
                assert heard * 20 > len("Hello caller.") * 60 - 300, "the task has ended when it was heard"
                assert bot.audio, "the client gets silence of the same length"
                await bot.run("b")
                await bot.say("b", LONG)
                await until(lambda: len(peer.played) > heard + 20, "speech")
                begun_s = time.monotonic()
                await bot.cancel("b")
                assert time.monotonic() - begun_s < 0.5
                await until(lambda: peer.n_clears, "the clear")
                n_before = len(peer.payloads)
                await bot.whole("c", "Yes?")
                assert_speaks(b"".join(peer.payloads[n_before:]), ["Yes?"], 8000, "ulaw")

    run(main)


def test_a_hang_up_ends_the_tasks_of_the_bot() -> None:
    """A client of the SDK waits for the end of its task, and a closed socket does not release it."""

    async def main() -> None:
        async with serving() as rig, calling(rig.url("/media/twilio"), "CA1") as peer:
            await peer.start()
            await until(lambda: len(rig.server.registry), "the call")
            async with client(rig, call="CA1") as bot:
                await bot.run("a")
                await bot.say("a", LONG)
                await until(lambda: len(peer.played) > 40, "speech")
                await peer.hang_up()
                output = (await bot.ended("a"))["output"]
                assert (output["type"], output["reason"]) == ("interrupted", "hangup")
                assert LONG.startswith(output["heard_text"]) and 5 < len(output["heard_text"]) < 60
                await bot.socket.wait_closed()
                assert bot.socket.close_code == 1000

    run(main)
