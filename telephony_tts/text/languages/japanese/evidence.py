"""Japanese words that say what a number beside them is."""

from __future__ import annotations

import re

from telephony_tts.text.languages.japanese.dates import WEEKDAY
from telephony_tts.text.reader import Evidence

_JOINT = r"[はがのをもで：:「『【（(\"\s、]{0,3}"
_CODES = (
    "番号|コード|暗証|パスワード|郵便|電話|口座|末尾|内線|ナンバー|型番|品番|ID|PIN|OTP|IMEI|ICCID|TEL|FAX|携帯|"
    "フリーダイヤル|ファックス|局番|診察券|会員証|記号|エラー|シリアル|ロット|伝票|生年月日|ポート|TCP|UDP|HTTP"
)
_LENGTH = "[0-9一二三四五六七八九](?:桁|けた|ケタ)"
_AMOUNTS = (
    "約|計|総額|残高|最大|最低|最小|最高|平均|延べ|およそ|総数|総計|税込み?|税抜き?|金額|料金|価格|残り|限度額|上限|"
    "下限|血圧|上が|下が|あと|全|体重|身長|点数|歩数|売上|売り上げ|件数|人数|在庫"
)
HAN = "㐀-䶵一-鿿々ヶケ"
_A_CALL = "お?電話|お?掛け|おかけ|かけて|ご?連絡|通報|ダイヤル|ご?相談|発信|お?つな|お?繋|転送|お問い?合"
_PLACE = rf"[都道府県市区町村郡][{HAN}ぁ-んァ-ヶー]{{1,10}}"
EVIDENCE: dict[str, Evidence] = {
    "code": Evidence(
        near=re.compile(rf"(?:{_CODES}|{_LENGTH}(?:の数字|の番号)?){_JOINT}$", re.IGNORECASE),
        far=re.compile(rf"(?:{_CODES})(?!.*{_PLACE}\s?$)", re.IGNORECASE),
        behind=re.compile(
            rf"番?(?:に|へ|まで)(?:{_A_CALL})|番通報|[をと](?:ご?入力|お?付け|つけて|ダイヤル|プッシュ|お?回し)"
            "|(?:が|は|という)(?:認証|暗証|確認|予約|受付|注文|会員|登録)?(?:番号|コード)"
        ),
    ),
    "amount": Evidence(
        near=re.compile(rf"(?:{_AMOUNTS})[はがもで\s:：]{{0,3}}$"),
        behind=re.compile(r"\s?(?:以上|以下|未満|超|前後|程度|くらい|ぐらい|ほど|あまり|弱|強)"),
    ),
    "month_day": Evidence(
        near=re.compile(
            r"(?:から|より|[〜~]|(?:締め?切り?|(?<!有効)期限|期日|納期|日程|日付)[はがの：:]?"
            r"|(?:予約|届け|配達|発送|発売|支払)日?[はがの：:]?)\s?$|/[0-9]{1,2}(?:[(（].{1,3}[)）])?[・、と–-]$"
        ),
        behind=re.compile(
            rf"{WEEKDAY.pattern}|\s?(?:に(?!なり|減|増|分|切|抑)|日(?![間本])|まで|迄|から|より|以降|以前|付|発|着|締切|[〜~]"
            r"|午[前後]|頃|ごろ|[0-9]{1,2}[時:：]|現在|時点|[・、と][0-9]{1,2}/|[–-][0-9]{1,2}/[0-9]{1,2}(?! ?=)"
            rf"|\s?[{HAN}ァ-ヶー]{{1,6}}[発着](?![表売送信言見]))"
        ),
    ),
    "expiry": Evidence(near=re.compile(r"有効期限[はがの：:\s]{0,3}$")),
    "version": Evidence(near=re.compile(r"(?:バージョン|[vV]er\.?|[vV])[はがの：:\s]{0,2}$")),
    "duration": Evidence(near=re.compile(r"(?:通話時間|録音|再生時間|長さ|所要時間|タイム)[はがの：:\s]{0,3}$")),
    "ratio": Evidence(
        near=re.compile(r"(?:比率|比|割合|スコア|得点|試合|決勝|[0-9]回戦)[はがの：:\s]{0,3}$"),
        behind=re.compile(r"\s?(?:で(?:勝|負|敗|引き分|リード|快勝|逆転)|の(?:比率|割合|サポート|対応|画面|比|ストレート|[快完辛]?勝|敗))"),
    ),
    "rating": Evidence(
        near=re.compile(r"(?:評価|レビュー|満足度|星|点数|[高低均得]点|スコア|成績|評定|GPA)[はがの：:\s]{0,3}$")
    ),
    "minus": Evidence(behind=re.compile(r"\s?(?:=|は[0-9])")),
    "address": Evidence(
        near=re.compile(
            rf"(?:(?![約計号番定限回日月年時分円名件個人])[{HAN}]|(?:[都道府県市区町村郡条通]|丁目)[ぁ-んァ-ヶー]{{1,10}})"
            r"\s?$|(?:住所|番地|所在地|お?(?:届け|送り|配達)先)[はがの：:]\s?$"
        ),
        far=re.compile("住所|お届け先|番地|所在地|[都道府県市区町村郡](?![0-9])|〒"),
        behind=re.compile(r"\s?(?:号室|番地)"),
    ),
}  # fmt: skip
EVIDENCE["mixed_code"] = EVIDENCE["code"]
