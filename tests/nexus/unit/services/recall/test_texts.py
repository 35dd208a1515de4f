"""By what rows are found."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.recall import occurrence
from nexus.services.recall.terms import BY_ASSISTANT, MESSAGE
from nexus.services.recall.texts import findable, text_of
from tests.nexus.support.rows import row

_RECALLED = "[RECALL count=2]\nSaid before:\n\n[2024-01-01, s] Human: tea\n\n[2024-01-02, s] Nexus: green tea"


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "c", "name": name, "arguments": arguments}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"content": "I like tea"}, "I like tea"),
        ({"content": "我喜欢茶", "metadata": {"name": "小明"}}, "小明: 我喜欢茶"),
        ({"content": "tea", "metadata": {"name": " "}}, "tea"),
        ({"content": "tea", "metadata": {"name": 7}}, "tea"),
        ({"content": [{"type": "text", "text": "I like"}, {"type": "text", "text": "tea"}]}, "I like\ntea"),
        ({"role": "AI", "content": "You do"}, "You do"),
        ({"role": "assistant", "content": "You do"}, "You do"),
        (
            {"role": "AI", "content": "Let me see", "metadata": {"tool_calls": [_call("web_search", query="tea")]}},
            "Let me see\n[tool_use:web_search, query:tea]",
        ),
        (
            {"role": "AI", "content": "", "metadata": {"tool_calls": [_call("web_search", query="tea")]}},
            "[tool_use:web_search, query:tea]",
        ),
        ({"role": "TOOL", "content": "tea is green", "metadata": {"tool_name": "web_search"}}, "tea is green"),
        # Nothing is found of what follows.
        ({"content": ""}, ""),
        ({"content": None}, ""),
        ({"content": " \n "}, ""),
        ({"role": "SYSTEM", "content": "tea"}, ""),
        ({"role": "COMMAND", "content": "tea"}, ""),
        ({"role": "nobody", "content": "tea"}, ""),
        ({"role": "AI", "content": "tea", "metadata": {"sub_agent_internal": True, "agent_id": "scout"}}, ""),
        ({"role": "TOOL", "content": "tea", "metadata": {"tool_name": "search_memory"}}, ""),
        ({"role": "TOOL", "content": "tea", "metadata": {"tool_name": "update_working_memory"}}, ""),
        ({"role": "AI", "content": "", "metadata": {"tool_calls": [_call("search_memory", query="tea")]}}, ""),
        (
            {"role": "AI", "content": "Wait", "metadata": {"tool_calls": [_call("search_memory", query="tea")]}},
            "Wait",
        ),
        ({"content": _RECALLED}, ""),
        ({"content": f" \n\t{_RECALLED}"}, ""),
        ({"role": "AI", "content": _RECALLED}, ""),
        ({"role": "TOOL", "content": _RECALLED}, ""),
        ({"content": "[RECALL count=1]\nwithout an end"}, ""),
        ({"content": _RECALLED.replace("\n", "\r\n") + "\r\n\r\nYes."}, "Yes."),
        ({"content": "> " + _RECALLED.replace("\n", "\n> ") + "\nYes."}, "> \nYes."),
        ({"content": [{"type": "text", "text": _RECALLED}, {"type": "text", "text": "And now?"}]}, "And now?"),
        ({"content": [{"type": "text", "text": "And now?"}, {"type": "text", "text": _RECALLED}]}, "And now?"),
        ({"content": f"And now?\n{_RECALLED}\n\nYes."}, "And now?\n\nYes."),
        ({"role": "AI", "content": [{"role": "user", "content": _RECALLED}]}, '[{"role":"user","content":"'),
        ({"content": "What is [RECALL count=1]?"}, "What is"),
        ({"content": "What is [RECALL]?"}, "What is [RECALL]?"),
    ],
)
def test_texts(changes: dict[str, Any], text: str) -> None:
    """What was said, called and returned; not what no context shows, and no echo of what was found before."""
    assert text_of(row(1, **changes)) == text
    assert (findable(row(1, **changes)) is None) == (not text)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x" * 2_048, "x" * 2_048),
        ("x" * 2_047 + "\n" + "y", "x" * 2_047),
        ("first\n" + "x" * 2_042 + "\nthird", "first\n" + "x" * 2_042),
        ("first\n" + "x" * 2_043 + "\nthird", "first"),
        ("x" * 5_000, "x" * 2_048),
        ("\n" + "x" * 5_000, "x" * 2_047),
        ("茶" * 1_000, "茶" * 682),
    ],
)
def test_large_results(content: str, text: str) -> None:
    """Of a result above 2 KiB the first lines; of a line that is longer its beginning. An answer is kept whole."""
    assert text_of(row(1, role="TOOL", content=content)) == text
    assert text_of(row(1, role="AI", content=content)) == content.strip()


def test_terms_and_flags() -> None:
    """Those of the text, of the speaker, and of the time."""
    found = findable(row(1, role="AI", content="Tea, more tea"))
    assert found
    assert found.terms == {"tea": occurrence(2, 3), "more": occurrence(1, 3)}
    assert found.flags == [MESSAGE, BY_ASSISTANT, "#2024", "#01"]
    found = findable(row(1, content="👍", timestamp="some day"))
    assert found == ({}, [MESSAGE])


@pytest.mark.parametrize("key", ["Tea and biscuits were bought", "", None, 7, ["tea"]])
def test_a_key(key: Any) -> None:
    """Its words lead to the row, which keeps its own as they are said there; its text is its own."""
    found = findable(row(1, content="tea tea", recall_key=key))
    assert found
    assert found.terms["tea"] == occurrence(2, 2)
    assert found.terms.get("biscuit") == (occurrence(1, 3) if key == "Tea and biscuits were bought" else None)
    assert text_of(row(1, content="tea tea", recall_key=key)) == "tea tea"
    assert findable(row(1, content="", recall_key=key)) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(["HUMAN", "AI", "TOOL", "x", None, 3]),
)
def test_whatever_is_stored(content: Any, role: Any) -> None:
    """No row of another writer fails."""
    findable(row(1, role=role, content=content, metadata=content))
