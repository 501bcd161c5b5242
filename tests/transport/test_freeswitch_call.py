"""A call through a FreeSWITCH that plays files: what the telephone hears and what the bot is told, after any restart.

Call, session, leg and engine are the real ones, on a clock that jumps. The engine's speech is read back out of what the
pretended FreeSWITCH plays, so a test compares what the bot was told with what was heard.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import math
from collections import deque
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pytest
import soxr
import virtual_loop
from hypothesis import given, settings
from hypothesis import strategies as st
from stage import READY, RecordingLeg
from virtual_loop import at
from websockets.datastructures import Headers
from websockets.http11 import Request

from telephony_tts.audio.sound import Sound, new_sound
from telephony_tts.doors.freeswitch import leg as freeswitch_leg
from telephony_tts.doors.freeswitch.leg import FreeSwitchLeg
from telephony_tts.engines.catalog import Catalog
from telephony_tts.engines.fake.engine import FakeEngine, recognise, render
from telephony_tts.session.session import Session
from telephony_tts.session.settings import SessionSettings
from telephony_tts.transport import call as call_module
from telephony_tts.transport import media_leg
from telephony_tts.transport.call import Call
from telephony_tts.transport.connection import CallConnection
from telephony_tts.wire import messages as m

SENTENCES = tuple(" ".join([word.title(), *[word] * 8]) + "." for word in ("baba", "dede", "fifi", "gogo"))
SENTENCE_MS = len(SENTENCES[0]) * 60
BEGIN_MS = 80
BREAK_MS = 30


@pytest.fixture(autouse=True)
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (call_module, freeswitch_leg, media_leg):
        monkeypatch.setattr(module, "monotonic_ns", virtual_loop.clock)


def now_ms() -> float:
    return virtual_loop.clock() / 1e6


class Telephone:
    """A FreeSWITCH with a bridge, as the leg's socket. FreeSWITCH plays on when the bridge is killed.

    `asks`: the bridge answers `again` for a call that it does not know; an older bridge plays on.
    """

    def __init__(self, asks: bool = True) -> None:
        self.asks = asks
        self.subprotocol = None
        self.paused = False
        self.request = Request("/media/freeswitch", Headers({"X-Call": "c1"}))
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed: tuple[int, str] | None = None
        self.heard: list[tuple[float, float, np.ndarray]] = []
        """(from ms, to ms, samples) of each file, as far as it was played."""
        self.words: list[dict[str, Any]] = []
        self.leg = FreeSwitchLeg(cast(CallConnection, self))
        self._to_bridge: deque[dict[str, Any]] = deque()
        self._to_server: deque[bytes] = deque()
        self._queue: list[tuple[int, np.ndarray]] = []
        self._current: int | None = None
        self.is_alive = True
        self._knows = False
        self._before = 0
        self._generation = 0

    # as the socket
    def send_now(self, payload: bytes, is_text: bool) -> None:
        assert self.closed is None, "sent after the end"
        self._to_bridge.append(json.loads(payload))
        asyncio.get_running_loop().call_later(0.02, self._arrives)

    def end(self, code: int, reason: str) -> None:
        self.closed = self.closed or (code, reason)
        self._stop()
        if not self.left.done():
            self.left.set_result(None)

    # as the bridge
    def kill(self) -> None:
        self.is_alive = self._knows = False
        self._queue.clear()
        self._current = None

    def restart(self) -> None:
        self.is_alive = True
        self._before = 0

    def lose_touch(self) -> None:
        """The event socket was disconnected for a moment."""
        self._queue.clear()
        self._stop()
        self._report(esl="again")

    def _arrives(self) -> None:
        said = self._to_bridge.popleft()
        kind, data = said["type"], said["data"]
        if kind == "json":
            self.words.append(data)
        if not self.is_alive or self.closed is not None:
            return
        knew, self._knows = self._knows, True
        if kind == "streamAudio":
            number = int(data["id"])
            if self.asks and not knew and number != 1:
                self.lose_touch()
            elif number >= self._before:
                self._queue.append((number, np.frombuffer(base64.b64decode(data["audioData"]), "<i2")))
                self._play_next()
        elif data["tts"] == "clear":
            self._before = data["before"]
            self._queue = [(number, pcm) for number, pcm in self._queue if number >= self._before]
            self._stop()
            self._play_next()
        elif data["tts"] == "hello" and self.asks and not knew and data.get("next", 1) > 1:
            self.lose_touch()

    def _report(self, **report: str) -> None:
        self._to_server.append(json.dumps(report).encode())
        asyncio.get_running_loop().call_later(0.01, self._reported)

    def _reported(self) -> None:
        report = self._to_server.popleft()
        if self.closed is None:
            self.leg.on_message(report, True)

    # as FreeSWITCH
    def _stop(self) -> None:
        self._generation += 1
        self._current = None
        if self.heard and self.heard[-1][1] > now_ms():
            from_ms, to_ms, pcm = self.heard.pop()
            to_ms = min(to_ms, now_ms() + BREAK_MS)
            self.heard.append((from_ms, to_ms, pcm[: round((to_ms - from_ms) * 8)]))

    def _play_next(self) -> None:
        if self._current is not None or not self._queue:
            return
        number, pcm = self._queue.pop(0)
        self._current = number
        generation = self._generation
        loop = asyncio.get_running_loop()

        def begins() -> None:
            if generation != self._generation or self._current != number:
                return
            self.heard.append((now_ms(), now_ms() + len(pcm) / 8, pcm))
            if self.is_alive:
                self._report(esl="playing", file=str(number))
            loop.call_later(len(pcm) / 8000, ends)

        def ends() -> None:
            if generation == self._generation and self._current == number:
                self._report(esl="played", file=str(number))
                self._current = None
                self._play_next()

        busy_ms = max(0.0, self.heard[-1][1] - now_ms()) if self.heard else 0.0
        loop.call_later((busy_ms + BEGIN_MS) / 1000, begins)

    @property
    def text(self) -> str:
        """The letters that were heard, of all files in order."""
        return " ".join(self.text_of(pcm) for _, _, pcm in self.heard)

    @staticmethod
    def text_of(pcm: np.ndarray) -> str:
        return _read(pcm.tobytes())


@lru_cache
def _read(pcm: bytes) -> str:
    return recognise(np.frombuffer(pcm, np.int16), "abdefgioBDFG", sample_rate_hz=8000).strip()


def words(*sentences: str) -> str:
    return " ".join(sentences).replace(".", "").strip()


class RecordingBot(RecordingLeg):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[float, Any]] = []

    def encode(self, message: Any) -> tuple[bytes, bool]:
        self.told.append((now_ms(), message))
        return super().encode(message)

    @property
    def marks(self) -> list[tuple[str, str]]:
        return [(mark.name, mark.state) for mark in self.got(m.MarkReached)]

    def when(self, name: str) -> float:
        (at_ms,) = [at_ms for at_ms, told in self.told if isinstance(told, m.MarkReached) and told.name == name]
        return at_ms

    @property
    def done_ms(self) -> float:
        (at_ms,) = [at_ms for at_ms, told in self.told if isinstance(told, m.Done)]
        return at_ms


Act = Callable[[Call, RecordingBot, Telephone], Awaitable[None]]


class Melody:
    """Ten seconds of noise, as a sound that is in memory."""

    pcm = np.random.default_rng(4).integers(-9_000, 9_000, 80_000).astype(np.int16)

    async def load(self, rate_hz: int) -> Sound:
        return new_sound(self.pcm.astype(np.float32), 8_000).at(rate_hz)


def play(act: Act, *, asks: bool = True, **engine: Any) -> tuple[RecordingBot, Telephone]:
    async def main() -> tuple[RecordingBot, Telephone]:
        phone = Telephone(asks)
        session = Session(
            SessionSettings(call="c1", first_clause_chars=0), virtual_loop.clock(), media=False,
            find_sound=lambda name: Melody(),
        )  # fmt: skip
        call = Call(session, Catalog([FakeEngine(**engine)]), "freeswitch")
        task = asyncio.create_task(call.run())
        await call.started.wait()
        bot = RecordingBot()
        call.join_bot(bot, bot.encode, READY)
        phone.leg.on_message(b"{}", True)
        phone.leg.attach(call, phone.leg.started.result())
        phone.left.add_done_callback(lambda _left: call.media_left(phone.leg, phone.leg.reason))
        await act(call, bot, phone)
        call.finish(1000, "over")
        await task
        return bot, phone

    return virtual_loop.run(main())


def say(call: Call, *sentences: str) -> None:
    """One turn, with a mark behind each sentence."""
    for n, sentence in enumerate(sentences, 1):
        call.receive(m.Text(sentence + " ", "a"))
        call.receive(m.Mark(str(n), "a"))
    call.receive(m.End("a"))


async def until_done(bot: RecordingBot, within_ms: float = 40_000) -> None:
    end_ms = now_ms() + within_ms
    while not bot.got(m.Done):
        assert now_ms() < end_ms, bot.told
        await asyncio.sleep(0.05)


def ends_of(phone: Telephone, sentence: str) -> float:
    """When the last word of the sentence was heard for the first time."""
    for from_ms, _, pcm in phone.heard:
        at_char = phone.text_of(pcm).find(words(sentence))
        if at_char >= 0:
            return from_ms + (at_char + len(sentence)) * 60
    raise AssertionError(f"never heard whole: {sentence}; heard: {phone.text}")


# --------------------------------------------------------------------- sounds


def test_a_loop_is_heard_in_files_and_the_text_behind_it_soon_after_its_stop() -> None:
    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        call.receive(m.Play("melody", loop=True))
        say(call, SENTENCES[0])
        await at(20_000)
        assert bot.marks == []
        call.receive(m.Play(stop=True))
        await at(45_000)

    bot, phone = play(act)
    *sounds, speech = phone.heard
    assert [len(pcm) for _, _, pcm in sounds] == [64_000] * 3
    for n, (_, _, pcm) in enumerate(sounds):
        expected = np.take(Melody.pcm, np.arange(64_000 * n, 64_000 * (n + 1)), mode="wrap")
        assert np.array_equal(pcm[40:-40], expected[40:-40])
    gaps_ms = [later[0] - earlier[1] for earlier, later in itertools.pairwise(phone.heard)]
    assert max(gaps_ms) <= BEGIN_MS + 20, "a file follows the file before it"
    assert phone.text_of(speech[2]) == words(SENTENCES[0])
    assert bot.when("1") >= ends_of(phone, SENTENCES[0]) - 1
    assert [done.turn for done in bot.got(m.Done)] == ["t1", "a"]


def test_a_sound_until_speech_gives_way_within_some_seconds() -> None:
    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        call.receive(m.Play("melody", loop="until_speech"))
        await at(5_000)
        say(call, SENTENCES[0])
        await at(20_000)

    bot, phone = play(act)
    assert phone.heard[-1][0] <= 9_000 and phone.text_of(phone.heard[-1][2]) == words(SENTENCES[0])
    assert bot.marks == [("1", "played")]


def test_a_clear_stops_a_loop_of_files_at_once() -> None:
    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        call.receive(m.Play("melody", loop=True))
        await at(5_000)
        call.receive(m.Clear())
        await at(12_000)

    bot, phone = play(act)
    assert phone.heard[-1][1] <= 5_000 + 20 + BREAK_MS + 1 and len(phone.heard) == 1
    (cleared,) = bot.got(m.Cleared)
    assert abs(cleared.heard_ms - (5_000 - BEGIN_MS - 20)) <= 60


def test_no_sound_is_played_under_the_speech_of_files() -> None:
    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        call.receive(m.Play("melody", under=True))
        say(call, SENTENCES[0])
        await until_done(bot)

    bot, phone = play(act)
    assert [warning.code for warning in bot.got(m.WarningEvent)] == ["bed_not_supported"]
    assert phone.text == words(SENTENCES[0])


# ------------------------------------------------------------------- restarts


@pytest.mark.parametrize("asks", [True, False], ids=["the bridge asks", "an older bridge plays on"])
@pytest.mark.parametrize("away_ms", [300, 1500, 3000])
@pytest.mark.parametrize(
    ("n_sentences", "killed_ms"), [(1, 50), (1, 1200), (4, 50), (4, 1200), (4, 4000), (4, 8000)]
)
def test_a_bridge_that_was_killed_loses_no_sentence_and_no_mark_lies(
    asks: bool, away_ms: float, killed_ms: float, n_sentences: int
) -> None:
    sentences = SENTENCES[:n_sentences]
    assert killed_ms < n_sentences * SENTENCE_MS, "within the turn"

    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        say(call, *sentences)
        await at(killed_ms)
        phone.kill()
        await at(killed_ms + away_ms)
        phone.restart()
        await until_done(bot)

    bot, phone = play(act, asks=asks)
    assert bot.marks == [(str(n), "played") for n in range(1, n_sentences + 1)]
    for n, sentence in enumerate(sentences, 1):
        assert bot.when(str(n)) >= ends_of(phone, sentence) - 1, f"mark {n} came before sentence {n} was heard"
    order = [phone.text.rindex(words(sentence)) for sentence in sentences]
    assert order == sorted(order), "they were heard in order"
    (done,) = bot.got(m.Done)
    assert n_sentences * SENTENCE_MS <= done.audio_ms <= n_sentences * (SENTENCE_MS + 20)
    assert bot.done_ms >= phone.heard[-1][1], "done comes behind the last sound"


def test_a_bridge_that_is_killed_twice_and_one_that_is_disconnected_twice() -> None:
    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        say(call, *SENTENCES)
        for ms in (1200, 2500):
            await at(ms)
            phone.kill()
            await at(ms + 500)
            phone.restart()
        for ms in (9000, 9300):
            await at(ms)
            phone.lose_touch()
        await until_done(bot)

    bot, phone = play(act)
    assert bot.marks == [(str(n), "played") for n in range(1, 5)]
    for n, sentence in enumerate(SENTENCES, 1):
        assert bot.when(str(n)) >= ends_of(phone, sentence) - 1


def test_a_bridge_that_never_comes_back_ends_the_call_and_no_mark_was_played() -> None:
    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        say(call, *SENTENCES)
        await at(1200)
        phone.kill()
        await phone.left
        assert 2700 + 10_000 <= now_ms() <= 2700 + 10_300

    bot, phone = play(act)
    assert bot.marks == [(str(n), "cleared") for n in range(1, 5)]
    (cleared,) = bot.got(m.Cleared)
    assert cleared.heard_text == SENTENCES[0] and cleared.heard_ms <= SENTENCE_MS + 20
    assert [hangup.reason for hangup in bot.got(m.Hangup)] == ["playback_failed"]
    asked = [word.get("next") for word in phone.words if word["tts"] == "hello"]
    assert asked[:3] == [None, 3, 3], "it is asked whether it knows the call"


def test_a_file_that_is_lost_again_and_again_ends_the_call() -> None:
    """A peer that requests it forever must not keep the call open forever."""

    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        say(call, *SENTENCES[:2])
        for n in range(1, 8):
            await at(1000 * n)
            if phone.closed is None:
                phone.lose_touch()
        assert phone.closed is not None

    bot, phone = play(act)
    assert bot.marks == [("1", "cleared"), ("2", "cleared")]
    assert [hangup.reason for hangup in bot.got(m.Hangup)] == ["playback_failed"]
    assert len(phone.heard) == 5


# ------------------------------------------------------------------ heard text


def heard_ms(phone: Telephone) -> float:
    """How much of the turn was heard by now without a gap."""
    whole_ms = -(-(SENTENCE_MS + 15) // 20) * 20
    prefix_ms = 0.0
    for from_ms, to_ms, pcm in phone.heard:
        first = next((letter for letter in phone.text_of(pcm) if letter != " "), "B")
        start_ms = whole_ms * "BDFG".index(first)
        if start_ms <= prefix_ms + 40:  # frames end behind their sentence
            prefix_ms = max(prefix_ms, start_ms + min(to_ms, now_ms()) - from_ms)
    return prefix_ms


@pytest.mark.parametrize("cleared_ms", [1300, 1800, 2600, 4600, 5700, 8000, 9100])
@pytest.mark.parametrize(
    ("fault", "asks"), [("killed", True), ("killed", False), ("lost touch", True), ("none", True)]
)
def test_a_clear_reports_what_was_heard_after_any_fault(cleared_ms: float, fault: str, asks: bool) -> None:
    """Also while a sentence is played for the second time, and inside a file of several sentences."""
    truth: list[float] = []

    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        say(call, *SENTENCES)
        await at(1200)
        if fault == "killed":
            phone.kill()
            await at(min(cleared_ms - 50, 4200))
            phone.restart()
        elif fault == "lost touch":
            phone.lose_touch()
        await at(cleared_ms)
        call.receive(m.Clear())
        truth.append(heard_ms(phone))
        await asyncio.sleep(3)
        assert not phone.leg._files and heard_ms(phone) <= truth[0] + 60, "silent within the time of a break"

    bot, phone = play(act, asks=asks)
    (cleared,) = bot.got(m.Cleared)
    assert truth[0] - 40 <= cleared.heard_ms <= truth[0] + 20
    n_heard = sum(cleared.heard_text.count(sentence) for sentence in SENTENCES)
    assert all(words(sentence) in phone.text for sentence in SENTENCES[:n_heard])
    played = [name for name, state in bot.marks if state == "played"]
    assert [name for name, _ in bot.marks] == ["1", "2", "3", "4"] and len(played) in (n_heard, n_heard - 1)


# ------------------------------------------------------------- a call without a fault


@pytest.mark.parametrize("speed", [math.inf, 2.0], ids=["an engine with time to spare", "one at twice real time"])
def test_a_turn_is_heard_in_few_files_from_the_first_sentence_on(speed: float) -> None:
    """The first sentence is sent alone, and no file comes later than the end of the file before."""

    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        say(call, *SENTENCES)
        await until_done(bot)

    bot, phone = play(act, speed=speed)
    assert phone.text.split() == words(*SENTENCES).split()
    made_ms = SENTENCE_MS / speed
    assert phone.heard[0][0] <= made_ms + 100 + BEGIN_MS
    assert phone.text_of(phone.heard[0][2]) == words(SENTENCES[0])
    gaps_ms = [begin[0] - end[1] for end, begin in zip(phone.heard, phone.heard[1:], strict=False)]
    assert gaps_ms == [BEGIN_MS] * len(gaps_ms), "only the time that FreeSWITCH takes to begin"
    assert len(phone.heard) == (2 if speed == math.inf else 3)
    for n, sentence in enumerate(SENTENCES, 1):
        assert bot.when(str(n)) == pytest.approx(ends_of(phone, sentence), abs=45)


STEPS = st.lists(
    st.tuples(st.sampled_from(["kill", "restart", "lose touch", "clear", "say", "wait"]), st.integers(20, 3000)),
    min_size=1,
    max_size=9,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(STEPS, st.booleans(), st.sampled_from([math.inf, 1.2]))
def test_whatever_happens_to_the_bridge_every_mark_ends_once_and_truly(
    steps: list[tuple[str, int]], asks: bool, speed: float
) -> None:
    """With an engine that is little faster than real time each sentence is a file."""
    said: list[str] = []
    heard_at_clear: list[float] = []

    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        say(call, *SENTENCES)
        for what, ms in steps:
            await asyncio.sleep(ms / 1000)
            if phone.closed is not None:
                return
            if what == "kill":
                phone.kill()
            elif what == "restart" and not phone.is_alive:
                phone.restart()
            elif what == "lose touch" and phone.is_alive:
                phone.lose_touch()
            elif what == "clear":
                call.receive(m.Clear())
                heard_at_clear.append(heard_ms(phone))
            elif what == "say":
                said.append(f"b{len(said)}")
                call.receive(m.Text("Gogo.", said[-1]))
                call.receive(m.Mark(said[-1], said[-1]))
                call.receive(m.End(said[-1]))
        await asyncio.wait([phone.left], timeout=60)

    bot, phone = play(act, asks=asks, speed=speed)
    ends = [told for _, told in bot.told if isinstance(told, m.Done | m.Cleared)]
    assert sorted(end.turn for end in ends) == ["a", *said], "one end each"
    assert sorted(name for name, _ in bot.marks) == ["1", "2", "3", "4", *said], "one fate each"
    (end,) = [end for end in ends if end.turn == "a"]
    for n, sentence in enumerate(SENTENCES, 1):
        if (str(n), "played") in bot.marks:
            assert bot.when(str(n)) >= ends_of(phone, sentence) - 1, f"mark {n} came before sentence {n} was heard"
        else:
            assert isinstance(end, m.Cleared)
    if isinstance(end, m.Cleared) and end.reason == "clear":
        assert end.heard_ms <= heard_at_clear[0] + 30, "a frame between two sentences, and what reports need"


# ------------------------------------------------------------- pauses


@pytest.mark.parametrize("paused_ms", [700, 1_700, 3_300, 5_900])
@pytest.mark.parametrize("step_back_ms", [0, 250])
def test_a_pause_stops_the_file_and_speech_goes_on_at_the_word(paused_ms: float, step_back_ms: int) -> None:
    """Behind the pause the telephone hears the rest of the sentence from the place that the bot was told, exactly."""
    n_files: list[int] = []

    async def act(call: Call, bot: RecordingBot, phone: Telephone) -> None:
        call.receive(m.Configure(step_back_ms=step_back_ms))
        say(call, *SENTENCES)
        await at(paused_ms)
        call.receive(m.PauseSpeech())
        await asyncio.sleep(2)
        assert phone.heard[-1][1] <= paused_ms + BREAK_MS + 80, "silent within the time of a break"
        n_files.append(len(phone.heard))
        call.receive(m.ResumeSpeech())
        await until_done(bot)

    bot, phone = play(act)
    (paused,), (resumed,) = bot.got(m.Paused), bot.got(m.Resumed)
    assert resumed.from_ms <= paused.heard_ms - step_back_ms and paused.basis == "marks"
    assert [name for name, state in bot.marks if state == "played"] == ["1", "2", "3", "4"]
    assert [told.start_ms for told in bot.got(m.SentenceSpoken)] == [n * SENTENCE_MS for n in range(4)]
    speech = [soxr.resample(render(each).astype(np.float32), 24_000, 8_000, "HQ") for each in SENTENCES]
    wanted = np.concatenate(speech)[resumed.from_ms * 8 :]
    heard = np.concatenate([pcm for _, _, pcm in phone.heard[n_files[0] :]]).astype(float)
    n_silent = resumed.from_ms % 20 * 8
    assert np.abs(heard[:n_silent]).max(initial=0) == 0, "nothing before the place is heard again"
    said = heard[n_silent:]
    assert len(said) == len(wanted) and np.corrcoef(said, wanted)[0, 1] > 0.98
