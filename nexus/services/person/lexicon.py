"""The words by which a mood is told, in English and Chinese, and what changes their meaning.

Written for Nexus from scratch: no entry is taken from another lexicon, list or data set. Licensed as the repository is
(MIT). Entries are in lower case and in simplified characters. A longer one outranks those that it contains, and so
`NOTHING` keeps a word from being read in another (`麻烦` is no `烦`).
"""

from collections.abc import Mapping
from typing import Final, Literal

Label = Literal["cheerful", "calm", "sad", "angry", "worried", "tired"]

# By mood and strength: 1 says little by itself, 2 is plain, 3 is strong.
FEELINGS: Final[Mapping[Label, Mapping[int, str]]] = {
    "cheerful": {
        1: """
            glad, pleased, amused, hopeful, optimistic, fun, enjoy, enjoyed, enjoying, smile, smiling, great,
            lovely, awesome, amazing, wonderful, fantastic, looking forward, 不错, 有趣, 好玩, 满意, 欣慰, 期待, 棒,
            有盼头, 满足, 嘻嘻
        """,
        2: """
            happy, happier, happiness, joy, joyful, cheerful, cheery, merry, delighted, excited, proud, love, loved,
            loving, laughing, yay, hooray, hurray, woohoo, haha, can't wait, so good, in high spirits, feel great,
            feeling great, feel good, feeling good, 开心, 高兴, 快乐, 愉快, 喜悦, 欣喜, 兴奋, 自豪, 骄傲, 幸福,
            欢喜, 欢乐, 哈哈, 真棒, 好耶, 爽, 心情好, 心情很好, 心情不错, 激动, 惊喜, 痛快, 得意, 甜蜜, 庆幸,
            好开森, 开森, 笑死, 😀, 😁, 😄, 😊, 😂, 🤣, 😃, 😍, 🥰, 🎉
        """,
        3: """
            thrilled, overjoyed, ecstatic, elated, over the moon, on cloud nine, best day ever, 太好了, 太棒了,
            欣喜若狂, 雀跃, 乐坏了, 高兴坏了, 开心坏了, 喜极而泣, 乐开了花, 🥳
        """,
    },
    "calm": {
        1: """
            comfortable, relaxing, soothing, chilled, rested, grounded, 舒服, 自在, 冷静, 悠闲, 安稳, 没事了, 悠哉
        """,
        2: """
            calm, calmer, calmly, relaxed, relieved, relief, peaceful, tranquil, reassured, soothed, at ease,
            at peace, peace of mind, unwinding, 平静, 安心, 放心, 踏实, 轻松, 放松, 松了口气, 松了一口气, 淡定,
            从容, 舒坦, 惬意, 宁静, 安宁, 心安, 释然, 看开了, 想开了, 坦然, 安逸, 静下来, 心里有底, 😌, 🧘
        """,
        3: "serene, serenity, 心平气和, 心如止水, 如释重负",
    },
    "sad": {
        1: """
            alone, hurt, hurts, regret, disappointing, gloomy, depression, let down, down lately, 遗憾, 可惜, 惋惜,
            心疼, 没意思, 哭, 丧
        """,
        2: """
            sad, sadder, sadly, sadness, unhappy, not happy, upset, disappointed, lonely, loneliness, cry, crying,
            cried, tears, teary, weeping, sorrow, melancholy, homesick, bummed, dejected, depressing, feel down,
            feeling down, feel low, feeling low, feel empty, feeling empty, feeling blue, miss her, miss him,
            miss them, miss you, emo, 难过, 伤心, 悲伤, 难受, 不好受, 不开心, 不高兴, 不快乐, 委屈, 失落, 失望,
            沮丧, 郁闷, 低落, 心酸, 心痛, 想哭, 哭了, 流泪, 眼泪, 泪目, 孤独, 孤单, 寂寞, 伤感, 忧伤, 忧郁, 消沉,
            灰心, 心寒, 无助, 悲哀, 凄凉, 惆怅, 空虚, 扎心, 闷闷不乐, 呜呜, 悔恨, 后悔, 心情不好, 心情很差, 心情糟,
            😢, 😞, 😔, 🥺, ☹, 🙁
        """,
        3: """
            heartbroken, devastated, grief, grieving, mourning, depressed, hopeless, miserable, worthless, sobbing,
            despair, gutted, broken hearted, heart is broken, falling apart, 心碎, 崩溃, 绝望, 痛苦, 抑郁, 悲痛,
            大哭, 痛哭, 心灰意冷, 撕心裂肺, 生无可恋, 万念俱灰, 😭, 💔
        """,
    },
    "angry": {
        1: """
            annoyed, annoying, irritated, irritating, bitter, unfair, ridiculous, stupid, useless, grumpy, cranky,
            damn, 烦, 过分, 无语, 离谱, 凭什么, 怒, 恶心
        """,
        2: """
            angry, angrier, anger, mad, frustrated, frustrating, frustration, hate, hated, hating, resent,
            resentful, disgusted, unacceptable, offended, wtf, dammit, sick of, tired of, had enough, can't stand,
            cannot stand, how dare, pissing me off, 生气, 恼火, 恼怒, 发火, 火大, 烦人, 烦躁, 讨厌, 恨, 可恨, 可恶,
            不爽, 不满, 受不了, 太过分, 妈的, 该死, 窝火, 憋屈, 来气, 厌恶, 厌烦, 不耐烦, 发脾气, 😠, 😤
        """,
        3: """
            furious, rage, raging, livid, outraged, enraged, infuriating, infuriated, seething, pissed, pissed off,
            fed up, sick and tired, driving me crazy, driving me mad, 愤怒, 气愤, 气死, 气死我了, 气炸, 烦死,
            忍无可忍, 暴怒, 抓狂, 混蛋, 王八蛋, 他妈的, 岂有此理, 欺人太甚, 😡, 🤬
        """,
    },
    "worried": {
        1: """
            worries, concerned, stress, uneasy, restless, unsettled, can't sleep, 压力, 愁, 怕, 可怕, 吓人, 恐怖,
            睡不着, 失眠, 没底, 顾虑, 怎么办
        """,
        2: """
            worried, worry, worrying, worries me, anxious, anxiety, nervous, scared, afraid, fear, fearful,
            frightened, stressed, stressful, overwhelmed, overwhelming, dread, dreading, insecure, desperate,
            doomed, apprehensive, alarmed, jittery, on edge, losing sleep, butterflies in my stomach, 担心, 担忧,
            焦虑, 紧张, 害怕, 慌, 慌张, 心慌, 慌了, 不安, 忐忑, 发愁, 犯愁, 忧虑, 着急, 焦急, 压力大, 压力好大,
            压力很大, 压力太大, 惴惴不安, 心里没底, 悬着, 😟, 😰, 😨, 😬
        """,
        3: """
            terrified, petrified, panic, panicking, panicked, freaking out, freaked out, worried sick,
            scared to death, 恐惧, 恐慌, 惊慌, 惊恐, 急死, 提心吊胆, 心神不宁, 坐立不安, 惶恐, 吓死, 吓坏, 胆战心惊,
            心惊肉跳, 😱
        """,
    },
    "tired": {
        1: "drowsy, tiring, jaded, run down, need a break, need sleep, 困, 无力, 熬夜, 想睡, 倦",
        2: """
            tired, sleepy, weary, fatigue, fatigued, drained, draining, exhausting, burnout, sleepless,
            sleep deprived, overworked, wiped out, no energy, out of energy, barely awake, can't keep my eyes open,
            累, 疲惫, 疲倦, 疲劳, 疲乏, 乏力, 没劲, 没力气, 没精神, 犯困, 打瞌睡, 撑不住, 扛不住, 吃不消, 倦怠,
            过劳, 透支, 劳累, 没精打采, 睡不够, 没睡好, 😴, 🥱, 😩, 😫
        """,
        3: """
            exhausted, exhaustion, knackered, worn out, burnt out, burned out, dead tired, running on fumes,
            dead on my feet, 累死, 困死, 累坏, 累垮, 累趴, 筋疲力尽, 精疲力尽, 精疲力竭, 心累, 身心俱疲, 心力交瘁,
            虚脱
        """,
    },
}

# What a negated mood says, if anything: somebody who is not angry may be anything else.
NEGATED: Final[Mapping[Label, Label]] = {"cheerful": "sad", "calm": "worried", "worried": "calm"}

# Phrases that have an entry in them and say nothing of a mood.
NOTHING: Final = """
    happy birthday, happy new year, happy christmas, happy holidays, happy to, glad to, pleased to, love to,
    would love, great britain, no worries, don't worry, dont worry, not to worry, not bad, i'm afraid so,
    i'm afraid not, i'm afraid that, i'm afraid i can't, i'm afraid i cannot, calm down, angry birds, kernel panic,
    panic button, stress test, stress tests,
    stress testing, rage quit, leave me alone, let alone, stand alone, memory exhausted, pool exhausted,
    retries exhausted, quota exhausted, fear of missing out, not only, not just, 麻烦, 烦请, 恐怕, 怕是, 哪怕,
    恨不得, 困难, 困扰, 困惑, 困境, 贫困, 积累, 累计, 累积, 你放心, 放心吧, 请放心, 别担心, 不用担心, 不必担心,
    别怕, 别着急, 别紧张, 不得不, 不仅, 不但, 不光, 你好, 还好, 最好, 好像, 正好, 刚好, 只好, 太阳, 太太, 太极,
    真正, 爽约, 丧失, 开心果, 生日快乐, 新年快乐, 节日快乐, 圣诞快乐, 周末愉快, 旅途愉快, 合作愉快, 没事, 无论,
    无限, 无线, 无聊, 未来, 没关系, 没问题, 别人的, 性别, 区别, 类别, 级别, 识别, 个别, 分别, 告别, 超市, 超过,
    十分钟
"""

# A word that ends in n't is one, too.
NEGATORS: Final = """
    not, no, never, without, cannot, hardly, barely, neither, nor, dont, doesnt, didnt, isnt, wasnt, arent, wont,
    cant, couldnt, no longer, not at all, 不, 没, 没有, 别, 无, 未, 并不, 并没有, 从不, 不再, 不是, 毫无, 毫不,
    不会, 不太, 不怎么, 不那么, 不用, 不必, 没那么
"""

# Words before a mood that make it stronger or weaker, and those that do so behind it.
STRONGER: Final = """
    very, so, really, extremely, super, incredibly, totally, absolutely, completely, too, such, truly, deeply,
    utterly, terribly, awfully, unbelievably, insanely, genuinely, seriously, freaking, fucking, bloody, beyond,
    more and more, 很, 非常, 特别, 太, 超, 超级, 极, 极其, 极度, 真, 真的, 好, 十分, 相当, 格外, 实在, 实在太, 多么,
    那么, 这么, 如此, 越来越, 无比, 万分, 一点都, 一点也, 一点儿都, 一点儿也
"""
WEAKER: Final = """
    slightly, somewhat, mildly, fairly, kinda, a bit, a little, a little bit, kind of, sort of, a tad, 有点, 有点儿,
    有些, 稍微, 略, 一点, 一点点, 些许, 还算, 微微
"""
STRONGER_BEHIND: Final = (
    "as hell, to death, so much, like crazy, 死了, 死我了, 极了, 坏了, 得很, 透了, 得要命, 得要死, 得不行, 到爆"
)

# Who is spoken of: the person, somebody else, or a thing, unless the person was named before it.
MYSELF: Final = (
    "i, i'm, im, i've, ive, i'd, i'll, me, myself, we, we're, we've, us, 我, 我们, 咱, 咱们, 本人, 自己, 我的心情"
)
OTHERS: Final = """
    he, she, they, you, he's, she's, they're, you're, him, them, people, someone, somebody, everyone, everybody,
    anyone, users, don't be, dont be, 他, 她, 它, 他们, 她们, 你, 您, 你们, 大家, 别人, 人家, 有人, 有些人, 客户,
    用户
"""
THINGS: Final = """
    a, an, the, this, that, these, those, some, my, our, your, his, her, its, their, it, it's, what, why, 我的,
    你的, 他的, 她的, 一个, 一首, 一篇, 一封, 一部, 一段, 一种, 这个, 那个, 这首, 这部, 那首, 那部, 什么, 为什么
"""

# Words with which another clause begins.
TURNS: Final = "but, however, because, although, though, yet, 但, 但是, 可是, 不过, 只是, 因为, 而是, 虽然, 然而"

# The traditional characters of the entries, and the simplified ones in their place.
TRADITIONAL: Final = (
    "開難過傷擔憂慮緊張煩氣憤惱壓樂興歡滿輕鬆靜寧憊勞絕淚獨單討厭無沒個點極這們裡實別還鬱悶慶為壞嚇驚著麼"
    "夠驕奮悅媽彆從來會該後發關題當兒頭憑動勁盡悵愜擾撐積穩窩類級節虛雖論識貧遺釋鐘錯問閒陽顧脫膽喪僅涼剛"
    "區戀惡懸戶潰線種計許請誕負豈週約聖"
)
SIMPLIFIED: Final = (
    "开难过伤担忧虑紧张烦气愤恼压乐兴欢满轻松静宁惫劳绝泪独单讨厌无没个点极这们里实别还郁闷庆为坏吓惊着么"
    "够骄奋悦妈别从来会该后发关题当儿头凭动劲尽怅惬扰撑积稳窝类级节虚虽论识贫遗释钟错问闲阳顾脱胆丧仅凉刚"
    "区恋恶悬户溃线种计许请诞负岂周约圣"
)
