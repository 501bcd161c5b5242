"""Real telephone sound at 8 kHz: recorded prompts as callers, music on hold, and what else a line carries.

The prompts and the music are in Debian packages, which apt fetches into .peers/sounds. Signals are float arrays with
full scale 1.0. Levels are in dBm0: 0 dBm0 is a sine of -3.17 dBFS, so a mean power of -6.18 dBov.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from telephony_tts.audio.g711 import Pcm, decode_ulaw, encode_ulaw
from telephony_tts.audio.resampler import Resampler, to_pcm
from telephony_tts.audio.wav import read_wav
from telephony_tts.engines.api import Utterance
from telephony_tts.engines.hibari.model import SAMPLE_RATE_HZ, HibariModel
from telephony_tts.engines.kokoro.engine import KokoroEngine

RATE_HZ = 8000
DBOV_OF_0_DBM0 = -6.18

Signal = npt.NDArray[np.float64]

_FOLDER = Path(__file__).resolve().parents[2] / ".peers" / "sounds"
_PACKAGES = ("asterisk-core-sounds-en-wav", "asterisk-moh-opsound-wav")
_WINDOW = 80
_NO_CALLERS = ("silence/", "beep", "tone", "digits/", "letters/", "phonetic/", "monkeys", "screaming", "ring")
"""Prompts of one word, and those that are not speech."""


def fetched() -> Path:
    """The folder of Asterisk's sounds. The first use downloads 32 MB."""
    folder = _FOLDER / "usr" / "share" / "asterisk"
    if not (_FOLDER / ".done").exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "-qq", "download", *_PACKAGES], cwd=_FOLDER, check=True, stderr=subprocess.DEVNULL)
        for package in _FOLDER.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, _FOLDER], check=True)
            package.unlink()
        (_FOLDER / ".done").touch()
    return folder


def loudness_dbm0(wave: Signal) -> float:
    """The mean level where there is speech: in the windows of 10 ms within 25 dB of the loudest."""
    powers = _powers(wave)
    return float(10 * np.log10(powers[powers > powers.max() / 316].mean())) - DBOV_OF_0_DBM0


def at_level(wave: Signal, dbm0: float) -> Signal:
    scaled: Signal = wave * 10 ** ((dbm0 - loudness_dbm0(wave)) / 20)
    return scaled


def _powers(wave: Signal) -> Signal:
    powers: Signal = np.square(wave[: len(wave) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)).mean(axis=1)
    return powers


def _from_first_sound(wave: Signal) -> Signal:
    """Without the silence at both ends: that is, what is 25 dB below the loudest 10 ms."""
    (loud,) = np.nonzero(_powers(wave) > _powers(wave).max() / 316)
    return wave[loud[0] * _WINDOW : (loud[-1] + 1) * _WINDOW]


@lru_cache
def _prompts() -> dict[str, Signal]:
    folder = fetched() / "sounds" / "en_US_f_Allison"
    return {
        str(file.relative_to(folder)): _from_first_sound(read_wav(file).pcm / 32768)
        for file in sorted(folder.rglob("*.wav"))
        if "silence/" not in str(file)
    }


def prompts(n: int) -> list[Signal]:
    """Recorded prompts of 1 to 6 s."""
    fitting = [
        wave for name, wave in _prompts().items()
        if RATE_HZ <= len(wave) <= 6 * RATE_HZ and not any(part in name for part in _NO_CALLERS)
    ]
    picked = np.linspace(0, len(fitting) - 1, min(n, len(fitting))).astype(int)
    return [fitting[at] for at in picked]


def short_words(n: int) -> list[Signal]:
    """Spoken digits and letters: one syllable for the most part."""
    fitting = [wave for name, wave in _prompts().items() if name.startswith(("digits/", "letters/"))]
    fitting = [wave for wave in fitting if 0.2 * RATE_HZ <= len(wave) <= 0.7 * RATE_HZ]
    return [fitting[at % len(fitting)] for at in range(n)]


# ------------------------------------------------------------------------ our own speech

_WHO = ("Your parcel", "Your new card", "The technician", "Our driver", "The invoice for May", "Your second order")
_DOES = (
    "left the depot on Tuesday and should arrive before noon",
    "is planned for Friday the twelfth, between two and four",
    "could not be delivered, because the door was not answered",
    "has been moved to another day at your request",
)
_ASKS = (
    "Which of these would suit you best?",
    "May I read the number back to you?",
    "If that is fine, just stay on the line.",
    "I can offer you Monday at nine, or Thursday afternoon.",
    "You will get a message as soon as that has changed.",
)


_MANDARIN_WHO = ("您的包裹", "您的新卡", "维修师傅", "五月份的账单")
_MANDARIN_DOES = (
    "周二已经发出，预计中午之前送到",
    "安排在十二号，星期五下午两点到四点",
    "因为家里没有人，没有送成",
    "按您的要求改到了别的日子",
)
_MANDARIN_ASKS = (
    "您看哪个时间比较方便？",
    "我把号码再念一遍，好吗？",
    "没有问题的话，请不要挂机。",
    "有变化会短信通知您。",
)

OUR_VOICES = ("hibari", "kokoro")


def _hibari() -> Iterator[Pcm]:
    model = HibariModel()
    for who, does, asks in product(_WHO, _DOES, _ASKS):
        yield model.speak(f"{who} {does}. {asks}").pcm


def _kokoro() -> Iterator[Pcm]:
    async def speak() -> list[Pcm]:
        engine = KokoroEngine()
        await engine.start()
        try:
            return [
                np.concatenate([chunk.pcm async for chunk in engine.synthesize(Utterance("u", f"{who}{does}。{asks}"))])
                for who, does, asks in product(_MANDARIN_WHO, _MANDARIN_DOES, _MANDARIN_ASKS)
            ]
        finally:
            await engine.close()

    yield from asyncio.run(speak())


@lru_cache
def our_speech(seconds: float, voice: str = "hibari") -> Signal:
    """A voice at -14 dBm0 through mu-law, with the pauses of a bot that speaks on and on. It repeats after about seven
    minutes. `voice`: "hibari" in English, or "kokoro" in Mandarin."""
    file = _FOLDER / f"{voice}.npy"
    if not file.exists():
        parts: list[Signal] = []
        for n, spoken in enumerate(_hibari() if voice == "hibari" else _kokoro()):
            resampler = Resampler(SAMPLE_RATE_HZ, RATE_HZ)
            wave = np.concatenate([resampler.feed(spoken), resampler.finish()]) / 32768
            parts += [at_level(wave, -20 - DBOV_OF_0_DBM0), np.zeros(RATE_HZ // 5 * (n % 4))]
        _FOLDER.mkdir(parents=True, exist_ok=True)
        np.save(file, np.concatenate(parts).astype(np.float32))
    return through_ulaw(np.resize(np.load(file).astype(np.float64), round(seconds * RATE_HZ)))


def ulaw(wave: Signal) -> bytes:
    return encode_ulaw(to_pcm((wave * 32767).astype(np.float32)))


def through_ulaw(wave: Signal) -> Signal:
    return decode_ulaw(ulaw(wave)) / 32768


def echo(wave: Signal, delay_ms: float, down_db: float, path: str = "wire") -> Signal:
    """What comes back of `wave`: `delay_ms` later, up to 20 ms more for each sentence. Every path has a soft clip at
    the telephone, a delay that is no whole number of samples, and a second mu-law. `path` "room" adds the walls of a
    room and a small loudspeaker, "mobile" AMR at 7.95 kbit/s in both directions."""
    late = np.concatenate([np.zeros(round(delay_ms * RATE_HZ / 1000)), _irregular(wave)])[: len(wave)]
    late = np.convolve(late, np.sinc(np.arange(-12, 12) + 0.4) * np.hanning(24), "same")
    if path == "mobile":
        late = _through_amr(late)
    late = np.tanh(late * 3) / 3
    if path == "room":
        rng = np.random.default_rng(9)
        walls = rng.standard_normal(2400) * 10 ** (-np.arange(2400) / 800)  # 60 dB in 0.3 s
        walls *= 0.5 / np.sqrt(np.square(walls).sum())
        walls[0] = 1.0
        late = np.convolve(late, walls)[: len(wave)]
        late = np.convolve(late, (0.5, 0.3, -0.5, -0.3))[: len(wave)]
    late = at_level(late, loudness_dbm0(wave) - down_db)
    if path == "mobile":
        late = _through_amr(late)
    return through_ulaw(late)


def _irregular(wave: Signal) -> Signal:
    """What follows a pause of 0.1 s is up to 20 ms later: a peer plays what it gets at once, and the network's delay at
    that moment then lasts until the peer's buffer is empty again."""
    rng = np.random.default_rng(3)
    is_silent = np.convolve(np.abs(wave) > 1e-3, np.ones(RATE_HZ // 10), "full")[: len(wave)] < 0.5
    begins = [0, *(np.flatnonzero(np.diff(is_silent.astype(np.int8)) == -1) + 1), len(wave)]
    out = np.zeros(len(wave) + RATE_HZ)
    for begin, end in pairwise(begins):
        late = int(rng.integers(0, RATE_HZ // 50))
        out[begin + late : end + late] = wave[begin:end]
    return out[: len(wave)]


def _through_amr(wave: Signal) -> Signal:
    encoder, decoder = av.CodecContext.create("libopencore_amrnb", "w"), av.CodecContext.create("amrnb", "r")
    encoder.sample_rate, encoder.layout, encoder.format, encoder.bit_rate = RATE_HZ, "mono", "s16", 7950  # type: ignore[attr-defined]
    decoder.sample_rate, decoder.layout = RATE_HZ, "mono"  # type: ignore[attr-defined]
    pcm = to_pcm((wave * 32767).astype(np.float32))
    decoded = []
    for at in range(0, len(pcm) - 159, 160):
        frame = av.AudioFrame.from_ndarray(pcm[None, at : at + 160], format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE_HZ, at
        for packet in encoder.encode(frame):  # type: ignore[attr-defined]
            decoded += [out.to_ndarray().ravel() for out in decoder.decode(packet)]  # type: ignore[attr-defined]
    out = np.concatenate(decoded).astype(np.float64)
    out = out / 32768 if np.abs(out).max() > 2 else out
    fitted: Signal = np.concatenate([out, np.zeros(len(wave))])[: len(wave)]
    return fitted


# ------------------------------------------------------------------------ what else is on a line


def _pink(n: int, rng: np.random.Generator) -> Signal:
    spectrum = np.fft.rfft(rng.standard_normal(n))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[: n * 100 // RATE_HZ] = 0
    return np.fft.irfft(spectrum, n)


def _comfort(n: int, rng: np.random.Generator) -> Signal:
    return np.convolve(rng.standard_normal(n), (0.3, 0.5, 0.3), "same")


def _babble(n: int, rng: np.random.Generator) -> Signal:
    """Eight prompts at a time."""
    waves = list(_prompts().values())
    mixed = np.zeros(n)
    for _ in range(8):
        at = 0
        while at < n:
            wave = at_level(waves[rng.integers(len(waves))], -20)
            mixed[at : at + len(wave)] += wave[: n - at]
            at += len(wave)
    return mixed


def _distant(n: int, rng: np.random.Generator) -> Signal:
    """One person in the other corner of a hall."""
    out, at = np.zeros(n), 0
    waves = prompts(300)
    while at < n:
        wave = at_level(waves[rng.integers(len(waves))], -20)
        out[at : at + len(wave)] += wave[: n - at]
        at += len(wave) + int(rng.integers(RATE_HZ // 2, 4 * RATE_HZ))
    walls = rng.standard_normal(4000) * 10 ** (-np.arange(4000) / 2500)
    return np.convolve(out, walls)[:n]


def _tones(*parts: tuple[float, float, tuple[float, ...]]) -> Callable[[int, np.random.Generator], Signal]:
    """Tones in turn, again and again: (seconds, seconds of silence behind it, frequencies in Hz)."""

    def make(n: int, rng: np.random.Generator) -> Signal:
        del rng
        pieces = []
        for on_s, off_s, frequencies in parts:
            t = np.arange(round(on_s * RATE_HZ)) / RATE_HZ
            pieces += [sum((np.sin(2 * np.pi * hz * t) for hz in frequencies), 0 * t), np.zeros(round(off_s * RATE_HZ))]
        return np.resize(np.concatenate(pieces), n)

    return make


def _hum(n: int, rng: np.random.Generator) -> Signal:
    t = np.arange(n) / RATE_HZ
    return sum((np.sin(2 * np.pi * 50 * k * t + k) / k for k in (1, 2, 3, 5, 7)), 0.02 * rng.standard_normal(n))


def _clicks(n: int, rng: np.random.Generator) -> Signal:
    out = np.zeros(n)
    for at in rng.integers(0, n - 200, n // (RATE_HZ // 3)):
        out[at : at + 160] += rng.standard_normal(160) * np.exp(-np.arange(160) / rng.uniform(5, 60))
    return out


def _music(n: int, rng: np.random.Generator) -> Signal:
    del rng
    files = sorted((fetched() / "moh").glob("*.wav"))
    return np.resize(np.concatenate([read_wav(file).pcm / 32768 for file in files]), n)


_KEYS = [(0.1, 0.15 + 0.1 * (n % 5), pair) for n, pair in enumerate(product((697, 770, 852, 941), (1209, 1336, 1477)))]

NOISES: dict[str, Callable[[int, np.random.Generator], Signal]] = {
    "comfort noise": _comfort, "pink noise": _pink, "babble": _babble, "hum": _hum, "clicks": _clicks,
    "keys": _tones(*_KEYS), "ringback": _tones((2.0, 4.0, (440, 480))), "busy tone": _tones((0.5, 0.5, (480, 620))),
    "music on hold": _music, "distant speech": _distant,
}  # fmt: skip


def noise(name: str, seconds: float, dbm0: float, seed: int = 1) -> Signal:
    """`seconds` of a noise at a level."""
    return at_level(NOISES[name](round(seconds * RATE_HZ), np.random.default_rng(seed)), dbm0)
