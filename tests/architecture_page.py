"""The rooms on a page: each package with the first sentence of its docstring. Run it to write them again.

A page has a code block whose first line is the folder that it shows, such as `telephony_tts/`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    ROOT / "ARCHITECTURE.md": ("telephony_tts", "sip_bridge"),
    ROOT / "docs" / "cosyvoice2.md": ("telephony_tts/engines/cosyvoice2",),
}
"""The pages, and the folder of each of their blocks."""
_WIDTH = 22


def purpose(folder: Path) -> str:
    """The first sentence of a package's docstring, without the full stop.

    Raises ValueError if the package has no docstring.
    """
    source = (folder / "__init__.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source))
    if not text:
        raise ValueError(f"{folder}/__init__.py has no docstring. Say in one line what the room does.")
    return text.splitlines()[0].split(". ")[0].removesuffix(".")


def tree(folder: Path) -> str:
    """The packages below a folder, a line each, indented by their depth. The first line is the folder itself."""
    lines = [f"{folder.relative_to(ROOT)}/"]
    for path in sorted(init.parent for init in folder.rglob("__init__.py")):
        if path != folder:
            name = "  " * len(path.relative_to(folder).parts) + f"{path.name}/"
            lines.append(f"{name:{_WIDTH}} {purpose(path)}")
    return "\n".join(lines) + "\n"


def block_of(page: str, folder: str) -> str:
    """The text of the page's code block for a folder. Raises ValueError if there is not exactly one."""
    found = re.findall(rf"^```\n({re.escape(folder)}/\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"expected one code block that begins with {folder}/, found {len(found)}")
    return str(found[0])


def written(page: str, folders: tuple[str, ...]) -> str:
    """The page with the rooms of its folders as they are now."""
    for folder in folders:
        page = page.replace(block_of(page, folder), tree(ROOT / folder), 1)
    return page


if __name__ == "__main__":
    for path, folders in PAGES.items():
        path.write_text(written(path.read_text(encoding="utf-8"), folders), encoding="utf-8")
