"""The echo gate on short synthetic voices: the caller, our echo, and line noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from world import World

from telephony_tts.audio.encoder import CODECS
from telephony_tts.audio.g711 import decode_ulaw, encode_ulaw
from telephony_tts.session.caller.echo_gate import N_COMPARED, EchoGate
from telephony_tts.session.caller.played import Played
from telephony_tts.session.caller.talkspurt import Change, TalkSpurt
from telephony_tts.session.settings import BargeInSettings, SessionSettings

MS = 1_000_000
WINDOW, WINDOW_MS = 256, 32
FRAME = 160

Signal = npt.NDArray[np.float64]


def voice(seconds: float, dbov: float, seed: int) -> Signal:
    """Speech-like: syllables of 180 ms with a pitch and two formants of their own, and every second a pause."""
    rng = np.random.default_rng(seed)
    pieces = []
    for n in range(int(seconds / 0.2) + 1):
        t = np.arange(1440) / 8000
        pitch = np.cumsum(np.linspace(*rng.uniform(90, 240, 2), 1440)) / 8000
        source = sum((np.sin(2 * np.pi * k * pitch + rng.uniform(0, 6)) for k in range(1, 16)), 0 * t)
        for hz in (rng.uniform(300, 800), rng.uniform(900, 2500)):
            ringing = np.exp(-t[:200] * 400) * np.sin(2 * np.pi * hz * t[:200])
            source = source + np.convolve(source, ringing)[:1440] / 8
        pieces += [source * np.hanning(1440) * (n % 5 < 4), np.zeros(160)]
    wave = np.concatenate(pieces)[: round(seconds * 8000)]
    scaled: Signal = wave * 10 ** (dbov / 20) / np.sqrt(np.mean(np.square(wave[:1440])))
    return scaled


def noise(seconds: float, dbov: float, seed: int = 5) -> Signal:
    return np.random.default_rng(seed).standard_normal(round(seconds * 8000)) * 10 ** (dbov / 20)


def delayed(wave: Signal, ms: float, db: float) -> Signal:
    late = np.concatenate([np.zeros(round(ms * 8)), wave])[: len(wave)]
    return np.tanh(late * 3) / 3 * 10 ** (db / 20)


class Line:
    """We speak `ours`, and the line has `heard`, which the network takes for speech all the time."""

    def __init__(self, ours: Signal, min_speech_ms: int = 200) -> None:
        self.gate = EchoGate(-45.0)
        self.ours = encode_ulaw(np.rint(ours * 32767).clip(-32768, 32767).astype(np.int16))
        self.played = decode_ulaw(self.ours) / 32768
        self.now_ms = self._n_sent = 0
        self._spurt = TalkSpurt(
            BargeInSettings(enabled=True, min_speech_ms=min_speech_ms), self._callers, N_COMPARED
        )
        self.begun_ms: list[int] = []
        """When the caller was heard to begin."""

    def _callers(self, n_windows: int) -> list[bool]:
        return self.gate.callers(n_windows, self.now_ms * MS)

    def hear(self, heard: Signal, probability: float = 1.0) -> None:
        """Let the windows of `heard` pass, through mu-law."""
        pcm = decode_ulaw(encode_ulaw(np.rint(heard * 32767).clip(-32768, 32767).astype(np.int16)))
        for at in range(0, len(pcm) - WINDOW + 1, WINDOW):
            self.now_ms += WINDOW_MS
            while self._n_sent * 20 <= self.now_ms + 60 and self._n_sent < len(self.ours) // FRAME:
                payload = self.ours[self._n_sent * FRAME : (self._n_sent + 1) * FRAME]
                self.gate.played.add(payload, self._n_sent * 20 * MS)
                self._n_sent += 1
            is_loud = self.gate.take(pcm[at : at + WINDOW], self.now_ms * MS)
            if probability < 0.2:
                self.gate.not_voice()
            change = self._spurt.feed(probability, is_loud, WINDOW_MS, self.now_ms - WINDOW_MS)
            if change is Change.BEGAN:
                self.begun_ms.append(self.now_ms)


def line_of(seconds: float) -> Line:
    return Line(voice(seconds, -20, seed=1))


@pytest.mark.parametrize("db", [-6.0, -10.0, -17.0, -30.0])
@pytest.mark.parametrize("delay_ms", [20.0, 110.06, 300.0, 450.0, 800.0, 1000.0])
def test_an_echo_is_not_the_caller_from_its_first_word_on(delay_ms: float, db: float) -> None:
    line = line_of(8)
    line.hear(delayed(line.played, delay_ms, db) + noise(8, -65))
    assert line.begun_ms == []


def test_what_is_no_echo_is_the_caller_in_our_first_second_too() -> None:
    line = line_of(3)
    heard = noise(3, -65)
    heard[2400 : 2400 + 8000] += voice(1, -31, seed=2)
    line.hear(heard)
    assert line.begun_ms and line.begun_ms[0] <= 300 + 320


@pytest.mark.parametrize("word_s", [1.0, 2.0])
def test_a_word_in_our_first_second_does_not_make_the_next_one_inaudible(word_s: float) -> None:
    line = line_of(8)
    heard = noise(8, -65)
    heard[2400 : 2400 + round(word_s * 8000)] += voice(word_s, -31, seed=2)
    heard[40_000:48_000] += voice(1, -31, seed=3)
    line.hear(heard)
    again = [ms for ms in line.begun_ms if ms > 5000]
    assert again and again[0] <= 5000 + 320


@pytest.mark.parametrize(("echo_db", "caller_dbov"), [(-30, -31), (-20, -31), (-10, -25)])
def test_a_caller_is_heard_over_a_known_echo(echo_db: float, caller_dbov: float) -> None:
    line = line_of(8)
    heard = delayed(line.played, 450, echo_db) + noise(8, -65)
    heard[40_000:56_000] += voice(2, caller_dbov, seed=2)
    line.hear(heard)
    assert line.begun_ms and 5000 + 96 <= line.begun_ms[0] <= 5000 + 500


def test_a_short_sound_over_an_echo_is_no_speech() -> None:
    """The windows of the echo before it do not count."""
    line = line_of(8)
    heard = delayed(line.played, 200, -15) + noise(8, -65)
    for at in range(24_000, 60_000, 8_000):
        heard[at : at + 640] += voice(0.08, -15, seed=at)
    line.hear(heard)
    assert line.begun_ms == []


@pytest.mark.parametrize(
    ("delays_ms", "dbs"), [((100, 700), (-12, -12)), ((700, 100), (-12, -12)), ((200, 200), (-30, -10))]
)
def test_an_echo_that_changes_is_found_again_at_once(delays_ms: tuple[int, int], dbs: tuple[int, int]) -> None:
    line = line_of(10)
    first, second = (delayed(line.played, ms, db) for ms, db in zip(delays_ms, dbs, strict=True))
    line.hear(np.concatenate([first[:40_000], second[40_000:]]) + noise(10, -65))
    assert line.begun_ms == []


@pytest.mark.parametrize("seed", range(8))
def test_each_of_our_turns_may_come_back_with_a_delay_of_its_own(seed: int) -> None:
    """A peer plays what it gets at once, so the network's delay at that moment lasts for a turn. A turn may begin with
    a sound that is too short to be compared."""
    rng = np.random.default_rng(seed)
    turns, echoes = [], []
    for n in range(12):
        sound, pause = voice(0.1, -20, seed=50 + n)[: rng.integers(200, 800)], np.zeros(rng.integers(400, 2400))
        turn = np.concatenate([sound, pause, voice(1.2, -20, seed=100 + n)])
        room = np.zeros(18_000 - len(turn))
        turns.append(np.concatenate([turn, room]))
        late_ms = rng.uniform(0, 20)
        echoes.append(delayed(turns[-1], late_ms, -10))
    line = Line(np.concatenate(turns))
    line.hear(delayed(np.concatenate(echoes), 600, 0) + noise(27, -65))
    assert line.begun_ms == []


@pytest.mark.parametrize("seed", range(8))
def test_two_sentences_that_follow_each_other_may_have_two_delays(seed: int) -> None:
    """Both are in the quarter of a second that is compared."""
    rng = np.random.default_rng(seed)
    sentences = [voice(rng.uniform(0.7, 1.2), -20, seed=100 + n) for n in range(16)]
    ours, echoes = [], []
    for wave in sentences:
        piece = np.concatenate([wave, np.zeros(900)])
        ours.append(piece)
        echoes.append(delayed(piece, rng.uniform(0, 20), -10))
    line = Line(np.concatenate(ours))
    heard = delayed(np.concatenate(echoes), 600, 0)
    line.hear(heard + noise(len(heard) / 8000, -65)[: len(heard)])
    assert line.begun_ms == []


def test_an_echo_that_is_gone_covers_no_caller_after_two_seconds() -> None:
    line = line_of(9)
    heard = delayed(line.played, 200, -6)
    heard[32_000:] = 0
    heard += noise(9, -65)
    heard[48_000:64_000] += voice(2, -36, seed=2)  # 10 dB weaker than the echo was
    line.hear(heard)
    assert line.begun_ms and 6000 <= line.begun_ms[0] <= 6000 + 450


def test_packets_that_come_irregularly_do_not_hide_an_echo() -> None:
    line = line_of(8)
    rng = np.random.default_rng(1)
    take = line.gate.take
    line.gate.take = lambda pcm, now_ns: take(pcm, now_ns + int(rng.integers(0, 60)) * MS)  # type: ignore[method-assign]
    line.hear(delayed(line.played, 300, -12) + noise(8, -65))
    assert line.begun_ms == []


@pytest.mark.parametrize(("n_lost", "is_late"), [(2, False), (8, False), (8, True)])
def test_lost_and_late_packets_do_not_make_an_echo_the_caller(n_lost: int, is_late: bool) -> None:
    line = line_of(12)
    heard = delayed(line.played, 300, -12) + noise(12, -65)
    rng = np.random.default_rng(3)
    for at in range(0, len(heard) - 24 * WINDOW, 24 * WINDOW):
        n_before = int(rng.integers(1, 14))
        line.hear(heard[at : at + n_before * WINDOW])
        rest = heard[at + n_before * WINDOW : at + 24 * WINDOW]
        if is_late:  # they come together
            begun_ms = line.now_ms
            for n in range(n_lost):
                line.now_ms = begun_ms + (n_lost - 1) * WINDOW_MS
                line.hear(rest[n * WINDOW : (n + 1) * WINDOW])
        else:
            line.now_ms += n_lost * WINDOW_MS
            line.gate.lost(n_lost * WINDOW_MS)
        line.hear(rest[n_lost * WINDOW :])
    assert line.begun_ms == []


def test_a_peer_that_plays_late_has_a_late_echo() -> None:
    told, untold = line_of(12), line_of(12)
    told.gate.peer_is_late(800 * MS)
    for line in (told, untold):
        line.hear(delayed(line.played, 1600, -10) + noise(12, -65))
    assert told.begun_ms == []
    assert untold.begun_ms, "without the peer's marks the gate cannot know the delay"


def test_dropped_speech_has_no_echo() -> None:
    """Sound that is like it comes from the line: the caller may hear us and repeat it."""
    line = line_of(4)
    line.hear(noise(0.5, -65))
    line.gate.played.emptied(line.now_ms * MS)
    late = line.played[16_000:24_000] / 8
    line._n_sent = len(line.ours)
    line.hear(np.concatenate([noise(1.5, -65), late]))
    assert line.begun_ms


# -------------------------------------------------------------------------- noise


def test_line_noise_raises_the_floor_by_no_more_than_it_varies() -> None:
    line = Line(np.zeros(0))
    line.hear(noise(3, -36), probability=0.01)
    assert -35.5 < line.gate.noise.floor_dbov < -32
    line.hear(noise(1, -36) + voice(1, -31, seed=2))
    assert line.begun_ms and line.begun_ms[0] <= 3000 + 350


def test_a_background_that_varies_raises_the_floor_more() -> None:
    line = Line(np.zeros(0))
    rng = np.random.default_rng(2)
    for _ in range(100):
        line.hear(noise(0.032, -40 + rng.uniform(-5, 5)), probability=0.01)
    assert line.gate.noise.floor_dbov > -36


def test_the_floor_falls_within_two_seconds_and_has_bounds() -> None:
    line = Line(np.zeros(0))
    line.hear(noise(5, -10), probability=0.01)
    assert line.gate.noise.floor_dbov == -28, "a loud caller is heard in any noise"
    line.hear(noise(1, -70), probability=0.01)
    assert line.gate.noise.floor_dbov == -45, "what the settings say"


# -------------------------------------------------------------------------- what we played


@pytest.mark.parametrize(
    ("codec", "rate_hz"),
    [("ulaw", 8000), ("alaw", 8000), ("pcm", 16000), ("pcm", 22050), ("pcm", 44100), ("pcm", 48000)],
)
def test_what_was_played_is_one_wave_at_8_khz_whatever_the_codec(codec: str, rate_hz: int) -> None:
    tone = 8000 * np.sin(2 * np.pi * 440 * np.arange(rate_hz) / rate_hz)
    pcm = np.rint(tone).astype(np.int16)
    played = Played(10_000 * MS)
    played.spoken = (codec, rate_hz)
    n = rate_hz // 50
    for at in range(50):
        played.add(CODECS[codec].encode(pcm[at * n : (at + 1) * n]), at * 20 * MS)
    wave = played.wave(-80, 8160)
    assert not wave[:80].any() and not wave[8080:].any()
    want = 8000 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000 + (rate_hz / 8000 - 1) * np.pi * 440 / rate_hz)
    assert np.sqrt(np.mean(np.square(wave[80:8080] - want))) < 0.05 * 8000


def test_speech_that_is_moved_is_heard_later_and_speech_that_is_taken_back_is_not() -> None:
    played = Played(10_000 * MS)
    for at in range(10):
        played.add(encode_ulaw(np.full(160, 1000, np.int16)), at * 20 * MS)
    played.wave(0, 1600)
    played.moved(100 * MS)
    (heard,) = np.nonzero(played.wave(0, 4000))
    assert (heard[0], heard[-1]) == (800, 2399)
    played.emptied(200 * MS)
    (heard,) = np.nonzero(played.wave(0, 4000))
    assert (heard[0], heard[-1]) == (800, 1759)


def test_without_a_listener_half_a_minute_is_kept_and_goes_when_it_was_heard() -> None:
    settings = SessionSettings(first_clause_chars=0, lead_ms=60_000, ahead_ms=60_000)
    world = World(settings, peer=True, voice_model=lambda: None)
    played = world.session.caller._gate.played
    world.say("a" * 1200 + ".", "a")
    world.run(2_000)
    assert len(played) == 1500
    world.run(70_000)
    world.say("b" * 10 + ".", "b")
    world.run(100)
    assert 0 < len(played) < 30


@pytest.mark.parametrize("lead_ms", [200, 2000])
def test_a_call_without_audio_from_the_caller_keeps_only_speech_that_may_still_echo(lead_ms: int) -> None:
    settings = SessionSettings(first_clause_chars=0, barge_in=BargeInSettings(enabled=True), lead_ms=lead_ms)
    world = World(settings, peer=True, voice_model=lambda: None)
    world.say("a" * 1200 + ".", "a")
    world.run(10_000)
    n_early = len(world.session.caller._gate.played)
    world.run(40_000)
    assert n_early == pytest.approx(len(world.session.caller._gate.played), abs=2)
    kept_ms = n_early * 20 - lead_ms
    assert 3000 + 1000 <= kept_ms <= 3000 + 1500, "a peer may report that it plays 3 s late"


def test_a_window_costs_no_more_if_a_minute_of_speech_was_sent_ahead() -> None:
    n_decoded = []
    for n_ahead in (10, 3000):
        played = Played(10_000 * MS)
        for n in range(100 + n_ahead):
            played.add(bytes([n % 256]) * 160, n * 20 * MS)
        played.wave(0, 16_000)
        n_decoded.append(sum(frame.wave is not None for frame in played._frames))
    assert n_decoded == [100, 100]
