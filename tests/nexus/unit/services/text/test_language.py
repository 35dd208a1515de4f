"""In which language a text is, where that can be told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.text.language import LATIN, NAMES, differ, language_of, letters_of, name_of

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
    # What is in the words of somebody else.
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
    """Short, mixed, code, data, or in a language that is not known."""
    assert language_of(text) is None


def test_every_language_has_a_name() -> None:
    """In English, for whoever is told to write in it; a script says that it is one."""
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
    """They are told of texts that are too short for a language, unless a line is in others."""
    assert letters_of(text) == letters


@pytest.mark.parametrize(
    ("said", "expected", "different"),
    [
        ("en", "en", False),
        ("de", "en", True),
        ("zh", "ja", False),
        ("ja", "zh", True),
        (LATIN, "en", False),
        ("de", LATIN, False),
        (LATIN, "zh", True),
        ("CYRILLIC", LATIN, True),
        (LATIN, LATIN, False),
    ],
)
def test_what_differs(said: str, expected: str, *, different: bool) -> None:
    """Languages, or letters where nothing else is known; a line of Japanese may look like Chinese."""
    assert differ(said, expected) is different


@given(st.text())
def test_any_text(text: str) -> None:
    """Whatever it is, it has one answer, and twice as much of it the same or none that differs."""
    language = language_of(text)
    assert language is None or name_of(language)
    twice = language_of(f"{text}\n{text}")
    assert language in {None, twice}
