from itertools import pairwise

from telephony_tts.engines.cosyvoice2.text.word_clock import WordClock


def test_words_are_placed_in_order_and_before_their_audio() -> None:
    text = "one, two three 四五 six"
    for n_last in (48_000, 4_800, 3_050):
        clock = WordClock(text, 0, len(text), 1000, 1.0)
        taken, n = [], 1000
        for i, n_samples in enumerate([5000, 7000, n_last]):
            clock.add_audio(n_samples, n + n_samples - 1000 + 3000 * (i < 2), last=i == 2)
            timings = clock.take(n_samples)
            assert all(n <= timing.start_sample < n + n_samples for timing in timings)
            taken += timings
            n += n_samples
        assert [text[t.start_char : t.end_char] for t in taken][:2] == ["one", "two"]
        assert all(a.end_sample <= b.start_sample for a, b in pairwise(taken))
        assert all(t.start_sample < t.end_sample <= n for t in taken)
        assert taken[0].start_sample == 1000 and taken[-1].end_sample == n and len(taken) == 6
