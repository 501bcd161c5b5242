"""Mandarin names of written units, and the words behind a number that count or measure."""

from __future__ import annotations

import re

from telephony_tts.text.languages.chinese import numbers as zh

_TABLE = """
kg kgs Kg KG ㎏=千克|g=克|mg ㎎=毫克|µg μg mcg=微克|t=吨|lb lbs=磅|oz=盎司
km KM Km ㎞=公里|m=米|cm CM ㎝=厘米|mm MM ㎜=毫米
µm μm=微米|nm=纳米|mi=英里|ft=英尺|yd=码|inch=英寸|L l ℓ=升|mL ml ML ㎖=毫升
dL dl=分升|fl_oz fl._oz.=液盎司|gal=加仑
km/h kph kmh=公里每小时|m/s=米每秒|mph=英里每小时|mpg=英里每加仑|rpm=转每分钟|bpm=次每分钟|fps=帧每秒
°C °_C ℃ º_C ºC=摄氏度|°F °_F ℉=华氏度|° º=度|GB=GB|TB=TB|MB=MB|KB kB=KB|Mbps mbps Mb/s=兆比特每秒
Gbps gbps Gb/s=吉比特每秒|Kbps kbps=千比特每秒|MB/s=兆字节每秒|GB/s=吉字节每秒|KB/s=千字节每秒
Hz=赫兹|kHz=千赫兹|MHz=兆赫兹|GHz=吉赫兹|W=瓦|kW KW=千瓦|MW=兆瓦|kWh KWh kwh kW·h=千瓦时|MWh=兆瓦时|Wh=瓦时
V=伏|kV=千伏|mV=毫伏|mA=毫安|mAh=毫安时|Ah=安时|Ω=欧姆|dB=分贝|kPa=千帕|hPa=百帕|MPa=兆帕|psi=磅每平方英寸
kcal=千卡|kJ=千焦|mmHg=毫米汞柱|mmol/L mmol/l=毫摩尔每升|mg/dL mg/dl=毫克每分升|mg/L mg/l=毫克每升|g/L g/l=克每升
μmol/L µmol/L umol/L=微摩尔每升|ng/mL ng/ml=纳克每毫升|U/L=单位每升|IU iu=国际单位
bar=巴|nits nit=尼特|ct=克拉|′=分|kVA=千伏安|N·m Nm=牛米|lm=流明|m/s² m/s2=米每二次方秒
min mins=分钟|hr hrs h=小时|sec secs s=秒|ms=毫秒|wk wks=周|yr yrs=年|px=像素|ppm=ppm
m² m2 m^2 ㎡=平方米|km² km2 ㎢=平方公里|cm² cm2=平方厘米|mm² mm2=平方毫米|ft² ft2 sqft sq_ft sq._ft.=平方英尺
m³ m3 m^3 ㎥=立方米|cm³ cm3=立方厘米
"""
UNITS = {
    written.replace("_", " "): entry.split("=")[1]
    for entry in _TABLE.strip().replace("\n", "|").split("|")
    for written in entry.split("=")[0].split(" ")
}
"""Written form -> what is said. Forms that differ only by case are separate: Mb is bits, MB is bytes."""
UNIT_CHARACTERS = "".join(written for written in UNITS if len(written) == 1 and not written.isascii())
"""Units in one character, such as ㎡, which may also stand without a number."""
WRITTEN = (
    "(?:" + "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True)) + ")"
    r"(?![A-Za-z²³]|(?![0-9]{1,6}(?:,[0-9]{3})?(?:\.[0-9]|[元块]))[0-9])"
)
"""A price may follow at once: "1kg12元"."""

UNIT = re.compile(
    rf"(?P<written>\s?(?:{WRITTEN}))|(?P<weak>号(?!楼|线|院))|\s?(?:[个件条张位名笔份块元角折万亿千百人次天周年月日时点秒岁斤克米度倍页款家套台辆间层趟袋"
    r"箱盒瓶片粒支只双级期环种项分户单门盏杯架步字遍枚颗](?!元\s?[0-9])|[余多来几](?=[个件天年岁万元块人次条张位户家间])|小时|公里|公斤|吨|人民币|"
    r"美元|美金|欧元|港币|港元|英镑|日元|积分|比特|兆|毫|厘米|平方?米?|立方|大(?=[0-9]小))"
)
"""What is counted or measured behind a number. 号 follows codes too."""

_MEASURE = re.compile(
    r"\s?(?:[个位件条张岁份笔间家本台部封种套盒箱包袋瓶杯片粒颗把只双对组项倍次天周秒人元块角米斤公千百万亿吨升点场趟批遍句晚夜碗"
    r"辆架座棵头匹根门顿节段股例成人口户宗起桶罐卷株艘首册处]|幢(?!\s?[0-9])|支(?!弄)|年(?!级)|栋(?!\s?[0-9])|[室厅](?=[0-9][厅卫])|单(?!元)|名(?!次)|小时|分钟|个月|星期|礼拜|"
    r"大(?=[0-9]小)|毫升|毫米|厘米|英里|英尺|平方|立方|美元|港元|欧元|英镑|磅)"
)
_NO_LIANG = re.compile(r"(?:[第周初按选零点负]|第[0-9]{1,2}[、和与]|星期|礼拜|之|选择|[0-9]号?[排楼层])\s?$")
_INSTALMENTS = re.compile(r"(?:[款费共余剩还有了欠缴付]|分|逾期)\s?$")
_MONEY_BEHIND = re.compile(r"\s?(?:元|块|美元|美金|欧元|港|英镑|人民币)")


def count(written: str, left: str, right: str) -> str:
    """A number with the text around it: 2 is 两 before a measure word, 二 in a rank or a date."""
    if written == "2" and not _NO_LIANG.search(left):
        if _MEASURE.match(right) or (right.startswith("期") and _INSTALMENTS.search(left)):
            return "两"
        if right.startswith("小") and left.endswith("大"):
            return "两"
    is_money = "." in written and ("," in written or _MONEY_BEHIND.match(right))
    return money_number(written) if is_money else zh.number(written)


def money_number(written: str) -> str:
    """Amounts lose the zeros at the end of the cents: "13.50" -> 十三点五."""
    return zh.number(written.rstrip("0").rstrip(".") if "." in written else written)


def measure(numbers: list[str], written: str) -> str:
    """One number, or a range of two, with a unit in letters or signs."""
    name = UNITS[written]
    say = zh.number if "度" in name else zh.quantity
    return "到".join(say(number) for number in numbers) + name
