"""What a process under test holds. Python imports this module at the start of each one, because `torture.subject` puts
its folder on their path. On SIGUSR1 a process writes its holdings to the file `PID.json` of the folder TORTURE_INSIDE.

    tasks         of its event loop
    threads       without one of each name that a pool gives
    blocks        that Python has allocated for objects of all kinds
    in_use_kib    in the C library and in Python's allocator of small objects, if both tell it
    types         how many objects of each type the garbage collector knows
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import re
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType

_POOLS = ("sounds-", "sound addresses-", "phrases-", "asyncio_")
_MALLOC_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Malloc(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLOC_FIELDS]


def holdings() -> dict[str, object]:
    """What this process holds, after a garbage collection and after free memory was given back to the system."""
    gc.collect()
    n_blocks = sys.getallocatedblocks()
    try:
        n_tasks = len(asyncio.all_tasks())
    except RuntimeError:  # no event loop runs
        n_tasks = 0
    types = Counter(map(type, gc.get_objects()))
    named: Counter[str] = Counter()
    for kind, n in types.items():
        named[f"{kind.__module__}.{kind.__qualname__}"] += n
    told = {
        "tasks": n_tasks, "threads": n_threads(), "blocks": n_blocks, "types": named,
    }  # fmt: skip
    with suppress(OSError, AttributeError):  # not glibc, or an old one
        library = ctypes.CDLL("libc.so.6")
        library.malloc_trim(0)
        told["in_use_kib"] = (_used_of_c(library) + _used_of_python(library)) // 1024
    return told


def _used_of_c(library: ctypes.CDLL) -> int:
    """The bytes that were allocated with malloc and not freed."""
    library.mallinfo2.restype = _Malloc
    found = library.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def _used_of_python(library: ctypes.CDLL) -> int:
    """The bytes of small objects. Python has its own allocator for them, beside malloc, and prints what it holds."""
    library.open_memstream.restype = ctypes.c_void_p
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(library.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    try:
        ctypes.pythonapi._PyObject_DebugMallocStats(stream)
    finally:
        library.fclose(stream)
        printed = ctypes.string_at(text, size.value).decode()
        library.free(text)
    found = re.search(r"bytes in allocated blocks\s*=\s*([\d,]+)", printed)
    return int(found[1].replace(",", "")) if found else 0  # PYTHONMALLOC=malloc


def n_threads() -> int:
    """How many threads the process has, without one of each name that a pool gives. A pool starts its threads when it
    first has work, and they stay. Another pool of the same name counts."""
    names = [thread.name for thread in threading.enumerate()]
    return len(names) - len({name for name in names if name.startswith(_POOLS)})


def _write(_number: int, _frame: FrameType | None) -> None:
    path = Path(os.environ["TORTURE_INSIDE"], f"{os.getpid()}.json")
    part = path.with_suffix(".part")
    part.write_text(json.dumps(holdings()), encoding="utf-8")
    part.rename(path)


if "TORTURE_INSIDE" in os.environ:
    signal.signal(signal.SIGUSR1, _write)
