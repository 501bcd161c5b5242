"""Downloads a model directory: only the files that the engine reads, resumable, each compared with its hash.

A file is fetched into a `.part` beside it, which is named after its hash, and is renamed when it is complete and right.
So the directory never holds a wrong file, and an interrupted pull continues.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from telephony_tts.engines.cosyvoice2.model.file_names import (
    FIRST_SETTINGS_NAME,
    FLOW_FILE,
    LM_FILE,
    RANDOM_MARK,
    SETTINGS_NAMES,
    SPEAKER_ONNX,
    SPEAKERS_FILE,
    TOKENIZER_DIR,
    TOKENS_ONNX,
    VOCODER_FILE,
    is_first_generation,
)
from telephony_tts.engines.hubs import CHUNK_BYTES, Hub, HubFile, Listing
from telephony_tts.runtime.errors import ConfigError, EngineUnavailable

OFFICIAL_REPOS = {"huggingface": "FunAudioLLM/CosyVoice2-0.5B", "modelscope": "iic/CosyVoice2-0.5B"}

NEEDED = (
    SETTINGS_NAMES[0],
    *(f"{TOKENIZER_DIR}/{name}" for name in (
        "config.json", "generation_config.json", "merges.txt", "tokenizer_config.json", "vocab.json"
    )),
    SPEAKER_ONNX,
    VOCODER_FILE,
    FLOW_FILE,
    TOKENS_ONNX,
    LM_FILE,
)  # fmt: skip
IF_THERE = (SPEAKERS_FILE,)
DISPENSABLE = (f"{TOKENIZER_DIR}/generation_config.json", f"{TOKENIZER_DIR}/tokenizer_config.json")
"""Files that the official directory has and a fine-tuned repository may lack: speech does not need them."""

# Revision eec1ae6c79877dbd9379285cf8789c9e0879293d on Hugging Face, in use since 2025. Sizes and hashes of the .pt and
# .onnx files are from the hub's LFS metadata, as several public lock files quote them (read 2026-11-20). Those of the
# small files were computed by the owners of such lock files; at least two of them agree.
KNOWN_REVISION = "eec1ae6c79877dbd9379285cf8789c9e0879293d"
KNOWN: dict[str, tuple[int, str]] = {
    "cosyvoice2.yaml": (7_330, "0af2c0d010c477187c39f3e8fd5f1ae2e4e6f90ad03ba37c10ed6c6a87b05959"),
    "CosyVoice-BlankEN/config.json": (659, "168aa1bd401abc3bc262ba15ba4e499627a8b4e006e9d050b47c22de20660185"),
    "CosyVoice-BlankEN/generation_config.json": (
        242,
        "e558847a8b4402616f1273797b015104dc266fe4b520056fca88823ba8f8ebe6",
    ),
    "CosyVoice-BlankEN/merges.txt": (1_402_109, "ac8ff86a72bee70828fbc1119bc4398c6f3a9a6e490d7b0dbe917be025478bd0"),
    "CosyVoice-BlankEN/tokenizer_config.json": (
        1_287,
        "482bd979881423375ca5414e4e0d94cd7c5349dbb17fffd46b4d36d71e62a1bc",
    ),
    "CosyVoice-BlankEN/vocab.json": (2_776_833, "ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910"),
    "campplus.onnx": (28_303_423, "a6ac6a63997761ae2997373e2ee1c47040854b4b759ea41ec48e4e42df0f4d73"),
    "hift.pt": (83_390_254, "3386cc880324d4e98e05987b99107f49e40ed925b8ecc87c1f4939432d429879"),
    "flow.pt": (450_575_567, "ff4c2f867674411e0a08cee702996df13fa67c1cd864c06108da88d16d088541"),
    "speech_tokenizer_v2.onnx": (496_082_973, "d43342aa12163a80bf07bffb94c9de2e120a8df2f9917cd2f642e7f4219c6f71"),
    "llm.pt": (2_023_316_821, "b144ef55b51ce8cfb79a73c90dbba0bdaba4e451c0ebcfab20f769264f84a608"),
}

OFFICIAL_REPOS_300M = {"huggingface": "FunAudioLLM/CosyVoice-300M-SFT", "modelscope": "iic/CosyVoice-300M-SFT"}
NEEDED_300M = (FIRST_SETTINGS_NAME, SPEAKERS_FILE, VOCODER_FILE, FLOW_FILE, LM_FILE)
"""The two ONNX graphs of its directory are for voices from recordings, which this engine does not make for it."""
# From third-party texts about CosyVoice-300M-SFT, not from the hub: sizes, and for the large files the first eight
# digits of the hash. So they warn of another release, but a file is verified by the hub's own hash only.
KNOWN_300M: dict[str, tuple[int, str]] = {
    "cosyvoice.yaml": (6_421, ""),
    "spk2info.pt": (7_772, ""),
    "hift.pt": (81_896_716, "91e679b6"),
    "flow.pt": (419_900_943, "21eae78c"),
    "llm.pt": (1_242_994_835, "d198ce56"),
}
SHA256_DIGITS = 64

SPARE_BYTES = 50_000_000
"""Disk space that a pull leaves free."""
READ_BYTES = 1 << 20
MAX_NAMED = 4
MAX_FRUITLESS = 3
"""Attempts in a row that bring less than a chunk and not the end, after which a file is given up. Attempts that bring
more do not count, but the size of the file bounds their number."""
UNANNOUNCED_BYTES = 1_000_000_000
"""The most bytes of a file whose size is unknown."""
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Release:
    """The files of a model family, and what is known of its official release."""

    name: str
    official_repos: Mapping[str, str]
    """By hub."""
    needed: tuple[str, ...]
    if_there: tuple[str, ...]
    dispensable: tuple[str, ...]
    known: Mapping[str, tuple[int, str]]
    """Size and SHA-256 of files, or the first digits of that."""
    known_revision: str | None
    """Of Hugging Face."""

    def is_known(self, name: str) -> bool:
        """Whether the hash of the file is known."""
        return len(self.known.get(name, (0, ""))[1]) == SHA256_DIGITS


def release_of(family: str) -> Release:
    """The release of "cosyvoice2" or "300m"."""
    if family == "300m":
        return Release("CosyVoice-300M-SFT", OFFICIAL_REPOS_300M, NEEDED_300M, (), (), KNOWN_300M, None)
    return Release("CosyVoice2", OFFICIAL_REPOS, NEEDED, IF_THERE, DISPENSABLE, KNOWN, KNOWN_REVISION)


@dataclass(frozen=True, slots=True)
class PullResult:
    """The result of a pull."""

    revision: str
    n_fetched: int
    n_kept: int
    warnings: tuple[str, ...]


def pull(
    directory: Path, hub: Hub, repo: str, revision: str | None, progress: DownloadProgress, family: str = "cosyvoice2"
) -> PullResult:
    """Fetches the files of the repository that the engine needs into `directory`. `family`: see `release_of`.

    Raises ConfigError for a directory that cannot be used. Raises EngineUnavailable if the hub lacks a file, cannot be
    reached or sends other bytes than it announced.
    """
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory: give the name of a new one")
    if (directory / RANDOM_MARK).exists():
        raise ConfigError(f"{directory} holds a random checkpoint: give another directory, or delete it")
    release = release_of(family)
    is_other = (directory / SETTINGS_NAMES[0]).exists() if family == "300m" else is_first_generation(directory)
    if is_other:
        raise ConfigError(f"{directory} holds a model of another family than {release.name}: give another directory")
    listing = hub.listing(repo, revision)
    files = _wanted(listing, release)
    kept = [file for file in files if _is_right(directory / file.name, file, progress, release)]
    missing = [file for file in files if file not in kept]
    try:
        _check_space(directory, missing)
        for file in missing:
            _fetch(directory, hub, listing, file, progress, release)
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be written to ({error.strerror or error}): make it writable or give another"
        ) from error
    is_official = repo in release.official_repos.values()
    warnings = _unlike_known(directory, files, release, is_official=is_official)
    return PullResult(listing.revision, len(missing), len(kept), tuple(warnings))


def _wanted(listing: Listing, release: Release) -> list[HubFile]:
    """The files to fetch, small ones first: a wrong repository shows before gigabytes are fetched."""
    absent = [name for name in release.needed if name not in listing.files and name not in release.dispensable]
    if absent:
        raise EngineUnavailable(
            f"{listing.repo} at {listing.revision} is not a {release.name} model, it lacks {', '.join(absent)}: see "
            "--repo"
        )
    files = [listing.files[name] for name in (*release.needed, *release.if_there) if name in listing.files]
    for file in files:
        said = [digest for digest in (file.sha256, file.git_sha1) if digest is not None]
        if (file.size is not None and file.size < 0) or not all(_HASH.fullmatch(digest) for digest in said):
            raise EngineUnavailable(
                f"the hub gives an impossible size or hash for {file.name} ({file.size}, {', '.join(said)[:80]}): "
                "use another --source"
            )
    return sorted(files, key=lambda file: file.size or 0)


def _check_space(directory: Path, missing: list[HubFile]) -> None:
    """Raises ConfigError if the disk is too small for the bytes that are still to be fetched."""
    parts = [_part_path(directory, file) for file in missing]
    there = sum(part.stat().st_size for part in parts if part.is_file() and not part.is_symlink())
    needed = sum(file.size or 0 for file in missing) - there + SPARE_BYTES
    place = directory.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if missing and free < needed:
        raise ConfigError(
            f"{place} has {_size(free)} free and {_size(needed)} are needed: free {_size(needed - free)}, or give a "
            "directory on another disk"
        )


# ------------------------------------------------------------------------------- fetch


def _fetch(
    directory: Path, hub: Hub, listing: Listing, file: HubFile, progress: DownloadProgress, release: Release
) -> None:
    """Fetches one file, continuing an earlier pull, and puts it in its place if it is right."""
    path, part = directory / file.name, _part_path(directory, file)
    if path.exists():
        progress.note(f"{file.name} differs from the hub's and is replaced")
    part.parent.mkdir(parents=True, exist_ok=True)
    with _locked(part) as opened:
        if file.size is None or part.stat().st_size > file.size:
            opened.truncate(0)
        most = _most(file, release)
        sink = _CountedSink(opened, progress, most)
        progress.start(file.name, file.size, part.stat().st_size)
        _read_all(hub, listing, file, sink)
        opened.flush()
        os.fsync(opened.fileno())
    problem = f"the hub sends more than its {most} bytes" if sink.overflowed else ""
    problem = problem or _problem(part, file, progress, release)
    if problem:
        part.unlink()
        raise EngineUnavailable(
            f"{file.name}: {problem}; the file was removed. Pull again, and if it happens again use another --source"
        )
    part.replace(path)
    for stale in path.parent.glob(f".{path.name}.*.part"):
        stale.unlink()  # a part of another release
    is_verified = file.sha256 or file.git_sha1 or release.is_known(file.name)
    said = " and verified" if is_verified else ""
    if not said and file.name in release.known:
        has_start = bool(release.known[file.name][1])
        said = ", not verified: the hub gives no hash; its size" + (
            " and the first digits of its SHA-256 are those of the known release" if has_start else " is the known one"
        )
    progress.note(f"{file.name} ({_size(path.stat().st_size)}) fetched{said}")


def _most(file: HubFile, release: Release) -> int:
    """The most bytes of a file: its size in the hub, else in the known release."""
    known = release.known.get(file.name, (UNANNOUNCED_BYTES, ""))[0]
    return file.size if file.size is not None else known


def _read_all(hub: Hub, listing: Listing, file: HubFile, sink: _CountedSink) -> None:
    fruitless = 0
    while file.size is None or sink.tell() < file.size:
        before = sink.tell()
        failure: EngineUnavailable | None = None
        try:
            hub.read(listing, file, sink, before)
        except EngineUnavailable as error:
            failure = error
        if sink.failure is not None:
            raise sink.failure from failure
        if sink.overflowed or sink.tell() == file.size:
            return
        n_new = sink.tell() - before
        fruitless = fruitless + 1 if n_new < CHUNK_BYTES else 0
        if failure is None and (file.size is None or n_new <= 0):
            return
        if fruitless >= MAX_FRUITLESS or (failure is not None and not failure.retryable):
            raise failure or EngineUnavailable(
                f"{file.name} could not be fetched: the hub stops after a few bytes each time; pull again later or "
                "use another --source"
            )


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The part, open for appending and locked. If it is not a plain file, for example a link, it is removed first.

    Raises ConfigError if another pull has locked it.
    """
    if part.is_symlink() or (part.exists() and not part.is_file()):
        part.unlink()
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another pull is fetching {part.parent}: wait for it") from None
        yield file


class _CountedSink:
    """A `Sink`. It keeps the error of a failed write, and refuses and notes more than `most` bytes."""

    def __init__(self, file: BinaryIO, progress: DownloadProgress, most: int) -> None:
        self._file, self._progress, self._most = file, progress, most
        self.failure: OSError | None = None
        self.overflowed = False

    def write(self, data: bytes) -> int:
        if self.tell() + len(data) > self._most:
            self.overflowed = True
            raise EOFError(f"more than {self._most} bytes")
        try:
            n_written = self._file.write(data)
        except OSError as error:
            self.failure = error
            raise
        self._progress.advance(n_written)
        return n_written

    def tell(self) -> int:
        return self._file.seek(0, os.SEEK_END)

    def seek(self, offset: int) -> int:
        return self._file.seek(offset)

    def truncate(self) -> int:
        """Cuts the file at the position: the hub starts again instead of continuing."""
        self._progress.restart()
        return self._file.truncate()


# ------------------------------------------------------------------------------ verify


def _is_right(path: Path, file: HubFile, progress: DownloadProgress, release: Release) -> bool:
    return path.is_file() and not _problem(path, file, progress, release)


def _problem(path: Path, file: HubFile, progress: DownloadProgress, release: Release) -> str:
    """How a file on disk differs from the hub's description or, without one, from the known release; "" if equal."""
    known_size, known_sha256 = release.known.get(file.name, (None, None))
    size = file.size if file.size is not None else known_size
    n = path.stat().st_size
    if size is not None and n != size:
        return f"it has {n} bytes and should have {size}"
    if file.sha256 is None and file.git_sha1 is not None:
        data = path.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % n + data, usedforsecurity=False).hexdigest()
        return "" if found == file.git_sha1 else f"its git hash is {found} and should be {file.git_sha1}"
    wanted = file.sha256 or known_sha256
    if not wanted:
        return ""
    progress.start(file.name, n, 0, verb="checking")
    found = _sha256(path, progress)
    should = f"be {wanted}" if len(wanted) == SHA256_DIGITS else f"begin with {wanted}"
    return "" if found.startswith(wanted) else f"its SHA-256 is {found} and should {should}"


def _unlike_known(directory: Path, files: list[HubFile], release: Release, *, is_official: bool) -> list[str]:
    """One warning that names the files that the hub has in another release than the one this engine was made for."""
    unlike = []
    for file in files:
        if file.name in release.known:
            size, sha256 = release.known[file.name]
            found = file.sha256 or (_sha256(directory / file.name) if sha256 else "")
            differs = not found.startswith(sha256)
            if file.size not in (None, size) or differs:
                unlike.append(file.name)
    if not unlike:
        return []
    names = ", ".join(unlike) if len(unlike) <= MAX_NAMED else f"{len(unlike)} of {len(files)} files differ"
    revision = release.known_revision if is_official else None
    hint = f"; --source huggingface --revision {revision} gets that one" if revision else ""
    return [f"another release than the one that this engine was made for: {names}{hint}"]


def _sha256(path: Path, progress: DownloadProgress | None = None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
            if progress is not None:
                progress.advance(len(data))
    return digest.hexdigest()


def _part_path(directory: Path, file: HubFile) -> Path:
    """Named after the content, so that two releases are never mixed."""
    mark = (file.sha256 or file.git_sha1 or "unknown")[:12]
    path = directory / file.name
    return path.with_name(f".{path.name}.{mark}.part")


# ---------------------------------------------------------------------------- progress


class DownloadProgress:
    """On a terminal, tqdm's bar for the current file. Elsewhere one line per file.

    Elsewhere a large file also has a line when it begins and one for each tenth, so that a log shows progress.
    """

    LARGE_BYTES = 100_000_000

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._bar: Any = None
        self._name, self._size, self._n, self._n_tenths = "", 0, 0, 0

    def __enter__(self) -> DownloadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_bar()

    def start(self, name: str, size: int | None, n: int, verb: str = "fetching") -> None:
        """A new file of `size` bytes, of which `n` are there already."""
        self._close_bar()
        self._name, self._size, self._n = name, size or 0, n
        self._n_tenths = self._tenths()
        if self._is_terminal:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=f"{verb} {name}", total=size, initial=n, unit="B", unit_scale=True, leave=False,
                file=self._stream, dynamic_ncols=True,
            )  # fmt: skip
        elif self._size >= self.LARGE_BYTES:
            continued = f", continued from {_size(n)}" if n else ""
            self._line(f"{verb} {name} ({_size(self._size)}){continued}")

    def advance(self, n: int) -> None:
        """`n` more bytes."""
        self._n += n
        if self._bar is not None:
            self._bar.update(n)
        elif self._size >= self.LARGE_BYTES and self._tenths() != self._n_tenths:
            self._n_tenths = self._tenths()
            if self._n_tenths < 10:
                self._line(f"  {self._name} {10 * self._n_tenths} %")

    def restart(self) -> None:
        """The file begins again at its first byte."""
        self._n = self._n_tenths = 0
        if self._bar is not None:
            self._bar.reset()

    def note(self, text: str) -> None:
        """A line that stays."""
        self._close_bar()
        self._line(text)

    def _tenths(self) -> int:
        return 10 * self._n // self._size if self._size else 0

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _size(n: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n} B"
