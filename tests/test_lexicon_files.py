"""Lexicon files: what is read, what is refused and in which line, patterns in linear time, reading files again."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

import pytest
from log_lines import lines

from telephony_tts.ops import lexicon_files
from telephony_tts.ops.lexicon_files import (
    MAX_FILE_BYTES,
    MAX_PROBLEMS,
    LexiconFile,
    LexiconFiles,
    compiled,
    load,
    parse,
    polyphones,
)
from telephony_tts.runtime import metrics
from telephony_tts.runtime.errors import ConfigError
from telephony_tts.text.lexicon import MAX_PATTERNS, Lexicon, find_readings
from telephony_tts.text.rewriting import spoken_spans

EXAMPLE = """
# Our products
SQL: sequel
/ACME-(\\d+)/: "acme $1"
/beta/i: bay tah
no: number
1: one
2026-13-40: a day
~: tilde
重庆: chong2 qing4
Nice: {say: neess, case: any}
"""


def read(text: str, lexicon: Lexicon, lang: str = "en") -> str:
    return "".join(span.spoken for span in spoken_spans(text, lang, (), find_readings(text, [lexicon])))


def made(text: str) -> Lexicon:
    return compiled(parse(text, "x.yaml"), "x.yaml")


def test_a_file_of_words_patterns_and_pinyin() -> None:
    lexicon = made(EXAMPLE)
    assert lexicon.n_entries == 9
    assert read("Ask ACME-12 about SQL, Beta and NICE.", lexicon) == "Ask acme twelve about sequel, bay tah and neess."
    assert read("no 1 on 2026-13-40 ~ x", lexicon) == "number one on a day tilde x"


def test_an_empty_file_is_an_empty_lexicon() -> None:
    assert read("SQL", made("")) == "SQL"
    assert read("SQL", made("# nothing\n")) == "SQL"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SQL: sequel\n  SQL: [", "x.yaml, line 2: not YAML"),
        ("a: b\n\tc: d\n", "x.yaml, line 2: not YAML"),
        ("- SQL\n", "x.yaml, line 1: expected lines such as `SQL: sequel`"),
        ("just text", "x.yaml, line 1: expected lines"),
        ("SQL: sequel\nMQ:\n", "line 2: 'MQ': has no reading"),
        ("SQL: sequel\nMQ: ''\n", "line 2: 'MQ': has no reading"),
        ("SQL: sequel\nMQ: null\n", "line 2: 'MQ': has no reading"),
        ("'': nothing", "line 1: '': what the entry matches is empty"),
        ("'...': dots", "line 1: '...': is only punctuation"),
        ("。: stop", "line 1: '。': is only punctuation"),
        ("SQL: '...'", "line 1: 'SQL': its reading has nothing to speak"),
        ("SQL: [a]", "line 1: 'SQL': expected how it is spoken, as text"),
        ("[a]: b", "line 1: expected text before the colon"),
        ("SQL: {say: x, case: upper}", "line 1: 'SQL': expected say, and case: any or exact"),
        ("SQL: {sey: x}", "line 1: 'SQL': expected say"),
        ("SQL: {case: any}", "line 1: 'SQL': expected how it is spoken"),
        ("a: b\nSQL: x\n\nSQL: y", "line 4: 'SQL': given before, in line 2"),
        ("sql: x\n{say: 1}: y\nsql: z", "line 3: 'sql': given before, in line 1"),
        ("重庆: chong2 qing9", "line 1: '重庆': 'qing9' has a tone that there is not; tones are 1 to 5"),
        ("重庆: chong2", "line 1: '重庆': has 2 characters and 1 syllables of pinyin"),
        ("a: b\n/(/: x", "line 2: /(/: missing )"),
        ("a: b\n/a(?=b)/: x", "line 2: /a(?=b)/: invalid perl operator"),
        ("/(a)\\1/: x", "line 1: /(a)\\1/: invalid escape sequence"),
        ("/a*/: x", "line 1: /a*/: matches no text at all"),
        ("/(a)/: $2", "line 1: /(a)/: $2: the pattern has 1 groups"),
        ("options: {polyphone: true}", "line 1: options: 'polyphone' is not known"),
        ("options: {polyphones: perhaps}", "line 1: polyphones: expected true or false"),
        ("[" * 5000, "x.yaml"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(text)
    assert problem in caught.value.message


def test_all_problems_are_told_up_to_a_bound() -> None:
    with pytest.raises(ConfigError) as caught:
        made("".join(f"w{n}: ''\n" for n in range(50)))
    lines = caught.value.message.split("\n")
    assert lines[0] == "x.yaml: 50 problems" and len(lines) == 2 + MAX_PROBLEMS
    assert lines[-1].strip() == "and 30 more"


def test_a_file_that_is_not_text_or_too_large_or_missing(tmp_path: Path) -> None:
    file = tmp_path / "l.yaml"
    for data, problem in ((b"a: b\nc: \xff\n", "line 2: not UTF-8"), (b"#" * (MAX_FILE_BYTES + 1), "larger than")):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=problem):
            load(file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.slow
def test_a_megabyte_of_entries_is_read_and_each_is_found() -> None:
    n = 40_000
    text = "".join(f"Name{number:05}x: the name {number}\n" for number in range(n))
    assert len(text) > 1_000_000
    lexicon = made(text)
    assert lexicon.n_entries == n
    assert read("Ask Name39999x.", lexicon) == "Ask the name three nine nine nine nine."


def test_a_catastrophic_pattern_takes_linear_time() -> None:
    """Python's own engine needs 2^n steps for these."""
    lexicon = made("/(a+)+$/: x\n/(a|aa)+b/: y\n/(.*)(.*)(.*)(.*)z/: w\n")
    text = "a" * 4000 + "!"
    began_s = time.perf_counter()
    assert find_readings(text, [lexicon]) == []
    assert time.perf_counter() - began_s < 2.0


def test_too_many_patterns_are_refused_and_many_are_found() -> None:
    many = "".join(f"/item{n}-(\\d+)/: thing $1\n" for n in range(MAX_PATTERNS))
    assert read("Take item999-7.", made(many)) == "Take thing seven."
    with pytest.raises(ConfigError, match="the limit is 1000"):
        made(many + "/x/: y")


@pytest.mark.parametrize(
    ("text", "module", "how"),
    [
        ("/x/: y", "re2", r"\.venv/bin/pip install -e '\.\[lexicon\]'"),
        ("options: {polyphones: true}", "pypinyin.constants", r"\.venv/bin/pip install -e '\.\[pinyin\]'"),
    ],
)
def test_a_missing_package_is_told(text: str, module: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=how):
        made(text)


def test_words_alone_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    monkeypatch.setitem(sys.modules, "pypinyin.constants", None)
    assert read("SQL", made("SQL: sequel")) == "sequel"


@pytest.mark.slow
def test_polyphones_are_the_characters_that_a_word_reads_otherwise() -> None:
    lexicon = made("options: {polyphones: true}\n音乐: yin1 le4\n")

    def sounds(text: str) -> dict[str, str]:
        found = find_readings(text, [lexicon])
        return {text[each.start]: each.pronunciation[1] for each in found if each.pronunciation is not None}

    assert sounds("我去重庆的银行。") == {"重": "chong2", "行": "hang2"}
    assert sounds("他很重要。") == {}
    assert sounds("音乐") == {"音": "yin1", "乐": "le4"}, "an entry of the file counts"
    assert len(list(polyphones())) > 3000


# ------------------------------------------------------------------- read again


def write(file: Path, text: str) -> None:
    """Replace the file, as an editor or a mounted secret does."""
    new = file.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, file)


def reloads(outcome: str) -> float:
    return metrics.value("telephony_tts_lexicon_reloads_total", outcome=outcome)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "l.yaml"
    write(file, "SQL: sequel")
    files = LexiconFiles({"l": str(file)})
    first = files.shelf["l"]
    files.reload()
    assert files.shelf["l"] is first, "nothing changed"
    before = reloads("loaded")
    write(file, "SQL: squeal")
    files.reload()
    assert read("SQL", files.shelf["l"]) == "squeal" and reloads("loaded") == before + 1


@pytest.mark.parametrize("damage", ["broken", "removed", "a folder"])
def test_the_last_good_lexicon_stays_with_one_line_in_the_log(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "l.yaml"
    write(file, "SQL: sequel")
    files = LexiconFiles({"l": str(file)})
    before = reloads("failed")
    if damage == "broken":
        write(file, "SQL: [")
    else:
        file.unlink()
        if damage == "a folder":
            file.mkdir()
    for _ in range(3):
        files.reload()
    assert read("SQL", files.shelf["l"]) == "sequel"
    (line,) = lines(caplog, "lexicon_kept")
    assert line["lexicon"] == "l" and str(file) in line["why"] and reloads("failed") == before + 1
    if damage == "a folder":
        file.rmdir()
    write(file, "SQL: squeal")
    files.reload()
    assert read("SQL", files.shelf["l"]) == "squeal"


def test_a_file_that_could_not_be_read_is_tried_again_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file itself stays as it is meanwhile, for example when its permissions are mended."""
    file = tmp_path / "l.yaml"
    write(file, "SQL: sequel")
    files = LexiconFiles({"l": str(file)})
    write(file, "SQL: squeal")
    before = reloads("failed")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        for _ in range(3):
            files.reload()
    (line,) = lines(caplog, "lexicon_kept")
    assert "Permission denied" in line["why"] and reloads("failed") == before + 1
    assert read("SQL", files.shelf["l"]) == "sequel"
    files.reload()
    assert read("SQL", files.shelf["l"]) == "squeal"


def test_a_file_with_a_mistake_is_not_parsed_again_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one would take CPU from the calls each time."""
    file = tmp_path / "l.yaml"
    write(file, "SQL: sequel")
    files = LexiconFiles({"l": str(file)})
    write(file, "SQL: [")
    parsed = []

    def counted(text: str, source: str) -> LexiconFile:
        parsed.append(source)
        return parse(text, source)

    monkeypatch.setattr(lexicon_files, "parse", counted)
    for _ in range(3):
        files.reload()
    assert len(parsed) == 1


def test_a_server_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    write(good, "a: b")
    write(bad, "a: ''")
    with pytest.raises(ConfigError) as caught:
        LexiconFiles({"good": str(good), "bad": str(bad), "none": str(tmp_path / "none.yaml")})
    assert "line 1: 'a'" in caught.value.message and "none.yaml: cannot be read" in caught.value.message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SQL: sequel\n" + "[" * 200_000, "line 2: not YAML"),
        ("[" * 50 + "]" * 50, "line 1: not YAML: nested too deeply"),
        # Newer versions of PyYAML's C parser have a limit of their own.
        ("[" * 200_000, "line 1: not YAML: (nested too deeply|exceeded maximum nesting depth)"),
        ("options:\n  a: &a [x, x]\n  b: [*a, *a]\n", "line 3: not YAML: aliases"),
    ],
)
def test_what_cannot_be_composed_safely_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(text, "names.yaml")


def test_a_file_has_one_document(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("SQL: sequel\n---\nAPI: A P I\n")
    with pytest.raises(ConfigError, match="line 2: not YAML: expected one document, found another"):
        load(file)


def test_patterns_that_would_take_minutes_to_build_are_refused_at_once() -> None:
    """They are built together in one step, which holds the interpreter: no call of the server would get a frame."""
    text = "\n".join(f"/a{i}(b{{1,900}}c{{1,900}}){{0,1}}/: x" for i in range(MAX_PATTERNS))
    began = time.perf_counter()
    with pytest.raises(ConfigError, match=r"the patterns are too large together, from line [0-9]+ on"):
        compiled(parse(text, "a.yaml"), "a.yaml")
    assert time.perf_counter() - began < 2
    usual = "\n".join(f"/P{i}-([0-9]{{2,6}})/i: part $1" for i in range(MAX_PATTERNS))
    assert compiled(parse(usual, "a.yaml"), "a.yaml").n_entries == MAX_PATTERNS


def test_patterns_that_cannot_be_built_together_are_an_error_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telephony_tts.ops.lexicon_files._PATTERN_MEMORY_BYTES", 10_000)
    with pytest.raises(ConfigError, match=r"a\.yaml: its patterns cannot be used together"):
        compiled(parse("/a(b{1,900})/: x\n/c(d{1,900})/: y\n", "a.yaml"), "a.yaml")
