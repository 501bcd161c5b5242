"""The page "Voices" of the console with a real CosyVoice2 of random weights: from a recording to a voice that speaks.

With the variable CONSOLE_PICTURES the tests of widths keep a picture of the page in that folder.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from browser import Page, chromium
from console_page import console, picture, recorder_served, settled, violations
from rig import Rig, run, speech_settings
from server_settings import transport_settings

from telephony_tts.cli.main import main as cli
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.cosyvoice2.checkpoint.random_checkpoint import write_random_checkpoint
from telephony_tts.engines.cosyvoice2.plugin import spoken
from telephony_tts.engines.cosyvoice2.service import CosyVoice2Engine
from telephony_tts.engines.cosyvoice2.voice_service import VoiceService
from telephony_tts.engines.cosyvoice2.voices.voice_folder import VoiceFolder
from telephony_tts.engines.cosyvoice2.voices.voice_records import VoiceRecords
from telephony_tts.engines.cosyvoice2.voices.voice_store import VoiceStore
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.http_api.asgi import http_server
from telephony_tts.http_api.console_routes import ConsoleTools
from telephony_tts.ops.keys.key import Key, KeyRing, digest_of
from telephony_tts.ops.lexicon_files import LexiconFiles
from telephony_tts.transport.server import Server

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.usefixtures("forked_makers")]

HZ = 24_000
SAID = "Thank you for calling. Your parcel is on its way and arrives tomorrow. Is there anything else I can do?"
WIDTHS = {"wide": (1280, 800), "narrow": (390, 844)}
MAKER_S = 150.0
"""A process imports PyTorch before it checks the first recording, and gives way to all others."""
WITHIN_S = 500.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("voices-page")


@pytest.fixture(scope="module")
def model_dir(folder: Path) -> Path:
    path = folder / "model"
    path.mkdir()
    write_random_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def speech(folder: Path) -> np.ndarray[Any, Any]:
    """What the embedded voice says, with silence before and after it, at 24 kHz."""
    path = folder / "said.wav"
    assert cli(["say", SAID, str(path), "--pcm", "--voice", "hibari/heart"]) == 0
    samples, rate_hz = soundfile.read(path, dtype="float32")
    assert rate_hz == HZ
    silence = np.zeros(HZ // 2, np.float32)
    return np.concatenate((silence, samples, silence))


@pytest.fixture(scope="module")
def recordings(folder: Path, speech: np.ndarray[Any, Any]) -> dict[str, Path]:
    hiss = 0.01 * np.random.default_rng(0).standard_normal(len(speech)).astype(np.float32)
    waves = {
        "good": (speech, HZ),
        "noisy": (speech + hiss, HZ),
        "clipped": ((20 * speech).clip(-1, 1), HZ),
        "short": (speech[: 2 * HZ], HZ),
        "long": (np.tile(speech, 6)[: 40 * HZ], HZ),
        "silent": (np.zeros(5 * HZ, np.float32), HZ),
        "telephone": (speech[::3], HZ // 3),
        "stereo": (np.stack((speech, 0.5 * speech), 1), HZ),
    }
    for name, (wave, hz) in waves.items():
        soundfile.write(folder / f"{name}.wav", wave, hz)
    whole = (folder / "good.wav").read_bytes()
    (folder / "half.wav").write_bytes(whole[: len(whole) // 2])
    (folder / "<b>broken.wav").write_bytes(b"not a recording")
    return {name: folder / f"{name}.wav" for name in (*waves, "half", "<b>broken")}


@pytest.fixture(scope="module")
def devtools(recordings: dict[str, Path]) -> Iterator[str]:
    """A browser whose microphone hears the good recording."""
    flags = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
             f"--use-file-for-fake-audio-capture={recordings['good']}")  # fmt: skip
    with chromium(*flags) as address, recorder_served():
        yield address


@dataclass
class Place:
    rig: Rig
    folder: Path

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []


@asynccontextmanager
async def voiced(
    model_dir: Path, folder: Path, lexicons: LexiconFiles | None = None, keys: Sequence[Key] = ()
) -> AsyncIterator[Place]:
    """A server that can make voices, and what its page needs."""
    engine = CosyVoice2Engine(model_dir, folder, flow_steps=1)
    catalog = Catalog([engine, FakeEngine()])
    service = VoiceService(engine, model_dir, folder, spoken, made_by="a test")
    ring, owners = KeyRing((), keys), VoiceRecords(VoiceFolder(folder))
    server = Server(transport_settings(speech=speech_settings(), keys=ring, owners=owners), catalog)
    server.http = http_server(server, service, ConsoleTools(None, lexicons))
    await catalog.start()
    try:
        async with server.running():
            yield Place(Rig(server, catalog.engines[1]), folder)
    finally:
        await service.close()
        await catalog.close()


async def text_of(shown: Page, selector: str) -> str:
    told: str = await shown.evaluate(f"document.querySelector('{selector}').innerText")
    return told


async def checked(shown: Page, file: Path) -> str:
    """The class of the verdict of the server on a recording: "good" or "bad"."""
    await shown.until("document.querySelector('#voice-list .card') !== null")
    await shown.upload("#voice-file", file)
    await shown.until(
        "!document.querySelector('#voice-check').hidden && "
        "/^(good|bad)$/.test(document.querySelector('#verdict p')?.className)", MAKER_S,
    )  # fmt: skip
    verdict: str = await shown.evaluate("document.querySelector('#verdict p').className")
    return verdict


async def rows(shown: Page, version: str = "recording") -> dict[str, tuple[str, str]]:
    """The figures of a version: by the name of the row, its value and what is advised."""
    cells = await shown.evaluate(
        f"[...document.querySelectorAll('#version-{version} tr')].map((row) => [...row.cells].map((c) => c.innerText))"
    )
    return {name: (value, advice) for name, value, advice in cells}


async def painted(shown: Page, selector: str) -> float:
    """The mean opacity of a picture, 0 to 1."""
    share: float = await shown.evaluate(
        f"(() => {{ const c = document.querySelector('{selector}');"
        " const pixels = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let sum = 0;"
        " for (let n = 3; n < pixels.length; n += 4) sum += pixels[n]; return sum / 255 / (pixels.length / 4); })()"
    )
    return share


async def fill_form(shown: Page, name: str, *, said: str = SAID) -> None:
    await shown.write("#voice-name", name)
    await shown.write("#voice-text", said)
    await shown.write("#consent-by", "Anna Schmidt")
    await shown.write("#consent-for", "calls of this test")
    await shown.evaluate("document.querySelector('#voice-consent').checked = true")


async def make(shown: Page) -> None:
    await shown.click("#make-voice")
    state = "document.querySelector('#voice-state').value.includes('is there')"
    await shown.until(f"{state} || !document.querySelector('#problem').hidden", MAKER_S)
    assert await shown.evaluate(state), await text_of(shown, "#problem")


FINDINGS = [
    ("good", "good", "Noise", "good"),
    ("noisy", "good", "Noise", "noisy"),
    ("clipped", "bad", "Clipping", "clipped"),
    ("short", "bad", "Length", "too short"),
    ("long", "bad", "Length", "too long"),
    ("silent", "bad", "Speech", "silent"),
    ("telephone", "bad", "Rate", "16000 Hz or more"),
    ("stereo", "good", "Length", "good"),
]
"""Of each recording: the verdict, and a row of its figures with what must be said there."""


def test_what_the_server_finds_in_a_recording_is_shown(
    devtools: str, model_dir: Path, tmp_path: Path, recordings: dict[str, Path]
) -> None:
    async def main() -> None:
        async with voiced(model_dir, tmp_path / "v") as place, console(devtools, place.rig, "voices") as shown:
            for which, verdict, row, found in FINDINGS:
                assert await checked(shown, recordings[which]) == verdict, which
                figures = await rows(shown)
                assert found in figures[row][1], (which, figures)
                if which == "good":
                    assert {advice for _, advice in figures.values()} == {"good"}
                    assert figures["Rate"][0] == "24000 Hz"
                assert await shown.evaluate("document.querySelector('#make-voice').disabled") == (verdict == "bad")
                if verdict == "bad":
                    assert await shown.evaluate("document.querySelectorAll('#verdict li.bad').length") >= 1, which
                assert await painted(shown, "#version-recording .wave") > 0.001
                assert (await painted(shown, "#version-recording .spectrogram") > 0.02) == (which != "silent")
            assert shown.complaints == []

            assert await checked(shown, recordings["half"]) == "bad"
            assert "truncated" in await text_of(shown, "#verdict")
            await shown.upload("#voice-file", recordings["<b>broken"])
            told = await shown.until("document.querySelector('#problem').innerText")
            assert "not a recording that can be read" in told
            assert await shown.evaluate("document.querySelector('#voice-check').hidden")
            assert await shown.evaluate("document.querySelector('#make-voice').disabled"), "the old one is not kept"
            assert place.files() == []

    run(main, within_s=WITHIN_S)


def test_a_voice_is_made_tried_at_once_and_removed(
    devtools: str, model_dir: Path, tmp_path: Path, recordings: dict[str, Path]
) -> None:
    async def main() -> None:
        async with voiced(model_dir, tmp_path / "v") as place, console(devtools, place.rig, "voices") as shown:
            assert await checked(shown, recordings["good"]) == "good"
            await shown.click("#make-voice")
            await asyncio.sleep(0.2)
            assert place.files() == [], "no name, no consent: the form is not sent"
            await fill_form(shown, "anna")
            await make(shown)
            assert place.files() == ["anna.safetensors"]
            about = VoiceStore(place.folder).load("anna")
            assert about.transcript == spoken(SAID) and about.provenance["consent_by"] == "Anna Schmidt"
            assert not {"denoised_by", "denoised_db"} & about.provenance.keys()
            assert "Anna Schmidt agreed on" in await text_of(shown, "#voice-list")

            await shown.write("#try-sentence", "Yes.")
            await shown.click("#try-made")
            await shown.until("window.heard?.some((sample) => Math.abs(sample) > 300)", 30)

            await shown.click("#make-voice")
            told = await shown.until("document.querySelector('#problem').innerText")
            assert "There is a voice of this name" in told
            assert await shown.evaluate("document.activeElement.id") == "voice-name"
            await shown.evaluate("document.querySelector('#voice-replace').checked = true")
            await make(shown)

            await shown.click(".remove")
            await asyncio.sleep(0.2)
            assert place.files() == ["anna.safetensors"], "it asks first"
            assert await text_of(shown, ".remove") == "Really remove?"
            await shown.click(".remove")
            await shown.until("document.querySelector('.remove') === null")
            assert place.files() == [] and await shown.evaluate("document.querySelector('#try-made').hidden")
            shown.complaints = [each for each in shown.complaints if "409" not in each]
            assert shown.complaints == []

    run(main, within_s=WITHIN_S)


def test_noise_is_reduced_on_demand_and_the_user_chooses_the_version(
    devtools: str, model_dir: Path, tmp_path: Path, recordings: dict[str, Path]
) -> None:
    async def main() -> None:
        async with voiced(model_dir, tmp_path / "v") as place, console(devtools, place.rig, "voices") as shown:
            await checked(shown, recordings["noisy"])
            assert await shown.evaluate("document.querySelectorAll('.versions article').length") == 1
            await shown.click("#reduce-noise")
            await shown.until("document.querySelector('#version-denoised') !== null", MAKER_S)
            before, after = [
                float(re.match(r"(-?\d+) dBFS", (await rows(shown, name))["Noise"][0]).group(1))  # type: ignore[union-attr]
                for name in ("recording", "denoised")
            ]
            assert after < before - 8, "the noise is lower"
            level = {
                name: float((await rows(shown, name))["Speech"][0].split()[0])
                for name in ("recording", "denoised")
            }
            assert abs(level["recording"] - level["denoised"]) <= 1, "the speech is not"
            assert (await rows(shown, "denoised"))["Noise"][1] == "good"
            pictures = [await painted(shown, f"#version-{name} .spectrogram") for name in ("recording", "denoised")]
            assert pictures[1] < 0.8 * pictures[0], "and that is seen"
            await shown.until("document.querySelector('#version-denoised audio').duration > 5")
            assert "afftdn of FFmpeg" in await text_of(shown, "#verdict")

            assert await shown.evaluate("document.querySelector('#use-recording').checked"), "never silently"
            await fill_form(shown, "as_it_is")
            await make(shown)
            await shown.click("#use-denoised")
            assert await shown.evaluate("document.activeElement.id") == "use-denoised"
            await fill_form(shown, "quieter")
            await shown.evaluate("document.querySelector('#voice-state').value = ''")
            await make(shown)
            store = VoiceStore(place.folder)
            plain, quieter = (store.load(name).provenance for name in ("as_it_is", "quieter"))
            assert "denoised_by" not in plain and quieter["denoised_by"].startswith("afftdn of FFmpeg")
            assert float(quieter["denoised_db"]) > 8
            assert plain["source_sha256"] == quieter["source_sha256"], "both from the same recording"
            cards = await shown.evaluate("[...document.querySelectorAll('#voice-list .card')].map((c) => c.innerText)")
            told = {card.split("\n")[0]: card for card in cards}
            assert "noise lowered by" in told["quieter"] and "noise lowered" not in told["as_it_is"]
            assert shown.complaints == []

    run(main, within_s=WITHIN_S)


def test_noise_that_cannot_be_reduced_is_told_and_without_the_extra_how_to_install_it(
    devtools: str, model_dir: Path, tmp_path: Path, recordings: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with voiced(model_dir, tmp_path / "v") as place, console(devtools, place.rig, "voices") as shown:
            await checked(shown, recordings["good"])
            await shown.click("#reduce-noise")
            await shown.until("document.querySelector('#verdict').innerText.includes('silent already')", MAKER_S)
            assert await shown.evaluate("document.querySelectorAll('.versions article').length") == 1
            assert await shown.evaluate("document.querySelector('#verdict p').className") == "good"
            monkeypatch.setattr(VoiceService, "can_denoise", False)
            told = await shown.until("document.querySelector('#cannot-reduce')?.innerText")
            assert ".venv/bin/pip install -e '.[denoise]'" in told
            assert await shown.evaluate("document.querySelector('#reduce-noise')") is None

    run(main, within_s=WITHIN_S)


def test_the_microphone_is_recorded_with_progress_and_becomes_a_voice(
    devtools: str, model_dir: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        async with voiced(model_dir, tmp_path / "v") as place, console(devtools, place.rig, "voices") as shown:
            await shown.until("document.querySelector('#voice-list .card') !== null")
            await shown.click("#record")
            await shown.until("document.querySelector('#record-level').value > 0.05")
            assert await text_of(shown, "#record") == "Stop"
            await shown.until("document.querySelector('#record-progress').value > 4")
            assert "s of 30" in await shown.evaluate("document.querySelector('#record-state').value")
            await shown.click("#record")
            await shown.until("/^(good|bad)$/.test(document.querySelector('#verdict p')?.className)", MAKER_S)
            figures = await rows(shown)
            assert float(figures["Length"][0].split()[0]) >= 4 and figures["Rate"][0] == "24000 Hz"
            assert -40 < float(figures["Speech"][0].split()[0]) < -6, figures
            assert await shown.evaluate("document.querySelector('#record-progress').hidden")
            assert await text_of(shown, "#record") == "Record"
            await fill_form(shown, "anna", said="")
            await make(shown)
            assert 3 < VoiceStore(place.folder).load("anna").prompt_s < 30
            assert shown.complaints == []

    run(main, within_s=WITHIN_S)


def test_a_voice_of_another_key_is_not_shown_and_not_replaced(
    devtools: str, model_dir: Path, tmp_path: Path, recordings: dict[str, Path]
) -> None:
    keys = [Key(name, digest_of(name.encode())) for name in ("acme", "other")]

    async def as_key(shown: Page, name: str) -> None:
        await shown.until("document.querySelector('#token-dialog').open")
        await shown.write("#token", name)
        await shown.press("Enter")
        await shown.until("document.querySelector('#health').dataset.state === 'good'")

    async def main() -> None:
        async with voiced(model_dir, tmp_path / "v", keys=keys) as place:
            async with console(devtools, place.rig, "voices", is_ready=False) as shown:
                await as_key(shown, "acme")
                await checked(shown, recordings["good"])
                await fill_form(shown, "anna")
                await make(shown)
                assert "key acme" in await text_of(shown, "#voice-list")
            async with console(devtools, place.rig, "voices", is_ready=False) as shown:
                await as_key(shown, "other")
                await checked(shown, recordings["good"])
                assert "anna" not in await text_of(shown, "#voice-list")
                await fill_form(shown, "anna")
                await shown.evaluate("document.querySelector('#voice-replace').checked = true")
                await shown.click("#make-voice")
                told = await shown.until("document.querySelector('#problem').innerText")
                assert "belongs to another key" in told
                assert VoiceStore(place.folder).load("anna").provenance["owner"] == "acme"

    run(main, within_s=WITHIN_S)


# ------------------------------------------------------------------- lexicons


async def opened(shown: Page, text: str) -> None:
    for selector in ("#lexicons summary", "#voice-list .card"):  # either list may come first
        await shown.until(f"document.querySelector('{selector}') !== null")
    await shown.click("#lexicons summary")
    await shown.until(f"document.querySelector('#lexicons textarea').value === {text!r}")


async def told_of(shown: Page, words: str) -> None:
    await shown.until(f"document.querySelector('#lexicons pre').innerText.includes({words!r})")


def test_the_later_of_two_tabs_overwrites_a_lexicon_only_after_it_was_shown_the_other_text(
    devtools: str, model_dir: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        file = tmp_path / "brands.yaml"
        file.write_text("SQL: sequel\n")
        files = LexiconFiles({"brands": str(file)})
        async with (
            voiced(model_dir, tmp_path / "v", files) as place,
            console(devtools, place.rig, "voices") as one,
            console(devtools, place.rig, "voices") as two,
        ):
            for tab in (one, two):
                await opened(tab, "SQL: sequel\n")
            await one.write("#lexicons textarea", "SQL: sequel\nnginx: engine x\n")
            await one.click("#lexicons .saveLexicon")
            await told_of(one, "saved: 2 entries")
            await two.write("#lexicons textarea", "SQL: squeal\n")
            await two.choose("#language", "zh")
            await two.until("document.querySelector('#lexicons .saveLexicon').innerText === '保存'")
            await two.choose("#language", "en")
            await two.until("document.querySelector('#lexicons .saveLexicon').innerText === 'Save'")
            await two.click("#lexicons .saveLexicon")
            await told_of(two, "Nothing was overwritten")
            theirs = "document.querySelector('#lexicons .conflict textarea').value"
            assert await two.evaluate(theirs) == "SQL: sequel\nnginx: engine x\n"
            assert await two.evaluate("document.querySelector('#lexicons textarea').value") == "SQL: squeal\n"
            assert file.read_text() == "SQL: sequel\nnginx: engine x\n"
            await two.click("#lexicons .keepMine")
            await two.click("#lexicons .saveLexicon")
            await told_of(two, "saved: 1 entries")
            assert file.read_text() == "SQL: squeal\n" and files.shelf["brands"].n_entries == 1
            await one.click("#lexicons .saveLexicon")
            await told_of(one, "Nothing was overwritten")
            await one.click("#lexicons .takeTheirs")
            await one.until("document.querySelector('#lexicons textarea').value === 'SQL: squeal\\n'")

    run(main, within_s=WITHIN_S)


def test_a_wrong_line_is_marked_and_the_old_lexicon_stays(devtools: str, model_dir: Path, tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "brands.yaml"
        file.write_text("SQL: sequel\n")
        files = LexiconFiles({"brands": str(file)})
        async with voiced(model_dir, tmp_path / "v", files) as place, console(devtools, place.rig, "voices") as shown:
            await opened(shown, "SQL: sequel\n")
            await shown.write("#lexicons textarea", "SQL: sequel\nnginx: engine x\nnginx: y\n")
            await shown.click("#lexicons .saveLexicon")
            await told_of(shown, "line 3")
            await told_of(shown, "given before")
            marked = await shown.evaluate(
                "(() => { const text = document.querySelector('#lexicons textarea');"
                " return text.value.slice(text.selectionStart, text.selectionEnd); })()"
            )
            assert marked == "nginx: y"
            assert file.read_text() == "SQL: sequel\n" and files.shelf["brands"].n_entries == 1

    run(main, within_s=WITHIN_S)


# --------------------------------------------------------- what everyone can use


async def filled(shown: Page, recordings: dict[str, Path], file: Path) -> None:
    """The page with all that it can show: two versions of a recording, a voice, a lexicon and a conflict."""
    await checked(shown, recordings["noisy"])
    await shown.click("#reduce-noise")
    await shown.until("document.querySelector('#version-denoised') !== null", MAKER_S)
    await shown.click("#use-denoised")
    await fill_form(shown, "anna")
    if await shown.evaluate("document.querySelector('.remove') === null"):
        await make(shown)
    await shown.evaluate("document.querySelector('#lexicons details').open = true")
    await shown.until("document.querySelector('#lexicons textarea').value !== ''")
    await asyncio.to_thread(file.write_text, "SQL: sequel\nnginx: engine x\n# from another program\n")
    await shown.evaluate("document.querySelector('#lexicons .saveLexicon').click()")
    await shown.until("document.querySelector('#lexicons .conflict textarea') !== null")
    await settled(shown)


def test_everyone_can_use_the_page_in_both_languages_light_and_dark_and_it_fits_its_width(
    devtools: str, model_dir: Path, tmp_path: Path, recordings: dict[str, Path]
) -> None:
    pictures = os.environ.get("CONSOLE_PICTURES")

    async def main() -> None:
        file = tmp_path / "brands.yaml"
        file.write_text("SQL: sequel\n")
        files = LexiconFiles({"brands": str(file)})
        async with voiced(model_dir, tmp_path / "v", files) as place, console(devtools, place.rig, "voices") as shown:
            await shown.resize(*WIDTHS["wide"])
            await filled(shown, recordings, file)
            for width, size in WIDTHS.items():
                await shown.resize(*size)
                await settled(shown)
                # A telephone's browser makes innerWidth larger if something does not fit.
                assert await shown.evaluate("document.documentElement.scrollWidth") <= size[0], width
                await picture(shown, Path(pictures) if pictures else None, f"voices-{width}")
            for language in ("en", "zh"):
                await shown.choose("#language", language)
                await shown.until("document.querySelectorAll('.versions article').length === 2")
                for dark in (False, True):
                    await shown.resize(*WIDTHS["wide"], dark=dark)
                    await settled(shown)
                    assert await violations(shown) == [], (language, dark)
            english = await shown.evaluate(
                "[...document.querySelectorAll('#voices :is(button, h1, h2, h3, summary, th, label, li, .state)')]"
                ".flatMap((element) => element.innerText.split('\\n')).filter((text) => /[a-z]{4}/.test(text))"
            )
            own = ("anna", "preset", "prompted", "brands", "fake", "telephony", "tone")
            assert [text for text in english if not any(word in text for word in own)] == []
            shown.complaints = [each for each in shown.complaints if "409" not in each]
            assert shown.complaints == []

    run(main, within_s=WITHIN_S)
