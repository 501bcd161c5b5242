"""Frames to a peer: urgent ones go at once and take the others along, in order; the others wait for a moment."""

from __future__ import annotations

import asyncio

from telephony_tts.engines.remote.outgoing import BATCH_BYTES, SOON_S, OutgoingFrames


def test_an_urgent_frame_takes_those_before_it_along() -> None:
    async def main() -> None:
        out = OutgoingFrames()
        out.push(b"a", soon=True)
        out.push(b"b")
        out.push(b"c", soon=True)
        assert await out.next_message() == b"abc" and out.n_bytes == 0
        waiting = asyncio.create_task(out.next_message())
        out.push(b"d", soon=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done(), "it waits for others"
        out.push(b"e")
        assert await waiting == b"de"

    asyncio.run(main())


def test_a_frame_that_is_not_urgent_goes_soon() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        out = OutgoingFrames()
        for frame in (b"a", b"b"):
            out.push(frame, soon=True)
        begun_s = loop.time()
        assert await asyncio.wait_for(out.next_message(), 5) == b"ab"
        assert loop.time() - begun_s >= SOON_S * 0.9

    asyncio.run(main())


def test_what_waits_at_the_close_is_sent_and_then_the_end_comes() -> None:
    async def main() -> None:
        out = OutgoingFrames()
        out.push(b"a", soon=True)
        out.close()
        out.push(b"late")
        assert [await out.next_message(), await out.next_message()] == [b"a", None]

    asyncio.run(main())


def test_a_message_has_a_limit_and_the_rest_follows_at_once() -> None:
    async def main() -> None:
        out = OutgoingFrames()
        for _ in range(3):
            out.push(bytes(BATCH_BYTES // 2 + 1), soon=True)
        out.flush()
        assert len(await out.next_message() or b"") == 2 * (BATCH_BYTES // 2 + 1)
        assert len(await out.next_message() or b"") == BATCH_BYTES // 2 + 1

    asyncio.run(main())
