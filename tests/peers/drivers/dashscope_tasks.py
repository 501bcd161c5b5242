"""The dashscope SDK's CosyVoice synthesizer, on /api-ws/v1/inference.

Steps: `speak:TEXT` (streaming_call), `flush`, `complete`, `cancel`, `call:TEXT`, and `next` for a new task. With
`--pool` true all tasks use one socket of the SDK's object pool; otherwise each has its own.
Events: `open`, `audio`, `event` (the JSON of result-generated), `complete`, `error`, `closed`, all with their `task`;
`returned` when `call` or `complete` returned, `raised` with the error that the SDK raised.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import dashscope
from dashscope.audio.tts_v2 import AudioFormat, ResultCallback, SpeechSynthesizer, SpeechSynthesizerObjectPool
from reporting import Ear, arguments, report, split, websocket_url

OPTIONS = arguments(model="cosyvoice-v2", voice="tone", format="PCM_8000HZ_MONO_16BIT", pool="", query="")
FORMAT = AudioFormat[OPTIONS.format]
EAR = Ear(max(FORMAT.sample_rate, 8000) * 2 / 1000, OPTIONS.within)
URL = f"{websocket_url(OPTIONS.url)}/api-ws/v1/inference" + (f"?{OPTIONS.query}" if OPTIONS.query else "")


class TaskListener(ResultCallback):
    """Reports what the SDK calls back with, for one task."""

    def __init__(self, task: int) -> None:
        self._task = task
        self.closed = threading.Event()

    def on_open(self) -> None:
        EAR.message("open", task=self._task)

    def on_data(self, data: bytes) -> None:
        EAR.audio(bytes(data), task=self._task)

    def on_event(self, message: str) -> None:
        EAR.message("event", task=self._task, message=json.loads(message))

    def on_complete(self) -> None:
        EAR.message("complete", task=self._task)

    def on_error(self, message: Any) -> None:
        EAR.message("error", task=self._task, message=json.loads(message))

    def on_close(self) -> None:
        EAR.message("closed", task=self._task)
        self.closed.set()


LISTENERS: list[TaskListener] = []


def synthesizer(task: int, pool: Any) -> Any:
    listener = TaskListener(task)
    LISTENERS.append(listener)
    if pool is not None:
        return pool.borrow_synthesizer(model=OPTIONS.model, voice=OPTIONS.voice, format=FORMAT, callback=listener)
    return SpeechSynthesizer(model=OPTIONS.model, voice=OPTIONS.voice, format=FORMAT, callback=listener, url=URL)


def wait_for_close(pool: Any) -> None:
    """The SDK closes the socket of a task in a thread, which the end of this program would stop."""
    if pool is None:
        LISTENERS[-1].closed.wait(5)


def drive() -> None:
    dashscope.api_key = OPTIONS.key
    pool = SpeechSynthesizerObjectPool(max_size=1, url=URL) if OPTIONS.pool else None
    task = 1
    speech = synthesizer(task, pool)
    try:
        for step in OPTIONS.steps:
            kind, text = split(step)
            if EAR.waits(step):
                EAR.wait_in_thread(step)
            elif kind == "speak":
                speech.streaming_call(text)
            elif kind == "flush":
                speech.streaming_flush()
            elif kind == "complete":
                speech.streaming_complete(int(OPTIONS.within * 1000))
                report("returned", task=task, after="complete")
                wait_for_close(pool)
            elif kind == "cancel":
                EAR.forget_audio()
                report("sent", message="cancel", task=task)
                speech.streaming_cancel(int(OPTIONS.within * 1000))
                report("returned", task=task, after="cancel")
                wait_for_close(pool)
            elif kind == "call":
                # Without a callback `call` returns the whole audio.
                whole = SpeechSynthesizer(model=OPTIONS.model, voice=OPTIONS.voice, format=FORMAT, url=URL)
                audio = whole.call(text, timeout_millis=int(OPTIONS.within * 1000))
                report("returned", task=task, after="call", audio=audio)
            elif kind == "next":
                if pool is not None:
                    pool.return_synthesizer(speech)
                task += 1
                speech = synthesizer(task, pool)
    finally:
        if pool is not None:
            speech.close()
            pool.shutdown()


try:
    drive()
except Exception as failure:  # whatever the SDK raises is what its user sees
    report("raised", error=type(failure).__name__, message=str(failure))
