"""Lexicon files: YAML with line numbers in the errors, patterns for an engine of linear time, reading them again.

A file is a mapping such as `SQL: sequel`. Its optional key `options` is a mapping: `polyphones: true` adds the readings
of Chinese characters that are read otherwise in some words, from pypinyin.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from telephony_tts.ops.watched_file import file_state
from telephony_tts.runtime import logs, metrics
from telephony_tts.runtime.errors import ConfigError, how_to_get
from telephony_tts.text.lexicon import MAX_PATTERNS, BadEntry, Case, Entry, Lexicon, PatternSearch, read_entry, template

MAX_FILE_BYTES = 4_000_000
MAX_ENTRIES = 100_000
_MAX_DEPTH = 3
"""The file's mapping, that of an entry, and one more for a mistake that is named better later."""
MAX_PROBLEMS = 20
"""The most problems of a file that an error lists."""
_PATTERN_MEMORY_BYTES = 64_000_000
MAX_PATTERN_STEPS = 50_000
"""The size of all patterns of a lexicon together, in instructions of RE2. They are built in one step, which holds the
interpreter: for 0.2 s at this size, and for minutes without a limit. A usual pattern has 10 to 50."""
_OPTIONS = "options"
_NEED_RE2 = f"patterns need the package google-re2: {how_to_get('lexicon')}"
_NEED_PYPINYIN = f"polyphones need the package pypinyin: {how_to_get('pinyin')}"
_SANDHI = "一不"
"""Characters whose tone depends on the next one. Engines know that."""

_log = logs.get(__name__)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class LexiconFile:
    """The entries of a file, and its options. `lines` has the line of each pattern."""

    entries: tuple[Entry, ...]
    polyphones: bool = False
    lines: Mapping[str, int] = field(default_factory=dict)


class LexiconFiles:
    """The lexicons of the server by name, `shelf`. They are replaced there when their files change."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """Reads all files. Raises ConfigError with the problems of all of them."""
        self.shelf: dict[str, Lexicon] = {}
        self._files = {name: Path(file) for name, file in files.items()}
        self._seen: dict[str, object] = {}
        self._unreadable: dict[str, tuple[object, str]] = {}
        """The state of each file that could not be read the last time, and the reason, which the log has said."""
        self._saving = threading.Lock()
        problems = []
        for name, path in self._files.items():
            self._seen[name] = file_state(path)
            try:
                self.shelf[name] = load(path)
            except ConfigError as error:
                problems.append(error.message)
        if problems:
            raise ConfigError("\n".join(problems))

    def reload(self) -> None:
        """Read the files that changed. A lexicon whose file cannot be used stays as it is, with one line in the log.
        A file that cannot be read is tried again each time. One with a mistake is not: to parse it takes long.

        May take a second for a large file. Thread-safe towards readers of `shelf`.
        """
        for name, path in self._files.items():
            state = file_state(path)
            if state == self._seen[name]:
                self._unreadable.pop(name, None)
                continue
            try:
                lexicon = load(path)
            except ConfigError as error:
                if not isinstance(error.__cause__, OSError):
                    self._seen[name] = state
                elif self._unreadable.get(name) == (state, error.message):
                    continue
                else:
                    self._unreadable[name] = state, error.message
                metrics.LEXICON_RELOADS.labels(outcome="failed").inc()
                _log.warning("lexicon_kept", lexicon=name, why=error.message)
                continue
            self._seen[name] = state
            self._unreadable.pop(name, None)
            self.shelf[name] = lexicon
            metrics.LEXICON_RELOADS.labels(outcome="loaded").inc()
            _log.info("lexicon_loaded", lexicon=name, entries=lexicon.n_entries)

    def text(self, name: str) -> str:
        """The content of a lexicon's file. Raises ConfigError."""
        try:
            return self._files[name].read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._files[name]}: cannot be read: {error}") from error

    def save(self, name: str, text: str, version: str) -> tuple[int, str]:
        """Write a lexicon's file, and use it from now on. Returns the number of entries and the new version.

        `version`: that of the text which was edited (`version_of`). Raises ConfigError, with the code `lexicon_changed`
        if the file has another text by now. Then nothing is written.
        """
        path = self._files[name]
        text = io.StringIO(text.removeprefix("\ufeff"), newline=None).read()  # as `text` will read it
        lexicon = compiled(parse(text, name), name)
        with self._saving:
            if version_of(self.text(name)) != version:
                raise ConfigError(
                    f"the lexicon {name} was changed since you have read it: read it again, and edit that text",
                    code="lexicon_changed",
                )
            part = path.with_name(f"{path.name}.part")
            try:
                part.write_text(text, encoding="utf-8")
                os.replace(part, path)
            except OSError as error:
                part.unlink(missing_ok=True)
                raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
            self._seen[name] = file_state(path)
            self.shelf[name] = lexicon
        return lexicon.n_entries, version_of(text)


def version_of(text: str) -> str:
    """A word that is another one for each text of a lexicon."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(path: Path) -> Lexicon:
    """The lexicon of a file. Raises ConfigError."""
    return compiled(read(path), str(path))


def read(path: Path) -> LexiconFile:
    """The entries of a file. Raises ConfigError, which lists the problems with their lines."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise _too_large(str(path))
    try:
        return parse(data.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text") from error


def _too_large(source: str) -> ConfigError:
    return ConfigError(f"{source}: larger than {MAX_FILE_BYTES} bytes, which is the limit of a lexicon")


def parse(text: str, source: str) -> LexiconFile:
    """The entries of a text in YAML. `source` names it in errors. Raises ConfigError."""
    if len(text.encode(errors="surrogatepass")) > MAX_FILE_BYTES:
        raise _too_large(source)
    try:
        node = _root(text)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark
        where = f", line {at.line + 1}" if at else ""
        raise ConfigError(f"{source}{where}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source}: not YAML: {error}") from error
    if node is None:
        return LexiconFile(())
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{source}, line {_line(node)}: expected lines such as `SQL: sequel`")
    if len(node.value) > MAX_ENTRIES:
        raise ConfigError(f"{source}: {len(node.value)} entries; the limit is {MAX_ENTRIES}")
    reader = _FileReader(node)
    if reader.problems:
        raise _listed(source, reader.problems)
    return LexiconFile(tuple(reader.entries), reader.polyphones, reader.lines)


def _root(text: str) -> yaml.Node | None:
    """The node of the one document of a text. None if there is no document. Raises MarkedYAMLError.

    PyYAML's own composer is one call in C, which holds the interpreter for as long as it lasts: every call of the
    server would wait. Aliases are refused, because they multiply what a file holds.
    """
    root: yaml.Node | None = None
    open_nodes: list[yaml.SequenceNode | yaml.MappingNode] = []
    keys: list[yaml.Node | None] = []
    """Of each open node: the key whose value comes next, if it is a mapping."""
    event: Any
    for event in yaml.parse(text, Loader=_Loader):
        mark: Any = event.start_mark
        node: yaml.Node
        if isinstance(event, yaml.ScalarEvent):
            node = yaml.ScalarNode(event.tag or "", event.value, mark, None, event.style)
        elif isinstance(event, yaml.MappingStartEvent):
            node = yaml.MappingNode(event.tag or "", [], mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = yaml.SequenceNode(event.tag or "", [], mark)
        elif isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*) are not used here", problem_mark=mark)
        elif isinstance(event, yaml.DocumentStartEvent) and root is not None:
            raise yaml.MarkedYAMLError(problem="expected one document, found another", problem_mark=mark)
        else:
            if isinstance(event, yaml.CollectionEndEvent):
                open_nodes.pop()
                keys.pop()
            continue
        if not open_nodes:
            root = node
        elif isinstance(parent := open_nodes[-1], yaml.SequenceNode):
            parent.value.append(node)
        elif keys[-1] is None:
            keys[-1] = node
        else:
            parent.value.append((keys[-1], node))
            keys[-1] = None
        if isinstance(node, yaml.SequenceNode | yaml.MappingNode):
            open_nodes.append(node)
            keys.append(None)
            if len(open_nodes) > _MAX_DEPTH:
                why = "nested too deeply; expected lines such as `SQL: sequel`"
                raise yaml.MarkedYAMLError(problem=why, problem_mark=mark)
    return root


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _FileReader:
    """Reads the nodes of a file: all scalars are text, so that `no: number` needs no quotes."""

    def __init__(self, root: yaml.MappingNode) -> None:
        self.entries: list[Entry] = []
        self.problems: list[str] = []
        self.polyphones = False
        self.lines: dict[str, int] = {}
        self._given: dict[tuple[str, bool, bool], int] = {}
        for key, value in root.value:
            if not isinstance(key, yaml.ScalarNode):
                self._problem(key, "expected text before the colon")
            elif key.value == _OPTIONS and isinstance(value, yaml.MappingNode):
                self._read_options(value)
            else:
                self._read_entry(key, value)

    def _problem(self, node: yaml.Node, what: str) -> None:
        self.problems.append(f"line {_line(node)}: {what}")

    def _read_options(self, node: yaml.MappingNode) -> None:
        for key, value in node.value:
            if key.value != "polyphones":
                self._problem(key, f"{_OPTIONS}: {_shown(key)} is not known; there is only polyphones")
            elif value.value not in ("true", "false"):
                self._problem(value, "polyphones: expected true or false")
            else:
                self.polyphones = value.value == "true"

    def _read_entry(self, key: yaml.ScalarNode, value: yaml.Node) -> None:
        say, case = value, None
        if isinstance(value, yaml.MappingNode):
            fields = {name.value: node for name, node in value.value if isinstance(name, yaml.ScalarNode)}
            say = fields.pop("say", None)
            case_node = fields.pop("case", None)
            case = None if case_node is None else case_node.value
            if fields or case not in (None, "any", "exact"):
                self._problem(value, f"{_shown(key)}: expected say, and case: any or exact")
                return
        if not isinstance(say, yaml.ScalarNode):
            self._problem(value, f"{_shown(key)}: expected how it is spoken, as text")
            return
        is_null = say.value in ("", "~", "null") and not say.style
        try:
            entry = read_entry(key.value, "" if is_null else say.value, cast("Case | None", case))
        except BadEntry as error:
            self._problem(key, f"{_shown(key)}: {error}")
            return
        same = entry.written, entry.any_case, entry.is_pattern
        if same in self._given:
            self._problem(key, f"{_shown(key)}: given before, in line {self._given[same]}")
            return
        self._given[same] = _line(key)
        if entry.is_pattern:
            self.lines[entry.written] = _line(key)
        self.entries.append(entry)


def _listed(source: str, problems: list[str]) -> ConfigError:
    shown = problems[:MAX_PROBLEMS]
    if len(shown) < len(problems):
        shown.append(f"and {len(problems) - len(shown)} more")
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ConfigError("\n  ".join([f"{source}: {count}", *shown]))


def _shown(key: yaml.Node) -> str:
    shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def compiled(file: LexiconFile, source: str) -> Lexicon:
    """The lexicon of a file's entries. Raises ConfigError for a wrong pattern, and if a package is missing."""
    entries = [*(polyphones() if file.polyphones else ()), *file.entries]
    if not any(entry.is_pattern for entry in entries):
        return Lexicon(entries)
    patterns = LinearPatterns(file, source)
    return Lexicon(entries, patterns, patterns.n_groups)


class LinearPatterns(PatternSearch):
    """Patterns of google-re2, whose time grows with the text's length alone. Look-around and back-references are not
    in its language."""

    def __init__(self, file: LexiconFile, source: str) -> None:
        """Raises ConfigError."""
        try:
            re2: Any = importlib.import_module("re2")
        except ImportError as error:
            raise ConfigError(f"{source}: {_NEED_RE2}") from error
        entries = [entry for entry in file.entries if entry.is_pattern]
        if len(entries) > MAX_PATTERNS:
            raise ConfigError(f"{source}: {len(entries)} patterns; the limit is {MAX_PATTERNS}")
        options = re2.Options()
        options.log_errors = False
        self._patterns: list[Any] = []
        problems: list[str] = []
        n_steps = 0
        for entry in entries:
            try:
                pattern = re2.compile(_expression(entry), options=options)
                template(entry.say, pattern.groups)
                if pattern.search("") is not None:
                    raise BadEntry("matches no text at all; it must match at least one character")
            except (re2.error, BadEntry) as error:
                problems.append(f"line {file.lines.get(entry.written, 0)}: /{entry.written}/: {_reason(error)}")
                continue
            self._patterns.append(pattern)
            n_steps += pattern.programsize
            if n_steps > MAX_PATTERN_STEPS:
                at = f"line {file.lines.get(entry.written, 0)}"
                problems.append(
                    f"the patterns are too large together, from {at} on; counts such as {{1,900}} make them large"
                )
                break
        if problems:
            raise _listed(source, problems)
        options.max_mem = _PATTERN_MEMORY_BYTES
        self._set = re2.Set.SearchSet(options)
        for entry in entries:
            self._set.Add(_expression(entry))
        try:
            self._set.Compile()
        except re2.error as error:
            raise ConfigError(f"{source}: its patterns cannot be used together: {_reason(error)}") from error
        self.n_groups = [pattern.groups for pattern in self._patterns]

    def find(self, text: str) -> Iterator[tuple[int, int, int, Sequence[str | None]]]:
        for number in self._set.Match(text) or ():
            for match in self._patterns[number].finditer(text):
                yield number, match.start(), match.end(), (match.group(), *match.groups())


def _expression(entry: Entry) -> str:
    return f"(?i){entry.written}" if entry.any_case else entry.written


def _reason(error: Exception) -> str:
    """What RE2 says, which is bytes."""
    reason = error.args[0] if error.args else "cannot be read"
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def polyphones() -> Iterator[Entry]:
    """The Chinese words in which a character is read otherwise than alone: 银行 (háng), 重庆 (chóng). Raises
    ConfigError."""
    try:
        constants: Any = importlib.import_module("pypinyin.constants")
    except ImportError as error:
        raise ConfigError(_NEED_PYPINYIN) from error
    usual = {chr(point): said.split(",")[0] for point, said in constants.PINYIN_DICT.items()}
    for word, said in constants.PHRASES_DICT.items():
        if len(word) != len(said) or not any(usual.get(char) != one[0] for char, one in zip(word, said, strict=True)):
            continue
        try:
            entry = read_entry(word, " ".join(one[0] for one in said))
        except BadEntry:
            continue
        odd = tuple(
            "" if usual.get(char) == one[0] or char in _SANDHI or syllable.endswith("5") else syllable
            for char, one, syllable in zip(word, said, entry.syllables, strict=False)
        )
        if any(odd):
            yield Entry(word, "", True, syllables=odd)
