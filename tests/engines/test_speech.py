import numpy as np
import pytest

from telephony_tts.engines.api import Pcm, Timing
from telephony_tts.engines.speech import SpokenPiece, share_time, speak_pieces, trimmed

RATE_HZ = 24_000


def ms(n_ms: float) -> int:
    return round(RATE_HZ * n_ms / 1000)


def silence(n_ms: float) -> Pcm:
    return np.zeros(ms(n_ms), np.int16)


def sound(n_ms: float, dbfs: float = -20.0) -> Pcm:
    sign = np.where(np.arange(ms(n_ms)) % 2, 1, -1)
    return (sign * 32768 * 10 ** (dbfs / 20)).astype(np.int16)


@pytest.mark.parametrize("lead_ms", [0, 3, 12, 315, 317])
@pytest.mark.parametrize("tail_ms", [0, 40, 520])
def test_silence_around_speech_is_cut_and_speech_is_kept_whole(lead_ms: float, tail_ms: float) -> None:
    speech = sound(100)
    kept = trimmed(SpokenPiece(np.concatenate((silence(lead_ms), speech, silence(tail_ms))), RATE_HZ), -55, 120).pcm
    lead, tail = int(np.argmax(kept != 0)), int(np.argmax(kept[::-1] != 0))
    assert ms(min(lead_ms, 10)) <= lead <= ms(15)
    assert ms(min(tail_ms, 120) - 5) <= tail <= ms(125)
    assert np.array_equal(kept[lead : len(kept) - tail], speech)


def test_a_soft_onset_above_the_level_is_speech() -> None:
    pcm = np.concatenate((silence(300), sound(50, -50), sound(100)))
    assert len(trimmed(SpokenPiece(pcm, RATE_HZ), -55, 0).pcm) >= ms(150)


def test_audio_below_the_level_is_empty() -> None:
    for pcm in (silence(0), silence(3), silence(300), sound(300, -60)):
        assert len(trimmed(SpokenPiece(pcm, RATE_HZ, (Timing(0, 1, 0, 5),)), -55, 120).pcm) == 0


def test_words_move_with_the_cut_and_stay_on_the_sound() -> None:
    pcm = np.concatenate((silence(300), sound(200), silence(100), sound(200), silence(500)))
    words = (Timing(0, 3, ms(350), ms(500)), Timing(4, 7, ms(590), ms(1100)))
    first, second = trimmed(SpokenPiece(pcm, RATE_HZ, words), -55, 120).timings
    assert (first.start_sample, first.end_sample) == (ms(10), ms(210))
    assert (second.start_sample, second.end_sample) == (ms(300), ms(510))


def test_time_is_shared_by_letters() -> None:
    one, three = share_time([(0, 1), (2, 5)], 100, 700)
    assert (one.start_sample, one.end_sample, three.start_sample, three.end_sample) == (100, 300, 300, 700)
    assert share_time([], 0, 10) == []


def test_pieces_are_spoken_one_by_one_and_not_after_a_cancel() -> None:
    text, spoken, wanted = "One sentence that is long enough to be a piece. " * 10, [], [True]

    def speak(piece: str, index: int, trail_ms: float) -> SpokenPiece:
        spoken.append(piece)
        return SpokenPiece(sound(500), RATE_HZ, (Timing(0, 3, 0, 10),))

    chunks = speak_pieces(text, speak, lambda: not wanted[0])
    first = [next(chunks) for _ in range(4)]
    assert len(spoken) == 2  # the fourth chunk is the first of the second piece
    assert [len(chunk.pcm) for chunk in first] == [ms(200), ms(200), ms(100), ms(200)]
    moved = first[3].timings[0]
    assert text[moved.start_char : moved.end_char] == "One" and moved.start_char == len(spoken[0])
    assert moved.start_sample == ms(500)
    wanted[0] = False
    assert len(list(chunks)) == 2  # the chunks that were made come, and no more are made
    assert len(spoken) == 2


def test_the_pause_after_a_piece_depends_on_its_end() -> None:
    pauses: dict[str, float] = {}

    def speak(piece: str, index: int, trail_ms: float) -> SpokenPiece:
        pauses[piece.rstrip()[-1:]] = trail_ms
        return SpokenPiece(sound(10), RATE_HZ)

    words = "seven " * 12
    for text in (f"{words}. {words}", f"{words}, {words}", words * 5):
        list(speak_pieces(text.replace(" .", ".").replace(" ,", ",") + "x" * 40, speak, bool))
    assert pauses["."] > pauses[","] > pauses["n"] > 0
