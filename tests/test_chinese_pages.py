"""The Chinese pages beside the English ones: neither can change alone. What runs their commands is named below.

README: tests/e2e/test_wscat.py, tests/test_readme_commands.py and tests/test_own_voice_pages.py, which also has
docs/zh/cosyvoice2.md. The others of docs/zh: tests/pbx/test_asterisk_docs.py and tests/pbx/test_freeswitch_docs.py.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from page_commands import ROOT, blocks, first_columns

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
PAIRS = [(ENGLISH, CHINESE)] + [(ROOT / "docs" / page.name, page) for page in sorted((ROOT / "docs/zh").glob("*.md"))]
CODE = [path for folder in ("telephony_tts", "sip_bridge", "examples") for path in ROOT.glob(f"{folder}/**/*.py")]
CORPUS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("configs/**/*"), *CODE, ROOT / "Makefile"]
ELSEWHERE = {
    "c(alaw)", "0 modules loaded", "Ringing()", "Wait(3)", "python3-dev",  # Asterisk's and Debian's
    # With values; the tests that run the pages see them.
    "==> heard.wav: 7.9 s, 5.9 s of it speech", "stored in models/CosyVoice2-0.5B/voices/anna.safetensors",
    "the recording cannot become a voice: its rate is 8000 Hz", "no voice 'anna'",
    "voices check --help", "voices list --model models/CosyVoice2-0.5B",
}  # fmt: skip
_HAN = re.compile(r"[\u4e00-\u9fff]")


def without_blocks(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def sections(page: Path) -> list[str]:
    """A page at its headings, without the code blocks and the line with the links between the languages."""
    text = re.sub(r"^(English \||\[English\]).*$", "", without_blocks(page), flags=re.MULTILINE)
    return re.split(r"^(?=#+ )", text, flags=re.MULTILINE)[1:]


def spans(text: str) -> Counter[str]:
    """The code inside the text. A sentence in it is in the page's language, and is left out."""
    return Counter(re.sub(r'"[^"]*[.。]"', '"…"', span) for span in re.findall(r"`([^`\n]+)`", text))


def numbers(text: str) -> Counter[str]:
    """The figures, without those of list items and the names of files and links."""
    text = re.sub(r"^\d+\. |\]\([^)]*\)|`[^`\n]*`|<[^>]*>", "", text, flags=re.MULTILINE)
    return Counter(re.findall(r"(?<![A-Za-z\d])\d(?:[\d,.]*\d)?", text))


def links(text: str) -> Counter[str]:
    """Where the links lead; a Chinese page counts as the English one."""
    return Counter(link.replace("docs/zh/", "docs/") for link in re.findall(r"\]\(([^)\s]+)\)", text))


def shape(text: str) -> list[str]:
    """What must agree of a section's lines: the heading's level, rows of tables with their cells, list items."""
    kinds = []
    for line in text.splitlines():
        if line.startswith("#"):
            kinds.append(line.split(" ")[0])
        elif line.startswith("|"):
            kinds.append("|" * line.count("|"))
        elif re.match(r"\d+\. ", line):
            kinds.append("item")
    return kinds


def test_both_readmes_have_the_same_sections_tables_figures_links_and_names() -> None:
    english, chinese = sections(ENGLISH), sections(CHINESE)
    assert len(english) == len(chinese) > 5
    for one, other in zip(english, chinese, strict=True):
        heading = one.splitlines()[0]
        assert shape(one) == shape(other), heading
        assert numbers(one) == numbers(other), heading
        assert spans(one) - spans(other) == Counter(), heading
        missing = links(one) - links(other)
        assert missing == Counter(), f"{heading}: the Chinese page does not link {set(missing)}"


def test_both_readmes_have_the_same_commands() -> None:
    english, chinese = ([first_columns(block.text) for block in blocks(page)] for page in (ENGLISH, CHINESE))
    assert len(english) > 4 and english == chinese


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=[str(chinese.relative_to(ROOT)) for _, chinese in PAIRS])
def test_each_page_links_the_other_language_at_its_top(english: Path, chinese: Path) -> None:
    for page, other in ((english, chinese), (chinese, english)):
        top = page.read_text(encoding="utf-8").splitlines()[2]
        (link,) = re.findall(r"\]\(([^)]+)\)", top)
        assert (page.parent / link).resolve() == other


def test_three_pages_lead_to_a_call_in_mandarin() -> None:
    assert {page.name for _, page in PAIRS} == {"README.zh.md", "asterisk.md", "freeswitch.md", "cosyvoice2.md"}


@pytest.mark.parametrize("page", [chinese for _, chinese in PAIRS], ids=lambda page: str(page.relative_to(ROOT)))
def test_names_of_code_on_a_chinese_page_are_on_an_english_page_or_in_a_configuration(page: Path) -> None:
    """A message, setting or file that is renamed there must be renamed here. Commands are not looked up but run."""
    corpus = "\n".join(path.read_text(encoding="utf-8") for path in CORPUS if path.is_file() and path != page)
    unknown = []
    for span in set(spans(without_blocks(page))) - ELSEWHERE:
        span = re.sub(r"^--set |=[^= ]*$|:\d+(?:\.0)?$", "", span)
        parts = span.split(".") if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", span) else re.split(r"[…:] |…|/", span)
        if not _HAN.search(span) and not re.match(r"make |\.venv/", span):
            unknown += [span] if any(part.strip() not in corpus for part in parts) else []
    assert unknown == []


def test_a_change_on_one_page_alone_is_seen() -> None:
    one = "## A\n\nIn 49 minutes `clear` came. [x](docs/a.md)\n\n| a | 1.7 ms |\n"
    other = "## 甲\n\n49 分钟里收到 `clear`。[x](docs/zh/a.md)\n\n| 甲 | 1.7 ms |\n"
    for read in (shape, numbers, spans, links):
        assert read(one) == read(other)
    assert numbers(other.replace("1.7", "1.8")) != numbers(one)
    assert shape(other.replace("| 甲 |", "| 甲 | 乙 |")) != shape(one)
    assert first_columns("make run        # here\n> typed\n") == ["make run"]
    assert first_columns("make run      # 这里\n> 输入\n") == ["make run"]
