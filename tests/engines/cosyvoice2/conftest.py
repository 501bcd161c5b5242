"""The tiny checkpoint that the tests of this folder share; nothing writes to it. And engine processes that are forked.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pretend_device
import pytest
import torch
from few_steps import CHILD, load_with_few_steps
from forked_process import ForkServer, fork_server
from places import Place
from pretend_device import Pretence
from speaking import REQUESTS, VOICES, Rig, spoken

from telephony_tts.engines.api import Pcm
from telephony_tts.engines.cosyvoice2.checkpoint import random_300m, random_checkpoint
from telephony_tts.engines.cosyvoice2.device import lm_steps
from telephony_tts.engines.cosyvoice2.hosting import loading, process_host
from telephony_tts.engines.cosyvoice2.model.flow import device_backend
from telephony_tts.engines.cosyvoice2.model.vocoder import recorded
from telephony_tts.engines.cosyvoice2.voices.voice import PromptFeatures
from telephony_tts.runtime.clock import NS_PER_S

FEW_LAYERS: dict[str, Any] = {"res_kernels": (3, 7), "res_dilations": (1, 3)}
"""For the vocoder: at the official number, its residual layers take most of the time of a tiny model. The tests of the
vocoder itself and the parity check have more."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """With more threads, sums do not have the same bits, and threads wait for each other."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture(autouse=True)
def batches_end_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine would end a batch of ids earlier, and a core would make other steps than the time before."""
    monkeypatch.setattr(lm_steps, "MOST_AHEAD_NS", NS_PER_S * 3600)


@pytest.fixture(autouse=True)
def no_ends_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph for each length that an utterance's last block can have takes minutes on the pretended device."""
    monkeypatch.setattr(device_backend, "END_TOKENS", range(0))
    monkeypatch.setattr(recorded, "END_FRAMES", range(0))


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny = random_checkpoint.SIZES["tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(random_checkpoint.SIZES, "tiny", replace(tiny, vocoder=replace(tiny.vocoder, **FEW_LAYERS)))
        random_checkpoint.write_random_checkpoint(path)
    return path


@pytest.fixture(scope="session")
def small_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CosyVoice-300M."""
    path = tmp_path_factory.mktemp("small")
    tiny = random_300m.SIZES_300M["tiny"]
    with pytest.MonkeyPatch.context() as patch:
        few = replace(tiny, vocoder=replace(tiny.vocoder, **FEW_LAYERS))
        patch.setitem(random_300m.SIZES_300M, "tiny", few)
        random_checkpoint.write_random_checkpoint(path, family="300m")
    return path


@pytest.fixture(scope="module")
def few_steps() -> Iterator[None]:
    """Fewer Euler steps for the engines of a file. Its tests do not depend on the number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_model_directory", load_with_few_steps)
        patch.setattr(process_host, "_CHILD", CHILD)
        yield


@pytest.fixture(scope="module")
def engine_forks() -> Iterator[ForkServer]:
    quiet = {**process_host.QUIET_THREADS, **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    folder = "telephony_tts.engines.cosyvoice2"
    with fork_server("few_steps", f"{folder}.core.core", f"{folder}.hosting.known_voices", environment=quiet) as forks:
        yield forks


@pytest.fixture
def forks(engine_forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server that has imported torch forks the engine processes. Tests that judge the start or the end of such
    a process do not use this fixture."""
    monkeypatch.setattr(process_host, "subprocess", engine_forks)


@pytest.fixture(scope="module")
def rig(model_dir: Path) -> Rig:
    return Rig(model_dir)


@pytest.fixture(scope="module")
def alone(rig: Rig) -> list[Pcm]:
    """`REQUESTS`, each spoken alone."""
    return [spoken(rig, request, voice) for request, voice in zip(REQUESTS, VOICES, strict=True)]


@pytest.fixture(scope="module")
def cpu(model_dir: Path) -> Place:
    return Place(model_dir, "cpu")


@pytest.fixture(scope="module")
def device(model_dir: Path) -> Place:
    with torch.inference_mode(), Pretence():
        return Place(model_dir, str(pretend_device.device()))


@pytest.fixture
def pretence() -> Iterator[Pretence]:
    pretend_device.device()
    with torch.inference_mode(), Pretence() as entered:
        yield entered


@pytest.fixture
def here(cpu: Place) -> Iterator[Place]:
    """The model on the CPU; its slots are emptied afterwards."""
    yield cpu
    cpu.clear()


@pytest.fixture
def there(device: Place, pretence: Pretence) -> Iterator[Place]:
    """The model on the pretended device, which the test can compute on."""
    yield device
    device.clear()


@pytest.fixture
def features() -> PromptFeatures:
    """A voice of 87 random tokens with a transcript."""
    random = torch.Generator().manual_seed(0)
    return PromptFeatures(
        torch.randint(6561, (87,), generator=random),
        torch.randn(174, 80, generator=random),
        torch.randn(192, generator=random),
        "Guten Tag, 你好",
        (5, 6, 7),
        {"source": "a.wav"},
    )
