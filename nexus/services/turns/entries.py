"""The entries of a turn (moving)."""

from collections.abc import Iterator
from typing import Any

from nexus.services.text.model_prompt import BETWEEN as BETWEEN
from nexus.services.text.model_prompt import Entry as Entry
from nexus.services.text.model_prompt import packed as packed
from nexus.services.turns.facts import Said, TurnFacts


def entries_of(facts: TurnFacts) -> Iterator[Entry]:
    """All that is known of the turn, in the order in which it came about."""
    if facts.workspace:
        yield Entry({}, "workspace", facts.workspace)
    # Of calls in their order, like those in the messages: what were no JSON arguments is found only here.
    given = (outcome.arguments for outcome in facts.outcomes if outcome.arguments is not None)
    asked = 1 if facts.said and facts.said[0].speaker == "user" else 0
    for item in facts.said[:asked]:
        yield from _of_message(item, given)
    for thought in facts.rounds:
        yield Entry({"thought": thought.round_number}, "text", thought.content)
    for item in facts.said[asked:]:
        yield from _of_message(item, given)


def _of_message(item: Said, given: Iterator[Any]) -> Iterator[Entry]:
    if item.speaker == "tool":
        success = {} if item.success is None else {"success": item.success}
        yield Entry({"from": "tool", "tool": item.tool, **success}, "text", item.text)
        return
    if item.text:
        yield Entry({"from": item.speaker}, "text", item.text)
    for call in item.calls:
        unread = next(given, None)
        arguments = unread if isinstance(unread, str) else call.raw_arguments
        yield Entry({"from": "assistant", "calls": call.name}, "arguments", arguments)
