"""livekit-agents' speech, spoken by this server: only `base_url` differs from an agent that uses Deepgram.

    pip install livekit-agents livekit-plugins-deepgram
    make run                                  # the server, in another terminal
    python examples/bot_livekit.py            # writes the speech to speech.wav

With --call CA1 the speech goes to the carrier's leg of that call, and the agent gets silence of the same length.
"""

import argparse
import asyncio
import wave

from livekit.agents import utils
from livekit.plugins import deepgram

REPLY = "Hello, this is your bank. Your balance is forty two dollars."


async def main(server, key, call, path):
    base_url = f"{server}/calls/{call}" if call else server
    async with utils.http_context.open():
        speech = deepgram.TTS(api_key=key, base_url=f"{base_url}/v1/speak", sample_rate=8000)  # <- the one line
        with wave.open(path, "wb") as file:
            file.setnchannels(1), file.setsampwidth(2), file.setframerate(8000)
            async with speech.stream() as stream:
                for word in REPLY.split():
                    stream.push_text(word + " ")  # as a language model writes it
                stream.end_input()
                async for heard in stream:
                    file.writeframes(bytes(heard.frame.data))
        await speech.aclose()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--server", default="http://127.0.0.1:8080")
    options.add_argument("--key", default="none", help="a token of the server, if it has any")
    options.add_argument("--call", help="join the call of a carrier's media leg")
    options.add_argument("--out", default="speech.wav")
    given = options.parse_args()
    asyncio.run(main(given.server, given.key, given.call, given.out))
