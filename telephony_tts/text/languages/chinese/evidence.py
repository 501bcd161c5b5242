"""Mandarin words that say what a number beside them is."""

from __future__ import annotations

import re

from telephony_tts.text.reader import Evidence

_CODES = (
    "验证码|校验码|动态码|口令|密码|授权码|激活码|兑换码|邀请码|取件码|提货码|取餐码|取票码|取货码|提取码|券码|优惠码|识别码|安全码|邮编|邮政编码|"
    "序列号|流水号|编号|编码|尾号|尾数|末[两二三四五六2-6]位|后[两二三四五六2-6]位|前[两二三四五六2-6]位|卡号|账号|帐号|户号|单号|工号|学号|批号|箱号|表号|期号|座号|柜号|房号|账户|身份证|护照|"
    "车牌|门牌号?|分机|总机转|号码|代码|区号|设备号|股票|拨打?|致电|呼叫|传真|座机|手机|电话|热线|状态码|错误码|订单|工单|运单|航班|车次|房间|客房|病房|[议教诊公验训]室|包[厢间房]|雅间|卡座|[桌台]号|报警|火警|急救|事故|请打|可打|就打|"
    "单元|栋|幢|型号|波音|空客|端口|HTTP|PIN|OTP|CVV|PNR|IMEI|QQ|ID|code|Code|password|passcode|room|flight|ext|order|Order|号(?<![0-9一二三四五六七八九十]号)"
)
_LINK = (
    r"(?:[\s:：,，\"“”‘’「『（(【\[#*、]|号码?|编号|代码|是|为|即|的|码|分别|您|请|末尾|尾号|后|转|ID|No\.?|"
    r"(?:[^0-9，。]{0,8}，)?(?:比如|例如|如))*+$"
)
SCORED = re.compile(
    r"(?:比分|[生女男之]比|比例|配比|赔率|比率|比值|胜|负|战平|领先|落后|战胜|击败|大比分|[半全]场|战绩|大战)[^0-9，。,;；]{0,8}$"
)
COUNTED_UP = re.compile(
    r"(?:[共总近超满减价第]|约(?<!预约)|达(?<!到达)|加(?<!参加)|[乘除]以|[大小高低多少等]于|最[高低多少大小]|海拔|[转速密温高长宽深]度|转速|价格|合计|累计|超过|"
    r"达到|多达|至少|最多|余额|金额|积分|收入|支出|人数|数量|步数|销量|增至|等于|薪资|工资|月薪|预算|消费了?|刷卡|月供|充值|[实应支]付|花了|到账|转账|[租押定]金|运费|只[要需]|仅需?|[现原售到手]价|人均|成长值|净值|=)[为是有:：]?\s?$"
)
DATED = re.compile(
    r"(?:日期|时间|截至|截止|于|在|自|从|(?<!效期)至|(?<![做达不])(?<!效期)到|(?<!效)期|今天|明天|昨天|周[一二三四五六日天])[为是:：]?\s?$"
)
_CARD_ENDS = (
    r"(?:(?:(?:信用|银行|储蓄|[借贷]记)卡|卡片|卡号)[^券惠分活额礼权]{0,28}|(?:的|这张?|银联|VISA|Visa)卡的?)"
    r"有效期[至到][:：]?\s?$"
)
"""Month and year are pressed into a card. What else is valid until 11/30 ends on that day."""
EVIDENCE: dict[str, Evidence] = {
    "code": Evidence(
        near=re.compile(rf"(?:{_CODES}){_LINK}"),
        far=re.compile("验证码|密码|口令"),
        behind=re.compile(
            r"\s?(?:(?:打|拨|拨打)(?:个|一下)?(?:电话|热线)|(?:服务|客服|投诉|咨询|政务)?热线|号?(?:诊|会议|教|办公|包|客|病)?[室房](?!租|贷|产|屋|子|价)|"
            r"(?:是|为)(?:您|你)?的?(?:[\u4e00-\u9fff]{0,6})(?:验证码|密码|口令|单号|订单号|编号)|(?:包[厢间]|雅间)(?![费价])|报警|急救|火警|次列车|次航班|航班|"
            r"路(?:公交|车|汽车)?(?![程径线口由费])|开头|结尾|邮编|邮区)"
        ),
    ),
    "amount": Evidence(near=COUNTED_UP, behind=re.compile(r"\s?(?:左右|以[上下内]|上下)")),
    "range": Evidence(near=COUNTED_UP),
    "ratio": Evidence(near=SCORED, behind=re.compile("获?胜|战胜|击败|领先|落后|战平|[大险惜]胜")),
    "duration": Evidence(
        near=re.compile(r"(?:时长|用时|耗时|净时|完赛|马拉松.{0,20}成绩|历时|倒计时|持续|剩余)(?:时间)?[为是约了:：\s]{0,3}$")
    ),
    "month_day": Evidence(
        near=re.compile(
            rf"{DATED.pattern}|^(?!.*{_CARD_ENDS}).*有效期[至到][:：]?\s?$"
            r"|(?:券|优惠|活动|折扣|红包|积分)的?有效期[为是:：]?\s?$"
        ),
        behind=re.compile(
            r"日|号(?!线)|期间|\s?[(（](?:周|星期)|\s?(?:之?前|之?后|起|为?止|截止|到期|发货|送达|开[始售]|[0-9]{1,2}[:：点时]"
            r"|[-~至到]\s?[0-9]{1,2}[/月])"
        ),
    ),
    "expiry": Evidence(near=re.compile(r"有效期[为是至到:：]?\s?$")),
    "rating": Evidence(near=re.compile(r"(?:评分|得分|打分|成绩|评价|口碑)[为是:：]?\s?$")),
    "fraction": Evidence(behind=re.compile("[以的]")),
    "pair": Evidence(near=re.compile(r"压[是为:：]?\s?$"), behind=re.compile(r"\s?mmHg")),
    "version": Evidence(near=re.compile(r"(?:版本|固件|[vV]er\.?|[vV])[号为是:：]?\s?$")),
    "minus": Evidence(behind=re.compile(r"\s?=")),
    "date": Evidence(),
}  # fmt: skip
EVIDENCE["mixed_code"] = EVIDENCE["code"]
