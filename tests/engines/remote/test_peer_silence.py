"""A peer's silence, measured while this process runs."""

from telephony_tts.engines.remote.silence import CHECK_NS, PeerSilence
from telephony_tts.runtime.clock import NS_PER_MS, NS_PER_S


def test_silence_adds_up_until_the_peer_is_heard() -> None:
    silence, now_ns = PeerSilence(0), 0
    for n in range(1, 11):
        now_ns += CHECK_NS
        assert silence.check(now_ns) == n * CHECK_NS
    silence.heard(now_ns)
    assert silence.check(now_ns + 30 * NS_PER_MS) == 30 * NS_PER_MS


def test_time_in_which_this_process_stood_still_is_not_the_peers() -> None:
    silence = PeerSilence(0)
    assert silence.check(3_600 * NS_PER_S) == 2 * CHECK_NS
