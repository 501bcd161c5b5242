"""Builds and loads `kernels.cpp` and `small_model.cpp`: int8 products and attention for a CPU, without PyTorch.

The library is built once for each level of instructions, by the machine's own compiler, in two seconds. `make model`
builds it, and the engine does at its start if it is missing. It is kept beside this file, or in the user's cache
directory if this file's directory is read-only.

    amx          the same, and tile registers for products of many rows: Intel Xeon since Sapphire Rapids
    avx512vnni   512 bits, VNNI: Intel since Ice Lake, AMD since Zen 4
    avxvnni      256 bits, VNNI: Intel since Alder Lake
    avx2         256 bits, products in 16 bits: as fast as float32 and a quarter of the memory
    generic      no special instructions: slower than float32
    plain_tiles  those of amx in plain C++, for tests: never chosen, and slower still

All levels give the same integer sums. The environment variable TELEPHONY_TTS_KERNELS names a level to use instead of
the best one; "off" uses none. Without a library there is no int8, and the engine computes in float32.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from telephony_tts.runtime.errors import shell_command

log = logging.getLogger(__name__)

LEVEL_VARIABLE = "TELEPHONY_TTS_KERNELS"
OFF = "off"
SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in (
        "kernels.cpp",
        "small_model.cpp",
        "convolutions.h",
        "generator_layers.h",
        "sharing.h",
        "tiles.h",
        "vectors.h",
        "vocoder_layers.h",
    )
)
FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-Wno-psabi")
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
AMX, PLAIN_TILES = "amx", "plain_tiles"
LEVELS: Mapping[str, tuple[str, ...]] = {
    AMX: (*_AVX512, "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    "avx512vnni": _AVX512,
    "avxvnni": (*_AVX2, "-mavxvnni"),
    "avx2": _AVX2,
    "generic": (),
    PLAIN_TILES: ("-DPLAIN_TILES",),
}
"""Compiler flags of each level, best level first."""
_AVX512_FLAGS = frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"})
CPU_FLAGS: Mapping[str, frozenset[str]] = {
    AMX: _AVX512_FLAGS | {"amx_tile", "amx_int8", "amx_bf16"},
    "avx512vnni": _AVX512_FLAGS,
    "avxvnni": frozenset({"avx2", "fma", "avx_vnni"}),
    "avx2": frozenset({"avx2", "fma"}),
    "generic": frozenset(),
    PLAIN_TILES: frozenset(),
}
"""What /proc/cpuinfo must list for each level."""
_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18
"""Of Linux on x86-64: a process must ask before its first use of tile registers."""
BUILD_TIMEOUT_S = 120.0
INSTALL_COMPILER = f"install a C++ compiler (apt install g++, or {shell_command('pip install')} ziglang)"


class Map(ctypes.Structure):
    """`struct Map` of kernels.cpp: a linear map."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("low", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("norm_weight", ctypes.c_void_p),
        ("norm_bias", ctypes.c_void_p),
        ("n", ctypes.c_int),
        ("k", ctypes.c_int),
        ("norm", ctypes.c_int),
        ("eps", ctypes.c_float),
        ("with_low", ctypes.c_int),
        ("with_gelu", ctypes.c_int),
    )


class Piece(ctypes.Structure):
    """`struct Piece` of kernels.cpp: keys and values of consecutive positions."""

    _fields_ = (("memory", ctypes.c_void_p), ("capacity", ctypes.c_int), ("n", ctypes.c_int))


class TransformerLayer(ctypes.Structure):
    """`struct TransformerLayer` of kernels.cpp: a layer of an estimator."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("qkv", "out", "ff_1", "ff_2"))


class NormMish(ctypes.Structure):
    """`struct NormMish` of kernels.cpp: what follows a convolution of an estimator."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("eps", ctypes.c_float))


class Resnet(ctypes.Structure):
    """`struct Resnet` of kernels.cpp: a residual block of an estimator."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("conv_1", "conv_2", "skip")),
        *((name, NormMish) for name in ("norm_1", "norm_2")),
    )


class LeftContext(ctypes.Structure):
    """`struct LeftContext` of kernels.cpp: the frames that a causal convolution reads before the first one."""

    _fields_ = (("frames", ctypes.c_void_p), ("next", ctypes.c_void_p))


class SnakeConv(ctypes.Structure):
    """`struct SnakeConv` of vocoder_layers.h: a convolution of the vocoder and the snake before it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "bias", "alpha", "inverse")),
        *((name, ctypes.c_int) for name in ("d", "kernel", "dilation")),
    )


class Conv(ctypes.Structure):
    """`struct Conv` of convolutions.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "bias")),
        *((name, ctypes.c_int) for name in ("d_in", "d_out", "kernel", "stride")),
    )


class GeneratorConv(ctypes.Structure):
    """`struct GeneratorConv` of generator_layers.h: a convolution of kokoro's generator."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "bias")),
        *((name, ctypes.c_int) for name in ("d_in", "d_out", "kernel", "dilation")),
    )


class Activation(ctypes.Structure):
    """`struct Activation` of generator_layers.h: what is done to the input of a convolution."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scale", "shift", "alpha", "inverse")),
        *((name, ctypes.c_float) for name in ("slope", "gain")),
    )


class DecoderLayer(ctypes.Structure):
    """`struct DecoderLayer` of kernels.cpp: a layer of a Qwen2 language model."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("qkv", "out", "gate_up", "down", "qkv_bias"))


class Slots(ctypes.Structure):
    """`struct Slots` of kernels.cpp: keys and values of a language model."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("n_slots", ctypes.c_int),
        ("n_kv", ctypes.c_int),
        ("max_len", ctypes.c_int),
        ("d", ctypes.c_int),
    )


NO_NORM, LAYER_NORM, RMS_NORM = range(3)
"""`enum Norm` of kernels.cpp"""

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
_ARGUMENTS = {
    "pack": (_POINTER, _INT, _INT, _POINTER, _POINTER, _POINTER),
    "linear": (_POINTER, _POINTER, _LONG, _LONG, _INT, _INT, _POINTER, _LONG, _LONG, _INT),
    "decode": (_POINTER, _INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER),
    "help": (ctypes.c_uint,),
    "recall": (),
    "norm_mish": (_POINTER, _INT, _INT, _POINTER, _POINTER, ctypes.c_float),
    "resnet": (_POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER, _POINTER),
    "attend": (_POINTER, _INT, _INT, _INT, _INT, _INT, _INT, _POINTER, _INT, _POINTER),
    "transform": (_POINTER, _INT, _INT, _POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER, _INT),
    "float_conv": (_POINTER, _POINTER, _INT, _INT, _INT, _POINTER),
    "double_conv": (_POINTER, _POINTER, _INT, _INT, _INT, _POINTER),
    "group_norm_mish": (_POINTER, _INT, _INT, _INT, _INT, _POINTER, _POINTER, ctypes.c_float),
    "channel_sums": (_POINTER, _POINTER, _INT, _INT, _POINTER),
    "attend_relative": (*(_POINTER,) * 6, _INT, _INT, _INT, _INT, _POINTER),
}


@dataclass(frozen=True, slots=True)
class Kernels:
    """The loaded library, or the reason why it is missing."""

    functions: ctypes.CDLL | None
    level: str
    """A key of LEVELS; "off" without a library."""
    problem: str | None
    """Why there is no library, and what to do about it."""


def kernels() -> Kernels:
    """Loads the library, and builds it first if it is missing. The result is kept for the life of the process, unless
    the machine refused something, as memory: then the next call tries again."""
    try:
        return _loaded()
    except OSError as error:
        return Kernels(None, OFF, str(error))


_BUILT: set[Path] = set()
"""Files that this process has built. One that cannot be loaded, as from a folder without `exec`, is not built again."""


@functools.cache  # it does not keep an exception
def _loaded() -> Kernels:
    """Raises OSError if there is a library that cannot be loaded, and if none can be written."""
    asked = os.environ.get(LEVEL_VARIABLE)
    level = asked or best_level(cpu_flags())
    if level == OFF:
        return Kernels(None, OFF, f"the environment variable {LEVEL_VARIABLE} is {OFF}")
    if level not in LEVELS:
        return Kernels(None, OFF, f"{LEVEL_VARIABLE} is {level!r}; expected {', '.join(LEVELS)} or {OFF}")
    if not CPU_FLAGS[level] <= cpu_flags():
        return Kernels(None, OFF, f"{LEVEL_VARIABLE} is {level}, which this CPU does not have")
    loaded = _of_level(level)
    if level == AMX and loaded.functions is None and not asked:
        level = best_level(cpu_flags() - {"amx_tile"})
        log.warning("int8 products use %s instead of %s: %s", level, AMX, loaded.problem)
        loaded = _of_level(level)
    return loaded


def _of_level(level: str) -> Kernels:
    """Raises OSError as `_loaded`."""
    if level == AMX and not has_tiles():
        return Kernels(None, OFF, "the system refuses this process the tile registers")
    problem = f"nothing could be written to {' or '.join(map(str, _directories()))}"
    for directory in _directories():
        path = directory / _file_name(level)
        was_there = os.path.exists(path)
        for is_again in (False, True):
            try:
                # A file that cannot be loaded may be damaged, so it is built again, once. It may also be whole, while
                # the machine has no memory for it. So it stays until another one takes its place.
                if not os.path.exists(path) or (is_again and path not in _BUILT):
                    build(level, directory)
                    _BUILT.add(path)
                return Kernels(_opened(path), level, None)
            except subprocess.SubprocessError as error:
                if was_there:
                    raise OSError(f"{problem}; {error}") from error
                return Kernels(None, OFF, str(error))
            except OSError as error:
                problem = f"{path} cannot be used: {error}"
    raise OSError(problem)


def available() -> bool:
    """Whether int8 products can be used."""
    return kernels().functions is not None


def problem() -> str | None:
    """Why int8 products cannot be used, and what to do; None if they can."""
    return kernels().problem


def level() -> str:
    """The instructions in use: a key of LEVELS, or "off"."""
    return kernels().level


def functions() -> ctypes.CDLL:
    """The library. Raises RuntimeError if it could not be loaded."""
    loaded = kernels()
    if loaded.functions is None:
        raise RuntimeError(f"int8 is not available: {loaded.problem}")
    return loaded.functions


@functools.cache
def cpu_flags() -> frozenset[str]:
    """What /proc/cpuinfo lists; empty on other systems and other processors. Raises OSError if it cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except (FileNotFoundError, PermissionError):
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def has_tiles() -> bool:
    """Asks the system for the tile registers, for all threads of this process. Whether it may use them."""
    numbers = (ctypes.c_long(each) for each in (_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA))
    refused: int = ctypes.pythonapi.syscall(*numbers)
    return not refused


def best_level(flags: frozenset[str]) -> str:
    return next(name for name, needed in CPU_FLAGS.items() if needed <= flags)


def compilers() -> Iterator[list[str]]:
    """Commands that compile C++, the preferred one first."""
    if chosen := os.environ.get("CXX"):
        yield shlex.split(chosen)
    for name in ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            yield [path]
    if find_spec("ziglang") is not None:
        yield [sys.executable, "-m", "ziglang", "c++"]


def build(level: str, directory: Path) -> Path:
    """Compiles the library for a level into a directory. The file appears when it is complete.

    Raises OSError if the directory cannot be written, subprocess.SubprocessError if no compiler does it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / _file_name(level)
    failures = []
    with tempfile.TemporaryDirectory(dir=directory, prefix="building-") as building:
        for compiler in compilers():
            made = Path(building) / path.name
            sources = [str(each) for each in SOURCES if each.suffix == ".cpp"]
            command = [*compiler, *FLAGS, *LEVELS[level], *sources, "-o", str(made)]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
            except (OSError, subprocess.SubprocessError) as error:
                lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
                failures.append(f"{shlex.join(compiler)}: {lines[0] if lines else error}")
                continue
            made.replace(path)
            log.info("built the int8 kernels for %s with %s", level, shlex.join(compiler))
            return path
    tried = f"no compiler could build it ({'; '.join(failures)})" if failures else "no C++ compiler was found"
    raise subprocess.SubprocessError(f"{tried}; {INSTALL_COMPILER}")


def _opened(path: Path) -> ctypes.CDLL:
    """Raises OSError for a file that is no such library."""
    library = ctypes.CDLL(str(path))
    for name, arguments in _ARGUMENTS.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise OSError(f"no function {name}") from error
        function.argtypes, function.restype = arguments, None
    if library.bfloat16_outputs():
        library.snake_conv.argtypes = (_POINTER, _POINTER, _INT, _INT, _INT, _POINTER, _POINTER)
        library.snake_conv.restype = None
        library.generator_conv.argtypes = (*(_POINTER,) * 3, _INT, _INT, _INT, _POINTER, _POINTER, _INT)
        library.generator_conv.restype = None
    library.bytes_per_position.restype = _LONG
    library.recalls.restype = ctypes.c_uint
    return library


def _file_name(level: str) -> str:
    """With a digest of what it is made of, so that a library of another version is never loaded."""
    made_of = "\0".join([*(each.read_text() for each in SOURCES), *FLAGS, *LEVELS[level]])
    return f"kernels-{level}-{platform.machine()}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"


def _directories() -> list[Path]:
    """Where the library may be, the preferred place first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return [Path(__file__).parent / "built", cache / "telephony-tts"]


if __name__ == "__main__":
    loaded = kernels()
    print(f"int8 kernels: {loaded.problem or loaded.level}")
    sys.exit(loaded.functions is None)
