"""The code blocks of a Markdown page, for tests that run a page's commands and then ask whether any was left out."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r'"[^"]*[.。]"')


@dataclass(frozen=True)
class Block:
    """A code block: the word behind its fence, empty for commands, and its text without the page's indentation."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(found[2], textwrap.dedent(found[3])) for found in _FENCE.finditer(page.read_text(encoding="utf-8"))]


def commands(text: str) -> list[str]:
    """The commands of a block, continued lines as one. Comments, what is typed into wscat and its answers are left out.

    A loop of the shell, and a command that ends with `||`, are one command of several lines.
    """
    found: list[str] = []
    is_open = False
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|  +)#.*", "", line).rstrip()
        if not line or re.match(r"[<>] ", line):
            continue
        line = line.removeprefix("$ ")
        if is_open:
            found[-1] += f"\n{line}"
        else:
            found.append(line)
        is_open = line.endswith("||") or (found[-1].startswith("for ") and not found[-1].endswith("\ndone"))
    return found


def first_columns(text: str) -> list[str]:
    """What two languages of a page have in common in a block: each line up to two spaces, sentences in quotes left out.

    The lines that are typed into wscat, and its answers, are left out too.
    """
    lines = [re.split(r"(?<=\S) {2,}", line.rstrip())[0] for line in text.splitlines()]
    return [_SENTENCE.sub('"…"', line) for line in lines if line and not re.match(r"[<>] ", line)]


class PageCommands:
    """The commands of a page. A test takes each one that it runs; `left` has the others."""

    def __init__(self, page: Path) -> None:
        shown = [block.text for block in blocks(page) if not block.language and "─" not in block.text]  # no drawings
        self.left = [each for text in shown for each in commands(text)]

    def take(self, pattern: str) -> str:
        """The first command left that matches; the test runs it."""
        (index, *_) = [n for n, each in enumerate(self.left) if re.search(pattern, each)] or [-1]
        assert index >= 0, f"the page has no command left like {pattern!r}: {self.left}"
        return self.left.pop(index)


def made(command: str) -> str:
    """The last command that `make` would run, with the Python of this test. make itself installs and runs nothing."""
    installed = " ".join(f"-o .venv/.installed{extra}" for extra in ("", "-cosyvoice2", "-dev"))
    shown = subprocess.run(
        ["sh", "-euc", command.replace("make ", f"make --no-print-directory -n {installed} ", 1)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.replace("\\\n", " ")  # fmt: skip
    last = shown.strip().splitlines()[-1].removeprefix("exec ")
    return here(re.sub(r"(?<![\w/])(examples|benchmarks)/", rf"{ROOT}/\1/", last))


def here(command: str) -> str:
    """A command of a page with the programs of the environment in which the test runs."""
    return re.sub(r"(?<![\w/])\.venv/bin/", f"{Path(sys.executable).parent}/", command)
