"""A recorded call on a real Asterisk: the two channels are what the telephone said and what it received."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from asterisk_peer import Asterisk
from compare import compare
from conversation import CALLER, TEXT, encoded, hear_out, loud_at_s, settle
from phones import calling
from rtp_end import RtpExchange
from speaking_server import RATE_HZ, speaking_server, spoken
from test_audiosocket import bridge
from test_pause_on_pbx import stretches

from telephony_tts.audio.g711 import Pcm
from telephony_tts.recording.replay import read_recording
from telephony_tts.recording.settings import RecordingSettings

pytestmark = [pytest.mark.peer, pytest.mark.timed]

ANSWER = "of course, i will ask them."
TRANSIT_S = 0.25
"""Asterisk's buffers and ours, both ways."""


def first_loud(pcm: Pcm) -> float:
    """When the first loud sample is, in s."""
    return int(np.argmax(np.abs(pcm.astype(int)) > 300)) / RATE_HZ


@pytest.mark.parametrize("extension", ["wsjson-ulaw", "audiosocket"])
def test_the_channels_are_those_of_the_telephone(
    pbx: Asterisk, media: RtpExchange, extension: str, tmp_path: Path
) -> None:
    with speaking_server(recordings=RecordingSettings(folder=str(tmp_path), calls="all")) as server:
        pbx.configure(MEDIA_URI=server.media_uri)
        with bridge(server.port) as audiosocket:
            pbx.configure(AUDIOSOCKET=audiosocket.address)
            with calling(media, pbx.sip_port, extension) as (phone,):
                phone.wait_answered()
                with server.bot(server.only_call()) as bot:
                    bot.event("call")
                    settle(phone)
                    bot.say(TEXT, "a")
                    bot.event("started")
                    time.sleep(0.3)
                    said_s = time.monotonic()
                    phone.rtp.say(encoded(phone.rtp.codec, spoken(CALLER)))
                    time.sleep(0.7)
                    bot.send(type="clear")
                    cleared = bot.event("cleared")
                    phone.wait_said()
                    time.sleep(0.5)
                    bot.say(ANSWER, "b")
                    bot.event("done")
                    hear_out(phone)
                    heard = phone.rtp.heard()
                    heard_s = loud_at_s(phone)[0]
                    phone.hang_up()
                    phone.wait_ended()
                    bot.event("hangup")
            pbx.wait_for_no_channel()
    (wav,) = tmp_path.glob("*.wav")
    replay = read_recording(wav)
    left, right = replay.samples[:, 0], replay.samples[:, 1]

    # Right: the turn up to the interruption, and then the answer, as far apart as the telephone heard them.
    (begin, end), (again, _) = stretches(right)
    assert abs((end - begin) / 8 - cleared["heard_ms"]) <= 40, (begin, end, cleared)
    compare(right[:end], spoken(TEXT)[: end - begin - 320]).require(correlation=0.999)
    compare(right[again - 800 :], spoken(ANSWER)).require(correlation=0.999)
    (there, _), (there_again, _) = stretches(heard.pcm)
    assert abs((again - begin) - (there_again - there)) < 0.06 * RATE_HZ

    # Left: all that the telephone said, as far behind our first word as the telephone was.
    assert compare(left, spoken(CALLER)).correlation > 0.99
    assert abs((first_loud(left) - first_loud(right)) - (said_s - heard_s)) < TRANSIT_S
