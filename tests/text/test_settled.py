"""The settled part of a sentence is read the same with any text after it, and it stays settled."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telephony_tts.text.markdown import strip
from telephony_tts.text.normalizer import SpokenSpan, choose_language, normalize, normalize_spans
from telephony_tts.text.settled import behind, settled_spans

HERE = Path(__file__).parent
CORPUS = [
    sentence.strip(" ¦")
    for line in (HERE / "sentences.jsonl").read_text(encoding="utf-8").splitlines()
    for sentence in json.loads(line)["marked"].replace("¦", "").split("⏐")
]
READING_TESTS = ("english/test_english_rules.py", "chinese/test_chinese_rules.py", "test_normalizer.py")
WRITTEN = sorted({
    node.elts[0].value
    for file in READING_TESTS
    for node in ast.walk(ast.parse((HERE / file).read_text(encoding="utf-8")))
    if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant)
    and isinstance(node.elts[0].value, str)
})  # fmt: skip


def settled(text: str, lang: str | None = None) -> int:
    """The length of the settled part of `text`."""
    spans = settled_spans(text, lang)
    return spans[-1].end if spans else 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Thank you for calling us today, I am", "Thank you for calling us"),
        ("I am so glad to see", "I am so"),
        ("I am so glad to", ""),
        ("Well, don't you think so, my dear friend", "Well, don't you think so,"),
        ("Sure — let me check that for you now", "Sure — let me check that"),
        ("Your balance is now forty dollars", "Your balance is"),
        ("Your balance is now $40 and that is all I know", "Your balance is now $40 and that is"),
        ("The word we had for it is e.g. this one and so on", "The word we had for"),
        ("We can do this in the sixth week of May 5", "We can do this in the sixth"),
        ("It works with any of the USD accounts you may", "It works with any"),
        ("She told me about it and said (as ever", "She told me about it"),
        ("She told me about it and said \"no way", "She told me about it"),
        ("She told me about it and **really** did", "She told me about"),
        ("All of this is one line\nand this the next one", "All of this"),
        ("Hello to all of you! I am so glad to be", ""),
        ("- an item that is plain otherwise and long", ""),
        ("3 words that are plain otherwise and long", "3 words that are plain"),
        ("call me at exam", ""),
        ("It is at host:path and so on and on it goes now", "It is at host:path and so on and on"),
        ("please write to me about it at exam", "please write to me about"),
        ("오늘 날씨가 정말 좋은 것 같네요", "오늘 날씨가 정말"),
        ("您好，很高兴为您服务请", "您好，很高兴为"),
        ("您好，很高兴", ""),
        ("您的余额已经查到了是300元整请问", "您的余额已经"),
        ("我们会在星期六为您送货上门请放心", "我们会在星期六为您送货上"),
        ("请您打开APP查看订单的物流信息", "请您打开APP查看订单的"),
        ("", ""),
        (" ", ""),
        (" I am so glad to see you now ", ""),
    ],
)
def test_examples(text: str, said: str) -> None:
    assert text[: settled(text)] == said


def assert_settled(whole: str, lang: str | None = None) -> int:
    """For every way of arrival: what is said of what settled is the beginning of the reading of the whole.

    Returns how much settled. Only where the whole is in another language than its beginning is the beginning read in
    its own.
    """
    said, so_far, n_before = normalize(whole, lang), "", 0
    read = normalize_spans(whole, lang)
    spans: list[SpokenSpan] = []
    for n_arrived in range(len(whole) + 1):
        text = whole[:n_arrived]
        found = settled_spans(text, lang)
        n = found[-1].end if found else 0
        assert n_before <= n <= n_arrived, f"{text!r} unsettles"
        if n > n_before:
            assert [span.start for span in found] == [0, *(span.end for span in found[:-1])]
            more = behind(found, n_before)
            so_far += "".join(span.spoken for span in more)
            spans += more
            if all(span.spoken == whole[span.start : span.end] for span in found):
                assert normalize(whole[:n], lang) == whole[:n]
            if language_of(text, lang) == language_of(whole, lang) or so_far == whole[:n]:
                assert said.startswith(so_far), f"{text!r} is read otherwise"
                rest = behind(read, n)
                assert so_far + "".join(span.spoken for span in rest) == said
                assert [s.start for s in [*spans, *rest]] == [0, *(s.end for s in [*spans, *rest][:-1])]
            n_before = n
    return n_before


def language_of(text: str, lang: str | None) -> str:
    """The language the normaliser reads `text` in."""
    return choose_language(strip(text).text, lang)


@pytest.mark.slow
@pytest.mark.parametrize("lang", [None, "en", "zh", "ja", "ko", "fr"])
def test_the_corpora_of_sentences_and_of_readings(lang: str | None) -> None:
    assert len(CORPUS) > 400 and len(WRITTEN) > 100
    for text in [*CORPUS, *WRITTEN]:
        assert_settled(text, lang)


SENTENCES = [
    "Your parcel with the number 4711 was handed to the courier and will be there before 5 pm tomorrow, if it is dry.",
    "The balance of your savings account is $1,250.40 and the last payment to it was made on May 5 by your employer.",
    'We have a table for four at the "Golden Lion" restaurant and they will keep it for you until half past eight.',
    "The code 482913 is your one time login code for the app and it is good for ten minutes from now on.",
    "The number 482913 is your new and improved seat in the hall and so it will be for many more years.",
    "He said that 482913 is our own two-factor login password for the app and so on.",
    "We moved to 1600 Old Post Oak Road in the summer and have been there ever since then.",
    "We saw that 1600 Old Post Oak people came to the game and it was a very good day.",
    "You can reach us at 1-800-555-0199 or write to help@shop.com and we will answer within 24 hours of your message.",
    "Please call (555) 123-4567 extension 42 and ask for the lady at the desk who knows it all.",
    "The meeting is on 12/05/2024 at 3:30 pm in the large room (second floor) and everyone is welcome to come along.",
    "This is **very important** for us because the size is 5 kg and more than 50% of the boxes are too small for it.",
    "It takes between 5 to 10 thousand dollars and about 3 to 4 weeks of work until it is done for you.",
    "We are open Mon-Fri from 9-5pm and on Sat - Sun from 10 to 4 for all who want to see us here.",
    "In 2024 and 2025 there were 1999 people who used SF1234 and the A380 on their way to the sea.",
    "您的快递单号是4711，已经交给快递员，预计明天下午5点前送到。",
    "您的储蓄账户余额是1250.40元，如果您还需要其他帮助请直接告诉我。",
    "这家名叫“金狮”的餐厅就在您家旁边，我们帮您预订了今晚的座位。",
    "请您注意查收，482913是您的本次登录临时验证码，请不要把它告诉其他人好吗。",
    "请您注意查收，482913是您的本次登录时间段里面的访客人数，请不要把它告诉其他人好吗。",
    "我们在2024年5月12日8：30到17：45为您服务，热线是400-820-8820，欢迎您来电咨询我们的服务。",
    "您订的A380航班CA1234会从3号航站楼出发，票价为￥1,250，请您提前2个小时到达机场办理手续。",
    "请您打开www.shop.com或者发邮件到a@b.com，我们的客服人员会在24小时以内给您回复的。",
]


@pytest.mark.parametrize("text", SENTENCES)
@pytest.mark.parametrize("lang", [None, "en", "zh"])
def test_sentences_of_a_call_centre(text: str, lang: str | None) -> None:
    n_settled = assert_settled(text, lang)
    assert n_settled > 0.4 * len(text) or (lang == "zh" and text.isascii())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Your parcel with the number 4711 was handed to", "Your parcel with"),
        ("Your parcel with the number 4711 was handed to ", "Your parcel with the number 4711 was"),
        ("It is there before 5 pm tomorrow, unless it", "It is there before 5 pm"),
        ("The one at the \"Golden Lion\" place is the best", "The one at the \"Golden Lion\" place"),
        ("The one in this very \"Golden Lion place is the best", "The one in"),
        ("The one at the “Golden Lion” place is the best", "The one at the “Golden Lion” place"),
        ("The one at the 'Golden Lion' place is the best", "The one at the 'Golden Lion' place"),
        ("The one in this very 'Golden Lion place is the best", "The one in"),
        ("The one on the (second floor) is not the best", "The one on the (second floor) is"),
        ("The one on this very [second floor is not the best", "The one on"),
        ("The one with **bold words** in it is not", "The one with **bold words** in"),
        ("The one with *bold words* in it is not", "The one with *bold words* in"),
        ("The one with it has *bold words in it is not so", "The one with"),
        ("The one with it has <b>bold words in it is not so", "The one with"),
        ("Call 482913 is your new and shiny", ""),
        ("Call 482913 is your new and shiny code ", "Call 482913 is your new and"),
        ("Call 482913 is your new and shiny code", ""),
        ("It is 1600 Old post oak it", ""),
        ("It is 1600 Old post oak it is", "It is 1600 Old post"),
        ("She paid $5 to Dr. Lee and that is all", ""),
        ("She paid $5. And that is all there is to it", ""),
        ("She is 5'10\" tall and that is all I know", "She is 5'10\" tall and that is"),
        ("I see USD as one of the best there", "I see USD as one of"),
        ("We open Mon-Fri of every week in the year", "We open Mon-Fri of every week"),
        ("He said to \"all of you who are here now\" it", ""),
        ("I live in 北京 at 5 and that is all I know", ""),
        ("I see that it has 5 fl oz of it", "I see that"),
        (
            "您的 plan has all of the good new things we can find for you A5，已经交给快递员",
            "您的 plan has all of the good new things we can find",
        ),
        ("他们的单号是4711，已经交给快递", ""),
        ("他们的单号是4711，已经交给快递员", "他们的单号是4711，已经交"),
        ("他们的单号4711是已经交给了快递员的", ""),
        ("他们的单号4711是已经交给了快递员的那个", "他们的单号4711是已经交给了快递"),
        ("他们的“金狮”餐厅就在旁边那里", "他们的“金狮”餐厅就在"),
        ("他们的“金狮餐厅就在旁边那里", ""),
        ("他们的地址（就在您家旁边的那里", ""),
        ("他们的5是这样的吗？我们可不这么看", ""),
    ],
)
def test_past_numbers_and_signs(text: str, said: str) -> None:
    assert text[: settled(text)] == said


def test_the_settled_part_is_normalised() -> None:
    spans = settled_spans("Your balance is now $40 and that is all")
    assert "".join(span.spoken for span in spans) == "Your balance is now forty dollars and"
    spans = settled_spans("您的单号是4711，已经交给快递员")
    assert "".join(span.spoken for span in spans) == "您的单号是四七幺幺，已经交"
    spans = settled_spans("I have [breath] the list and it is long", control=["[breath]"])
    assert "".join(span.spoken for span in spans) == "I have [breath] the list and"


def test_no_number_settles_in_an_uncertain_language() -> None:
    for lang in ("ja", "ko", "fr", "zh"):
        assert settled("You pay now $40 and that is all I know", lang) == 0
    assert settled("您的单号是4711，已经交给快递员", "ja") == 0


def test_a_part_read_in_english_stays_when_the_sentence_becomes_chinese() -> None:
    head, tail = "You pay now $40 and that is all I", " know，请您在5点以前把钱送到我们这里来好吗"
    fed = settled_spans(head)
    rest = behind(normalize_spans(head + tail), fed[-1].end)
    assert settled_spans(head + "北京5" * 20) == fed, "and nothing behind it is asked"
    said = "".join(span.spoken for span in [*fed, *rest])
    assert said.startswith("You pay now forty dollars and that is all I know，请您在五点")


def test_much_of_plain_speech_settles() -> None:
    """Of a sentence of plain words all but the last few are spoken before it ends."""
    for text in [
        "I am sorry to hear that, let me have a look at your account and see what happened there.",
        "没有问题，我马上为您查看这个订单的配送情况，请您稍微等我片刻。",
    ]:
        assert settled(text) > 0.7 * len(text)


PLAIN = """
    I you the a plan B may May March Sat Sun Mon Fri am pm to of at no No fig min sec USD usd kg OK US is code your
    order room x xxxx call dial half key press well-known don't it’s o'clock 'tis café être 안녕하세요 오늘
    und version v http www exam mailto e g etc by between
"""
words = st.sampled_from(PLAIN.split())
odd = st.sampled_from(
    ["5", "4829", "2024", "1/2", "$5", "-5", "5kg", "5:30", "p.m.", "Dr.", "e.g.", "a@b.com", "x.com", "www.a.b", "w/o",
     "and/or", "**", "*a*", "_", "`", "#", "&", "&amp;", "<b>", "[", "](", "(", ")", '"', "“", "~", "—", "–", "-", "--",
     "...", ".", "!", "\n", "\t", "😀", "½", "①", "º", "|", "Ⅷ", "か", "カ", "؟", "%", "+", "=", "/", ":", "://"]
)  # fmt: skip
han = st.text("好的请您稍等我帮查一下今年周三点分秒元二十万两半到是为明天上午，、；：", min_size=1, max_size=12)
tokens = st.one_of(words, words, words, odd, han)
joints = st.sampled_from([" ", " ", " ", " ", "", ", ", ": ", ",", "，", "  ", " – ", "—", " - "])
texts = st.lists(st.tuples(tokens, joints), max_size=16).map(lambda pairs: "".join(t + j for t, j in pairs))
languages = st.sampled_from([None, "en", "zh", "ja", "ko", "und"])


@pytest.mark.slow
@given(texts, languages)
@settings(max_examples=600, deadline=None)
def test_any_text(text: str, lang: str | None) -> None:
    assert_settled(text, lang)


@pytest.mark.slow
@given(st.lists(words, min_size=5, max_size=9), st.lists(st.tuples(joints, tokens), max_size=6), languages)
@settings(max_examples=600, deadline=None)
def test_plain_words_and_then_anything(plain: list[str], tail: list[tuple[str, str]], lang: str | None) -> None:
    assert_settled(" ".join(plain) + "".join(j + t for j, t in tail), lang)


plain_han = st.text("好的请您稍等我帮查下这个问题，", min_size=6, max_size=14)


@pytest.mark.slow
@given(plain_han, st.lists(tokens, max_size=5).map("".join), languages)
@settings(max_examples=600, deadline=None)
def test_plain_mandarin_and_then_anything(plain: str, tail: str, lang: str | None) -> None:
    assert_settled(plain + tail, lang)


NUMBERS = """
    5 2 12 17 98 482 911 2024 1999 1600 4829 62704 482913 1,250 1,250.40 3.5 0042 $5 $1,250.40 $5-10 €3.50 5% 50%,
    5kg 5:30 17:45, 3/4 5/12 12/31 12/05/2024 2024-05-12 2024-05 9-5pm 1990s 90s 5th 22nd 3rd, 4G A380 SF1234 AB-12
    COVID-19 v1.2 1.2.3 24/7 24-hour 555-0199 1-800-555-0199 +1 +86 (555) 123-4567 800-FLOWERS 10.0.0.1 a@b.com
    www.shop.com/a shop.com, https://shop.com/x?a=1 XXXX-4821 ****4821 #4815 # & R&D + = @ and/or w/o - – — -5 5- 2x
    5x3 5x 10^3 °C 20°C 5'10" "Golden "4829" Lion" "so" (as ever) (4829) [a] **4829** **very important** *so* `x`
    '90s 'tis' May June Mon Mon-Fri Sat–Sun USD EUR IL CA x ext 1st. Dr. p.m. a.m. 5pm 5½ ½ 10k 3M 5bn m² 1.299,00
    12,5 €49,90 1.299,00€ 12,5% 1,2 Jan-Mar Sept–Dec, press
"""
LINKS = """
    to of is as was your the my our and or through new one time login two-factor code PIN password number id sign in
    log verify confirm thousand million bn dollars cents percent minutes day days people kg fl oz sq ft ft hours hrs
    am pm cup inch off full price stars points Old Post Oak Pennsylvania Street Avenue St Road key per for between
    from until we will be there soon, about it; extension years will had order account press call version at about
    it now here customers have
"""
numbers, links = st.sampled_from(NUMBERS.split()), st.sampled_from(LINKS.split())


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.lists(links, max_size=7), st.lists(numbers, max_size=3)), max_size=5),
    st.sampled_from([None, None, "en", "zh", "ja"]),
)
@settings(max_examples=800, deadline=None)
def test_english_numbers_between_words(phrases: list[tuple[list[str], list[str]]], lang: str | None) -> None:
    assert_settled(" ".join(word for left, right in phrases for word in [*left, *right]), lang)


def test_a_unit_behind_per_settles_with_its_reading() -> None:
    """Pinned: "to to per k" had settled as it stands before the g came."""
    assert_settled("to to per kg to 5")


HAN_NUMBERS = """
    5 2 12 98 05 11 110 482 2024 4711 1600 482913 13800138000 010-12345678 400-820-8820 1,250.40 1250.40元 ¥5 $5 5%
    50% 5:30 17：45 3/4 1/5 12/31 2024-05-12 08-15 5-7 5~7 5到7 2024年5月 95后 5折 85折 4G A380 SF1234 v1.2 24/7
    #4815 # + - — APP USD kg 5kg ㎡ 5㎡ 10w 5k wifi ok is a@b.com www.a.com “ ” “金狮” 「好」 （ （010） （好的） 《
    》 **好** 。 ！
"""
HAN_LINKS = """
    是您的 是 为您的 本次登录 验证码 临时密码 订单号 编号 ，已经 交给 快递员 ，请您 稍等 我们 会在 下午 明天 点前
    送到 到 至 年 年以内 年级 月 日 号 楼 诊室 房租 路公交车 路程 个 单 单元 名次 元 万 多个 打电话 客服热线 次列车
    左右 转 分机 尾号 订单 按 第 周 点 分 以 的 您好 很高兴 为您服务 ，谢谢 、 ：
"""
han_numbers, han_links = st.sampled_from(HAN_NUMBERS.split()), st.sampled_from(HAN_LINKS.split())


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.lists(han_links, max_size=7), st.lists(han_numbers, max_size=2)), max_size=5),
    st.sampled_from(["", "", " "]),
    st.sampled_from([None, None, "zh", "en", "ja"]),
)
@settings(max_examples=800, deadline=None)
def test_mandarin_numbers_between_words(
    phrases: list[tuple[list[str], list[str]]], joint: str, lang: str | None
) -> None:
    assert_settled("".join("".join(left) + joint + joint.join(right) + joint for left, right in phrases), lang)


@pytest.mark.parametrize("piece", ["a", "a ", "ab-", "a'", "好", "好，", " ", "- ", "-", ", ", "a, "])
def test_long_runs_cost_little(piece: str) -> None:
    """The faulthandler timeout is the bound."""
    assert settled((piece * 20_000)[:20_000]) >= 0
