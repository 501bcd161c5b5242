"""The response to a request that joined a call: silence of the right length, in pieces, and one end."""

from __future__ import annotations

import asyncio

import pytest

from telephony_tts.http_api.call_bot import TurnResponse
from telephony_tts.runtime.errors import TelephonyTTSError
from telephony_tts.transport.stand_in import FRAMES_AT_ONCE, StandIn
from telephony_tts.wire.messages import Frame


async def heard(response: TurnResponse) -> list[bytes]:
    return [piece async for piece in response.audio()]


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("ptime_ms", [10, 20, 30])
def test_no_sample_is_lost_between_frames(rate_hz: int, ptime_ms: int) -> None:
    async def main() -> None:
        response = TurnResponse(rate_hz)
        hearing = asyncio.create_task(heard(response))
        for _ in range(101):
            response.add_silence(ptime_ms)
            await asyncio.sleep(0)
        response.end()
        pieces = await hearing
        assert sum(map(len, pieces)) == 2 * (101 * ptime_ms * rate_hz // 1000)
        assert not any(b"".join(pieces))

    asyncio.run(main())


def test_what_a_client_did_not_read_for_long_comes_in_pieces() -> None:
    async def main() -> None:
        response = TurnResponse(48_000)
        assert response.is_silent
        response.add_silence(600_000)
        response.end()
        response.add_silence(1_000)
        pieces = await heard(response)
        assert sum(map(len, pieces)) == 2 * 48 * 600_000 and max(map(len, pieces)) == 9_600
        assert not response.is_silent

    asyncio.run(main())


def test_the_first_end_counts_and_an_error_comes_behind_the_silence() -> None:
    async def main() -> None:
        response = TurnResponse(8_000)
        response.add_silence(20)
        response.end(TelephonyTTSError("the engine failed"))
        response.end()
        n_bytes = 0
        with pytest.raises(TelephonyTTSError, match="the engine failed"):
            async for piece in response.audio():
                n_bytes += len(piece)
        assert n_bytes == 320
        response = TurnResponse(8_000)
        response.end()
        response.end(TelephonyTTSError("too late"))
        assert await heard(response) == []

    asyncio.run(main())


def test_silence_stands_for_the_frames_of_each_turn() -> None:
    sent: list[tuple[str, int]] = []
    stand_in = StandIn(lambda turn, n_frames: sent.append((turn, n_frames)))
    for turn, n_frames in (("a", FRAMES_AT_ONCE + 2), ("", 3), ("b", 1)):
        for _ in range(n_frames):
            stand_in.frame(Frame(b"", 0, turn))
    assert sent == [("a", FRAMES_AT_ONCE), ("a", 2)], "a fade has no turn"
    stand_in.drop("a")
    stand_in.flush()
    assert sent[2:] == [("b", 1)]
    stand_in.frame(Frame(b"", 0, "b"))
    stand_in.drop("b")
    stand_in.flush()
    assert sent[3:] == []
