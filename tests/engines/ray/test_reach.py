"""Connecting to a Ray cluster: what an error of Ray says in one line, and the tries by Ray's client."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from telephony_tts.engines.ray import reach

DIED = """Initialization failure from server:
Traceback (most recent call last):
  File "/ray/util/client/server/proxier.py", line 773, in Datapath
    raise RuntimeError(
RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err for detailed logs.
"""
IN_TURN = """Deploying app 'tts' failed:
Traceback (most recent call last):
  File "a.py", line 1, in one
    two()
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in two
    raise ValueError(
    ^^^^^^^^^^^^^^^^^
ValueError: the model is not there:
  models/x
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("one\n\n  two\nthree\nfour", "one two three"),
        ("No cluster.", "No cluster"),
        ("", "ConnectionError"),
        ("x" * 1000, "x" * 600),
        (DIED, "Initialization failure from server: RuntimeError: Starting Ray client server failed. "
         "See ray_client_server_23000.err for detailed logs"),
        (IN_TURN, "Deploying app 'tts' failed: ValueError: the model is not there: models/x"),
        ("Traceback (most recent call last):", "ConnectionError"),
        ("failed:\nTraceback (most recent call last):\n  File \"a.py\", line 1", "failed: File \"a.py\", line 1"),
    ],
)  # fmt: skip
def test_an_error_is_told_in_one_line_with_its_reason(text: str, told: str) -> None:
    assert reach.said(ConnectionError(text)) == told


class Ray(ModuleType):
    """`init` raises the errors one after the other, and then connects."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__("ray")
        self.errors = list(errors)
        self.asked: list[dict[str, object]] = []

    def init(self, **how: object) -> None:
        self.asked.append(how)
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(reach, "check_reachable", lambda address: None)
    return monkeypatch


def test_a_client_whose_server_died_is_tried_again(patched: pytest.MonkeyPatch) -> None:
    ray = Ray(ConnectionAbortedError(DIED), ConnectionAbortedError(DIED))
    patched.setitem(sys.modules, "ray", ray)
    assert reach.connect("ray://head:10001", namespace="ours") is ray
    assert [(each["address"], each["namespace"]) for each in ray.asked] == [("ray://head:10001", "ours")] * 3


def test_after_the_last_try_the_error_has_the_reason_and_what_helps(patched: pytest.MonkeyPatch) -> None:
    ray = Ray(*[ConnectionAbortedError(DIED)] * 5)
    patched.setitem(sys.modules, "ray", ray)
    with pytest.raises(ConnectionError, match=r"Ray client server failed.*GRPC_ENABLE_FORK_SUPPORT=0") as raised:
        reach.connect("ray://head:10001")
    assert len(ray.asked) == 3
    assert "Traceback" not in reach.said(raised.value) and "GRPC_ENABLE_FORK_SUPPORT=0" in reach.said(raised.value)


def test_another_error_is_not_tried_again(patched: pytest.MonkeyPatch) -> None:
    ray = Ray(RuntimeError("Version mismatch"))
    patched.setitem(sys.modules, "ray", ray)
    with pytest.raises(RuntimeError, match="Version mismatch"):
        reach.connect("ray://head:10001")
    assert len(ray.asked) == 1
