"""Claims: a call belongs to one front, and to none that has ended."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from telephony_tts.fronts.claims import Claims, UsedNonces, remove_claims_of
from telephony_tts.transport.fronts import ClaimFailed

Maker = Callable[[str], Claims]


class Living:
    """Which fronts run."""

    def __init__(self) -> None:
        self.names = {"0.1", "1.1", "2.1"}

    def __call__(self, name: str) -> bool:
        return name in self.names


@pytest.fixture
def living() -> Living:
    return Living()


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "calls").mkdir()
    return tmp_path / "calls"


@pytest.fixture
def front(folder: Path, lock: int, living: Living) -> Maker:
    return lambda name: Claims(folder, lock, name, living)


def test_a_call_has_one_owner_until_it_is_released(front: Maker, folder: Path) -> None:
    one, other = front("0.1"), front("1.1")
    assert one.claim("CA1") is None and one.owner("CA1") == "0.1"
    assert other.claim("CA1") == "0.1" and other.owner("CA1") == "0.1"
    assert other.claim("CA2") is None and one.owner("CA2") == "1.1"
    one.release("CA1")
    assert one.owner("CA1") is None and other.claim("CA1") is None and one.claim("CA1") == "1.1"
    other.release("CA1")
    other.release("CA2")
    assert list(folder.iterdir()) == []


def test_each_claim_needs_its_release(front: Maker) -> None:
    one, other = front("0.1"), front("1.1")
    for _ in range(3):
        assert one.claim("CA1") is None
    one.release("CA1")
    one.release("CA1")
    assert other.claim("CA1") == "0.1"
    one.release("CA1")
    assert other.claim("CA1") is None


def test_the_claim_of_a_front_that_has_ended_is_free(front: Maker, living: Living, folder: Path) -> None:
    front("0.1").claim("CA1")
    living.names = {"1.1", "2.1"}
    other, third = front("1.1"), front("2.1")
    assert other.owner("CA1") is None, "it can be had"
    assert other.claim("CA1") is None
    assert third.claim("CA1") == "1.1", "a new claim is not taken for the old one"
    (link,) = folder.iterdir()
    assert os.readlink(link) == "1.1"


def test_a_slow_remover_does_not_remove_a_new_claim(front: Maker, living: Living, folder: Path, lock: int) -> None:
    front("0.1").claim("CA1")
    quick = front("2.1")

    def ended(name: str) -> bool:
        """While the slow front finds that the owner has ended, the quick one takes the call."""
        if name == "0.1":
            living.names = {"1.1", "2.1"}
            quick.claim("CA1")
        return living(name)

    assert Claims(folder, lock, "1.1", ended).claim("CA1") == "2.1"
    assert [os.readlink(link) for link in folder.iterdir()] == ["2.1"]


def test_a_front_of_the_same_number_that_was_started_again_owns_nothing(front: Maker, living: Living) -> None:
    front("0.1").claim("CA1")
    living.names = {"0.2", "1.1"}
    assert front("1.1").owner("CA1") is None
    again = front("0.2")
    assert again.claim("CA1") is None and front("1.1").owner("CA1") == "0.2"


def test_claims_of_an_ended_front_are_removed_and_no_others(front: Maker, folder: Path, lock: int) -> None:
    one, other = front("0.1"), front("1.1")
    for n in range(20):
        (one if n % 2 else other).claim(f"CA{n}")
    assert remove_claims_of(folder, lock, "0.1") == 10
    assert {os.readlink(link) for link in folder.iterdir()} == {"1.1"} and len(list(folder.iterdir())) == 10


def test_names_are_harmless_and_distinct(front: Maker, folder: Path) -> None:
    one = front("0.1")
    names = ["../../etc/passwd", "a/b", "", "é", "\ud800", "x" * 500, "CA1", "ca1"]
    for name in names:
        assert one.claim(name) is None
    files = list(folder.iterdir())
    assert len(files) == len(names) and all(file.name.isalnum() and len(file.name) == 32 for file in files)


def test_a_folder_that_cannot_be_used_refuses_new_claims_and_keeps_old_ones(front: Maker, folder: Path) -> None:
    one = front("0.1")
    one.claim("CA1")
    for link in folder.iterdir():
        link.unlink()
    folder.rmdir()
    folder.touch()  # not a folder any more
    with pytest.raises(ClaimFailed, match=r"server\.runtime_folder"):
        one.claim("CA2")
    with pytest.raises(ClaimFailed):
        one.owner("CA2")
    assert one.claim("CA1") is None, "a call that is here goes on"
    one.release("CA1")
    one.release("CA1")


@pytest.mark.slow
def test_a_full_folder_refuses_new_claims(tmp_path: Path, lock: int, living: Living) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=3", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("only root can make a file system that is full")
    try:
        one = Claims(tmp_path, lock, "0.1", living)
        assert [one.claim("CA1"), one.claim("CA2")] == [None, None]
        with pytest.raises(ClaimFailed, match=os.strerror(errno.ENOSPC)):
            one.claim("CA3")
        with pytest.raises(ClaimFailed, match=os.strerror(errno.ENOSPC)):
            UsedNonces(tmp_path, 10).is_new("n")
        one.release("CA1")
        assert one.claim("CA3") is None
    finally:
        subprocess.run(["umount", tmp_path], check=True)


_CLAIMER = """
import os, sys
from telephony_tts.fronts.claims import Claims
folder, lock, name, dead, seed = sys.argv[1:]
fd = os.open(lock, os.O_RDWR)
claims = Claims(folder, fd, name, lambda each: each != dead)
import random
calls = [f"CA{n}" for n in range(300)]
random.Random(int(seed)).shuffle(calls)
print("go", flush=True)
sys.stdin.readline()
print(" ".join(call for call in calls if claims.claim(call) is None), flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_processes_that_claim_the_same_calls_at_the_same_time_share_none(
    folder: Path, lock: int, living: Living, tmp_path: Path
) -> None:
    """Half of the calls had an owner that has ended, whose claims are removed in passing."""
    dead = Claims(folder, lock, "0.1", living)
    for n in range(0, 300, 2):
        dead.claim(f"CA{n}")
    names = ["1.1", "2.1", "3.1", "4.1"]
    claimers = [
        subprocess.Popen(
            [sys.executable, "-c", _CLAIMER, folder, tmp_path / "lock", name, "0.1", str(random.randrange(1000))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in names
    ]  # fmt: skip
    try:
        for claimer in claimers:
            assert claimer.stdout is not None and claimer.stdout.readline() == "go\n"
        for claimer in claimers:
            assert claimer.stdin is not None
            claimer.stdin.write("\n")
            claimer.stdin.flush()
        had = [claimer.stdout.readline().split() for claimer in claimers if claimer.stdout is not None]
        every = [call for calls in had for call in calls]
        assert len(every) == len(set(every)) == 300, "each call has one owner"
        assert sum(bool(calls) for calls in had) > 1, "they did not run at the same time"
    finally:
        for claimer in claimers:
            claimer.communicate("\n", timeout=10)


def test_a_nonce_is_new_once_for_all_fronts(tmp_path: Path) -> None:
    one, other = UsedNonces(tmp_path, 3), UsedNonces(tmp_path, 3)
    assert one.is_new("a") and not other.is_new("a") and not one.is_new("a")
    assert other.is_new("b") and not one.is_new("b")


def test_old_nonces_make_room(tmp_path: Path) -> None:
    one, other = UsedNonces(tmp_path, 3), UsedNonces(tmp_path, 3)
    assert other.is_new("kept")
    assert all(one.is_new(f"n{n}") for n in range(10))
    assert len(list(tmp_path.iterdir())) == 4
    assert not one.is_new("n9") and not one.is_new("kept") and one.is_new("n0")
