"""The segmenter on call-centre text: marked cases, and each method of its interface."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from telephony_tts.text.segmenter import Segmenter, Sentence

REQUIRED, OPTIONAL = "⏐", "¦"


def read_cases(path: Path) -> list[Any]:
    with path.open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    return [pytest.param(case["lang"], case["marked"], id=case["id"]) for case in cases]


CASES = read_cases(Path(__file__).with_name("sentences.jsonl"))
FULL_SET = Path(os.environ.get("TELEPHONY_TTS_CASES", "")) / "sentences.jsonl"


def n_content(text: str) -> int:
    return sum(char.isalnum() for char in text)


def marked_boundaries(marked: str) -> tuple[str, set[int], set[int]]:
    """(text, required, optional): a boundary is the number of letters, digits and ideographs before it."""
    text = marked.replace(REQUIRED, "").replace(OPTIONAL, "")
    required, optional, n_left = set(), set(), 0
    for char in marked:
        if char == REQUIRED:
            required.add(n_left)
        elif char == OPTIONAL:
            optional.add(n_left)
        else:
            n_left += char.isalnum()
    edges = {0, n_left}
    return text, required - edges, optional - edges


def found_boundaries(sentences: list[Sentence]) -> set[int]:
    ends, n_left = set(), 0
    for sentence in sentences:
        n_left += n_content(sentence.text)
        ends.add(n_left)
    return ends - {n_left}


def segment(text: str, **options: int) -> list[str]:
    segmenter = Segmenter(**options)  # type: ignore[arg-type]
    return [sentence.text for sentence in segmenter.feed(text) + segmenter.flush()]


def feed_by_character(text: str, lang: str | None = None) -> list[Sentence]:
    segmenter = Segmenter(lang)
    sentences = [sentence for char in text for sentence in segmenter.feed(char)]
    return sentences + segmenter.flush()


@pytest.mark.slow
@pytest.mark.parametrize(("lang", "marked"), CASES)
def test_sentences_end_at_the_marks_of_a_case(lang: str, marked: str) -> None:
    text, required, optional = marked_boundaries(marked)

    sentences = feed_by_character(text, lang)

    assert found_boundaries(sentences) - optional == required - optional, [s.text for s in sentences]
    assert n_content("".join(s.text for s in sentences)) == n_content(text)


if "TELEPHONY_TTS_CASES" in os.environ and FULL_SET.exists():

    def test_the_full_set_meets_its_targets() -> None:
        scores: dict[str, list[bool]] = {"must": [], "should": []}
        with FULL_SET.open(encoding="utf-8") as lines:
            for case in map(json.loads, lines):
                text, required, optional = marked_boundaries(case["marked"])
                found = found_boundaries(feed_by_character(text, case["lang"]))
                scores[case["level"]].append(required <= found <= required | optional)

        assert sum(scores["must"]) >= 0.98 * len(scores["must"])
        assert sum(scores["should"]) >= 0.82 * len(scores["should"])


def emitted_after(text: str, ending: str) -> int:
    """How many characters after `ending` are needed until its sentence is emitted."""
    segmenter = Segmenter()
    for n_fed, char in enumerate(text, start=1):
        if segmenter.feed(char):
            return n_fed - len(ending)
    raise AssertionError("no sentence before the flush")


@pytest.mark.parametrize(
    ("first", "rest", "n_ahead"),
    [
        ("好。", "好", 1),
        ("您好！！", "请", 1),
        ("Yes!", " No", 2),
        ("Please wait.", " The agent is coming", 2),
        ("That is $5.", " Thanks", 2),
        ("- apples", "\n- pears", 1),
        ("Call us at 5 p.m.", " Thanks a lot", 8),
    ],
)
def test_a_sentence_is_emitted_as_soon_as_it_is_certain(first: str, rest: str, n_ahead: int) -> None:
    assert emitted_after(first + rest, first) == n_ahead


def test_offsets_are_those_of_the_turn() -> None:
    segmenter = Segmenter()

    sentences = segmenter.feed("  Hello there.  您好。") + segmenter.feed("Bye") + segmenter.flush()

    assert sentences == [Sentence("Hello there.", 2, 14), Sentence("您好。", 16, 19), Sentence("Bye", 19, 22)]


def test_offsets_continue_after_a_flush_and_restart_after_a_reset() -> None:
    segmenter = Segmenter()
    segmenter.feed("One.")
    segmenter.flush()

    assert segmenter.feed(" Two.\n") == [Sentence("Two.", 5, 9)]
    segmenter.reset()
    assert segmenter.feed("Three.\n") == [Sentence("Three.", 0, 6)]


def test_reset_leaves_nothing_behind() -> None:
    segmenter = Segmenter(first_clause_chars=4)
    segmenter.feed("1. **Call (now “wait 《一")
    segmenter.timeout()
    segmenter.reset("en")

    assert segmenter.pending == ""
    assert [s.text for s in segmenter.feed("Alpha, beta. 2. Gamma") + segmenter.flush()] == [
        "Alpha,",
        "beta.",
        "2. Gamma",
    ]


def test_pending_is_what_was_not_emitted() -> None:
    segmenter = Segmenter()
    segmenter.feed("您好。请稍")
    assert segmenter.pending == "请稍"
    segmenter.feed("等。")
    assert segmenter.pending == "请稍等。"
    segmenter.flush()
    assert segmenter.pending == ""


@pytest.mark.parametrize(
    "junk", ["", " \n ", ".", ". . .", "! ! !", "……", "😊😊", "---\n***\n", "”）》", "\ud800" * 3 + "."]
)
def test_text_without_content_gives_no_sentence(junk: str) -> None:
    assert segment(junk) == []


@pytest.mark.parametrize("text", ["\ud800嗨。\udfff好", "5 m ². Ok", "x ½. Ok", "\x00a.\x00 B", "a\u200d.\ufe0f B"])
def test_malformed_text_passes_unchanged(text: str) -> None:
    assert "".join("".join(segment(text)).split()) == "".join(text.split())


def test_a_list_marker_alone_on_its_line_waits_for_its_item() -> None:
    assert segment("1.\n拨打热线") == ["1.\n拨打热线"]


def test_emphasis_over_two_sentences_closes_after_the_second() -> None:
    assert segment("**您好。请稍等。**好的。**Wait.** Ok.") == ["**您好。", "请稍等。**", "好的。", "**Wait.**", "Ok."]


def test_a_line_end_closes_what_was_left_open() -> None:
    assert segment('He said "wait\nOne. Two (\nThree. Four') == ['He said "wait', "One.", "Two (", "Three.", "Four"]


def test_an_unclosed_opening_does_not_hold_the_turn() -> None:
    text = "他说“" + "您好" * 20 + "。" + "请稍等" * 30 + "。谢谢。再见。"
    assert segment(text)[1:] == ["谢谢。", "再见。"]


class TestFirstClause:
    def test_only_the_first_sentence_is_cut_and_only_once(self) -> None:
        text = "Hello Mr. Lee, thank you, sir. One, two, three, four."
        assert segment(text, first_clause_chars=10) == ["Hello Mr. Lee,", "thank you, sir.", "One, two, three, four."]

    def test_the_text_after_a_cut_is_the_rest_of_a_sentence(self) -> None:
        assert segment("Hi there, ok. you know. Bye", first_clause_chars=5) == ["Hi there,", "ok. you know.", "Bye"]

    def test_off_by_default(self) -> None:
        assert segment("您好，感谢您的来电，请问有什么可以帮您？") == ["您好，感谢您的来电，请问有什么可以帮您？"]

    def test_wide_characters_count_twice(self) -> None:
        text = "您好，感谢您的来电，请讲。"
        assert segment(text, first_clause_chars=4) == ["您好，", "感谢您的来电，请讲。"]
        assert segment(text, first_clause_chars=6) == ["您好，感谢您的来电，", "请讲。"]

    @pytest.mark.parametrize(
        ("text", "sentences"),
        [
            ("It is 1,234,567 dollars, sir", ["It is 1,234,567 dollars,", "sir"]),
            ("At 3:30 it starts: come", ["At 3:30 it starts:", "come"]),
            ("On Dec. 5, 2026 we open", ["On Dec. 5, 2026 we open"]),
            ("时间是３：３０，请准时", ["时间是３：３０，", "请准时"]),
            ("号码400-800-8888，请拨打", ["号码400-800-8888，", "请拨打"]),
            ("See https://a.io/x,y;z:1 now", ["See https://a.io/x,y;z:1 now"]),
            ("A well-known fact - really", ["A well-known fact -", "really"]),
            ("好的，没问题——马上办理", ["好的，没问题——", "马上办理"]),
            ("请选择：1. 查询 2. 投诉", ["请选择：", "1. 查询 2. 投诉"]),
            ("请看《你好，世界》这本书", ["请看《你好，世界》这本书"]),
        ],
    )
    def test_never_inside_an_atom_or_a_title(self, text: str, sentences: list[str]) -> None:
        assert segment(text, first_clause_chars=5) == sentences


class TestTimeout:
    @pytest.mark.parametrize(
        ("text", "spoken", "held"),
        [
            ("请稍等", ["请稍等"], ""),
            ("您好。", ["您好。"], ""),
            ("How are you?", ["How are you?"], ""),
            ("Please hold on. ", ["Please hold on."], ""),
            ("Your number is SF1234", ["Your number is"], "SF1234"),
            ("您的余额是￥1,23", ["您的余额是"], "￥1,23"),
            ("一共三百五", ["一共"], "三百五"),
            ("时间是3:", ["时间是"], "3:"),
            ("网址：https:", ["网址："], "https:"),
            ("mail to jane.doe@exam", ["mail to"], "jane.doe@exam"),
            ("Open https://example.com/search?", ["Open"], "https://example.com/search?"),
            ("好的，请看exam", ["好的，"], "请看exam"),
            ("Sure, one moment", ["Sure,"], "one moment"),
            ("Visit exam", [], "Visit exam"),
            ("Hello there. Please meet Dr. ", [], "Please meet Dr. "),
            ("1. ", [], "1. "),
            ("Let me check...", ["Let me check..."], ""),
            ("It costs 42...", ["It costs 42..."], ""),
            ("We open at 9 a.m.", [], "We open at 9 a.m."),
            ("The total is 42.", ["The total is"], "42."),
            ("See ../docs..", ["See"], "../docs.."),
        ],
    )
    def test_emits_what_is_safe_and_holds_the_rest(self, text: str, spoken: list[str], held: str) -> None:
        segmenter = Segmenter()
        segmenter.feed(text)

        assert [s.text for s in segmenter.timeout()] == spoken
        assert segmenter.pending == held

    def test_an_ordinary_last_word_is_held_only_once(self) -> None:
        segmenter = Segmenter()
        segmenter.feed("Please hold on.")
        assert segmenter.timeout() == []
        assert segmenter.timeout() == [Sentence("Please hold on.", 0, 15)]

    @pytest.mark.parametrize("text", ["We open at 9 a.m.", "In the U.S.", "Wait. I.", "vvvv.", "B.", "1. "])
    def test_what_ends_with_a_full_stop_waits_for_two_timeouts_at_most_if_it_is_no_number(self, text: str) -> None:
        """Pinned: dotted words and list markers waited for the end of the turn, half a minute in an open one."""
        segmenter = Segmenter()
        spoken = segmenter.feed(text) + segmenter.timeout() + segmenter.timeout()
        assert " ".join(sentence.text for sentence in spoken) == text.strip()

    def test_new_text_makes_the_last_word_uncertain_again(self) -> None:
        segmenter = Segmenter()
        segmenter.feed("Please hold")
        segmenter.timeout()
        segmenter.feed(" on")
        assert segmenter.timeout() == []
        assert segmenter.pending == "Please hold on"

    def test_the_turn_continues_as_if_it_had_not_paused(self) -> None:
        segmenter = Segmenter()
        segmenter.feed("It is 3")
        segmenter.timeout()
        assert segmenter.feed(".") == []
        assert [s.text for s in segmenter.feed("5 dollars. Ok")] == ["3.5 dollars."]

    def test_a_quote_that_was_open_stays_open(self) -> None:
        segmenter = Segmenter()
        segmenter.feed("系统提示“还剩3")
        segmenter.timeout()
        assert [s.text for s in segmenter.feed("次。请重试”字样。好") + segmenter.flush()] == [
            "3次。请重试”字样。",
            "好",
        ]

    @pytest.mark.parametrize(
        ("text", "more", "sentences"),
        [
            ("We are (for now clos", "ed). Bye. See you", ["We are (for now closed).", "Bye.", "See you"]),
            ("We close at 5 p.m. “We", " do.” Bye. See you", ["“We do.”", "Bye.", "See you"]),
        ],
    )
    def test_an_opening_that_is_read_again_counts_once(self, text: str, more: str, sentences: list[str]) -> None:
        segmenter = Segmenter()
        segmenter.feed(text)
        segmenter.timeout()
        assert [s.text for s in segmenter.feed(more) + segmenter.flush()] == sentences

    def test_an_atom_is_held_until_more_text_comes(self) -> None:
        segmenter = Segmenter()
        segmenter.feed("It is 12,3")
        assert [segmenter.timeout() for _ in range(3)] == [[Sentence("It is", 0, 5)], [], []]
        assert [s.text for s in segmenter.feed("45 in all. Thanks")] == ["12,345 in all."]

    def test_a_list_continues_after_a_timeout(self) -> None:
        segmenter = Segmenter()
        segmenter.feed("Choose: 1. sales")
        assert [s.text for s in segmenter.timeout()] == ["Choose:"]
        assert [s.text for s in segmenter.feed(", or 2. supp")] == []
        assert [s.text for s in segmenter.timeout()] == ["1. sales,"]
        assert [s.text for s in segmenter.feed("ort, 3. More") + segmenter.flush()] == ["or 2. support, 3. More"]


class TestForcedCut:
    def test_prefers_a_clause(self) -> None:
        text = "you can call us today, or you can write to us whenever you like it"
        assert segment(text, max_chars=40)[0] == "you can call us today,"

    def test_then_a_blank(self) -> None:
        assert segment("please " * 12, max_chars=40) == [
            "please please please please please",
            "please please please please please",
            "please please",
        ]

    def test_then_any_place_between_wide_characters(self) -> None:
        assert segment("请" * 100, max_chars=40) == ["请" * 40, "请" * 40, "请" * 20]

    @pytest.mark.parametrize(
        "atom", ["SF1234567890", "1,234,567.89", "https://a.io/b?c=d", "jane.doe@example.com", "Dr. Smith"]
    )
    def test_spares_atoms(self, atom: str) -> None:
        for n_before in range(10, 45):
            text = (
                ("请" * n_before + atom + "查收" * 30)
                if " " not in atom
                else "ab " * (n_before // 3) + atom + " ab" * 30
            )
            assert any(atom in sentence for sentence in segment(text, max_chars=40)), n_before

    def test_an_atom_longer_than_the_limit_is_cut_at_it(self) -> None:
        assert segment("1" * 100, max_chars=40) == ["1" * 40, "1" * 40, "1" * 20]

    def test_limits_are_checked(self) -> None:
        with pytest.raises(ValueError, match="max_chars is 15"):
            Segmenter(max_chars=15)
        with pytest.raises(ValueError, match="first_clause_chars is -1"):
            Segmenter(first_clause_chars=-1)


@pytest.mark.parametrize(
    "line",
    [
        "Max. 5 people per booking.|Min. 2 nights.",
        "Qty. 3 is reserved.|Rte. 66 is closed.",
        "Exp. 08/27.|Ref. No. 12345 is open.",
        "Acc. 1234 is active.|Inv. 22 is paid.",
        "Mob. 07700 900123.|Dep. 10:15, arr. 12:40.",
        "Ver. 3 is out.|Yr. 9 camp starts.",
        "It's 50 mi. N. of here.",
        "Use the app.|3 steps remain.",
        "I asked Max.|He said yes.",
    ],
)
def test_english_abbreviations_before_numbers(line: str) -> None:
    segmenter = Segmenter("en")
    assert [sentence.text for sentence in segmenter.feed(line.replace("|", " ")) + segmenter.flush()] == line.split("|")
