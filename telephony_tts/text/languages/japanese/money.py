"""The Japanese names of currencies."""

from __future__ import annotations

import re

from telephony_tts.text.languages.japanese.numbers import Kanji
from telephony_tts.text.patterns import NUMBER

_TABLE = """
円 ¥ JPY \\|ドル $ USD|米ドル US$|ユーロ € EUR|ポンド £ GBP|ウォン ₩ KRW|ルピー ₹ INR|元 CNY RMB CN¥|バーツ ฿ THB
オーストラリアドル A$ AUD|カナダドル C$ CAD|香港ドル HK$ HKD|シンガポールドル S$ SGD|ニュージーランドドル NZ$ NZD
台湾ドル NT$ TWD|スイスフラン CHF|ドン ₫ VND|ルーブル ₽ RUB|ペソ ₱ PHP|リンギット MYR|ルピア IDR|パタカ MOP
"""
CURRENCIES = {
    written: name
    for entry in _TABLE.strip().replace("\n", "|").split("|")
    for name, *all_written in [entry.split(" ")]
    for written in all_written
}
_ANY = "|".join(re.escape(written) for written in sorted(CURRENCIES, key=len, reverse=True))
CURRENCY = rf"(?:{_ANY})(?![A-Za-z])"
_SCALE = "[百千万億兆]{1,4}"
MONEY = re.compile(
    rf"(?P<currency>{_ANY}) ?(?P<minus>-)?(?P<number>(?>{NUMBER}))(?: ?[~〜–-] ?(?P<last>{NUMBER}))?"
    rf"(?P<scale>{_SCALE})?(?![A-Za-z0-9円])(?:-(?![0-9¥$€£]))?"
    rf"|(?P<number_first>(?>{NUMBER}))(?P<scale_between>{_SCALE})? ?(?P<currency_behind>{CURRENCY})"
)


def money(found: re.Match[str], style: Kanji) -> str:
    """What is said for a match of `MONEY`: $42.50 -> "四十二点五ゼロドル"."""
    name = CURRENCIES[found["currency"] or found["currency_behind"]]
    said = style.amount(found["number"] or found["number_first"])
    if found["last"]:
        said += "から" + style.amount(found["last"])
    return ("マイナス" if found["minus"] else "") + said + (found["scale"] or found["scale_between"] or "") + name
