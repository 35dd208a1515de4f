"""100,000 sessions, well-formed and broken: what holds of every context of the agent layout (CONTRACT §5)."""

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest

from nexus.core.models import Message
from nexus.services.context.agent import AgentInput, assemble_agent
from nexus.services.context.blocks import Assembled
from nexus.services.context.formats import convert
from nexus.services.history.agents import Agent
from nexus.services.history.transcript import transcript_of_run as said_in_run
from nexus.services.history.validity import NO_RESULT, admit, faults
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.unit.services.context.session_histories import History, Sessions

pytestmark = pytest.mark.heavy

HISTORIES = 100_000
CHUNKS = 40
# All of them take some minutes of a core, so CI plays an eighth.
PLAYED = CHUNKS // 8 if os.environ.get("CI") else CHUNKS
CHECKS = {"openai": openai_faults, "anthropic": anthropic_faults, "gemini": gemini_faults}
PINNED = ("## Agent Role Definition\n", "## Current TODO List\n", "## Useful Information\n", "## Folder Notes\n")
# The providers' own types are slow to look at.
TYPED_EVERY = 250

Chat = list[dict[str, Any]]


@pytest.mark.parametrize("chunk", range(PLAYED))
def test_whatever_the_history_the_list_is_valid(chunk: int) -> None:
    """In every provider's form, with the pinned block whole, everything in order, and the same bytes each time."""
    sessions = Sessions(chunk)
    for number in range(HISTORIES // CHUNKS):
        history = sessions.history()
        given = sessions.given(history)
        later = sessions.later()
        before = _bytes(history.rows)
        assembled = assemble_agent(given)
        messages = whole(assembled, later, given.agent)
        where = f"chunk {chunk}, history {number}: {history}"
        assert faults(messages) == [], where
        check_pinned(messages, given, where)
        check_spoken(messages[: len(assembled.messages)], history, where)
        check_formats(messages, assembled, where, typed=number % TYPED_EVERY == 0)
        assert _bytes(history.rows) == before, where
        assert _bytes(whole(assemble_agent(given), later, given.agent)) == _bytes(messages), where


def test_a_list_that_splits_a_call_does_not_pass() -> None:
    """The check is one: what it must not let through it does not."""
    sessions = Sessions(0)
    found = 0
    for _ in range(200):
        given = sessions.given(sessions.history())
        messages = whole(assemble_agent(given), [], given.agent)
        calls = [index for index, message in enumerate(messages) if message.get("tool_calls")]
        for index in calls:
            split = [*messages[: index + 1], {"role": "user", "content": PINNED[0]}, *messages[index + 1 :]]
            assert faults(split)
            assert openai_faults(convert("openai", split, [], stable=0), typed=False)
            found += 1
    assert found > 100


def whole(assembled: Assembled, later: Sequence[Message], agent: Agent) -> Chat:
    """The list with the run's own messages behind it."""
    own = admit(said_in_run(later, agent), "run.history", after=assembled.messages)
    return [*assembled.messages, *own.messages]


def check_pinned(messages: Chat, given: AgentInput, where: str) -> None:
    """Each part that there is something to say of stands there once, one after another, in order."""
    wanted = [
        heading
        for heading, there in zip(
            PINNED, (given.role, given.state.todos, given.state.useful_info, given.state.folder_notes), strict=True
        )
        if there
    ]
    places = [
        index
        for index, message in enumerate(messages)
        if message["role"] == "user" and message["content"].startswith(PINNED)
    ]
    found = [next(heading for heading in PINNED if messages[index]["content"].startswith(heading)) for index in places]
    assert found == wanted, where
    assert places == list(range(places[0], places[0] + len(places))) if places else not wanted, where


def check_spoken(messages: Chat, history: History, where: str) -> None:
    """What people and models said is there once, and in the order in which it was said."""
    texts = [message["content"] or "" for message in messages if message["role"] in {"user", "assistant"}]
    shown = [mark for text in texts for mark in dict.fromkeys(history.spoken) if mark in text]
    assert sorted(shown) == sorted(history.spoken), where
    if not history.broken and not history.skewed:
        assert shown == history.spoken, where
        results = [message for message in messages if message["role"] == "tool"]
        assert len(results) == sum(row["role"] == "TOOL" for row in history.rows), where
        assert all(message["content"] != NO_RESULT for message in results), where
    position = next(index for index, message in enumerate(messages) if message["content"] == "the current input")
    assert not any(mark in (message["content"] or "") for message in messages[position:] for mark in history.spoken), (
        where
    )


def check_formats(messages: Chat, assembled: Assembled, where: str, *, typed: bool) -> None:
    """Every provider takes it, and what was converted is as it was."""
    before = _bytes(messages)
    for form, check in CHECKS.items():
        stable, goes_on = assembled.manifest["prefix"]["messages"], len(messages) > len(assembled.messages)
        converted = convert(form, messages, [], stable=stable, goes_on=goes_on)
        assert check(converted, typed=typed) == [], f"{form}, {where}"
    assert _bytes(messages) == before, where


def _bytes(value: Any) -> bytes:
    return json.dumps(value, default=str).encode()
