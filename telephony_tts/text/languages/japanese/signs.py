"""What is said for a sign in Japanese text that belongs to no number."""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text.languages.japanese.evidence import HAN
from telephony_tts.text.languages.japanese.money import CURRENCIES
from telephony_tts.text.languages.japanese.numbers import Kanji
from telephony_tts.text.languages.japanese.units import UNIT_CHARACTERS, UNITS
from telephony_tts.text.patterns import vulgar_fraction
from telephony_tts.text.reader import Shape

_WORDS = {
    "&": "アンド", "@": "アット", "%": "パーセント", "=": "イコール", "+": "プラス", "±": "プラスマイナス",
    "×": "かける", "÷": "わる", "≠": "ノットイコール", "≈": "約", "№": "ナンバー", "²": "の二乗", "³": "の三乗",
    "¢": "セント", "§": "第", "√": "ルート", "○": "丸", "◎": "二重丸", "〒": "郵便番号",
    "㈱": "株式会社", "㈲": "有限会社", "㈹": "代表", "℡": "電話",
    "≒": "約", "≦": "以上", "≤": "以上", "≧": "以下", "≥": "以下",
}  # fmt: skip
"""≦ and ≧ stand here behind the number that they bound: 18歳≦."""
SIGN_CHARACTERS = "".join(_WORDS) + "−–〜▲△±<>※*①-⑳㉑-㉟Ⅰ-ⅻ⅐-⅞¼½¾㌀-㍗㍻-㍿"
_WAVES, _DASHES = "~∼〜", "-–—"
_COUNTED = re.compile(rf"[0-9A-Za-z{HAN}ァ-ヶー%℃)）]\s?$")
_GOES_ON = re.compile(rf"\s?(?:[0-9A-Za-z{HAN}ァ-ヶ¥$]|[-+▲][0-9])")
_LEFT_OPEN = re.compile("[0-9円時分日月年%名人歳才個本枚階番回件号代度℃]$")
_OPEN_END = re.compile(r"(?:で|の|に|は|と|、|。|[(（]|$)")
_BEFORE_DASH = re.compile(r"(?:[0-9時分日月円%曜F)）]|[0-9 ][AaPp]\.?[Mm]\.?)\s?$")
_KEY = re.compile(r"\s?(?:\*?[0-9を、と」』)）]|キー|ボタン|印|マーク|の)")
_KEY_NAMED = re.compile("(?:シャープ|米印|こめ印|アスタリスク|スター|井桁)[(（「]$")


_RATED = re.compile(f"(?:{'|'.join(set(CURRENCIES.values()))}|[名人件個回錠本枚分滴拍歩杯食台]|未満|以[上下内])$")
_PER = re.compile(f"(?:{'|'.join(map(re.escape, sorted(UNITS, key=len, reverse=True)))})(?![A-Za-z])")


def say_sign(shape: Shape, style: Kanji) -> str | None:
    """The word of the sign; "" if it is silent, None if it stays as it is written."""
    char, left, right = shape.written, shape.left, shape.right
    if char in _WAVES or char in _DASHES:
        return _say_stroke(shape, char)
    if char in "▲△±":
        return "プラスマイナス" if char == "±" else "マイナス" if re.match("[¥$€£]?[0-9]", right) else ""
    if char in "*#" and _KEY_NAMED.search(left):
        return ""
    if char in "*※":
        return "米印" if _KEY.match(right) else ""
    if char == "#":
        return "シャープ" if _KEY.match(right) or not right[:1].isalpha() else "ハッシュタグ"
    if char == "_":
        return "アンダーバー" if _is_latin(left[-1:]) and _is_latin(right[:1]) else ""
    if char == "/":
        return _say_slash(shape)
    if char == "×" and not (_COUNTED.search(left) and right[:1].isalnum()):
        return "バツ"
    if char in "<>":
        is_between = re.search(r"[0-9分円%]\s?$", left) and re.match(r"\s?[0-9]", right)
        return {"<": "小なり", ">": "大なり"}[char] if is_between else ""
    if char in CURRENCIES:
        return "" if char == "\\" else CURRENCIES[char]
    if char in UNIT_CHARACTERS:
        return UNITS[char]
    if char in _WORDS:
        return _WORDS[char]
    if char in "^|{}`":
        return ""
    return _say_number_sign(shape, style)


def _say_stroke(shape: Shape, char: str) -> str | None:
    """A wave or a dash: from one to another, the next part of an address, minus, or nothing."""
    left, right = shape.left, shape.right
    if char not in _WAVES:
        if re.search("(?:丁目|番地?|号|条)$", left) and right[:1].isdigit():
            return "の"
        if left.endswith("F") and re.match("[0-9]{1,4}番", right):
            return "の"  # 2F-12番
        unit = shape.before.unit if shape.before is not None else None
        is_behind_amount = _BEFORE_DASH.search(left) or (unit is not None and unit.end() == shape.start)
        if not is_behind_amount or not re.match(r"\s?[¥$€£]?[0-9]", right):
            return "マイナス" if re.match("[¥$€£]?[0-9]", right) and not _is_latin(left[-1:]) else None
        return "から"
    if not _COUNTED.search(left):
        return ""
    is_open = _LEFT_OPEN.search(left) and _OPEN_END.match(right)
    return "から" if is_open or _GOES_ON.match(right) else ""


def _is_latin(char: str) -> bool:
    return char.isascii() and char.isalnum()


def _say_slash(shape: Shape) -> str:
    """For each: 円/kWh, 円/月, 円/人. Between two prices or two blanks it is a pause."""
    if shape.left[-1:] == shape.right[:1] == " " or re.match("[¥$€£][0-9]", shape.right):
        return "、"
    is_measured = shape.before is not None and shape.before.end == shape.start
    if not is_measured and not _RATED.search(shape.left):
        return ""
    if unit := _PER.match(shape.right):
        shape.end += unit.end()
        return "毎" + UNITS[unit.group()].removesuffix("間")  # 毎時
    if re.match("[月年日週]|時(?!間)", shape.right):
        return "毎"
    if shape.left[-1:] in "回滴拍" and re.match("[分秒](?![間の])|時間", shape.right):
        return "毎"
    if shape.right[:1].isdigit():
        return "、"
    return "、一" if re.match("(?:[人回件個本枚組台名室泊分秒]|時間)(?![ぁ-ん]?[一-鿿])", shape.right) else ""


def _say_number_sign(shape: Shape, style: Kanji) -> str | None:
    """A number in one character: ⑫, Ⅲ, ½; or letters in one: ㌔."""
    char = shape.written
    if "㌀" <= char <= "㏿":
        return unicodedata.normalize("NFKC", char)
    try:
        value = unicodedata.numeric(char)
    except ValueError:
        return None
    if char in "〇零" or HAN[0] <= char <= "鿿":
        return None
    if value == int(value):
        is_listed = "①" <= char <= "⑳" and re.match("[①-⑳0-9¥$]", shape.right)
        is_next = "①" <= char <= "⑳" and re.search(r"[①-⑳][^、。]*[^\W、。]$", shape.left)  # ①8〜12時②14〜16時
        return ("、" if is_next else "") + style.amount(str(int(value))) + ("、" if is_listed else "")
    fraction = vulgar_fraction(value)
    if fraction is None:
        return None
    whole = "と" if shape.left[-1:].isdigit() else ""
    return f"{whole}{style.amount(str(fraction[1]))}分の{style.amount(str(fraction[0]))}"
