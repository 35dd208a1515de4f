"""The brief level spends at most a third of the tokens of the detailed one on the same session (contract §6)."""

import json
import random
from collections.abc import Sequence
from typing import Final

import pytest

from nexus.core.turns import Level
from nexus.services.turns.documents import RememberedTurn, turns_text
from nexus.services.turns.rule_summary import summarise_by_rules
from tests.nexus.support.tokens import tokens
from tests.nexus.unit.services.turns.runs import Run

pytestmark = pytest.mark.heavy

TURNS: Final = 60
# Two questions, and sentences of results and answers.
WORDS: Final = {
    "English": (
        "Find the reviews on SGLT2 inhibitors and heart failure that were published since 2018.",
        "Which of these report hospitalisation?",
        "The search returned {n} articles, of which {m} are reviews.",
        "Most of them were excluded because they were narrative.",
        "I will extract the hazard ratios next.",
        "The pooled HR was 0.{m} (95% CI 0.80-0.93).",
    ),
    "Chinese": (
        "请帮我搜索关于 SGLT2 抑制剂对心力衰竭影响的文献，发表于2018年以后。",
        "其中哪些报告了住院率？",
        "共找到{n}篇文献，其中{m}篇为系统综述。",
        "大多数文献因为是叙述性综述而被排除。",
        "下一步我将提取风险比。",
        "合并风险比为 0.{m}（95% CI 0.80-0.93）。",
    ),
    "Thai": (
        "ค้นหาบทความเกี่ยวกับยายับยั้ง SGLT2 และภาวะหัวใจล้มเหลวตั้งแต่ปี 2018",
        "บทความใดรายงานการนอนโรงพยาบาล",
        "พบบทความ {n} เรื่อง เป็นบทปริทัศน์ {m} เรื่อง",
        "ส่วนใหญ่ถูกคัดออก",
        "ต่อไปจะดึงค่าอัตราส่วนความเสี่ยง",
        "ค่า HR รวม 0.{m} (95% CI 0.80-0.93)",
    ),
}


def a_run(chance: random.Random, language: str, calls: int, sentences: int) -> Run:
    """A run with so many calls and an answer of so many sentences."""
    questions, said = WORDS[language][:2], WORDS[language][2:]

    def say(count: int) -> str:
        filled = (chance.choice(said).format(n=chance.randint(20, 999), m=chance.randint(11, 99)) for _ in range(count))
        return " ".join(filled)

    run = Run(chance.choice(questions))
    for _ in range(calls):
        items = [
            {"id": chance.randint(10**7, 10**8), "title": say(1), "year": 2018} for _ in range(chance.randint(0, 8))
        ]
        result = chance.choice(
            ({"total": chance.randint(1, 999), "items": items}, say(chance.randint(1, 12)), json.dumps({"hr": 0.86}))
        )
        arguments = {"query": chance.choice(questions), "limit": chance.randint(1, 99)}
        status = chance.choice(("success", "success", "success", "error"))
        run.call(chance.choice(("pubmed_search", "fetch", "extract_data")), arguments, result, status=status)
    return run.answer(say(sentences))


def cost(runs: Sequence[Run], level: Level) -> int:
    """The tokens of the block that shows these turns."""
    turns = []
    for number, run in enumerate(runs, start=1):
        said = summarise_by_rules(run.facts)
        turns.append(RememberedTurn(number, f"turn_{number}_0", said.brief if level == "brief" else said.detailed))
    return tokens(turns_text(turns, level, str))


@pytest.mark.parametrize("language", WORDS)
@pytest.mark.parametrize(("fewest", "most"), [(0, 0), (1, 1), (1, 20)], ids=["talk", "one call", "many calls"])
def test_sessions(language: str, fewest: int, most: int) -> None:
    """Without tools, with one call in each run, with many."""
    chance = random.Random(1)  # noqa: S311  # tests are to be repeatable
    runs = [a_run(chance, language, chance.randint(fewest, most), chance.randint(3, 8)) for _ in range(TURNS)]
    assert 3 * cost(runs, "brief") <= cost(runs, "detailed")
