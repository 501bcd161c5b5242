"""What is measured: a model directory, real or random, and what it is made to say.

A random model is written so that it cannot end early: it says 20 speech tokens for each token of its text, which is
what makes its utterances as long as they are asked for.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import Size, write_random_checkpoint
from telephony_tts.engines.cosyvoice2.model.config import TOKENS_PER_S
from telephony_tts.engines.cosyvoice2.model.file_names import RANDOM_MARK
from telephony_tts.engines.cosyvoice2.text.generation import MAX_TOKENS_PER_TEXT
from telephony_tts.errors import ConfigError

SECONDS_PER_WORD, SECONDS_PER_HAN = 0.36, 0.23
"""Of English words, and of Chinese characters, as a bot speaks on a telephone: about 165 words a minute."""

ENGLISH = (
    "Thank you for calling.",
    "Your parcel left our warehouse this morning.",
    "It should be with you tomorrow before noon.",
    "I can see that your last payment arrived on Friday.",
    "Would you like me to send the invoice to your address once more?",
    "Please have your customer number ready.",
    "The technician will call you half an hour before he comes.",
    "Of course, let me look at that for you.",
    "Your contract runs until the end of next year and can be changed at any time.",
    "Is there anything else I can help you with today?",
    "I am sorry that you had to wait so long.",
    "We have opened a ticket, and a colleague will take care of it at once.",
)
CHINESE = (
    "您好，感谢您的来电。",
    "您的包裹今天早上已经从仓库发出。",
    "预计明天中午之前可以送到您的手中。",
    "我看到您上个月的费用已经付清了。",
    "请问您需要我把账单再发一次到您的邮箱吗？",
    "请您稍等，我马上帮您查询一下。",
    "工作人员上门之前会提前半小时给您打电话。",
    "非常抱歉，让您久等了。",
    "您的合同到明年年底结束，随时都可以修改。",
    "请问还有什么可以帮您的吗？",
)


def spoken_seconds(text: str) -> float:
    """About how long a text of the lists above takes to say."""
    n_han = sum("\u4e00" <= letter <= "\u9fff" for letter in text)
    return n_han * SECONDS_PER_HAN if n_han else len(text.split()) * SECONDS_PER_WORD


def real_text(index: int, seconds: float) -> str:
    """Sentences that take about `seconds`: English for even turns, Chinese for odd ones, others for each turn."""
    sentences, joint = (ENGLISH, " ") if index % 2 == 0 else (CHINESE, "")
    text = ""
    for n in range(index // 2, index // 2 + 1000):
        sentence = sentences[n % len(sentences)]
        longer = f"{text}{joint}{sentence}" if text else sentence
        if text and spoken_seconds(longer) - seconds > seconds - spoken_seconds(text):
            break
        text = longer
    return text


def random_text(seconds: float) -> str:
    """Text of which a random model makes `random_seconds(seconds)` of speech."""
    return "a" + " the" * (_n_text(seconds) - 2) + "."


def random_seconds(seconds: float) -> float:
    """The shortest speech of at least `seconds` that a random model can make: 1.6 s, 2.4 s and so on."""
    return _n_text(seconds) * MAX_TOKENS_PER_TEXT / TOKENS_PER_S


def _n_text(seconds: float) -> int:
    """Text tokens: a word or a full stop each."""
    return max(2, math.ceil(round(seconds * TOKENS_PER_S / MAX_TOKENS_PER_TEXT, 9)))


@contextmanager
def random_model(size: Size, prompt_seconds: float, keep: Path | None = None) -> Iterator[Path]:
    """A directory with random weights that never end early: one that is thrown away, or `keep`, made where it is not
    there yet. Raises ConfigError where `keep` holds something else."""
    n_prompt = int(prompt_seconds * TOKENS_PER_S)
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="telephony-tts-") as folder:
            _write(Path(folder), size, n_prompt)
            yield Path(folder)
        return
    if (keep / RANDOM_MARK).is_file():
        there = json.loads((keep / RANDOM_MARK).read_text(encoding="utf-8"))
        if [there.get(of) for of in ("size", "endless", "prompt_tokens")] != [size, True, n_prompt]:
            raise ConfigError(f"{keep} holds another random model than is asked for: give --keep another directory")
    else:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
            raise ConfigError(f"{keep} is not empty and no random model: give --keep a new directory")
        # Made beside its place and moved there when it is whole: broken off, it is not taken for one.
        unfinished = keep.with_name(keep.name + ".part")
        _write(unfinished, size, n_prompt)
        unfinished.replace(keep)
    yield keep


def _write(directory: Path, size: Size, n_prompt: int) -> None:
    try:
        write_random_checkpoint(directory, size, endless=True, prompt_tokens=n_prompt)
    except (OSError, RuntimeError) as error:  # torch.save tells of a full disk by the second
        where = "--keep DIR names a place with room: 2.6 GB at full size"
        raise ConfigError(f"the random weights cannot be written ({str(error).splitlines()[0]}); {where}") from error


def random_voice(prompt_seconds: float) -> str:
    """The voice of a random model whose prompt is as long as it was asked for."""
    return "prompted" if int(prompt_seconds * TOKENS_PER_S) else "preset"
