"""How long the texts of a summary may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.text.model_reply import brief_within, cost, listed, within
from tests.nexus.support.tokens import tokens

DETAILED = (
    "The user asked what the reviews say. extract_data was called for 5 full texts with the outcome MACE. They report "
    "on 45,678 patients, and the risk of major events is 14% lower (HR 0.86, 95% CI 0.80-0.93). The next step is to "
    "judge the quality of each review, since two of them have no registered protocol."
)


@pytest.mark.parametrize(
    ("text", "most", "kept"),
    [
        ("", 10, ""),
        ("short", 5, "short"),
        ("It is so. It goes on.", 12, "It is so."),
        ("It goes on, and on, and on", 14, "It goes on …"),
        ("x" * 60, 12, "x" * 10 + " …"),
        ("共找到 156 篇文献。其中 15 篇是系统综述。", 14, "共找到 156 篇文献。"),
        ("共找到一百五十六篇相关文献和综述", 10, "共找到一百五十六 …"),
    ],
)
def test_within(text: str, most: int, kept: str) -> None:
    """Whole, or cut where a sentence ends, or a word."""
    assert within(text, most) == kept


def test_lists() -> None:
    """So many entries of such a length."""
    assert listed(["a", "b c d e f", "g"], 2, 6) == ("a", "b c …")


@pytest.mark.parametrize(
    "brief",
    [
        "The risk is lower by 14% (HR 0.86, 95% CI 0.80-0.93). " * 3,
        "The assistant extracted the data of all of the reviews, and it came to the result that the risk is lower " * 4,
        "12345678, 23456789, 34567890, 45678901, 56789012, 67890123, 78901234, 89012345, 90123456",
    ],
    ids=["figures", "one sentence", "numbers"],
)
def test_brief_in_tokens(brief: str) -> None:
    """It takes at most a third of the tokens of the detailed one, figures or words; `[Turn n]` is on both sides."""
    kept = brief_within(brief, DETAILED)
    assert 0 < tokens(f"[Turn 12] {kept}") * 3 <= tokens(f"[Turn 12] {DETAILED}")


def test_brief_in_chinese() -> None:
    """The same there."""
    detailed = (
        "用户想了解抑制剂对心血管结局的影响。用 search_pubmed 搜索，共找到 156 篇文献，其中 15 篇是系统综述。" * 3
    )
    kept = brief_within("降低了主要心血管不良事件的风险" * 8, detailed)
    assert kept.endswith(" …")
    assert tokens(f"[Turn 12] {kept}") * 3 <= tokens(f"[Turn 12] {detailed}")


@given(st.text(), st.text())
def test_any_brief(brief: str, detailed: str) -> None:
    """It is the whole text or its beginning, and costs no more than it may."""
    kept = brief_within(brief, detailed)
    assert brief.startswith(kept.removesuffix(" …"))
    assert cost(kept) <= max(cost(detailed) // 3, 45)


@given(st.text(), st.integers(2, 50))
def test_any_text(text: str, most: int) -> None:
    """It is never longer than it may be."""
    assert len(within(text, most)) <= most
