import pytest
from conformance import Subject, assert_keeps_the_contract

from telephony_tts.engines.espeak.engine import EspeakEngine
from telephony_tts.engines.fake.engine import FakeEngine
from telephony_tts.engines.hibari.engine import HibariEngine
from telephony_tts.engines.kokoro import engine as kokoro
from telephony_tts.engines.kokoro.engine import KokoroEngine

pytestmark = pytest.mark.slow

ESPEAK = Subject(min_correlation=0.98)
"""Not bit-exact: 1,500 renderings with 29 voices had up to four variants of a text, with a correlation of 0.987."""


KOKORO = Subject(sentence="您好，请问有什么可以帮您？", neighbour="您的包裹周二已经发出。", n_most=6)


def test_fake_keeps_the_contract() -> None:
    assert_keeps_the_contract(FakeEngine, Subject(max_s_of_endless_word=601.0))
    assert_keeps_the_contract(lambda: FakeEngine(slots=3), Subject(max_s_of_endless_word=601.0))


def test_hibari_keeps_the_contract() -> None:
    assert_keeps_the_contract(HibariEngine)


def test_espeak_keeps_the_contract() -> None:
    assert_keeps_the_contract(EspeakEngine, ESPEAK)


def test_espeak_keeps_the_contract_with_one_worker() -> None:
    assert_keeps_the_contract(lambda: EspeakEngine(n_workers=1), ESPEAK)


def test_kokoro_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of constant speed. While it is three times slower than at the load, parts follow the clock, and a
    text is not cut in the same places each time."""
    monkeypatch.setattr(kokoro._Speed, "is_busy", False)
    assert_keeps_the_contract(KokoroEngine, KOKORO)
