"""Stage directions, citations, formulas and arrows: what is silent, what is spoken after all, and where it stood."""

from __future__ import annotations

import pytest

from telephony_tts.text.normalizer import is_speakable, normalize, normalize_spans
from telephony_tts.text.rewriting import Reading, spoken_spans
from telephony_tts.text.settled import settled_spans
from telephony_tts.text.thinking import may_begin_with_thinking

TOKENS = ("[laughter]", "[sigh]", "[breath]")


def said(text: str, lang: str) -> str:
    return " ".join(normalize(text, lang).split())


@pytest.mark.parametrize(
    ("lang", "text", "spoken"),
    [
        ("en", "[laughs] Sure.", "Sure."),
        ("en", "*clears throat* Well.", "Well."),
        ("en", "[sighs deeply] Yes (pause) no.", "Yes no."),
        ("zh", "（笑）好的。", "好的。"),
        ("zh", "*叹气*好的", "好的"),
        ("ja", "そうですね（笑）。", "そうですね。"),
        ("ko", "네 [한숨] 그래요.", "네 그래요."),
        ("en", "*Smile* for us [note]", "Smile for us note"),
        ("en", "He *laughs at us* (laughing gas)", "He laughs at us (laughing gas)"),
        ("zh", "（备注）好", "（备注）好"),
    ],
)
def test_stage_directions(lang: str, text: str, spoken: str) -> None:
    assert said(text, lang) == spoken


def test_a_direction_is_given_to_an_engine_that_has_it() -> None:
    given = normalize_spans("[laughs] 3 *sighs*", "en", TOKENS)
    assert "".join(span.spoken for span in given) == "[laughter] three [sigh]"
    assert said("叹气 is no direction", "en") == "叹气 is no direction"
    assert "".join(span.spoken for span in normalize_spans("*叹气*好 [coughs]", "zh", TOKENS)) == "[sigh]好 "
    assert is_speakable("[laughs]", TOKENS) and not is_speakable("[coughs]", TOKENS) and not is_speakable("[laughs]")


@pytest.mark.parametrize(
    ("lang", "text", "spoken"),
    [
        ("en", "See the policy【4:0†source】 for details.", "See the policy for details."),
        ("en", "It takes 5 days [1][2].", "It takes five days."),
        ("en", "It[12] takes 5 days.[3]", "It takes five days."),
        ("en", "It takes 5 days [1].", "It takes five days."),
        ("zh", "退款需要5天【4:0†source】。", "退款需要五天。"),
        ("zh", "退款需要5天[1]，请稍等。", "退款需要五天，请稍等。"),
        ("en", "[1] is the first key.", "one is the first key."),
        ("en", "Press [1] for sales or [2].", "Press one for sales or two."),
        ("en", "Sales [1], support [2].", "Sales one, support two."),
        ("zh", "请按[1]转人工。", "请按一转人工。"),
        ("zh", "【通知】请稍等。", "【通知】请稍等。"),
    ],
)
def test_citations(lang: str, text: str, spoken: str) -> None:
    assert said(text, lang) == spoken


@pytest.mark.parametrize(
    ("lang", "text", "spoken"),
    [
        ("en", "The area is $n^2$ and the price is $5.", "The area is n squared and the price is five dollars."),
        ("en", r"So \frac{3}{4} of it, 2\frac{1}{2} cups.", "So three quarters of it, two and a half cups."),
        ("en", r"$$\frac{a}{b} \times \sqrt{16}$$", "a divided by b times square root of sixteen"),
        ("en", r"\(x \leq 5\) and 90^\circ", "x less than or equal to five and ninety degrees"),
        ("en", "$x + y = 3$ for $x$", "x plus y equals three for x"),
        ("en", "x^2 + y^3", "x squared plus y cubed"),
        ("zh", r"面积是$n^2$，其中\frac{1}{2}是我的。", "面积是n平方，其中二分之一是我的。"),
        ("ko", r"\frac{1}{2}입니다", "이분의 일입니다"),
        ("ja", r"\frac{1}{2}です", "二分の一です"),
        ("en", "It is $5 and $10, or A$7.", "It is five dollars and ten dollars, or seven Australian dollars."),
        ("en", "Send $5 to a_b for $6.", "Send five dollars to a b for six dollars."),
        ("zh", "价格是$5和$10。", "价格是五美元和十美元。"),
    ],
)  # fmt: skip
def test_formulas_are_words_and_money_stays_money(lang: str, text: str, spoken: str) -> None:
    assert said(text, lang) == spoken


@pytest.mark.parametrize(
    ("lang", "text", "spoken"),
    [
        ("en", "Go to Settings → Billing -> Cards.", "Go to Settings, Billing, Cards."),
        ("en", "From 5 → 6, or 5→6.", "From five, six, or five six."),
        ("en", "It went from $60 → $65.", "It went from sixty dollars to sixty five dollars."),
        ("zh", "从5% → 6%", "从百分之五到百分之六"),
        ("ja", "5%→6%です", "五パーセントから六パーセントです"),
        ("ko", "5% → 6%입니다", "오 퍼센트에서 육 퍼센트입니다"),
        ("en", "← Back", "Back"),
        ("zh", "设置→账单 → 卡", "设置、账单、卡"),
        ("ko", "설정 → 결제", "설정, 결제"),
        ("en", "5 >= 4 and x <= 6", "five greater than or equal to four and x less than or equal to six"),
    ],
)
def test_arrows(lang: str, text: str, spoken: str) -> None:
    assert said(text, lang) == spoken


def test_a_formula_that_is_being_written_is_not_spoken_yet() -> None:
    said = settled_spans("The rule says that $x + y$ is always less than ten of", "en")
    assert "".join(span.spoken for span in said) in ("", "The rule says that", "The rule says")


def test_every_character_of_the_bot_has_its_span() -> None:
    text = r"[laughs] It is $n^2$, or \frac{1}{2}【4:0†source】 → five days [1][2]."
    for control in ((), TOKENS):
        spans = normalize_spans(text, "en", control)
        assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])] and spans[-1].end == len(text)
        (five,) = (span for span in spans if "five days" in span.spoken)
        assert text[five.start : five.end].strip() == "five days"


def test_markup_and_lexicons_say_otherwise() -> None:
    spans = spoken_spans("Take [1][2] now.", "en", (), [Reading(5, 8, "one"), Reading(8, 11, "two")])
    assert "".join(span.spoken for span in spans).split() == ["Take", "onetwo", "now."]


def test_thinking_at_the_beginning() -> None:
    assert may_begin_with_thinking(" <th") and may_begin_with_thinking("<THINK>a") and not may_begin_with_thinking(" ")
    assert not may_begin_with_thinking("<speak>")
