"""Clients that speak the protocols of other vendors (PROTOCOL.md §11), and how they perform a history."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from typing import Any, ClassVar

from torture import violations as v
from torture.histories import CallHistory, Step
from torture.letters import LETTERS, sentence
from torture.links import Link
from torture.player import Player
from torture.surroundings import CONNECT_S, END_S, NOTICED_S, POLL_S, RESTART_S, Surroundings
from torture.vendor_oracle import VendorOracle

MS = 1_000_000
_MOST_TEXTS = 4
"""ElevenLabs allows five contexts that are open."""
_PLACE_NS = 100 * MS
"""So far the server's place in the audio may be from the client's player, where the clock tells it."""
_RATE_HZ = 8000


class VendorLink(Link):
    """A client of a vendor's protocol: what its messages are. `oracle` is told what they mean."""

    path = ""
    codecs: ClassVar[dict[str, str]] = {}
    """The vendor's name for each codec, which is put into `path`."""
    answers_cancel = True
    tells_text = False
    closes = True
    """Whether the protocol has a message that asks for the close."""

    def __init__(self, around: Surroundings, number: int, codec: str = "ulaw") -> None:
        super().__init__(self.path.replace("CODEC", self.codecs.get(codec, codec)), around)
        self.codec = codec
        self.oracle = VendorOracle(
            around.tally, around.call_stops, call=number, answers_cancel=self.answers_cancel, may_fail=around.may_fail,
            tells_text=self.tells_text, codec=codec,
        )  # fmt: skip
        self.key: str | None = None
        """The text that is being written."""
        self.n_texts = 0

    def write_text(self, letter: str, text: str) -> None:
        if self.key is None:
            self.key = self.next_key()
        self.oracle.wrote(self.key, letter, text)
        self.say(self.key, text)

    def next_key(self) -> str:
        self.n_texts += 1
        return f"c{self.n_texts}"

    def complete(self) -> None:
        if self.key is not None:
            self.oracle.completed(self.key)
            self.end_text(self.key)
            self.key = None

    def say(self, key: str, text: str) -> None:
        raise NotImplementedError

    def end_text(self, key: str) -> None:
        raise NotImplementedError

    def interrupt(self, n: int) -> None:
        """Stop what is spoken. `n` chooses among the ways of the protocol."""
        raise NotImplementedError

    def ask_close(self) -> None:
        raise NotImplementedError

    def ask_aside(self, n: int) -> None:
        """Send something that is no text, or that cannot be used, and gets an answer. `n` chooses."""

    def send_unusable(self, n: int) -> int:
        """Send a message after which the server closes the connection. Returns the close code."""
        raise NotImplementedError

    def live(self) -> list[str]:
        return [key for key, text in self.oracle.texts.items() if not text.is_over and text.cancelled_ns is None]


_DEEPGRAM_CODECS = {"ulaw": "mulaw", "pcm": "linear16"}


class DeepgramLink(VendorLink):
    path = f"/v1/speak?encoding=CODEC&sample_rate={_RATE_HZ}"
    codecs: ClassVar[dict[str, str]] = _DEEPGRAM_CODECS

    def __init__(self, around: Surroundings, number: int, codec: str = "ulaw") -> None:
        super().__init__(around, number, codec)
        self._clears: list[list[str]] = []

    def say(self, key: str, text: str) -> None:
        self.send({"type": "Speak", "text": text})

    def end_text(self, key: str) -> None:
        self.send({"type": "Flush"})

    def interrupt(self, n: int) -> None:
        texts = self.oracle.texts
        before = [key for key, text in texts.items() if not text.is_over]
        for key in before:
            self.oracle.cancelled(key, time.monotonic_ns())
        self._clears.append(before)
        self.key = None
        self.send({"type": "Clear"})

    def ask_aside(self, n: int) -> None:
        """A Flush without text gets its Flushed too."""
        if self.key is None:
            key = self.next_key()
            self.oracle.wrote(key, "", "")
            self.oracle.completed(key)
            self.end_text(key)

    def ask_close(self) -> None:
        self.send({"type": "Close"})

    def send_unusable(self, n: int) -> int:
        return _send_unusable_speak(self, n)

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        match message["type"]:
            case "Flushed":
                texts = self.oracle.texts.items()
                self.oracle.ended(next((k for k, text in texts if text.is_complete and not text.is_over), "none"))
            case "Cleared":
                if not self._clears:
                    self.oracle.wrong(v.ANSWERS, "Cleared without a request")
                    return
                before = self._clears.pop(0)
                self.oracle.silenced([key for key in before if not self.oracle.texts[key].is_over])
            case "Warning":
                self.oracle.failed(str(message))

    def take_audio(self, payload: bytes, at_ns: int) -> None:
        self.oracle.audio(payload, at_ns)


def _send_unusable_speak(link: VendorLink, n: int) -> int:
    """A message that ends a connection to `/v1/speak` or `/v2/speak`, and the code of its close."""
    match n % 4:
        case 0:
            link.send_raw(b"\x00" * 40, is_text=False)
        case 1:
            link.send_raw(b'{"type":"Speak"', is_text=True)
        case 2:
            link.send({"type": "Shout", "text": "aaa"})
            return 1008
        case _:
            link.send({"type": "Speak", "text": 7})
            return 1008
    return 1003


class FluxLink(VendorLink):
    """Deepgram's turn-based protocol. The server names the speeches, in the order of their first text."""

    path = f"/v2/speak?encoding=CODEC&sample_rate={_RATE_HZ}"
    codecs: ClassVar[dict[str, str]] = _DEEPGRAM_CODECS

    def __init__(self, around: Surroundings, number: int, codec: str = "ulaw") -> None:
        super().__init__(around, number, codec)
        self._is_connected = False
        self._keys: dict[str, str] = {}
        """The text of each speech that has begun."""
        self._speaking: str | None = None
        """The id of the speech that has begun and is not over."""
        self._is_flushed = False
        self._n_bytes = 0
        self._interrupts: list[tuple[list[str], int | None, int, float]] = []
        """(the texts that were written before it, its offset in ms, when it was sent, where the player was then in ms)
        of each Interrupt that is not answered yet."""
        self._player = Player(20 * MS)
        self._place_ns = 0
        """How much audio the session has had, on the server's count, which an Interrupt sets to what was heard."""
        self._began_ns = 0
        self._interrupted_ms = -1

    def _heard_ms(self, now_ns: int) -> float:
        """Where the player is in the audio of the session."""
        return max(self._interrupted_ms, self._player.heard_ns("", now_ns) / MS, 0)

    def say(self, key: str, text: str) -> None:
        self.send({"type": "Speak", "text": text})

    def end_text(self, key: str) -> None:
        self.send({"type": "Flush"})

    def interrupt(self, n: int) -> None:
        now_ns = time.monotonic_ns()
        offset_ms = None
        if n % 2 and not self._interrupts:
            heard_ms = int(self._heard_ms(now_ns))
            offset_ms = heard_ms if heard_ms > self._interrupted_ms else None
        before = list(self.oracle.texts)
        for key in self.live():
            self.oracle.cancelled(key, now_ns)
        self._interrupts.append((before, offset_ms, now_ns, self._heard_ms(now_ns)))
        self.oracle.asked("SpeechInterrupted", "NO_ACTIVE_SPEECH")
        self.key = None
        offset = {} if offset_ms is None else {"playback_offset": {"type": "time_ms", "value": offset_ms}}
        self.send({"type": "Interrupt", **offset})

    def ask_aside(self, n: int) -> None:
        if n == 1 and self.key is None:
            self.oracle.asked("NO_ACTIVE_SPEECH to a Flush")
            self.send({"type": "Flush"})
        elif n == 2:
            self.oracle.asked("INVALID_INTERRUPT_OFFSET")
            self.send({"type": "Interrupt", "playback_offset": {"type": "time_ms", "value": "soon"}})
        elif n % 2:
            self.oracle.asked("ConfigureSuccess")
            self.send({"type": "Configure", "speed": 1.0})
        else:
            self.oracle.asked("ConfigureFailure")
            self.send({"type": "Configure", "speed": 9})

    def ask_close(self) -> None:
        self.oracle.asked("SessionMetadata")
        self.send({"type": "Close"})

    def send_unusable(self, n: int) -> int:
        self.oracle.asked("Error")
        return _send_unusable_speak(self, n)

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        kind = message["type"]
        if (kind == "Connected") is self._is_connected:
            self.oracle.wrong(v.ORDER, f"{kind} came {'again' if self._is_connected else 'before Connected'}")
        self._is_connected = True
        match kind:
            case "SpeechStarted":
                self._started(message["speech_id"])
            case "Flushed":
                if message["speech_id"] != self._speaking or self._is_flushed:
                    self.oracle.wrong(v.ORDER, f"Flushed of {message['speech_id']}, and {self._speaking} is spoken")
                self._is_flushed = True
            case "SpeechMetadata":
                self._metadata(message)
            case "SpeechInterrupted":
                self.oracle.answered(kind)
                self._interrupted(message, at_ns)
            case "Warning" if message["code"] == "NO_ACTIVE_SPEECH" and "Flush" in message["description"]:
                self.oracle.answered("NO_ACTIVE_SPEECH to a Flush")
            case "Warning" if message["code"] == "NO_ACTIVE_SPEECH":
                self.oracle.answered(message["code"])
                self._nothing_interrupted(at_ns)
            case "Warning" if message["code"] == "INVALID_INTERRUPT_OFFSET":
                self.oracle.answered(message["code"])
            case "Warning":
                self.oracle.failed(str(message))
            case "Error" | "ConfigureSuccess" | "ConfigureFailure":
                self.oracle.answered(kind)
            case "SessionMetadata":
                self.oracle.answered(kind)
                n_chars = sum(len(text.source) for text in self.oracle.texts.values())
                if message["total_input_character_count"] != n_chars:
                    self.oracle.wrong(v.DONE, f"{n_chars} characters were sent, and told were {message}")

    def _started(self, speech: str) -> None:
        if self._speaking is not None:
            self.oracle.wrong(v.ORDER, f"{speech} begins, and {self._speaking} is not over")
        known = self._keys.values()
        texts = self.oracle.texts.items()
        key = next((key for key, text in texts if not text.is_over and key not in known), "none")
        self._keys[speech] = key
        self.oracle.began(key)
        self._speaking, self._is_flushed, self._n_bytes = speech, False, 0

    def _metadata(self, message: dict[str, Any]) -> None:
        speech = message["speech_id"]
        key = self._keys.get(speech, "none")
        if speech != self._speaking:
            self.oracle.ended(key)
            return
        text = self.oracle.texts[key]
        if not self._is_flushed:
            self.oracle.wrong(v.ORDER, f"SpeechMetadata of {speech} came before its Flushed")
        told_ms, came_ms = message["audio_duration_ms"], self._n_bytes / self.oracle.bytes_per_ms
        if abs(told_ms - came_ms) > 1:
            self.oracle.wrong(v.DONE, f"{key} has {told_ms} ms by its SpeechMetadata, and {came_ms:.0f} ms came")
        if message["input_character_count"] != len(text.source):
            self.oracle.wrong(v.DONE, f"{key} has {len(text.source)} characters, and told were {message}")
        self._speaking = None
        self.oracle.ended(key)

    def _interrupted(self, message: dict[str, Any], at_ns: int) -> None:
        """Nothing of the texts before it comes any more. The place of the listener must be right, and the text left."""
        if not self._interrupts:
            return
        before, offset_ms, sent_ns, heard_ms = self._interrupts.pop(0)
        texts = self.oracle.texts
        self.oracle.silenced([key for key in before if not texts[key].is_over])
        self._speaking = None
        played_ms = message["audio_played_ms"]
        if offset_ms is not None and played_ms != offset_ms:
            self.oracle.wrong(v.HEARD, f"interrupted at {offset_ms} ms by its client, and told is {played_ms}")
        latest_ms = self._heard_ms(at_ns)
        earliest_ms = heard_ms
        error_ms = max(0, earliest_ms - played_ms, played_ms - latest_ms)
        what = f"audio_played_ms {played_ms}, the player played {earliest_ms:.0f} to {latest_ms:.0f} ms"
        self.oracle.suspect(v.HEARD, what, round(error_ms * MS) - _PLACE_NS, min(self._began_ns, sent_ns), at_ns)
        spoken, left = message["text_spoken"], message["text_remaining"]
        sources = [texts[key].source for key in before]
        if not any(
            "".join(sources[at:]) == spoken + left and len(spoken) <= len(source) for at, source in enumerate(sources)
        ):
            self.oracle.wrong(v.HEARD, f"{spoken!r} and {left!r} are not the text from a speech on: {sources[-4:]}")
        self._player = Player(20 * MS)
        self._place_ns = played_ms * MS
        self._interrupted_ms = played_ms

    def _nothing_interrupted(self, at_ns: int) -> None:
        """This is right only if the listener has heard everything."""
        if not self._interrupts:
            return
        before, _, sent_ns, _ = self._interrupts.pop(0)
        if alive := [key for key in before if not self.oracle.texts[key].is_over]:
            self.oracle.wrong(v.ANSWERS, f"NO_ACTIVE_SPEECH, and {', '.join(alive)} had not ended")
        left_ns = self._player.end_ns - at_ns
        what = f"NO_ACTIVE_SPEECH {left_ns / MS:.0f} ms before the listener has heard everything"
        self.oracle.suspect(v.HEARD, what, left_ns - _PLACE_NS, min(self._began_ns, sent_ns), at_ns)

    def take_audio(self, payload: bytes, at_ns: int) -> None:
        if self._speaking is None:
            self.oracle.wrong(v.ORDER, "audio outside of a speech")
            self.oracle.audio(payload, at_ns)
            return
        self._n_bytes += len(payload)
        length_ns = len(payload) * MS // self.oracle.bytes_per_ms
        if self._player.end_ns < at_ns:
            self._began_ns = at_ns
        self._player.take("", self._place_ns, at_ns, length_ns)
        self._place_ns += length_ns
        self.oracle.audio(payload, at_ns, self._keys[self._speaking])


class ElevenLabsLink(VendorLink):
    path = "/v1/text-to-speech/default/multi-stream-input?output_format=CODEC_8000"
    tells_text = True

    def __init__(self, around: Surroundings, number: int, codec: str = "ulaw") -> None:
        super().__init__(around, number, codec)
        self._late: set[str] = set()
        """Contexts that got text after their end. Each is told so once."""

    def say(self, key: str, text: str) -> None:
        self.send({"text": text, "context_id": key})

    def end_text(self, key: str) -> None:
        self.send({"context_id": key, "flush": True})
        self.send({"context_id": key, "close_context": True})

    def interrupt(self, n: int) -> None:
        for key in self.live():
            n_times = 1 if key == self.key else 2
            self.oracle.cancelled(key, time.monotonic_ns())
            for _ in range(n_times):
                self.send({"context_id": key, "close_context": True})
        self.key = None

    def ask_aside(self, n: int) -> None:
        """Text for a context that is over is not spoken, and gets one error."""
        over = [key for key, text in self.oracle.texts.items() if text.is_over]
        if over:
            key = over[-1]
            if key not in self._late:
                self._late.add(key)
                self.oracle.asked(f"context_closed of {key}")
            self.send({"text": f"{'x' * 5}.", "context_id": key})

    def ask_close(self) -> None:
        self.send({"close_socket": True})

    def send_unusable(self, n: int) -> int:
        self.oracle.asked("bad_json" if n % 2 else "bad_field")
        self.send_raw(b"{" if n % 2 else b'{"text":7}', is_text=True)
        return 1008

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        key = self.key_of(message)
        if message.get("audio"):
            self.oracle.audio(base64.b64decode(message["audio"]), at_ns, key)
        if message.get("alignment"):
            self._characters(key, message["alignment"])
        if message.get("isFinal"):
            self.oracle.ended(key)
        if message.get("error"):
            code = message["error"]
            if code == "context_closed":
                self.oracle.answered(f"context_closed of {key}")
            elif code in ("bad_json", "bad_field"):
                self.oracle.answered(code)
            else:
                self.oracle.failed(str(message))

    def key_of(self, message: dict[str, Any]) -> str:
        return str(message.get("contextId"))

    def _characters(self, key: str, told: dict[str, Any]) -> None:
        """Each character comes once and in order, and their times too."""
        starts_ms, lengths_ms = told["charStartTimesMs"], told["charDurationsMs"]
        if not len(told["chars"]) == len(starts_ms) == len(lengths_ms):
            self.oracle.wrong(v.ORDER, f"an alignment of {key} has {len(told['chars'])} characters: {told}")
        if sorted(starts_ms) != starts_ms or min((*starts_ms, *lengths_ms), default=0) < 0:
            self.oracle.wrong(v.ORDER, f"the times of an alignment of {key} go back: {told}")
        self.oracle.told(key, "".join(told["chars"]))


class ElevenLabsStreamLink(ElevenLabsLink):
    """One text on a connection, which the server closes behind it."""

    path = "/v1/text-to-speech/default/stream-input?output_format=CODEC_8000"

    def say(self, key: str, text: str) -> None:
        self.send({"text": text})

    def end_text(self, key: str) -> None:
        self.send({"text": ""})
        self.send({"text": "xxxxx."})  # behind the end nothing is spoken

    def ask_aside(self, n: int) -> None:
        pass

    def key_of(self, message: dict[str, Any]) -> str:
        return "c1"

    @property
    def is_complete(self) -> bool:
        return self.key is None


_CARTESIA_CODECS = {"ulaw": "pcm_mulaw", "alaw": "pcm_alaw", "pcm": "pcm_s16le"}


class CartesiaLink(VendorLink):
    path = "/tts/websocket?cartesia_version=2025-04-16"
    answers_cancel = False
    closes = False

    def __init__(self, around: Surroundings, number: int, codec: str = "ulaw") -> None:
        super().__init__(around, number, codec)
        self._n_wrong = 0

    def say(self, key: str, text: str) -> None:
        sound = {"container": "raw", "encoding": _CARTESIA_CODECS[self.codec], "sample_rate": _RATE_HZ}
        self.send(
            {"model_id": "sonic-3", "voice": {"mode": "id", "id": "f786b574-daa5-4673-aa0c-cbe3e8534c02"},
             "output_format": sound, "context_id": key, "transcript": text, "continue": True}
        )  # fmt: skip

    def end_text(self, key: str) -> None:
        self.send({"context_id": key, "transcript": " ", "continue": False})

    def interrupt(self, n: int) -> None:
        for key in self.live():
            self.oracle.cancelled(key, time.monotonic_ns())
            self.send({"context_id": key, "cancel": True})
        self.key = None

    def ask_aside(self, n: int) -> None:
        """A message that cannot be used ends its context with an error, here one that has no text."""
        self._n_wrong += 1
        key = f"wrong {self._n_wrong}"
        self.oracle.asked(f"an error of {key}")
        self.send({"context_id": key, "transcript": n, "continue": True})

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        key = str(message["context_id"])
        match message["type"]:
            case "chunk":
                self.oracle.audio(base64.b64decode(message["data"]), at_ns, key)
            case "done":
                self.oracle.ended(key)
            case "error" if key.startswith("wrong"):
                self.oracle.answered(f"an error of {key}")
            case "error":
                self.oracle.failed(str(message))


class DashScopeLink(VendorLink):
    """Each text is a task. Its audio follows a message that names it."""

    path = "/api-ws/v1/inference"
    tells_text = True
    closes = False

    def __init__(self, around: Surroundings, number: int, codec: str = "ulaw") -> None:
        super().__init__(around, number, codec)
        self._next: str | None = None
        """The task of the next binary message."""
        self._spoiled: set[str] = set()
        """Tasks that got a message that the server refuses."""

    def _order(self, action: str, key: str, payload: dict[str, Any]) -> None:
        self.send({"header": {"action": action, "task_id": key, "streaming": "duplex"}, "payload": payload})

    def say(self, key: str, text: str) -> None:
        if self.oracle.texts[key].source == text:
            parameters = {"voice": "longxiaochun_v2", "format": self.codec, "sample_rate": _RATE_HZ}
            task = {"task_group": "audio", "task": "tts", "function": "SpeechSynthesizer", "model": "cosyvoice-v2"}
            self._order("run-task", key, {**task, "parameters": parameters, "input": {}})
        self._order("continue-task", key, {"input": {"text": text}})

    def end_text(self, key: str) -> None:
        self._order("finish-task", key, {"input": {}})
        self._order("continue-task", key, {"input": {"text": "xxxxx."}})  # behind the end nothing is spoken

    def interrupt(self, n: int) -> None:
        for key in self.live():
            self.oracle.cancelled(key, time.monotonic_ns())
            self._order("finish-task", key, {"input": {"directive": "cancel"}})
        self.key = None

    def ask_aside(self, n: int) -> None:
        """What cannot be used fails its own task, and no other one."""
        if n == 1:
            self.oracle.asked("a failure of ")
            self.send_raw(b"[]", is_text=True)
        elif n == 2 and self.key is not None:
            self._spoiled.add(self.key)
            self.oracle.cancelled(self.key, time.monotonic_ns())
            self._order("continue-task", self.key, {"input": {"text": 7}})
            self.key = None
        else:
            self.oracle.asked(f"a failure of unknown {n}")
            self._order("continue-task", f"unknown {n}", {"input": {"text": "xxxxx."}})

    def take(self, message: dict[str, Any], at_ns: int) -> None:
        header, payload = message["header"], message["payload"]
        key = header["task_id"]
        match header["event"]:
            case "task-started":
                self.oracle.began(key)
            case "result-generated":
                output = payload["output"]
                if output["type"] == "sentence-synthesis":
                    self._next = key
                else:
                    self.oracle.told(key, output["original_text"])
            case "task-finished":
                text = self.oracle.texts.get(key)
                n_told = payload["usage"]["characters"]
                if text is not None and text.cancelled_ns is None and n_told != len(text.source):
                    self.oracle.wrong(v.DONE, f"{key} has {len(text.source)} characters, and {n_told} are told")
                self.oracle.ended(key)
            case "task-failed" if key in self._spoiled:
                self.oracle.ended(key)
            case "task-failed" if key in self.oracle.texts:
                self.oracle.failed(str(message))
                self.oracle.silenced([key])
            case "task-failed":
                self.oracle.answered(f"a failure of {key}")

    def take_audio(self, payload: bytes, at_ns: int) -> None:
        key, self._next = self._next, None
        if key is None:
            self.oracle.wrong(v.ORDER, "audio, and no message says of which task")
        else:
            self.oracle.audio(payload, at_ns, key)


VENDOR_LINKS: dict[str, type[VendorLink]] = {
    "deepgram": DeepgramLink, "deepgram_flux": FluxLink, "elevenlabs": ElevenLabsLink, "cartesia": CartesiaLink,
    "dashscope": DashScopeLink,
}  # fmt: skip


async def vendor_call(call: CallHistory, number: int, around: Surroundings) -> None:
    """Perform a history through the door of a vendor."""
    if call.door == "elevenlabs_stream":
        await _single_texts(call, number, around)
        return
    link = VENDOR_LINKS[call.door](around, number, call.options["codec"])
    await link.connect_in_time(around.port, CONNECT_S)
    is_torn = call.end == "rst"
    try:
        choose = random.Random(f"{call.seed} words")
        for step in call.steps:
            if step.after_ms:
                await asyncio.sleep(step.after_ms / 1000)
            if link.closed.done():
                break
            await _perform(link, step, choose)
        if call.end == "unusable" and not link.closed.done():
            link.oracle.is_refused = True
            code = link.send_unusable(call.seed)
            await _closes(link, around, code)
            is_torn = link.torn
        elif call.end == "rst":
            link.reset()
        else:
            link.complete()
            if call.end == "close" and link.closes and not link.closed.done():
                link.ask_close()
                await _closes(link, around, 1000)
                is_torn = link.torn
            else:
                await _until_over(link)
                is_torn = link.closed.done() and (around.may_break or link.missed_a_ping())
                if link.closed.done() and not is_torn:
                    link.oracle.wrong(v.CLOSE, f"closed with {link.close_code}, expected an open connection")
                link.leave()
                await link.gone(NOTICED_S)
    finally:
        link.close()
        link.oracle.finish(is_torn=is_torn)


async def _single_texts(call: CallHistory, number: int, around: Surroundings) -> None:
    """A client with a connection for each text. The end of the connection is its only way to interrupt."""
    choose = random.Random(f"{call.seed} words")
    link: ElevenLabsStreamLink | None = None
    try:
        for step in call.steps:
            if step.after_ms:
                await asyncio.sleep(step.after_ms / 1000)
            match step.do:
                case "say" | "text":
                    if link is not None and link.is_complete:
                        await _conclude(link, around)
                        link = None
                    if link is None:
                        link = ElevenLabsStreamLink(around, number, call.options["codec"])
                        await link.connect_in_time(around.port, CONNECT_S)
                    await _perform(link, step, choose)
                case "clear" | "clear_turn" | "clear_storm" if link is not None:
                    await _leave(link, around, reset=step.n % 2 == 0)
                    link = None
                case _ if link is not None:
                    await _perform(link, step, choose)
        if link is not None and call.end == "rst":
            await _leave(link, around, reset=True)
        elif link is not None and call.end == "unusable" and not link.is_complete:
            link.oracle.is_refused = True
            await _closes(link, around, link.send_unusable(call.seed))
            link.oracle.finish(is_torn=link.torn)
        elif link is not None:
            link.complete()
            await _conclude(link, around)
        link = None
    finally:
        if link is not None:
            link.close()
            link.oracle.finish(is_torn=True)


async def _conclude(link: VendorLink, around: Surroundings) -> None:
    """The server closes by itself behind the text."""
    try:
        await _closes(link, around, 1000)
    finally:
        link.close()
        link.oracle.finish(is_torn=link.torn)


async def _leave(link: VendorLink, around: Surroundings, *, reset: bool) -> None:
    """The client ends the connection in the middle of its text."""
    around.tally.counts["clears"] += 1
    (link.reset if reset else link.leave)()
    is_gone = await link.gone(NOTICED_S)
    if not is_gone and not around.may_break:
        link.oracle.wrong(v.CLOSE, "the server keeps the socket open")
    link.close()
    link.oracle.finish(is_torn=True)


async def _perform(link: VendorLink, step: Step, choose: random.Random) -> None:
    match step.do:
        case "say" | "text":
            _write(link, step, choose)
            if step.do == "say":
                link.complete()
        case "last":
            link.complete()
        case "clear" | "clear_turn":
            link.interrupt(step.n)
        case "clear_storm":
            for n in range(step.n):
                link.interrupt(n)
        case "mark" | "ping":
            link.ask_aside(step.n)
        case "stuck":
            await link.stop_reading(40 * step.n)


def _write(link: VendorLink, step: Step, choose: random.Random) -> None:
    if link.key is None:
        busy = {text.letter for text in link.oracle.texts.values() if not text.is_over}
        free = [letter for letter in LETTERS if letter not in busy]
        if len(busy) >= _MOST_TEXTS:
            return
        # The one that was used longest ago, so that late audio is not taken for that of a new text.
        letter = min(free, key=lambda each: _last_use(link, each))
    else:
        letter = link.oracle.texts[link.key].letter
    link.write_text(letter, sentence(choose, letter, step.n) + " ")


def _last_use(link: VendorLink, letter: str) -> int:
    return max((n for n, text in enumerate(link.oracle.texts.values()) if text.letter == letter), default=-1)


async def _until_over(link: VendorLink) -> None:
    end_s = time.monotonic() + link.oracle.owed_s() + END_S
    while (link.oracle.owed or link.oracle.n_unanswered) and time.monotonic() < end_s:
        if await link.gone(POLL_S):
            return


async def _closes(link: VendorLink, around: Surroundings, code: int) -> None:
    """See `expect_close`."""
    within_s = link.oracle.owed_s() + END_S + (RESTART_S if around.may_fail else 0)
    if what := await link.expect_close(code, within_s):
        link.oracle.wrong(v.CLOSE, what)
