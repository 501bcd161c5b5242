"""The test phones against the real Asterisk: audio, digits and hang-ups arrive, from either side."""

from __future__ import annotations

import signal
import socket

import numpy as np
import pytest
from asterisk_peer import Asterisk
from baresip_phone import baresip, free_sip_port
from compare import compare
from peer_process import PeerFailed, n_children, wait_until
from phones import calling, waiting
from rtp_end import FRAME_BYTES, RtpExchange

from telephony_tts.audio.g711 import Pcm, encode_alaw, encode_ulaw

pytestmark = [pytest.mark.peer, pytest.mark.timed]
N_SAMPLES = 8_000


def speech(seed: int = 1, n: int = N_SAMPLES) -> Pcm:
    """Noise with the spectral slope of speech, different for each seed. No two frames are alike."""
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(n))
    hz = np.fft.rfftfreq(n, 1 / 8000)
    sound = np.fft.irfft(spectrum * (hz > 80) * np.minimum(1.0, (np.maximum(hz, 1.0) / 500) ** -1.5), n)
    said: Pcm = np.clip(np.rint(2500 * sound / np.sqrt(np.mean(sound**2))), -32_768, 32_767).astype(np.int16)
    return said


@pytest.mark.parametrize("codec", ["ulaw", "alaw"])
def test_the_echo_equals_the_sent_audio(pbx: Asterisk, media: RtpExchange, codec: str) -> None:
    said = speech()
    codes = encode_ulaw(said) if codec == "ulaw" else encode_alaw(said)
    with calling(media, pbx.sip_port, "echo", codec=codec) as (phone,):
        phone.wait_answered()
        phone.rtp.say(codes)
        phone.wait_said()
        phone.wait_heard(N_SAMPLES // FRAME_BYTES + 10)
        wait_until(lambda: codes in phone.rtp.heard().codes, "the echo has come, byte for byte", 5)
        heard = phone.rtp.heard()
        phone.hang_up()
        phone.wait_ended()
    compare(heard.pcm, said).require(correlation=0.999, snr_db=30)
    assert (heard.holes, heard.n_lost, heard.n_duplicates, heard.n_reordered) == ([], 0, 0, 0)
    assert heard.gaps_ms.max() < 60, "no frame came late"
    assert np.median(heard.gaps_ms) == pytest.approx(20, abs=1)
    assert phone.answered_ns is not None and phone.rtp.sent_ns[0] > phone.answered_ns
    assert np.median(np.diff(phone.rtp.sent_ns)) == pytest.approx(20e6, abs=1e6)


def test_a_called_phone_gets_its_echo_too(pbx: Asterisk, media: RtpExchange) -> None:
    codes = encode_ulaw(speech(2))
    with waiting(media, pbx.sip_port, ring_ms=100) as ((phone,), port):
        pbx.cli(f"channel originate PJSIP/phone/sip:any@127.0.0.1:{port} extension echo@phones")
        phone.wait_answered()
        phone.rtp.say(codes)
        wait_until(lambda: phone.rtp.packets and codes in phone.rtp.heard().codes, "the echo has come", 5)
        heard = phone.rtp.heard()
        phone.hang_up()
        phone.wait_ended()
    assert (heard.holes, heard.n_lost) == ([], 0)
    pbx.wait_for_no_channel()


def test_two_phones_with_different_codecs_talk_to_each_other(pbx: Asterisk, media: RtpExchange) -> None:
    """mu-law on one leg and A-law on the other, so Asterisk has to decode: no byte is the same."""
    with (
        waiting(media, pbx.sip_port, codec="alaw") as ((callee,), port),
        calling(media, pbx.sip_port, f"dial-{port}") as (caller,),
    ):
        caller.wait_answered()
        callee.wait_answered()
        caller.rtp.say(encode_ulaw(speech(3)))
        callee.rtp.say(encode_alaw(speech(4)))
        for phone in (caller, callee):
            phone.wait_said()
            phone.wait_heard(N_SAMPLES // FRAME_BYTES + 10)
        compare(callee.rtp.heard().pcm, speech(3)).require()
        compare(caller.rtp.heard().pcm, speech(4)).require()
        callee.hang_up()
        caller.wait_ended()
        callee.wait_ended()


def test_five_calls_at_once_get_only_their_own_echo(pbx: Asterisk, media: RtpExchange) -> None:
    said = [speech(seed) for seed in range(10, 15)]
    with calling(media, pbx.sip_port, *["echo"] * 5) as phones:
        for phone, words in zip(phones, said, strict=True):
            phone.wait_answered()
            phone.rtp.say(encode_ulaw(words))
        assert len(pbx.channels()) == 5
        for phone, words in zip(phones, said, strict=True):
            phone.wait_said()
            phone.wait_heard(len(phone.rtp.audio_packets()) + 10)
            compare(phone.rtp.heard().pcm, words).require()
            assert encode_ulaw(words) in phone.rtp.heard().codes
        phones[2].hang_up()
        phones[2].wait_ended()
        wait_until(lambda: len(pbx.channels()) == 4, "one less", 5)
        assert all(phone.ended_ns is None for phone in phones if phone is not phones[2]), "the others go on"
    pbx.wait_for_no_channel()


def test_digits_go_both_ways(pbx: Asterisk, media: RtpExchange) -> None:
    with calling(media, pbx.sip_port, "digits", "senddigits-05*#") as (sender, receiver):
        sender.wait_answered()
        sender.rtp.dial("90*D1#")
        sender.wait_ended()
        assert pbx.variable("LAST_DIGITS") == "90*D1"
        wait_until(lambda: len(receiver.rtp.digits()) >= 4, "four digits", 5)
        assert receiver.rtp.digits() == "05*#"


def test_either_side_hangs_up_and_nothing_is_left(pbx: Asterisk, media: RtpExchange) -> None:
    with calling(media, pbx.sip_port, "echo", "hangup-300", "echo") as (by_phone, by_dialplan, by_operator):
        for phone in (by_phone, by_dialplan, by_operator):
            phone.wait_answered()
        by_dialplan.wait_ended()
        assert by_dialplan.answered_ns is not None and by_dialplan.ended_ns is not None
        assert 250e6 < by_dialplan.ended_ns - by_dialplan.answered_ns < 900e6
        by_phone.hang_up()
        by_phone.wait_ended()
        assert len(pbx.channels()) == 1
        pbx.cli("channel request hangup all")
        by_operator.wait_ended()
        pbx.wait_for_no_channel()


def test_a_refused_call_has_a_reason(pbx: Asterisk, media: RtpExchange) -> None:
    with calling(media, pbx.sip_port, "absent-here") as (phone,):
        with pytest.raises(PeerFailed, match="404"):
            phone.wait_answered()
        phone.wait_ended()
        assert phone.refused == 404
        with pytest.raises(PeerFailed, match="was not answered"):
            phone.hang_up()


def test_leaving_the_body_early_ends_its_calls(pbx: Asterisk, media: RtpExchange) -> None:
    """Phones that are talking, ringing, or not called at all."""
    n_before = n_children()
    with (
        waiting(media, pbx.sip_port),
        waiting(media, pbx.sip_port, ring_ms=30_000) as (_, port),
        calling(media, pbx.sip_port, "echo", f"dial-{port}") as (talking, _),
    ):
        talking.wait_answered()
        wait_until(lambda: len(pbx.channels()) == 3, "one rings", 5)
    pbx.wait_for_no_channel()
    assert n_children() == n_before


def test_a_dead_sipp_is_reported_for_its_phone(pbx: Asterisk, media: RtpExchange) -> None:
    with calling(media, pbx.sip_port, "hangup-1500") as (phone,):
        phone.wait_answered()
        phone.process.signal(signal.SIGKILL)
        with pytest.raises(PeerFailed, match="sipp gave the call up"):
            phone.wait_ended()
    pbx.wait_for_no_channel()


def test_a_silent_phone_hears_asterisks_tone(pbx: Asterisk, media: RtpExchange) -> None:
    """Asterisk plays a tone. Nothing is sent that could come back as an echo."""
    with calling(media, pbx.sip_port, "tone", silent=True) as (phone,):
        phone.wait_answered()
        phone.wait_heard(30)
        heard = phone.rtp.heard().pcm[:4000].astype(float)
    spectrum = np.abs(np.fft.rfft(heard))
    assert np.argmax(spectrum) * 8000 / len(heard) == pytest.approx(1004, abs=4)


@pytest.mark.parametrize("incoming", [False, True], ids=["calls", "is called"])
def test_baresip_hears_the_same(pbx: Asterisk, incoming: bool) -> None:
    said = speech(20)
    with baresip(pbx.sip_port, None if incoming else "echo", said, 3) as phone:
        if incoming:
            phone.wait_ready()
            pbx.cli(f"channel originate PJSIP/phone/sip:any@127.0.0.1:{phone.port} extension echo@phones")
        phone.wait_ended(10)
        compare(phone.heard(), said).require(correlation=0.999, snr_db=30)


def test_baresip_that_hears_nothing_says_so(pbx: Asterisk) -> None:
    with baresip(pbx.sip_port, "absent-here", speech(1, 800), 1) as phone:
        phone.wait_ended(8)
        with pytest.raises(PeerFailed, match=r"(?s)recorded nothing.*404"):
            phone.heard()


@pytest.mark.parametrize(("kind", "offset"), [(socket.SOCK_DGRAM, 0), (socket.SOCK_STREAM, 0), (socket.SOCK_STREAM, 1)])
def test_baresip_gets_a_pair_of_ports_that_is_free(
    kind: socket.SocketKind, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """baresip exits with "Address already in use" if its TLS port is taken: the port after its SIP port."""
    pairs = iter([30_100, 30_102])
    monkeypatch.setattr("random.randrange", lambda *_: next(pairs))
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 30_100 + offset))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        assert free_sip_port() == 30_102


def test_baresip_binds_no_other_port_than_that_pair() -> None:
    with baresip(9, None, speech(1, 800), 5) as phone:
        phone.wait_ready()
        assert phone.listening() == {phone.port, phone.port + 1}
