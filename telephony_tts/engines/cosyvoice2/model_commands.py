"""The command `models`: fetch, check, make or convert a model directory of CosyVoice2."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from telephony_tts.engines.plugin import CommandLine, adder
from telephony_tts.runtime.errors import ConfigError, how_to_get, shell_command

MODELS_EXAMPLES = """examples:
  telephony-tts models pull /data/CosyVoice2-0.5B           fetch the official model (3.1 GB); repeat to continue
  telephony-tts models check /data/CosyVoice2-0.5B          is it complete, and what to do if not
  telephony-tts models random /data/tiny --size tiny        random weights in the official layout, for tests
  telephony-tts models pull /data/300M-SFT --family 300m    the first generation, CosyVoice-300M-SFT (1.7 GB)
  telephony-tts models convert --to hf /data/CosyVoice2-0.5B    its language model, for TensorRT-LLM
  telephony-tts say "Hello." out.wav --engine cosyvoice2 --model /data/tiny
"""
_PULL_EXAMPLES = """examples:
  telephony-tts models pull /data/CosyVoice2-0.5B
  telephony-tts models pull /data/CosyVoice2-0.5B --source modelscope
  HF_ENDPOINT=https://hub.example telephony-tts models pull /data/CosyVoice2-0.5B   a mirror
  telephony-tts models pull /data/ours --repo our-team/CosyVoice2-ours              a fine-tuned one
  telephony-tts models pull /data/300M-SFT --family 300m                            CosyVoice-300M-SFT

An interrupted pull continues when it is repeated. Every file is compared with the hub's own SHA-256. A file that is
right is not fetched again, and a file that differs is replaced. Files that this engine does not use are not fetched.
CosyVoice-300M also needs Whisper's vocabulary, which no hub has beside it: pip install --no-deps openai-whisper.
"""
_CHECK_EXAMPLES = """examples:
  telephony-tts models check /data/CosyVoice2-0.5B

Opens every file and checks the name and shape of every tensor. Nothing is executed. The exit status is 0 if there is no
problem, else 1 with one line for each problem and one that says what to do.
"""
_RANDOM_EXAMPLES = """examples:
  telephony-tts models random /data/tiny                    6 MB, at once
  telephony-tts models random /data/random --size full      2.6 GB: as large and as slow as the official model
  telephony-tts models random /data/tiny300 --family 300m   the first generation; 1.7 GB in full size
  telephony-tts say "Hello." out.wav --engine cosyvoice2 --model /data/tiny
"""
_CONVERT_EXAMPLES = """examples:
  telephony-tts models convert --to vllm /data/CosyVoice2-0.5B      writes /data/CosyVoice2-0.5B/vllm (0.7 GB)
  telephony-tts models convert --to hf /data/CosyVoice2-0.5B        writes /data/CosyVoice2-0.5B/hf (1.3 GB)
  telephony-tts models convert --to hf /data/ours --dtype float16   for a GPU without bfloat16, such as a V100

vllm: speech ids only, as CosyVoice's own vLLM mode reads it. hf: text and speech in one vocabulary, with a tokenizer,
as the converter of TensorRT-LLM takes it (docs/trtllm.md). Only the language model is converted. The folder appears
when it is complete. If the model has not changed since, it is left alone; otherwise it is replaced.
"""


def add_models(line: CommandLine) -> None:
    """The command `models` with its actions."""
    about = "fetch, check, make or convert a CosyVoice2 model directory"
    parser = line.command("models", about, MODELS_EXAMPLES, _check)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    action = adder(actions)

    pulling = action("pull", "fetch a model from a hub, or continue to fetch it, and check it", _PULL_EXAMPLES, _pull)
    checking = action("check", "check whether a model directory is complete and compatible", _CHECK_EXAMPLES, _check)
    making = action(
        "random", "write random weights in the official layout: noises, for tests", _RANDOM_EXAMPLES, _random
    )
    converting = action(
        "convert", "write the language model in the layout of another engine", _CONVERT_EXAMPLES, _convert
    )
    for sub in (pulling, checking, making, converting):
        sub.add_argument("dir", metavar="DIR", help="the model directory")
    pulling.add_argument("--source", choices=("huggingface", "modelscope"), default="huggingface", help="the hub")
    pulling.add_argument("--revision", metavar="R", help="branch, tag or commit (default: the hub's main branch)")
    pulling.add_argument("--repo", metavar="ID", help="another repository than the official one")
    for sub, does in ((pulling, "the model to fetch"), (making, "the model to imitate")):
        sub.add_argument(
            "--family", choices=("cosyvoice2", "300m"), default="cosyvoice2",
            help=f"{does}: CosyVoice2-0.5B or CosyVoice-300M-SFT (default cosyvoice2)",
        )  # fmt: skip
    making.add_argument("--size", choices=("tiny", "full"), default="tiny", help="6 MB or 2.6 GB (default tiny)")
    making.add_argument("--seed", type=int, default=0, help="the same seed gives the same weights (default 0)")
    converting.add_argument("--to", choices=("vllm", "hf"), required=True, help="the layout, and the folder's name")
    converting.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16",
        help="of the weights that are written (default bfloat16)",
    )  # fmt: skip
    converting.add_argument(
        "--replace", action="store_true", help="replace a folder of this name that another program made"
    )


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"this needs PyTorch: {how_to_get('cosyvoice')}")


def _check(arguments: argparse.Namespace) -> int:
    """Exit status 0 if the directory is good, else 1 with one line for each problem and one that says what to do."""
    _need_torch()
    from telephony_tts.engines.cosyvoice2.checkpoint.weights import check_model_directory, how_to_mend

    directory = Path(arguments.dir)
    problems = check_model_directory(directory)
    for problem in problems:
        print(f"{directory}: {problem}")
    if problems:
        print(how_to_mend(directory))
        return 1
    print(f"{directory}: complete and compatible")
    return 0


def _random(arguments: argparse.Namespace) -> int:
    _need_torch()
    from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint

    if arguments.seed < 0:
        raise ConfigError(f"--seed is {arguments.seed}; expected a whole number of 0 or more")
    write_random_checkpoint(Path(arguments.dir), arguments.size, arguments.seed, family=arguments.family)
    print(f"{arguments.dir}: a random {arguments.size} checkpoint; it makes noises, for tests and measurements")
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    _need_torch()
    from telephony_tts.engines.cosyvoice2.checkpoint.conversion import convert

    done = convert(Path(arguments.dir), arguments.to, arguments.dtype, replace=arguments.replace)
    what = "written" if done.is_new else "is there already, from this model"
    print(f"{done.folder}: {what} ({arguments.dtype}, {done.n_bytes / 1e6:.0f} MB)")
    if done.is_random:
        print(f"telephony-tts: {arguments.dir} has random weights: it speaks noise, not words", file=sys.stderr)
    return 0


def _pull(arguments: argparse.Namespace) -> int:
    """Exit status 0 if the directory is complete and good, 130 after Ctrl-C."""
    from telephony_tts.engines.cosyvoice2.checkpoint.download import DownloadProgress, pull, release_of
    from telephony_tts.engines.hubs import open_hub

    if arguments.dir == "kokoro" and arguments.repo is None:
        voices = shell_command("telephony-tts voices pull")
        raise ConfigError(
            f"kokoro's model is part of the installation, and `{voices}` fetches its voices; this fetches CosyVoice2 "
            "into a directory: for one of this name write ./kokoro"
        )
    directory, family = Path(arguments.dir), arguments.family
    repo = arguments.repo or release_of(family).official_repos[arguments.source]
    try:
        with DownloadProgress(sys.stderr) as progress:
            pulled = pull(directory, open_hub(arguments.source), repo, arguments.revision, progress, family)
    except KeyboardInterrupt:
        print("telephony-tts: interrupted; repeat the command to continue", file=sys.stderr)
        return 130
    for warning in pulled.warnings:
        print(f"telephony-tts: {warning}", file=sys.stderr)
    counts = f"{pulled.n_fetched} files fetched, {pulled.n_kept} were already there"
    print(f"{directory}: {repo} at {pulled.revision}, {counts}")
    if importlib.util.find_spec("torch") is None:
        check = shell_command(f"telephony-tts models check {directory}")
        print(f"not checked further: {how_to_get('cosyvoice')}, then {check}")
        return 0
    return _check(arguments)
