"""What `doctor` says of CosyVoice2: the GPUs, the model directory, its voices, and what it would compute with."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from telephony_tts.engines.cosyvoice2.configuration import CosyVoice2Settings
from telephony_tts.engines.plugin import Finding
from telephony_tts.runtime.errors import EngineUnavailable

if TYPE_CHECKING:
    from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine

DRIVER_S = 10.0
"""Time limit for the driver to report its version; it may have to wake the GPUs."""
MakeEngine = Callable[[], "CosyVoice2Engine"]


def gpus(device: str) -> Iterator[Finding]:
    """The GPUs that PyTorch sees, or why there is none. Broken if the configured `device` cannot be used."""
    if importlib.util.find_spec("torch") is None:
        return
    try:
        import torch

        from telephony_tts.engines.cosyvoice2.hosting.loading import device_problem
    except (ImportError, OSError) as error:  # one of its libraries is missing or for another machine
        yield "broken", "gpu", f"PyTorch cannot be imported: {error}; install it again: make model TORCH=..."
        return
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    driver = f"driver {_driver() or 'unknown'}, PyTorch built for CUDA {torch.version.cuda}"
    for n in range(n_gpus):
        gpu = torch.cuda.get_device_properties(n)
        found = f"cuda:{n} {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {driver}"
        unfit = device_problem(f"cuda:{n}")
        yield "ok", "gpu", found if unfit is None else f"{found}; not used: {unfit}"
    wanted = device_problem(device)
    if wanted is not None:
        yield "broken", "gpu", f"engines.cosyvoice2.device is {device}: {wanted}"
    elif not n_gpus:
        why, _, _ = (device_problem("cuda") or "").partition(";")
        yield "ok", "gpu", f"no GPU: device cpu works ({why})"


def _driver() -> str | None:
    """The version of NVIDIA's driver; None if it is unknown."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=DRIVER_S, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return told[0] if told else None


def model_and_voices(own: CosyVoice2Settings, engine: MakeEngine, *, is_running: bool) -> Iterator[Finding]:
    """The configured model directory and its voices. Whether it speaks is tried with all engines. An engine that
    `is_running` has timed the machine."""
    model = own.model
    if model is None or importlib.util.find_spec("torch") is None:
        return
    from telephony_tts.engines.cosyvoice2.checkpoint.weights import check_model_directory, family_of, how_to_mend
    from telephony_tts.engines.cosyvoice2.model.config import COSYVOICE2
    from telephony_tts.engines.cosyvoice2.model.file_names import RANDOM_MARK, SPEAKERS_FILE
    from telephony_tts.engines.cosyvoice2.settings import how_to_add_a_voice
    from telephony_tts.engines.cosyvoice2.voices.enrolment import list_voices
    from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore

    problems = check_model_directory(Path(model))
    for problem in problems:
        yield "broken", "cosyvoice2 model", f"{model}: {problem}"
    if problems:
        yield "broken", "cosyvoice2 model", how_to_mend(Path(model))
        return
    is_random = (Path(model) / RANDOM_MARK).is_file()
    family = family_of(Path(model))
    found = f"{model}" + ("" if family is COSYVOICE2 else f", {family.name}")
    yield "ok", "cosyvoice2 model", found + (" (random weights: noises, not speech)" if is_random else "")
    directory = own.voice_folder
    assert directory is not None
    voices = list_voices(Path(model), VoiceStore(directory))
    for voice in voices:
        if voice.features is None:
            yield "broken", "cosyvoice2 voice", f"{voice.name}: {voice.problem}"
    names = [voice.name for voice in voices if voice.features is not None]
    if names:
        yield "ok", "cosyvoice2 voices", f"{len(names)}: {', '.join(names)}"
    elif family is COSYVOICE2:
        yield "missing", "cosyvoice2 voices", how_to_add_a_voice(Path(model), directory)
    else:
        yield "missing", "cosyvoice2 voices", f"{SPEAKERS_FILE} has no speaker: take the one of CosyVoice-300M-SFT"
    if not is_running:
        yield from _speed(own, engine)


_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _speed(own: CosyVoice2Settings, engine: MakeEngine) -> Iterator[Finding]:
    """What the engine would compute with on this machine, and why. Times the machine if that was not done before."""
    if own.device != "cpu" or own.model is None:
        return
    from telephony_tts.engines.cosyvoice2.checkpoint.weights import model_sizes
    from telephony_tts.engines.cosyvoice2.hosting.choosing import settle, where_kept

    try:
        _, choice = settle(engine().settings, model_sizes(Path(own.model)))
    except EngineUnavailable as error:
        yield "broken", "cosyvoice2 settings", error.message
        return
    for line in choice.reasons:
        yield "ok", "cosyvoice2 settings", line
    for line in choice.warnings:
        yield "warning", "cosyvoice2 settings", line
    if choice.timings is not None and (file := where_kept()) is not None and file.is_file():
        yield "ok", "cosyvoice2 timings", f"{file}; delete it to time this machine again"
    if (slow := small_pages(_HUGE_PAGES)) is not None:
        yield "warning", "cosyvoice2 memory", slow


def small_pages(switch: Path) -> str | None:
    """Why the weights stand in pages of 4 kB, if the switch of Linux says so; None elsewhere."""
    try:
        is_off = "[never]" in switch.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    if not is_off:
        return None
    return f"{switch} is [never]: a step of the language model takes up to twice as long; echo madvise > {switch}"
