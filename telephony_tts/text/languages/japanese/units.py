"""Japanese units of measure, and the counters that follow a number."""

from __future__ import annotations

import re

from telephony_tts.text.languages.japanese.money import CURRENCY
from telephony_tts.text.patterns import NUMBER

_TABLE = """
kg KG Kg ㎏ キログラム|g グラム|mg ㎎ ミリグラム|µg μg mcg マイクログラム|t トン|lb lbs ポンド|oz オンス
km KM ㎞ キロメートル|m メートル|cm CM ㎝ センチメートル|mm MM ㎜ ミリメートル|nm ナノメートル|mi マイル|ft フィート
km/h キロメートル毎時|m/s メートル毎秒|L l ℓ リットル|mL ml ML ㎖ ミリリットル|dL ㎗ デシリットル|kL ㎘ キロリットル
cc CC|°C ℃ ºC 度|° º 度|TB テラバイト|GB ギガバイト|MB メガバイト|KB kB キロバイト|Kbps kbps キロビーピーエス
Mbps mbps Mb/s メガビーピーエス|Gbps gbps Gb/s ギガビーピーエス|MB/s メガバイト毎秒|GB/s ギガバイト毎秒
dpi ディーピーアイ|ppm ピーピーエム|rpm 回転毎分|bpm ビーピーエム|Hz ヘルツ|kHz キロヘルツ|MHz メガヘルツ|GHz ギガヘルツ
W ワット|kW KW ㎾ キロワット|MW メガワット|Wh ワット時|kWh KWh kwh キロワット時|MWh メガワット時
V ボルト|kV キロボルト|mV ミリボルト|A アンペア|mA ミリアンペア|mAh ミリアンペア時|Ah アンペア時|Ω オーム|dB デシベル
hPa ヘクトパスカル|kPa キロパスカル|MPa メガパスカル|kcal キロカロリー|cal カロリー|mmHg ミリ水銀柱
mg/dL mg/dl ミリグラム毎デシリットル|mmol/L ミリモル毎リットル|g/dL グラム毎デシリットル|ms ミリ秒|s 秒|min 分|h H 時間
px ピクセル|fps エフピーエス|bp ベーシスポイント|yd ヤード|μL µL uL マイクロリットル
U/L 単位毎リットル|IU/L 国際単位毎リットル
ch チャンネル|pt ポイント|m² m2 m^2 ㎡ 平方メートル|km² km2 ㎢ 平方キロメートル|cm² cm2 ㎠ 平方センチメートル
m³ m3 m^3 ㎥ 立方メートル|cm³ cm3 ㎤ 立方センチメートル|%pt 〜|% パーセント|‰ パーミル|㌫ パーセント
"""
UNITS: dict[str, str] = {}
for _entry in _TABLE.strip().replace("\n", "|").split("|"):
    *_all_written, _name = _entry.split(" ")
    UNITS |= dict.fromkeys(_all_written, _name)
UNITS |= {"%pt": "パーセントポイント", "°F": "度", "℉": "度"}

UNIT_CHARACTERS = "".join(written for written in UNITS if len(written) == 1 and not written.isascii())
"""Units in one character, such as ㎡, which may also stand without a number."""

_COUNTERS = """
円 銭 元 ドル セント ユーロ ポンド ウォン バーツ ルピー フラン 万 億 兆 千 百 十 桁 けた ケタ 文字 字 行 語 秒 時
時間 日 週 年 月 世紀 泊 歳 才 代 回 件 個 つ 本 枚 人 名 種 台 通 社 店 棟 室 階 度 点 位 等 級 倍 割 分 便 席 列
着 冊 杯 匹 頭 羽 足 箱 袋 缶 瓶 束 組 対 輪 株 票 戸 軒 世帯 章 条 項 丁目 号 畳 坪 口 品 局 膳 錠 包 滴 食 皿 玉
斤 貫 合 升 隻 機 基 段 巻 部 ページ 頁 曲 話 問 題 期 学期 限 試合 戦 勝 敗 里 尺 寸 以上 以下 未満 パー ポイント
マイル キロ メートル センチ ミリ グラム リットル アンペア ワット ボルト ヘルツ カロリー ギガ メガ テラ バイト
インチ ヤード フィート ヘクタール アール トン オンス カラット セット ケース パック ダース コース ステップ 画素 光年
校 院 園 色 型 系統 歩 発 営業日 店舗 拠点 作品 商品 会場 ユーザー アカウント 種類 番目 番線 番地 番台 番街 番のり
"""
_NOT_COUNTED = {
    "時": "点", "日": "本", "人": "事|気|間|材|員", "本": "人|店|社|日", "名": "義|前|称|古|物|作",
    "回": "答|復|収|覧", "月": "曜", "個": "人", "分": "類", "台": "帳|風|湾", "点": "検", "等": "は|の",
    "店": "舗", "社": "員|内|会|長", "室": "長", "部": "屋|署", "口": "座", "機": "種", "代": "表|金", "級": "生",
    "対": "応|象", "組": "合", "通": "知|話|常|院|勤|学|行|信|販", "項": "目", "号": "を", "期": "限", "題": "名",
    "色": "番", "型": "番", "合": "計|わ|っ", "元": "の|に", "品": "番|名", "席": "番", "度": "も",
    "行": "き|って|い", "限": "定", "戦": "略", "基": "本|づ", "条": "件", "食": "事", "着": "信", "包": "装",
    "巻": "き",
}  # fmt: skip
"""What may stand behind a counter's letters if they belong to another word: 4821本人です."""


def _any_of(words: list[str]) -> str:
    return "|".join(
        re.escape(word) + (f"(?!{_NOT_COUNTED[word]})" if word in _NOT_COUNTED else "")
        for word in sorted(set(words), key=len, reverse=True)
    )


_WRITTEN = "|".join(re.escape(written) for written in sorted(UNITS, key=len, reverse=True))
_WHOLE = rf"(?:[KMGT]B|円|{_any_of(list('件名人社台店校票問回点'))})"
"""What is counted in whole numbers: 2/3人 are two persons of three, 2/3個 may be two thirds of one."""
SCALED_UNIT = re.compile(rf"(?<=[千万億])(?:{_WRITTEN})(?![A-Za-z0-9])")
"""A unit behind 10万."""
PART = re.compile(
    rf"(?<![0-9/.])(?P<part>(?>{NUMBER}))(?=.{{0,4}}/) ?(?P<unit_of_part>{_WHOLE})? ?/ ?(?P<whole>(?>{NUMBER})) ?"
    rf"(?P<unit>{_WHOLE})(?![A-Za-z0-9/]|前|払|乗|用|部屋)"
)
"""So many of a whole: 15/20件, 3.4GB/20GB."""
PRICED = re.compile(rf"(?P<number>(?>{NUMBER}))(?![ぁ-ヶ一-鿿、。 ])(?P<unit>{_WRITTEN})(?=[0-9][0-9,]{{0,12}}円)")
"""A measure that its price follows: 5kg2,980円."""
UNIT = re.compile(
    rf" ?(?:(?P<written>(?:{_WRITTEN}))(?![A-Za-z0-9²³]|席|(?<=V)型|(?<=W)-[0-9]{{2}}(?![0-9A-Za-z]))"
    rf"|(?P<money>{CURRENCY})|(?P<counter>[ヶかカヵケ箇][月国所年条]|{_any_of(_COUNTERS.split())})|(?P<weak>番))"
)
"""A unit or counter behind a number."""
