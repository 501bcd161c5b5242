import functools
import gzip
import importlib.util
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_sizes import model_config
from parity_front import read_config
from torch import Tensor

from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import SIZES, write_random_checkpoint
from telephony_tts.engines.cosyvoice2.checkpoint.sizes import read_settings
from telephony_tts.engines.cosyvoice2.checkpoint.weights import check_model_directory, load_model_directory
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
from telephony_tts.engines.cosyvoice2.model.flow.flow import Flow
from telephony_tts.engines.cosyvoice2.model.lm.lm import TEXT_HEAD, LanguageModel
from telephony_tts.engines.cosyvoice2.model.vocoder.layers import WEIGHT_G, WEIGHT_V
from telephony_tts.engines.cosyvoice2.model.vocoder.vocoder import Vocoder
from telephony_tts.runtime.errors import EngineUnavailable

torch.set_num_threads(1)
OFFICIAL = Path(__file__).parents[1] / "vectors" / "front" / "official_shapes.json.gz"
TENSORS = ("llm.pt", "flow.pt", "hift.pt")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory that no test changes."""
    path = tmp_path_factory.mktemp("written") / "model"
    write_random_checkpoint(path, "tiny", seed=3)
    return path


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(written, tmp_path / "model"))


@pytest.fixture
def keep_loaded(written: Path, loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call it with the names of files that the test leaves as they are. They are read once for all tests, because
    reading them takes most of the time of a check."""

    def keep(*names: str) -> None:
        load = torch.load

        def kept(path: Path, **options: Any) -> Any:
            return loaded(written / path.name, **options) if path.name in names else load(path, **options)

        monkeypatch.setattr(torch, "load", kept)

    return keep


@pytest.fixture(scope="module")
def loaded() -> Callable[..., Any]:
    return functools.cache(torch.load)


def read(path: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, weights_only=True)
    return state


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def meta_state(config: ModelConfig) -> dict[str, dict[str, Tensor]]:
    """Tensors with shapes and no memory."""
    return {
        file: {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        for file, shapes in checkpoint_shapes(config).items()
    }


# --------------------------------------------------------------------------- the list


def test_the_networks_take_the_official_tensors_by_name_and_shape() -> None:
    official = json.loads(gzip.decompress(OFFICIAL.read_bytes()))
    ours = checkpoint_shapes(ModelConfig())
    for file in TENSORS:
        theirs = {name: tuple(shape) for name, shape in official[file].items() if name != TEXT_HEAD}
        assert ours[file] == theirs
    assert sum(map(len, ours.values())) == 1743, "and the text head"


@pytest.mark.slow
def test_shapes_of_a_network_take_no_memory_and_no_code_of_torch_that_is_loaded_late() -> None:
    """Otherwise each command about models would start seconds later."""
    program = """
import resource, sys, torch
from telephony_tts.engines.cosyvoice2.checkpoint.layout import checkpoint_shapes
from telephony_tts.engines.cosyvoice2.model.config import ModelConfig
before = set(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checkpoint_shapes(ModelConfig())
print(len(set(sys.modules) - before[0]), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before[1]) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    n_modules, megabytes = map(int, done.stdout.split())
    assert n_modules == 0 and megabytes < 30


@pytest.mark.parametrize("rates", [[0, 5, 3], [-8, 5, 3], [8, 10**12, 10**12]])
def test_rates_that_no_network_can_have_are_a_problem_of_the_file(directory: Path, rates: list[int]) -> None:
    path = directory / "cosyvoice2.yaml"
    path.write_text(path.read_text().replace("upsample_rates: [8, 5, 3]", f"upsample_rates: {rates}"))
    problems = check_model_directory(directory)
    assert all(problem.startswith("hift.pt: ") for problem in problems)
    assert problems or rates[0] < 1, "the first rate is in no shape"


@pytest.mark.parametrize("config", SIZES.values(), ids=SIZES)
def test_sizes_are_read_back_from_the_shapes(config: ModelConfig, directory: Path) -> None:
    state = meta_state(config)
    heads = {"num_attention_heads": config.lm.n_heads, "num_key_value_heads": config.lm.n_kv_heads}
    estimator = {"attention_head_dim": config.flow_decoder.d_head}
    settings = {"flow": {"decoder": {"estimator": estimator}}}
    assert model_config(state["llm.pt"], state["flow.pt"], state["hift.pt"], settings, heads) == config


def test_the_settings_of_the_reference_vectors_lead_to_their_sizes(tmp_path: Path) -> None:
    config = SIZES["tiny"]
    said = {
        "llm": {"mix_ratio": [5, 15], "num_attention_heads": 4, "num_key_value_heads": 2},
        "sampling": {"top_p": 0.8, "top_k": 25, "win_size": 10, "tau_r": 0.1},
        "flow": {"encoder": {}, "estimator": {"attention_head_dim": 16}, "cfm": {"inference_cfg_rate": 0.7}},
        "hift": {"istft_hop_len": 4, "upsample_rates": [8, 5, 3], "resblock_dilation_sizes": [[1, 3, 5]] * 3},
    }
    (tmp_path / "tiny_config.json").write_text(json.dumps(said))
    assert read_config(tmp_path, meta_state(config)) == config


# ---------------------------------------------------------------------------- reading


def test_a_model_directory_is_read(directory: Path) -> None:
    checkpoint = load_model_directory(directory)
    assert checkpoint.config == SIZES["tiny"] and checkpoint.is_random
    assert check_model_directory(directory) == []
    assert_same(checkpoint.flow, read(directory / "flow.pt"))
    assert TEXT_HEAD not in checkpoint.lm and TEXT_HEAD in read(directory / "llm.pt")
    assert checkpoint.spk2info is not None and checkpoint.tokenizer_dir.is_dir()
    assert checkpoint.speaker_onnx.is_file() and checkpoint.tokens_onnx.is_file()


def test_the_networks_take_what_was_read(directory: Path) -> None:
    checkpoint = load_model_directory(directory)
    assert LanguageModel.from_state(checkpoint.config.lm, checkpoint.lm).config == checkpoint.config.lm
    assert isinstance(Flow.from_state(checkpoint.config, checkpoint.flow), Flow)
    assert Vocoder.from_state(checkpoint.config.vocoder, checkpoint.hift).config == checkpoint.config.vocoder


def test_entries_of_fine_tuned_files_that_are_not_tensors_are_dropped(directory: Path) -> None:
    before = load_model_directory(directory)
    for name in ("llm.pt", "flow.pt"):
        torch.save({**read(directory / name), "epoch": 3, "step": 1000}, directory / name)
    after = load_model_directory(directory)
    assert_same(after.lm, before.lm)
    assert_same(after.flow, before.flow)


def test_the_text_head_may_be_missing(directory: Path) -> None:
    state = read(directory / "llm.pt")
    del state[TEXT_HEAD]
    torch.save(state, directory / "llm.pt")
    assert check_model_directory(directory) == []


def test_a_vocoder_with_old_names_a_prefix_and_a_discriminator(directory: Path) -> None:
    before = load_model_directory(directory)
    old = {
        "generator." + name.replace(WEIGHT_G, ".weight_g").replace(WEIGHT_V, ".weight_v"): value
        for name, value in before.hift.items()
    }
    torch.save({**old, "discriminator.mpd.0.weight": torch.zeros(3), "epoch": 1}, directory / "hift.pt")
    assert_same(load_model_directory(directory).hift, before.hift)


@pytest.mark.slow
def test_a_vocoder_with_folded_weights(directory: Path) -> None:
    before = load_model_directory(directory)
    folded = {}
    for name, value in before.hift.items():
        if name.endswith(WEIGHT_V):
            length = before.hift[name.replace(WEIGHT_V, WEIGHT_G)]
            norm = value.flatten(1).norm(dim=1)[:, None, None]
            folded[name.replace(WEIGHT_V, ".weight")] = value * length / norm
        elif not name.endswith(WEIGHT_G):
            folded[name] = value
    folded["ups.0.weight"][3] = 0.0
    torch.save(folded, directory / "hift.pt")
    after = load_model_directory(directory)
    for name, value in folded.items():
        if name.endswith(".weight") and name.removesuffix(".weight") + WEIGHT_V in after.hift:
            v = after.hift[name.removesuffix(".weight") + WEIGHT_V]
            g = after.hift[name.removesuffix(".weight") + WEIGHT_G]
            torch.testing.assert_close(v * g / v.flatten(1).norm(dim=1)[:, None, None], value)


def test_the_first_name_of_the_settings_is_still_known(directory: Path) -> None:
    (directory / "cosyvoice2.yaml").rename(directory / "cosyvoice.yaml")
    assert check_model_directory(directory) == []


def test_values_come_from_the_settings(directory: Path) -> None:
    path = directory / "cosyvoice2.yaml"
    text = path.read_text().replace("inference_cfg_rate: 0.7", "inference_cfg_rate: 5e-1")
    path.write_text(text.replace("win_size: 10", "win_size: 12").replace("nsf_sigma: 0.003", "nsf_sigma: 0.01"))
    config = load_model_directory(directory).config
    assert config.flow_decoder.guidance == 0.5 and config.sampling.window == 12 and config.vocoder.noise_std == 0.01


# --------------------------------------------------------------------------- settings


def test_tags_of_the_settings_are_data_and_build_nothing(tmp_path: Path) -> None:
    path, touched = tmp_path / "cosyvoice2.yaml", tmp_path / "touched"
    path.write_text(
        f"""
seed: !apply:os.system ["touch {touched}"]
width: 512
rate: 2
flow: !new:os.system
    command: !name:pathlib.Path.touch "{touched}"
    size: !ref <width>
    product: !ref <width> * <rate>
    unknown: !ref <nothing>
    sum: !ref <width> + <rate>
    rows: [!ref <rate>, 3]
"""
    )
    settings = read_settings(path)
    assert settings["flow"] == {
        "command": str(touched),
        "size": 512,
        "product": 1024,
        "unknown": "<nothing>",
        "sum": "<width> + <rate>",
        "rows": [2, 3],
    }
    assert not touched.exists()


@pytest.mark.parametrize(
    "text",
    ["", "- 1", "a: [", "x: !!python/object/apply:os.system ['touch /nowhere']", "a: &a [*a", "\x00"],
)
def test_settings_that_cannot_be_read_say_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "cosyvoice2.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"cannot be read|does not hold settings"):
        read_settings(tmp_path / "cosyvoice2.yaml")


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("sample_rate: 24000", "sample_rate: 22050", "sample_rate is 22050"),
        ("upsample_rates: [8, 5, 3]", "upsample_rates: [8, 5]", "upsample_rates"),
        ("attention_head_dim: 16", "attention_head_dim: 7", "attention_head_dim 7"),
        ("attention_heads: 4", "attention_heads: 8", "attention_heads is 8"),
        ("top_k: 25", "top_k: many", "top_k is 'many'"),
        ("[[1, 3, 5], [1, 3, 5], [1, 3, 5]]", "[[1, 3, 5], [1, 3], [1, 3, 5]]", "differs from block to block"),
    ],
)
def test_settings_that_contradict_the_tensors_are_named(directory: Path, old: str, new: str, found: str) -> None:
    path = directory / "cosyvoice2.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    (problem,) = check_model_directory(directory)
    assert found in problem


def test_head_counts_that_do_not_fit_are_named(directory: Path) -> None:
    path = directory / "CosyVoice-BlankEN" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_attention_heads": 5}))
    (problem,) = check_model_directory(directory)
    assert "5 heads" in problem


# ----------------------------------------------------------------------------- errors


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code of the file was run')",))


def test_one_error_names_every_problem_and_what_to_do(directory: Path) -> None:
    (directory / "random.json").unlink()
    (directory / "campplus.onnx").unlink()
    (directory / "speech_tokenizer_v2.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:d43342")
    (directory / "CosyVoice-BlankEN" / "merges.txt").write_text("")
    flow = read(directory / "flow.pt")
    flow["text_encoder.embed.weight"] = torch.zeros(1)
    del flow["encoder.after_norm.bias"]
    flow["encoder_proj.bias"] = torch.zeros(81)
    flow["encoder_proj.weight"] = flow["encoder_proj.weight"].int()
    torch.save(flow, directory / "flow.pt")
    (directory / "hift.pt").write_bytes((directory / "hift.pt").read_bytes()[:5000])
    torch.save({"llm_embedding.weight": Malicious()}, directory / "llm.pt")
    with pytest.raises(EngineUnavailable) as caught:
        load_model_directory(directory)
    message = caught.value.message
    for part in (
        "campplus.onnx is missing",
        "speech_tokenizer_v2.onnx is a Git LFS pointer",
        "merges.txt is empty",
        "1 tensors are not of CosyVoice2: text_encoder.embed.weight",
        "1 tensors are missing: encoder.after_norm.bias",
        "encoder_proj.bias is [81] and should be [80]",
        "1 tensors are not of floating point: encoder_proj.weight",
        "hift.pt cannot be read: it is cut off or damaged\n",
        "llm.pt is not a plain file of tensors",
        f"telephony-tts models pull {directory}",
        f"telephony-tts models check {directory}",
    ):
        assert part in message
    assert check_model_directory(directory) == [line[4:] for line in message.splitlines() if line.startswith("  - ")]


def test_no_directory_and_an_empty_one(tmp_path: Path) -> None:
    assert check_model_directory(tmp_path / "nowhere") == ["there is no such directory"]
    (tmp_path / "file").touch()
    assert check_model_directory(tmp_path / "file") == ["it is a file, not a directory"]
    (tmp_path / "file").unlink()
    problems = check_model_directory(tmp_path)
    assert len(problems) == 9 and all("missing" in problem for problem in problems)
    with pytest.raises(EngineUnavailable, match=r"cosyvoice2\.yaml is missing"):
        load_model_directory(tmp_path)


def test_models_of_other_generations_are_recognised(directory: Path) -> None:
    (directory / "cosyvoice3.yaml").touch()
    assert check_model_directory(directory) == ["cosyvoice3.yaml belongs to CosyVoice3"]
    (directory / "flow.pt").rename(directory / "flow.cache.pt")
    assert any("flow.cache.pt cannot replace flow.pt" in problem for problem in check_model_directory(directory))


def cut(path: Path, share: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("campplus.onnx", "is not a usable ONNX file, it is cut off or damaged"),
        ("speech_tokenizer_v2.onnx", "is not a usable ONNX file, it is cut off or damaged"),
        ("spk2info.pt", "cannot be read: it is cut off or damaged"),
        ("CosyVoice-BlankEN/vocab.json", "is cut off or damaged"),
        ("CosyVoice-BlankEN/merges.txt", "is cut off"),
        ("CosyVoice-BlankEN/config.json", "cannot be read, it is cut off or damaged"),
        ("CosyVoice-BlankEN/tokenizer_config.json", "is cut off or damaged"),
        ("cosyvoice2.yaml", "cut off"),
        ("llm.pt", "cannot be read: it is cut off or damaged"),
        ("flow.pt", "cannot be read: it is cut off or damaged"),
        ("hift.pt", "cannot be read: it is cut off or damaged"),
    ],
)
def test_a_file_that_was_cut_off_is_the_one_that_is_named(directory: Path, name: str, words: str) -> None:
    cut(directory / name)
    (problem,) = check_model_directory(directory)
    assert problem.startswith(f"{name} ") or problem.startswith(f"{name}: ")
    assert words in problem and "miniz" not in problem and "\n" not in problem and len(problem) < 250


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.7, 0.8])
def test_merges_cut_between_two_lines_are_seen(directory: Path, share: float) -> None:
    path = directory / "CosyVoice-BlankEN" / "merges.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[: int(len(lines) * share)]) + "\n")
    (problem,) = check_model_directory(directory)
    assert problem.startswith("CosyVoice-BlankEN/merges.txt is cut off or of another model")


@pytest.mark.slow
def test_settings_that_were_cut_anywhere_are_named_or_complete(
    directory: Path, keep_loaded: Callable[..., None]
) -> None:
    keep_loaded(*TENSORS, "spk2info.pt")
    path = directory / "cosyvoice2.yaml"
    whole = path.read_text()
    for end in range(0, len(whole), 21):
        path.write_text(whole[:end])
        problems = check_model_directory(directory)
        assert all(problem.startswith("cosyvoice2.yaml") for problem in problems), end
        assert len(problems) == 1 or "f0_predictor:" in whole[:end], end


def test_swapped_graphs_are_named(directory: Path) -> None:
    speaker, tokens = directory / "campplus.onnx", directory / "speech_tokenizer_v2.onnx"
    first, second = speaker.read_bytes(), tokens.read_bytes()
    speaker.write_bytes(second)
    tokens.write_bytes(first)
    problems = check_model_directory(directory)
    assert [problem.split(":")[0] for problem in problems] == [
        "campplus.onnx is another network",
        "speech_tokenizer_v2.onnx is another network",
    ]
    assert "feats, feats_length" in problems[0]


def test_without_onnxruntime_the_graphs_are_not_opened(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(directory / "campplus.onnx")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    assert check_model_directory(directory) == []


def test_loading_opens_neither_graphs_nor_speakers(directory: Path) -> None:
    for name in ("campplus.onnx", "speech_tokenizer_v2.onnx", "spk2info.pt"):
        cut(directory / name)
    assert load_model_directory(directory).config == SIZES["tiny"]
    assert len(check_model_directory(directory)) == 3


@pytest.mark.parametrize("name", ["CosyVoice-BlankEN/config.json", "cosyvoice2.yaml"])
def test_only_the_missing_file_is_reported(directory: Path, name: str) -> None:
    (directory / name).unlink()
    assert check_model_directory(directory) == [f"{name} is missing"]
    with pytest.raises(EngineUnavailable, match=f"{name} is missing"):
        load_model_directory(directory)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_are_problems_and_raise_nothing(
    directory: Path, seed: int, keep_loaded: Callable[..., None]
) -> None:
    keep_loaded("llm.pt", "flow.pt", "spk2info.pt")
    chance = random.Random(seed)
    data = bytearray((directory / "hift.pt").read_bytes())
    directory_of_zip = data.rfind(b"PK\x05\x06")
    for _ in range(5):
        place = chance.choice((chance.randrange(3000), chance.randrange(directory_of_zip, len(data))))
        data[place] = chance.randrange(256)
    (directory / "hift.pt").write_bytes(data)
    assert all(problem.startswith("hift.pt") for problem in check_model_directory(directory))


@pytest.mark.parametrize("data", [[1, 2], {"model": {"a": torch.zeros(1)}}, {}, torch.zeros(3), {1: torch.zeros(1)}])
def test_a_file_that_holds_something_else(directory: Path, data: object) -> None:
    torch.save(data, directory / "flow.pt")
    assert check_model_directory(directory) == ["flow.pt does not hold tensors by name"]
