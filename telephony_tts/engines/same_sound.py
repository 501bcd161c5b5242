"""Chinese characters that sound as wanted, for engines that read characters and take no phonemes.

For each syllable of pinyin the table has a common character that has this reading alone or far more often than another.
Syllables without such a character, and those in the neutral tone, are missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from telephony_tts.engines.api import Pronunciation


def with_same_sounds(text: str, pronunciations: Iterable[Pronunciation]) -> str:
    """`text` with another character for each whose pinyin is given, as long as before.

    A character stays where the table has none for its syllable, or where the number of syllables is wrong.
    """
    characters: list[str] | None = None
    for each in pronunciations:
        if each.alphabet != "pinyin":
            continue
        characters = characters or list(text)
        syllables = each.value.split()
        if len(syllables) == each.end - each.start:
            for at, syllable in enumerate(syllables, each.start):
                characters[at] = _CHARACTERS.get(syllable, text[at])
    return text if characters is None else "".join(characters)


# Made from the readings and phrases of pypinyin 0.55. The first level of GB 2312 has the common characters.
_TABLE = """
    ai1哀 ai2皑 ai3矮 ai4爱 an1安 an4案 ang2昂 ang4盎 ao1凹 ao2翱 ao3袄 ao4骜 ba1巴 ba4坝 bai2白 bai3摆 bai4败
    ban1班 ban3板 ban4办 bang1帮 bang3绑 bang4棒 bao1褒 bao2雹 bao3保 bao4报 bei1悲 bei3北 bei4备 ben3苯 ben4笨
    beng1崩 beng4蹦 bi1逼 bi2鼻 bi3笔 bi4必 bian1编 bian3贬 bian4变 biao1标 biao3表 bie1鳖 bin1宾 bin4摈 bing1兵
    bing3饼 bing4病 bo1拨 bo2博 bu3补 bu4步 ca1擦 cai1猜 cai2财 cai3彩 cai4菜 can1骖 can2残 can3惨 can4灿 cang1苍
    cao1操 cao2曹 ce4测 ceng2层 cha2茶 cha4岔 chai1钗 chai2豺 chan1搀 chan2蝉 chan3产 chang1猖 chang2肠 chang4唱
    chao1钞 chao2潮 chao3炒 che3扯 che4彻 chen2尘 chen3碜 chen4衬 cheng1撑 cheng2成 cheng3骋 cheng4秤 chi1痴 chi2持
    chi3齿 chi4赤 chong1充 chong2崇 chong3宠 chou1抽 chou2筹 chou3丑 chu1出 chu2锄 chu3楚 chu4触 chuan1川 chuan2船
    chuan3喘 chuang1疮 chuang2床 chuang3闯 chui1炊 chui2锤 chun1椿 chun2纯 chun3蠢 chuo1戳 chuo4辍 ci2词 ci3此
    ci4赐 cong1聪 cong2丛 cou4凑 cu1粗 cu4蹙 cuan1蹿 cuan4窜 cui1催 cui4翠 cun1村 cun2存 cun3忖 cun4寸 cuo1磋
    cuo4错 da3打 da4大 dai1呆 dai3傣 dai4带 dan1丹 dan4旦 dang3党 dang4荡 dao3导 dao4到 de2德 deng3等 deng4瞪 di1低
    di2涤 di4帝 dian1颠 dian3点 dian4电 diao1雕 diao4吊 die1爹 die2叠 ding1叮 ding3顶 ding4定 diu1丢 dong1东
    dong3懂 dong4动 dou1兜 dou3抖 dou4豆 du1督 du2独 du3睹 du4妒 duan1端 duan3短 duan4断 dui1堆 dui4对 dun1墩
    dun4钝 duo1多 duo2夺 duo3躲 duo4舵 e2额 e4饿 en1恩 er3尔 er4二 fa2罚 fa3法 fa4珐 fan1翻 fan2凡 fan3返 fan4饭
    fang1芳 fang2防 fang3访 fang4放 fei1飞 fei3诽 fei4费 fen1纷 fen2坟 fen3粉 fen4愤 feng1风 feng2逢 feng4凤 fu1肤
    fu2浮 fu3府 fu4复 ga1嘎 gai1该 gai3改 gai4钙 gan1肝 gan3敢 gan4赣 gang1刚 gang3港 gao1糕 gao3稿 ge1歌 ge2阁
    ge4铬 gen1根 gen4亘 geng1耕 geng3梗 gong1公 gong3汞 gong4贡 gou1钩 gou3狗 gou4垢 gu1孤 gu3鼓 gu4顾 gua1瓜
    gua3寡 gua4挂 guai1乖 guai3拐 guai4怪 guan1关 guan3管 guan4贯 gui1归 gui3鬼 gui4贵 gun3滚 gun4棍 guo1锅 guo2国
    guo3裹 guo4过 hai2孩 hai3海 hai4骇 han1憨 han2寒 han3喊 han4汉 hang2航 hao2毫 he2河 he4鹤 hei1黑 hen2痕 hen3很
    hen4恨 heng1亨 heng2衡 hong1轰 hong2鸿 hou2猴 hou3吼 hou4后 hu1乎 hu2胡 hu4户 hua1花 hua2猾 hua4话 huai2槐
    huai4坏 huan1欢 huan2环 huan3缓 huan4换 huang1肓 huang2黄 huang3谎 hui1灰 hui2回 hui3悔 hui4汇 hun1婚 hun2魂
    hun4诨 huo2活 huo4货 ji1鸡 ji2极 ji3挤 ji4计 jia1加 jia2颊 jia3甲 jia4架 jian1坚 jian3简 jian4建 jiang1江
    jiang3奖 jiang4匠 jiao1交 jiao3搅 jiao4较 jie1街 jie2竭 jie3解 jie4界 jin1今 jin3锦 jin4进 jing1京 jing3警
    jing4镜 jiong3窘 jiu1纠 jiu3酒 jiu4就 ju1驹 ju2局 ju3举 ju4聚 juan1鹃 juan4倦 jue2绝 jun1军 jun4峻 ka1喀 kai1开
    kai3慨 kai4忾 kan1刊 kan3砍 kang1糠 kao3考 kao4靠 ke1柯 ke4克 ken3肯 kong3孔 kong4控 kou1抠 kou3口 kou4扣 ku1哭
    ku3苦 ku4库 kua1夸 kua3垮 kua4跨 kuai4快 kuan1宽 kuan3款 kuang1筐 kuang2诳 kuang4矿 kui1窥 kui2葵 kui4愧 kun1坤
    kun4困 kuo4阔 la1拉 la3喇 la4辣 lai2来 lai4赖 lan2兰 lan3懒 lan4烂 lang2廊 lang3朗 lao1捞 lao2劳 lao3老 lao4涝
    lei2镭 lei3磊 lei4类 leng3冷 leng4愣 li2璃 li3理 li4力 lian2连 lian3脸 lian4练 liang2梁 liang3两 liang4谅
    liao2疗 liao4撂 lie4烈 lin2林 lin3凛 lin4吝 ling2灵 ling3领 ling4另 liu2流 liu3柳 long2龙 long3拢 lou2楼 lou3篓
    lou4陋 lu1噜 lu2炉 lu3鲁 lu4录 luan2峦 luan3卵 luan4乱 lun2轮 lun4论 luo2螺 luo3裸 luo4骆 lv2驴 lv3履 lv4律
    lve4略 ma1妈 ma2麻 ma3马 ma4骂 mai2埋 mai3买 mai4卖 man2瞒 man3满 man4漫 mang2盲 mao1猫 mao2茅 mao3卯 mao4帽
    mei2眉 mei3美 mei4媚 men2门 meng2檬 meng3猛 meng4梦 mi2弥 mi3米 mi4密 mian2棉 mian3勉 mian4面 miao2苗 miao3渺
    miao4庙 mie4灭 min2民 min3敏 ming2鸣 ming3酩 ming4命 miu4谬 mo1摸 mo2魔 mo4默 mou2谋 mu3拇 mu4目 na2拿 na4纳
    nai3奶 nai4奈 nan2男 nang2囊 nao2挠 nao3脑 nao4闹 ne4讷 nei3馁 nei4内 nen4嫩 neng2能 ni2霓 ni3你 ni4逆 nian1拈
    nian2黏 nian3碾 nian4念 niang2娘 niao3袅 nie1捏 nie4孽 nin2您 ning2凝 ning4佞 niu2牛 niu3钮 nong2农 nong4弄
    nu2奴 nu3努 nu4怒 nuan3暖 nuo2挪 nuo4诺 nve4虐 ou1欧 ou3偶 pa1啪 pa2琶 pa4怕 pai1拍 pai2牌 pan1攀 pan2盘 pan4判
    pang1乓 pang2庞 pang3耪 pao1抛 pao2咆 pao3跑 pei1胚 pei2陪 pei4配 pen1喷 pen2盆 peng1烹 peng2篷 peng3捧 peng4碰
    pi1披 pi2皮 pi3匹 pi4僻 pian1篇 pian2骈 pian4骗 piao1飘 piao2瓢 piao4票 pin1拼 pin2贫 pin3品 ping1乒 ping2评
    po1泼 po2婆 po4破 pou1剖 pu2璞 pu3普 qi1欺 qi2旗 qi3起 qi4器 qia1掐 qia4恰 qian1千 qian2钱 qian3谴 qian4欠
    qiang1枪 qiang2墙 qiao1敲 qiao2桥 qiao3巧 qiao4窍 qie3且 qie4窃 qin1钦 qin2琴 qin3寝 qin4沁 qing1轻 qing2情
    qing3请 qing4庆 qiong2穷 qiu1秋 qiu2求 qu1趋 qu2衢 qu3龋 quan2权 quan3犬 quan4劝 que1缺 que2瘸 que4确 qun2群
    ran2然 ran3染 rang2瓤 rang3壤 rang4让 rao2饶 rao3扰 rao4绕 re3惹 re4热 ren2人 ren3稔 ren4认 reng2仍 ri4日
    rong2荣 rong3冗 rou2柔 rou4肉 ru2如 ru3辱 ru4入 ruan3软 rui4锐 run4润 ruo4弱 sa3洒 sa4萨 sai1腮 sai4赛 san1三
    san3伞 sang1桑 sang3嗓 sao1骚 sao3嫂 se4瑟 sen1森 seng1僧 sha1杀 sha3傻 shai1筛 shai4晒 shan1山 shan3闪 shan4善
    shang1商 shang3赏 shao1烧 shao2韶 shao4绍 she1奢 she4社 shen1深 shen2神 shen3审 shen4肾 sheng1生 sheng2绳
    sheng4剩 shi1师 shi2时 shi3使 shi4世 shou1收 shou3手 shou4瘦 shu1书 shu2赎 shu3鼠 shu4树 shua3耍 shuai1摔
    shuai3甩 shuai4帅 shuang1霜 shuang3爽 shui3水 shui4睡 shun3吮 shun4顺 shuo1说 shuo4硕 si1丝 si3死 si4四 song1松
    song3耸 song4送 sou1艘 su1苏 su2俗 su4素 suan1酸 suan4算 sui1虽 sui2随 sui3髓 sui4岁 sun1孙 sun3损 suo3所 ta3獭
    ta4挞 tai1胎 tai4泰 tan1贪 tan2谈 tan3坦 tan4炭 tang2堂 tang3傥 tang4烫 tao1滔 tao2逃 tao3讨 tao4套 te4特
    teng2藤 ti1锑 ti2题 ti3体 ti4替 tian1天 tian2田 tian3腆 tiao2条 tiao4眺 tie1贴 tie3铁 ting1厅 ting2庭 ting3艇
    tong2铜 tong3统 tong4痛 tou1偷 tou4透 tu1突 tu2图 tuan2抟 tui1推 tui2颓 tui3腿 tui4退 tun2臀 tuo1托 tuo2驼
    tuo3妥 tuo4唾 wa1挖 wa2娃 wai1歪 wai4外 wan1弯 wan2玩 wan3晚 wan4腕 wang2王 wang3网 wang4望 wei1微 wei2违
    wei3伪 wei4未 wen1温 wen2文 wen3稳 wen4问 weng1翁 weng4瓮 wo1窝 wo3我 wo4卧 wu1屋 wu2芜 wu3五 wu4物 xi1西 xi2席
    xi4细 xia1瞎 xia2霞 xia4下 xian1先 xian2贤 xian3险 xian4线 xiang1香 xiang2详 xiang3想 xiang4向 xiao1消 xiao2淆
    xiao3小 xiao4笑 xie1些 xie2协 xie3写 xie4谢 xin1心 xin4衅 xing1星 xing2形 xing4性 xiong1胸 xiong2雄 xiu1修
    xiu3朽 xiu4秀 xu1虚 xu2徐 xu4序 xuan1宣 xuan2悬 xuan3选 xuan4绚 xue1靴 xue2学 xue3雪 xue4谑 xun1勋 xun2循
    xun4训 ya1鸭 ya2涯 ya4亚 yan1阉 yan2颜 yan3偃 yan4艳 yang1殃 yang2羊 yang3养 yang4漾 yao1腰 yao2摇 yao3舀
    yao4药 ye1椰 ye2爷 ye3冶 ye4业 yi1伊 yi2宜 yi3蚁 yi4义 yin1音 yin2银 yin3引 ying1鹰 ying2营 ying3影 ying4硬
    yong1拥 yong3勇 yong4用 you1幽 you2尤 you3友 you4右 yu1迂 yu2鱼 yu3宇 yu4玉 yuan1渊 yuan2原 yuan3远 yuan4院
    yue1曰 yue4岳 yun2云 yun3陨 yun4韵 za1匝 za2砸 zai1灾 zai3宰 zai4在 zan4赞 zang1赃 zang4葬 zao1遭 zao2凿 zao3早
    zao4皂 ze2泽 ze4昃 zei2贼 zen3怎 zeng1憎 zeng4赠 zha1渣 zha2闸 zha3眨 zha4诈 zhai1摘 zhai2宅 zhai3窄 zhai4债
    zhan1瞻 zhan3展 zhan4战 zhang1张 zhang3掌 zhang4丈 zhao3沼 zhao4照 zhe1遮 zhe2辙 zhe3者 zhe4浙 zhen1真 zhen3诊
    zhen4阵 zheng1争 zheng3整 zheng4证 zhi1织 zhi2直 zhi3止 zhi4制 zhong1终 zhong3肿 zhong4仲 zhou1周 zhou2轴
    zhou3肘 zhou4骤 zhu1珠 zhu2竹 zhu3瞩 zhu4住 zhua1抓 zhuan1专 zhuan4篆 zhuang1装 zhuang4状 zhui1锥 zhui4坠
    zhun1谆 zhun3准 zhuo1捉 zhuo2浊 zi1资 zi3紫 zi4自 zong1宗 zong3总 zong4纵 zou1邹 zou3走 zou4奏 zu1租 zu3组
    zuan3纂 zui3嘴 zui4罪 zun1尊 zuo2昨 zuo3左 zuo4坐
"""
_CHARACTERS = {entry[:-1]: entry[-1] for entry in _TABLE.split()}
