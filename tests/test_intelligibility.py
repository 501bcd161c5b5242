"""The benchmark of intelligibility: what counts as heard wrong, and what our voice reads wrong in its sentences.

`test_benchmarks.py` runs it with its recogniser.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

_BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(_BENCHMARKS))

from harness.error_rates import Errors, character_errors, rate, syllable_errors, word_errors  # noqa: E402
from intelligibility import Speech, joints, sentences, sound  # noqa: E402


@pytest.mark.parametrize(
    ("spoken", "heard", "n_wrong"),
    [
        ("金额是二百八十六{点五元|元五角}", "金额是286.5元。", 0),
        ("金额是二百八十六{点五元|元五角}", "金额是286元5角", 0),
        ("金额是二百八十六{点五元|元五角}", "金额是268.5元。", 2),
        ("工号三零七六", "工号3076", 0),
        ("手机号是幺三八", "手机号是138", 0),
        ("两千零四十八元", "2,048元", 0),
        ("上午十点{三十|三十分|半}", "上午10:30", 0),
        ("进度是百分之八十五", "进度是85%", 0),
        ("您的SF单", "您的 sf 单", 0),
        ("您的SF单", "您的 S-F 单", 0),
        ("您的SF单", "您的单", 2),
        ("您的iPhone十五", "您的阿锋15", 2),
        ("您的iPhone十五", "您的单十五", 1),
        ("最新版的App", "最新版的APP。", 0),
        ("您的WiFi路由器", "您的Wi-Fi路由器", 0),
        ("八八{at|@|艾特}一六三", "88@163", 0),
        ("零下五{摄氏度|度}", "零下5℃", 0),
        ("还[huan2]款", "环款", 1),
        ("还[huan2]款日", "", 3),
        ("好", "好的吧", 2),
    ],
)
def test_wrong_characters_of_mandarin(spoken: str, heard: str, n_wrong: int) -> None:
    assert character_errors(spoken, heard, "zh").n_wrong == n_wrong


@pytest.mark.parametrize(
    ("spoken", "heard", "n_wrong"),
    [
        ("还[huan2]款", "环款", 0),
        ("还[huan2]款", "还款", 0),
        ("还[huan2]款", "孩款", 1),
        ("还[hai2]款", "孩款", 0),
        ("账单{日|期}还[huan2]款", "帐单期环款", 0),
        ("师傅", "诗父", 0),
        ("尾号七四一", "尾号74腰", 0),
        ("您的iPhone还[hai2]在", "您的iPhone孩在", 0),
        ("您的iPhone还[hai2]在", "您的App环在", 2),
        ("是的", "十的", 1),
        ("一共不要", "衣共布要", 0),
    ],
)
def test_wrong_syllables_forgive_the_same_sound_but_not_the_same_letters(spoken: str, heard: str, n_wrong: int) -> None:
    assert syllable_errors(spoken, heard).n_wrong == n_wrong


@pytest.mark.parametrize(
    ("spoken", "heard", "n_wrong"),
    [
        ("合計で一万三千二百円になります", "合計で1万3,200円になります。", 0),
        ("零三{の|}五五五五です", "03-5555です", 0),
        ("ご入力ください", "ご入力下さい。", 0),
        ("消費税十パーセント", "消費税10%", 0),
        ("百五円", "105円", 0),
        ("四桁", "四けた", 2),
    ],
)
def test_wrong_characters_of_japanese(spoken: str, heard: str, n_wrong: int) -> None:
    assert character_errors(spoken, heard, "ja").n_wrong == n_wrong


@pytest.mark.parametrize(
    ("spoken", "heard", "n_wrong"),
    [
        ("four hundred {|and} eighty two dollars {|and} seventeen {cents|}", "$482.17.", 0),
        ("one eight {hundred|zero zero} five five five {zero|oh} one four two", "1-800-555-0142", 0),
        ("march {third|the third} at nine fifteen", "March 3rd at 9:15.", 0),
        ("march third", "March 3", 0),
        ("flight a c eight fifty seven", "Flight AC 857", 0),
        ("fourteen twenty saint james", "1420 St. James", 0),
        ("eighteen point nine percent", "18.9%", 0),
        ("at six forty this morning", "at 6.40 this morning", 0),
        ("between two and four pm", "between 2 and 4 p.m.", 0),
        ("jane dot doe at example dot com", "jane.doe@example.com", 0),
        ("i'm sorry mister o'brien", "I’m sorry, Mr. O'Brien", 0),
        ("fifteen or fifty", "50 or 50", 1),
        ("press one for sales", "Press for", 2),
    ],
)
def test_wrong_words_of_english(spoken: str, heard: str, n_wrong: int) -> None:
    assert word_errors(spoken, heard).n_wrong == n_wrong


def test_a_sentence_as_it_is_written_is_all_right() -> None:
    """A recogniser may write it so. It also shows that each line has its reference behind it."""
    assert [len(sentences(language)) for language in ("zh", "en", "ja")] == [60, 30, 30]
    for language in ("zh", "ja"):
        for sentence in sentences(language):
            assert character_errors(sentence.spoken, sentence.text, language).n_wrong == 0, sentence
    for sentence in sentences("en"):
        assert word_errors(sentence.spoken, sentence.text).n_wrong == 0, sentence
    for sentence in sentences("zh"):
        assert syllable_errors(sentence.spoken, sentence.text).n_wrong == 0, sentence


def test_a_rate_is_that_of_all_tokens_and_has_an_interval() -> None:
    found = rate([Errors(1, 10), Errors(0, 30), Errors(3, 10)])
    assert (found["percent"], found["wrong"], found["of"]) == (8.0, 4, 50)
    assert 0 <= found["low"] < 8 < found["high"] <= 30


def _speech(*parts: tuple[float, float], joint_s: float | None = None) -> Speech:
    """Tones of an amplitude and a length in seconds, at 8 kHz."""
    waves = [a * np.sin(np.arange(round(8000 * s)) * 2 * np.pi * 440 / 8000) for a, s in parts]
    pcm = np.concatenate(waves).astype(np.int16)
    return Speech(pcm, 8000, pcm, [] if joint_s is None else [round(8000 * joint_s)])


def test_silence_pauses_and_level_are_measured() -> None:
    figures = sound([_speech((0, 0.05), (8000, 0.5), (0, 0.2), (8000, 0.5), (0, 0.12))])
    assert figures["leading_ms"]["p50"] == 50 and figures["trailing_ms"]["p50"] == 120
    assert figures["pauses"] == 1 and figures["pause_ms"]["p50"] == 200
    assert figures["level_dbm0"]["p50"] == pytest.approx(20 * np.log10(8000 / 32768) - 3.01 + 6.18, abs=0.1)
    assert figures["clipped_of_engine"] == 0 and sound([_speech((32767.9, 0.5))])["clipped_of_engine"] > 0


def test_a_joint_is_compared_with_the_whole_clause() -> None:
    whole = _speech((8000, 0.5), (8000, 0.5))
    hasty = _speech((4000, 0.5), (8000, 0.5), joint_s=0.5)
    figures = joints([hasty], [whole])
    assert figures["n"] == 1 and figures["level_step_db"]["p50"] == pytest.approx(6.0, abs=0.1)
    gap = joints([_speech((8000, 0.45), (0, 0.1), (8000, 0.45), joint_s=0.5)], [whole])
    assert gap["added_pause_ms"]["p50"] == 100
    assert joints([hasty], [_speech((8000, 1.0), joint_s=0.5)])["n"] == 0  # a joint of clauses, which both have


@pytest.mark.slow
def test_the_sentences_are_read_as_a_person_reads_them() -> None:
    """The characters with more than one reading that the sentences annotate, by the front end of the Mandarin voice."""
    from telephony_tts.app import config, offline
    from telephony_tts.app.settings import session_settings
    from telephony_tts.engines.catalog import Catalog
    from telephony_tts.engines.kokoro.engine import KokoroEngine

    engine = KokoroEngine()
    catalog, speech = Catalog([engine], {}), session_settings(config.load(None, {}))
    wrong: set[str] = set()
    for sentence in sentences("zh"):
        given = [engine.shown(each)["pinyin"] for *_, each in offline.utterances(sentence.text, catalog, speech)]
        read = iter(" ".join(given).split())
        # Up to the first alternative: characters behind it have no certain place.
        for char, wanted in re.findall(r"([\u3400-\u9fff])(?:\[(\w+)])?", sentence.spoken.partition("{")[0]):
            if (found := next(read)) != wanted and wanted:
                wrong.add(f"{char} {wanted} not {found}")
    # The families of 乐 differ, so this one is left to the bot's lexicon.
    assert wrong == {"乐 yue4 not le4"}
