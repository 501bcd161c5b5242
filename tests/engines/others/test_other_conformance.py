"""The engines of others keep the contract of every engine, each against a stand-in of its server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conformance import Subject, assert_keeps_the_contract
from grpc_stand_ins import cosyvoice_stand_in, triton_stand_in
from http_stand_ins import http_stand_in, wait_until
from others_rig import TRANSCRIPT, engine, recording
from socket_stand_ins import socket_stand_in

pytestmark = pytest.mark.slow

SUBJECT = Subject(times_words=False)
ONE_SPEED = Subject(times_words=False, changes_speed=False)


@pytest.mark.parametrize(
    ("kind", "form", "rate_hz", "subject"),
    [
        ("openai", "pcm", 24_000, SUBJECT),
        ("openai", "wav0", 44_100, SUBJECT),
        ("kokoro_fastapi", "wavff", 48_000, SUBJECT),
        ("speaches", "events", 22_050, SUBJECT),
        ("sglang_omni", "sglang_events", 24_000, SUBJECT),
        ("vllm_omni", "pcm", 24_000, ONE_SPEED),
        ("voxserve", "wav0", 24_000, ONE_SPEED),
    ],
)
def test_http_servers_of_names(kind: str, form: str, rate_hz: int, subject: Subject) -> None:
    with http_stand_in(form=form, rate_hz=rate_hz) as server:
        given = {"kind": kind, "url": server.url, "rate_hz": rate_hz, "voices": {"alloy": {}, "echo": {}}}
        assert_keeps_the_contract(lambda: engine(**given), subject)
        wait_until(lambda: server.n_live == 0)


@pytest.mark.parametrize("kind", ["cosyvoice_fastapi", "lighttts"])
def test_http_servers_of_recordings(kind: str, tmp_path: Path) -> None:
    voices = {"anna": {"wav": recording(tmp_path), "text": TRANSCRIPT}}
    with http_stand_in() as server:
        assert_keeps_the_contract(lambda: engine(kind=kind, url=server.url, voices=voices), ONE_SPEED)


@pytest.mark.parametrize("kind", ["vllm_omni", "sglang_omni"])
def test_websockets(kind: str) -> None:
    with socket_stand_in(greets=kind == "sglang_omni") as server:
        # The stand-in reads no speed.
        given = {"kind": kind, "url": server.url, "websocket": True}
        assert_keeps_the_contract(lambda: engine(**given), ONE_SPEED)


def test_cosyvoices_grpc_runtime(tmp_path: Path) -> None:
    voices = {"stored": {}, "anna": {"wav": recording(tmp_path), "text": TRANSCRIPT}}
    with cosyvoice_stand_in() as server:
        given: dict[str, Any] = {"kind": "cosyvoice_grpc", "url": server.address, "voices": voices}
        assert_keeps_the_contract(lambda: engine(**given), ONE_SPEED)
        assert server.most_live <= 4
        wait_until(lambda: server.n_live == 0)


@pytest.mark.parametrize("stops", [True, False])
def test_triton(stops: bool) -> None:
    with triton_stand_in(ignores_cancel=not stops) as server:
        given = {"kind": "triton", "url": server.address, "model": "cosyvoice2", "stops_on_cancel": stops}
        assert_keeps_the_contract(lambda: engine(**given), ONE_SPEED)
        assert server.most_live <= 4
