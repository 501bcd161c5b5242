"""A caller's voice interrupts, and the echo of our own voice does not: real speech, simulated time.

Delays are from the caller's first sound to `cleared`. What is asserted is what was measured, with room for a window or
two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from speech_line import BOT, CALLERS, HOUSE_DBOV, SpeechLine, at_level, model, speech

from telephony_tts.runtime.errors import AudioError
from telephony_tts.session.settings import BargeInSettings, CallerSettings
from telephony_tts.wire import messages as m

BOTH_WAYS = pytest.mark.parametrize(("bot_voice", "caller_voice"), [("heart", "en-gb"), ("en-us", "heart")])


def over_us(line: SpeechLine, voice: str, text: str, dbov: float = HOUSE_DBOV, after_ms: int = 4000) -> float | None:
    """The time in ms from the beginning of the caller's speech to the interruption."""
    line.say(BOT, "a")
    line.listen(after_ms)
    assert line.when(m.Started) and not line.when(m.CallerSpeech)
    said = speech(text, voice, dbov)
    line.listen(2500, np.concatenate([said, np.zeros(800), said]))
    moments = line.when(m.Cleared, reason="barge_in")
    return moments[0] - after_ms if moments else None


# -------------------------------------------------------------------------- echo


@pytest.mark.slow
@BOTH_WAYS
@pytest.mark.parametrize(
    ("echo_db", "delay_ms", "noise_dbov"),
    [(-10, 20, -60), (-10, 200, -48), (-15, 110, -40), (-20, 60, -55), (-30, 150, -50)],
)
def test_our_own_echo_interrupts_nothing(
    bot_voice: str, caller_voice: str, echo_db: float, delay_ms: int, noise_dbov: float
) -> None:
    """One minute for each line, ten in all."""
    del caller_voice
    line = SpeechLine(bot_voice=bot_voice, echo_db=echo_db, delay_ms=delay_ms, noise_dbov=noise_dbov)
    for n in range(4):
        line.say(BOT, f"t{n}")
    line.listen(60_000)
    assert line.when(m.CallerSpeech) == [] == line.when(m.Cleared)
    assert line.when(m.Done), "it was spoken"


@pytest.mark.parametrize(("echo_db", "delay_ms"), [(-10, 450), (-10, 800), (-6, 600), (-20, 400)])
def test_the_late_echo_of_a_mobile_telephone_interrupts_nothing(echo_db: float, delay_ms: int) -> None:
    """Pinned: an echo later than 360 ms was the caller."""
    line = SpeechLine(echo_db=echo_db, delay_ms=delay_ms)
    line.say(BOT, "a")
    line.listen(15_000)
    assert line.when(m.CallerSpeech) == []


def test_lost_packets_do_not_make_our_echo_the_caller() -> None:
    line = SpeechLine(echo_db=-10, delay_ms=300)
    line.say(BOT, "a")
    receive = line.send
    rng = np.random.default_rng(2)
    n_lost = 0

    def loses(message: Any) -> None:
        """Three packets in a row, about once in a second."""
        nonlocal n_lost
        if isinstance(message, m.MediaAudio):
            n_lost = 3 if n_lost == 0 and rng.random() < 0.02 else max(0, n_lost - 1)
            if n_lost:
                return
        receive(message)

    line.send = loses  # type: ignore[method-assign]
    line.listen(20_000)
    assert line.when(m.CallerSpeech) == []


def test_a_reported_delay_of_the_peer_delays_the_echo() -> None:
    line = SpeechLine(echo_db=-10, delay_ms=100, late_ms=700)
    line.say(BOT, "a")
    line.listen(30_000)
    assert line.when(m.CallerSpeech) == []


def test_without_the_gate_the_echo_interrupts() -> None:
    """Shows that the line of these tests carries an echo."""
    line = SpeechLine(echo_db=-10, delay_ms=100)
    line.session.caller.playing = lambda payload, heard_ns, now_ns: None  # type: ignore[method-assign]
    line.session._sender.listeners.clear()
    line.say(BOT, "a")
    line.listen(5000)
    assert line.when(m.Cleared, reason="barge_in")


def test_line_noise_keys_and_tones_interrupt_nothing() -> None:
    line = SpeechLine(noise_dbov=-40)
    line.say(BOT, "a")
    t = np.arange(16000) / 8000
    keys = 0.2 * (np.sin(2 * np.pi * 770 * t) + np.sin(2 * np.pi * 1336 * t)) * (t % 0.4 < 0.2)
    rng = np.random.default_rng(4)
    bursts = rng.standard_normal(16000) * 0.2 * (t % 0.5 < 0.06)
    for wave in (keys, bursts, 0.2 * np.sin(2 * np.pi * 425 * t)):
        line.listen(2500, wave)
    assert line.when(m.CallerSpeech) == []


@pytest.mark.parametrize("digit_hz", [(697, 1209), (941, 1477)])
def test_the_rest_of_a_key_that_the_peer_took_out_interrupts_nothing(digit_hz: tuple[int, int]) -> None:
    """Asterisk 22.10 with detection in the audio: the first 20 ms of a key come through, then no audio for 100 ms, and
    the key as an event. Keys that follow each other must not add up to speech either."""
    line = SpeechLine(noise_dbov=-60)
    line.say(BOT, "a")
    line.listen(1000)
    t = np.arange(160) / 8000
    tone = 0.3 * sum(np.sin(2 * np.pi * hz * t) for hz in digit_hz)
    for _ in range(6):
        line.listen(20, tone, clock=False)
        line.run(100)
        line.send(m.MediaDtmf("1"))
        line.listen(100, clock=False)
    assert line.when(m.CallerSpeech) == [] == line.when(m.Cleared)
    assert [each.digit for _, each in line.timeline if isinstance(each, m.Dtmf)] == ["1"] * 6


# ------------------------------------------------------------------------ callers


@pytest.mark.slow
@BOTH_WAYS
@pytest.mark.parametrize(
    ("echo_db", "median_ms", "most_ms"), [(None, 400, 600), (-30, 400, 600), (-20, 400, 700), (-10, 600, 1000)]
)
def test_a_caller_as_loud_as_we_are_interrupts(
    bot_voice: str, caller_voice: str, echo_db: float | None, median_ms: float, most_ms: float
) -> None:
    delays = [
        over_us(SpeechLine(bot_voice=bot_voice, echo_db=echo_db, noise_dbov=-55), caller_voice, text)
        for text in CALLERS
    ]
    assert None not in delays
    assert max(delays) <= most_ms and np.median(delays) <= median_ms  # type: ignore[type-var, arg-type]
    assert min(delays) >= 200, "less than the least speech that counts"  # type: ignore[type-var]


@pytest.mark.slow
@BOTH_WAYS
@pytest.mark.parametrize("echo_db", [None, -20])
def test_a_caller_half_as_loud_interrupts(bot_voice: str, caller_voice: str, echo_db: float | None) -> None:
    delays = [
        over_us(SpeechLine(bot_voice=bot_voice, echo_db=echo_db, noise_dbov=-55), caller_voice, text, HOUSE_DBOV - 6)
        for text in CALLERS
    ]
    assert None not in delays
    assert max(delays) <= 1000 and np.median(delays) <= 400  # type: ignore[type-var, arg-type]


@pytest.mark.parametrize("text", CALLERS)
def test_a_quiet_caller_interrupts_in_our_first_second(text: str) -> None:
    """Pinned: whatever was heard while the gate learned was our echo from then on."""
    delay_ms = over_us(SpeechLine(), "en-gb", text, HOUSE_DBOV - 11, after_ms=300)
    assert delay_ms is not None and delay_ms <= 750


@pytest.mark.parametrize("after_ms", [3000, 6000, 12_000])
def test_a_word_in_our_first_second_does_not_make_the_next_inaudible(after_ms: int) -> None:
    line = SpeechLine(BargeInSettings(enabled=True, hold_off_ms=2000))
    line.say(BOT, "a")
    line.listen(300)
    line.listen(after_ms, speech(CALLERS[1], "en-gb", HOUSE_DBOV - 11)[:8000])
    assert line.when(m.CallerSpeech) and not line.when(m.Cleared)
    begin_ms = line.now_ms
    line.listen(2000, speech(CALLERS[0], "en-gb", HOUSE_DBOV - 11))
    (cleared_ms,) = line.when(m.Cleared, reason="barge_in")
    assert cleared_ms - begin_ms <= 500


@pytest.mark.parametrize("text", CALLERS)
def test_a_caller_on_a_loud_line_interrupts(text: str) -> None:
    """Pinned: a voice had to be 8 dB above the quietest window of the noise."""
    delay_ms = over_us(SpeechLine(noise_dbov=-36), "en-gb", text, -31)
    assert delay_ms is not None and delay_ms <= 700


@pytest.mark.parametrize(
    ("codec", "rate_hz"), [("alaw", 8000), ("pcm", 8000), ("pcm", 16000), ("pcm", 24000), ("pcm", 48000)]
)
def test_barge_in_works_with_every_codec_and_rate_of_a_leg(codec: str, rate_hz: int) -> None:
    line = SpeechLine(codec=codec, rate_hz=rate_hz, echo_db=-20, delay_ms=60)
    delay_ms = over_us(line, "en-gb", CALLERS[0])
    assert delay_ms is not None and delay_ms <= 400


def test_cleared_speech_does_not_close_the_gate() -> None:
    line = SpeechLine(echo_db=-10, lead_ms=5000)
    line.say(BOT, "a")
    line.listen(4000)
    line.send(m.Clear())
    line.listen(500)
    line.listen(1500, speech(CALLERS[0], "en-gb", HOUSE_DBOV - 10))
    begun = line.when(m.CallerSpeech)
    assert begun and begun[0] - 4500 <= 400


# --------------------------------------------------------------------- what follows


def test_barge_in_clears_like_clear_and_reports_the_caller() -> None:
    line = SpeechLine(echo_db=-20)
    line.say("Please hold the line while I look.", "late")
    line.session.turns[0].id = "first"
    line.say(BOT, "b")
    assert over_us_again(line) is not None
    begun, ended = line.of(m.CallerSpeech)
    assert begun.state == "speaking" and abs(begun.at_ms - 6000) <= 120
    assert (ended.state, ended.interrupted) == ("silent", True)
    said_ms = len(speech(CALLERS[1], "en-gb")) // 8
    assert abs(ended.spoken_ms - said_ms) < 300 and ended.at_ms == begun.at_ms + ended.spoken_ms
    events = [type(event) for event in line.events if isinstance(event, m.CallerSpeech | m.Cleared | m.MediaClear)]
    assert events == [m.CallerSpeech, m.MediaClear, m.Cleared, m.CallerSpeech]
    (cleared,) = line.of(m.Cleared)
    assert cleared.reason == "barge_in"
    assert cleared.heard_text + cleared.unheard_text == BOT and len(cleared.heard_text) > 20
    at = line.log.index(cleared)
    assert not any(isinstance(effect, m.Frame) for effect in line.log[at:])


def over_us_again(line: SpeechLine) -> float | None:
    line.listen(6000)
    line.listen(3500, speech(CALLERS[1], "en-gb"))
    moments = line.when(m.Cleared, reason="barge_in")
    return moments[0] - 6000 if moments else None


def test_barge_in_ends_waiting_turns_too() -> None:
    line = SpeechLine()
    line.say(BOT, "a")
    line.say("And then there is one more thing.", "b")
    line.listen(2000)
    line.listen(1500, speech(CALLERS[0], "en-gb"))
    assert [(event.turn, event.reason) for event in line.of(m.Cleared)] == [("a", "barge_in"), ("b", "barge_in")]
    assert line.terminals("b")[0].heard_text == ""


def test_speech_during_our_silence_is_reported_and_interrupts_nothing() -> None:
    line = SpeechLine()
    line.listen(1000, clock=False)
    line.listen(3000, speech(CALLERS[0], "en-gb"), clock=False)
    begun, ended = line.of(m.CallerSpeech)
    assert (begun.state, begun.at_ms, begun.spoken_ms, begun.interrupted) == ("speaking", None, None, None)
    assert (ended.state, ended.at_ms, ended.interrupted) == ("silent", None, False)


def test_an_answer_after_our_last_word_interrupts_nothing_without_mark_reports() -> None:
    line = SpeechLine()
    line._echo = lambda name: None  # type: ignore[method-assign]
    line.say("Which of these would suit you best?", "a")
    line.listen(200)
    while line.session._sender.media_end_ns == 0 or line.now_ns < line.session._sender.media_end_ns + 100_000_000:
        line.listen(20)
    line.listen(1500, speech(CALLERS[0], "en-gb"))
    assert line.when(m.CallerSpeech, state="speaking") and not line.when(m.Cleared)
    line.listen(1500)
    assert [type(event) for event in line.terminals("a")] == [m.Done]


def test_speech_that_began_before_ours_does_not_interrupt() -> None:
    line = SpeechLine(BargeInSettings(enabled=True, hold_off_ms=0))
    said = np.concatenate([speech(CALLERS[1], "en-gb"), speech(CALLERS[2], "en-gb")])
    n_steps = 0
    while not line.when(m.CallerSpeech):
        line.listen(20, said[n_steps * 160 : (n_steps + 1) * 160])
        n_steps += 1
    line.say(BOT, "a")  # no sooner than the bot was told
    line.listen(1500, said[n_steps * 160 :])
    assert line.when(m.Started) and not line.when(m.Cleared)


def test_an_interruption_waits_for_the_hold_off_and_short_speech_in_it_does_not_interrupt() -> None:
    def beginning_together(hold_off_ms: int, said_ms: int) -> SpeechLine:
        line = SpeechLine(BargeInSettings(enabled=True, hold_off_ms=hold_off_ms))
        line.say(BOT, "a")
        line.listen(20)
        line.listen(4000, np.tile(speech(CALLERS[0], "en-gb")[:6000], 4)[: said_ms * 8])
        return line

    (at_once,) = beginning_together(0, 3000).when(m.Cleared)
    (held_off,) = beginning_together(2000, 3000).when(m.Cleared)
    assert at_once < 1000, "in our first second the gate knows less about the line"
    assert 2000 <= held_off < 2400
    for said_ms in (1200, 1750):  # and of the second it is not known yet that no more comes
        let_be = beginning_together(2000, said_ms)
        assert let_be.when(m.CallerSpeech, state="speaking") and not let_be.when(m.Cleared)


def test_the_hold_off_of_a_turn_does_not_count_from_a_turn_that_ended_while_nothing_was_heard() -> None:
    """Pinned: barge-in was off in between, and the first sound of the caller interrupted the next turn."""
    line = SpeechLine(BargeInSettings(enabled=True, hold_off_ms=1500))
    line.say("One two three four five.", "a")
    line.listen(500)
    line.send(m.Configure(barge_in="off"))
    line.listen(4000)
    assert line.when(m.Done)
    line.say(BOT, "b")
    line.listen(100)
    line.send(m.Configure(barge_in="on"))
    line.listen(100)
    line.listen(4000, speech("Hello, I would like to speak to an agent, please.", "en-gb"))
    (cleared_ms,) = line.when(m.Cleared, turn="b", reason="barge_in")
    assert 1500 <= cleared_ms - 4500 <= 1600, "the turn began at 4500 ms"


def test_an_interruption_restarts_the_hold_off_however_soon_the_next_turn_comes() -> None:
    line = SpeechLine(BargeInSettings(enabled=True, hold_off_ms=1500, silence_ms=200), echo_db=-20)
    line.say(BOT, "a")
    line.listen(4000)
    said = speech(CALLERS[1], "en-gb")
    for n in range(100):
        line.listen(20, said[n * 160 : (n + 1) * 160])
        if line.when(m.Cleared):
            break
    line.say(BOT, "b")
    line.listen(240)
    begun_ms = line.now_ms - 240
    line.listen(3000, np.concatenate([said, said]))
    _, second = line.when(m.Cleared)
    assert begun_ms + 1500 <= second <= begun_ms + 2000


def test_barge_in_is_turned_on_and_off_within_a_call() -> None:
    line = SpeechLine(BargeInSettings(enabled=False))
    said = speech(CALLERS[0], "en-gb")
    assert not line.session.wants_audio
    line.say(BOT, "a")
    line.listen(1000)
    line.listen(1500, said)
    assert not line.when(m.CallerSpeech)
    line.send(m.Configure(barge_in="on", min_speech_ms=400, hold_off_ms=100))
    assert line.session.wants_audio
    line.listen(3000)
    before_ms = line.now_ms
    line.listen(2500, np.concatenate([said, said]))
    (cleared,) = line.when(m.Cleared, reason="barge_in")
    assert 400 <= cleared - before_ms <= 900
    line.send(m.Configure(barge_in="off"))
    assert not line.session.wants_audio
    line.say(BOT, "b")
    line.listen(500)
    line.listen(1500, said)
    assert len(line.when(m.Cleared)) == 1


def test_turning_barge_in_off_during_speech_reports_its_end() -> None:
    line = SpeechLine()
    line.listen(500)
    line.listen(800, speech(CALLERS[1], "en-gb"))
    line.send(m.Configure(barge_in="off"))
    assert [event.state for event in line.of(m.CallerSpeech)] == ["speaking", "silent"]


@pytest.mark.parametrize("lead_ms", [200, 2000])
def test_our_echo_does_not_interrupt_if_barge_in_is_turned_on_during_our_speech(lead_ms: int) -> None:
    """Also when all of it was sent ahead."""
    line = SpeechLine(BargeInSettings(enabled=False), echo_db=-10, delay_ms=200, lead_ms=lead_ms)
    line.say(BOT, "a")
    line.listen(3000)
    line.send(m.Configure(barge_in="on"))
    line.listen(8000)
    assert not line.when(m.Cleared)


def test_barge_in_turned_on_after_a_whole_turn_was_sent_knows_what_is_playing() -> None:
    line = SpeechLine(BargeInSettings(enabled=False), echo_db=-10, delay_ms=200, lead_ms=60_000, ahead_ms=60_000)
    line.say(" ".join([BOT] * 4), "a")
    line.listen(3000)
    line.send(m.Configure(barge_in="on"))
    line.listen(4000)
    assert not line.when(m.Cleared)


def test_speech_cleared_before_barge_in_is_turned_on_does_not_close_the_gate() -> None:
    line = SpeechLine(BargeInSettings(enabled=False), echo_db=-10, lead_ms=2000)
    line.say(BOT, "a")
    line.listen(1000)
    line.send(m.Clear())
    line.listen(500)
    line.send(m.Configure(barge_in="on"))
    line.listen(1500, speech(CALLERS[0], "en-gb", HOUSE_DBOV - 10))
    begun = line.when(m.CallerSpeech)
    assert begun and begun[0] - 1500 <= 400


def test_speech_of_a_peer_that_sends_nothing_in_silence_ends_by_the_clock() -> None:
    line = SpeechLine()
    line.listen(500)
    line.listen(1000, speech(CALLERS[1], "en-gb"))
    assert not line.when(m.CallerSpeech, state="silent")
    line.run(600)
    line._play()
    assert line.when(m.CallerSpeech, state="silent")


# ------------------------------------------------------------------- what goes wrong


def test_without_caller_audio_there_is_no_barge_in() -> None:
    line = SpeechLine()
    line.say(BOT, "a")
    line.run(20_000)
    assert [type(event) for event in line.terminals("a")] == [m.Done]


def test_a_model_that_cannot_be_loaded_is_reported_once_and_the_call_goes_on() -> None:
    def fails() -> None:
        raise AudioError("the voice model cannot be loaded (no such file)")

    line = SpeechLine(find_model=fails)
    line.say(BOT, "a")
    line.listen(1000)
    line.listen(1500, speech(CALLERS[0], "en-gb"))
    (warning,) = line.of(m.WarningEvent)
    assert warning.code == "barge_in_unavailable" and "no such file" in warning.message
    assert not line.when(m.Cleared) and not line.session.wants_audio


@pytest.mark.parametrize(
    ("silent_ms", "error", "why"),
    [
        (0, RuntimeError("bad allocation"), "bad allocation"),  # onnxruntime's, without memory
        (60_000, MemoryError(), "MemoryError"),
    ],
)
def test_a_model_that_fails_for_a_while_is_reported_once_and_then_hears_the_caller(
    silent_ms: int, error: Exception, why: str
) -> None:
    """Pinned: the call crashed."""
    is_broken = True

    def fails_or_judges(*window: Any) -> Any:
        if is_broken:
            raise error
        return model()(*window)

    line = SpeechLine(find_model=lambda: fails_or_judges, caller=CallerSettings(silent_ms=silent_ms))
    line.say(BOT, "a")
    line.listen(1000)
    line.listen(1500, speech(CALLERS[0], "en-gb"))
    told = [(warning.code, why in warning.message) for warning in line.of(m.WarningEvent)]
    codes = ["barge_in_unavailable", "caller_silent_unavailable"] if silent_ms else ["barge_in_unavailable"]
    assert told == [(code, True) for code in codes]
    assert not line.when(m.CallerSpeech) and not line.when(m.Cleared)
    is_broken = False
    line.listen(1500, speech(CALLERS[1], "en-gb"))
    assert line.when(m.Cleared, reason="barge_in") and len(line.of(m.WarningEvent)) == len(codes)


def test_barge_in_on_a_server_without_a_model_is_refused_with_a_warning() -> None:
    line = SpeechLine(BargeInSettings(enabled=False), find_model=None)
    line.send(m.Configure(barge_in="on"))
    (warning,) = line.of(m.WarningEvent)
    assert warning.code == "barge_in_unavailable"


def test_speech_is_detected_only_after_the_model_is_loaded() -> None:
    there: list[object] = []
    line = SpeechLine(find_model=lambda: there[0] if there else None)
    line.say(BOT, "a")
    line.listen(1000, speech(CALLERS[0], "en-gb"))
    assert not line.when(m.CallerSpeech)
    there.append(model())
    line.listen(1000)
    line.listen(1500, speech(CALLERS[0], "en-gb"))
    assert line.when(m.Cleared, reason="barge_in")


class Counted:
    """The network, which counts how often it runs."""

    def __init__(self) -> None:
        self.n_calls = 0
        self._model = model()

    def __call__(self, window: object, state: object) -> object:
        self.n_calls += 1
        return self._model(window, state)  # type: ignore[arg-type]


def test_audio_faster_than_real_time_is_not_analysed() -> None:
    counted = Counted()
    line = SpeechLine(find_model=lambda: counted)
    payload = line._encode(at_level(speech(CALLERS[0], "en-gb"), -20)[:8000])
    for _ in range(200):
        line.send(m.MediaAudio(payload))
    line.send(m.MediaAudio(payload * 60))
    assert 0 < counted.n_calls <= 1000 // 32 + 1
    counted.n_calls = 0
    line.run(500)
    line.send(m.MediaAudio(payload[:3200]))
    assert counted.n_calls > 10, "later it is"


def test_the_model_does_not_run_on_silence() -> None:
    counted = Counted()
    line = SpeechLine(find_model=lambda: counted, noise_dbov=-75)
    line.listen(10_000)
    assert counted.n_calls <= 20
    line.listen(1000, speech(CALLERS[0], "en-gb"))
    assert line.when(m.CallerSpeech)[0] - 10_000 <= 400, "and speech after that is detected as soon"


def test_the_model_gets_the_windows_just_before_a_voice() -> None:
    levels: list[float] = []

    def noted(window: np.ndarray, state: object) -> tuple[float, object]:
        levels.append(float(np.abs(window[0, 32:]).max()))
        return 0.0, state

    line = SpeechLine(find_model=lambda: noted, noise_dbov=-75)
    line.listen(5000)
    levels.clear()
    line.listen(200, np.full(1600, 0.3))
    assert all(level < 0.01 for level in levels[:12]) and levels[13] > 0.2
