"""The tool `remember`: a fact about the person, kept for all sessions (contract §15)."""

from dataclasses import replace
from typing import Any

import pytest

from nexus.services.person.facts import Facts
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.tombstones import NO_TOMBSTONES
from tests.nexus.unit.services.memory.calling import CALLER, memory_on

HOME = {"topic": "home", "sub_topic": "city"}


async def remember(store: FakeStore, call_id: str = "call_1", **args: Any) -> tuple[str, bool]:
    """The result of a call, and whether it was done."""
    outcome = await memory_on(store).run("remember", args, replace(CALLER, call_id=call_id))
    return outcome.text, outcome.done


async def test_a_fact_is_kept_with_the_input_as_its_evidence() -> None:
    """In the session of the call; the result says what holds now, and what it superseded."""
    store = FakeStore()
    store.plant("messages", [{"id": "m1", "owner_key": "ada", "run_id": "run_9", "role": "HUMAN", "content": "hi"}])
    assert await remember(store, **HOME, value="Lisbon") == (
        "It is kept for all sessions of this person. home / city: Lisbon.",
        True,
    )
    assert await remember(store, "call_2", **HOME, value="Porto") == (
        "It is kept for all sessions of this person. home / city: Porto; it supersedes Lisbon.",
        True,
    )
    before, fact = await Facts(store.facts, NO_TOMBSTONES).facts("ada")
    assert (before.value, fact.value, fact.evidence, fact.source, fact.support) == (
        "Lisbon",
        "Porto",
        ("m1",),
        "tool",
        1,
    )


async def test_the_same_call_again() -> None:
    """It is kept once, and has the same result."""
    store = FakeStore()
    assert await remember(store, **HOME, value="Porto") == await remember(store, **HOME, value="Porto")
    assert await store.facts.count_statements("ada") == 1
    (fact,) = await Facts(store.facts, NO_TOMBSTONES).facts("ada")
    assert fact.evidence == ()


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"value": "Porto"}, "topic: is missing; a text is needed"),
        ({"topic": "home"}, "value: is missing; a text is needed"),
        ({"topic": "home", "value": " \n"}, "value: is empty; a text with something in it is needed"),
        ({"topic": "home", "value": "x" * 501}, "value: 501 characters, at most 500 are allowed"),
        ({"topic": "x" * 65, "value": "x"}, "topic: 65 characters, at most 64 are allowed"),
        ({"topic": "home", "value": "x", "sub_topic": 7}, "sub_topic: a text is needed, not"),
        (
            {"topic": "home", "value": "x", "level": "derived"},
            "args: 'level' is unknown; allowed: topic, value, sub_topic",
        ),
    ],
)
async def test_a_wrong_call(args: dict[str, Any], reason: str) -> None:
    """It is told what is wrong and what is allowed; nothing is kept."""
    store = FakeStore()
    told, done = await remember(store, **args)
    assert told.startswith(reason)
    assert not done
    assert store.facts.kept == {}
