"""Mandarin text as pinyin: own words, rules, surnames, 一 and 不; and pinyin as Kokoro's symbols."""

from __future__ import annotations

from pathlib import Path

import pytest

from telephony_tts.engines.api import Pronunciation
from telephony_tts.engines.front_ends.mandarin import HAN_RUN, Mandarin, digits_as_han, is_syllable, sandhi, symbols
from telephony_tts.engines.front_ends.mandarin_words import MandarinWords

WORDS = Path(__file__).parents[2] / "telephony_tts" / "engines" / "front_ends" / "mandarin_words.txt"
DATA = Path(__file__).parents[2] / "telephony_tts" / "engines" / "front_ends" / "mandarin.txt"


@pytest.fixture(scope="module")
def mandarin() -> Mandarin:
    return Mandarin()


def read(mandarin: Mandarin, text: str) -> str:
    return " ".join(syllable for _, syllable in sorted(mandarin.read(text).items()))


def spoken(mandarin: Mandarin, text: str) -> str:
    return " ".join(syllable for _, syllable in sorted(sandhi(text, mandarin.read(text)).items()))


@pytest.mark.parametrize(
    ("text", "pinyin"),
    [
        ("您还有一百元没还", "nin2 hai2 you3 yi1 bai3 yuan2 mei2 huan2"),
        ("还要还利息吗", "hai2 yao4 huan2 li4 xi1 ma5"),
        ("您还得还五百元", "nin2 hai2 dei3 huan2 wu3 bai3 yuan2"),
        ("银行行长重新调整了调度", "yin2 hang2 hang2 zhang3 chong2 xin1 tiao2 zheng3 le5 diao4 du4"),
        ("您的余额为三百元", "nin2 de5 yu2 e2 wei2 san1 bai3 yuan2"),
        ("为您服务", "wei4 nin2 fu2 wu4"),
        ("请您重拨", "qing3 nin2 chong2 bo1"),
        ("这件很重", "zhe4 jian4 hen3 zhong4"),
        ("校长等了很长时间", "xiao4 zhang3 deng3 le5 hen3 chang2 shi2 jian1"),
        ("我得到了奖，我得去", "wo3 de2 dao4 le5 jiang3 wo3 dei3 qu4"),
        ("还款", "huan2 kuan3"),
        ("還款", "huan2 kuan3"),
        ("长垣和桦甸和天台县", "chang2 yuan2 he2 hua4 dian4 he2 tian1 tai1 xian4"),
        ("在我们行开过户", "zai4 wo3 men5 hang2 kai1 guo4 hu4"),
        ("是我们行不行", "shi4 wo3 men5 xing2 bu4 xing2"),
        ("已经调到高级专员那里", "yi3 jing1 diao4 dao4 gao1 ji2 zhuan1 yuan2 na4 li3"),
        ("请调到二十六度", "qing3 tiao2 dao4 er4 shi2 liu4 du4"),
        ("月底前补给您", "yue4 di3 qian2 bu3 gei3 nin2"),
        ("补给站", "bu3 ji3 zhan4"),
    ],
)
def test_words_are_read_as_meant(mandarin: Mandarin, text: str, pinyin: str) -> None:
    assert read(mandarin, text) == pinyin


@pytest.mark.parametrize(
    ("text", "pinyin"),
    [
        ("单先生您好", "shan4 xian1"),
        ("您好，仇女士", "qiu2 nv3 shi4"),
        ("请找任经理", "ren2 jing1 li3"),
        ("李华先生", "li3 hua2 xian1"),
        ("没有任何先生", "ren4 he2"),
        ("我是解小明先生", "xie4 xiao3 ming2"),
        ("请找单位领导", "dan1 wei4"),
        ("曾经有位先生", "ceng2 jing1"),
        ("重庆的曾女士", "zeng1 nv3 shi4"),
        ("您的单位主任", "dan1 wei4"),
        ("经理姓查，他在", "xing4 zha1 ta1"),
        ("您是姓单吗", "xing4 shan4 ma5"),
        ("同姓查询", "xing4 cha2 xun2"),
        ("请找区域经理", "qu1 yu4 jing1 li3"),
        ("我是行政主管", "xing2 zheng4 zhu3 guan3"),
        ("华东总监您好", "hua2 dong1 zong3 jian1"),
    ],
)
def test_a_surname_before_a_title_has_its_own_reading(mandarin: Mandarin, text: str, pinyin: str) -> None:
    assert pinyin in read(mandarin, text)


@pytest.mark.parametrize(
    ("text", "pinyin"),
    [
        ("一共", "yi2 gong4"),
        ("一起", "yi4 qi3"),
        ("一天", "yi4 tian1"),
        ("第一百", "di4 yi1 bai3"),
        ("一一零", "yi1 yi1 ling2"),
        ("一点五", "yi1 dian3 wu3"),
        ("下午一点", "xia4 wu3 yi1 dian3"),
        ("调大一点", "tiao2 da4 yi4 dian3"),
        ("一月一日", "yi1 yue4 yi1 ri4"),
        ("二〇一一年", "er4 ling2 yi1 yi1 nian2"),
        ("统一", "tong3 yi1"),
        ("看一看", "kan4 yi1 kan4"),
        ("不是不要", "bu2 shi4 bu2 yao4"),
        ("不好", "bu4 hao3"),
        ("我很好", "wo3 hen3 hao3"),
        ("保险费", "bao3 xian3 fei4"),
    ],
)
def test_the_tones_of_speech(mandarin: Mandarin, text: str, pinyin: str) -> None:
    assert spoken(mandarin, text) == pinyin


def test_pinyin_of_a_lexicon_decides_and_what_is_no_syllable_is_left_out(mandarin: Mandarin) -> None:
    given = [Pronunciation(0, 2, "pinyin", "huan2 kuan4"), Pronunciation(2, 3, "pinyin", "xyz9")]
    assert mandarin.read("还款日", given) == {0: "huan2", 1: "kuan4", 2: "ri4"}


def test_every_character_keeps_its_place(mandarin: Mandarin) -> None:
    text = "您好 VIP，\u3007五！"
    assert sorted(mandarin.read(text)) == [at for at, char in enumerate(text) if HAN_RUN.match(char)]
    assert digits_as_han("房间 302") == "房间 三零二" and digits_as_han("Room 302") == "Room 302"


def test_the_data_has_a_syllable_for_each_character_and_each_word_once() -> None:
    seen: dict[str, list[str]] = {}
    for line in DATA.read_text(encoding="utf-8").splitlines():
        word, *rest = line.split("#")[0].split() or [""]
        if word in ("", "~", "traditional"):
            continue
        if word == "surname":
            word, *rest = f"surname{rest[0]}", *rest[1:]
        assert len(word.removeprefix("surname")) == len(rest), line
        assert all(each == "." or is_syllable(each) for each in rest), line
        assert seen.setdefault(word, rest) == rest, line


@pytest.mark.parametrize(
    ("pinyin", "expected"),
    [
        ("zhong4", "ꭧʊ↘ŋ"), ("zhi1", "ꭧɨ→"), ("ju3", "ʨy↓"), ("lv4", "ly↘"), ("lve4", "lɥe↘"), ("er2", "ɚ↗"),
        ("yuan2", "ɥɛ↗n"), ("de5", "tɤ"), ("huan2", "xwa↗n"), ("shui3", "ʂwei↓"), ("bo1", "pwo→"), ("yong3", "jʊ↓ŋ"),
        ("xyz1", None), ("gi1", None), ("zhong", None), ("zhong6", None), ("", None), ("bv2", None), ("jong2", None),
    ],
)  # fmt: skip
def test_a_syllable_in_symbols(pinyin: str, expected: str | None) -> None:
    assert symbols(pinyin) == expected


# ------------------------------------------------------------------------------ words


@pytest.fixture(scope="module")
def words() -> MandarinWords:
    return MandarinWords()


@pytest.mark.parametrize(
    "divided",
    [
        "您 的 地址 是 朝阳区",
        "请 您 在 听到 一声 之后",
        "这笔 钱 已经 还清 了",
        "研究 生命 的 起源",  # the longest word first would be 研究生
        "魑魅魍魉",
        "一",
    ],
)
def test_a_run_is_divided_into_its_words(words: MandarinWords, divided: str) -> None:
    text = divided.replace(" ", "")
    begins = words.begins(text)
    assert "".join(" " * (at in begins) + char for at, char in enumerate(text)) == f" {divided}"


def test_characters_in_no_word_stay_together(words: MandarinWords) -> None:
    assert words.begins("沒還沒還") == {0}, "traditional"


def test_every_word_and_its_cost_are_read(words: MandarinWords) -> None:
    lines = WORDS.read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    for cost, *row in rows[::97]:
        assert all(words.cost(word) == int(cost) for word in row)
    assert words.cost("沒還") is None
