"""Speech above the telephone band reaches every carrier whose platform has 16 kHz or more, and no other one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from binary_carriers import JambonzPeer, VonagePeer, platform
from carrier_peers import CarrierPeer, ExotelPeer, PlivoPeer, SignalWirePeer, TelnyxPeer
from rig import Bot, Tones, decoded, run, serving
from twilio_peer import dialling

from telephony_tts.audio.g711 import Pcm
from telephony_tts.engines.api import Timing, Utterance

pytestmark = pytest.mark.timed

TONE_HZ = 5500
PCM_16K: dict[str, Any] = {"codec": "pcm", "rate_hz": 16_000}


class HighTone(Tones):
    """Every sentence is half a second of one tone above the telephone band, at 24 kHz."""

    def _render(self, utterance: Utterance) -> tuple[Pcm, list[Timing]]:
        wave = 8000 * np.sin(2 * np.pi * TONE_HZ / 24_000 * np.arange(12_000))
        return np.rint(wave).astype(np.int16), []


def amplitude(pcm: Pcm, rate_hz: int) -> float:
    """The amplitude of the tone over half a second."""
    wave = np.exp(-2j * np.pi * TONE_HZ / rate_hz * np.arange(len(pcm)))
    return float(4 * abs(pcm.astype(float) @ wave) / rate_hz)


async def say(bot: Bot) -> None:
    await bot.event("call")
    await bot.say("A tone.", "a")
    await bot.event("done")


@pytest.mark.parametrize(
    ("peer_kind", "query", "how"),
    [
        (TelnyxPeer, "", PCM_16K),
        (TelnyxPeer, "?codec=l16&rate=16000", {"spoken": ("pcm", 16_000)}),
        (PlivoPeer, "", PCM_16K),
        (SignalWirePeer, "", PCM_16K),
        (SignalWirePeer, "", {"codec": "pcm", "rate_hz": 24_000}),
        (ExotelPeer, "?sample-rate=16000", PCM_16K),
    ],
)
def test_a_tone_above_the_telephone_band_reaches_the_carrier(
    peer_kind: type[CarrierPeer], query: str, how: dict[str, Any]
) -> None:
    async def main() -> None:
        async with (
            serving(HighTone()) as rig,
            rig.bot(call="CA1") as bot,
            dialling(peer_kind, rig.url(f"/media/{peer_kind.name}{query}"), "CA1", **how) as peer,
        ):
            await peer.start()
            await say(bot)
            heard = decoded(peer.played, "pcm")
            await bot.send({"type": "close"})
            await peer.gone()
        assert amplitude(heard, peer.spoken_hz) == pytest.approx(8000, rel=0.1)

    run(main)


@pytest.mark.parametrize("rate_hz", [16_000, 24_000])
def test_a_tone_above_the_telephone_band_reaches_vonage(rate_hz: int) -> None:
    async def main() -> None:
        async with (
            serving(HighTone()) as rig,
            platform(VonagePeer, rig.url("/media/vonage")) as peer,
            rig.bot(call="c1") as bot,
        ):
            await peer.connected(rate_hz, call="c1")
            await say(bot)
            await bot.send({"type": "close"})
            await peer.gone()
        assert amplitude(decoded([bytes(peer.heard)], "pcm"), rate_hz) == pytest.approx(8000, rel=0.1)

    run(main)


@pytest.mark.parametrize("rate_hz", [16_000, 24_000])
def test_a_tone_above_the_telephone_band_reaches_jambonz(rate_hz: int) -> None:
    async def main() -> None:
        async with (
            serving(HighTone()) as rig,
            platform(JambonzPeer, rig.url("/media/jambonz", rate=rate_hz), subprotocol="audio.jambonz.org") as peer,
            rig.bot(call="c1") as bot,
        ):
            await peer.begin(rate_hz, sampleRate=16_000)
            await say(bot)
            await bot.send({"type": "close"})
            await peer.gone()
        assert amplitude(decoded([bytes(peer.heard)], "pcm"), rate_hz) == pytest.approx(8000, rel=0.1)

    run(main)


def test_at_8_khz_the_tone_is_left_out_and_not_folded() -> None:
    async def main() -> None:
        async with (
            serving(HighTone()) as rig,
            rig.bot(call="CA1") as bot,
            dialling(TelnyxPeer, rig.url("/media/telnyx"), "CA1", codec="pcm", rate_hz=8000) as peer,
        ):
            await peer.start()
            await say(bot)
            heard = decoded(peer.played, "pcm")
            await bot.send({"type": "close"})
            await peer.gone()
        # Where the tone begins and ends it has other frequencies, for a moment.
        inner = heard[len(heard) // 4 : len(heard) * 3 // 4]
        assert len(inner) > 1600 and np.abs(inner.astype(int)).max() < 20

    run(main)
