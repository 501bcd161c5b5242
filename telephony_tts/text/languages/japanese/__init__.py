"""How numbers, codes and signs are read in Japanese text: what the reader needs to know, and what is said."""

from __future__ import annotations

import re
from functools import partial

from telephony_tts.text import addresses, reader
from telephony_tts.text.languages.japanese import dates
from telephony_tts.text.languages.japanese.evidence import EVIDENCE, HAN
from telephony_tts.text.languages.japanese.money import CURRENCIES, MONEY, money
from telephony_tts.text.languages.japanese.numbers import DIGITS, KANJI, Kanji, kanji_value
from telephony_tts.text.languages.japanese.signs import SIGN_CHARACTERS, say_sign
from telephony_tts.text.languages.japanese.units import PART, PRICED, SCALED_UNIT, UNIT, UNIT_CHARACTERS, UNITS
from telephony_tts.text.patterns import NUMBER
from telephony_tts.text.reader import Shape

_PART = re.compile(r"[A-Za-z]+|[0-9]+|_")
_CAR = re.compile("車|ナンバー|プレート|登録番号|駐車|レンタカー")
_NAMES = {
    "3G": "スリージー", "4G": "フォージー", "5G": "ファイブジー", "4K": "フォーケー", "8K": "ハチケー",
    "2D": "ツーディー", "3D": "スリーディー", "1st": "ファースト", "2nd": "セカンド",
    "3rd": "サード", "4th": "フォース", "5th": "フィフス", "10th": "テンス",
    "24/7": "二十四時間年中無休", "2FA": "ツーエフエー",
}  # fmt: skip
_IN_USE = re.compile(
    r"(?:利用|使用|消費|通信|残り?|空き|進捗|達成|完了|データ)(?:状況|済み?|量|額|率)?[はがで:：]?\s?$"
)
_CHOICE = re.compile("から(?:お選び|選)|の(?:いずれ|どちら|中から|うち|[0-9]つ|プラン)|プラン|コース|または")
_SEATS = re.compile(r"(?:搭乗口|ゲート|座席|お?席|シート)(?:番号)?[はがの:：]?\s?$")
_END = re.compile("[で、。)）のにと]|$")
_MONTH = re.compile("[0-9〇一二三四五六七八九十]月$")
_BOUNDS = {"<": "未満", ">": "超", "≦": "以下", "≤": "以下", "≧": "以上", "≥": "以上"}


class _Say:
    """What is said for each kind, in one of the two kinds of numbers."""

    def __init__(self, style: Kanji) -> None:
        self._style = style
        self._amount, self._code = style.amount, style.code
        words = addresses.AddressWords(
            at="アットマーク",
            signs={".": "ドット", "/": "スラッシュ", "-": "ハイフン", "_": "アンダーバー", ":": "コロン"},
            digits=style.code,
            space=" ",
        )
        self._addresses = addresses.address_rules(words)

    def tables(self, of_style: reader.Forms, trigger: str) -> reader.Tables:
        style = self._style
        say: dict[str, reader.Say] = {
            "email": partial(self._address, 0),
            "url": partial(self._address, 1),
            "mask": self._mask,
            "keys": lambda shape: "".join(
                {"*": "米印", "#": "シャープ"}.get(part, "") or self._code(part)
                for part in re.findall("[0-9]+|[*#]", shape.written)
            ),
            "code": self._say_code,
            "telephone": self._say_code,
            "amount": self._say_amount,
            "range": self._range,
            "size": lambda shape: self._last_with_unit(re.split(r" ?[x×X*] ?", shape.written), "かける", shape),
            "clock": self._clock,
            "hour": self._clock,
            "duration": lambda shape: dates.duration([*shape.groups, "0"][:3], style),
            "seat": self._seat,
            "sides": self._sides,
            "bare_decimal": lambda shape: self._amount("0" + shape.written),
            "date": lambda shape: dates.date(shape.groups, style),
            "year_month": lambda shape: dates.date(shape.groups, style),
            "month_day": self._month_day,
            "expiry": lambda shape: f"{self._amount(shape.groups[1])}年{self._amount(str(int(shape.groups[0])))}月",
            "era": lambda shape: dates.era(shape.written, shape.groups, style),
            "weekday": self._weekday,
            "weekdays": lambda shape: dates.weekdays(shape.written, style),
            "version": lambda shape: re.sub("[0-9.]", "", shape.written) + self._joined(shape, style.point),
            "ip": lambda shape: style.point.join(map(self._code, shape.groups)),
            "ratio": partial(self._joined, joint="対"),
            "pair": self._pair,
            "rating": lambda shape: "点満点中".join(map(self._amount, reversed(shape.written.split("/")))),
            "fraction": lambda shape: f"{self._amount(shape.groups[1])}分の{self._with_unit(shape.groups[0], shape)}",
            "address": partial(self._joined, joint="の"),
            "numbered": self._say_code,
            "step": lambda shape: f"{self._amount(shape.groups[1])}分の{self._amount(shape.groups[0])}",
            "weeks": partial(self._joined, joint="、"),
            "until": self._until,
            "minus": partial(self._joined, joint="マイナス"),
            "named": self._named,
            "mixed": partial(self._mixed, False),
            "mixed_code": partial(self._mixed, True),
            "plate": self._plate,
            "money": self._money,
            "scaled_unit": lambda shape: UNITS[shape.written],
            "label": lambda shape: "バージョン" if shape.written[0] in "vV" else "ナンバー",
            "page": lambda shape: "から".join(map(self._amount, shape.groups)) + "ページ",
            "part": self._part,
            "priced": self._priced,
            "floor": lambda shape: f"{'地下' if shape.written[0] == 'B' else ''}{self._amount(shape.groups[0])}階",
            "wide": lambda shape: self._amount("".join(shape.groups)),
            "part_of_day": lambda shape: "午前" if shape.written[0] in "aA" else "午後",
            "bound": self._bound,
            "name": lambda shape: _NAMES[shape.written],
            "some_days": self._some_days,
            "per_year": lambda shape: "ネン",
            "kanji_code": self._kanji_code,
            "kanji_telephone": self._kanji_telephone,
            "kanji_day": self._kanji_day,
            "kanji_number": lambda shape: None if (value := kanji_value(shape.written)) is None else str(value),
        }
        return reader.Tables(
            unit=UNIT,
            evidence=EVIDENCE,
            say=say,
            signs=partial(say_sign, style=style),
            trigger=reader.trigger(trigger),
            forms=of_style,
        )

    def _address(self, index: int, shape: Shape) -> str | None:
        pattern, say = self._addresses[index]
        found = pattern.match(shape.text, shape.start)
        return say(found) if found else None

    def _say_code(self, shape: Shape) -> str:
        written = shape.written
        sign = "プラス" if written[0] == "+" else ""
        if written[0] == "〒" and not re.search(r"郵便番号[はがの:：\s]{0,2}$", shape.left):
            sign = "郵便番号"
        if "の" in written:
            return sign + "の".join(map(self._code, shape.groups))
        return sign + self._code(written)

    def _mask(self, shape: Shape) -> str | None:
        if shape.groups:
            return self._code(shape.written)
        return "" if "*" in shape.written else shape.written  # xxx, once for its whole length

    def _say_amount(self, shape: Shape) -> str:
        """A number with its unit, which is said too where it is written in letters or signs."""
        number, unit = shape.written.lstrip("+"), shape.unit
        sign = "プラス" if shape.written.startswith("+") else ""
        is_padded = len(number) > 1 and number[0] == "0" and number.isdigit()
        if is_padded and (unit is None or unit["weak"] or len(number) > 2):
            return sign + self._code(number)
        return sign + self._with_unit(number, shape)

    def _last_with_unit(self, numbers: list[str], joint: str, shape: Shape) -> str:
        """Amounts, with the unit behind the last one."""
        first = "".join(self._amount(number.strip()) + joint for number in numbers[:-1])
        return first + self._with_unit(numbers[-1].strip(), shape)

    def _with_unit(self, number: str, shape: Shape) -> str:
        """An amount, and its unit if that is written in letters or signs."""
        unit = shape.unit
        if unit is None or not (unit["written"] or unit["money"]):
            return self._amount(number)
        shape.end = unit.end()
        return self._amount(number) + (UNITS[unit["written"]] if unit["written"] else CURRENCIES[unit["money"]])

    def _sides(self, shape: Shape) -> str:
        """W120×D75×H72cm: a letter for each side."""
        *others, last = re.split(" ?[x×X*] ?", shape.written)
        said = [side[0] + self._amount(side[1:]) for side in others]
        return "かける".join([*said, last[0] + self._with_unit(last[1:], shape)])

    def _range(self, shape: Shape) -> str:
        joint = "から"
        if shape.unit is not None and all(0 < int(group) < 32 for group in shape.groups):
            counter, is_span = shape.unit["counter"], shape.text.startswith("間", shape.unit.end())
            if counter == "月" or (counter == "日" and _MONTH.search(shape.left) and not is_span):
                joint = f"{counter}から"  # 4〜6月, 12月3〜5日
        return self._last_with_unit(re.split("[~∼〜–—-]", shape.written), joint, shape)

    def _clock(self, shape: Shape) -> str | None:
        return dates.clock(shape.groups, self._style, re.sub("[^apAP]", "", shape.written)[:1])

    def _month_day(self, shape: Shape) -> str | None:
        if "." in shape.written:
            return None
        shape.end += shape.right.startswith("日")
        said = dates.month_day(shape.groups, self._style)
        last = dates.LAST_DAY.match(shape.text, shape.end)
        if said is None or last is None or UNIT.match(shape.text, last.end()):
            return said
        shape.end = last.end()
        return f"{said}から{self._amount(last[1])}日"

    def _seat(self, shape: Shape) -> str | None:
        """57A at a gate or on a seat, which are no amperes."""
        named = _SEATS.search(shape.left)
        return self._amount(shape.groups[0]) + shape.written[-1] if named else None

    def _weekday(self, shape: Shape) -> str | None:
        found = dates.WEEKDAY.match(shape.text, shape.start)
        is_behind_day = shape.left.endswith("日") or (shape.before is not None and shape.before.end == shape.start)
        if found is None or not is_behind_day:
            return None
        return f"{found['day']}曜日" + ("、祝日" if found["holiday"] else "")

    def _joined(self, shape: Shape, joint: str) -> str:
        return joint.join(map(self._amount, shape.groups))

    def _mixed(self, digits_one_by_one: bool, shape: Shape) -> str | None:
        written = shape.written
        if written[0].isdigit() and UNIT.match(shape.text, shape.start + len(shape.groups[0])):
            return None  # 5kg
        is_counted = shape.unit is not None and shape.unit["counter"] in ("点", "円")
        if is_counted and re.fullmatch("[A-Za-z]{2,}[1-9][0-9]*", written):
            return self._named(shape)  # TOEIC730点
        if not digits_one_by_one:
            return re.sub("-?([0-9]+)", lambda part: self._digits(part[1]), written).replace("_", "アンダーバー")
        words = {"_": "アンダーバー"}
        said = (
            self._code(part) if part.isdigit() else words.get(part) or self._style.letters(part)
            for part in _PART.findall(written)
        )
        return self._style.mixed(list(said))

    def _digits(self, part: str) -> str:
        return self._code(part) if len(part) > 2 or part[0] == "0" else self._amount(part)

    def _pair(self, shape: Shape) -> str:
        is_choice = shape.unit is not None and shape.unit["written"] != "mmHg"  # 1,000/2,000円, 50/60Hz
        return self._last_with_unit(shape.written.split("/"), "、" if is_choice else "の", shape)

    def _part(self, shape: Shape) -> str | None:
        """So many of a whole: 15/20件. With two units, 3.4GB/20GB, the words before must say that it is used."""
        found = shape.found
        if found is None or _CHOICE.match(shape.right):
            return None
        part, whole, unit = found["part"], found["whole"], found["unit"]
        may_be_choice = found["unit_of_part"] or unit == "円"
        if (may_be_choice and not _IN_USE.search(shape.left)) or found["unit_of_part"] not in (unit, None):
            return None
        if float(part.replace(",", "")) > float(whole.replace(",", "")):
            return None
        unit = UNITS.get(unit, unit)
        return f"{self._amount(whole)}{unit}中{self._amount(part)}{unit}"

    def _named(self, shape: Shape) -> str:
        found = re.search("[0-9.]+$", shape.written)
        number = found.group() if found else ""
        return shape.written[: len(shape.written) - len(number)].rstrip("-") + self._amount(number)

    def _plate(self, shape: Shape) -> str | None:
        """ "品川300あ12-34": a letter that may be a particle needs a car."""
        letter = re.sub("[^あ-ん]", "", shape.written)
        if letter in "かがでとなにのはへもや" and not (_CAR.search(shape.left) or _CAR.search(shape.right)):
            return None
        return f"{self._code(shape.groups[0])} {letter} {self._code(''.join(shape.groups[1:]))}"

    def _money(self, shape: Shape) -> str | None:
        found = MONEY.match(shape.text, shape.start)
        if found is None:
            return None
        shape.end = found.end()
        return money(found, self._style)

    def _priced(self, shape: Shape) -> str | None:
        """The "5kg" of 5kg2,980円."""
        found = shape.found
        return found and self._amount(found["number"]) + UNITS[found["unit"]]

    def _bound(self, shape: Shape) -> str:
        sign = shape.written[0]
        said = self._with_unit(shape.written[1:], shape)
        if shape.unit is not None and (counter := shape.unit["counter"] or shape.unit["weak"]):
            said, shape.end = said + counter, shape.unit.end()
        return said + _BOUNDS[sign]

    def _until(self, shape: Shape) -> str | None:
        """A wave without a beginning: 受付は〜20:00です."""
        if shape.unit is not None:
            counter = shape.unit["counter"]
            said = None if counter not in ("円", "時") else self._amount(shape.written[1:].strip()) + counter
            end = shape.unit.end()
        else:
            say = dates.clock if ":" in shape.written else dates.month_day if "/" in shape.written else None
            said, end = say and say(shape.groups, self._style), shape.end
        if said is None or not _END.match(shape.text, end):
            return None
        shape.end = end
        return said + "まで"

    def _some_days(self, shape: Shape) -> str | None:
        """2〜3日 is "two, three days"."""
        first, last = (int(group) for group in shape.groups)
        short = dict(enumerate(("イチ", "ニ", "サン", "ヨン", "ゴ", "ロク", "ナナ", "ハチ", "ク"), 1))
        return f"{short[first]}{short[last]}ニチ" if last == first + 1 else None

    def _kanji_code(self, shape: Shape) -> str | None:
        """A code that is already in kanji, as a voice that reads characters would be given it."""
        plain = shape.written.replace("ゼロ", "〇")
        return self._code("".join(str("〇一二三四五六七八九".index(char)) for char in plain)) if "〇" in plain else None

    def _kanji_telephone(self, shape: Shape) -> str | None:
        """A number that another reader took for amounts: "(ゼロ三)千二百三十四から五千六百七十八"."""
        area, first, last = re.split("[)）]|から", shape.written.lstrip("(（"))
        groups = [kanji_value(first), kanji_value(last)]
        said = self._kanji_code(Shape("kanji_code", area, 0, len(area)))
        return None if None in groups else f"{said}{self._style.pause}{self._code(f'{groups[0]}-{groups[1]}')}"

    def _kanji_day(self, shape: Shape) -> str | None:
        month, day = map(kanji_value, shape.written.split("/"))
        return None if month is None or day is None else dates.month_day([str(month), str(day)], self._style)


_KANJI_NUMBER = "[一二三四五六七八九十百千]{1,9}"
_MINUTES_FOLLOW = "間|ほど|後|前|以内|程度|待ち|くらい|、[一二三四五六七八九十]+分"
_SIDE = f"[WHDLwhdl](?>{NUMBER})"
_FORMS = (
    ("telephone", re.compile(
        r"\+[0-9]{1,3}(?:[ -][0-9]{1,5}|[ -]?\([0-9]{1,5}\)){2,5}(?![0-9])|〒 ?[0-9]{3}[-–ー]?[0-9]{4}(?![0-9])"
        r"|0[0-9]{1,4}(?:[-–ーの][0-9]{1,5}){2,6}(?![0-9])|0[0-9]{1,4}・[0-9]{1,4}・[0-9]{3,4}(?![0-9])"
        r"|[(（]0[0-9]{1,4}[)）] ?[0-9]{1,4}[- ]?[0-9]{3,4}(?![0-9])|0[0-9]{1,4}[(（][0-9]{1,4}[)）][0-9]{3,4}(?![0-9])"
    )),
    ("name", re.compile("(?:" + "|".join(map(re.escape, _NAMES)) + ")(?![A-Za-z0-9]|/[0-9])")),
    ("scaled_unit", SCALED_UNIT),
    ("label", re.compile(r"(?:(?<![A-Za-z0-9])(?:No\.|[Vv]er\.?)|№\.?) ?(?=[0-9])")),
    ("page", re.compile(
        r"(?<![A-Za-z0-9.])[pP]{1,2}\. ?[0-9]{1,4}(?: ?[-–~〜] ?(?:[pP]{1,2}\. ?)?[0-9]{1,4})?(?![0-9A-Za-z]|[.,][0-9])"
        "|[0-9]{1,2}pp?(?![A-Za-z0-9])"  # 720p is a picture
    )),
    ("part", PART),
    ("priced", PRICED),
    ("money", MONEY),
    ("era", dates.ERA),
    ("weekday", dates.WEEKDAY),
    ("weekdays", dates.DAYS),
    ("date", re.compile(r"(?:19|20)[0-9]{2}-[0-9]{1,2}-[0-9]{1,2}T(?=[0-9]{1,2}:)")),
    ("hour", re.compile(
        r"[AaPp]\.?[Mm]\.? ?[0-9]{1,2}(?:[:：][0-9]{2})?(?![0-9:]|\.[0-9]| ?時)"
        r"|[0-9]{1,2}(?:[:：][0-9]{2}){0,2} ?[AaPp]\.?[Mm]\.?(?![A-Za-z])"
    )),
    ("part_of_day", re.compile(r"[AaPp]\.?[Mm]\.? ?(?=[0-9]{1,2} ?時)")),
    ("duration", re.compile(r"[0-9]{1,3} ?h(?:rs?)? ?[0-9]{1,2} ?m(?:in)?(?![A-Za-z0-9])")),
    ("seat", re.compile("[0-9]{1,3}[A-K](?![A-Za-z0-9])")),
    ("sides", re.compile(rf"(?<![A-Za-z0-9]){_SIDE}(?: ?[x×X*] ?{_SIDE}){{1,2}}(?![0-9])")),
    ("bare_decimal", re.compile(r"(?<![^はがのをもで約：:、（( ])\.[0-9]{1,6}(?![0-9]|\.[0-9])")),
    ("floor", re.compile(r"B?[1-9][0-9]?F(?![A-Za-z0-9])")),
    ("wide", re.compile(r"[0-9]{1,3}(?:，[0-9]{3})+(?![0-9])")),
    ("bound", re.compile(rf"(?<![0-9分円%歳名人])[<>≦≤≧≥] ?{NUMBER}")),
    ("step", re.compile(
        "(?:(?<=ステップ)|(?<=ページ)|(?<=手順)|(?<=段階)|(?<=質問)|(?<=設問))[1-9][0-9]?/[1-9][0-9]?(?![0-9/.])"
    )),
    ("weeks", re.compile(f"(?<=第)[1-5](?:/[1-5]){{1,3}}(?=[{dates.WEEKDAYS}])")),
    ("until", re.compile(
        r"(?<=[はが：:(（])[~〜] ?"
        rf"(?:[0-9]{{1,2}}:[0-9]{{2}}(?![0-9:])|[0-9]{{1,2}}/[0-9]{{1,2}}(?![0-9/])|(?>{NUMBER}))"
    )),
    ("numbered", re.compile("(?<![0-9A-Za-z.,-])[1-9][0-9]{0,5}(?:-[0-9]{1,6}){0,2}-0[0-9]{2,5}(?=号)")),
    ("version", re.compile(
        r"[vV][0-9]{1,6}(?:(?:\.[0-9]{1,6}){1,6}(?=-[A-Za-z])|(?:\.[0-9]{1,6}){0,6}(?![0-9A-Za-z-]))"
    )),
    ("plate", re.compile(
        rf"(?<=[{HAN} ])[0-9]{{2,3}} ?[あ-ん] ?(?:[0-9]{{2}}-[0-9]{{2}}|[0-9]{{1,4}})(?![0-9.,])"
    )),
)  # fmt: skip
_KANJI_FORMS = (
    ("some_days", re.compile("(?<![0-9〇一二三四五六七八九十]月)[1-8][〜~][2-9]日(?!間?まで)")),
    ("per_year", re.compile(r"(?<![0-9〇一二三四五六七八九十毎])年(?=[0-9.,]+(?:%|回|パーセント))")),
    ("kanji_telephone", re.compile(
        rf"[(（]ゼロ(?:ゼロ|[〇一二三四五六七八九]){{1,4}}[)）]{_KANJI_NUMBER}から{_KANJI_NUMBER}"
    )),
    ("kanji_code", re.compile("(?:ゼロ|[〇一二三四五六七八九]){4,40}")),
    ("kanji_day", re.compile(f"{_KANJI_NUMBER}/{_KANJI_NUMBER}")),
    ("kanji_number", re.compile(
        f"(?<![0-9]){_KANJI_NUMBER}(?=号室|時|円|名様|件|人様|(?:分(?:{_MINUTES_FOLLOW})))"
        f"|(?<=時|約){_KANJI_NUMBER}(?=分)|(?<=分、){_KANJI_NUMBER}(?=分)"
    )),
)  # fmt: skip
_TRIGGER = (
    r"(?<=[千万億])[A-Za-z%]|\.(?=[0-9])|(?<![A-Za-z])(?:[AaPp]\.?[Mm]\.? ?(?=[0-9])|[A-Z]{3} ?(?=[0-9]))"
    rf"|(?:令和|平成|昭和)(?= ?[0-9])|[{dates.WEEKDAYS}](?= ?[・、/〜~–-] ?[{dates.WEEKDAYS}祝])"
    rf"|[(（](?=[{dates.WEEKDAYS}](?:曜|・祝|[)）]))|[(（](?=0[0-9]{{1,4}}[)）])|[{SIGN_CHARACTERS}{UNIT_CHARACTERS}]"
)
JAPANESE = _Say(KANJI).tables(reader.Forms(_FORMS), _TRIGGER)
JAPANESE_DIGITS = _Say(DIGITS).tables(
    reader.Forms((*_KANJI_FORMS, *_FORMS)), rf"{_TRIGGER}|[(（](?=ゼロ)|[〇一二三四五六七八九十百千]|ゼロ|年(?=[0-9])"
)
"""For a voice that reads counters, dates and amounts itself, also in text that has its numbers in kanji already."""
