"""What a caller hears for what a call-centre bot writes."""

from __future__ import annotations

import pytest

from telephony_tts.text.normalizer import Span, detect_lang, is_speakable, normalize, normalize_spans

ENGLISH = [
    # codes and telephone numbers: digit by digit
    ("Your verification code is 482913.", "Your verification code is four eight two nine one three."),
    ("482913 is your verification code.", "four eight two nine one three is your verification code."),
    ("Your PIN is 0042.", "Your PIN is zero zero four two."),
    ("ZIP code 90210-1234", "ZIP code nine zero two one zero, one two three four"),
    ("Call 1-800-555-0199.", "Call one, eight zero zero, five five five, zero one nine nine."),
    ("(415) 555-2671 ext. 42", "four one five, five five five, two six seven one, extension four two"),
    ("+44 20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight"),
    ("Call 1-800-FLOWERS", "Call one, eight zero zero, FLOWERS"),
    ("Dial 911 now.", "Dial nine one one now."),
    ("Order #4815 shipped", "Order number four eight one five shipped"),
    ("ORD-2024-00123", "O R D two zero two four zero zero one two three"),
    ("Flight BA1234 leaves", "Flight B A. one two three four leaves"),
    ("your card ending in 8876", "your card ending in eight eight seven six"),
    ("card xxxx-xxxx-xxxx-4821", "card four eight two one"),
    ("Account: ****4821", "Account: four eight two one"),
    ("account 123456789", "account one two three four five six seven eight nine"),
    ("extension 204 or 305", "extension two zero four or three zero five"),
    ("Room 302, room 12", "Room three zero two, room twelve"),
    ("code 48-29-13", "code four eight, two nine, one three"),
    ("4111 1111 1111 1111", "four one one one, one one one one, one one one one, one one one one"),
    ("0042", "zero zero four two"),
    ("The PIN you entered, 4477, is wrong.", "The PIN you entered, four four seven seven, is wrong."),
    ("Springfield, IL 62704", "Springfield, IL six two seven zero four"),
    ("last four digits of your card are 9876", "last four digits of your card are nine eight seven six"),
    ("text STOP to 12345", "text STOP to one two three four five"),
    # the same words before a count
    ("The code expires in 10 minutes.", "The code expires in ten minutes."),
    ("Order 12 items", "Order twelve items"),
    ("order 1500 units", "order one thousand five hundred units"),
    ("a 4-digit PIN", "a four digit PIN"),
    # names with digits
    ("COVID-19, 5G, MP3, B2B", "COVID nineteen, five G, M P three, B to B"),
    ("a 24-hour line, a 100-day trial", "a twenty four hour line, a one hundred day trial"),
    # amounts
    ("$1,234.50", "one thousand two hundred thirty four dollars and fifty cents"),
    ("$1.01, $0.99, $10, £0.50", "one dollar and one cent, ninety nine cents, ten dollars, fifty pence"),
    ("-$45.30", "minus forty five dollars and thirty cents"),
    (
        "$2.5M, $3k, €19.99",
        "two point five million dollars, three thousand dollars, nineteen euros and ninety nine cents",
    ),
    ("$5-$10, $5-10", "five dollars to ten dollars, five to ten dollars"),
    ("20 USD, 99¢", "twenty U S dollars, ninety nine cents"),
    ("$15/month at $0.12/kWh", "fifteen dollars per month at twelve cents per kilowatt hour"),
    # dates, years, times
    ("due 12/31/2024", "due December thirty first, twenty twenty four"),
    ("12/31", "December thirty first"),
    ("2024-08-05", "August fifth, twenty twenty four"),
    ("31.12.2024", "December thirty first, twenty twenty four"),
    ("Jan 5, 2025", "January fifth, twenty twenty five"),
    ("the 25th of December 2024", "the twenty fifth of December, twenty twenty four"),
    ("Dec 25–27", "December twenty fifth to twenty seventh"),
    ("in 1999 and 2008", "in nineteen ninety nine and two thousand eight"),
    ("the 1990s and the '80s", "the nineteen nineties and the eighties"),
    (
        "Between 1990 and 1995, 2024 was best",
        "Between nineteen ninety and nineteen ninety five, twenty twenty four was best",
    ),
    ("version 3.10.12", "version three point ten point twelve"),
    ("2010-2015", "twenty ten to twenty fifteen"),
    ("at 3:05 PM", "at three oh five PM"),
    ("at 10:30 a.m. Please come", "at ten thirty AM. Please come"),
    ("9am-5pm, 9-5pm", "nine AM to five PM, nine to five PM"),
    ("17:30, 12:00, 00:30", "seventeen thirty, twelve o'clock, twelve thirty AM"),
    ("Mon-Fri 24/7", "Monday to Friday twenty four seven"),
    # numbers and units
    ("1,000,000 users", "one million users"),
    ("-2, 0.05, 23rd, 1,000th", "minus two, zero point zero five, twenty third, one thousandth"),
    ("25% off, 5-10% more", "twenty five percent off, five to ten percent more"),
    ("1/2, 3/4, 2 1/2, 1½", "one half, three quarters, two and a half, one and a half"),
    ("ratio 3:1", "ratio three to one"),
    ("BP 120/80", "BP one hundred twenty over eighty"),
    ("5kg, 1 lb, 60 mph, 256GB", "five kilograms, one pound, sixty miles per hour, two hundred fifty six gigabytes"),
    ("-5°C to 10°C", "minus five degrees Celsius to ten degrees Celsius"),
    ("100 Mbps, 10 m²", "one hundred megabits per second, ten square meters"),
    ("250mg/5ml, rated 4.8/5", "two hundred fifty milligrams per five milliliters, rated four point eight out of five"),
    ("5 lb. of flour, 1.5-mm parts", "five pounds of flour, one point five millimeter parts"),
    ("wait—what", "wait—what"),
    ("4-6 hours", "four to six hours"),
    (
        "12345678901234567890",
        "one two three four five six seven eight nine zero one two three four five six seven eight nine zero",
    ),
    # signs and addresses
    ("R&D, AT&T", "R and D, AT and T"),
    ("press # or *", "press pound or star"),
    ("5 + 3 = 8", "five plus three equals eight"),
    ("yes/no and/or", "yes or no and or"),
    ("#winning", "hashtag winning"),
    ("john.smith_99@my-bank.com", "john dot smith underscore nine nine at my dash bank dot com"),
    ("Visit https://www.example.com/track.", "Visit w w w dot example dot com slash track."),
    ("192.168.1.1", "one nine two dot one six eight dot one dot one"),
    ("version v2.10.3", "version two point ten point three"),
    ("123 Maple Dr. with Dr. Lee", "one hundred twenty three Maple Drive with Doctor Lee"),
    # markup
    ("**$29.00**", "twenty nine dollars"),
    ("Press (**1**) to confirm.", "Press (one) to confirm."),
    ("[3 items](http://x.example/1)", "three items"),
    ("<b>$5</b> now 😀", "five dollars now "),
]

MANDARIN = [
    ("验证码482913，5分钟内有效", "验证码四八二九幺三，五分钟内有效"),
    ("您的验证码是：0042", "您的验证码是：零零四二"),
    ("订单号SF1234567890", "订单号S F幺二三四五六七八九零"),
    ("尾号为4821的信用卡", "尾号为四八二幺的信用卡"),
    ("航班CA1234于08:05起飞", "航班C A幺二三四于八点零五分起飞"),
    ("邮编100080，房间302，1204室", "邮编幺零零零八零，房间三零二，幺二零四室"),
    ("请拨打400-820-8820", "请拨打四零零，八二零，八八二零"),
    ("手机13800138000", "手机幺三八零零幺三八零零零"),
    ("+86 138 0013 8000", "加八六，幺三八，零零幺三，八零零零"),
    ("010-64035547转8001", "零幺零，六四零三五五四七转八零零幺"),
    ("客服热线95588", "客服热线九五五八八"),
    ("支付宝账号138****8000", "支付宝账号幺三八，八零零零"),
    ("订单12345个，工号1024", "订单一万两千三百四十五个，工号幺零二四"),
    ("请按1，人工服务请按0，以#号结束，按*键返回", "请按一，人工服务请按零，以井号结束，按星号键返回"),
    ("您前面还有12位客户", "您前面还有十二位客户"),
    ("余额为￥1,234.50，冻结2元", "余额为一千二百三十四点五元，冻结两元"),
    ("消费299.00元，售价¥9,999", "消费两百九十九元，售价九千九百九十九元"),
    ("$1.5万，HK$500，20 USD", "一点五万美元，五百港元，二十美元"),
    ("10元/月，5元/次", "十元每月，五元每次"),
    ("共1,234,567人", "共一百二十三万四千五百六十七人"),
    ("2个，2位，22个，第2名，2楼，2月2日，2万", "两个，两位，二十二个，第二名，二楼，二月二日，两万"),
    ("2024年8月5日，2008-08-08", "二零二四年八月五日，二零零八年八月八日"),
    ("90后、98年出生、3年前、2019-2024年", "九零后、九八年出生、三年前、二零一九到二零二四年"),
    ("10月1-7日，3-5个工作日，2-3天", "十月一到七日，三到五个工作日，两到三天"),
    ("下午3:30，3:30pm，8点05分", "下午三点三十分，下午三点三十分，八点零五分"),
    ("周一至周五9:00-18:00", "周一至周五九点到十八点"),
    ("比分3:2，比例1:10", "比分三比二，比例一比十"),
    ("5%-10%，-3.5%，3‰", "百分之五到百分之十，负百分之三点五，千分之三"),
    ("1/5，1又1/2，打8.5折", "五分之一，一又二分之一，打八点五折"),
    ("-5°C，60km/h，120m²，350kWh", "负五摄氏度，六十公里每小时，一百二十平方米，三百五十千瓦时"),
    ("2>1，1+2=3，10-4=6", "二大于一，一加二等于三，十减四等于六"),
    ("192.168.1.1，v2.10.3", "幺九二点幺六八点幺点幺，V二点十点三"),
    ("发邮件到service@bank.com", "发邮件到service 艾特 bank 点 com"),
    ("**重要**：您有[3条](http://x.cn)未读消息", "重要：您有三条未读消息"),
    ("好的~请稍等😊", "好的请稍等"),
    ("电费户号3301234567，本期用电245度", "电费户号三三零幺二三四五六七，本期用电两百四十五度"),
    ("取件码8-2-1034，请于18:00前取件", "取件码八，二，幺零三四，请于十八点前取件"),
    ("血压120/80mmHg，每日3次", "血压一百二十比八十毫米汞柱，每日三次"),
    ("有效期12/26，21年底", "有效期二零二六年十二月，二一年底"),
    ("5.6×10^9/L，23,000元/㎡", "五点六乘十的九次方每升，两万三千元每平方米"),
    ("拨打110或120，95533", "拨打幺幺零或幺二零，九五五三三"),
    ("7:30—8:00——好", "七点三十分到八点——好"),
    ("１２３元，包含３０００余件", "一百二十三元，包含三千余件"),
]

MIXED = [
    ("iPhone 15 Pro Max 256GB售价¥9,999", "iPhone 十五 Pro Max 两百五十六GB售价九千九百九十九元"),
    ("您的case ID是CS-10234", "您的case ID是C S幺零二三四"),
    ("Hi 张先生，您的meeting在3:00 PM", "Hi 张先生，您的meeting在下午三点"),
    ("Your WeChat 微信 payment of $20 is complete", "Your WeChat 微信 payment of twenty dollars is complete"),
    ("WiFi密码是88886666，OTP为660912", "WiFi密码是八八八八六六六六，OTP为六六零九幺二"),
    ("帮您订了8月15号的room 1203", "帮您订了八月十五号的room 幺二零三"),
    ("R&D部门，T+1到账，5G套餐", "R and D部门，T加一到账，五G套餐"),
]

OTHERS = [
    ("2023/11/14", "ja", "二千二十三年十一月十四日"),
    ("会議は3:30pmです", None, "会議は午後三時三十分です"),
    ("오후3시30분", None, "오후세시삼십분"),
    ("₩15000", "ko", "만오천원"),
    ("Il y a 3 chats", "fr", "Il y a 3 chats"),
    ("**У меня** 3 яблока", None, "У меня 3 яблока"),
]


@pytest.mark.parametrize(("written", "spoken"), ENGLISH)
def test_english(written: str, spoken: str) -> None:
    assert normalize(written, "en") == spoken


@pytest.mark.parametrize(("written", "spoken"), MANDARIN)
def test_mandarin(written: str, spoken: str) -> None:
    assert normalize(written, "zh") == spoken


@pytest.mark.parametrize(("written", "spoken"), MIXED)
def test_mixed(written: str, spoken: str) -> None:
    assert normalize(written) == spoken


@pytest.mark.parametrize(("written", "lang", "spoken"), OTHERS)
def test_other_languages(written: str, lang: str | None, spoken: str) -> None:
    assert normalize(written, lang) == spoken


@pytest.mark.parametrize(
    ("text", "lang"),
    [
        ("Hello there", "en"),
        ("您好", "zh"),
        ("您的 iPhone 15 Pro 已发货", "zh"),
        ("Say 你好 to all of the three guests", "en"),
        ("10:00，22:00", "zh"),
        ("こんにちは、世界", "ja"),
        ("안녕하세요", "ko"),
        ("Привет", "und"),
        ("12:30", "en"),
    ],
)
def test_language_shows_in_the_characters(text: str, lang: str) -> None:
    assert detect_lang(text) == lang


def test_characters_overrule_a_wrong_hint() -> None:
    assert normalize("共3人", "en") == "共三人"
    assert normalize("You have 3 new messages waiting", "zh") == "You have three new messages waiting"
    assert normalize("3:00", "zh-CN") == "三点"


def test_spans_are_small_and_tell_where_speech_came_from() -> None:
    text = "Pay **$5** by 12/31."
    assert normalize_spans(text, "en") == [
        Span(0, 4, "Pay "),
        Span(4, 6, ""),
        Span(6, 8, "five dollars"),
        Span(8, 10, ""),
        Span(10, 14, " by "),
        Span(14, 19, "December thirty first"),
        Span(19, 20, "."),
    ]


def test_words_that_would_touch_are_parted() -> None:
    assert normalize("5%off", "en") == "five percent off"
    assert normalize("snake_case", "en") == "snake case"


@pytest.mark.parametrize("text", ["", " \n", "...", "😀👍", "**", "---", "<b></b>", "?!", "- ", "```", "\x00\udc00"])
def test_nothing_to_say(text: str) -> None:
    assert not is_speakable(text)


@pytest.mark.parametrize("text", ["a", "好", "5", "**1**", "é", "¿qué?"])
def test_something_to_say(text: str) -> None:
    assert is_speakable(text)
