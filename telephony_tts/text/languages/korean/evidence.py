"""Korean words that say what a number beside them is."""

from __future__ import annotations

import re

from telephony_tts.text.reader import Evidence

_JOINT = r"[은는이가을를의:：\s\"'“‘(\[「]{0,4}"
_CODES = (
    "번호|코드|비번|암호|OTP|PIN|핀|ID|아이디|사번|학번|군번|생년월일|계좌|내선|자리|인증|시리얼|넘버|송장|바코드|"
    "검침값|지침|팩스|연락처|끝|국번 ?없이|면허"
)
_LENGTH = r"(?:(?:앞|뒤|끝|맨)?\s?(?:[0-9]{1,2}|[한두세네]|다섯|여섯|일곱|여덟|열)\s?자리)?"
_AMOUNTS = (
    "총|합계|잔액|금액|약|최대|최소|포인트|조회수|수량|인원|매출|평균|가격|요금|버전|평점|점수|iOS|Android|안드로이드|"
    "윈도우|시즌"
)
EVIDENCE: dict[str, Evidence] = {
    "code": Evidence(
        near=re.compile(
            rf"(?:{_CODES})(?:번호|숫자|값)?{_JOINT}{_LENGTH}{_JOINT}$|(?:폰|전화)에서\s$|(?:HTTP|에러|오류|신고[는은])\s$",
            re.IGNORECASE,
        ),
        far=re.compile(_CODES, re.IGNORECASE),
        behind=re.compile(
            r"(?:이|가|은|는)?\s?(?:본인\s?)?(?:인증|비밀|확인|주문|접수|예약|승인)?\s?(?:번호|코드)(?!\s?[0-9])"
            r"|번?(?:이나|나|과|와| 또는) ?[0-9-]{3,13}번?(?:으로|로|에) ?(?:전화|연락|문의|신고)"
            r"|\s?번?(?:으로|로|에|에다가?)\s?(?:바로\s|즉시\s|먼저\s)?(?:전화|걸|거세|거시|연락|문의|신고|문자|연결)|[을를]\s?(?:입력|다이얼)"
            r"|\s?(?:정부민원|콜센터|고객센터|상담|신고|구급|소방|오류|에러)"
        ),
    ),
    "amount": Evidence(
        near=re.compile(rf"(?:{_AMOUNTS})[은는이가도\s:]{{0,3}}$"),
        behind=re.compile(r"\s?(?:이상|이하|미만|초과|정도|가량|번째)"),
    ),
    "month_day": Evidence(
        near=re.compile(
            r"(?:행사|(?<!유효)(?<!유효 )기간|일정|예약|날짜|마감|납기|~|"
            r"(?:예약|마감|납기|지급|결제|배당|상환|만기|출금|출고|발송|시행|반납|시험|예정|방문|검사|수술|"
            r"입원|퇴원|입사|이사|입주|배송|도착|점검|신청|시작|종료|개통|설치|수거|면접|공사|발표)일)[은는이가:\s]{0,3}$"
        ),
        behind=re.compile(
            r"일(?!까)|\s?\([월화수목금토일](?:요일)?\)|\s?(?:까지|부터|예정|휴무|이전|이후|접수|배송|출발|도착|방문|예약|오전|오후)|\s(?:회의|모임|미팅|진료|면접|공연)"
            r"|\s(?:[0-9]{1,2}\s?시(?!간)|[0-9]{1,2}:[0-9])|에\s?(?:예약|방문|배송|도착|출발)|자\s"
        ),
    ),
    "date": Evidence(near=re.compile("['’‘]$"), behind=re.compile(r"\s?(?:까지|부터|기준|현재|발급|시행|출시)")),
    "expiry": Evidence(near=re.compile(r"(?:유효 ?기간|만료일?)[은는이가:\s]{0,3}$")),
    "day_range": Evidence(
        near=re.compile(r"(?:행사|기간|일정|휴무|연휴|신청)[은는이가:\s]{0,3}$"),
        behind=re.compile(r"\s?(?:까지|진행|휴무|기간|행사|사이|동안|신청|접수|\()"),
    ),
    "version": Evidence(
        near=re.compile(r"(?:버전|펌웨어|업데이트|릴리스|[vV]er\.?|[vV])\s?$"),
        behind=re.compile(r"\s?(?:버전|으?로 업데이트)"),
    ),
    "duration": Evidence(
        near=re.compile(r"(?:통화|녹음|길이|재생)[은는이가\s]{0,3}$"), behind=re.compile(r"\s?(?:걸|동안|소요|간)")
    ),
    "ratio": Evidence(
        near=re.compile(r"(?:비율|스코어|점수)[은는이가\s]{0,3}$"),
        behind=re.compile(r"\s?(?:문의|상담|채팅|비율|으?로 (?:이[기겼]|앞|졌|지고|승|패)|무승부|매칭|화면|맞춤)"),
    ),
    "rating": Evidence(
        near=re.compile(r"(?:평점|별점|점수|만족도|석차|등수|학점|GPA)[은는이가\s]{0,3}$"), behind=re.compile(" ?점")
    ),
    "minus": Evidence(behind=re.compile(r"\s?=")),
    "address": Evidence(
        near=re.compile(r"(?:동|로|길|리|[0-9]가|산)\s?$"),
        behind=re.compile(r"\s?번지|번 ?(?:버스|칸|출구|게이트|마을)"),
    ),
}  # fmt: skip
EVIDENCE["mixed_code"] = EVIDENCE["code"]
