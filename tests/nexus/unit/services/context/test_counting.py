"""Contexts are the same whether they are counted or only bounded, and only those are counted that have to be (§7)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.core.models import Message
from nexus.services.context.builder import BuilderSettings, ContextBuilder
from nexus.services.text.tokens import ByteBound, Measure
from tests.nexus.support.builder_settings import settings_with, window_with
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.context.test_build_agent import asking
from tests.nexus.unit.services.parts import definition, opened, past

UNLIMITED = 10_000_000
FORMS = ("openai", "anthropic", "gemini")
ROUNDS = [{"round_number": number, "content": f"thought {number}"} for number in (1, 2, 3)]
TEXTS = st.sampled_from(["said", "a longer thing that was said", "今天天气很好", "é😀" * 20, "\ud800"])


class Unread(FakeCounter):
    """A counter whose vocabulary must not be needed."""

    def count(self, text: str) -> int:
        """Fail."""
        raise AssertionError(f"counted: {text[:20]}")


class Tight(FakeCounter):
    """A counter for which each byte is a token, so that nothing is longer than its bound."""

    def count(self, text: str) -> int:
        """How many bytes the text has."""
        return len(text.encode("utf-8", "surrogatepass"))


async def built(
    requests: Sequence[Message], rows: list[dict[str, Any]], given: BuilderSettings, counter: FakeCounter | None = None
) -> list[dict[str, Any]]:
    """What one builder answers to the requests."""
    async with opened() as parts:
        parts.store.plant("messages", rows)
        parts.registry.register(definition(), print)
        used = (parts.persistence, parts.store, parts.registry, parts.ledger)
        builder = ContextBuilder(*used, given, counter=counter or FakeCounter())
        return [await replace(parts, builder=builder).build(request) for request in requests]


def within(window: int, count_tokens: Any) -> BuilderSettings:
    """Settings with so large a window."""
    return settings_with(window=window_with(context_window=window), count_tokens=count_tokens)


def shown(contents: list[dict[str, Any]]) -> list[Any]:
    """What is sent to a model, or the reason why nothing is."""
    return [(content["messages"], content.get("system"), content.get("error")) for content in contents]


def told(content: dict[str, Any]) -> set[bool]:
    """Whether tokens are told: of the context, and of each of its blocks."""
    manifest = content["context"]
    return {"tokens" in manifest, *("tokens" in block for block in manifest["blocks"])}


@settings(max_examples=150)
@given(data=st.data(), layout=st.sampled_from(["dialogue", "thinking"]), form=st.sampled_from(FORMS))
def test_messages_are_the_same(data: st.DataObject, layout: str, form: str) -> None:
    """Around the limits of tokens and of bytes, of the input and of everything, in first builds and continuations."""
    text = data.draw(TEXTS, "input")
    rows = [{**row, "content": f"{row['content']} {data.draw(TEXTS)}"} for row in past(data.draw(st.integers(0, 5)))]
    later = [{"id": "ai_1", "role": "AI", "content": data.draw(TEXTS), "metadata": {}}]
    counter = data.draw(st.sampled_from([FakeCounter(), Tight()]))
    given: dict[str, Any] = {"layout": layout, "thinking_rounds": ROUNDS, "format": form}
    asked = [asking(text, **given), asking(text, "msg_2", later=later, **given)]

    async def compared() -> None:
        plain = [asking(text, **{**given, "format": "openai"})]
        (whole,) = await built(plain, rows, within(UNLIMITED, "always"))
        measures = Measure(counter, form), Measure(ByteBound(counter), form)
        edges = [each.messages(whole["messages"]) + each.tools(whole["tools"]) for each in measures]
        edges += [
            each.messages(whole["messages"][:1]) + each.tools(whole["tools"]) + each.text(text) for each in measures
        ]
        window = max(
            data.draw(st.sampled_from(edges), "edge")
            + data.draw(st.integers(-60, 60) | st.integers(-4, 4), "beside it"),
            1,
        )
        counted, bounded = [await built(asked, rows, within(window, how), counter) for how in ("always", "needed")]
        assert shown(bounded) == shown(counted)
        for content in bounded:
            assert content["status"] == "error" or len(told(content)) == 1

    anyio.run(compared)


@pytest.mark.parametrize("layout", ["dialogue", "thinking"])
async def test_what_surely_fits_is_not_counted(layout: str) -> None:
    """Nor is a vocabulary needed for it; with `always`, or where it might not fit, all of it is counted."""
    asked, rows = [asking("hi", layout=layout)], past(3)
    (surely,) = await built(asked, rows, within(100_000, "needed"), Unread())
    (always,) = await built(asked, rows, within(100_000, "always"))
    (barely,) = await built(asked, rows, within(always["context"]["tokens"]["used"], "needed"))
    assert (told(surely), told(always), told(barely)) == ({False}, {True}, {True})
    assert surely["messages"] == always["messages"] == barely["messages"]


async def test_a_continuation_that_has_to_be_counted() -> None:
    """Tokens are told of the blocks that were kept uncounted, too, and not of those that were kept counted."""
    later = [{"id": "ai_1", "role": "AI", "content": "word " * 5_000, "metadata": {}}]
    asked = [asking("hi", layout="dialogue"), asking("hi", "msg_2", layout="dialogue", later=later)]
    first, second = await built(asked, past(1), within(30_000, "needed"))
    (whole,) = await built(asked[1:], past(1), within(30_000, "always"))
    assert (told(first), told(second)) == ({False}, {True})
    assert second["context"]["blocks"] == whole["context"]["blocks"]
    assert second["context"]["tokens"] == whole["context"]["tokens"]
    large = [asked[1], asking("hi", "msg_3", layout="dialogue", context_window=100_000)]
    second, third = await built(large, past(1), within(30_000, "needed"))
    assert (told(second), told(third)) == ({True}, {False})


@given(st.text(st.characters(exclude_categories=[])), st.sampled_from([FakeCounter(), Tight()]), st.sampled_from(FORMS))
def test_a_bound_is_one(text: str, counter: FakeCounter, form: str) -> None:
    """It is never below what is counted: not for a text, a message, a list, or tools."""
    measure, bound = Measure(counter, form), Measure(ByteBound(counter), form)
    messages = [{"role": "user", "content": text}, {"role": "tool", "name": "n", "content": text}]
    tools = [{"type": "function", "function": {"name": "t", "description": text}}]
    assert measure.text(text) <= bound.text(text)
    assert measure.messages(messages) <= bound.messages(messages)
    assert measure.tools(tools) <= bound.tools(tools)
