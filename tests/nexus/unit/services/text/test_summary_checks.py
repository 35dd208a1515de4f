"""What a summary of a turn is held against."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.turns import ThinkingRound
from nexus.services.history.run_facts import read_facts
from nexus.services.text.summary_checks import spelling
from nexus.services.turns.model_summary import evidence_of
from tests.nexus.unit.services.turns.literature import LANGUAGES, session
from tests.nexus.unit.services.turns.runs import Run

CHINESE = "请帮我搜索关于抑制剂对糖尿病患者心血管结局影响的文献"
ENGLISH = "Please find what there is about the inhibitors and their effect on the heart."


def test_where_figures_come_from() -> None:
    """From everything that is known of a turn."""
    run = Run("in 2018").calls(("a", "tool21", {"limit": 200})).result("a", {"n": 156}, "tool22").answer("15 left")
    rounds = [ThinkingRound(round_number=1, content="try 33")]
    evidence = evidence_of(read_facts(run.rows, goal="of 44", workspace="shelf 55", rounds=rounds))
    assert {*map(spelling, ("2018", "21", "200", "156", "22", "15", "33", "44", "55"))} <= evidence.figures


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


def test_japanese_without_its_own_letters() -> None:
    """A line in the style of headings is not taken for Chinese."""
    asked = Run("心不全に対する阻害薬の効果について、論文を検索してください。")
    assert evidence_of(asked.facts).fault_of(["論文検索、該当論文採用、心不全効果量抽出完了"], "") is None


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_turn_of_a_session(language: str) -> None:
    """The language is known of short questions too."""
    assert {evidence_of(run.facts).language for run in session(language)} == {"en" if language == "English" else "zh"}


def test_letters_of_the_detailed_summary() -> None:
    """They are those of the user, also where the language is not one that is told by its words."""
    polish = "Znaleziono wiele artykułów o tym leku, a potem wybrano tylko przeglądy."
    fault = evidence_of(Run(CHINESE).facts).fault_of([], polish)
    assert fault == "it is in a language in Latin letters, and the user writes in Chinese"


def test_the_language_is_that_of_the_user() -> None:
    """Not that of tools, answers or a goal that an orchestrator gives."""
    run = Run(CHINESE).call("search", {"q": ENGLISH}, ENGLISH * 20).answer(ENGLISH * 20)
    assert evidence_of(read_facts(run.rows, goal=ENGLISH)).language == "zh"


@given(st.text(), st.text())
def test_any_text(asked: str, said: str) -> None:
    """What a turn says is never an invention."""
    fault = evidence_of(Run(asked).answer(said).facts).fault_of([], said)
    assert fault is None or fault.startswith("it is in ")


def test_what_a_summary_has_at_least() -> None:
    """Half of the weight of a brief one by rules, figures where there are some, and deeds where there were calls."""
    run = session("English")[2]
    evidence = evidence_of(run.facts)
    assert evidence.least > 40
    told = "The risk is lower, the reviews say, in all of the patients that they have."
    assert evidence.lack_of([told], told[: evidence.least - 1], deeds=True) == "it leaves out nearly everything"
    told = told.ljust(evidence.least)
    assert evidence.lack_of([told, "in none"], told, deeds=True) == "it names no number, and the turn holds some"
    assert evidence.lack_of([told, "14%"], told, deeds=False)
    assert evidence.lack_of([told, "14%"], told, deeds=True) is None


def test_what_is_not_asked_of_a_summary() -> None:
    """Figures and deeds of a turn without them, and anything of one that may be read in parts: a part may have none."""
    assert evidence_of(Run("Hello").answer("Hi!").facts).lack_of(["A greeting."], "A greeting.", deeds=False) is None
    long = Run("Read it.").call("read", {}, "Page 123. " * 2_000).answer("There are 123 pages.")
    assert evidence_of(long.facts).lack_of(["-"], "-", deeds=False) is not None
    assert evidence_of(long.facts).of_part.lack_of(["-"], "-", deeds=False) is None
