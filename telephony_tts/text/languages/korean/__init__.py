"""How numbers, codes and signs are read in Korean text: what the reader needs to know, and the words for each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from telephony_tts.text import addresses, reader
from telephony_tts.text.languages.korean import dates
from telephony_tts.text.languages.korean.evidence import EVIDENCE
from telephony_tts.text.languages.korean.money import CURRENCIES, MONEY, money
from telephony_tts.text.languages.korean.numbers import amount, code
from telephony_tts.text.languages.korean.signs import say_sign
from telephony_tts.text.languages.korean.units import (
    ENDS,
    NATIVE,
    UNIT,
    UNIT_CHARACTERS,
    UNITS,
    WRITTEN,
    count,
    measure,
)
from telephony_tts.text.patterns import NUMBER
from telephony_tts.text.reader import Shape

_PART = re.compile(r"[A-Za-z]+|[0-9]+|_")
_TO_AMOUNT = re.compile(rf" ?[~∼〜–-] ?(?P<last>{NUMBER})(?P<scale>[백천만억]+)?(?![0-9A-Za-z%:])")
_STAGES = re.compile(r"[~∼〜–-]| - ")
_PLATE_LETTERS = "가나다라마거너더러머버서어저고노도로모보소오조구누두루무부수우주바사아자하허호배"
_KEYS = re.compile("누르|눌|입력|비밀번호|비번|다이얼|걸")
_RANKS = re.compile("(?:석차|등수)[은는이가]? ?$")
_SEAT_BEFORE = re.compile("(?:좌석|호차)[은는이가]? ?(?:[0-9]{1,2}[A-K](?:, ?|[와과] ?))*$")
_SEAT_AFTER = re.compile(" ?(?:번 ?)?(?:좌석|자리|석)")
_LIKE_ENGLISH = {"4K": "포K", "3D": "쓰리D", "2D": "투D"}
_PLATES = re.compile("차|번호판|주차|입차|출차")
_WORDS = addresses.AddressWords(
    at="골뱅이",
    signs={".": "점", "/": "슬래시", "-": "하이픈", "_": "언더바", ":": "콜론"},
    digits=code,
    space=" ",
)
(_, _SAY_EMAIL), (_, _SAY_URL) = addresses.address_rules(_WORDS)


def _say_match(say: Callable[[re.Match[str]], str]) -> reader.Say:
    return lambda shape: say(shape.found) if shape.found else None


def _say_code(shape: Shape) -> str:
    sign = "플러스 " if shape.written.startswith("+") else ""
    return sign + " ".join(code(group) for group in shape.groups)


def _say_mask(shape: Shape) -> str | None:
    """The digits that are shown. A hidden end is said: 엑스엑스엑스엑스."""
    if not shape.groups:
        return "" if "*" in shape.written else shape.written  # xxx, once for its whole length
    said = " ".join(code(group) for group in shape.groups)
    return said if shape.written[-1].isdigit() else f"{said} {'엑스' * len(re.findall('[xX]', shape.written))}".rstrip()


def _say_keys(shape: Shape) -> str:
    if shape.written[0] == "#" and shape.written[-1].isdigit() and not _KEYS.search(shape.left + shape.right):
        number = shape.groups[0]
        return "넘버 " + (code(number) if len(number) > 3 else amount(number))
    names = {"*": " 별표 ", "#": " 우물정 "}
    return "".join(names.get(part, code(part)) for part in re.findall("[0-9]+|[*#]", shape.written)).strip()


def _say_amount(shape: Shape) -> str | None:
    """A number with its unit, which is said too where it is written in letters or signs."""
    number, unit = shape.written.lstrip("+"), shape.unit
    sign = "플러스 " if shape.written.startswith("+") else ""
    if unit is None:
        return sign + (code(number) if _is_padded(number, 2) else amount(number))
    if unit["money"]:
        return None  # +5 USD: a plus, and then money
    if unit["written"]:
        return sign + _joined([number], "", shape)
    counter = unit["weak"] or unit["native"] or unit["sino"] or unit["apart"]
    if _is_padded(number, 2 if unit["weak"] else 3):
        return code(number)  # 제0342호, not 09시
    return sign + count(number, counter, shape.left, shape.right)


def _is_padded(number: str, n_digits: int) -> bool:
    """Whether it has so many digits or more, and a zero before them."""
    return len(number) >= n_digits and number[0] == "0" and number.isdigit()


def _say_range(shape: Shape) -> str | None:
    first, last = (part.strip() for part in _STAGES.split(shape.written, maxsplit=1))
    unit = shape.unit
    if unit is not None and unit["money"] and (found := MONEY.match(shape.text, shape.end - len(last))):
        shape.end = found.end()
        return f"{amount(first)}에서 {money(found)}"
    if unit is None or unit["money"] or unit["written"]:
        return _joined((first, last), "에서 ", shape)
    counter = unit["native"] or unit["sino"] or unit["apart"] or unit["weak"]
    said = count(first, counter, shape.left, shape.right)
    repeated = counter if counter in NATIVE or counter == "월" else ""
    return f"{said}{repeated}에서 {count(last, counter, shape.left, shape.right)}"


def _joined(numbers: Sequence[str], joint: str, shape: Shape) -> str:
    """`numbers` with `joint` between, and the unit in letters or signs behind the shape, which it takes."""
    if shape.unit is None or not shape.unit["written"]:
        return joint.join(map(amount, numbers))
    shape.end = shape.unit.end()
    return measure(numbers, joint, shape.unit["written"], shape.left)


def _say_clock(shape: Shape) -> str | None:
    part, n_taken = dates.meridiem(shape.right)
    said = dates.clock(shape.groups, part)
    shape.end += n_taken if said else 0
    return said


def _say_rating(shape: Shape) -> str:
    score, best = shape.written.split("/")
    if _RANKS.search(shape.left):
        return f"{amount(best)} 중 {amount(score)}"
    return f"{amount(best)}점 만점에 {amount(score)}"


def _say_of_all(shape: Shape) -> str | None:
    """3/5회 -> "오회 중 삼", and then the counter that is written."""
    if shape.found is None or not 0 < int(shape.groups[0]) <= int(shape.groups[1]):
        return None
    counter = shape.found["counter"]
    of_all, done = count(shape.groups[1], counter), count(shape.groups[0], counter)
    return f"{of_all}{counter} 중 {done}"


def _say_parts(joint: str) -> reader.Say:
    return lambda shape: joint.join(amount(group) for group in shape.groups)


def _say_weekday(shape: Shape) -> str | None:
    """ "(월)" behind a date."""
    is_date = shape.left[-1:] == "일" or (shape.before is not None and shape.before.end == shape.start)
    return f" {shape.written[1]}요일" if is_date else None


def _say_mixed(digits_one_by_one: bool) -> reader.Say:
    def say(shape: Shape) -> str | None:
        written = shape.written
        is_seat = _SEAT_BEFORE.search(shape.left) or _SEAT_AFTER.match(shape.right)
        if written in _LIKE_ENGLISH and not is_seat:
            return _LIKE_ENGLISH[written]
        if written[0].isdigit() and not is_seat and UNIT.match(shape.text, shape.start + len(shape.groups[0])):
            return None  # 5kg
        said = ""
        for part in _PART.findall(written):
            spells = digits_one_by_one or len(part) > 2 or part[0] == "0"
            if part.isdigit():
                said += code(part) if spells else amount(part)
            elif part.isupper() and len(part) <= 4:
                said += " ".join(part)  # an engine may take EE or KE for a word
            else:
                said += "언더바" if part == "_" else part
        return said

    return say


def _say_named(shape: Shape) -> str:
    found = re.search("[0-9.]+$", shape.written)
    number = found.group() if found else ""
    return shape.written[: len(shape.written) - len(number)].rstrip("-") + amount(number)


def _say_plate(shape: Shape) -> str | None:
    """ "12가 3456" is the number of a car if its letter cannot be a counter, or if a car is named."""
    letter = shape.written[len(shape.groups[0])]
    is_sure = letter not in "주도호대조부수하고배로구자"
    if shape.unit is not None or not (is_sure or _PLATES.search(shape.left) or _PLATES.search(shape.right)):
        return None
    return f"{amount(shape.groups[0])}{letter} {code(shape.groups[1])}"


def _say_money(shape: Shape) -> str | None:
    found = shape.found
    if found["number"] and not found["scale"] and (last := _TO_AMOUNT.match(shape.text, found.end())):
        shape.end = last.end()
        highest = amount(last["last"]) + (last["scale"] or "")
        return f"{amount(found['number'])}에서 {highest}{CURRENCIES[found['currency']]}"
    return money(found)


def _say_rate(shape: Shape) -> str | None:
    """ "120원/kWh" -> "킬로와트시당 백이십원"."""
    found = shape.found
    said, at, rate = "", 0, found["rate"]
    for start, end, spoken in reader.read(rate, KOREAN):
        said, at = said + rate[at:start] + spoken, end
    per = {"월": "월", "년": "연", "연": "연", "일": "하루", "박": "일박당", "인": "일인당"}.get(found["per"])
    return f"{per or UNITS.get(found['per'], found['per']) + '당'} {said}{rate[at:]}"


def _say_month_day(shape: Shape) -> str:
    behind = re.match(r"일|\.(?=[가-힣])", shape.right)
    shape.end += behind.end() if behind else 0
    return dates.month_day(shape.groups)


def _say_version(shape: Shape) -> str:
    head = shape.written[:1] if shape.written[:1].isalpha() else ""
    return head + "점".join(amount(group) for group in shape.groups)


def _say_one_plus_one(shape: Shape) -> str:
    names = {"1": "원", "2": "투", "3": "쓰리"}
    return "플러스".join(names[group] for group in shape.groups)


KOREAN = reader.Tables(
    unit=UNIT,
    evidence=EVIDENCE,
    say={
        "email": _say_match(_SAY_EMAIL),
        "url": _say_match(_SAY_URL),
        "mask": _say_mask,
        "keys": _say_keys,
        "code": _say_code,
        "amount": _say_amount,
        "range": _say_range,
        "size": lambda shape: _joined(re.split(r" ?[x×X*] ?", shape.written), " 곱하기 ", shape),
        "clock": _say_clock,
        "hour": lambda shape: dates.clock(shape.groups, re.sub("[^apAP]", "", shape.written)[:1]),
        "elapsed": lambda shape: dates.elapsed(shape.left, shape.groups),
        "duration": lambda shape: dates.duration(shape.groups),
        "date": lambda shape: dates.date(shape.groups),
        "year_month": lambda shape: dates.date(shape.groups),
        "month_day": _say_month_day,
        "expiry": lambda shape: f"{dates.month(int(shape.groups[0]))} {amount(shape.groups[1])}년",
        "day_range": lambda shape: f"{dates.month_day(shape.groups[:2])}에서 {dates.month_day(shape.groups[2:])}",
        "anniversary": lambda shape: "".join(code(group) for group in shape.groups),
        "version": _say_version,
        "ip": lambda shape: "점".join(code(group) for group in shape.groups),
        "ratio": lambda shape: _joined(re.split(" ?[:–-] ?", shape.written), "대 ", shape),
        "weekday": _say_weekday,
        "per": lambda shape: UNITS[shape.written],
        "pair": lambda shape: _joined(shape.written.split("/"), "에 ", shape),
        "rating": _say_rating,
        "of_all": _say_of_all,
        "fraction": lambda shape: f"{amount(shape.groups[1])}분의 {amount(shape.groups[0])}",
        "quarter": lambda shape: amount(shape.groups[0]) + amount(shape.groups[1]),
        "address": _say_parts(" 다시 "),
        "minus": _say_parts(" 마이너스 "),
        "named": _say_named,
        "mixed": _say_mixed(digits_one_by_one=False),
        "mixed_code": _say_mixed(digits_one_by_one=True),
        "plate": _say_plate,
        "money": _say_money,
        "rate": _say_rate,
        "one_plus_one": _say_one_plus_one,
        "versus": _say_parts("대 "),
        "numero": lambda shape: "넘버 ",
        "ordinal": lambda shape: count(shape.groups[0], "번째") + "번째",
        "basement": lambda shape: "지하 " + amount(shape.groups[0]),
        "wide": lambda shape: amount("".join(shape.groups)),
        "power": lambda shape: "제곱" if shape.groups[0] == "2" else "세제곱",
        "always": lambda shape: "연중무휴 이십사시간",
        "year_of_month": lambda shape: f"{amount(shape.groups[0])}년 {dates.month(int(shape.groups[1]))[:-1]}",
        "part_of_day": lambda shape: "오전 " if shape.written[0] in "aA" else "오후 ",
        "chat": lambda shape: "",
    },
    signs=say_sign,
    trigger=reader.trigger(
        r"(?<![A-Za-z])(?:[AP]\.?M\.? ?(?=[0-9])|No\. ?(?=[0-9])|[A-Z]{3} ?(?=[0-9]))|[ㄱ-ㅎㅏ-ㅣ]{2}|[ㅋㅎㅠㅜ]|"
        rf"[{UNIT_CHARACTERS}§√℡▲△\u2160-\u2188⑩-⑳]|\((?=[월화수목금토일]\))|(?<![A-Za-z0-9])(?:{WRITTEN})(?=당(?![가-힣]))"
    ),
    forms=reader.Forms((
        ("chat", re.compile("[ㅋㅎㅠㅜㅡㅇㅅㄱㄷㄴㅂㅈ^]{2,40}|[ㅋㅎㅠㅜ]")),
        ("month_day", re.compile(
            r"(?:0?[1-9]|1[0-2])\. ?(?:0?[1-9]|[12][0-9]|3[01])\."
            r"(?= ?[~∼〜–-] ?[0-9]| ?\([월화수목금토일]\)|까지|부터|자(?![가-힣]))"
            r"|(?<=[~∼〜–-])(?:0?[1-9]|1[0-2])\. ?(?:0?[1-9]|[12][0-9]|3[01])\.(?! ?[0-9])"
        )),
        ("of_all", re.compile(
            rf"[0-9]{{1,3}}/[0-9]{{1,3}}(?=(?P<counter>회(?!의)|명|단계|페이지|쪽|문항)(?:{ENDS}))"
        )),
        ("quarter", re.compile(r"[1-4]/4(?= ?분기)")),
        ("numero", re.compile(r"No\. ?(?=[0-9])")),
        ("elapsed", re.compile(r"[0-9]{1,2}:[0-5][0-9](?![0-9:]|\.[0-9]|에|부터|까지| ?[~-])")),
        ("rate", re.compile(
            rf"(?P<rate>[₩$€](?>{NUMBER})|(?>{NUMBER})(?:[~-](?>{NUMBER}))?[십백천만억]*+ ?"
            rf"(?:원|달러|유로|[회건개명대]|(?:{WRITTEN})(?=/[가-힣])))/"
            rf"(?P<per>월|년|연|일|주|박스|박|시간|분|초|회|건|인|명|개|대|평|병|장|{WRITTEN})"
            r"(?=[^가-힣A-Za-z0-9/]|$|이[고며에]|입|예요|[으로를을은는이가씩]|정도|수준)"
        )),
        ("money", MONEY),
        ("hour", re.compile(
            r"[AP]\.?M\.? ?[0-9]{1,2}(?::[0-9]{2})?(?![0-9:]|\.[0-9]| ?시)|[0-9]{1,2} ?[AaPp]\.?[Mm]\.?(?![A-Za-z])"
        )),
        ("weekday", re.compile(r"\([월화수목금토일]\)")),
        ("per", re.compile(rf"(?:{WRITTEN})(?=당(?![가-힣]))")),
        ("power", re.compile(r"\^[23](?![0-9])")),
        ("always", re.compile(r"24/7(?![0-9/])")),
        ("year_of_month", re.compile(r"(?:19|20)[0-9]{2}\.(?:0?[1-9]|1[0-2])(?= ?월)")),
        ("part_of_day", re.compile(r"[AP]\.?M\.? ?(?=[0-9]{1,2} ?시)")),
        ("basement", re.compile(r"B[0-9]{1,2}(?= ?층)")),
        ("wide", re.compile(r"[0-9]{1,3}(?:，[0-9]{3})+(?![0-9])")),
        ("anniversary", dates.ANNIVERSARY),
        ("one_plus_one", re.compile(r"[123] ?\+ ?1(?= ?(?:행사|상품|이벤트|할인|증정|제품|혜택))")),
        ("versus", re.compile(r"[0-9]{1,2}대 ?[0-9]{1,2}(?=로|으로|의| ?(?:상담|문의|비율|맞춤|무승부|채팅|매칭))")),
        ("ordinal", re.compile(r"[0-9]{1,2}(?:st|nd|rd|th)(?![A-Za-z])")),
        ("version", re.compile(r"[vV][0-9]{1,6}(?:\.[0-9]{1,6}){0,6}(?![0-9A-Za-z-])")),
        ("plate", re.compile(rf"[0-9]{{2,3}}[{_PLATE_LETTERS}] ?[0-9]{{4}}(?![0-9.,])")),
    )),
)  # fmt: skip
