"""Writes the language model of a model directory in the layouts of other engines, beside the weights it came from.

Both are a Qwen2 of the `transformers` library whose head has a bias, as `llm_decoder` has. They differ in their ids:

    vllm    speech ids only, from 0. The engine that runs it makes the prompt's embeddings, as ours does: the text and
            control tables stay behind. vLLM has no such architecture; its operator registers one of this name.
    hf      one table: text ids, speech ids, the two control rows. A prompt is ids alone, as TensorRT-LLM needs it. The
            tokenizer beside it has a token for each of them.

A folder is written under a temporary name and renamed when it is complete. Its record says which files it was made
from, so a model that changed is converted again, and one that did not is left alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.weights import Checkpoint, load_model_directory
from telephony_tts.engines.cosyvoice2.model.config import EOS, N_SPEECH_ROWS, N_SPEECH_TOKENS, LmConfig
from telephony_tts.engines.cosyvoice2.model.file_names import LM_FILE, SETTINGS_NAMES, TOKENIZER_DIR, TOKENIZER_FILES
from telephony_tts.engines.cosyvoice2.model.lm.lm import BODY
from telephony_tts.engines.cosyvoice2.text.tokenizer import TextTokenizer
from telephony_tts.runtime.errors import ConfigError

Layout = Literal["vllm", "hf"]
DtypeName = Literal["bfloat16", "float16", "float32"]

ARCHITECTURES = {"vllm": "CosyVoice2ForCausalLM", "hf": "Qwen2ForCausalLM"}
"""vLLM's Qwen2 has no bias in its head, so the layout names an architecture of its own. The name is upstream's."""
MAX_POSITIONS = 32_768
"""Of Qwen2-0.5B. Nothing of the weights depends on it."""
ROW_STEP = 128
"""The rows of the large table are padded to a multiple of this, for the kernels of TensorRT-LLM."""
N_CONTROL_ROWS = 2
SPEECH_TOKENS = tuple(f"<|s_{i}|>" for i in range(N_SPEECH_TOKENS))
STOP_TOKENS = ("<|eos1|>", "<|eos2|>", "<|eos3|>")
START_TOKEN, TASK_TOKEN = "<|sos|>", "<|task_id|>"
"""Names of the ids after the text, in their order, as upstream's Triton models look them up."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}"
    f"{START_TOKEN}{{{{ message.content }}}}{TASK_TOKEN}"
    "{% else %}{{ message.content }}{% endif %}{% endfor %}"
)
"""The user's message is the text, and the assistant's the beginning of the speech."""

RECORD = "conversion.json"
WEIGHTS = "model.safetensors"
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """What a converted folder says of itself. Two equal records have equal files."""

    layout: str
    dtype: str
    sha256: dict[str, str]
    """Of the files that it was made from, by their names in the model directory."""
    n_bytes: dict[str, int]
    """Sizes of its own files."""
    version: int = 1
    """Of the layout. Raise it when the converter writes other files."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of `convert`. `is_new` is False if the folder was there and is still right."""

    folder: Path
    is_new: bool
    n_bytes: int
    is_random: bool


def convert(directory: Path, layout: Layout, dtype: DtypeName = "bfloat16", *, replace: bool = False) -> Converted:
    """Writes `directory`/`layout`. A folder of that name which an earlier conversion made is kept if it is still right,
    and replaced if not. `replace`: also replace a folder that something else made.

    Raises ConfigError for a model without a Qwen2, or a folder that cannot be written or is not ours. Raises
    EngineUnavailable for a model directory that is not complete.
    """
    checkpoint = load_model_directory(directory, mapped=True)
    if not isinstance(checkpoint.config.lm, LmConfig):
        raise ConfigError(f"{directory} is a CosyVoice-300M, which has no Qwen2: only CosyVoice2 can be converted")
    folder = directory / layout
    try:
        with _only_conversion(directory):
            sources = {name: _sha256(directory / name) for name in _sources(directory, layout)}
            if not _is_free(folder, replace) and _is_right(folder, Record(layout, dtype, sources, {})):
                return Converted(folder, False, _size(folder), checkpoint.is_random)
            _write(checkpoint, folder, Record(layout, dtype, sources, {}))
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written ({error.strerror or error}): make {directory} writable and free some space"
        ) from error
    return Converted(folder, True, _size(folder), checkpoint.is_random)


def is_converted(directory: Path, layout: Layout) -> bool:
    """Whether a complete model directory has a folder of this layout, of its present weights, in any precision."""
    folder = directory / layout
    try:
        dtype = str(json.loads((folder / RECORD).read_text(encoding="utf-8"))["dtype"])
        sources = {name: _sha256(directory / name) for name in _sources(directory, layout)}
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return False
    return _is_right(folder, Record(layout, dtype, sources, {}))


# ------------------------------------------------------------------------------ folder


def _sources(directory: Path, layout: Layout) -> list[str]:
    """The files that a layout is made from."""
    if layout == "vllm":
        return [LM_FILE, f"{TOKENIZER_DIR}/config.json"]
    settings = next(name for name in SETTINGS_NAMES if (directory / name).exists())
    return [LM_FILE, settings, *(f"{TOKENIZER_DIR}/{name}" for name in TOKENIZER_FILES)]


def _is_free(folder: Path, replace: bool) -> bool:
    """Whether nothing that must be kept is in the way. Raises ConfigError for a folder that something else made."""
    if not os.path.lexists(folder):
        return True
    if folder.is_dir() and not folder.is_symlink() and (folder / RECORD).is_file():
        return False
    if not replace:
        raise ConfigError(f"{folder} was not made by telephony-tts: give --replace to replace it, or move it away")
    return True


def _is_right(folder: Path, wanted: Record) -> bool:
    """Whether a converted folder is of these sources and has all of its files."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in found["n_bytes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(found == {**asdict(wanted), "n_bytes": sizes} and WEIGHTS in sizes)


@contextmanager
def _only_conversion(directory: Path) -> Iterator[None]:
    """Locks the model directory against a second conversion. Raises ConfigError if another process has it."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process converts {directory}: wait for it") from None
        yield
    finally:
        os.close(opened)


def _write(checkpoint: Checkpoint, folder: Path, record: Record) -> None:
    """Writes the folder beside its place and puts it there. Nothing is left behind if that fails."""
    part, old = (folder.parent / f".{folder.name}.{state}" for state in ("part", "old"))
    for stale in (part, old):  # of a conversion that was killed: this process has the lock
        _remove(stale)
    try:
        part.mkdir()
        _fill(checkpoint, part, record)
        for path in part.iterdir():
            shutil.copymode(checkpoint.directory / LM_FILE, path)
            _sync(path)
        _sync(part)
        if os.path.lexists(folder):
            folder.rename(old)
        try:
            part.rename(folder)
        except OSError:
            if os.path.lexists(old):
                old.rename(folder)
            raise
    finally:
        _remove(part)
    _sync(folder.parent)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------ layouts


def _fill(checkpoint: Checkpoint, folder: Path, record: Record) -> None:
    """Writes the files of the layout into an empty folder, the record last."""
    lm = checkpoint.config.lm
    assert isinstance(lm, LmConfig)
    settings = _qwen_settings(lm, record)
    if record.layout == "vllm":
        tensors = _speech_tensors(checkpoint.lm)
        generation: dict[str, Any] = {}
    else:
        tokenizer = TextTokenizer(checkpoint.tokenizer_dir)
        if tokenizer.n_ids > lm.n_text_rows:
            raise ConfigError(f"{checkpoint.directory} has {lm.n_text_rows} text rows for {tokenizer.n_ids} text ids")
        first = tokenizer.n_ids
        tensors = _joined_tensors(checkpoint.lm, first)
        sampling, stops = checkpoint.config.sampling, [first + EOS + i for i in range(len(STOP_TOKENS))]
        generation = {
            "do_sample": True, "temperature": 1.0, "top_p": sampling.top_p, "top_k": sampling.top_k,
            "eos_token_id": stops,
        }  # fmt: skip
        settings["eos_token_id"] = first + EOS
        _write_tokenizer(tokenizer, folder)
    settings["vocab_size"] = len(tensors["lm_head.bias"])
    stored = {name: tensor.to(getattr(torch, record.dtype)).contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    _write_json(folder / "config.json", settings)
    _write_json(folder / "generation_config.json", generation)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    _write_json(folder / RECORD, {**asdict(record), "n_bytes": sizes})


def _qwen_settings(lm: LmConfig, record: Record) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURES[record.layout]],
        "model_type": "qwen2",
        "torch_dtype": record.dtype,
        "hidden_size": lm.d_model,
        "intermediate_size": lm.d_ff,
        "num_hidden_layers": lm.n_layers,
        "num_attention_heads": lm.n_heads,
        "num_key_value_heads": lm.n_kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": lm.norm_eps,
        "rope_theta": lm.rope_theta,
        "max_position_embeddings": MAX_POSITIONS,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
    }


def _body(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The decoder's layers and its last norm. Their official names have a prefix before those of `transformers`."""
    names = {name: f"model.{name.removeprefix(BODY)}" for name in state if name.startswith(BODY)}
    return {new: state[name] for name, new in names.items() if new != "model.embed_tokens.weight"}


def _speech_tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        **_body(state),
        "model.embed_tokens.weight": state["speech_embedding.weight"],
        "lm_head.weight": state["llm_decoder.weight"],
        "lm_head.bias": state["llm_decoder.bias"],
    }


def _joined_tensors(state: dict[str, Tensor], first: int) -> dict[str, Tensor]:
    """Tensors over one table of ids, with speech from `first` on. Only speech ids can be drawn."""
    text, speech = state[f"{BODY}embed_tokens.weight"], state["speech_embedding.weight"]
    after_speech = first + N_SPEECH_ROWS
    n_rows = -(-(after_speech + N_CONTROL_ROWS) // ROW_STEP) * ROW_STEP
    table, head = torch.zeros(n_rows, text.shape[1]), torch.zeros(n_rows, text.shape[1])
    bias = torch.full((n_rows,), -torch.inf)
    table[:first] = text[:first]
    table[first:after_speech] = speech
    table[after_speech : after_speech + N_CONTROL_ROWS] = state["llm_embedding.weight"]
    head[first:after_speech] = state["llm_decoder.weight"]
    bias[first:after_speech] = state["llm_decoder.bias"]
    return {**_body(state), "model.embed_tokens.weight": table, "lm_head.weight": head, "lm_head.bias": bias}


def _write_tokenizer(tokenizer: TextTokenizer, folder: Path) -> None:
    tokenizer.save(folder / "tokenizer.json", [*SPEECH_TOKENS, *STOP_TOKENS, START_TOKEN, TASK_TOKEN])
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": MAX_POSITIONS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
