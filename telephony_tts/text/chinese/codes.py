"""Mandarin numbers that are names and not amounts: telephone numbers, codes, order, room and flight numbers."""

from __future__ import annotations

import re

from telephony_tts.text.chinese import numbers as zh
from telephony_tts.text.patterns import (
    AIRLINER,
    LETTERS_OR_DIGITS,
    MASKED,
    MEASURED,
    MIXED,
    NAMED_DECIMAL,
    SPAN,
    WITH_VOWEL,
)
from telephony_tts.text.scanner import Rule, after, before

# After these words any number of two or more digits is read digit by digit.
_STRONG = (
    "验证码|校验码|动态码|口令|密码|授权码|激活码|兑换码|邀请码|取件码|提货码|取餐码|取票码|取货码|提取码|券码|优惠码|识别码|"
    "序列号|流水号|编号|编码|尾号|尾数|[末后前][二两三四五六七八2-8]位|卡号|账号|帐号|账户|户号|单号|工号|学号|员工号|会员号|"
    "客户号|用户号|保单号|合同号|发票号|案件号|受理号|业务号|批号|病历号|就诊号|门诊号|住院号|医保号|登记号|身份证|护照|驾驶证|"
    "车牌|邮编|邮政编码|房号|门牌号?|分机|号码|代码|区号|箱号|表号|设备号|股票|拨打?|致电|拨通|呼叫|传真|座机|手机|热线|"
    "[京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼][A-Z]·?|"
    "HTTP|状态码|错误码|PIN|OTP|CVV|PNR|IMEI|QQ号?|微信号|(?<![a-z])(?:code|password|passcode|number|ext|extension|zip|ref|tracking)"
)
# After these words only longer numbers are, because they cannot be a count of things.
_WEAK = (
    "座位号?|柜号|桌号|订单|工单|运单|快递|保单|合同|发票|案件|航班|车次|列车|房间|客房|病房|转|来电|电话|客服|短信|发送|发|联系|"
    "会员|按|打|输入|回复|单元|栋|幢|[A-Z]座|银行卡|信用卡|储蓄卡|卡|ID|型号|波音|空客|给|"
    "(?<![a-z])(?:order|room|flight|case|account|hotline|ticket|booking|suite)"
)
_LINK = (
    r"(?:[\s:：,，\"“”‘’「『（(【\[#*、]|-(?![0-9])|号码?|编号|代码|是|为|即|的|码|分别|至|到|打|您|末尾|后|请|尾号|拨打|转|ID|No\.?|"
    r"热线|[0-9][0-9 -]{0,12}(?:或者?|和|、|及|与|/|还是|[，,]?(?:而)?不是))*$"
)
_CONTEXT = re.compile(rf"(?:(?P<strong>{_STRONG})|(?P<weak>{_WEAK})){_LINK}", re.I)
_CODE_FOLLOWS = re.compile(
    r"\s?(?:(?:打|拨|拨打)(?:个|一下)?(?:电话|热线)|(?:服务|客服|投诉|咨询|政务)?热线|(?:号?(?:诊|会议|教|办公|包|客|病)?[室房])(?!租|贷|产|屋|子|价)"
    r"|(?:是|为)(?:您|你)?的?(?:[\u4e00-\u9fff]{0,6})(?:验证码|密码|口令|单号|订单号|编号)|报警|急救|火警|次列车|次航班|航班|路(?:公交|车|汽车)?(?![程径线口由费])|晚会|大促|购物节|高校|院校)"
)
_COUNTED = re.compile(
    r"\s?(?:[个件条张位名笔份块元角折万亿千百人次天周年月日时点秒岁斤克米度倍页款%％‰°℃家套台辆间层趟袋箱盒瓶片粒支只双级期环种项分户单门]|"
    r"[盏杯架步字遍枚颗]|[余多来几](?=[个件天年岁万元块人次])|小时|公里|公斤|人民币|美元|美金|欧元|港币|港元|英镑|日元|积分|比特|兆|"
    r"毫|厘米|平方|立方|左右|以上|以下|以内)"
)


_IN_HOUSE = re.compile(r"(?:[层楼栋幢座]|单元|[0-9]门)[-—\s]?$")
_ADDED_UP = re.compile(
    r"(?:[共总约近超达满减加价第]|[乘除]以|[大小高低多少等]于|最[高低多少大小]|海拔|[转速密温高长宽深]度|转速|价格|合计|累计|超过|达到|多达|至少|最多|余额|金额|积分|收入|支出|人数|数量|步数|销量|增至|等于|=)[为是有:：]?\s?$"
)
_CALENDAR_YEAR = re.compile("(?:19[5-9][0-9]|20[0-9]{2})")


def context(left: str, right: str) -> str:
    """How surely a number between `left` and `right` is a code: "strong", "weak" or ""."""
    if _CODE_FOLLOWS.match(right):
        return "strong"
    if _IN_HOUSE.search(left) and right.startswith("户"):
        return "weak"
    if _COUNTED.match(right) or MEASURED.match(right):
        return ""
    if re.search("[0-9]门$", left):
        return "weak"
    found = _CONTEXT.search(left)
    return ("strong" if found["strong"] else "weak") if found else ""


def _groups(text: str) -> str:
    """Each group digit by digit, with a comma between groups so that the voice pauses."""
    return "，".join(zh.code(g) for g in re.findall("[0-9]+", text))


def _say_code(match: re.Match[str]) -> str | None:
    text = match.group()
    n_digits = sum(c.isdigit() for c in text)
    if n_digits < 2:
        return None
    kind = context(before(match, 20), after(match, 20))
    if kind == "strong" or (kind == "weak" and n_digits >= 3):
        return _groups(text)
    return None


def _say_telephone(match: re.Match[str]) -> str:
    text = match.group()
    number, _, extension = re.sub(r"\s?(?:转|分机号?|ext\.?|x)\s?", "x", text).partition("x")
    said = ("加" if text[0] == "+" else "") + _groups(number)
    return f"{said}转{zh.code(extension)}" if extension else said


def _say_plain(match: re.Match[str]) -> str | None:
    return None if _COUNTED.match(after(match, 4)) else zh.code(match.group())


def _say_long(match: re.Match[str]) -> str | None:
    """A long number without separators is an identifier, unless it is round or counts something."""
    return None if match.group().endswith("000") else _say_plain(match)


def _say_unexplained(match: re.Match[str]) -> str | None:
    """Four and more digits that nothing counts: a code said as an amount is useless, an amount said digit by digit is
    understood. Round numbers, what is added up, and a number that is all there is are amounts."""
    digits, left, right = match.group(), before(match, 8), after(match, 8)
    if not (left.strip() or right.strip()):
        return None
    if digits.endswith("00") or _ADDED_UP.search(left) or _COUNTED.match(right) or MEASURED.match(right):
        return None
    return zh.digits(digits) if _CALENDAR_YEAR.fullmatch(digits) else zh.code(digits)


def _say_emergency(match: re.Match[str]) -> str | None:
    alone = not before(match, 1).strip() and not after(match, 1).strip("。！？.!? ")
    return zh.code(match.group()) if alone else None


def _say_mixed(match: re.Match[str]) -> str | None:
    """Letters with digits: a code ("SF1234") is spelled, a name ("COVID-19", "5G") is read."""
    text = match.group()
    runs = LETTERS_OR_DIGITS.findall(text)
    if not any(r.isdigit() for r in runs) or not any(r.isalpha() for r in runs):
        return None
    if re.fullmatch("[BCPODGM]2[BCPODGEM]", text):
        return f"{text[0]} to {text[2]}"
    if re.fullmatch("x[0-9]{1,2}", text) and re.search("[\u4e00-\u9fff）)]$", before(match, 1)):
        return f"乘{zh.number(runs[1])}"  # "米饭x2"
    if re.fullmatch("FY-?[12][0-9]{3}", text):
        return f"{runs[0]}{zh.digits(runs[1])}"
    kind = context(before(match, 20), after(match, 20))
    if kind != "strong" and (span := SPAN.fullmatch(text)):
        return f"{_say_place(span['first'] or span['start'])}到{_say_place(span['last'])}"
    longest = max(len(r) for r in runs if r.isdigit())
    zeros = any(len(r) > 1 and r[0] == "0" for r in runs if r.isdigit())
    spelled = kind == "strong" or longest >= 3 or zeros or len(runs) > 4 or (kind == "weak" and len(runs) > 2)
    said = ""
    for run in runs:
        if run.isdigit():
            said += zh.code(run) if spelled and len(text) > 2 else zh.number(run)
        elif said[-1:].isascii() and said:
            said += " " + _say_letters(run, spelled)
        else:
            said += _say_letters(run, spelled)
    return said


def _say_place(text: str) -> str:
    """ "14A", "B10"."""
    return "".join(zh.number(r) if r.isdigit() else r for r in LETTERS_OR_DIGITS.findall(text))


def _say_letters(run: str, spelled: bool) -> str:
    if not WITH_VOWEL.match(run) or (spelled and (len(run) <= 3 or (run.isupper() and len(run) == 4))):
        return zh.letters(run)
    return run


def _say_groups(match: re.Match[str]) -> str:
    """Digit by digit in groups, without hidden digits: "138****8000", "737-800"."""
    return _groups(match.group())


MASKED_RULE: Rule = (MASKED, _say_groups)
_END = r"(?![0-9A-Za-z]|[.:：/][0-9]|-[A-Za-z0-9])"

CODE_RULES: tuple[Rule, ...] = (
    MASKED_RULE,
    (AIRLINER, _say_groups),
    (re.compile(rf"[0-9]+(?:[- ][0-9]{{2,}}){{0,8}}{_END}"), _say_code),
)

_EXTENSION = r"(?:\s?(?:转|分机号?|-)\s?[0-9]{1,6}(?![0-9]))?"
TELEPHONE_RULES: tuple[Rule, ...] = (
    (re.compile(r"\+(?=(?:[- ()]{0,2}[0-9]){7})[0-9]{1,3}(?:[- ]?\(?[0-9]{2,11}+\)?){1,6}+(?![0-9])"), _say_telephone),
    (re.compile(r"1[3-9][0-9](?:[0-9]{8}|([- ])[0-9]{4}\1[0-9]{4})(?![0-9A-Za-z])"), _say_telephone),
    (
        re.compile(
            r"(?:\(0[0-9]{2,3}\)|（0[0-9]{2,3}）|0[0-9]{2,3}[- ])[0-9]{3,4}[- ]?[0-9]{3,4}(?![0-9])" + _EXTENSION
        ),
        _say_telephone,
    ),
    (re.compile(r"0[0-9]{2,3}-(?:1[0-9]{4}|9[56][0-9]{3})(?![0-9])"), _say_telephone),
    (re.compile(rf"[48]00[- ]?[0-9]{{3}}[- ]?[0-9]{{4}}(?![0-9]){_EXTENSION}"), _say_telephone),
    (re.compile(rf"[48]00[- ][0-9]{{4}}[- ][0-9]{{3}}(?![0-9]){_EXTENSION}"), _say_telephone),
    (re.compile(r"[0-9]{4}(?:[- ][0-9]{4}){2,4}(?:[- ][0-9]{1,3})?(?![0-9])"), _say_telephone),
    (re.compile(r"[0-9]{1,12}(?:-[0-9]{1,12}){2,8}(?![0-9A-Za-z])"), _say_telephone),
    (
        re.compile(r"(?:100(?:10|11|86|99)|12(?:1(?:10|17|19|2[0-3])|3[0-9]{2})|95[15][0-9]{2}|96[0-9]{3})" + _END),
        _say_plain,
    ),
    (re.compile(r"(?:110|114|119|120|122)" + _END), _say_emergency),
    (re.compile(r"0[0-9]{1,400}" + _END), _say_plain),
    (re.compile(r"[0-9]{8,400}" + _END), _say_long),
)


def _say_named_decimal(match: re.Match[str]) -> str:
    """ "iOS17.4", "PM2.5"."""
    return _say_letters(match["name"], False) + zh.number(match["number"])


UNEXPLAINED_RULE: Rule = (re.compile(r"(?<![0-9.,])[0-9]{4,7}(?![0-9A-Za-z]|[.,][0-9])"), _say_unexplained)

MIXED_RULES: tuple[Rule, ...] = (
    (NAMED_DECIMAL, _say_named_decimal),
    (MIXED, _say_mixed),
)
