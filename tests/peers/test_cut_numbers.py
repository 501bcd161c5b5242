"""A number that a language model writes in two tokens, and a sentence that ends with a number, through each client."""

from __future__ import annotations

import asyncio

import pytest
from environment import bots_python, drive
from rig import Tones, run, serving

pytestmark = [pytest.mark.peer, pytest.mark.slow]

ONE_NUMBER = ["It ", "costs ", "$42", ".50", " today", "."]
TWO_NUMBERS = ["It ", "costs ", "$42", ".", " 50", " people", " came", "."]

CLIENTS: dict[str, tuple[list[str], str, list[str]]] = {
    "deepgram SDK": (["deepgram_v1.py"], "speak:", ["flush", "wait:Flushed", "close"]),
    "deepgram SDK, Flux": (["deepgram_v2.py"], "speak:", ["flush", "wait:SpeechMetadata", "close"]),
    "elevenlabs SDK": (["elevenlabs_stream.py"], "", []),
    "cartesia SDK": (["cartesia_contexts.py"], "push:one:", ["end:one", "wait:done"]),
    "dashscope SDK": (["dashscope_tasks.py"], "speak:", ["complete"]),
    **{
        f"{name}, {service}": ([script, "--service", service], step, ends)
        for name, script, step, ends in (
            ("pipecat", "pipecat_turns.py", "turn:", ["wait:stopped"]),
            ("livekit", "livekit_turns.py", "push:", ["end", "wait:finished", "close"]),
        )
        for service in ("deepgram", "flux", "elevenlabs", "cartesia")
    },
}


@pytest.fixture(autouse=True)
def installed() -> None:
    """Otherwise the installation would count as a client's time."""
    bots_python()


def spoken(client: str, pieces: list[str]) -> str:
    """What the engine was asked for."""
    engine = Tones()
    script, step, ends = CLIENTS[client]
    # Frameworks take the text of a turn in one step.
    steps = [f"{step}{'|'.join(pieces)}"] if step in ("turn:", "push:") else [f"{step}{piece}" for piece in pieces]

    async def main() -> None:
        async with serving(engine, tokens=("secret",)) as rig:
            await asyncio.to_thread(drive, script[0], f"http://127.0.0.1:{rig.port}", *script[1:], *steps, *ends)

    run(main)
    return " ".join(engine.spoken)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_number_in_two_tokens_is_one(client: str) -> None:
    assert spoken(client, ONE_NUMBER) == "It costs forty two dollars and fifty cents today."


@pytest.mark.parametrize("client", CLIENTS)
def test_a_sentence_that_ends_with_a_number_ends_there(client: str) -> None:
    assert spoken(client, TWO_NUMBERS) == "It costs forty two dollars. fifty people came."
