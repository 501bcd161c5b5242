"""Long messages at the doors of vendors: the vendor's limit passes in any script, and 1 MB gets the vendor's error."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from neighbour import neighbour
from rig import Rig, Tones, run, serving, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from telephony_tts.doors.cartesia import codec as cartesia
from telephony_tts.doors.dashscope import codec as dashscope
from telephony_tts.doors.deepgram import codec as deepgram
from telephony_tts.doors.deepgram import flux as deepgram_flux
from telephony_tts.doors.elevenlabs import codec as elevenlabs
from telephony_tts.doors.jambonz import tts_codec as jambonz_tts
from telephony_tts.transport.vendor_leg import MAX_MESSAGE_BYTES

pytestmark = pytest.mark.timed

CHARS = {"ascii": "a", "cyrillic": "я", "han": "好", "emoji": "\N{GRINNING FACE}"}


@dataclass(frozen=True)
class Door:
    """`most` characters are the vendor's limit for one message. `error` and `code` answer more of them."""

    path: str
    most: int
    error: str
    code: int | None

    def messages(self, text: str) -> list[dict[str, Any]]:
        match self.path.split("?")[0]:
            case "/v1/speak" | "/v2/speak":
                return [{"type": "Speak", "text": text}]
            case "/tts/websocket":
                form = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000}
                voice = {"mode": "id", "id": "tone"}
                context = {"context_id": "c", "output_format": form, "voice": voice}
                return [{**context, "transcript": text, "continue": True}]
            case "/api-ws/v1/inference":
                header = {"action": "run-task", "task_id": "1" * 32, "streaming": "duplex"}
                begin = {"header": header, "payload": {"parameters": {"format": "pcm"}, "input": {}}}
                more = {"header": {**header, "action": "continue-task"}, "payload": {"input": {"text": text}}}
                return [begin, more]
            case "/jambonz/tts":
                return [{"type": "stream", "text": text}]
        return [{"text": text, "context_id": "c"}]


DOORS = [
    Door("/v1/speak", deepgram.MAX_TEXT_CHARS, "", 1009),
    Door("/v2/speak", deepgram_flux.MAX_TEXT_CHARS, '"BIG-0000"', 1009),
    Door("/v1/text-to-speech/tone/multi-stream-input?output_format=pcm_8000", elevenlabs.MAX_TEXT_CHARS,
         '"text_too_long"', 1008),
    Door("/tts/websocket", cartesia.MAX_TEXT_CHARS, '"text_too_long"', None),
    Door("/api-ws/v1/inference", dashscope.MAX_MESSAGE_CHARS, "task-failed", None),
    Door("/jambonz/tts", jambonz_tts.MAX_TEXT_CHARS, '"error"', None),
]  # fmt: skip
each_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.path.split("?")[0])


async def closes(socket: ClientConnection, heard: list[str]) -> int:
    """The close code. `heard` gets what comes before it."""
    try:
        while True:
            heard.append(str(await socket.recv()))
    except ConnectionClosed:
        assert socket.close_code is not None
        return socket.close_code


def chars_in(rig: Rig) -> int:
    """How much text the sockets' calls have."""
    calls = [call for call in rig.server.registry.calls() if call.session.settings.separate_turns]
    return sum(turn.n_source_chars for call in calls for turn in call.session.turns)


@each_door
@pytest.mark.parametrize("kind", CHARS)
def test_a_text_of_the_vendors_limit_passes_in_every_script(door: Door, kind: str) -> None:
    n = door.most // 2 if kind == "han" and "api-ws" in door.path else door.most  # there a Chinese character is two
    text = (CHARS[kind] * 9 + " ") * (n // 10)

    async def main() -> None:
        async with serving(Tones(speed=1.0)) as rig:
            async with connect(rig.url(door.path), proxy=None, max_queue=None, max_size=None) as socket:
                for message in door.messages(text):
                    await socket.send(json.dumps(message))
                await until(lambda: chars_in(rig) >= n - 1, f"the text; {chars_in(rig)} of {n}")
            await until(lambda: not len(rig.server.registry), "the end of the call")

    run(main)


@each_door
def test_one_megabyte_gets_the_vendors_error_and_disturbs_no_other_call(door: Door) -> None:
    async def main() -> None:
        async with serving() as rig, neighbour(rig):
            async with connect(rig.url(door.path), proxy=None, max_queue=None) as socket:
                for message in door.messages("x" * 1_000_000):
                    await socket.send(json.dumps(message))
                heard: list[str] = []
                if door.code is not None:
                    assert await closes(socket, heard) == door.code
                    assert not door.error or door.error in heard[-1]
                else:
                    while door.error not in (heard or [""])[-1]:
                        heard.append(str(await socket.recv()))
            assert chars_in(rig) == 0
            async with connect(rig.url(door.path), proxy=None, max_queue=None) as socket:
                await socket.send("x" * (MAX_MESSAGE_BYTES + 1))
                assert await closes(socket, []) == 1009

    run(main)
