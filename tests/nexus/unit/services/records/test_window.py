"""What takes how much of a context: by block, by kind, in tokens or in bytes."""

from typing import Any

import pytest

from nexus.core.wire import compact
from nexus.services.records.explain import Explained, explain_content, explain_manifest
from nexus.services.records.window import window_of
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.parts import definition
from tests.nexus.unit.services.records.test_explain import LATER
from tests.nexus.unit.services.records.test_reader import asking, at_desk


async def explained(layout: str, form: str, **more: Any) -> tuple[dict[str, Any], Explained]:
    """The content of an answer with a call and its result, and what it says."""
    async with at_desk(counter=FakeCounter(), count_tokens="always") as desk:
        desk.parts.registry.register(definition())
        content = await desk.parts.build(asking(layout, later=LATER, format=form, **more))
        return content, explain_content(content)


@pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
async def test_all_of_a_context_is_in_its_portions_and_kinds(layout: str, form: str) -> None:
    """In every format the portions are those of the manifest, and the kinds have as much as the portions."""
    content, said = await explained(layout, form)
    window = window_of(said)
    assert (window.unit, window.used) == ("tokens", content["context"]["tokens"]["used"])
    assert window.limit == content["context"]["tokens"]["limit"]
    assert [each.tag for each in window.portions if each.tag != "tools"] == [
        block["tag"] for block in content["context"]["blocks"]
    ]
    total = sum(each.size for each in window.portions)
    assert all(sum(each.parts.values()) == each.size for each in window.portions)
    assert sum(size for size, _ in window.kinds.values()) == total
    assert sum(each.percent for each in window.portions) == pytest.approx(100)
    assert sum(percent for _, percent in window.kinds.values()) == pytest.approx(100)
    # A result of the run is told from its call, in every format.
    assert window.kinds["tool results"][0] > 0
    assert window.kinds["tool calls"][0] > 0
    assert [*window.kinds] == sorted(window.kinds, key=lambda kind: -window.kinds[kind][0])


async def test_bytes_where_nothing_was_counted() -> None:
    """Then there is no limit to compare with, and definitions of tools count by their JSON."""
    async with at_desk(count_tokens="auto") as desk:
        desk.parts.registry.register(definition())
        content = await desk.parts.build(asking("dialogue"))
    window = window_of(explain_content(content))
    assert (window.unit, window.limit, window.percent) == ("bytes", None, None)
    assert window.kinds.get("tool definitions", (0, 0))[0] == sum(len(compact(tool)) for tool in content["tools"])
    assert window.used == sum(each.size for each in window.portions)


async def test_a_manifest_alone() -> None:
    """Without texts, results are not told from what was said; nor is anything made up of an empty manifest."""
    content, _ = await explained("agent", "openai")
    window = window_of(explain_manifest(compact(content["context"])))
    assert not window.by_entry
    assert "tool results" not in window.kinds
    assert window.portions
    empty = window_of(explain_manifest(b"{}"))
    assert (empty.used, empty.portions, empty.kinds) == (0, (), {})
    odd = window_of(explain_manifest(b'{"tokens":{"used":"x","limit":[]},"blocks":[{"tag":"HISTORY","bytes":0}]}'))
    assert (odd.unit, odd.used, odd.portions[0].percent) == ("bytes", 0, 0.0)
