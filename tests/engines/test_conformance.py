from conformance import Subject, check_engine

from telephony_tts.engines.espeak import EspeakEngine
from telephony_tts.engines.fake import FakeEngine
from telephony_tts.engines.hibari import HibariEngine

ESPEAK = Subject(min_correlation=0.98)
"""Not bit-exact: 1,500 renderings with 29 voices had up to four variants of a text, with a correlation of 0.987."""


def test_fake_keeps_the_contract() -> None:
    check_engine(FakeEngine, Subject(max_s_of_endless_word=601.0))


def test_hibari_keeps_the_contract() -> None:
    check_engine(HibariEngine)


def test_espeak_keeps_the_contract() -> None:
    check_engine(EspeakEngine, ESPEAK)


def test_espeak_keeps_the_contract_with_one_worker() -> None:
    check_engine(lambda: EspeakEngine(n_workers=1), ESPEAK)
