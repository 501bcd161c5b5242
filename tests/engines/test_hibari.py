import asyncio
import sys
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from conformance import joined, speak

from telephony_tts.engines.api import Pcm, Utterance
from telephony_tts.engines.hibari.engine import HibariEngine
from telephony_tts.engines.hibari.model import SAMPLE_RATE_HZ, HibariModel
from telephony_tts.runtime.errors import EngineError, EngineUnavailable, UnsupportedText

SENTENCES = (
    "Hello, how can I help you today?",
    "Your appointment is on Tuesday at three thirty in the afternoon.",
    "Thank you for calling, please hold the line.",
    "For sales, press one.",
    "Five of the four hundred have left.",
    "I'm sorry, I didn't catch that.",
    "Could you please repeat your account number?",
    "Shall we move the delivery to Friday morning?",
    "Have a good day.",
    "The total is forty two dollars and fifteen cents.",
)
SOFT_ONSETS = (
    "Five.",
    "For sales, press one.",
    "His hat.",
    "Her name?",
    "She sells shells.",
    "Thin ice.",
    "Who is it?",
)


@pytest.fixture(scope="module")
def model() -> HibariModel:
    return HibariModel()


def levels_dbfs(pcm: Pcm, n_window: int = SAMPLE_RATE_HZ * 5 // 1000) -> npt.NDArray[np.float64]:
    """The RMS level of each whole 5 ms in dBFS."""
    windows = pcm[: len(pcm) // n_window * n_window].astype(np.float64).reshape(-1, n_window) / 32768
    levels: npt.NDArray[np.float64] = 10 * np.log10(np.square(windows).mean(axis=1) + 1e-12)
    return levels


def pause_ends(pcm: Pcm) -> list[int]:
    """The samples at which sound begins again after at least 100 ms below -50 dBFS."""
    quiet = levels_dbfs(pcm) < -50
    n_window = SAMPLE_RATE_HZ * 5 // 1000
    return [i * n_window for i in range(20, len(quiet)) if not quiet[i] and quiet[i - 20 : i].all()]


def words_of(text: str, model: HibariModel, speed: float = 1.0) -> Iterator[tuple[str, int, int]]:
    for timing in model.speak(text, speed=speed).timings:
        yield text[timing.start_char : timing.end_char], timing.start_sample, timing.end_sample


@pytest.mark.slow
@pytest.mark.parametrize("text", SENTENCES + SOFT_ONSETS)
def test_speech_begins_within_20_ms_and_its_onset_is_whole(model: HibariModel, text: str) -> None:
    levels = levels_dbfs(model.speak(text).pcm)
    assert int(np.argmax(levels > -55)) * 5 <= 20, "a caller would wait"
    assert levels[0] < -55, "it begins in the middle of a sound"
    trail_ms = int(np.argmax(levels[::-1] > -55)) * 5
    assert 110 <= trail_ms <= 130


def test_the_gain_brings_speech_to_the_house_level(model: HibariModel) -> None:
    levels = [levels_dbfs(model.speak(text).pcm) for text in SENTENCES]
    active = np.concatenate([level[level > level.max() - 30] for level in levels])
    (voice,) = HibariEngine().voices
    assert 10 * np.log10(np.mean(10 ** (active / 10))) + voice.gain_db == pytest.approx(-20, abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("text", [*SENTENCES, 'He said: "no" — really?', "(wow)… 42 & 7% of it!", "Dr. Smith"])
def test_the_network_gets_the_same_input_as_from_hibari_itself(model: HibariModel, text: str) -> None:
    from hibari import Hibari

    hibari = Hibari(g2p=model.english._g2p)
    assert model.english.read(text).ids == hibari.ids(" ".join(hibari.phonemize(text)))


@pytest.mark.slow
def test_durations_are_known_and_words_begin_where_pauses_end(model: HibariModel) -> None:
    assert model.has_durations
    n_pauses = 0
    for text in (
        "Yes, ten, pick, top, cat, dog.",
        "Wait. Please, take care. Stop. Go back, tiger.",
        "Well, yes. Your balance is fine. Next, press three.",
    ):
        for speed in (0.7, 1.0):
            spoken = list(words_of(text, model, speed))
            pcm = model.speak(text, speed=speed).pcm
            for pause_end in pause_ends(pcm):
                n_pauses += 1
                assert min(abs(start - pause_end) for _, start, _ in spoken) <= 0.05 * SAMPLE_RATE_HZ, (text, pause_end)
            for word, start, end in spoken:
                assert levels_dbfs(pcm[start:end]).max() > -40, word
    assert n_pauses >= 8


def test_without_durations_timings_are_proportional(model: HibariModel) -> None:
    model.has_durations = False
    try:
        timed = list(words_of("Tiny responsibilities wait", model))
    finally:
        model.has_durations = True
    assert [word for word, _, _ in timed] == ["Tiny", "responsibilities", "wait"]
    assert timed[1][2] - timed[1][1] > 2 * (timed[0][2] - timed[0][1])
    assert all(a[2] <= b[1] for a, b in pairwise(timed))


def test_normalised_words_keep_their_place(model: HibariModel) -> None:
    timed = {word: (start, end) for word, start, end in words_of("Pay $1,249.99 by May 6 to Dr. Smith now.", model)}
    assert list(timed) == ["Pay", "1,249.99", "by", "May", "6", "to", "Dr", "Smith", "now"]
    seconds = (timed["1,249.99"][1] - timed["1,249.99"][0]) / SAMPLE_RATE_HZ
    assert seconds > 2, "one thousand two hundred forty nine dollars and ninety nine cents"
    assert timed["by"][1] - timed["by"][0] < 0.3 * SAMPLE_RATE_HZ


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Code 0042.", "Code 0 0 4 2."),
        ("Call 1-800-555-0199 now.", "Call 1, 8 0 0, 5 5 5, 0 1 9 9 now."),
        ("Order #4815 left.", "Order #4 8 1 5 left."),
        ("Number 12345678.", "Number 1 2 3 4 5 6 7 8."),
    ],
)
def test_digits_of_identifiers_are_read_one_by_one(model: HibariModel, written: str, said: str) -> None:
    assert model.english.read(written).ids == model.english.read(said).ids


@pytest.mark.parametrize("text", ["on 2024-05-06 at 09:30", "$1,000,000 and 3.05", "page 42", "5/6/2024", "10-20"])
def test_numbers_that_hibari_reads_well_are_unchanged(model: HibariModel, text: str) -> None:
    from hibari import Hibari

    hibari = Hibari(g2p=model.english._g2p)
    assert model.english.read(text).ids == hibari.ids(hibari.phonemize(text)[0])


def test_phonemes_cannot_be_smuggled_in_as_markup(model: HibariModel) -> None:
    plain = model.english.read("yes").ids
    assert model.english.read("[yes](/nˈO/)").ids[: len(plain) - 1] == plain[:-1]


@pytest.mark.parametrize(
    "text", ["你好", "Hello 世界", "こんにちは", "안녕", "привет", "γεια", "مرحبا", "שלום", "नमस्ते", "สวัสดี"]
)
def test_other_scripts_are_refused(text: str) -> None:
    engine = HibariEngine()
    with pytest.raises(UnsupportedText, match=r"^hibari speaks English only, not [a-z/]+ letters$"):
        engine.check(Utterance("u", text))
    with pytest.raises(UnsupportedText):
        asyncio.run(speak(engine, Utterance("u", text)))


@pytest.mark.parametrize("text", ["Café naïve Zoë, Łódź, señor", "№ 5 ™ 10 µg ½", "ﬁne Ｆｕｌｌ", "…", "“Hi” – she’d"])
def test_latin_text_of_any_kind_is_accepted(text: str) -> None:
    try:
        HibariEngine().check(Utterance("u", text))
    except UnsupportedText as refusal:
        raise AssertionError(f"refused: {refusal}") from refusal


@pytest.mark.slow
def test_a_word_of_repeated_letters_is_not_spoken_for_45_seconds() -> None:
    async def body() -> None:
        engine = HibariEngine(n_workers=1)
        await engine.start()
        for text in ("A" * 300, "a" * 300, "Hello " + "Bx" * 500):
            assert len(joined(await speak(engine, Utterance("u", text)))) < 15 * SAMPLE_RATE_HZ
        await engine.close()

    asyncio.run(body())


@pytest.mark.slow
def test_speech_before_start_and_after_close_is_an_engine_error() -> None:
    async def body() -> None:
        engine = HibariEngine(n_workers=1)
        with pytest.raises(EngineError, match="not started"):
            await speak(engine, Utterance("u", "Hello"))
        await engine.start()
        await engine.start()
        await engine.close()
        with pytest.raises(EngineError, match="not started"):
            await speak(engine, Utterance("u", "Hello"))
        await engine.start()
        assert await speak(engine, Utterance("u", "Hello"))
        await engine.close()

    asyncio.run(body())


@pytest.mark.parametrize("package", ["hibari", "onnxruntime"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EngineUnavailable, match=rf"needs the package {package}: \.venv/bin/pip install -e \.$"):
        asyncio.run(HibariEngine().start())
