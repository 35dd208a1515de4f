"""What every embedder does to a text first, and sentences by which vectors of an unknown model are placed."""

from typing import Final

# The beginning of a text tells its subject, and the rest costs time. In bytes, too, since many models take 512 tokens:
# 1,500 bytes of any language have fewer.
_MOST_CHARS: Final = 1_000
_MOST_BYTES: Final = 1_500

# What people and assistants say to each other, in the languages of most of them.
SAMPLES: Final = (
    "I moved to a smaller flat last month.",
    "What was the name of the restaurant we talked about?",
    "我上个月换了工作,现在每天骑车上班。",
    "你还记得我对什么食物过敏吗?",
    "Meine Schwester heiratet im Sommer in Hamburg.",
    "Quel jour avons-nous rendez-vous chez le dentiste ?",
    "Mi hijo empieza la escuela en septiembre.",
    "O voo de amanhã foi cancelado por causa da chuva.",
    "Вчера мы ездили к бабушке на дачу.",
    "昨日、新しいカメラを買いました。",
    "다음 주에 부산으로 출장을 가요.",
    "Quanto costa l'abbonamento per un anno?",
    "سافرت مع عائلتي إلى البحر الأسبوع الماضي.",
    "Bu akşam için iki kişilik masa ayırttım.",
    "Mijn fiets is gisteren bij het station gestolen.",
    "Kiedy ostatnio byliśmy razem w kinie?",
    "Sure, I have added milk and bread to your shopping list.",
    "The test fails because the file is opened twice.",
    "好的,我已经把会议改到星期四下午三点。",
    "这个函数在输入为空的时候会出错。",
    "Kannst du mir ein Buch über Geschichte empfehlen?",
    "J'ai couru dix kilomètres ce matin au bord de la rivière.",
    "¿Cuál es la contraseña de la red de invitados?",
    "Prefiro café sem açúcar, obrigado.",
    "Сколько стоит ремонт этого телефона?",
    "会議の資料は明日までに送ってください。",
    "오늘 날씨가 너무 더워서 집에 있었어요.",
    "Ho finito di dipingere la cucina di verde.",
    "ما هو أفضل وقت لزراعة الطماطم؟",
    "Kedim üç gündür hiçbir şey yemiyor.",
    "Hoe laat vertrekt de laatste trein naar Utrecht?",
    "Zepsuła mi się pralka i czekam na hydraulika.",
)


def shortened(text: str) -> str:
    """The beginning of a text, which any model takes; half surrogate pairs, which no JSON can carry, become `?`."""
    return text[:_MOST_CHARS].encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore")
