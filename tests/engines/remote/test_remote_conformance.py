"""Engines keep the contract of `engines.api` also through a real socket, in a process of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conformance import Subject, assert_keeps_the_contract
from engine_servers import engine_server

from telephony_tts.engines.cosyvoice2.checkpoint import random_checkpoint
from telephony_tts.engines.remote.client import RemoteEngine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]

PATIENT = {"lost_with_peers_ms": 20_000, "first_audio_timeout_ms": 20_000}
"""The fake engine renders ten thousand characters without a pause, which may take seconds on a busy machine."""


@pytest.mark.parametrize("listen", [None, "127.0.0.1:0"])
def test_the_fake_engine_keeps_the_contract_in_another_process(listen: str | None) -> None:
    with engine_server(listen=listen) as server:
        subject = Subject(max_s_of_endless_word=601.0)
        assert_keeps_the_contract(lambda: RemoteEngine("remote", [server.address], **PATIENT), subject)


def test_two_replicas_keep_the_contract() -> None:
    with engine_server() as one, engine_server() as two:
        targets = [one.address, two.address]
        subject = Subject(max_s_of_endless_word=601.0)
        assert_keeps_the_contract(lambda: RemoteEngine("remote", targets, **PATIENT), subject)


def test_hibari_keeps_the_contract_in_another_process() -> None:
    with engine_server("engines.default=hibari", "engines.hibari.workers=1") as server:
        assert_keeps_the_contract(lambda: RemoteEngine("remote", [server.address]), Subject(n_most=6))


def test_cosyvoice2_keeps_the_contract_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fewer layers and steps, which would take most of the time. This test is about the transport.
    tiny = random_checkpoint.SIZES["tiny"]
    few = replace(tiny.vocoder, res_kernels=(3, 7), res_dilations=(1, 3))
    monkeypatch.setitem(random_checkpoint.SIZES, "tiny", replace(tiny, vocoder=few))
    random_checkpoint.write_random_checkpoint(tmp_path)
    settings = (
        "engines.default=cosyvoice2", f"engines.cosyvoice2.model={tmp_path}", "engines.cosyvoice2.isolation=thread",
        "engines.cosyvoice2.slots=2", "engines.cosyvoice2.flow_steps=2", "engines.cosyvoice2.workers=1",
        "engines.cosyvoice2.threads=1", "engines.cosyvoice2.dtype=float32",
    )  # fmt: skip
    with engine_server(*settings) as server:
        brief = Subject("Thank you for calling.", "It left on Tuesday.", n_most=6)
        assert_keeps_the_contract(lambda: RemoteEngine("remote", [server.address]), brief)
