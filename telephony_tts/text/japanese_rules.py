"""The Japanese rules for the common forms of numbers, amounts, dates, times and telephone numbers.

Two kinds of voices need two kinds of spoken text. A voice that reads characters gets all numbers in kanji. A voice that
reads kana by a dictionary reads counters, dates and amounts itself, and better than from kanji: "10分" is
ジュップン, "十分" may be ジューブン. It is given these in digits, and codes in katakana. What is neither, both get in
the same words:

| written | in kanji (`JAPANESE`) | for a reader of digits (`JAPANESE_DIGITS`) |
|---|---|---|
| 3名、1,980円、10分 | 三名、千九百八十円、十分 | 3名、1980円、10分 |
| 03-1234-5678 | ゼロ三一二三四五六七八 | ゼロサン、イチニーサンヨン、ゴーロクナナハチ |
| コード4071 | コード四ゼロ七一 | コードヨンゼロナナイチ |
| 11/30, 9:00, ¥550, -5℃ | 十一月三十日, 九時, 五百五十円, マイナス五度 | 11月30日, 9時, 550円, マイナス5度 |
| 9時〜18時, 月〜金 | 九時から十八時, 月曜から金曜 | 9時から18時, 月曜から金曜 |
"""

from __future__ import annotations

import re
import unicodedata

from telephony_tts.text import addresses
from telephony_tts.text.patterns import NUMBER
from telephony_tts.text.scanner import Language, Rule, after, before
from telephony_tts.text.units import CURRENCIES

_DIGITS = "零一二三四五六七八九"
_TELEPHONE_DIGITS = ["ゼロ", "一", "二", "三", "四", "五", "六", "七", "八", "九"]
_CURRENCIES = {
    "¥": "円", "JPY": "円", "$": "ドル", "USD": "ドル", "€": "ユーロ", "EUR": "ユーロ", "£": "ポンド", "GBP": "ポンド",
    "₩": "ウォン", "KRW": "ウォン", "₹": "ルピー", "INR": "ルピー", "CNY": "元", "RMB": "元",
    "AUD": "オーストラリアドル", "CAD": "カナダドル", "HKD": "香港ドル", "SGD": "シンガポールドル",
    "NZD": "ニュージーランドドル", "TWD": "台湾ドル", "THB": "バーツ", "CHF": "スイスフラン",
}  # fmt: skip
_UNITS = {
    "kg": "キログラム", "g": "グラム",
    "km": "キロメートル", "m": "メートル", "cm": "センチメートル", "mm": "ミリメートル",
    "km/h": "キロメートル毎時", "L": "リットル", "ml": "ミリリットル", "mL": "ミリリットル", "°C": "度", "℃": "度",
    "KB": "キロバイト", "MB": "メガバイト", "GB": "ギガバイト", "TB": "テラバイト",
    "m²": "平方メートル", "㎡": "平方メートル", "m2": "平方メートル", "m³": "立方メートル", "m3": "立方メートル",
    "%": "パーセント", "°": "度", "kWh": "キロワット時", "W": "ワット", "kW": "キロワット", "V": "ボルト",
    "A": "アンペア", "mAh": "ミリアンペア時", "Hz": "ヘルツ", "MHz": "メガヘルツ", "GHz": "ギガヘルツ",
    "kcal": "キロカロリー",
    "Mbps": "メガビーピーエス", "Gbps": "ギガビーピーエス", "t": "トン", "㎏": "キログラム", "㎞": "キロメートル",
    "㎝": "センチメートル", "㎜": "ミリメートル", "ℓ": "リットル", "dL": "デシリットル",
    "mg": "ミリグラム", "h": "時間",
}  # fmt: skip
_KANA_DIGITS = ("ゼロ", "イチ", "ニー", "サン", "ヨン", "ゴー", "ロク", "ナナ", "ハチ", "キュー")
_UNIT = "(?:" + "|".join(re.escape(u) for u in sorted(_UNITS, key=len, reverse=True)) + ")(?![A-Za-z0-9])"


def cardinal(number: int) -> str:
    """`number` >= 0 in kanji: 1100 -> "千百", 10000 -> "一万"."""
    if number == 0:
        return "零"
    if number >= 10**16:
        return "".join(_DIGITS[int(c)] for c in str(number))
    said = ""
    for scale, name in ((10**12, "兆"), (10**8, "億"), (10**4, "万"), (1, "")):
        group = number // scale % 10000
        if not group:
            continue
        for unit, unit_name in ((1000, "千"), (100, "百"), (10, "十")):
            digit = group // unit % 10
            if digit:
                said += ("" if digit == 1 else _DIGITS[digit]) + unit_name
        said += (_DIGITS[group % 10] if group % 10 else "") + name
    return said



class _InKanji:
    """Numbers in kanji."""

    pause = ""
    """Between the groups of a code."""
    point = "点"

    def number(self, text: str) -> str:
        """The amount. A leading zero, or more than 16 digits, makes it a code."""
        whole, _, fraction = text.replace(",", "").partition(".")
        if len(whole) > 16 or (len(whole) > 1 and whole[0] == "0"):
            return self.code(whole)
        return self.amount(whole, fraction)

    def amount(self, whole: str, fraction: str) -> str:
        said = cardinal(int(whole))
        return f"{said}点{''.join(_DIGITS[int(c)] for c in fraction)}" if fraction else said

    def code(self, text: str) -> str:
        """Digit by digit, group by group. Other characters than digits end a group."""
        groups = ("".join(self.digit(int(c)) for c in group) for group in re.findall("[0-9]+", text))
        return self.pause.join(groups)

    def digit(self, digit: int) -> str:
        return _TELEPHONE_DIGITS[digit]

    def letters(self, text: str) -> str:
        return text

    def day(self, text: str) -> str:
        """A day of the week by its first character."""
        return text + "曜"


class _InDigits(_InKanji):
    """Amounts in digits, for a voice that reads them by a dictionary; codes in katakana."""

    pause = "、"
    point = "テン"

    def amount(self, whole: str, fraction: str) -> str:
        return f"{int(whole)}.{fraction}" if fraction else str(int(whole))

    def digit(self, digit: int) -> str:
        return _KANA_DIGITS[digit]

    def letters(self, text: str) -> str:
        return " ".join(text.upper())

    def day(self, text: str) -> str:
        return dict(zip("月火水木金土日", ("ゲツ", "カ", "スイ", "モク", "キン", "ド", "ニチ"), strict=True))[text]


_NAMES_A_CODE = re.compile(
    r"(?:番号|コード|暗証|パスワード|郵便|電話|口座|末尾|下[0-9四六]+(?:桁|けた)|内線|ナンバー|型番|品番|ID|PIN|OTP|IMEI)"
    r"[はがのをもで:：「『【\"\s、。]{0,3}$|[0-9]桁(?:の数字|の番号)?[、\s]$|番号を.{2,7}。$"
)
_COUNTER = re.compile(
    r"\s?(?:桁|けた|ケタ|文字|分|秒|時|日|週|[かヶケカ]月|月|年|円|万|億|回|件|個|つ|本|枚|人|名|種|台|以上|%|パー)"
)
_DAY_FOLLOWS = re.compile(r"\s?(?:に|まで|迄|から|より|以降|[〜~]|午[前後]|[0-9]{1,2}[時:])")
_DAYS = "[月火水木金土日]"
_WEEKDAY_IN_BRACKETS = rf"(?:\s?[(（](?P<weekday>{_DAYS})(?:曜日?)?[)）])?"
_ERAS = {"令和": "令和", "平成": "平成", "昭和": "昭和", "R": "令和", "H": "平成", "S": "昭和"}
_SIGNS = {
    "&": "アンド", "@": "アット", "+": "プラス", "=": "イコール", "-": "マイナス", "%": "パーセント", "−": "マイナス",
    "▲": "マイナス", "△": "マイナス", "±": "プラスマイナス", "×": "かける", "÷": "わる", "<": "小なり", ">": "大なり",
    "№": "ナンバー", "#": "シャープ", "※": "米印", "*": "米印",
}  # fmt: skip


class _Say:
    """The rules in one of the two kinds."""

    def __init__(self, style: _InKanji) -> None:
        self._style = style
        self._number, self._code = style.number, style.code

    def rules(self) -> tuple[Rule, ...]:
        words = addresses.AddressWords(
            at="アットマーク",
            signs={".": "ドット", "/": "スラッシュ", "-": "ハイフン", "_": "アンダーバー", ":": "コロン"},
            digits=self._code,
            space=" ",
        )
        return (
            *addresses.address_rules(words),
            (addresses.IP, self._ip),
            (re.compile(_ERA_DATE), self._era_date),
            (re.compile(_DATE), self._date),
            (addresses.VERSION, self._version),
            (re.compile(rf"(?P<currency>[$€£¥₩]|{_CODES}){_MONEY}"), self._money),
            (re.compile(_TIME), self._time),
            (re.compile(rf"(?P<hour>1[0-2]|0?[1-9])(?P<minute>(?!))?\s?(?P<meridiem>{_MERIDIEM})"), self._time),
            (re.compile(rf"(?P<meridiem>{_MERIDIEM})\s?(?=[0-9]{{1,2}}時)"), self._meridiem),
            (re.compile(_DAY), self._day),
            (re.compile(r"[0-9]{1,3}(?:-[0-9]{1,4}){1,4}(?![0-9-])"), self._address),
            (re.compile(_TELEPHONE), self._telephone),
            (re.compile(r"(?P<key>[#*])\s?(?P<digits>[0-9]+)"), self._key),
            (re.compile(r"[0-9]{2,400}(?:[- ][0-9]{2,8}){0,3}(?![0-9]|[.,][0-9])"), self._named_code),
            (re.compile(rf"(?P<number>{NUMBER})\s?(?P<unit>{_UNIT})"), self._quantity),
            (re.compile(r"(?P<below>B)?(?P<number>[1-9][0-9]?)F(?![A-Za-z0-9])"), self._floor),
            (re.compile(r"[A-Za-z0-9]{1,40}(?:-[A-Za-z0-9]{1,40}){0,5}(?![A-Za-z0-9])"), self._mixed_code),
            (re.compile(rf"(?P<number>{NUMBER})\s?[-–−~〜]\s?(?=[-−]?[0-9])"), self._from),
            (re.compile(r"(?P<first>[0-9]{1,3})[:：](?P<last>[0-9]{1,2})(?![0-9:：])"), self._ratio),
            (re.compile(r"0(?P<number>[0-9])(?=[時分秒月日])"), lambda match: self._number(match["number"])),
            (re.compile(r"(?P<whole>[0-9]{1,4})?(?P<fraction>[½⅓⅔¼¾])"), self._fraction),
            (re.compile(NUMBER), lambda match: self._number(match.group())),
            (re.compile("[①-⑳]"), self._circled),
            (re.compile(rf"{_DAYS}(?:[・、/]{_DAYS})+(?![^\W\d_はがにをのとで祝])"), self._days),
            (re.compile(_DAY_RANGE), lambda match: f"{match['first']}曜から{match['last']}曜"),
            (re.compile(_FROM), lambda match: "から"),
            (re.compile(r"(?<![A-Za-z0-9])[-−▲△±](?=[¥$€£]?[0-9])|[&@+=%×÷№#※]|[*](?=[0-9]|を|キー)"
                        r"|(?<=[0-9分円%])\s?[<>]\s?(?=[0-9])"),
             self._sign),
            (re.compile(r"(?<![^\W_])No\.\s?(?=[0-9])"), lambda match: "ナンバー"),
        )  # fmt: skip

    def _telephone(self, match: re.Match[str]) -> str | None:
        written = match.group()
        if re.fullmatch("[0-9]{2,4}-[0-9]{4}", written) and _COUNTER.match(match.string, match.end()):
            return None  # 1000-2000円
        name = "郵便番号" if written[0] == "〒" else "プラス" if written[0] == "+" else ""
        return name + self._code(written)

    def _named_code(self, match: re.Match[str]) -> str | None:
        end = after(match, 4)
        if len(match.group()) < 7 and not _NAMES_A_CODE.search(before(match, 16)):
            return None
        if _COUNTER.match(end) or (end.startswith("番") and len(match.group()) == 2):
            return None
        return self._code(match.group())

    def _mixed_code(self, match: re.Match[str]) -> str | None:
        """Letters and digits in one word: "AB-1204K"."""
        written = match.group()
        if not re.search("[0-9]", written) or not re.fullmatch(r"[A-Z0-9-]+|[A-Za-z]?[0-9-]+[A-Za-z]?", written):
            return None
        parts = re.findall("[A-Za-z]+|[0-9]+", written)
        n_digits = sum(map(len, parts)) - sum(len(part) for part in parts if part.isalpha())
        if all(part.isdigit() for part in parts) or (n_digits < 3 and "-" not in written):
            return None  # "4K" and "A4" are words
        said = (self._code(part) if part.isdigit() else self._style.letters(part) for part in parts)
        return (" " if self._style.pause else "").join(said)

    def _address(self, match: re.Match[str]) -> str | None:
        """Block and house behind the name of a place."""
        place = before(match, 1)
        if not re.match("[\u3400-\u9fffヶケ々]", place) or place in "約計号番は定":
            return None
        groups = match.group().split("-")
        if len(groups) == 2 and _COUNTER.match(match.string, match.end()):
            return None
        if len(match.group()) > 10 or any(group[0] == "0" for group in groups):
            return None  # a telephone number
        return "の".join(map(self._number, groups))

    def _era_date(self, match: re.Match[str]) -> str:
        return _ERAS[match["era"]] + self._days_of(match["year"], match["month"], match["day"])

    def _date(self, match: re.Match[str]) -> str | None:
        if not (1 <= int(match["month"]) <= 12 and 1 <= int(match["day"]) <= 31):
            return None
        return self._days_of(match["year"], match["month"], match["day"]) + _weekday(match)

    def _days_of(self, year: str, month: str, day: str) -> str:
        return f"{self._plain(year)}年{self._plain(month)}月{self._plain(day)}日"

    def _plain(self, digits: str) -> str:
        return self._number(str(int(digits)))

    def _day(self, match: re.Match[str]) -> str | None:
        """A day such as 11/30, or a fraction such as 1/3: the words around it decide where both may be meant."""
        month, day = int(match["month"]), int(match["day"])
        if re.search("有効期限.?$", before(match, 5)):
            return f"{self._plain(match['day'])}年{self._plain(match['month'])}月"
        is_day = match["weekday"] or day > 10 or month >= day or _DAY_FOLLOWS.match(after(match, 5))
        if not is_day and not re.search("(?:から|[〜~]|締切は|期限は)$", before(match, 3)):
            return f"{self._plain(match['day'])}分の{self._plain(match['month'])}"
        return f"{self._plain(match['month'])}月{self._plain(match['day'])}日" + _weekday(match)

    def _time(self, match: re.Match[str]) -> str | None:
        groups = match.groupdict()
        written = groups["meridiem"] or groups.get("before")
        part = {"a": "午前", "p": "午後"}.get((written or "")[:1].lower(), "")
        said = f"{part}{self._plain(match['hour'])}時"
        for name, unit in (("minute", "分"), ("second", "秒")):
            if (value := groups.get(name)) and (int(value) or name == "second"):
                said += self._plain(value) + unit
        return said

    def _meridiem(self, match: re.Match[str]) -> str:
        return "午前" if match["meridiem"][0] in "aA" else "午後"

    def _money(self, match: re.Match[str]) -> str:
        currency = match["currency"].upper()
        name = _CURRENCIES.get(currency, CURRENCIES[currency][4])
        return self._number(match["number"]) + (match["scale"] or "") + name

    def _quantity(self, match: re.Match[str]) -> str:
        return self._number(match["number"]) + _UNITS[match["unit"]]

    def _floor(self, match: re.Match[str]) -> str | None:
        return ("地下" if match["below"] else "") + self._number(match["number"]) + "階"

    def _from(self, match: re.Match[str]) -> str:
        return self._number(match["number"]) + "から"

    def _ratio(self, match: re.Match[str]) -> str:
        return f"{self._number(match['first'])}対{self._number(match['last'])}"

    def _key(self, match: re.Match[str]) -> str:
        return _SIGNS[match["key"]] + self._code(match["digits"])

    def _fraction(self, match: re.Match[str]) -> str:
        above, below = unicodedata.normalize("NFKC", match["fraction"]).split("⁄")
        said = f"{self._number(below)}分の{self._number(above)}"
        return f"{self._number(match['whole'])}と{said}" if match["whole"] else said

    def _sign(self, match: re.Match[str]) -> str | None:
        sign = match.group().strip()
        if sign == "※" and not re.match("を|キー|[0-9]", after(match, 2)):
            return None  # a note
        return _SIGNS[sign]

    def _circled(self, match: re.Match[str]) -> str:
        follows = re.match("[①-⑳]", after(match, 1))
        return self._number(str(ord(match.group()) - ord("①") + 1)) + ("、" if follows else "")

    def _days(self, match: re.Match[str]) -> str:
        return "、".join(map(self._style.day, re.findall(_DAYS, match.group())))

    def _ip(self, match: re.Match[str]) -> str:
        return self._style.point.join(self._code(part) for part in re.split("[.:]", match.group()))

    def _version(self, match: re.Match[str]) -> str:
        parts = (match["v_parts"] or match["parts"]).split(".")
        return (match["v"] or "") + self._style.point.join(self._number(p) for p in parts)


def _weekday(match: re.Match[str]) -> str:
    return f"{match['weekday']}曜日" if match["weekday"] else ""


_MONEY = rf"\s?(?P<number>{NUMBER})(?P<scale>[万億兆])?"
_CODES = "|".join(c for c in CURRENCIES if c.isalpha())
_MERIDIEM = r"[aApP]\.?[mM]\.?(?![A-Za-z])"
_DATE = (
    r"(?P<year>[12][0-9]{3})(?P<sep>[-/.])(?P<month>[01]?[0-9])(?P=sep)(?P<day>[0-3]?[0-9])日?(?![0-9])"
    + _WEEKDAY_IN_BRACKETS
)
_ERA_DATE = (
    r"(?P<era>令和|平成|昭和|(?<![A-Za-z0-9])[RHS])\s?(?P<year>[1-9][0-9]?)[./](?P<month>1[0-2]|0?[1-9])[./]"
    r"(?P<day>3[01]|[12][0-9]|0?[1-9])(?![0-9./])"
)
_DAY = (
    r"(?<![0-9/.])(?P<month>1[0-2]|0?[1-9])/(?P<day>3[01]|[12][0-9]|0?[1-9])(?![0-9/.%])" + _WEEKDAY_IN_BRACKETS
)
_TIME = (
    rf"(?:(?P<before>{_MERIDIEM})\s?)?(?P<hour>[01]?[0-9]|2[0-4])[:：](?P<minute>[0-5][0-9])"
    rf"(?:[:：](?P<second>[0-5][0-9]))?(?![0-9:：])(?:\s?(?P<meridiem>{_MERIDIEM}))?"
)
_DAY_RANGE = (
    rf"(?<![^\W\d_はがにをのと毎])(?P<first>{_DAYS})\s?[-–~〜]\s?(?P<last>{_DAYS})(?![^\W\d_はがにをのとで祝])"
)
_FROM = (
    r"(?<=[0-9A-Za-z\u3400-\u9fff%℃)）])\s?[〜~]\s?(?=[0-9A-Za-z\u3400-\u9fff¥$])"
    r"|(?<=[0-9円時分日月年%])[〜~](?=[でのにはと、。]|$)|(?<=[時分日月円0-9階名])\s?[-–]\s?(?=[0-9])"
)
_TELEPHONE = (
    r"\+[0-9]{1,3}(?:[ -][0-9]{1,5}){2,5}(?![0-9])|\+[0-9]{8,15}(?![0-9])"
    r"|\(0[0-9]{1,4}\)\s?[0-9]{1,4}-[0-9]{3,4}(?![0-9])|0[0-9]{1,4}\([0-9]{1,4}\)[0-9]{3,4}(?![0-9])"
    r"|0[0-9]{1,4}(?:[-–ー・の][0-9]{1,5}){2,6}(?![0-9])|[0-9]{1,5}(?:-[0-9]{1,5}){2,4}(?![0-9])|0[0-9]{4,400}(?![0-9])"
    r"|〒?\s?[0-9]{3,4}-[0-9]{4}(?![0-9-])"
)


def _kanji_value(written: str) -> int | None:
    """The number in kanji below ten thousand; None if it is none: "一一"."""
    digit = "[二三四五六七八九]?"
    match = re.fullmatch(f"(?:({digit})千)?(?:({digit})百)?(?:({digit})十)?(一|{digit})", written)
    if match is None:
        return None
    value = 0
    for said, scale in zip(match.groups(), (1000, 100, 10, 1), strict=True):
        if said or (said is not None and scale > 1):
            value += scale * (_DIGITS.index(said) if said else 1)
    return value


def _say_kanji(match: re.Match[str]) -> str | None:
    value = _kanji_value(match.group())
    return None if value is None else str(value)


def _say_kanji_day(match: re.Match[str]) -> str | None:
    month, day = _kanji_value(match["month"]), _kanji_value(match["day"])
    if month is None or day is None or not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{month}月{day}日"


def _say_kanji_code(match: re.Match[str]) -> str | None:
    """A code that is already in kanji, as a voice that reads characters would be given it."""
    plain = match.group().replace("ゼロ", "〇")
    return "".join(_KANA_DIGITS["〇一二三四五六七八九".index(char)] for char in plain) if "〇" in plain else None


def _say_some_days(match: re.Match[str]) -> str | None:
    """2〜3日 is "two, three days"."""
    first, last = int(match["first"]), int(match["last"])
    short = dict(enumerate(("ニ", "サン", "ヨン", "ゴ", "ロク", "ナナ", "ハチ", "ク"), 2))
    return f"{'イチ' if first == 1 else short[first]}{short[last]}ニチ" if last == first + 1 else None


_TRIGGER = (
    rf"[0-9$€£¥₩&@+=%−–〜~▲△±×÷<>№#※*①-⑳½⅓⅔¼¾-]|〒(?=\s?[0-9])|\((?=0[0-9])|(?:令和|平成|昭和)(?=[0-9])"
    rf"|{_DAYS}(?=[・、/〜~–-])|(?<![A-Za-z0-9])(?:(?:{_CODES})\s?[0-9]|[vVRHS][0-9]|[aApP]\.?[mM]\.?\s?[0-9]|No\."
    r"|[A-Za-z]{1,40}[@./:_-][A-Za-z0-9/]|[A-Z]{1,40}[0-9])"
)
JAPANESE = Language(trigger=re.compile(f"(?P<any>{_TRIGGER})"), rules={"any": _Say(_InKanji()).rules()})
_KANJI_NUMBER = "[一二三四五六七八九十百千]{1,9}"
_MINUTES_FOLLOW = "間|ほど|後|前|以内|程度|待ち|くらい|、[一二三四五六七八九十]+分"
JAPANESE_DIGITS = Language(
    trigger=re.compile(rf"(?P<any>{_TRIGGER})|(?P<kanji>[〇一二三四五六七八九十百千]|ゼロ)"),
    rules={
        "any": (
            (re.compile("(?P<first>[1-8])[〜~](?P<last>[2-9])日(?!間?まで)"), _say_some_days),
            *_Say(_InDigits()).rules(),
        ),
        "kanji": (
            (re.compile("(?:ゼロ|[〇一二三四五六七八九]){4,40}"), _say_kanji_code),
            (re.compile(f"(?P<month>{_KANJI_NUMBER})/(?P<day>{_KANJI_NUMBER})"), _say_kanji_day),
            (re.compile(f"{_KANJI_NUMBER}(?=号室|時|円|名様|件|人様|(?:分(?:{_MINUTES_FOLLOW})))"), _say_kanji),
            (re.compile(f"(?<=時|約){_KANJI_NUMBER}(?=分)|(?<=分、){_KANJI_NUMBER}(?=分)"), _say_kanji),
        ),
    },
)
