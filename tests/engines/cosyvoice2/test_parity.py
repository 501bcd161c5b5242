"""The parity check itself, on directories of other sizes than the reference's: right ones pass, each stage can miss.

The directories are made by `make_golden.py` from formulas that share no code with the engine.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import parity
import parity_flow
import parity_lm
import parity_rows
import parity_vocoder
import pytest
import torch
from make_golden import Maker, Recipe
from parity_rows import Row, Skipped, Stage

from telephony_tts.engines.cosyvoice2.model.config import (
    FlowDecoderConfig,
    FlowEncoderConfig,
    LmConfig,
    ModelConfig,
    SamplingConfig,
    VocoderConfig,
)
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder
from telephony_tts.engines.cosyvoice2.text import text_rules

pytestmark = pytest.mark.slow

RECIPES = {
    "shared prompt": Recipe(
        ModelConfig(
            lm=LmConfig(n_text_rows=300, d_model=32, n_layers=2, n_heads=4, n_kv_heads=1, d_ff=48),
            sampling=SamplingConfig(top_p=0.6, top_k=10, window=5, max_repeat=0.2),
            flow_encoder=FlowEncoderConfig(d_model=24, n_heads=3, d_ff=40, n_layers=1, n_up_layers=1, d_speaker=32),
            flow_decoder=FlowDecoderConfig(n_channels=24, n_heads=2, d_head=12, n_blocks=1, n_mid_stages=1),
            # The fewest layers: the first is compared again for every fault, the others once.
            vocoder=VocoderConfig(d_base=16, d_f0=8, res_kernels=(3, 7), res_dilations=(1,)),
        ),
        seed=11, lm_prompt_text=4, lm_text=5, lm_prompt_speech=9, n_prompt=28, n_tokens=90, chunk_ends=(47, 72),
        n_e2e_prompt=28, n_stream=90, factor=1, max_hop=25,
    ),
    "no prompt, a chunk within a block": Recipe(
        ModelConfig(
            lm=LmConfig(n_text_rows=97, d_model=48, n_layers=1, n_heads=3, n_kv_heads=3, d_ff=80, rope_theta=1e4,
                        norm_eps=1e-5, n_mix_text=4, n_mix_speech=9),
            sampling=SamplingConfig(top_p=0.95, top_k=40, window=20, max_repeat=0.1),
            flow_encoder=FlowEncoderConfig(d_model=32, n_heads=2, d_ff=24, n_layers=2, n_up_layers=2, d_speaker=192),
            flow_decoder=FlowDecoderConfig(n_channels=16, n_heads=4, d_head=8, n_blocks=2, n_mid_stages=2,
                                           guidance=0.5),
            vocoder=VocoderConfig(d_base=24, d_f0=12, n_harmonics=5, up_rates=(5, 4, 6), up_kernels=(11, 8, 12),
                                  res_kernels=(3, 5), res_dilations=(1, 2), source_res_kernels=(5, 7, 3)),
        ),
        seed=2, lm_prompt_text=0, lm_text=3, lm_prompt_speech=0, n_prompt=0, n_tokens=70, chunk_ends=(25, 40, 50),
        n_e2e_prompt=1, n_stream=110, max_hop=50, n_mel=70, stride=7,
    ),
    "long prompt": Recipe(
        ModelConfig(
            lm=LmConfig(n_text_rows=520, d_model=16, n_layers=3, n_heads=2, n_kv_heads=2, d_ff=16),
            flow_encoder=FlowEncoderConfig(d_model=16, n_heads=1, d_ff=16, n_layers=1, n_up_layers=3, d_speaker=8),
            flow_decoder=FlowDecoderConfig(n_channels=8, n_heads=1, d_head=20, n_blocks=1, n_mid_stages=3),
            vocoder=VocoderConfig(d_base=8, d_f0=4, n_harmonics=2),
        ),
        seed=77, lm_prompt_text=9, lm_text=4, lm_prompt_speech=31, n_prompt=87, n_tokens=45, chunk_ends=(13, 38),
        n_e2e_prompt=100, n_stream=85,
    ),
}  # fmt: skip
FIRST = "shared prompt"

STAGES = (
    "constants", "sizes of", "resample", "mel", "Whisper mel", "Kaldi fbank", "special tokens", "token ids",
    "paragraphs", "text rule", "normalized texts", "lm logits", "lm greedy", "lm stop", "lm bistream", "sampling",
    "flow noise", "flow encoder", "flow estimator", "flow x before step 9", "flow chunk 1 recomputed",
    "flow finish, all visible", "flow finish, block-causal, cached", "flow without prompt",
    "vocoder audio, given source", "vocoder cross-fade", "vocoder samples per chunk", "hop schedule",
    "end to end, stream_first_request, chunk 1", "end to end, nonstream", "end to end, stream_short",
)  # fmt: skip


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, recipe in RECIPES.items():
        made[name] = tmp_path_factory.mktemp("golden")
        with torch.inference_mode():
            Maker(recipe, made[name]).write()
    return made


class Kept:
    """Results of the check's parts, kept by the contents of the files that each part read.

    A damaged directory differs from the right one in a few files, and only the parts that read those are computed
    again. Mels that the flow recomputes are kept by the tensors that they are made of.
    """

    PARTS = (
        *((parity_lm, name) for name in ("check_forward", "check_greedy", "check_stop", "check_bistream")),
        *((parity_vocoder, name) for name in ("check_offline_file", "check_schedule_file", "check_joint")),
        (parity_vocoder, "check_end_to_end"),
        (parity_flow, "of_file"),
    )

    def __init__(self) -> None:
        self._made: dict[str, list[tuple[dict[str, str], list[Row]]]] = {}
        self._mels: dict[str, torch.Tensor] = {}
        self._networks: dict[str, str] = {}
        self._read: set[str] = set()

    def check(self, directory: Path) -> list[Row]:
        """The rows of `parity.check_golden`."""
        with pytest.MonkeyPatch.context() as patch:
            self.install(patch, directory)
            return list(parity.check_golden(directory))

    def install(self, patch: pytest.MonkeyPatch, directory: Path) -> None:
        """Let `parity` use what is kept, for this directory."""
        self._networks = contents(directory, {path.name for path in directory.glob("tiny_*")})
        present = parity_rows.present

        def noted(path: Path) -> None:
            self._read.add(path.name)
            present(path)

        patch.setattr(parity_rows, "present", noted)
        for module, name in self.PARTS:
            part = functools.partial(self._rows, directory, getattr(module, name))
            patch.setattr(module, name, part)
        for module in (parity, parity_flow):
            patch.setattr(module, "recomputed", functools.partial(self._mel, module.recomputed))

    def _rows(self, directory: Path, part: Callable[..., Iterator[Row]], *given: Any) -> Iterator[Row]:
        paths = [item.name for item in given if isinstance(item, Path) and item != directory]
        made = self._made.setdefault(" ".join([part.__name__, *paths]), [])
        for files, rows in made:
            if self._networks.items() <= files.items() and contents(directory, files.keys()) == files:
                yield from rows
                return
        self._read, rows = set(self._networks), []
        for row in part(*given):
            rows.append(row)
            yield row
        made.append((contents(directory, self._read), rows))

    def _mel(self, compute: Callable[..., torch.Tensor], flow: Any, *given: torch.Tensor, **how: bool) -> torch.Tensor:
        parts = [(tuple(item.shape), str(item.dtype), item.numpy().tobytes()) for item in given]
        key = hashlib.sha256(repr((self._networks, parts, how)).encode()).hexdigest()
        if key not in self._mels:
            self._mels[key] = compute(flow, *given, **how)
        return self._mels[key].clone()


def contents(directory: Path, names: Collection[str]) -> dict[str, str]:
    """A digest of each file, or a word for one that is missing."""
    paths = {name: directory / name for name in names}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"
        for name, path in paths.items()
    }


KEPT = Kept()


@pytest.fixture(scope="module")
def right(directories: dict[str, Path]) -> dict[str, list[Row]]:
    """What comparing each directory gives as long as nothing is wrong."""
    return {name: rows_of(directory) for name, directory in directories.items()}


@pytest.fixture
def golden(directories: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the first directory, to be damaged."""
    return Path(shutil.copytree(directories[FIRST], tmp_path / "golden"))


@torch.inference_mode()
def rows_of(directory: Path) -> list[Row]:
    return KEPT.check(directory)


def missed(rows: list[Row]) -> list[str]:
    return [row.name for row in rows if isinstance(row, Stage) and not row.error <= row.tolerance]


def skipped(rows: list[Row]) -> dict[str, str]:
    return {row.name: row.reason for row in rows if isinstance(row, Skipped)}


# ------------------------------------------------------------------------ what is right


@pytest.mark.parametrize("name", RECIPES)
def test_every_stage_of_any_directory_is_compared_and_passes(right: dict[str, list[Row]], name: str) -> None:
    rows = right[name]
    assert missed(rows) == []
    compared = [row.name for row in rows if isinstance(row, Stage)]
    assert [stage for stage in STAGES if not any(one.startswith(stage) for one in compared)] == []


def test_a_chunk_that_ends_within_a_block_is_recomputed_and_refused_by_the_cached_stream(
    right: dict[str, list[Row]],
) -> None:
    rows = right["no prompt, a chunk within a block"]
    chunk = [row.name for row in rows if row.name.startswith("flow chunk 1")]
    assert chunk == ["flow chunk 1 recomputed", "flow chunk 1 refused by the cached stream", "flow chunk 1 cached"]
    assert "within a block" in skipped(rows)["flow chunk 1 cached"]
    assert "flow chunk 2 cached" in [row.name for row in rows if isinstance(row, Stage)]


def test_past_the_reference_s_failure_this_engine_goes_on(
    directories: dict[str, Path], right: dict[str, list[Row]]
) -> None:
    for name, directory in directories.items():
        with np.load(directory / "llm_bistream.npz") as file:
            assert str(file["fails__error"]) == "ValueError", name
        compared = [row.name for row in right[name] if "past it" in row.name and isinstance(row, Stage)]
        assert compared == ["lm bistream fails, up to where the reference fails, and past it"]


def test_a_choice_that_rounding_decides_is_left_to_the_reference(golden: Path) -> None:
    """Its second best id in a step whose margin is below the tolerance of logits; the steps after it must follow."""
    with np.load(golden / "llm_greedy.npz") as file:
        arrays = dict(file)
    second = int(arrays["zero_shot_logp_first7"][6].argsort()[-2])
    arrays["zero_shot_tokens"] = np.append(arrays["zero_shot_tokens"][:6], second)
    arrays["zero_shot_margin"] = arrays["zero_shot_margin"][:7].copy()
    np.savez(golden / "llm_greedy.npz", **arrays)
    assert missed(rows_of(golden)) == ["lm greedy zero_shot"]
    arrays["zero_shot_margin"][6] = 1e-5
    np.savez(golden / "llm_greedy.npz", **arrays)
    (name,) = [name for name in missed(rows_of(golden)) if "zero_shot" in name]
    assert name == "lm greedy zero_shot, 1 ties left to the reference"


# ------------------------------------------------------------------------ what is wrong

CORRUPTIONS: dict[tuple[str, str], set[str]] = {
    ("llm_forward", "lm_input"): {"lm input"},
    ("llm_forward", "last_hidden"): {"lm hidden"},
    ("llm_forward", "logits"): {"lm logits"},
    ("llm_greedy", "zero_shot_tokens"): {"lm greedy zero_shot"},
    ("llm_greedy", "zero_shot_logp_first7"): {"lm log-probabilities zero_shot"},
    ("llm_greedy", "cross_lingual_tokens"): {"lm greedy cross_lingual"},
    ("llm_greedy", "instruct2_tokens"): {"lm greedy instruct2"},
    ("llm_stop", "min_len"): {"lm stop min_len"},
    ("llm_stop", "max_len"): {"lm stop max_len"},
    ("llm_stop", "eos_biased"): {"lm stop eos_biased"},
    ("llm_stop", "never_stops"): {"lm stop never_stops"},
    ("llm_bistream", "no_prompt__yielded"): {"lm bistream no_prompt ids"},
    ("llm_bistream", "with_prompt__forward_lengths"): {"lm bistream with_prompt forward lengths"},
    ("llm_bistream", "model_fill__text_consumed_vs_yielded"): {"lm bistream model_fill text pulled"},
    ("ras_sampling", "nuc_n"): {"sampling nucleus size"},
    ("ras_sampling", "pick1"): {"sampling pick"},
    ("ras_sampling", "branch2"): {"sampling repetition"},
    ("ras_sampling", "final"): {"sampling id"},
    ("ras_sampling", "nuc_probs"): {"sampling nucleus probabilities"},
    ("flow_noise", "first_60_frames"): {"flow noise first_60_frames"},
    ("flow_noise", "last_10"): {"flow noise last_10"},
    ("flow_noise", "shape"): {"flow noise shape"},
    ("flow_encoder", "rel_pos_emb_n4"): {"flow encoder rel_pos_emb_n4"},
    ("flow_encoder", "spk"): {"flow encoder spk"},
    ("flow_encoder", "token_emb_first5"): {"flow encoder token_emb_first5"},
    ("flow_encoder", "after_embed_first5"): {"flow encoder after_embed_first5"},
    ("flow_encoder", "after_lookahead"): {"flow encoder after_lookahead"},
    ("flow_encoder", "enc_streaming_ctx"): {"flow encoder enc_streaming_ctx"},
    ("flow_encoder", "mu_streaming_ctx"): {"flow encoder mu_streaming_ctx"},
    ("flow_encoder", "enc_full_noctx"): {"flow encoder enc_full_noctx"},
    ("flow_encoder", "enc_streaming_noctx"): {"flow encoder enc_streaming_noctx"},
    ("flow_estimator", "time_sinusoid"): {"flow estimator time_sinusoid"},
    ("flow_estimator", "time_emb"): {"flow estimator time_emb"},
    ("flow_streaming", "t_per_step"): {"flow t_per_step"},
    ("flow_streaming", "x_per_step_chunk0"): {"flow x before step 9"},
    ("flow_streaming", "chunk1_full_from_prompt_end"): {"flow chunk 1 recomputed"},
    ("flow_streaming", "final_all_frames_nonstreaming"): {"flow whole, all visible"},
    ("flow_streaming", "final_upstream_nonstreaming_masks"): {"flow finish, all visible"},
    ("flow_streaming", "final_streaming_masks_variant"): {
        "flow finish, block-causal, recomputed", "flow finish, block-causal, cached", "flow finish, own prompt"
    },
    ("flow_noprompt", "mel"): {"flow without prompt"},
    ("hift_offline", "f0"): {"vocoder f0 (Hz)", "vocoder audio, given pitch"},
    ("hift_offline", "uv_frames"): {"vocoder voiced frames"},
    ("hift_offline", "sine_mix_9"): {"vocoder sines and noise"},
    ("hift_offline", "stft_imag"): {"vocoder stft"},
    ("hift_offline", "conv_pre"): {"vocoder conv_pre"},
    ("hift_offline", "ups0"): {"vocoder ups0"},
    ("hift_offline", "mag"): {"vocoder magnitude (relative)"},
    ("hift_offline", "phase"): {"vocoder phase"},
    ("hift_offline", "audio"): {
        "vocoder audio, given source", "vocoder audio, given pitch", "vocoder audio, own source"
    },
    ("crossfade", "window"): {"vocoder cross-fade window"},
    ("crossfade", "out"): {"vocoder cross-fade"},
    ("e2e_streaming", "nonstream_chunk0"): {"end to end, nonstream, chunk 0"},
    ("e2e_streaming", "stream_short_chunk0"): {"end to end, stream_short, chunk 0"},
    ("e2e_streaming", "stream_first_request_chunk0"): {
        "end to end, stream_first_request, chunk 0", "vocoder streaming chunk 0"
    },
    ("features", "wav48_from24_first2000"): {"resample 24 to 48 kHz"},
    ("features", "wav441_to24_out"): {"resample 44.1 to 24 kHz"},
    ("features", "mel24"): {"mel, 24 kHz"},
    ("features", "whisper_logmel128"): {"Whisper mel"},
    ("features", "kaldi_fbank80"): {"Kaldi fbank"},
    ("features", "kaldi_fbank80_meansub"): {"Kaldi fbank, centred"},
}  # fmt: skip


def rounds() -> list[dict[tuple[str, str], set[str]]]:
    """At most one array of each file at a time, so that each file's misses are that array's alone."""
    made: list[dict[tuple[str, str], set[str]]] = []
    for place, stages in CORRUPTIONS.items():
        n_before = [file for file, _ in CORRUPTIONS].index(place[0])
        nth = list(CORRUPTIONS).index(place) - n_before
        while len(made) <= nth:
            made.append({})
        made[nth][place] = stages
    return made


def corrupt(path: Path, name: str) -> None:
    """Changes the last number of one array; of the nuclei, which are padded, the first."""
    with np.load(path) as file:
        arrays = dict(file)
    array = arrays[name].copy()
    last = array.reshape(-1)[:1] if name == "nuc_probs" else array.reshape(-1)[-1:]
    last[:] = ~last if array.dtype.kind == "b" else last + 1
    arrays[name] = array
    np.savez(path, **arrays)


@pytest.mark.parametrize("corrupted", rounds(), ids=lambda one: f"{len(one)} files")
def test_exactly_the_stages_of_a_corrupted_array_miss(golden: Path, corrupted: dict[tuple[str, str], set[str]]) -> None:
    for file, name in corrupted:
        corrupt(golden / f"{file}.npz", name)
    assert set(missed(rows_of(golden))) == set().union(*corrupted.values())


@pytest.mark.parametrize("name", ["out_streaming", "out_full"])
def test_a_corrupted_velocity_misses(golden: Path, name: str) -> None:
    """In a row that is not padded: what lies behind the mask belongs to no stream."""
    with np.load(golden / "flow_estimator.npz") as file:
        arrays = dict(file)
    arrays[name][0, -1, -1] += 1e-3
    arrays[name][1, -1, -1] += 1
    np.savez(golden / "flow_estimator.npz", **arrays)
    assert missed(rows_of(golden)) == [f"flow estimator {name}"]


def test_corrupted_texts_ids_schedules_and_settings_miss(golden: Path) -> None:
    def change(file: str, edit: Any) -> None:
        data = json.loads((golden / file).read_text(encoding="utf-8"))
        edit(data)
        (golden / file).write_text(json.dumps(data), encoding="utf-8")

    change("text_frontend.json", lambda d: d["split_paragraph"][0]["out"].append("more"))
    change("text_frontend.json", lambda d: d["utils"]["remove_bracket"][0].__setitem__(1, "other"))
    change("text_frontend.json", lambda d: d["text_normalize_without_wetext"][3].__setitem__("out", "other"))
    change("tokenizer_ids.json", lambda d: d["special"].__setitem__("[mn]", 151_700))
    change("driver_schedule.json", lambda d: d["nonstream"]["calls"][0].__setitem__("samples", 28_801))
    change("driver_schedule.json", lambda d: d["stream_first_request"].__setitem__("prompt_tokens", 40))
    change("tiny_config.json", lambda d: d["flow"]["encoder"].__setitem__("static_chunk_size", 50))
    assert {name.split(",")[0] for name in missed(rows_of(golden))} == {
        "paragraphs", "text rule remove_bracket", "normalized texts", "special tokens", "constants",
        "vocoder samples per chunk", "hop schedule",
    }  # fmt: skip


def test_a_wrong_weight_is_seen(golden: Path) -> None:
    state = torch.load(golden / "tiny_llm.pt", weights_only=True)
    state["llm.model.model.norm.weight"][3] += 0.1
    torch.save(state, golden / "tiny_llm.pt")
    assert {"lm hidden", "lm logits"} <= set(missed(rows_of(golden)))


# ------------------------------------------------------------- what is missing or broken


def test_what_is_missing_is_skipped_and_the_rest_compared(
    golden: Path, directories: dict[str, Path], right: dict[str, list[Row]]
) -> None:
    every = sorted(path.name for path in golden.iterdir())
    vectors, weights = ([name for name in every if name.endswith(".pt") == of] for of in (False, True))
    vectors.remove("tiny_config.json")
    whole = {row.name for row in right[FIRST] if isinstance(row, Stage)}
    for removed in (vectors[::2], vectors[1::2], weights, ["tiny_config.json"]):
        shutil.rmtree(golden)
        shutil.copytree(directories[FIRST], golden)
        for name in removed:
            (golden / name).unlink()
        rows = rows_of(golden)
        assert missed(rows) == []
        assert {row.name for row in rows if isinstance(row, Stage)} < whole
        reasons = " ".join(skipped(rows).values())
        assert [name for name in removed if f"no {name}" not in reasons] == []


def test_an_array_that_is_missing_is_skipped(golden: Path) -> None:
    with np.load(golden / "flow_encoder.npz") as file:
        arrays = dict(file)
    del arrays["after_lookahead"]
    np.savez(golden / "flow_encoder.npz", **arrays)
    rows = rows_of(golden)
    assert missed(rows) == []
    assert skipped(rows)["flow encoder after_lookahead"] == "flow_encoder.npz has no after_lookahead"


def test_files_that_cannot_be_read_miss_and_name_themselves(golden: Path) -> None:
    damaged = [path for path in golden.iterdir() if path.suffix in (".npz", ".pt") or path.name.startswith("te")]
    for path in damaged:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    rows = rows_of(golden)
    told = " ".join(missed(rows))
    # The weights stop what is behind them.
    behind = ("llm_", "flow_", "hift_", "e2e_")
    assert [p.name for p in damaged if p.name not in told and not p.name.startswith(behind)] == []
    assert all(np.isinf(row.error) for row in rows if isinstance(row, Stage) and row.name in missed(rows))


def test_an_exception_is_a_miss_of_its_stage_alone(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(text_rules, "drop_brackets", broken)
    monkeypatch.setattr(Vocoder, "mix", broken)
    with torch.inference_mode():
        rows = list(parity.check_golden(golden))
    names = {name.partition(" (RuntimeError")[0].split(",")[0] for name in missed(rows)}
    assert {"text rule remove_bracket", "vocoder source", "end to end"} <= names
    compared = {row.name for row in rows if isinstance(row, Stage)} - set(missed(rows))
    assert {"flow without prompt", "lm logits", "vocoder f0 (Hz)", "vocoder audio, given source"} <= compared


# ------------------------------------------------------------------------- the command


def test_status_0_and_a_line_for_each_stage(
    golden: Path, right: dict[str, list[Row]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity.main([str(golden)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(right[FIRST]) + 1
    assert {line.split()[0] for line in lines[:-1]} == {"ok", "skip"}
    n = sum(line.startswith("ok") for line in lines)
    assert lines[-1] == f"{n} of {n} stages within tolerance, {len(lines) - 1 - n} skipped"


def test_status_1_where_one_stage_misses(
    golden: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corrupt(golden / "flow_noprompt.npz", "mel")
    KEPT.install(monkeypatch, golden)
    assert parity.main([str(golden)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("MISS")]
    assert "flow without prompt" in line


def test_status_2_where_nothing_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("nothing here")
    assert parity.main([str(tmp_path)]) == 2
    assert "nothing was compared" in capsys.readouterr().err
    assert parity.main([str(tmp_path / "README.md")]) == 2
    assert "not a directory" in capsys.readouterr().err
    assert parity.main([]) == 2
    assert "usage:" in capsys.readouterr().err
