"""Checks of a summary: refusals, the language of the user, numbers, missing parts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.text.summary_checks import (
    LATIN,
    NAMES,
    evidence_in,
    failure_in,
    language_of,
    letters_of,
    name_of,
    numbers_in,
    refusal_in,
)
from nexus.services.turns.model_summary import evidence_of
from tests.nexus.unit.services.turns.literature import session
from tests.nexus.unit.services.turns.runs import Run

CHINESE = "请帮我搜索关于抑制剂对糖尿病患者心血管结局影响的文献"
ENGLISH = "Please find what there is about the inhibitors and their effect on the heart."


CLEAR: dict[str, list[str]] = {
    "zh": [
        "请帮我搜索关于 SGLT2 抑制剂对 2 型糖尿病患者心血管结局影响的文献",
        "使用关键词 'SGLT2 inhibitors cardiovascular outcomes type 2 diabetes' 搜索 PubMed 数据库，共 156 篇相关文献。",
        "調用了工具 search_pubmed，參數為 limit=200。結果：共 156 篇，HR 0.86，95% CI 0.80-0.93。",
    ],
    "ja": ["日本語の文章を要約してください。\n結果一覧\nカタカナだけの行もあります。"],
    "ko": ["안녕하세요 이 문서를 요약해 주시고 중요한 숫자를 모두 알려 주세요 부탁드립니다"],
    "en": [
        "Please find the reviews that are about SGLT2 inhibitors and heart failure.",
        "It searched PubMed with the terms that were given and found 156 articles, 15 of which are reviews.",
    ],
    "de": ["Bitte finde heraus, was über diese Mittel bekannt ist und welche Übersichten es nicht sind."],
    "fr": ["Cherche les articles qui parlent des inhibiteurs dans la base et dis-moi ce que tu as trouvé."],
    "es": ["Busca los artículos que hablan de los inhibidores en la base y dime lo que has encontrado."],
    "it": ["Cerca gli articoli che parlano degli inibitori nella banca dati e dimmi che cosa hai trovato."],
    "pt": ["Procura os artigos que falam dos inibidores na base de dados e diz-me o que não foi encontrado."],
    "nl": ["Zoek de artikelen die over de remmers gaan en zeg wat je hebt gevonden, maar niet te veel."],
    "CYRILLIC": ["Найди обзоры по ингибиторам и сердечной недостаточности для меня, пожалуйста"],
    "ARABIC": ["ابحث عن المراجعات التي تتحدث عن مثبطات وأمراض القلب في قاعدة البيانات"],
    "DEVANAGARI": ["कृपया हृदय रोग और मधुमेह की दवाओं के बारे में सभी लेख खोजें और बताएं"],
    "GREEK": ["Βρες όλα τα άρθρα για τους αναστολείς και την καρδιακή ανεπάρκεια σε παρακαλώ"],
}
UNCLEAR = [
    "",
    " \n ",
    "继续",
    "ok, go on",
    "156 15 0.86 0.80-0.93",
    "😀 😀 😀 😀 😀 😀 😀 😀 😀 😀",
    "SGLT2 inhibitors cardiovascular outcomes type 2 diabetes mellitus review randomised trial",
    '{"the": "and of to is that", "with": ["this for was are which from you have what please how"]}',
    "def f(x):\n    for item in the_list_of(x):\n        if not item and x[item] == 3: return {item: x}",
    "```\nPlease find the reviews that are about inhibitors and heart failure, and what they have in common.\n```",
    # An instruction in one language, and what it is about in another.
    "Summarise this text:\n这是一个关于人工智能的长篇文章，内容很多，需要总结。",
    "请总结下面这篇文章：\nWe conducted a study of the patients that were treated with the drug and been followed.",
    "What is it that they say in this text, and is it true?\nEs ist nicht so, dass die Mittel für alle und immer sind.",
    # Quoted words.
    "„Es ist nicht so, dass die Mittel für alle und immer sind.“",
    "Was that: 这是一个关于人工智能的长篇文章，内容很多，需要总结。",
    # Languages that look like others.
    "Jeg vil gerne have en oversigt over det som er på listen og ikke det andet, for det er en god ide",
    "Ek wil graag die lys van artikels hê en nie die ander nie, want dit is vir my en hulle belangrik",
    "Vull tots els articles que parlen dels inhibidors amb les dades i els resultats, i que ha trobat",
    "Bu konuda yazılmış bütün makaleleri bul ve bir liste yap, için ve yan etkiler de olsun lütfen",
]


@pytest.mark.parametrize(
    ("language", "text"), [(language, text) for language, texts in CLEAR.items() for text in texts]
)
def test_what_is_clear(language: str, text: str) -> None:
    """By its letters, or by its frequent words; foreign names and terms in it do not matter."""
    assert language_of(text) == language


@pytest.mark.parametrize("text", UNCLEAR, ids=[text[:20] for text in UNCLEAR])
def test_what_is_not_clear(text: str) -> None:
    """Short and mixed texts, code, data, and languages that are not known."""
    assert language_of(text) is None


def test_every_language_has_a_name() -> None:
    """In English, for the task of the model; a script is named as one."""
    assert [name_of(language) for language in ("zh", "CYRILLIC")] == ["Chinese", "a language in Cyrillic letters"]
    assert all(language in NAMES for language in CLEAR if language.islower())


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("继续", "zh"),
        ("Was kostet das?", LATIN),
        ("Find it, please, and say what is in it.", LATIN),
        ("Jeg vil gerne have det, og ikke på fredag", LATIN),
        ("Привет всем", "CYRILLIC"),
        ("日本語で", "ja"),
        ("Summarise this:\n这是一个关于人工智能的长篇文章", None),
        ("156 15 😀", None),
    ],
)
def test_letters(text: str, letters: str | None) -> None:
    """The script of texts that are too short for a language, unless a line is in another."""
    assert letters_of(text) == letters


@pytest.mark.parametrize(
    ("known", "detailed", "invents"),
    [
        ("156 15 86", "156 found, 15 kept, 86 read, and 2018 of them, or 77 or 99, are new.", False),
        ("156 15", "156 found, 15 kept; 2018, 77 and 99 are new.", True),
        ("", "20 results and 30 more, 50 in all", True),
        ("", "20 results and 30 more", False),
        ("156", "10, 20, 30, 40, 50 and 60 of 156", True),
        ("156", "no number at all", False),
        ("1234567.891 456789.01 0.5234", "1.23 million, 0.46 million and 52%", False),
        ("1234567.891 456789.01 0.5234", "1.33 million, 0.56 million and 62%", True),
        ("ninety days and twenty percent off, for the first fifty", "90 days, 20% off, the first 50", False),
        ("总价款壹佰万元的百分之三十，三十日内", "1,000,000 元，首付 30%，60 日，15%", False),
        ("zwei Drittel", "20, 30 and 50", True),
    ],
)
def test_invented_figures(known: str, detailed: str, *, invents: bool) -> None:
    """Three or more numbers that are in the turn in no spelling, and more than half of all: counts and sums may be."""
    fault = evidence_of(Run(known).facts).fault_of(["", detailed], "")
    assert (fault is not None) is invents
    assert not invents or "are not in the turn" in str(fault)


@pytest.mark.parametrize(
    ("asked", "said", "fault"),
    [
        (CHINESE, ENGLISH, "it is in English, and the user writes in Chinese"),
        (ENGLISH, CHINESE, "it is in Chinese, and the user writes in English"),
        (CHINESE, CHINESE, None),
        ("继续", ENGLISH, "it is in English, and the user writes in Chinese"),
        ("что дальше", ENGLISH, "it is in English, and the user writes in a language in Cyrillic letters"),
        ("Deploy v2.3.1 to staging", CHINESE, "it is in Chinese, and the user writes in a language in Latin letters"),
        ("Deploy v2.3.1 to staging", ENGLISH, None),
        ("Translate this into English: " + CHINESE, ENGLISH, None),
        ("What does 'Die Katze ist auf dem Tisch und der Hund ist nicht da' mean?", ENGLISH, None),
        (
            "心不全治療薬 臨床試験 論文検索",
            "ユーザーは論文の検索を求めた。",
            "it is in Japanese, and the user writes in Chinese",
        ),
        (CHINESE, "SGLT2, PubMed, HR 0.86", None),
        (f"Summarise this:\n{CHINESE}", ENGLISH, None),
        ("日本語の文章を要約してください。", "東京大学病院循環器内科", None),
    ],
)
def test_the_language(asked: str, said: str, fault: str | None) -> None:
    """Wrong only where that of the user, or its letters, and that of a text are both clear."""
    assert evidence_of(Run(asked).facts).fault_of(["short", said], "") == fault


@pytest.mark.parametrize(
    ("asked", "answer", "goal", "language"),
    [
        ("What do they say?", "They say that the risk was lower.", "", "en"),
        ("结果如何？", "风险降低。", "", "zh"),
        ("继续", "", ENGLISH, None),
        ("北京", "It is the capital and it has 22 million people.", "", None),
        ("Go on", "", ENGLISH, "en"),
        ("Deploy v2.3.1", "", CHINESE, "zh"),
        ("What now?", "", CHINESE, None),
        ("Übersetze das ins Englische", "This is what they wrote to us, and that was all.", "", "LATIN"),
        ("心不全治療薬 臨床試験 論文検索", "156件の論文が見つかりました。", "", "ja"),
        ("続行", "156件の論文が見つかりました。", "", "ja"),
        ("", "", "", None),
    ],
)
def test_a_short_question(asked: str, answer: str, goal: str, language: str | None) -> None:
    """What it leaves open is told by the answer, then by the goal, unless its own letters or words speak against it."""
    facts = replace(Run(asked).answer(answer).facts, goal=goal)
    assert evidence_of(facts).language == language


@given(st.text(), st.text())
def test_any_text(asked: str, said: str) -> None:
    """What a turn says is never an invention; a text has one language, and twice as much of it no other."""
    fault = evidence_of(Run(asked).answer(said).facts).fault_of([], said)
    assert fault is None or fault.startswith("it is in ")
    language = language_of(said)
    assert language is None or name_of(language)
    assert language in {None, language_of(f"{said}\n{said}")}


def test_what_a_summary_has_at_least() -> None:
    """Half of the weight of a brief one by rules, figures where there are some, and actions where there were calls."""
    run = session("English")[2]
    evidence = evidence_of(run.facts)
    assert evidence.least > 40
    told = "The risk is lower, the reviews say, in all of the patients that they have."
    assert evidence.lack_of([told], told[: evidence.least - 1], has_outcomes=True) == "it leaves out nearly everything"
    told = told.ljust(evidence.least)
    assert evidence.lack_of([told, "in none"], told, has_outcomes=True) == "it names no number, and the turn holds some"
    assert evidence.lack_of([told, "14%"], told, has_outcomes=False)
    assert evidence.lack_of([told, "14%"], told, has_outcomes=True) is None


REFUSING = [
    *("I'm sorry, but I can't help with that.", "I’m sorry.", "Unfortunately, I cannot summarise this conversation."),
    *("Failed to generate summary.", "**Unable to comply.**", "As an AI language model, I have no access."),
    *(
        "对不起，我无法帮助您完成这个请求。",
        "很抱歉，内容涉及敏感信息。",
        "我无法总结这些内容。",
        "摘要生成失败",
        "申し訳ありませんが、要約できません。",
        "要約の生成に失敗しました。",
    ),
    *("죄송합니다. 도와드릴 수 없습니다.", "Es tut mir leid, aber dabei kann ich nicht helfen."),
    *("Ich kann den Inhalt leider nicht zusammenfassen.", "Je suis désolé, mais c'est impossible."),
    *("Lo siento, no puedo ayudar con eso.", "Mi dispiace, non posso riassumere il testo."),
    *("Desculpe, não posso resumir isso.", "Het spijt me, dat gaat niet."),
]
NO_REFUSALS = [
    *("Unfortunately no flight was found.", "I can't find fault: an apology was written.", "The user is sorry."),
    *(
        "Unable to open the file, the tool gave up.",
        "The assistant said: I'm sorry.",
        "无法打开文件，工具报错。",
        "无法生成报告：权限不足。",
    ),
    *("Leider wurde kein Flug gefunden.", "No se pudo abrir el archivo.", ""),
]


@pytest.mark.parametrize("text", REFUSING)
def test_refusals(text: str) -> None:
    """A text that begins with a refusal is one, unless the turn itself has the words."""
    assert refusal_in(text, "") == "it is a refusal"
    assert refusal_in(text, evidence_in(f"He wrote: {text.upper()}", language=None).turn_text) is None


@pytest.mark.parametrize("text", NO_REFUSALS)
def test_no_refusals(text: str) -> None:
    """Failures that the turn was about."""
    assert refusal_in(text, "") is None


def test_words_of_failure() -> None:
    """They make a summary unusable wherever they stand, unless the turn has them."""
    text = "It was noted that the summary generation failed."
    assert failure_in(text, "") == refusal_in(text, "") == "it says that it failed"
    assert failure_in(text, evidence_in("Why 'Summary generation failed'?", language=None).turn_text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("156 articles, 15 reviews", {"156", "15"}),
        ("HR 0.86, 0,86 or 86 %", {"86"}),
        ("45,678 is 45678 and 45.678 and 45'678", {"45678"}),
        ("95% CI 0.80-0.93", {"95", "80", "93"}),
        ("１５６ 篇，共 4.5 万", {"156", "45"}),
        ("2026-11-22T08:05:00Z", {"2026", "11", "22"}),
        ("in 3 of 7 cases, 0.05, 1.", set()),
        ("abc123def", {"123"}),
        ("", set()),
        ("١٥٦", {"156"}),
    ],
)
def test_figures(text: str, found: set[str]) -> None:
    """Numbers of two digits or more, however they are written."""
    assert numbers_in(text) == found


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("1234567.891", "1.23 million"),
        ("1234567.891", "1,234,568"),
        ("0.52263", "52%"),
        ("456789.01", "460,000"),
        ("456789.01", "0.45 million"),
        ("0.8", "80%"),
        ("7 million", "7,000,000"),
        ("99.96", "100"),
        ("[12345678,23456789]", "23456789"),
        ("45,678", "45678"),
    ],
)
def test_what_stands_for_a_number(there: str, here: str) -> None:
    """The same, rounded or cut off, at any power of ten."""
    assert is_known(here, there)
    assert not is_known("0.61", there)


@given(st.integers(10, 10**17), st.integers(2, 6), st.integers(0, 8))
def test_any_rounding(number: int, digits: int, zeros: int) -> None:
    """A number that is rounded to two to six digits stands for it."""
    length = len(str(number))
    rounded = round(number, digits - length) if length > digits else number
    assert is_known(str(rounded) + "0" * zeros, f"about {number} of them")


def is_known(figure: str, turn: str) -> bool:
    """Whether the number is one of the turn's: beside two that are not, one more is too many."""
    return evidence_in(turn, language=None).fault_of([f"71 and 73 and {figure}"], "") is None
