"""Turns to be summarised: a search of the literature with its figures, in two languages."""

import json
from dataclasses import replace
from typing import Any, Final

from nexus.services.history.run_facts import TurnFacts
from tests.nexus.unit.services.turns.runs import Run

FIGURES: Final = ("156", "15", "0.86", "0.80-0.93")
FOUND: Final = {"total": 156, "reviews": 15, "HR": 0.86, "95% CI": "0.80-0.93"}
QUERY: Final = {"query": "SGLT2 inhibitors cardiovascular outcomes", "limit": 200}
_CHINESE_GOAL: Final = "请帮我搜索关于 SGLT2 抑制剂对 2 型糖尿病患者心血管结局影响的文献"
_ENGLISH_GOAL: Final = "Please find what there is about SGLT2 inhibitors and the heart of patients with diabetes."

_CHINESE_DETAILED: Final = (
    "用户想了解抑制剂对心血管结局的影响。用 search_pubmed 搜索，共找到 156 篇文献。其中 15 篇是系统综述。"
    "合并后的 HR 0.86，95% CI 0.80-0.93。"
)
_ENGLISH_DETAILED: Final = (
    "The user asked about the inhibitors and the heart. It searched PubMed with search_pubmed, limit 200. There were "
    "156 articles, and 15 of them are reviews. The pooled result is HR 0.86, with a 95% CI of 0.80-0.93."
)


def _searched(goal: str, announced: str, answer: str) -> TurnFacts:
    run = (
        Run(goal).calls(("c1", "search_pubmed", QUERY), text=announced).result("c1", json.dumps(FOUND), "search_pubmed")
    )
    return replace(run.answer(answer).facts, goal=goal)


CHINESE: Final = _searched(
    _CHINESE_GOAL,
    "我先搜索 PubMed。",
    "共找到 156 篇文献，其中 15 篇是系统综述。因为质量不足，排除了 3 篇。HR 0.86，95% CI 0.80-0.93。"
    "下一步需要评估质量。",
)
ENGLISH: Final = _searched(
    _ENGLISH_GOAL,
    "I will search PubMed.",
    "There are 156 articles, 15 of them reviews. Three were excluded because of their quality. The pooled HR is 0.86 "
    "(95% CI 0.80-0.93). The next step is to extract the data.",
)


def summary_of(facts: TurnFacts, **fields: Any) -> dict[str, Any]:
    """A summary in the language of that turn, with these fields in the place of its own."""
    chinese = facts is CHINESE
    detailed = _CHINESE_DETAILED if chinese else _ENGLISH_DETAILED
    return {
        "brief": "找到 156 篇文献。" if chinese else "It found 156 articles.",
        "detailed": detailed,
        "structured": {
            "overview": "搜索文献。" if chinese else "A search of the literature.",
            "actions": ["search_pubmed(limit=200)"],
            "results": ["156", "15", "HR 0.86 (95% CI 0.80-0.93)"],
            "decisions": [],
            "next_steps": [],
        },
        "insights": ["HR 0.86"],
        **fields,
    }
