"""What a model's result says of its cost is recorded with it, and nothing else of it changes (CONTRACT §2, §6)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.models import Message, Role
from nexus.services.history.rows import llm_row
from tests.nexus.support.rows import START

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
PLAIN = {"source": "llm_result", "tool_calls": None, "has_tool_calls": False}


def recorded(content: Any, **metadata: Any) -> dict[str, Any]:
    """The metadata of the row of a result."""
    fields = {"id": "a", "run_id": "r", "owner_key": "o", "timestamp": START}
    row = llm_row(Message(**fields, role=Role.AI, content=content, metadata=metadata))
    assert row is not None
    found: dict[str, Any] = row["metadata"]
    return found


@pytest.mark.parametrize(
    ("content", "metadata"),
    [
        ({"content": "x", "usage": USAGE}, {}),
        ({"content": "x"}, {"usage": USAGE}),
        ("x", {"usage": USAGE}),
        ({"content": "x", "usage": USAGE}, {"usage": {"total_tokens": 1}}),
        ({"content": "x", "usage": None}, {"usage": USAGE}),
        ({"content": "x", "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 5}, "cost": 1.5}}, {}),
    ],
    ids=str,
)
def test_usage(content: Any, metadata: dict[str, Any]) -> None:
    """Of the content, else of the metadata; the three counts, without what a provider has besides."""
    assert recorded(content, **metadata) == {**PLAIN, "usage": USAGE}


@pytest.mark.parametrize(
    "usage", [None, 5, "many", [], {}, [USAGE], {"tokens": 5}, {"total_tokens": 1.5}, {"total_tokens": True}], ids=str
)
def test_usage_of_no_use(usage: Any) -> None:
    """Leaves a row as it was before anybody reported any."""
    assert recorded({"content": "x", "usage": usage}) == PLAIN


@given(st.dictionaries(st.sampled_from([*USAGE, "other"]), st.none() | st.integers() | st.floats() | st.text()))
def test_only_whole_numbers_that_a_store_can_keep(usage: dict[str, Any]) -> None:
    """Nothing below zero, and no text, whatever a sender makes of it."""
    kept = recorded({"content": "x", "usage": usage}).get("usage", {})
    wanted = {name: value for name, value in usage.items() if name in USAGE and isinstance(value, int)}
    assert kept == {name: value for name, value in wanted.items() if 0 <= value < 2**63}


@pytest.mark.parametrize(("phase", "kept"), [("thinking", {"phase": "thinking"}), ("action", {}), (["thinking"], {})])
def test_the_phase(phase: Any, kept: dict[str, Any]) -> None:
    """Thought before acting is marked; anything else is a result like all others."""
    assert recorded("x", phase=phase) == {**PLAIN, **kept}
