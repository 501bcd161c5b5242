"""What a caller hears for the Japanese text that a bot writes, in kanji and for a voice that reads digits itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_rows import heard, read_in_pieces, rows, said_in_call

from telephony_tts.text.normalizer import normalize, normalize_spans

HERE = Path(__file__).parent
_SIGNS = r"~〜*#/_^<>\\|=@%&+$€£¥₩₹℃°㎡㎞㎖×÷½※▲△≦≧①-⑳㈱〒"
UNREAD = re.compile(f"[0-9{_SIGNS}]")
"""What an engine would speak in its own way, or swallow."""
UNREAD_SIGN = re.compile(f"[{_SIGNS}]")


ORDINARY, KINDS = rows(HERE / "ordinary.txt"), rows(HERE / "kinds.txt")


@pytest.mark.parametrize(("written", "spoken"), [*ORDINARY, *KINDS])
def test_reading(written: str, spoken: str) -> None:
    said = normalize(written, "ja")
    assert heard(said) == heard(spoken)
    assert not UNREAD.search(said), said
    assert normalize(written) == said, "the language is seen"
    assert not UNREAD_SIGN.search(normalize(written, "ja-x-digits"))


def test_the_data_is_there() -> None:
    assert len(ORDINARY) > 140 and len(KINDS) > 160


READINGS = [  # (written, in kanji, for a voice that reads digits)
    ("3名様、10分ほど", "三名様、十分ほど", "3名様、10分ほど"),
    ("12,800円", "一万二千八百円", "12800円"),
    ("¥550です", "五百五十円です", "550円です"),
    ("残高は-2,300円", "残高はマイナス二千三百円", "残高はマイナス2300円"),
    ("前年比▲5%", "前年比マイナス五パーセント", "前年比マイナス5パーセント"),
    ("容量は20GBまで", "容量は二十ギガバイトまで", "容量は20ギガバイトまで"),
    ("B1Fと3F", "地下一階と三階", "地下1階と3階"),
    ("03-1234-5678まで", "ゼロ三一二三四五六七八まで", "ゼロサン、イチニーサンヨン、ゴーロクナナハチまで"),
    ("(03)1234-5678", "ゼロ三一二三四五六七八", "ゼロサン、イチニーサンヨン、ゴーロクナナハチ"),
    ("+81 3-1234-5678", "プラス八一三一二三四五六七八", "プラスハチイチ、サン、イチニーサンヨン、ゴーロクナナハチ"),
    ("〒150-0043", "郵便番号一五ゼロゼロゼロ四三", "郵便番号イチゴーゼロ、ゼロゼロヨンサン"),
    ("確認コードは4071です", "確認コードは四ゼロ七一です", "確認コードはヨンゼロナナイチです"),
    ("コードは「8765」", "コードは「八七六五」", "コードは「ハチナナロクゴー」"),
    ("コードは10分間有効", "コードは十分間有効", "コードは10分間有効"),
    ("整理番号1724番", "整理番号一七二四番", "整理番号イチナナニーヨン番"),
    ("受付番号は25番", "受付番号は二十五番", "受付番号は25番"),
    ("型番はKX-2051DW", "型番はKX二ゼロ五一DW", "型番はK X ニーゼロゴーイチ D W"),
    ("2026-11-29に", "二千二十六年十一月二十九日に", "2026年11月29日に"),
    ("令和8.9.14です", "令和八年九月十四日です", "令和8年9月14日です"),
    ("11/30(日)に", "十一月三十日日曜日に", "11月30日日曜日に"),
    ("3/4に伺います", "三月四日に伺います", "3月4日に伺います"),
    ("3/4の料金", "四分の三の料金", "4分の3の料金"),
    ("9:00～18:30", "九時から十八時三十分", "9時から18時30分"),
    ("AM9:05", "午前九時五分", "午前9時5分"),
    ("9時05分", "九時五分", "9時5分"),
    ("9時-18時", "九時から十八時", "9時から18時"),
    ("1,000円〜2,000円", "千円から二千円", "1000円から2000円"),
    ("月～金に", "月曜から金曜に", "月曜から金曜に"),
    ("月・水・金に", "月曜、水曜、金曜に", "ゲツ、スイ、キンに"),
    ("赤坂1-2-3です", "赤坂一の二の三です", "赤坂1の2の3です"),
    ("3-5日で", "三から五日で", "3から5日で"),
    ("192.168.0.1", "一九二点一六八点ゼロ点一", "イチキューニーテンイチロクハチテンゼロテンイチ"),
    ("①②から", "一、二から", "1、2から"),
    ("①8-12時②14-16時", "一、八から十二時、二、十四から十六時", "1、8から12時、2、14から16時"),
    ("#12を", "シャープ一二を", "シャープイチニーを"),
    ("½カップ", "二分の一カップ", "2分の1カップ"),
    ("¥6,600/¥8,800", "六千六百円、八千八百円", "6600円、8800円"),
    ("9:00〜12:00 / 15:00〜18:00", "九時から十二時 、 十五時から十八時", "9時から12時 、 15時から18時"),
    ("5分<10分", "五分小なり十分", "5分小なり10分"),
    ("2~3日かかる", "二から三日かかる", "ニサンニチかかる"),
    ("八分、十分のどちらか", "八分、十分のどちらか", "8分、10分のどちらか"),
    ("十分ご注意を", "十分ご注意を", "十分ご注意を"),
    ("ゼロ三一二三四五六七八", "ゼロ三一二三四五六七八", "ゼロサンイチニーサンヨンゴーロクナナハチ"),
    ("三百五号室", "三百五号室", "305号室"),
]


@pytest.mark.parametrize(("written", "kanji", "digits"), READINGS)
def test_each_kind_of_voice_gets_its_form(written: str, kanji: str, digits: str) -> None:
    assert normalize(written, "ja") == kanji
    assert normalize(written, "ja-x-digits") == digits


def test_a_tag_for_digits_changes_no_other_language() -> None:
    assert normalize("共3,500元", "zh-x-digits") == normalize("共3,500元", "zh")
    assert normalize("It is $5.", "en-x-digits") == "It is five dollars."
    assert normalize("Your code is 4821, thank you so much.", "ja-x-digits").startswith("Your code is four eight")


def test_digits_that_stay_are_heard_one_by_one() -> None:
    spans = normalize_spans("3名様で1,980円", "ja-x-digits")
    assert [(span.start, span.end, span.spoken) for span in spans if not span.is_written] == [(4, 9, "1980")]


@pytest.mark.parametrize("first", range(0, len(ORDINARY) - 4, 4))
def test_a_stream_is_read_as_the_whole_text(first: int) -> None:
    """Cut at every place, and character by character."""
    text = "".join(written for written, _ in ORDINARY[first : first + 4])
    for lang in ("ja", "ja-x-digits"):
        whole = read_in_pieces([text], lang, "ja")
        assert read_in_pieces(list(text), lang, "ja") == whole
        for cut in range(1, len(text)):
            assert read_in_pieces([text[:cut], text[cut:]], lang, "ja") == whole


def test_a_code_of_the_call_stays_a_code() -> None:
    codes: set[str] = set()
    assert said_in_call("内線番号は123です。", "ja", codes) == "内線番号は一二三です。"
    assert said_in_call("123でよろしいですか。", "ja", codes) == "一二三でよろしいですか。"
    assert said_in_call("在庫は123個です。", "ja", codes) == "在庫は百二十三個です。", "what is counted is an amount"
    assert said_in_call("123でよろしいですか。", "ja", set()) == "百二十三でよろしいですか。", "another call"


WRITTEN = """
    482913 1234 12 3 0 09 1,234 3.5 2026.11.29 2026-11-29 11/30 3/4 09:30 1:1 03-1234-5678 **** A4 v2.1 7XK29Q 1丁目
    kg ㎡ ℃ % 円 個 番 時 分 日 名 万 月 〜 ~ - – * # / _ ^ < > = + & @ $ ₩ € ¥ \\ ▲ ± ※ 〒 ① Ⅲ ㈱ ㌔ ≦ × ÷ ½ ²
    ゼロ 三 千 はい コードは 番号 を です。 a@b.com www.a.jp No. PM R8. 月 ・ 、 。 : ( ) （ ） 「 」 あ
"""
_PIECES = st.sampled_from(WRITTEN.split())
_ANY = st.lists(st.one_of(_PIECES, st.just(" "), st.text(max_size=1)), max_size=14).map("".join)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(_ANY)
def test_nothing_is_left_unread(text: str) -> None:
    text += "です"
    for lang, unread in (("ja", UNREAD), ("ja-x-digits", UNREAD_SIGN)):
        spans = normalize_spans(text, lang)
        assert "".join(text[span.start : span.end] for span in spans) == text
        said = "".join(span.spoken for span in spans)
        if not re.search("[가-힣ᄀ-ᇿㄱ-ㆎ]", text):
            assert not unread.search(said), (text, said)
        said.encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    ["1", "1,", "1.", "1-", "1 ", "あ1", "〜", "-", "*", "#", "1/", "1:", "A1", "¥1", "12あ", "月・", "ゼロ", "千"],
)
def test_time_is_linear(piece: str) -> None:
    """A quadratic pattern would take minutes and hit the faulthandler timeout."""
    for lang in ("ja", "ja-x-digits"):
        assert not UNREAD_SIGN.search(normalize("あ" + (piece * 20_000)[:20_000], lang))
