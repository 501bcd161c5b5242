"""A real Triton with a decoupled model that has the inputs and the output of CosyVoice's recipe, and speaks tones.

Usage: triton_model.py GRPC_PORT HTTP_PORT METRICS_PORT. It prints "ready", and ends at the end of its stdin. The text
says what it does: "fail" raises, "empty" gives no audio; otherwise it gives the text's tones, with `PAUSE_S` seconds
between two pieces. Every request is noted in the file REQUESTS of the environment, as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from telephony_tts.engines.fake.engine import SAMPLE_RATE_HZ, render

PIECE = SAMPLE_RATE_HZ // 10
PAUSE_S = 0.01
MODEL = "cosyvoice2"


async def speak(requests: list[Any]) -> AsyncIterator[list[dict[str, Any]]]:
    (request,) = requests
    text = bytes(request["target_text"].flat[0]).decode()
    noted = {"text": text, "inputs": sorted(request)}
    if "reference_wav" in request:
        wave = request["reference_wav"]
        noted |= {
            "shape": list(wave.shape),
            "n_samples": int(request["reference_wav_len"].flat[0]),
            "peak": float(np.abs(wave).max()),
            "transcript": bytes(request["reference_text"].flat[0]).decode(),
        }
    note(noted)
    if text == "fail":
        raise RuntimeError("the language model failed")
    wave = render("" if text == "empty" else text).astype(np.float32) / np.float32(32767)
    for start in range(0, len(wave), PIECE):
        yield [{"waveform": wave[None, start : start + PIECE]}]
        await asyncio.sleep(PAUSE_S)


def note(request: dict[str, Any]) -> None:
    with open(os.environ["REQUESTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(request) + "\n")


def main() -> None:
    grpc_port, http_port, metrics_port = map(int, sys.argv[1:])
    config = TritonConfig(
        grpc_port=grpc_port, http_port=http_port, metrics_port=metrics_port, grpc_address="127.0.0.1",
        http_address="127.0.0.1",
    )  # fmt: skip
    with Triton(config=config) as triton:
        triton.bind(
            model_name=MODEL,
            infer_func=speak,
            inputs=[
                Tensor(name="reference_wav", dtype=np.float32, shape=(-1,), optional=True),
                Tensor(name="reference_wav_len", dtype=np.int32, shape=(1,), optional=True),
                Tensor(name="reference_text", dtype=bytes, shape=(1,), optional=True),
                Tensor(name="target_text", dtype=bytes, shape=(1,)),
            ],
            outputs=[Tensor(name="waveform", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(decoupled=True, max_batch_size=1),
        )
        triton.run()
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
