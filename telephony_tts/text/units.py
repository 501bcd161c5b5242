"""The written forms of units and currencies, and their English and Mandarin names."""

from __future__ import annotations

import re

# Written form -> English singular, English plural, Mandarin. Forms that differ only by case are separate entries,
# because case has a meaning (Mb is bits, MB is bytes).
_TABLE = """
kg|kilogram|kilograms|千克
kgs|kilogram|kilograms|千克
Kg|kilogram|kilograms|千克
KG|kilogram|kilograms|千克
㎏|kilogram|kilograms|千克
g|gram|grams|克
mg|milligram|milligrams|毫克
㎎|milligram|milligrams|毫克
µg|microgram|micrograms|微克
μg|microgram|micrograms|微克
mcg|microgram|micrograms|微克
lb|pound|pounds|磅
lbs|pound|pounds|磅
oz|ounce|ounces|盎司
km|kilometer|kilometers|公里
KM|kilometer|kilometers|公里
㎞|kilometer|kilometers|公里
m|meter|meters|米
cm|centimeter|centimeters|厘米
CM|centimeter|centimeters|厘米
㎝|centimeter|centimeters|厘米
mm|millimeter|millimeters|毫米
㎜|millimeter|millimeters|毫米
µm|micrometer|micrometers|微米
nm|nanometer|nanometers|纳米
mi|mile|miles|英里
ft|foot|feet|英尺
yd|yard|yards|码
L|liter|liters|升
l|liter|liters|升
mL|milliliter|milliliters|毫升
ml|milliliter|milliliters|毫升
ML|milliliter|milliliters|毫升
㎖|milliliter|milliliters|毫升
fl oz|fluid ounce|fluid ounces|液盎司
fl. oz.|fluid ounce|fluid ounces|液盎司
gal|gallon|gallons|加仑
km/h|kilometer per hour|kilometers per hour|公里每小时
kph|kilometer per hour|kilometers per hour|公里每小时
kmh|kilometer per hour|kilometers per hour|公里每小时
m/s|meter per second|meters per second|米每秒
mph|mile per hour|miles per hour|英里每小时
mpg|mile per gallon|miles per gallon|英里每加仑
rpm|revolution per minute|revolutions per minute|转每分钟
bpm|beat per minute|beats per minute|次每分钟
fps|frame per second|frames per second|帧每秒
°C|degree Celsius|degrees Celsius|摄氏度
° C|degree Celsius|degrees Celsius|摄氏度
℃|degree Celsius|degrees Celsius|摄氏度
º C|degree Celsius|degrees Celsius|摄氏度
ºC|degree Celsius|degrees Celsius|摄氏度
°F|degree Fahrenheit|degrees Fahrenheit|华氏度
° F|degree Fahrenheit|degrees Fahrenheit|华氏度
℉|degree Fahrenheit|degrees Fahrenheit|华氏度
°|degree|degrees|度
º|degree|degrees|度
GB|gigabyte|gigabytes|GB
TB|terabyte|terabytes|TB
MB|megabyte|megabytes|MB
KB|kilobyte|kilobytes|KB
kB|kilobyte|kilobytes|KB
Mbps|megabit per second|megabits per second|兆比特每秒
mbps|megabit per second|megabits per second|兆比特每秒
Mb/s|megabit per second|megabits per second|兆比特每秒
Gbps|gigabit per second|gigabits per second|吉比特每秒
gbps|gigabit per second|gigabits per second|吉比特每秒
Gb/s|gigabit per second|gigabits per second|吉比特每秒
Kbps|kilobit per second|kilobits per second|千比特每秒
kbps|kilobit per second|kilobits per second|千比特每秒
MB/s|megabyte per second|megabytes per second|兆字节每秒
GB/s|gigabyte per second|gigabytes per second|吉字节每秒
KB/s|kilobyte per second|kilobytes per second|千字节每秒
Hz|hertz|hertz|赫兹
kHz|kilohertz|kilohertz|千赫兹
MHz|megahertz|megahertz|兆赫兹
GHz|gigahertz|gigahertz|吉赫兹
W|watt|watts|瓦
kW|kilowatt|kilowatts|千瓦
KW|kilowatt|kilowatts|千瓦
MW|megawatt|megawatts|兆瓦
kWh|kilowatt hour|kilowatt hours|千瓦时
KWh|kilowatt hour|kilowatt hours|千瓦时
kwh|kilowatt hour|kilowatt hours|千瓦时
kW·h|kilowatt hour|kilowatt hours|千瓦时
MWh|megawatt hour|megawatt hours|兆瓦时
V|volt|volts|伏
kV|kilovolt|kilovolts|千伏
mV|millivolt|millivolts|毫伏
mA|milliamp|milliamps|毫安
mAh|milliamp hour|milliamp hours|毫安时
Ω|ohm|ohms|欧姆
dB|decibel|decibels|分贝
kPa|kilopascal|kilopascals|千帕
hPa|hectopascal|hectopascals|百帕
psi|pound per square inch|pounds per square inch|磅每平方英寸
kcal|kilocalorie|kilocalories|千卡
kJ|kilojoule|kilojoules|千焦
mmHg|millimeter of mercury|millimeters of mercury|毫米汞柱
mmol/L|millimole per liter|millimoles per liter|毫摩尔每升
mg/dL|milligram per deciliter|milligrams per deciliter|毫克每分升
mg/L|milligram per liter|milligrams per liter|毫克每升
g/L|gram per liter|grams per liter|克每升
min|minute|minutes|分钟
mins|minute|minutes|分钟
hr|hour|hours|小时
hrs|hour|hours|小时
h|hour|hours|小时
sec|second|seconds|秒
secs|second|seconds|秒
s|second|seconds|秒
ms|millisecond|milliseconds|毫秒
wk|week|weeks|周
wks|week|weeks|周
yr|year|years|年
yrs|year|years|年
m²|square meter|square meters|平方米
m2|square meter|square meters|平方米
m^2|square meter|square meters|平方米
㎡|square meter|square meters|平方米
km²|square kilometer|square kilometers|平方公里
km2|square kilometer|square kilometers|平方公里
cm²|square centimeter|square centimeters|平方厘米
cm2|square centimeter|square centimeters|平方厘米
mm²|square millimeter|square millimeters|平方毫米
ft²|square foot|square feet|平方英尺
ft2|square foot|square feet|平方英尺
sq ft|square foot|square feet|平方英尺
sq. ft.|square foot|square feet|平方英尺
sqft|square foot|square feet|平方英尺
m³|cubic meter|cubic meters|立方米
m3|cubic meter|cubic meters|立方米
m^3|cubic meter|cubic meters|立方米
㎥|cubic meter|cubic meters|立方米
cm³|cubic centimeter|cubic centimeters|立方厘米
cm3|cubic centimeter|cubic centimeters|立方厘米
%|percent|percent|%
"""

UNITS: dict[str, tuple[str, str, str]] = {}
for _line in _TABLE.split("\n"):
    if _line:
        _written, _one, _many, _zh = _line.split("|")
        UNITS[_written] = (_one, _many, _zh)

UNIT = "(?:" + "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True)) + ")(?![A-Za-z0-9²³])"
"""Pattern of a unit after a number: the longest first, and never the beginning of a longer word."""

# Sign or code -> English singular, plural, hundredth singular, hundredth plural, Mandarin.
CURRENCIES: dict[str, tuple[str, str, str, str, str]] = {
    "$": ("dollar", "dollars", "cent", "cents", "美元"),
    "US$": ("U S dollar", "U S dollars", "cent", "cents", "美元"),
    "USD": ("U S dollar", "U S dollars", "cent", "cents", "美元"),
    "HK$": ("Hong Kong dollar", "Hong Kong dollars", "cent", "cents", "港元"),
    "HKD": ("Hong Kong dollar", "Hong Kong dollars", "cent", "cents", "港元"),
    "NT$": ("New Taiwan dollar", "New Taiwan dollars", "cent", "cents", "新台币"),
    "TWD": ("New Taiwan dollar", "New Taiwan dollars", "cent", "cents", "新台币"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents", "澳元"),
    "AUD": ("Australian dollar", "Australian dollars", "cent", "cents", "澳元"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents", "加元"),
    "CAD": ("Canadian dollar", "Canadian dollars", "cent", "cents", "加元"),
    "S$": ("Singapore dollar", "Singapore dollars", "cent", "cents", "新加坡元"),
    "SGD": ("Singapore dollar", "Singapore dollars", "cent", "cents", "新加坡元"),
    "€": ("euro", "euros", "cent", "cents", "欧元"),
    "EUR": ("euro", "euros", "cent", "cents", "欧元"),
    "£": ("pound", "pounds", "penny", "pence", "英镑"),
    "GBP": ("pound", "pounds", "penny", "pence", "英镑"),
    "¥": ("yen", "yen", "", "", "元"),
    "JPY": ("yen", "yen", "", "", "日元"),
    "CNY": ("yuan", "yuan", "", "", "元"),
    "RMB": ("yuan", "yuan", "", "", "元"),
    "KRW": ("won", "won", "", "", "韩元"),
    "₩": ("won", "won", "", "", "韩元"),
    "INR": ("rupee", "rupees", "paisa", "paise", "卢比"),
    "₹": ("rupee", "rupees", "paisa", "paise", "卢比"),
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes", "瑞士法郎"),
    "THB": ("baht", "baht", "", "", "泰铢"),
    "฿": ("baht", "baht", "", "", "泰铢"),
    "MOP": ("pataca", "patacas", "", "", "澳门元"),
    "₽": ("ruble", "rubles", "", "", "卢布"),
    "RUB": ("ruble", "rubles", "", "", "卢布"),
    "MYR": ("ringgit", "ringgit", "sen", "sen", "林吉特"),
    "₱": ("peso", "pesos", "centavo", "centavos", "比索"),
}
CURRENCY_SIGN = r"(?:(?:US|HK|NT|A|C|S)?\$|[€£¥₩₹฿₽₱])"
CURRENCY_CODE = "(?:" + "|".join(c for c in CURRENCIES if c.isalpha() and c.isascii()) + ")"
