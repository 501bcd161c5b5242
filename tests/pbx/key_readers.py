"""Real receivers of telephone keys in the audio: spandsp, multimon-ng, and a real Asterisk."""

from __future__ import annotations

import ctypes
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import debian_packages
import numpy as np
import soxr
from asterisk_peer import Asterisk
from debian_packages import Unpacked
from peer_process import wait_until
from phones import calling
from rtp_end import exchange

from telephony_tts.audio.g711 import Pcm, encode_ulaw

_FOLDER = Path(__file__).resolve().parents[2] / ".peers" / "key_readers"
_OF_THE_HOST = ("ld-", "libc.", "libm.", "libmvec", "libpthread", "libdl", "librt", "libstdc++", "libgcc_s")
_SUITE = "forky"
_MULTIMON_HZ = 22_050
_BLOCK = 160
_AT_ONCE = 20
_WAITS_S = 20.0
"""Asterisk gives an application each key as one of 100 ms or more, so that shorter ones queue; then it waits 3 s."""


@lru_cache(maxsize=1)
def _spandsp() -> ctypes.CDLL:
    """It needs no new libc. The libraries that it needs are those beside it where the host can load them."""
    unpacked = debian_packages.install(_FOLDER / "spandsp", ("libspandsp2",), _SUITE, 15)
    others = [path for path in unpacked.libraries.glob("*.so.*") if not path.name.startswith(_OF_THE_HOST)]
    for _ in range(3):  # each needs some of the others
        for path in others:
            with suppress(OSError):
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(unpacked.libraries / "libspandsp.so.2"))
    library.dtmf_rx_init.restype = ctypes.c_void_p
    library.dtmf_rx_init.argtypes = [ctypes.c_void_p] * 3
    library.dtmf_rx.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    library.dtmf_rx_get.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    library.dtmf_rx_free.argtypes = [ctypes.c_void_p]
    return library


def spandsp(pcm: Pcm) -> str:
    """The keys that spandsp reads at 8 kHz."""
    library, read = _spandsp(), b""
    receiver = library.dtmf_rx_init(None, None, None)
    keys = ctypes.create_string_buffer(129)
    for at in range(0, len(pcm), _BLOCK):
        block = np.ascontiguousarray(pcm[at : at + _BLOCK])
        library.dtmf_rx(receiver, block.ctypes.data, len(block))
        library.dtmf_rx_get(receiver, keys, 128)
        read += keys.value
    library.dtmf_rx_free(receiver)
    return read.decode()


@lru_cache(maxsize=1)
def _multimon() -> Unpacked:
    return debian_packages.install(_FOLDER / "multimon", ("multimon-ng",), _SUITE, 30)


def multimon(pcm: Pcm) -> str:
    """The keys that multimon-ng reads at 8 kHz."""
    wave = soxr.resample(np.concatenate((pcm, np.zeros(4000, np.int16))).astype(np.float32), 8000, _MULTIMON_HZ)
    raw = np.clip(np.rint(wave), -32768, 32767).astype("<i2").tobytes()
    command = _multimon().command("usr/bin/multimon-ng", "-q", "-t", "raw", "-a", "DTMF", "-")
    ran = subprocess.run(command, input=raw, capture_output=True, timeout=60, check=True)
    return "".join(re.findall(r"^DTMF: (.)$", ran.stdout.decode(), re.M))


def asterisk(pbx: Asterisk, waves: Sequence[Pcm]) -> list[str]:
    """The keys that an application of Asterisk reads, at 8 kHz and in real time."""
    read = []
    for first in range(0, len(waves), _AT_ONCE):
        some = waves[first : first + _AT_ONCE]
        names = [f"inband-{time.monotonic_ns() % 10**9}{n}" for n in range(len(some))]
        with exchange() as media, calling(media, pbx.sip_port, *names) as phones:
            for phone in phones:
                phone.wait_answered()
            time.sleep(0.3)
            for phone, wave in zip(phones, some, strict=True):
                phone.rtp.say(encode_ulaw(wave))
            for phone in phones:
                phone.wait_said(len(some[0]) / 8000 + 60)

            def found(names: list[str] = names) -> list[str]:
                log = pbx.log(1 << 22)
                matches = [re.search(rf"{name} has read (.*)\.", log) for name in names]
                return [each[1] for each in matches if each is not None]

            wait_until(lambda names=names: len(found()) == len(names), "Asterisk has read the keys", _WAITS_S)
            read += found()
            for phone in phones:
                phone.hang_up()
            for phone in phones:
                phone.wait_ended()
    return read
