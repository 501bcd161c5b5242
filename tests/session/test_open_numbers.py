"""A number in a sentence that the bot still writes: spoken in words, heard and marked in the bot's text."""

from __future__ import annotations

from dataclasses import replace

from test_open_sentences import SETTINGS, fed, given_to_engine, new_world, write

from telephony_tts.text.normalizer import normalize
from telephony_tts.wire import messages as m


def test_a_number_is_spoken_once_the_words_behind_it_make_its_reading_certain() -> None:
    world = new_world()
    write(world, "Your parcel with the number 4711 was handed to", pause_ms=10)
    assert given_to_engine(world) == ["Your parcel with"]
    write(world, " the", pause_ms=10)
    assert given_to_engine(world) == ["Your parcel with the number four seven one one was"]
    assert fed(world)[-1] == (" the number four seven one one was", False)
    write(world, " courier and will be there by 5 pm.", pause_ms=10, last=True)
    world.run(20_000)
    assert given_to_engine(world) == [
        "Your parcel with the number four seven one one was handed to the courier and will be there by five PM.",
    ]  # fmt: skip
    (spoken,) = world.of(m.SentenceSpoken)
    assert spoken.text == "Your parcel with the number 4711 was handed to the courier and will be there by 5 pm."


def test_a_sentence_may_begin_with_a_number() -> None:
    world = new_world()
    write(world, "4829 people were on the way to")
    assert [(u.text, u.more is not None) for _, u in world.submitted] == [
        ("four thousand eight hundred twenty nine people were", True),
    ]  # fmt: skip
    write(world, " me.", last=True)
    world.run(9000)
    assert given_to_engine(world) == [normalize("4829 people were on the way to me.")]


def test_a_number_in_mandarin_is_spoken_while_its_sentence_is_written() -> None:
    world = new_world()
    text = "您的快递单号是4711，已经交给快递员，预计明天下午5点前送到。"
    for char in text[:19]:
        world.send(m.Text(char))
        world.run(20)
    assert given_to_engine(world) == ["您的快递单号是四七幺幺，已经交"]
    for char in text[19:]:
        world.send(m.Text(char))
        world.run(20)
    world.send(m.End())
    world.run(9000)
    assert given_to_engine(world) == ["您的快递单号是四七幺幺，已经交给快递员，预计明天下午五点前送到。"]


def test_the_heard_part_of_a_number_in_an_open_sentence_is_a_place_in_the_bots_text() -> None:
    text = "I see that **all** of the $1,250.40 were sent to you and"
    for heard_ms, heard in [
        (100 * len("I see that all"), "I see that **all**"),
        (100 * len("I see that all of the one thousand"), "I see that **all** of the"),
        (100 * len("I see that all of the one thousand two hundred fifty dollars and forty cents"),
         "I see that **all** of the $1,250.40"),
        (100 * len("I see that all of the one thousand two hundred fifty dollars and forty cents were"),
         "I see that **all** of the $1,250.40 were"),
    ]:  # fmt: skip
        world = new_world(replace(SETTINGS, text_timeout_ms=60_000), ms_per_char=100)
        write(world, text)
        world.run(heard_ms + 40)
        world.send(m.Clear())
        (cleared,) = world.of(m.Cleared)
        assert cleared.heard_text == heard
        assert cleared.heard_text + cleared.unheard_text == text


def test_a_mark_behind_a_number_in_an_open_sentence_is_reported_at_its_word() -> None:
    world = new_world(replace(SETTINGS, text_timeout_ms=60_000), ms_per_char=20)
    write(world, "I see that the 4829")
    world.send(m.Mark("m1"))
    write(world, " of them were sent to you and")
    reached_ms = 20 * len("I see that the four thousand eight hundred twenty nine")
    world.run(reached_ms - 60)
    assert world.of(m.MarkReached) == []
    world.run(140)
    assert [mark.name for mark in world.of(m.MarkReached)] == ["m1"]


def test_a_control_token_reaches_the_engine_in_an_open_sentence() -> None:
    world = new_world(replace(SETTINGS, control_tokens=("[breath]",)))
    write(world, "[breath] I have 4 of [breath] them for you right here")
    assert given_to_engine(world) == ["[breath] I have four of [breath] them for"]
    write(world, " now.", last=True)
    world.run(9000)
    assert given_to_engine(world) == ["[breath] I have four of [breath] them for you right here now."]
