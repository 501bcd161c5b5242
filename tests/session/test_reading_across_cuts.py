"""A text is cut at a clause, a line, a flush, a tag, or while the bot is slow, and is read as one text."""

from __future__ import annotations

import pytest
from world import World

from telephony_tts.session.settings import SessionSettings
from telephony_tts.wire import messages as m


def spoken(world: World) -> list[str]:
    return [utterance.text.strip() for _, utterance in world.submitted if utterance.insert is None]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("Your verification code is: 482913.", "four eight two nine one three."),
        ("Here is your one-time passcode:\n\n**482913**", "four eight two nine one three"),
        ("您好王先生，您本次登录的验证码是：482913，五分钟内有效。", "四八二九幺三，五分钟内有效。"),
        ("<speak>Your code is <break time='300ms'/>482913.</speak>", "four eight two nine one three."),
        ("<speak>Your code is <prosody rate='slow'>4821</prosody></speak>", "four eight two one"),
        ("Your order is at the door\n\n4821 people have ordered it.", "four thousand eight hundred twenty one people"),
        ("That was your code. 4821 people have one.", "four thousand eight hundred twenty one people have one."),
    ],
)
def test_what_stands_before_a_cut_says_how_a_number_is_read(text: str, last: str) -> None:
    world = World(SessionSettings())
    world.send(m.Say(text))
    world.run(12_000)
    assert len(spoken(world)) == 2 and spoken(world)[-1].startswith(last)


def test_a_number_after_a_flush_is_read_as_the_text_before_says() -> None:
    world = World()
    world.send(m.Text("Your PIN is", "a"))
    world.send(m.Flush("a"))
    world.send(m.Text(" 4821. Keep it.", "a"))
    world.send(m.End("a"))
    world.run(8000)
    assert spoken(world) == ["Your PIN is", "four eight two one.", "Keep it."]


def test_the_same_while_text_goes_to_the_engine_as_it_is_written() -> None:
    world = World(SessionSettings(text_mode="interleaved"))
    world.send(m.Text("Your PIN is", "a"))
    world.send(m.Flush("a"))
    for piece in (" 4821", " and you", " should keep it", " for the next", " calls that you make."):
        world.send(m.Text(piece, "a"))
        world.run(100)
    world.send(m.End("a"))
    world.run(8000)
    assert "four eight two one and you should keep it" in " ".join(spoken(world))


def test_what_was_said_as_a_code_stays_a_code_for_the_call() -> None:
    world = World()
    world.send(m.Say("내선 123번으로 연결합니다."))
    world.send(m.Say("123이 맞으신가요? 123명이 기다립니다."))
    world.run(12_000)
    assert spoken(world) == ["내선 일이삼번으로 연결합니다.", "일이삼이 맞으신가요?", "백이십삼명이 기다립니다."]
    other = World()
    other.send(m.Say("123이 맞으신가요?"))
    other.run(8000)
    assert spoken(other) == ["백이십삼이 맞으신가요?"]


def test_a_sentence_without_letters_is_in_the_language_of_the_one_before() -> None:
    world = World()
    world.send(m.Say("您好，您的手机号是：\n13800138000"))
    world.send(m.Say("400-820-8820"))
    world.send(m.Say("The time is\n3:30"))
    world.send(m.Say("12:45"))
    world.run(30_000)
    assert spoken(world) == [
        "您好，您的手机号是：", "幺三八零零幺三八零零零", "四零零，八二零，八八二零", "The time is", "three thirty",
        "twelve forty five",
    ]  # fmt: skip
    assert [utterance.lang for _, utterance in world.submitted] == ["zh", "zh", "zh", "en", "en", "en"]


@pytest.mark.parametrize(
    ("begun", "rest", "heard"),
    [
        ("您的手机号138 0013", " 8000。对吗？", "幺三八，零零幺三，八零零零。"),
        ("The code is 12", " 34 56. Is that right?", "one two, three four, five six."),
        ("The card is 4242 4242", " 4242 4242.", ", ".join(["four two four two"] * 4) + "."),
    ],
)
def test_a_number_in_groups_waits_for_a_slow_bot(begun: str, rest: str, heard: str) -> None:
    world = World()
    world.send(m.Text(begun, "a"))
    world.run(1500)
    assert not any(digit in "".join(spoken(world)) for digit in ("幺", "one", "four")), "half a number is not spoken"
    world.send(m.Text(rest, "a", last=True))
    world.run(8000)
    assert heard in spoken(world)
