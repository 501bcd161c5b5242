"""<say-as>: what each kind makes of its text, by language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telephony_tts.text.say_as import SAY_AS, say_as
from telephony_tts.text.x_sampa import ipa_of

ENGLISH = [
    ("A1-b2", "characters", "", "A. one dash B two"),
    ("a@b.c", "characters", "", "A. at B dot C"),
    ("1234 567", "digits", "", "one two three four, five six seven"),
    ("2026", "digits", "", "two zero two six"),
    ("2026", "cardinal", "", "two thousand twenty six"),
    ("-1,234.5", "cardinal", "", "minus one thousand two hundred thirty four point five"),
    ("007", "cardinal", "", "seven"),
    ("3", "ordinal", "", "third"),
    ("23rd", "ordinal", "", "twenty third"),
    ("1,000", "ordinal", "", "one thousandth"),
    ("03/04/2026", "date", "", "March fourth, twenty twenty six"),
    ("03/04/2026", "date", "mdy", "March fourth, twenty twenty six"),
    ("03/04/2026", "date", "dmy", "April third, twenty twenty six"),
    ("2026-11-23", "date", "", "November twenty third, twenty twenty six"),
    ("20261123", "date", "yyyymmdd", "November twenty third, twenty twenty six"),
    ("23.11.26", "date", "d.m.y", "November twenty third, twenty twenty six"),
    ("11/23", "date", "md", "November twenty third"),
    ("11/2026", "date", "my", "November twenty twenty six"),
    ("2026", "date", "y", "twenty twenty six"),
    ("1430", "time", "", "fourteen thirty"),
    ("14.30", "time", "hms24", "fourteen thirty"),
    ("1'30\"", "time", "", "one minute thirty seconds"),
    ("2'01\"", "time", "hms24", "two minutes one second"),
    ("12′", "time", "", "twelve minutes"),
    ("45″", "time", "", "forty five seconds"),
    ("1/10/10", "date", "yyyymmdd", "October tenth, two thousand one"),
    ("95/10/1", "date", "yymmdd", "October first, nineteen ninety five"),
    ("2:30pm", "time", "hms12", "two thirty PM"),
    ("9:05:07 a.m.", "time", "", "nine oh five and seven seconds AM"),
    ("5 pm", "time", "", "five PM"),
    ("4155550199", "telephone", "", "four one five five five five zero one nine nine"),
    ("+1 (555) 010-0199 ext. 12", "telephone", "",
     "plus one, five five five, zero one zero, zero one nine nine, extension one two"),
    ("1-800-FLOWERS", "telephone", "", "one, eight zero zero, FLOWERS"),
    ("$42.50", "currency", "", "forty two dollars and fifty cents"),
    ("3.50", "currency", "EUR", "three euros and fifty cents"),
    ("3", "currency", "gbp", "three pounds"),
]  # fmt: skip
MANDARIN = [
    ("A1-b", "characters", "", "A 幺 杠 B"),
    ("重庆", "characters", "", "重庆"),
    ("1234 567", "digits", "", "幺二三四，五六七"),
    ("2021", "cardinal", "", "两千零二十一"),
    ("3", "ordinal", "", "第三"),
    ("2026-11-23", "date", "", "二零二六年十一月二十三日"),
    ("23/11/2026", "date", "dmy", "二零二六年十一月二十三日"),
    ("11/23", "date", "md", "十一月二十三日"),
    ("2026", "date", "y", "二零二六年"),
    ("14:30", "time", "", "十四点三十分"),
    ("1'30\"", "time", "", "一分钟三十秒"),
    ("1/10/10", "date", "yyyymmdd", "二零零一年十月十日"),
    ("2:30 p.m.", "time", "", "下午两点三十分"),
    ("010-12345678转12", "telephone", "", "零幺零，幺二三四五六七八转幺二"),
    ("+86 13800138000", "telephone", "", "加八六，幺三八零零幺三八零零零"),
    ("$42.50", "currency", "", "四十二点五美元"),
    ("42", "currency", "CNY", "四十二元"),
]
OTHERS = [
    ("AB1", "characters", "", "de", "A B 1"),
    ("12 3", "digits", "", "de", "1 2, 3"),
    ("12", "digits", "", "ja", "一 二"),
    ("2026-11-23", "date", "", "ja", "二千二十六年十一月二十三日"),
    ("3.4.26", "date", "dmy", "ko", "이천이십육년 사월 삼일"),
    ("14:30", "time", "", "ja", "十四時三十分"),
    ("3", "ordinal", "", "ko", "제삼"),
    ("3", "ordinal", "", "ja", "第三"),
]
PLAIN = [
    ("99/99/2026", "date", "", "en"), ("2026-13-01", "date", "", "zh"), ("23 Nov 2026", "date", "dmy", "en"),
    ("1/2/3/4", "date", "", "en"), ("1/2", "date", "mdy", "en"), ("x", "ordinal", "", "en"),
    ("1.5", "ordinal", "", "en"), ("about 3", "cardinal", "", "en"), ("none", "digits", "", "en"),
    ("14:30", "time", "", "de"), ("2026-11-23", "date", "", "de"), ("$5", "currency", "", "de"),
    ("3", "ordinal", "", "de"), ("5", "unheard of", "", "en"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "form", "said"), ENGLISH)
def test_english(text: str, kind: str, form: str, said: str) -> None:
    assert say_as(text, kind, form, "en") == said


@pytest.mark.parametrize(("text", "kind", "form", "said"), MANDARIN)
def test_mandarin(text: str, kind: str, form: str, said: str) -> None:
    assert say_as(text, kind, form, "zh") == said


@pytest.mark.parametrize(("text", "kind", "form", "lang", "said"), OTHERS)
def test_other_languages(text: str, kind: str, form: str, lang: str, said: str) -> None:
    assert say_as(text, kind, form, lang) == said


@pytest.mark.parametrize(("text", "kind", "form", "lang"), PLAIN)
def test_what_cannot_be_read_so_is_read_as_ever(text: str, kind: str, form: str, lang: str) -> None:
    assert say_as(text, kind, form, lang) is None


@given(
    st.text(max_size=30) | st.text(st.sampled_from("0123456789/-.:+ $ampyd第月²１"), max_size=20),
    st.sampled_from(sorted(set(SAY_AS.values()))),
    st.text(st.sampled_from("ymd-/EUR "), max_size=8),
    st.sampled_from(["en", "zh", "ja", "ko", "de", "und"]),
)
def test_any_text_is_read_somehow(text: str, kind: str, form: str, lang: str) -> None:
    said = say_as(text, kind, form, lang)
    assert said is None or isinstance(said, str)


@pytest.mark.parametrize(
    ("x_sampa", "ipa"),
    [('t@"mA:t@U', "təˈmɑːtəʊ"), ("S{N", "ʃæŋ"), ('%r\\EkOg"niS@n', "ˌɹɛkɔɡˈniʃən"), ("t_h", "tʰ"), ("", "")],
)
def test_x_sampa(x_sampa: str, ipa: str) -> None:
    assert ipa_of(x_sampa) == ipa
