"""A session in which literature is searched, filtered and read, in English and in Chinese: one run for each step."""

import json
from typing import Final

from tests.nexus.unit.services.turns.runs import Run

PMIDS: Final = ("12345678", "23456789", "34567890", "45678901", "56789012")
LANGUAGES: Final = ("English", "Chinese")


def english() -> list[Run]:
    """Three runs."""
    search = Run("Find the literature on SGLT2 inhibitors and cardiovascular outcomes in type 2 diabetes.")
    search.calls(
        ("a", "pubmed_search", {"query": "SGLT2 inhibitors cardiovascular outcomes type 2 diabetes", "limit": 200}),
        text="I'll search PubMed before anything else.",
    )
    search.result("a", {"total": 156, "articles": [{"pmid": pmid, "year": 2019} for pmid in PMIDS]}, "pubmed_search")
    search.answer("PubMed has 156 articles on it. They were published from 2008 to 2024.")

    choose = Run("Keep the systematic reviews of the last years.")
    choose.call(
        "filter_articles",
        {"years": "2018-2024", "types": ["systematic review", "meta-analysis"]},
        "15 reviews are left of 156 articles.",
    )
    choose.call("download", {"pmids": list(PMIDS)}, {"saved": 5, "missing": 10})
    choose.answer("15 reviews were kept. I chose to download 5 of them. The others are behind a paywall.")

    read = Run("What do they say?")
    extracted = {"patients": 45_678, "effect": "HR 0.86 (95% CI 0.80-0.93)", "pmids": list(PMIDS)}
    read.call("extract_data", {"pmids": list(PMIDS), "outcome": "MACE"}, json.dumps(extracted))
    read.answer(
        "SGLT2 inhibitors lower the risk of major adverse cardiovascular events by 14% (HR 0.86, 95% CI 0.80-0.93). "
        "This is from 45,678 patients. The next step is to judge the quality of each review."
    )
    return [search, choose, read]


def chinese() -> list[Run]:
    """The same three."""
    search = Run("请帮我搜索关于 SGLT2 抑制剂对 2 型糖尿病患者心血管结局影响的文献")
    search.calls(("a", "pubmed_search", {"query": "SGLT2 抑制剂 心血管结局", "limit": 200}), text="我先搜索 PubMed。")
    search.result("a", "共找到 156 篇相关文献。发表于 2008 至 2024 年。", "pubmed_search")
    search.answer("PubMed 上共有 156 篇相关文献。")

    choose = Run("只保留近年的系统综述。")
    choose.call("filter_articles", {"年份": "2018-2024", "类型": ["系统综述", "Meta 分析"]}, {"剩余": 15})
    choose.call("download", {"pmids": list(PMIDS)}, {"成功": 5, "失败": 10})
    choose.answer("筛选出 15 篇高质量综述。我决定下载其中 5 篇。其余需要付费。")

    read = Run("结果如何？")
    extracted = {"患者": 45_678, "效应": "HR 0.86 (95% CI 0.80-0.93)", "pmids": list(PMIDS)}
    read.call("extract_data", {"pmids": list(PMIDS), "结局": "MACE"}, json.dumps(extracted, ensure_ascii=False))
    read.answer(
        "SGLT2 抑制剂可降低 14% 的主要心血管不良事件风险（HR 0.86，95% CI 0.80-0.93）。共纳入 45,678 名患者。"
        "下一步需要评估每篇综述的质量。"
    )
    return [search, choose, read]


def session(language: str) -> list[Run]:
    """Three runs in that language."""
    return chinese() if language == "Chinese" else english()
