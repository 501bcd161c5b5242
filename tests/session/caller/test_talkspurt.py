"""When the caller begins and stops speaking, from windows that are speech or not."""

from __future__ import annotations

from telephony_tts.session.caller.talkspurt import Change, TalkSpurt
from telephony_tts.session.settings import BargeInSettings

WINDOW_MS = 32


class Windows:
    """Feeds a talk spurt with letters: v is the caller, e our echo, q a voice that is not louder than the noise,
    . silence, ? is doubtful."""

    def __init__(self, **settings: int) -> None:
        self.spurt = TalkSpurt(BargeInSettings(enabled=True, **settings), self._callers, 8)  # type: ignore[arg-type]
        self.at_ms = 0
        self.fed = ""
        self.n_asked = 0
        self.changes: list[tuple[Change, int]] = []

    def _callers(self, n_windows: int) -> list[bool]:
        self.n_asked += 1
        return [letter in "v?" for letter in self.fed[-n_windows:]]

    def feed(self, letters: str) -> list[tuple[Change, int]]:
        """The changes so far and the moments, in ms, at which they were known."""
        for letter in letters:
            self.fed += letter
            probability = {"v": 0.9, "e": 0.9, "q": 0.9, ".": 0.02, "?": 0.4}[letter]
            change = self.spurt.feed(probability, letter in "ve?", WINDOW_MS, self.at_ms)
            self.at_ms += WINDOW_MS
            if change is not None:
                self.changes.append((change, self.at_ms))
        return self.changes


def test_speech_begins_with_the_window_that_makes_it_long_enough() -> None:
    windows = Windows(min_speech_ms=200)
    assert windows.feed("..vvvvvv") == []
    assert windows.feed("v") == [(Change.BEGAN, 9 * WINDOW_MS)]
    assert windows.spurt.begun_ms == 2 * WINDOW_MS


def test_repeated_coughs_are_not_speech() -> None:
    assert Windows(min_speech_ms=200).feed("vvv......" * 50) == []


def test_gaps_within_words_only_delay_the_beginning() -> None:
    assert Windows(min_speech_ms=200).feed("vvvv.vvvv")[0] == (Change.BEGAN, 9 * WINDOW_MS)


def test_a_missing_piece_counts_as_voice_next_to_voice_and_once() -> None:
    def begins(before: str, behind: str) -> bool:
        windows = Windows(min_speech_ms=200)
        windows.feed(before)
        windows.spurt.missed(40, windows.at_ms)
        return bool(windows.feed(behind))

    assert begins("vv", "vvv") and not begins("", "vvvv")
    assert begins("", "vvvvv"), "also when audio is missing just before the voice"
    assert not begins("", "....vvvvv"), "but not far from it"
    assert not begins("vvv", "......"), "missing audio in silence is no voice"
    assert not begins("v", "v.v.v.v.v.v"), "once"


def test_a_caller_weaker_than_our_echo_is_detected_in_its_gaps_and_leaked_echo_is_not() -> None:
    assert Windows(min_speech_ms=200).feed("veveveveveveveveve")[0][0] is Change.BEGAN
    assert Windows(min_speech_ms=200).feed("veeeee" * 100) == []


def test_a_caller_behind_our_echo_begins_after_as_much_speech_as_without_it() -> None:
    windows = Windows(min_speech_ms=200)
    assert windows.feed("e" * 5 + "v" * 6) == []
    assert windows.feed("v") == [(Change.BEGAN, 12 * WINDOW_MS)]
    assert windows.spurt.begun_ms == 5 * WINDOW_MS


def test_our_echo_is_compared_only_when_something_depends_on_it() -> None:
    """A comparison costs as much as the network."""
    windows = Windows(min_speech_ms=200)
    windows.feed("e" * 70)
    assert windows.n_asked <= 10


def test_an_echo_is_compared_while_its_windows_are_kept() -> None:
    windows = Windows(min_speech_ms=2000)
    assert windows.feed("eeeeeeeeeeeee..." * 20) == []
    assert windows.feed("v" * 70) == [(Change.BEGAN, (320 + 63) * WINDOW_MS)]


def test_the_closed_part_of_a_consonant_counts_half_and_only_behind_the_caller() -> None:
    assert Windows(min_speech_ms=200).feed("vvvvvqv")[0] == (Change.BEGAN, 7 * WINDOW_MS)
    assert Windows(min_speech_ms=200).feed("vvvv" + "q" * 50) == []
    assert Windows(min_speech_ms=200).feed("eeeeqqeee" * 20) == []


def test_speech_ends_after_silence_and_its_end_is_that_of_its_voice() -> None:
    windows = Windows(min_speech_ms=96, silence_ms=320)
    windows.feed("vvvvv")
    assert len(windows.feed("." * 9)) == 1
    assert windows.feed(".")[-1] == (Change.ENDED, 15 * WINDOW_MS)
    assert windows.spurt.voice_end_ms == 5 * WINDOW_MS
    assert windows.feed("vvv")[-1][0] is Change.BEGAN, "it can begin again"
    assert windows.spurt.begun_ms == 15 * WINDOW_MS


def test_a_short_pause_and_doubtful_windows_do_not_end_speech_and_doubtful_windows_do_not_begin_it() -> None:
    assert Windows(min_speech_ms=96).feed("?" * 50) == []
    assert [change for change, _ in Windows(min_speech_ms=96, silence_ms=320).feed("vvv" + ".........?" * 20)] == [
        Change.BEGAN
    ]


def test_our_echo_does_not_keep_a_caller_speaking() -> None:
    changes = Windows(min_speech_ms=96, silence_ms=320).feed("vvv" + "e" * 20)
    assert [change for change, _ in changes] == [Change.BEGAN, Change.ENDED]
