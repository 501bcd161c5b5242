"""Cancelled loading, and checkpoints whose damage names and shapes do not show."""

from __future__ import annotations

import asyncio
import gc
import math
import shutil
import threading
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conformance import joined, speak
from service_rig import core_of, started, until
from speaking import NEIGHBOUR, SENTENCE, n_empty

from telephony_tts.engines.api import Utterance
from telephony_tts.engines.cosyvoice2.checkpoint.conversion import convert
from telephony_tts.engines.cosyvoice2.choice import CpuTimings, EngineChoice
from telephony_tts.engines.cosyvoice2.device import runner
from telephony_tts.engines.cosyvoice2.device.idle_lanes import SleepingLanes
from telephony_tts.engines.cosyvoice2.hosting import choosing
from telephony_tts.engines.cosyvoice2.hosting.loading import device_problem, load
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.engines.cosyvoice2.settings import AheadLimits, Precision, Settings
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore, read_spk2info
from telephony_tts.runtime.errors import EngineError, EngineUnavailable
from telephony_tts.runtime.machine_limits import CpuShare

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_steps")]

INT8 = Precision(lm="int8")
NETWORKS = ("llm.pt", "flow.pt", "hift.pt")


@pytest.fixture
def directory(model_dir: Path, tmp_path: Path) -> Path:
    """A copy that may be broken."""
    shutil.copytree(model_dir, tmp_path / "model")
    return tmp_path / "model"


# ----------------------------------------------------------------------------- warm-up


@pytest.mark.parametrize(("n_lanes", "can_help", "n_helpers"), [(3, True, 2), (1, True, 0), (3, False, 0)])
@pytest.mark.parametrize("precision", [Precision(), INT8], ids=["float32", "int8"])
def test_idle_lanes_help_with_the_warm_up_and_end_with_it(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, n_lanes: int, can_help: bool, n_helpers: int
) -> None:
    """Also if it is given up in the middle."""
    seen = set[int]()

    class Lanes(SleepingLanes):
        def wait(self, n_seen: int) -> None:
            seen.add(threading.get_ident())
            super().wait(n_seen)

    Lanes.can_help = can_help
    monkeypatch.setattr(runner, "HelpingLanes", Lanes)
    monkeypatch.setattr(runner, "SleepingLanes", Lanes)
    settings = Settings(model_dir=model_dir, precision=precision, n_lanes=n_lanes, n_slots=1)
    before = threading.active_count()
    n_steps = 0

    def is_wanted() -> bool:
        nonlocal n_steps
        n_steps += len(seen) == n_helpers and n_helpers > 0
        return n_steps < 3

    if n_helpers:
        with pytest.raises(EngineError, match="closed while it was loading"):
            load(settings, lambda key, event: None, is_wanted)
        assert len(seen) == n_helpers
    else:
        load(settings, lambda key, event: None)
        assert not seen
    assert threading.active_count() == before


# ---------------------------------------------------------------------------- given up


@pytest.mark.parametrize("precision", [Precision(), INT8], ids=["float32", "int8"])
def test_it_can_be_given_up_between_any_two_tensors(model_dir: Path, precision: Precision) -> None:
    """It asks while it reads files, moves and packs weights, and warms up. Then it stops."""
    settings = Settings(model_dir, precision=precision)
    n_asked = 0

    def up_to(n_most: int) -> Callable[[], bool]:
        def wanted() -> bool:
            nonlocal n_asked
            n_asked += 1
            return n_asked <= n_most

        return wanted

    load(settings, lambda *_: None, up_to(10**9))
    n_in_all = n_asked
    files = [torch.load(model_dir / name, weights_only=True) for name in NETWORKS]
    n_tensors = sum(len(state) for state in files)
    assert n_in_all > 2 * n_tensors, "read, taken over"
    for n_most in (0, 1, n_tensors // 2, n_tensors, 3 * n_tensors // 2, 2 * n_tensors, n_in_all - 1):
        n_asked = 0
        with pytest.raises(EngineError, match="closed while it was loading"):
            load(settings, lambda *_: None, up_to(n_most))
        assert n_asked == n_most + 1, "it went on"


@pytest.mark.parametrize("ends", [True, False])
def test_the_first_sentence_keeps_no_slot(directory: Path, ends: bool) -> None:
    """However little may be made ahead of a listener, and also where the model never ends it by itself."""
    if not ends:
        state = torch.load(directory / "llm.pt", weights_only=True)
        state["llm_decoder.bias"][6561:] = -50.0
        torch.save(state, directory / "llm.pt")
    core = load(Settings(directory, n_slots=2, ahead=AheadLimits(200)), lambda *_: None).core
    assert core._jobs == {} and core.slots.n_free == n_empty(core.runner.model.cache) == 2


# ---------------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("device", "n_gpus", "problem"),
    [
        ("cpu", 0, None),
        ("cuda", 2, None),
        ("cuda:1", 2, None),
        ("cuda:7", 2, r"no GPU of that number; there are 2, cuda:0 to cuda:1, or engines\.cosyvoice2\.device: cpu"),
        ("cuda:1", 1, "no GPU of that number; cuda:0 is the only one, or"),
        ("cuda:200", 2, "no GPU of that number"),
        ("gpu", 2, "no such device; expected cpu, cuda or cuda:N"),
    ],
)
def test_a_missing_device_is_reported_in_a_sentence(
    device: str, n_gpus: int, problem: str | None, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a configuration file."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    found = device_problem(device)
    assert (found is None) == (problem is None)
    if problem is not None:
        with pytest.raises(EngineUnavailable, match=rf"^cosyvoice2 cannot use {device}: .*{problem}") as refused:
            asyncio.run(CosyVoice2Engine(model_dir, device=device).start())
        assert "\n" not in refused.value.message and "privateuseone" not in refused.value.message


# ------------------------------------------------------------------- too little, or none


def with_short_record(path: Path) -> None:
    """A complete archive with a valid index, in which one tensor has fewer bytes than declared."""
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    longest = max(records, key=lambda name: len(records[name]))
    records[longest] = records[longest][: len(records[longest]) // 2]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    assert len(path.read_bytes()) < len(whole) and zipfile.is_zipfile(path)


def cut_off(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("name", "damage", "isolation"),
    [
        *((name, damage, "thread") for name in NETWORKS for damage in (cut_off, with_short_record)),
        ("llm.pt", with_short_record, "process"),
    ],
)
def test_weights_of_which_a_part_is_missing_are_named(
    directory: Path, name: str, damage: Callable[[Path], None], isolation: str
) -> None:
    damage(directory / name)
    engine = CosyVoice2Engine(directory, isolation=isolation)
    with pytest.raises(EngineUnavailable, match=rf"{name} cannot be read.*(?s:.*)models (pull|random|check)") as caught:
        started(engine, lambda engine: speak(engine, Utterance("u", SENTENCE)))
    assert caught.value.message.count("\n") < 5 and len(caught.value.message) < 800
    assert engine.voices == ()


@pytest.mark.parametrize("cut", [0.02, 0.5, 0.99])
def test_a_stored_voice_of_which_a_part_is_missing_is_left_out_and_the_others_speak(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: float
) -> None:
    """Its header is good and the numbers end too soon, or the header itself does."""
    store = VoiceStore(tmp_path)
    for name in ("anna", "bert"):
        store.save(name, read_spk2info(model_dir / "spk2info.pt")[0]["prompted"])
    path = tmp_path / "anna.safetensors"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])

    async def use(engine: CosyVoice2Engine) -> None:
        assert [voice.name for voice in engine.voices] == ["preset", "prompted", "bert"]
        assert len(joined(await speak(engine, Utterance("u", "yes", voice="bert"))))

    started(CosyVoice2Engine(model_dir, tmp_path), use)
    assert "skips a voice: " in caplog.text and "anna" in caplog.text and "Traceback" not in caplog.text


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("file", "tensor", "isolation"),
    [
        ("llm.pt", "llm.model.model.norm.weight", "thread"),
        ("llm.pt", "llm_decoder.bias", "process"),
        ("flow.pt", "encoder.after_norm.bias", "thread"),
        ("hift.pt", "conv_pre.bias", "thread"),
    ],
)
def test_a_tensor_without_numbers_shows_in_the_first_sentence(
    directory: Path, file: str, tensor: str, isolation: str
) -> None:
    """Nobody looks at every weight; the sentence that is made before any call is taken tells, and says how to look."""
    state = torch.load(directory / file, weights_only=True)
    state[tensor].view(-1)[3] = math.nan
    torch.save(state, directory / file)
    engine = CosyVoice2Engine(directory, isolation=isolation)
    with pytest.raises(EngineUnavailable, match=r"could not synthesise its warm-up sentence.*models check") as caught:
        started(engine, lambda engine: speak(engine, Utterance("u", SENTENCE)))
    assert str(directory) in caught.value.message


def test_an_engine_computes_with_what_was_chosen(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"float32": 1.0}
    timings = CpuTimings({"float32": 1.0, "int8": 0.2}, {"float32": 1.0, "int8": 0.1}, one, one, 1.1)
    monkeypatch.setattr(choosing, "timings_of_this_cpu", lambda: timings)
    monkeypatch.setattr(choosing, "cpu_share", lambda: CpuShare(3, 3))
    monkeypatch.setattr(choosing, "SMALL", 0)  # a tiny model is not timed otherwise

    async def use(engine: CosyVoice2Engine) -> None:
        assert engine.settings.precision.lm == "auto" and engine.choice.precision == Precision(lm="int8")
        assert engine.choice.n_lanes == 3 == sum(thread.name[-1].isdigit() for thread in lanes_of(engine))
        assert core_of(engine).runner.model.lm.rows_are_exact, "int8"
        alone = joined(await speak(engine, Utterance("n", NEIGHBOUR, seed=1)))
        assert len(alone) > 0
        speaking = asyncio.ensure_future(speak(engine, Utterance("n", NEIGHBOUR, seed=1)))
        await until(lambda: engine.stats().n_running == 1, "the utterance runs")
        assert engine.stats().load == pytest.approx(2 * engine._host.cost() / 3)  # type: ignore[union-attr]
        await speaking

    def lanes_of(engine: CosyVoice2Engine) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("cosyvoice2-")]

    engine = CosyVoice2Engine(directory, dtype="auto", n_workers=None, n_threads=None)
    assert engine.choice == EngineChoice(), "nothing is chosen before the start"
    started(engine, use)


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("isolation", "lm_dtype"), [("thread", "float32"), ("thread", "int8"), ("process", "bfloat16")]
)
def test_a_word_whose_embedding_is_not_finite_ends_only_utterances_with_it(
    directory: Path, isolation: str, lm_dtype: str
) -> None:
    """The warm-up does not reach every row of the text embedding. Utterances with this word end with an error each
    time, and utterances in the same batches sound as alone."""
    text = "Zebras."
    tokenizer = TextTokenizer(directory / "CosyVoice-BlankEN")
    others = {n for other in (NEIGHBOUR, "Hello.") for n in tokenizer.encode(other)}
    (bad, *_) = [n for n in tokenizer.encode(text) if n not in others]
    state = torch.load(directory / "llm.pt", weights_only=True)
    state["llm.model.model.embed_tokens.weight"][bad] = math.nan
    torch.save(state, directory / "llm.pt")

    async def use(engine: CosyVoice2Engine) -> None:
        alone = joined(await speak(engine, Utterance("n", NEIGHBOUR, seed=1)))
        said = [Utterance(str(i), (NEIGHBOUR, text)[i % 2], seed=1) for i in range(6)]
        heard = await asyncio.gather(*(speak(engine, each) for each in said), return_exceptions=True)
        for i, chunks in enumerate(heard):
            if i % 2:
                assert isinstance(chunks, EngineError) and "not finite" in str(chunks)
            else:
                assert not isinstance(chunks, BaseException) and (joined(chunks) == alone).all()
        assert engine.stats().n_queued == engine.stats().n_running == 0

    started(CosyVoice2Engine(directory, isolation=isolation, n_workers=2, lm_dtype=lm_dtype), use)


def test_a_loaded_engine_can_be_collected(model_dir: Path) -> None:
    """Only a process of its own may keep what is loaded for ever (`gc.freeze`)."""
    n_frozen = gc.get_freeze_count()
    loaded = load(Settings(model_dir), lambda *_: None)
    model = weakref.ref(loaded.core.runner.model)
    del loaded
    gc.collect()
    assert model() is None and gc.get_freeze_count() <= n_frozen


# -------------------------------------------------------------------------------- vLLM


def test_vllm_needs_a_converted_model_of_the_same_weights(directory: Path) -> None:
    settings = Settings(directory, uses_vllm=True)
    run_it = rf"run \.venv/bin/telephony-tts models convert --to vllm {directory}"
    with pytest.raises(EngineUnavailable, match=run_it):
        load(settings, lambda key, event: None)
    convert(directory, "vllm")
    state = torch.load(directory / "llm.pt")
    state["llm_decoder.bias"][0] += 1
    torch.save(state, directory / "llm.pt")
    with pytest.raises(EngineUnavailable, match=f"or one of other weights: {run_it}"):
        load(settings, lambda key, event: None)


def test_without_vllm_it_says_so(directory: Path) -> None:
    convert(directory, "vllm")
    with pytest.raises(EngineUnavailable, match=r"vLLM cannot be imported \(No module named 'vllm'\): install it"):
        load(Settings(directory, uses_vllm=True), lambda key, event: None)
