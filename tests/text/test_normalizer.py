"""Texts of mixed and other languages as a caller hears them, and the functions of the normaliser."""

from __future__ import annotations

import pytest

from telephony_tts.text.normalizer import SpokenSpan, detect_lang, is_speakable, normalize, normalize_spans

MIXED = [
    ("iPhone 15 Pro Max 256GB售价¥9,999", "iPhone 十五 Pro Max 两百五十六GB售价九千九百九十九元"),
    ("您的case ID是CS-10234", "您的case ID是C S幺零二三四"),
    ("Hi 张先生，您的meeting在3:00 PM", "Hi 张先生，您的meeting在下午三点"),
    ("Your WeChat 微信 payment of $20 is complete", "Your WeChat 微信 payment of twenty dollars is complete"),
    ("WiFi密码是88886666，OTP为660912", "WiFi密码是八八八八六六六六，OTP为六六零九幺二"),
    ("帮您订了8月15号的room 1203", "帮您订了八月十五号的room 幺二零三"),
    ("R&D部门，T+1到账，5G套餐", "R and D部门，T加一到账，五G套餐"),
]

OTHERS = [
    ("2023/11/14", "ja", "二千二十三年十一月十四日"),
    ("会議は3:30pmです", None, "会議は午後三時三十分です"),
    ("오후3시30분", None, "오후세시삼십분"),
    ("₩15000", "ko", "만오천원"),
    ("Il y a 3 chats", "fr", "Il y a 3 chats"),
    ("**У меня** 3 яблока", None, "У меня 3 яблока"),
]


@pytest.mark.parametrize(("written", "spoken"), MIXED)
def test_mixed(written: str, spoken: str) -> None:
    assert normalize(written) == spoken


@pytest.mark.parametrize(("written", "lang", "spoken"), OTHERS)
def test_other_languages(written: str, lang: str | None, spoken: str) -> None:
    assert normalize(written, lang) == spoken


@pytest.mark.parametrize(
    ("written", "lang", "spoken"),
    [
        ("Mix 1:2:3.", "en", "Mix one to two to three."),
        ("比例1：2：3。", "zh", "比例一比二比三。"),
        ("比率は1：2：3です。", "ja", "比率は一対二対三です。"),
        ("비율은 1:2:3입니다.", "ko", "비율은 일대 이대 삼입니다."),
        ("At 14：30.", "en", "At fourteen thirty."),
        ("时间：14：30，编号：12。", "zh", "时间：十四点三十分，编号：十二。"),
        ("14：30입니다.", "ko", "십사시 삼십분입니다."),
    ],
)
def test_a_ratio_of_three_and_colons_as_wide_as_a_character(written: str, lang: str, spoken: str) -> None:
    assert normalize(written, lang) == spoken


@pytest.mark.parametrize(
    ("written", "lang", "spoken"),
    [
        ("Sales ↑5%.", "en", "Sales five percent."),
        ("売上↓3。", "ja", "売上三。"),
        ("売上↓3。", "ja-x-digits", "売上3。"),
        ("매출 ↑5%", "ko", "매출 오 퍼센트"),
        ("↑5 Prozent", "de", "5 Prozent"),
    ],
)
def test_an_arrow_before_a_number_is_silent_where_a_language_has_no_word_for_it(
    written: str, lang: str, spoken: str
) -> None:
    assert normalize(written, lang).replace(" ", "") == spoken.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "lang"),
    [
        ("Hello there", "en"),
        ("您好", "zh"),
        ("您的 iPhone 15 Pro 已发货", "zh"),
        ("Say 你好 to all of the three guests", "en"),
        ("10:00，22:00", "zh"),
        ("こんにちは、世界", "ja"),
        ("안녕하세요", "ko"),
        ("Привет", "und"),
        ("12:30", "en"),
    ],
)
def test_detect_lang(text: str, lang: str) -> None:
    assert detect_lang(text) == lang


def test_characters_overrule_a_wrong_hint() -> None:
    assert normalize("共3人", "en") == "共三人"
    assert normalize("You have 3 new messages waiting", "zh") == "You have three new messages waiting"
    assert normalize("3:00", "zh-CN") == "三点"


def test_spans_are_small_and_have_the_source_of_the_speech() -> None:
    text = "Pay **$5** by 12/31."
    assert normalize_spans(text, "en") == [
        SpokenSpan(0, 4, "Pay "),
        SpokenSpan(4, 6, ""),
        SpokenSpan(6, 8, "five dollars"),
        SpokenSpan(8, 10, ""),
        SpokenSpan(10, 14, " by "),
        SpokenSpan(14, 19, "December thirty first"),
        SpokenSpan(19, 20, "."),
    ]


def test_a_space_separates_words_that_would_touch() -> None:
    assert normalize("5%off", "en") == "five percent off"
    assert normalize("snake_case", "en") == "snake case"


@pytest.mark.parametrize("text", ["", " \n", "...", "😀👍", "**", "---", "<b></b>", "?!", "- ", "```", "\x00\udc00"])
def test_text_without_anything_to_say(text: str) -> None:
    assert not is_speakable(text)


@pytest.mark.parametrize("text", ["a", "好", "5", "**1**", "é", "¿qué?"])
def test_text_with_something_to_say(text: str) -> None:
    assert is_speakable(text)
