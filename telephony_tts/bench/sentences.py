"""Sentences of a bot, and texts of about a given length made of them."""

from __future__ import annotations

SECONDS_PER_WORD, SECONDS_PER_HAN = 0.36, 0.23
"""Of an English word and of a Chinese character in a bot's speech: about 165 words a minute."""

ENGLISH = (
    "Thank you for calling.",
    "Your parcel left our warehouse this morning.",
    "It should be with you tomorrow before noon.",
    "I can see that your last payment arrived on Friday.",
    "Would you like me to send the invoice to your address once more?",
    "Please have your customer number ready.",
    "The technician will call you half an hour before he comes.",
    "Of course, let me look at that for you.",
    "Your contract runs until the end of next year and can be changed at any time.",
    "Is there anything else I can help you with today?",
    "I am sorry that you had to wait so long.",
    "We have opened a ticket, and a colleague will take care of it at once.",
)
CHINESE = (
    "您好，感谢您的来电。",
    "您的包裹今天早上已经从仓库发出。",
    "预计明天中午之前可以送到您的手中。",
    "我看到您上个月的费用已经付清了。",
    "请问您需要我把账单再发一次到您的邮箱吗？",
    "请您稍等，我马上帮您查询一下。",
    "工作人员上门之前会提前半小时给您打电话。",
    "非常抱歉，让您久等了。",
    "您的合同到明年年底结束，随时都可以修改。",
    "请问还有什么可以帮您的吗？",
)


def spoken_seconds(text: str) -> float:
    """The approximate length of a text made of these sentences."""
    n_han = sum("\u4e00" <= letter <= "\u9fff" for letter in text)
    return n_han * SECONDS_PER_HAN if n_han else len(text.split()) * SECONDS_PER_WORD


def real_text(index: int, seconds: float) -> str:
    """Sentences of about `seconds`, different for each turn: English for even turns, Chinese for odd ones."""
    sentences, joint = (ENGLISH, " ") if index % 2 == 0 else (CHINESE, "")
    text = ""
    for n in range(index // 2, index // 2 + 1000):
        sentence = sentences[n % len(sentences)]
        longer = f"{text}{joint}{sentence}" if text else sentence
        if text and spoken_seconds(longer) - seconds > seconds - spoken_seconds(text):
            break
        text = longer
    return text
