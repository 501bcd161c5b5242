"""The int8 kernels: they are built when they are missing, and every way to have none gives a reason."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from no_more_files import no_more_files

from telephony_tts.engines.kernels import library
from telephony_tts.engines.kernels.library import CPU_FLAGS, LEVELS, OFF, best_level

pytestmark = pytest.mark.slow  # it runs a compiler

XEON = frozenset(["avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx_vnni"])
XEON_WITH_AMX = XEON | {"amx_tile", "amx_int8", "amx_bf16"}


@pytest.fixture(scope="module")
def library_file() -> Path:
    """The library that this machine has."""
    library.functions()
    name = library._file_name(library.level())
    return next(path for directory in library._directories() if (path := directory / name).exists())


@pytest.fixture
def copying(home: Path, library_file: Path) -> list[str]:
    """A compiler that takes no time: it copies the library that was built already."""
    return [compiler(home / "copying", f'cp {library_file} "$(eval echo \\${{$#}})"')]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory for the library; nothing is loaded yet."""
    monkeypatch.setattr(library, "_directories", lambda: [tmp_path / "first", tmp_path / "second"])
    monkeypatch.delenv(library.LEVEL_VARIABLE, raising=False)
    library._loaded.cache_clear()
    yield tmp_path
    library._loaded.cache_clear()


def compiler(directory: Path, body: str) -> str:
    """A program that takes the compiler's place."""
    directory.mkdir(exist_ok=True)
    path = directory / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_library_is_built_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.available() and library.problem() is None
    assert library.level() == best_level(library.cpu_flags())
    (built,) = (home / "first").iterdir()
    library._loaded.cache_clear()
    monkeypatch.setattr(library, "compilers", lambda: iter(()))
    assert library.available()
    assert list((home / "first").iterdir()) == [built]


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (XEON_WITH_AMX, "amx"),
        (XEON_WITH_AMX - {"amx_bf16"}, "avx512vnni"),
        (XEON, "avx512vnni"),
        (XEON - {"avx512_vnni"}, "avxvnni"),
        (XEON - {"avx512_vnni", "avx_vnni"}, "avx2"),
        (frozenset({"sse4_2"}), "generic"),
        (frozenset(), "generic"),
    ],
)
def test_the_level_is_the_best_that_the_cpu_has(flags: frozenset[str], level: str) -> None:
    assert best_level(flags) == level


def test_a_level_can_be_named(home: Path, copying: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "compilers", lambda: iter([copying]))
    monkeypatch.setenv(library.LEVEL_VARIABLE, "generic")
    assert library.level() == "generic"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (OFF, "TELEPHONY_TTS_KERNELS is off"),
        ("sse", "'sse'; expected amx, avx512vnni, avxvnni, avx2, generic, plain_tiles or off"),
    ],
)
def test_no_level_or_a_wrong_one_is_no_library(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.setenv(library.LEVEL_VARIABLE, name)
    assert not library.available() and library.level() == OFF
    assert reason in str(library.problem())
    with pytest.raises(RuntimeError, match="int8 is not available"):
        library.functions()


def test_a_level_that_the_cpu_lacks_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.LEVEL_VARIABLE, "avx512vnni")
    monkeypatch.setattr(library, "cpu_flags", lambda: CPU_FLAGS["avx2"])
    assert "avx512vnni, which this CPU does not have" in str(library.problem())


def test_a_system_without_tile_registers_refuses_them() -> None:
    assert library.has_tiles() == ("amx_tile" in library.cpu_flags())


def test_refused_tile_registers_give_the_next_level(
    home: Path, copying: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a system that lists them in /proc/cpuinfo. A level that was asked for by name is refused, not replaced."""
    monkeypatch.setattr(library, "compilers", lambda: iter([copying]))
    monkeypatch.setattr(library, "cpu_flags", lambda: XEON_WITH_AMX)
    monkeypatch.setattr(library, "_ARCH_REQ_XCOMP_PERM", 0)  # of no such request
    assert library.level() == "avx512vnni" and library.available()
    reason = "the system refuses this process the tile registers"
    assert f"int8 products use avx512vnni instead of amx: {reason}" in caplog.text
    library._loaded.cache_clear()
    monkeypatch.setenv(library.LEVEL_VARIABLE, "amx")
    assert library.problem() == reason and library.level() == OFF


def test_a_compiler_that_does_not_know_tile_registers_builds_the_next_level(
    home: Path, copying: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body = f'case "$*" in *-mamx*) echo "unknown -mamx-tile" >&2; exit 1;; esac; {copying[0]} "$@"'
    old = compiler(home / "old", body)
    monkeypatch.setattr(library, "compilers", lambda: iter([[old]]))
    monkeypatch.setattr(library, "cpu_flags", lambda: XEON_WITH_AMX)
    monkeypatch.setattr(library, "has_tiles", lambda: True)
    assert library.level() == "avx512vnni" and library.available()
    assert "int8 products use avx512vnni instead of amx: no compiler could build it" in caplog.text


def test_without_a_compiler_the_reason_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "compilers", lambda: iter(()))
    assert str(library.problem()).startswith("no C++ compiler was found; install a C++ compiler (apt install g++")


def test_a_compiler_that_fails_is_named_and_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = compiler(home, "echo 'cannot execute cc1plus' >&2; echo half >\"$(eval echo \\${$#})\"; exit 1")
    monkeypatch.setattr(library, "compilers", lambda: iter([[failing]]))
    assert f"no compiler could build it ({failing}: cannot execute cc1plus)" in str(library.problem())
    assert list((home / "first").iterdir()) == []


def test_the_next_compiler_is_tried(home: Path, copying: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "compilers", lambda: iter([[compiler(home, "exit 1")], copying]))
    assert library.available()


def test_the_compiler_of_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ccache g++-14")
    assert next(library.compilers()) == ["ccache", "g++-14"]


@pytest.mark.parametrize("content", [b"", b"\x7fELF and then nothing"])
def test_a_damaged_library_is_built_again(
    home: Path, copying: list[str], monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(library, "compilers", lambda: iter([copying]))
    (home / "first").mkdir()
    path = home / "first" / library._file_name(best_level(library.cpu_flags()))
    path.write_bytes(content)
    assert library.available()
    assert path.stat().st_size > 1000


def test_a_whole_library_is_kept_and_loaded_later_if_it_cannot_be_opened_now(
    home: Path, library_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without memory or descriptors must not need a compiler afterwards."""
    monkeypatch.setattr(library, "compilers", lambda: iter(()))
    (home / "first").mkdir()
    path = home / "first" / library._file_name(best_level(library.cpu_flags()))
    shutil.copy(library_file, path)
    with no_more_files():
        reason = str(library.problem())
    assert "Too many open files" in reason, reason
    assert path.read_bytes() == library_file.read_bytes()
    with monkeypatch.context() as now:
        now.setattr(library.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError("Cannot allocate memory")))
        reason = str(library.problem())
    assert f"{path} cannot be used: Cannot allocate memory; no C++ compiler" in reason
    assert path.read_bytes() == library_file.read_bytes()
    assert library.available(), library.problem()


def test_a_library_that_can_never_be_opened_is_built_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a folder without `exec`. Each question for the kernels built it again, two seconds each."""
    built = home / "built"
    counting = compiler(home / "counting", f'echo x >> {built}; echo whole > "$(eval echo \\${{$#}})"')
    monkeypatch.setattr(library, "compilers", lambda: iter([[counting]]))
    for _ in range(3):
        assert not library.available()
    assert len(built.read_text().split()) == 2, "once for each folder"
    (home / "first").joinpath(library._file_name(best_level(library.cpu_flags()))).unlink()
    assert not library.available() and len(built.read_text().split()) == 3


def test_what_the_cpu_has_is_not_guessed_while_its_list_cannot_be_read() -> None:
    flags = library.cpu_flags()
    library.cpu_flags.cache_clear()
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        library.cpu_flags()
    assert library.cpu_flags() == flags


@pytest.mark.parametrize("changed", [each.name for each in library.SOURCES])
def test_a_library_of_another_version_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    name = library._file_name("generic")
    sources = tuple(Path(shutil.copy(source, home)) for source in library.SOURCES)
    (home / changed).write_text((home / changed).read_text() + "\n// another version\n")
    monkeypatch.setattr(library, "SOURCES", sources)
    assert library._file_name("generic") != name


def test_a_directory_that_cannot_be_written_is_left_for_the_next(
    home: Path, copying: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "compilers", lambda: iter([copying]))
    (home / "first").write_text("a file, where the directory should be")
    assert library.available()
    assert len(list((home / "second").iterdir())) == 1


def test_nowhere_to_write_is_a_reason(home: Path) -> None:
    for name in ("first", "second"):
        (home / name).write_text("")
    assert str(home / "second") in str(library.problem())


def test_the_command_builds_and_tells(home: Path) -> None:
    command = [sys.executable, "-m", library.__name__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"int8 kernels: {best_level(library.cpu_flags())}\n"


def test_every_level_has_flags_for_the_compiler_and_for_the_cpu() -> None:
    assert list(LEVELS) == list(CPU_FLAGS)
