"""The configuration files of the project can be used without changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from telephony_tts.app.config import load
from telephony_tts.app.engines import build_catalog
from telephony_tts.app.settings import session_settings, transport_settings
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.engines.cosyvoice2.settings import Timeouts

BRIDGE = "sip_bridge"
"""The bridge's configuration, which tests/sip_bridge tests."""
CONFIGS = sorted(path for path in (Path(__file__).parents[1] / "configs").glob("*.yaml") if path.stem != BRIDGE)
COSYVOICE2 = [path for path in CONFIGS if path.stem.startswith("cosyvoice2")]


def test_each_documented_machine_has_a_configuration() -> None:
    assert [path.stem for path in COSYVOICE2] == [f"cosyvoice2-{machine}" for machine in ("cpu", "h200", "l20", "v100")]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_loads_and_a_server_can_be_made_of_it(path: Path) -> None:
    read = load(str(path), environ={})
    assert transport_settings(read).server.port == read.server.port


@pytest.mark.parametrize("path", COSYVOICE2, ids=lambda path: path.stem)
def test_the_comments_name_the_file_and_its_model(path: Path) -> None:
    settings = load(str(path), environ={}).engines
    assert settings.default == "cosyvoice2" and settings.cosyvoice2.model is not None
    text = path.read_text(encoding="utf-8")
    assert f"serve --config configs/{path.name}" in text
    assert "make model" in text
    makefile = (path.parent.parent / "Makefile").read_text(encoding="utf-8")
    pulled = re.search(r"^MODEL\s*\?= (\S+)$", makefile, re.MULTILINE)
    assert pulled is not None and f"--model {pulled[1]}" in text
    assert Path(settings.cosyvoice2.model).resolve() == (path.parent.parent / pulled[1]).resolve()
    assert settings.cosyvoice2.device == ("cpu" if path.stem.endswith("cpu") else "cuda")
    assert not (path.stem.endswith("v100") and settings.cosyvoice2.dtype == "bfloat16"), "the V100 has no bfloat16"


@pytest.mark.parametrize("path", COSYVOICE2, ids=lambda path: path.stem)
def test_the_engine_can_be_made_and_fits_the_machine(path: Path) -> None:
    """The engine refuses what the schema does not know, such as a precision that a network does not have."""
    config = load(str(path), environ={})
    build_catalog(config)
    settings = config.engines.cosyvoice2
    assert settings.isolation == "process", "a failure of the engine must end no call"
    if settings.device == "cpu":
        chosen = (settings.dtype, settings.lm_dtype, settings.flow_dtype, settings.vocoder_dtype)
        assert chosen == ("auto", None, None, None), "no choice by hand is right on two kinds of CPU"
        assert settings.workers == settings.threads == "auto"
    else:
        assert settings.workers == 1, "one lane drives the device; a second lane would only wait for it"
        assert "int8" not in (settings.lm_dtype, settings.flow_dtype), "int8 is for CPUs"


def test_the_timeouts_of_engines_reach_calls_and_the_engine() -> None:
    own = {"engines.timeout_s": 12.5, "engines.stall_s": 3, "engines.restart_wait_s": 7}
    config = load(None, {**own, "engines.cosyvoice2.model": "nowhere"}, environ={})
    assert session_settings(config).engine_timeout_ms == 12_500
    (engine,) = (each for each in build_catalog(config).engines if isinstance(each, CosyVoice2Engine))
    assert engine._timeouts == Timeouts(stall_s=3.0, step_s=12.5, restart_wait_s=7.0)
