"""Han and kana letters of a Korean text in hangul, for voices that read nothing else.

KS X 1001 has 4,888 Han letters in the order of their Korean readings, and Python has its order as the codec euc_kr.
So a table of how many letters each reading has is a dictionary.
"""

from __future__ import annotations

import re
from bisect import bisect_right

_N_OF_EACH = (
    "가29각11간24갈10감20갑6강24개20객2갱4갹1거17건12걸4검7겁3게3격7견11결6겸6경45계24고39곡7곤10골3공16곶1과12"
    "곽4관17괄4광13괘3괴9굉4교25구54국6군6굴4궁6권10궐5궤6귀6규15균7귤1극7근15글1금14급7긍4기64긴1길4김1끽1나15"
    "낙8난9날2남9납5낭7내6냉1녀1년3념4녕2노18녹6논1농7뇌6뇨1누8눈1눌1뉴2늑2늠1능6니2닉2다2단20달5담17답5당11대16"
    "댁1덕2도40독10돈10돌2동17두11둔6득1등9라9락9란9랄2람10랍3랑8래4랭1략2량13려18력7련12렬6렴5렵1령18례5로18록7"
    "론1롱7뢰8료12룡1루13류14륙3륜6률4륭1륵2름1릉6리26린9림5립4마8막6만19말7망12매14맥5맹6멱2면11멸2명15몌1모24"
    "목7몰2몽3묘12무22묵2문12물3미19민13밀3박19반25발11방28배20백8번10벌4범9법2벽11변7별4병17보16복17본1볼1봉16"
    "부43북1분19불5붕6비43빈14빙4사60삭4산12살5삼8삽4상31새3색5생5서30석15선32설13섬8섭4성18세9소37속9손6솔1송8"
    "쇄5쇠2수61숙12순27술4숭3슬3습5승10시28식15신24실4심10십3쌍1씨1아18악14안10알4암8압4앙7애11액7앵4야11약9양31"
    "어10억5언6얼2엄6업2엔1여24역13연43열10염15엽4영40예24오30옥5온6올1옹9와8완18왈1왕5왜4외5요38욕6용24우32욱9"
    "운13울3웅2원27월3위25유56육7윤13율5융5은7을1음6읍3응4의19이38익8인24일9임11입5잉4자26작13잔5잠6잡1장37재17"
    "쟁4저28적25전41절8점9접3정55제23조46족4존2졸3종17좌5죄1주40죽2준19줄1중4즉1즐1즙3증11지34직5진35질15짐2집7"
    "징3차15착7찬15찰5참10창22채12책4처4척15천19철10첨10첩10청8체10초27촉6촌4총10촬1최3추24축11춘3출3충6췌4취14"
    "측5층1치24칙3친1칠3침9칩1칭2쾌1타14탁16탄10탈2탐4탑3탕5태14택3탱1터1토4통7퇴6투6특2틈1파16판9팔3패11팽4퍅1"
    "편10폄1평5폐10포28폭6표14품2풍5피7필10핍2하14학5한14할2함12합7항17해18핵2행5향9허4헌4헐1험2혁4현21혈4혐1협12"
    "형20혜9호41혹3혼6홀3홍10화14확6환17활5황24회20획2횡3효13후13훈10훙1훤4훼3휘8휴5휼3흉5흑1흔4흘4흠3흡4흥1희20"
    "힐1"
)
_READINGS, _STARTS = "", [0]
for _reading, _n in re.findall(r"(.)(\d+)", _N_OF_EACH):
    _READINGS += _reading
    _STARTS.append(_STARTS[-1] + int(_n))
_FIRST_ROW, _ROW, _FIRST_COLUMN = 0xCA, 94, 0xA1

_KANA = dict(zip(
    "ぁあぃいぅうぇえぉおかがきぎくぐけげこごさざしじすずせぜそぞただちぢっつづてでとど"
    "なにぬねのはばぱひびぴふぶぷへべぺほぼぽまみむめもゃやゅゆょよらりるれろゎわゐゑをんゔ",
    "아아이이우우에에오오카가키기쿠구케게코고사자시지스즈세제소조타다치지 쓰즈테데토도"
    "나니누네노하바파히비피후부푸헤베페호보포마미무메모야야유유요요라리루레로와와이에오은부",
    strict=True,
))  # fmt: skip
_LONG_VOWELS = dict(zip(range(21), "아애아애어에어에오오애오오우어에우우으이이", strict=True))
_OTHER = re.compile("[\u3041-\u30fa\u30fc\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_N_VOWELS, _N_FINALS = 21, 28
_NIEUN, _RIEUL, _IEUNG = 2, 5, 11
_IOTATED = frozenset((2, 3, 6, 7, 12, 17, 20))
"""The vowels before which a word does not begin with ㄴ or ㄹ: 여자 for 女子, 이 for 李."""


def in_hangul(text: str) -> str:
    """`text` with a syllable for each Han or kana letter, a blank where none is known. The offsets stay."""
    if not _OTHER.search(text):
        return text
    said: list[str] = []
    for char in text:
        said.append(_syllable(char, said[-1] if said else " ") if _OTHER.match(char) else char)
    return "".join(said)


def _syllable(char: str, before: str) -> str:
    if char == "ー":
        return _LONG_VOWELS[(ord(before) - 0xAC00) // _N_FINALS % _N_VOWELS] if _is_hangul(before) else " "
    if "ァ" <= char <= "ヴ":
        char = chr(ord(char) - 0x60)
    if char in _KANA:
        return _KANA[char]
    try:
        row, column = char.encode("euc_kr")
    except (UnicodeEncodeError, ValueError):
        return " "
    reading = _READINGS[bisect_right(_STARTS, (row - _FIRST_ROW) * _ROW + column - _FIRST_COLUMN) - 1]
    return reading if _is_hangul(before) else _at_the_beginning(reading)


def _is_hangul(char: str) -> bool:
    return "가" <= char <= "힣"


def _at_the_beginning(syllable: str) -> str:
    """The syllable as a word begins with it."""
    consonant, rest = divmod(ord(syllable) - 0xAC00, _N_VOWELS * _N_FINALS)
    if consonant == _NIEUN and rest // _N_FINALS in _IOTATED:
        consonant = _IEUNG
    elif consonant == _RIEUL:
        consonant = _IEUNG if rest // _N_FINALS in _IOTATED else _NIEUN
    return chr(0xAC00 + consonant * _N_VOWELS * _N_FINALS + rest)
