"""Korean units of measure, and the counters that follow a number."""

from __future__ import annotations

import re
from collections.abc import Sequence

from telephony_tts.text.languages.korean.money import CURRENCY
from telephony_tts.text.languages.korean.numbers import amount, cardinal, native

_TABLE = """
kg kgs Kg KG ㎏ 킬로그램|g 그램|mg ㎎ 밀리그램|µg μg mcg ㎍ 마이크로그램|t 톤|lb lbs 파운드|oz 온스
km Km KM ㎞ 킬로미터|m 미터|cm CM ㎝ 센티미터|mm MM ㎜ 밀리미터|µm 마이크로미터|nm 나노미터|mi 마일|ft 피트|yd 야드
L l ℓ 리터|mL ml ML ㎖ 밀리리터|dL ㎗ 데시리터|kL ㎘ 킬로리터|cc CC ㏄ 씨씨|gal 갤런
µg/m³ ㎍/㎥ ㎍/m³ ug/m3 마이크로그램 퍼 세제곱미터|km/L km/l 킬로미터 퍼 리터|L/min 리터 퍼 분
km/h kph kmh ㎞/h 시속 킬로미터|m/s 초속 미터|mph 시속 마일|rpm RPM 알피엠|bpm BPM 비피엠|fps FPS 프레임
°C ℃ ºC 도|°F ℉ ºF 화씨|° º 도|TB 테라바이트|GB 기가바이트|MB 메가바이트|KB kB 킬로바이트|Kbps kbps 킬로비피에스
Mbps mbps Mb/s 메가비피에스|Gbps gbps Gb/s 기가비피에스|MB/s 메가바이트 퍼 초|GB/s 기가바이트 퍼 초
dpi DPI 디피아이|ppm 피피엠
Hz 헤르츠|kHz 킬로헤르츠|MHz 메가헤르츠|GHz 기가헤르츠|W 와트|kW KW ㎾ 킬로와트|MW 메가와트
kWh KWh kwh kW·h ㎾h 킬로와트시
MWh 메가와트시|Wh 와트시|V 볼트|kV 킬로볼트|mV 밀리볼트|A 암페어|mA 밀리암페어|mAh 밀리암페어시|Ah 암페어시|Ω 옴
dB 데시벨
kPa 킬로파스칼|hPa 헥토파스칼|MPa 메가파스칼|psi 피에스아이|bar 바|kcal Kcal 킬로칼로리|cal 칼로리|kJ 킬로줄
mmHg 수은주밀리미터
mg/kg 밀리그램 퍼 킬로그램|mL/kg ml/kg 밀리리터 퍼 킬로그램
mmol/L 밀리몰 퍼 리터|mg/dL mg/dl 밀리그램 퍼 데시리터|mg/L 밀리그램 퍼 리터|g/dL 그램 퍼 데시리터
g/L 그램 퍼 리터|IU 아이유
ms 밀리초|sec s 초|min 분|hr hrs h 시간|px 픽셀|inch in 인치|m² m2 m^2 ㎡ 제곱미터|km² km2 ㎢ 제곱킬로미터
cm² cm2 ㎠ 제곱센티미터
m³ m3 m^3 ㎥ 세제곱미터|cm³ cm3 ㎤ 세제곱센티미터|%p %P %포인트 퍼센트포인트|P 포인트|% 퍼센트|‰ 퍼밀
"""
UNITS: dict[str, str] = {}
for _entry in _TABLE.replace("\n", "|").split("|"):
    _words = _entry.split(" ")
    _n_written = next((n for n, word in enumerate(_words) if re.search("[가-힣]", word) and "%" not in word), 0)
    for _written in _words[:_n_written]:
        UNITS[_written] = " ".join(_words[_n_written:])

UNIT_CHARACTERS = "".join(written for written in UNITS if len(written) == 1 and not written.isascii())
"""Units in one character, such as ㎡, which may also stand without a number."""
_LEADS = ("화씨", "시속", "초속")
"""What is said of a unit before its number."""

_NATIVE_TO_99 = "개 명 살 마리 병 권 장 대 달 잔 시간 사람 번째 가지 그릇 벌 켤레 송이 그루 자리 알"
_NATIVE_TO_20 = (
    "건 통 팀 칸 상자 캔 끼 종류 모 채 세트 줄 군데 식구 곳 봉지 봉 포대 박스 포기 쌍 자루 갑 컵 조각 접시 묶음 다발 "
    "차례 방울 마디 글자 자 "
    "단어 문장 계좌 팩 캡슐 스푼 티스푼 테이블스푼 숟갈 큰술 작은술 꾸러미 그룹 바퀴 걸음 뼘 손가락 손 집 "
    "정거장 정류장 해 판 척 개피 포 매 정 본"
)
_NATIVE_TO_12, _NATIVE_TO_10 = "시", "배"
_TO_5, _ENGLISH = ("룸", "베이", "샷"), ("", "원", "투", "쓰리", "포", "파이브")
"""Counters behind English numbers: 쓰리룸."""
NATIVE = {
    counter: limit
    for limit, counters in ((99, _NATIVE_TO_99), (20, _NATIVE_TO_20), (12, _NATIVE_TO_12), (10, _NATIVE_TO_10))
    for counter in counters.split(" ")
} | dict.fromkeys(_TO_5, 5)
"""Counters with native numbers, and up to which number."""
_SINO = (
    "원 년 학년 학년도 연도 월 일 분 초 개월 개국 개소 주 주일 주년 년대 회 회선 차 층 동 호 호선 단계 단지 "
    "구간 세 세대 인 인분 등 등급 위 급 점 평 쪽 "
    "페이지 킬로 미터 센티 밀리 그램 리터 톤 퍼센트 퍼 프로 달러 센트 엔 유로 위안 파운드 루피 바트 "
    "포인트 마일 볼트 와트 인치 칼로리 배럴 도 조 항 절 기가 메가 테라 "
    "바이트 박 인용 인당 영업일 일간 년간 교시 과목 과 시즌 권역 병동 강 종 편 부 화 기 면 열 행 실 관 번길 가 "
    "십 백 천 만 억 조 여"
)
_NOT_COUNTED = {
    "인": "가데지줄", "일": "까지수", "부": "터", "주": "세시", "여": "기", "도": "록", "만": "약", "과": "정",
    "기": "억", "장": "면", "본": "부인",
}  # fmt: skip
_N_AT_MOST = {"가": "(?<![0-9]{2})", "과": "(?<![0-9]{2})", "면": "(?<![0-9]{3})", "도": "(?<![0-9]{4})"}
"""Behind longer numbers these are particles."""
ENDS = (
    "(?![가-힣])|이상|이하|이내|이[나며고랑에요지]?(?![가-힣]{2})|[가은는을를의에도만와과나요씩당로]|으로|입|"
    "까지|부터|보다|밖|정도|미만|초과|여"
    "|[중전후간째짜더들]|마다|뿐|쯤|가량|내외|예요|였|인데|인가|남|반|정각|경|하고|랑|배기|맞|추가|주세|있|남았"
    "|이?[면죠네든](?![가-힣]{2})|이?지(?:만|요|(?![가-힣]))|고(?![가-힣])|니(?:까|(?![가-힣]))|이?라[고서도면며는니지던]|일(?:지|까|(?![가-힣]))|"
    "인(?:지|(?![가-힣]))|이?군요|거든|잖아|"
    "래요?(?![가-힣])|처럼|보단|까진|한테|께서"
)
"""What may follow a native counter. 3권역 and 7대양 are other words."""


def _any_of(words: dict[str, int] | list[str]) -> str:
    return "|".join(
        _N_AT_MOST.get(word, "") + re.escape(word) + (f"(?![{_NOT_COUNTED[word]}])" if word in _NOT_COUNTED else "")
        for word in sorted(words, key=len, reverse=True)
    )


_SINO_ANY = _any_of(_SINO.split(" "))
WRITTEN = "|".join(re.escape(written) for written in sorted(UNITS, key=len, reverse=True))
UNIT = re.compile(
    rf"(?: ?(?:(?P<written>{WRITTEN})(?![A-Za-z0-9²³])|(?P<money>{CURRENCY})|(?P<weak>번(?!째|길)(?:지|대)?)"
    rf"|(?P<native>{_any_of(NATIVE)})(?={ENDS}))|(?P<sino>{_SINO_ANY})| (?P<apart>{_SINO_ANY})(?={ENDS}))"
)
"""A unit or counter behind a number."""

_ONLY_ONE = re.compile(" ?만 ?(?:누르|눌|고르|골라|선택|입력|맞|빼|해당)")
"""Behind 1, where 만 is a particle: 1만 누르세요. As ten thousand, 일만 is understood too."""
_MACHINES = re.compile(
    "차|트럭|버스|컴퓨터|PC|노트북|에어컨|TV|티비|기기|인터넷|전화|폰|택시|오토바이|자전거|서버|카메라|단말|"
    "셋톱|냉장고|세탁기"
)
_ON_THE_MOVE = re.compile(" ?대(?:를|씩)? ?(?:주차|한정|판매|출고|운행|출발|등록|연결|설치|보유)")
_GREAT = re.compile(
    r" ?대 ?(?:[0-9]|째(?! ?(?:기기|휴대폰|폰|차|TV|단말))|불가사의|보험|도시|명산|영양소|암|과제|원칙|요소|의무|강|궁|"
    r"운동|거짓말|뉴스|성인|사건)"
)
_TIMES_AFTER = re.compile(
    r" ?번 ?(?:틀|더|이상|이하|이내|미만|정도|만에|째|씩|연속|전화(?!번)|방문|배송|연락|실패|시도|반복|재시도|"
    r"확인|오류|거절|드세|드시|복용|먹|바르|뿌|왔|했|갔|봤"
    r"|들르|충전|사용|결제|나눠|나누|갈아|환승|주문|복습|받)"
)
_TIMES_BEFORE = re.compile(
    r"(?:하루에?|매일|매주|매달|[주달월년] ?(?:일)?에|시간에|다시|최대|벌써|이미|연속|지금까지|모두|평균|"
    r"한 ?달에|일주일에|연간|월|총|꼭|결석|지각|조퇴|씩) ?$"
)
_PEOPLE = re.compile(
    r" ?분(?:이|만|께서|은|도|의)? ?(?:더 ?)?(?:대기 ?중이[시세신십]|가입|계[시십신]|오[시셨십]|참석|신청|탑승|"
    r"예약(?! ?(?:지연|가능|간격|단위|시간|변경))|방문하|모두|께|타[시실])|"
    r" ?분이(?:신[가지데]|시[죠고며]|세요|서)|분[,과와]? [가-힣 ]{1,12}[1-9] ?분 ?예약"
)
_PERSONS = re.compile(
    "(?:고객|손님|환자|승객|동승자|보호자|어르신|회원|일행|인원|성인|어른|어린이|아동|아이|신청자|참석자|방문자|방문객|"
    "투숙객|대기자|하객|부모님|부부|신랑|신부|가족)(?:님|수)?[은는이가]? ?(?:총|모두)? ?$"
)
_TIME_BEFORE = re.compile("(?:시|시간)[은이]? ?(?:약|총|최대)? ?$")
_OF_PERSONS = re.compile(
    " ?분(?:$|[,.의께도과와]|입니다|이?[고며](?![가-힣])|이[시십신세에]|예요|인데|이 (?![지남걸소])|을 (?!받)|"
    "만?(?: ?까지)? ?(?:모두|다 |함께|같이|계[시십]|오[시셔셨십]|예약|참석|탑승|입장|면회|포함|동반|식사|메이크업|관람|"
    "투숙|티켓|좌석|자리))"
)
_THINGS = {
    "부": re.compile(
        "(?:(?<![순해가와라아어여에려])서|증|[등초사원정]본|서류|신문|책자|카탈로그|안내문|성적표|도면)"
        "[을를은는이가]? ?(?:각|총)? ?$"
    ),
    "종": re.compile("(?:부품|상품|제품|음료|색상|메뉴|옵션|할인|혜택|쿠폰|사은품|디저트|안주|반찬|과일|소스) ?$"),
    "기": re.compile("(?:모터|엘리베이터|승강기|충전기|발전기|보일러) ?$"),
    "점": re.compile("(?:상품|제품|작품|물품|전시품|세탁물|소지품|의류|가구|그림|품목)[은는이]? ?$"),
}
"""Words before a counter that has native numbers behind them only: 서류 두 부, not 공연 이 부."""
_COPIES = re.compile(" ?부[를는만씩]? ?(?:복사|출력|인쇄|제출|발급|보관|보내)")
_NO_THINGS = re.compile(" ?(?:점(?: ?만점|을 받)|부작)")


def count(number: str, counter: str, left: str = "", right: str = "") -> str:
    """`number` as it is said before `counter`. `left` and `right` are the text around the number."""
    if not number.isdigit() or len(number) > 3:
        return amount(number)
    value = int(number)
    if left.endswith("제"):
        return cardinal(value)
    if number == "1" and counter == "만" and (left.endswith(("분의", "분의 ")) or _ONLY_ONE.match(right)):
        return "일"
    if number == "1" and counter in ("십", "백", "천", "만"):
        return ""
    if counter == "번째" and value == 1:
        return "첫 "
    if counter == "월":
        return {6: "유", 10: "시"}.get(value, cardinal(value))
    limit = NATIVE.get(counter, 0)
    if counter == "번":
        is_rank = re.match(" ?번 ?[을창출버게]", right)
        limit = 20 if _TIMES_AFTER.match(right) or (_TIMES_BEFORE.search(left) and not is_rank) else 0
    elif counter == "분":
        limit = 10 if _are_people(left, right) else 0
    elif counter == "시간":
        limit = 19
    elif _COPIES.match(right) or (counter in _THINGS and _THINGS[counter].search(left) and not _NO_THINGS.match(right)):
        limit = 20
    elif counter == "대" and not _is_counted(value, left, right):
        limit = 0
    if not 1 <= value <= limit:
        return cardinal(value)
    return _ENGLISH[value] if counter in _TO_5 else native(value)


def _are_people(left: str, right: str) -> bool:
    """Whether 분 counts people: 고객 네 분, 네 분이신가요, not 세 시 사 분."""
    if _TIME_BEFORE.search(left):
        return False
    return bool(_PEOPLE.match(right) or (_PERSONS.search(left) and _OF_PERSONS.match(right)))


def _is_counted(value: int, left: str, right: str) -> bool:
    """Whether 대 counts machines: not 20대 (age), 4대 보험 (the four) or 3대 2 (score)."""
    if _GREAT.match(right):
        return False
    return value % 10 != 0 or _MACHINES.search(left) is not None or _ON_THE_MOVE.match(right) is not None


def measure(numbers: Sequence[str], joint: str, written: str, left: str = "") -> str:
    """Numbers with `joint` between and a unit in letters or signs: 100°F -> "화씨 백 도"."""
    name = UNITS[written]
    *first, last = numbers
    said = joint.join([*map(amount, first), count(last, name) if name == "시간" else amount(last)])
    lead, _, unit = name.partition(" ")
    if lead not in _LEADS:
        return f"{said} {name}"
    return f"{'' if left.rstrip().endswith(lead) else lead + ' '}{said} {unit or '도'}"
