"""A bot on the native protocol: streams tokens, and learns what was heard when the caller interrupts.

    make run                                  # the server, in another terminal
    python examples/bot_native.py             # speaks on its own socket; with --call CA1 it joins a carrier's leg
"""

import argparse
import asyncio
import json

from websockets.asyncio.client import connect

REPLIES = ["Hello, this is your bank. ", "Your balance is forty two dollars and fifty cents today. Anything else?"]


async def tokens(reply):
    """Where the language model of a real bot comes in."""
    for word in reply.split(" "):
        await asyncio.sleep(0.02)
        yield word + " "


async def main(url):
    async with connect(url) as server:
        print(await server.recv())  # ready
        for turn, reply in enumerate(REPLIES):
            async for token in tokens(reply):
                await server.send(json.dumps({"type": "text", "turn": f"t{turn}", "text": token}))
            await server.send(json.dumps({"type": "end", "turn": f"t{turn}"}))
        async for message in server:
            event = json.loads(message)
            print(event["type"], event.get("turn", ""), event.get("text") or event.get("heard_text") or "")
            if event["type"] == "sentence" and event["turn"] == "t1":
                await server.send('{"type":"clear"}')  # what a bot sends when its caller speaks
            if event["type"] in ("cleared", "hangup") or (event["type"] == "done" and event["turn"] == "t1"):
                return


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--server", default="ws://127.0.0.1:8080", help="the server's address")
    options.add_argument("--call", help="join the call of a carrier's media leg; otherwise no audio is sent")
    given = options.parse_args()
    asyncio.run(main(f"{given.server}/v1/stream?" + (f"call={given.call}" if given.call else "audio=none")))
