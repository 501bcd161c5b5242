"""Where a Korean sentence without a full stop ends: behind a polite ending, before a blank."""

from __future__ import annotations

import re

from telephony_tts.text.lookahead import View

_INSIDE = "(?<=[가-힣0-9])"
"""A word is more than its ending: "네요" alone does not count."""
_WITH_B = "[" + "".join(chr(code) for code in range(0xAC00 + 17, 0xD7A4, 28)) + "]"
_WITH_N = "[" + "".join(chr(code) for code in range(0xAC00 + 4, 0xD7A4, 28)) + "]"
_ENDINGS = (
    f"{_WITH_B}니다|{_WITH_B}니까|{_WITH_B}시오|{_INSIDE}(?:[세어아여해워와려줘돼봐져셔겨켜춰둬예에네군까데게래나대든만이고]요|죠|지요)|"
    f"{_WITH_N}가요|(?<=[야어아] )[해돼봐줘]요"
)
_DECORATION = r"[~～^♡♥;=]|[ㅎㅋㅠㅜ]|:\)"
_ADDRESSED = "(?:고객|선생|회원|손|[가-힣]{3})님"
_ENDED = re.compile(rf"(?:{_ENDINGS})(?:~? {_ADDRESSED})?(?: ?(?:{_DECORATION})+)?$")
_QUOTES = re.compile(r"(?:이?라[고는며]|하[고며는](?![가-힣])|하셨|하시|버튼|메뉴|문구|캠페인|노래|코너|멘트)")
_DECORATES = frozenset("ㅎㅋㅠㅜ^~～:;=♡♥")
_N_HEAD, _N_WORD = 24, 8


def ends_without_stop(view: View, place: int) -> bool:
    """Whether a Korean sentence ends before the blank at `place`.

    It goes on if the listener is addressed next (감사합니다 고객님) or what was said is only quoted. Raises Starved
    if the next word has not been fed yet.
    """
    head = view.text[max(view.start, place - _N_HEAD) : place]
    if not _ENDED.search(head):
        return False
    following = place
    while following - place < _N_WORD and view.at(following) == " ":
        following += 1
    if view.at(following) in _DECORATES:
        return not view.at(following)
    end = following
    while end - following < _N_WORD and "가" <= view.at(end) <= "힣":
        end += 1
    word = view.text[following:end]
    return not (re.fullmatch(_ADDRESSED, word) or _QUOTES.match(word))
