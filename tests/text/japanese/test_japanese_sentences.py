"""Where a Japanese sentence ends, and that it ends there however the text arrives."""

from __future__ import annotations

import pytest

from telephony_tts.text.segmenter import Segmenter

LINES = """
「本人です。」ボタンを押してください。|次へ進みます。
『はい。』メニューからお選びください。
「完了しました。」画面が出ます。
「受付しました。」表示を確認します。
「ありがとうございます。」|お客様からの声です。
「もしもし。」|田中です。
『はい。』|次に番号を押してください。
Yahoo!ショッピングをご利用ですね。|はい。
Yahoo！ショッピングをご利用ですね。
Yahoo!天気をご覧ください。
Thank you!|ありがとうございます。
はい!|サービスです。
有効期限はR8.11.29.までにお願いします。|以上です。
S55.3.10.生まれです。
2026.11.29.までにお願いします。
26.11.29.付で解約です。
11.29.までです。
合計は26.11.29.|次の方。
電話番号は03-1234-5678。|本人です。
""".strip().splitlines()


def sentences(pieces: list[str]) -> list[str]:
    segmenter = Segmenter("ja")
    found = [sentence.text for piece in pieces for sentence in segmenter.feed(piece)]
    return found + [sentence.text for sentence in segmenter.flush()]


@pytest.mark.parametrize("line", LINES)
def test_where_sentences_end(line: str) -> None:
    text = line.replace("|", "")
    assert sentences([text]) == line.split("|")
    assert sentences(list(text)) == line.split("|")
    for cut in range(1, len(text)):
        assert sentences([text[:cut], text[cut:]]) == line.split("|")
