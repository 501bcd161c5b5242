"""The language of a call's text: how it is detected, and when it changes."""

from __future__ import annotations

import pytest
from world import World

from telephony_tts.session.effects import FeedText
from telephony_tts.session.language import CallLanguage
from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m

TOLD = {"Guten Tag, wie geht es Ihnen?": "de", "How do you do today?": "en", "Comment allez-vous ?": "fr"}
GERMAN, ENGLISH, FRENCH = TOLD


def test_a_sentence_that_does_not_show_its_language_has_that_of_the_one_before() -> None:
    call = CallLanguage(TOLD.get)
    said = [call.of(text, None) for text in ("OK.", GERMAN, "OK.", "Anna Schmidt.", FRENCH, "OK.", ENGLISH, "OK.")]
    assert said[0] == ("en", "letters")
    assert said[1:] == [(language, "words") for language in ("de", "de", "de", "fr", "fr", "en", "en")]


def test_the_language_that_the_bot_names_decides_without_the_detector() -> None:
    def never(sentence: str) -> str | None:
        raise AssertionError(f"asked about {sentence!r}")

    call = CallLanguage(never)
    assert call.of(GERMAN, "pt-BR") == ("pt-BR", "bot")


def test_the_detector_is_not_asked_about_other_letters_and_they_change_nothing() -> None:
    call = CallLanguage({GERMAN: "de", "你好": "xx", "привет": "xx"}.get)
    assert call.of(GERMAN, None) == ("de", "words")
    assert call.of("你好", None) == ("zh", "letters")
    assert call.of("привет", None) == ("und", "letters")
    assert call.of("OK.", None) == ("de", "words")


@pytest.mark.parametrize("text", [GERMAN, "OK.", ""])
def test_without_a_detector_latin_text_counts_as_english(text: str) -> None:
    assert CallLanguage().of(text, None) == ("en", "letters")


JAPANESE, CHINESE = ("ja", "letters"), ("zh", "letters")


def test_han_letters_and_marks_that_japanese_has_too_are_japanese_in_a_japanese_call() -> None:
    call = CallLanguage()
    assert call.of("2,200円。", None) == CHINESE, "nothing was said before"
    assert call.of("お待たせしました。", None) == JAPANESE
    for text in ("合計12,500円。", "電話番号03-1234-5678。", "482913。", "営業時間 9:00 開始", "髙橋様。", "OK。"):
        assert call.of(text, None) == JAPANESE, text
    for text in ("您的验证码是482913。", "总共12,500元。", "你好。"):
        assert call.of("はい。", None) == JAPANESE
        assert call.of(text, None) == CHINESE, text
    assert call.of("合計12,500円。", None) == CHINESE, "the call is Chinese now"


def test_marks_alone_do_not_change_the_language() -> None:
    call = CallLanguage()
    assert [call.of(text, None)[0] for text in ("482913。", "Hello.", "482913。", "합계입니다.", "482913。")] == [
        "zh", "en", "en", "ko", "ko"
    ]  # fmt: skip


# -------------------------------------------------------------------- in a session


def utterances(world: World) -> list[tuple[str, str | None, str]]:
    return [(utterance.text, utterance.lang, utterance.lang_source) for _, utterance in world.submitted]


def test_each_sentence_goes_to_the_engine_in_its_own_language() -> None:
    """The German voice reads "14:30" itself; English rules would have made words of it."""
    world = World(detect_language={"Sie kommen um 14:30 Uhr.": "de"}.get)
    world.send(m.Say("Sie kommen um 14:30 Uhr. OK. 2 Uhr."))
    world.run(8000)
    assert utterances(world) == [
        ("Sie kommen um 14:30 Uhr.", "de", "words"),
        ("OK.", "de", "words"),
        ("2 Uhr.", "de", "words"),
    ]


@pytest.mark.parametrize("text_mode", ["sentence", "interleaved"])
def test_a_sentence_without_kana_is_read_in_japanese(text_mode: str) -> None:
    world = World(SessionSettings(first_clause_chars=0, text_mode=text_mode))
    pieces = ("ご確認ください。", "合計金額12,500円、担当者名確認済、本人限定受取郵便", "発送手続完了済", "、以上。")
    for piece in pieces:
        world.send(m.Text(piece))
        world.run(100 if piece[0] == "ご" else 2000)
    world.send(m.End())
    world.run(20_000)
    said = [text for text, *language in utterances(world) if language == list(JAPANESE)]
    fed = "".join(effect.text for effect in world.log if isinstance(effect, FeedText))
    assert "".join(said[1:]) + fed == "合計金額一万二千五百円、担当者名確認済、本人限定受取郵便発送手続完了済、以上。"


def test_a_later_turn_begins_in_the_language_of_the_call() -> None:
    world = World(detect_language=TOLD.get)
    world.send(m.Say(GERMAN))
    world.send(m.Say("OK."))
    world.send(m.Say(ENGLISH))
    world.run(9000)
    assert [lang for _, lang, _ in utterances(world)] == ["de", "de", "en"]


def test_the_detector_is_not_used_after_a_lang() -> None:
    asked: list[str] = []

    def detect(sentence: str) -> str | None:
        asked.append(sentence)
        return TOLD.get(sentence)

    world = World(detect_language=detect)
    world.send(m.Say(GERMAN))
    world.send(m.Configure(lang="en"))
    world.send(m.Say(FRENCH))
    world.run(9000)
    assert utterances(world) == [(GERMAN, "de", "words"), (FRENCH, "en", "bot")]
    assert asked == [GERMAN]


def test_an_open_sentence_is_in_the_language_of_its_beginning_to_its_end() -> None:
    def detect(sentence: str) -> str | None:
        return "de" if sentence.startswith("Ihre Nummer lautet") else None

    settings = SessionSettings(first_clause_chars=0, text_mode="interleaved")
    world = World(settings, detect_language=detect)
    for piece in ("Ihre Nummer lautet jetzt", " also 25", " und nicht 30", " wie bisher."):
        world.send(m.Text(piece))
        world.run(100)
    world.send(m.End())
    world.run(8000)
    ((_, utterance),) = world.submitted
    assert (utterance.lang, utterance.lang_source, utterance.more is not None) == ("de", "words", True)
    fed = "".join(effect.text for effect in world.log if isinstance(effect, FeedText))
    assert utterance.text + fed == "Ihre Nummer lautet jetzt also 25 und nicht 30 wie bisher."


def test_the_language_of_an_open_sentence_counts_for_the_next_one() -> None:
    def detect(sentence: str) -> str | None:
        return "de" if "nicht" in sentence else None

    settings = SessionSettings(first_clause_chars=0, text_mode="interleaved")
    world = World(settings, detect_language=detect)
    for piece in ("Anna kommt heute wohl noch einmal", " aber dann", " sicher nicht.", " OK."):
        world.send(m.Text(piece))
        world.run(100)
    world.send(m.End())
    world.run(8000)
    assert [(lang, source) for _, lang, source in utterances(world)] == [("en", "letters"), ("de", "words")]


def test_a_voice_that_reads_digits_is_given_them() -> None:
    """Open JTalk reads "10分" right and "十分" wrong."""
    settings = SessionSettings(first_clause_chars=0, voice="alpha")
    for reads, spoken in ((True, "10分、コードヨンゼロナナイチです。"), (False, "十分、コード四ゼロ七一です。")):
        asked = {("alpha", "ja"): reads}
        world = World(settings, reads_digits=lambda *voice_and_language, asked=asked: asked[voice_and_language])
        world.send(m.Say("10分、コード4071です。"))
        world.run(8000)
        assert utterances(world) == [(spoken, "ja", "letters")]


@pytest.mark.parametrize("text_mode", ["sentence", "interleaved"])
def test_a_voice_without_the_language_gets_numbers_in_english(text_mode: str) -> None:
    """Pinned: German rules leave digits to the voice, and later English sentences lost their numbers too."""
    german, english = "Sie kommen um 14:30 Uhr.", "It is $42.50."
    asked: list[tuple[str | None, str]] = []

    def has_voice(voice: str | None, language: str) -> bool:
        asked.append((voice, language))
        return False

    settings = SessionSettings(first_clause_chars=0, text_mode=text_mode, voice="anna")
    world = World(settings, detect_language={german: "de"}.get, has_voice=has_voice)
    for text in (german, english):
        world.send(m.Say(text))
        world.run(8000)
    assert utterances(world) == [
        ("Sie kommen um fourteen thirty Uhr.", "de", "words"),
        ("It is forty two dollars and fifty cents.", "de", "words"),
    ]
    assert set(asked) == {("anna", "de")}
