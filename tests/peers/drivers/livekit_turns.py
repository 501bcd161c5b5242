"""One of livekit-agents' text-to-speech plugins, used as the framework's agents use it.

`--service` deepgram, flux (deepgram.TTSv2), elevenlabs, cartesia or openai. The last does not stream its input: the
framework splits the text into sentences for it, and so does this driver.

Steps: `push:TEXT` (word by word into the open stream, or a new one), `flush`, `end` (end_input), `wait:finished`,
`hear:MS`, `interrupt` (the stream's aclose, which is what an agent does), `say:TEXT` (synthesize: one HTTP request),
`close` (the plugin's aclose).
Events: `audio` with its `stream`, counted from 1; `words` with `stream`, `text`, `start_s` and `end_s`; `finished` with
the `stream` that ended by itself; `error` with the plugin's error; `interrupted` when aclose returned.
"""

from __future__ import annotations

import asyncio
from typing import Any

from livekit.agents import APIConnectOptions, tokenize, tts, utils
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from reporting import Ear, arguments, report, split, words

OPTIONS = arguments(service="deepgram", voice="", rate=8000, encoding="", retries=0, timeout=5.0)
CONNECTING = APIConnectOptions(max_retry=OPTIONS.retries, timeout=OPTIONS.timeout)


def plugin() -> Any:
    """The plugin, pointed at the server by its base URL."""
    named = {"voice": OPTIONS.voice} if OPTIONS.voice else {}
    model = {"model": OPTIONS.voice} if OPTIONS.voice else {}
    if OPTIONS.service == "deepgram":
        from livekit.plugins import deepgram

        made = deepgram.TTS(base_url=f"{OPTIONS.url}/v1/speak", api_key=OPTIONS.key, sample_rate=OPTIONS.rate, **model)
    elif OPTIONS.service == "flux":
        from livekit.plugins import deepgram

        made = deepgram.TTSv2(
            base_url=f"{OPTIONS.url}/v2/speak", api_key=OPTIONS.key, sample_rate=OPTIONS.rate, **model
        )
    elif OPTIONS.service == "elevenlabs":
        from livekit.plugins import elevenlabs

        made = elevenlabs.TTS(
            base_url=f"{OPTIONS.url}/v1", api_key=OPTIONS.key, voice_id=OPTIONS.voice or "tone",
            **({"encoding": OPTIONS.encoding} if OPTIONS.encoding else {}),
        )  # fmt: skip
    elif OPTIONS.service == "cartesia":
        from livekit.plugins import cartesia

        made = cartesia.TTS(base_url=OPTIONS.url, api_key=OPTIONS.key, sample_rate=OPTIONS.rate, **named)
    else:
        from livekit.plugins import openai

        whole = openai.TTS(
            base_url=f"{OPTIONS.url}/v1", api_key=OPTIONS.key, **named,
            **({"response_format": OPTIONS.encoding} if OPTIONS.encoding else {}),
        )  # fmt: skip
        made = tts.StreamAdapter(tts=whole, sentence_tokenizer=tokenize.blingfire.SentenceTokenizer())
    return made


class PluginStreams:
    """The open stream of the plugin and a task that listens to it."""

    def __init__(self, speech: Any) -> None:
        self._speech = speech
        self._stream: Any = None
        self._listening: asyncio.Task[None] | None = None
        self._count = 0
        self._aborted = 0

    def opened(self) -> Any:
        """The open stream, or a new one."""
        if self._stream is None:
            self._count += 1
            self._stream = self._speech.stream(conn_options=CONNECTING)
            self._listening = asyncio.create_task(self._listen(self._stream, self._count))
        return self._stream

    async def say(self, text: str) -> None:
        self._count += 1
        await self._listen(self._speech.synthesize(text, conn_options=CONNECTING), self._count)

    async def closed(self) -> None:
        """Close the stream, whether or not it has spoken to its end."""
        stream, self._stream = self._stream, None
        self._aborted = self._count
        if stream is not None:
            await stream.aclose()
        if self._listening is not None:
            await asyncio.wait([self._listening])

    def forget(self) -> None:
        """Leave a stream that has ended, so that the next text opens another."""
        self._stream = None

    async def _listen(self, stream: Any, number: int) -> None:
        try:
            async for heard in stream:
                EAR.audio(bytes(heard.frame.data), stream=number, rate=heard.frame.sample_rate)
                for word in heard.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, ()):
                    report("words", stream=number, text=str(word), start_s=word.start_time, end_s=word.end_time)
            if number != self._aborted:
                EAR.message("finished", stream=number)
        except Exception as failure:  # whatever the plugin raises is what its user sees
            EAR.message("error", stream=number, error=type(failure).__name__, message=str(failure))


async def take_steps(speech: Any, streams: PluginStreams) -> None:
    for step in OPTIONS.steps:
        kind, text = split(step)
        if EAR.waits(step):
            await EAR.wait(step)
            if step == "wait:finished":
                streams.forget()
        elif kind == "push":
            for word in words(text):
                streams.opened().push_text(word)
                await asyncio.sleep(0)
        elif kind == "flush":
            streams.opened().flush()
        elif kind == "end":
            streams.opened().end_input()
        elif kind == "interrupt":
            report("sent", message="aclose", heard_ms=round(EAR.heard_ms))
            EAR.forget_audio()
            await streams.closed()
            report("interrupted")
        elif kind == "say":
            await asyncio.wait_for(streams.say(text), OPTIONS.within)
        elif kind == "close":
            await speech.aclose()
            report("closed")


async def drive() -> None:
    async with utils.http_context.open():
        speech = plugin()
        await take_steps(speech, PluginStreams(speech))


EAR = Ear(
    {"openai": 24_000, "elevenlabs": int((*(OPTIONS.encoding or "mp3_22050_32").split("_"), "0")[1])}.get(
        OPTIONS.service, OPTIONS.rate
    )
    * 2
    / 1000,
    OPTIONS.within,
)
asyncio.run(drive())
