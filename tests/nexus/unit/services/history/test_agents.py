"""Whose context it is, and which messages are for whom (contract §1.3, §5)."""

from typing import Any

import pytest

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import is_internal
from nexus.services.history.rows import MAIN, Agent, internal_marks, missing_role, read_agent

SUB = Agent("sub", "reviewer", "You review.")
NAMELESS = Agent("sub")


@pytest.mark.parametrize("metadata", [{}, {"agent": None}, {"agent": {}}, {"agent": {"kind": None, "role": None}}])
def test_without_an_agent_it_is_the_main_one(metadata: Any) -> None:
    """`null` is as good as nothing, for the agent and for each of its keys."""
    assert read_agent(metadata) == (MAIN, [])
    assert (MAIN.kind, MAIN.sub_agent) == ("main", None)


def test_what_is_given_counts() -> None:
    """Texts as sent; keys that are not known are passed over."""
    main = {"kind": "main", "id": "boss", "role": " Lead. ", "system_prompt": "Be brief.", "colour": 1}
    sub = {"kind": "sub", "id": "reviewer", "role": "You review.", "task_prompt": "Review it."}
    assert read_agent({"agent": main}) == (Agent("main", "boss", " Lead. ", "Be brief."), [])
    assert read_agent({"agent": sub}) == (Agent("sub", "reviewer", "You review.", "", "Review it."), [])


@pytest.mark.parametrize(
    ("agent", "note"),
    [
        ({"task_prompt": "x"}, "run.metadata.agent.task_prompt: a main agent has none, so it is not shown"),
        (
            {"kind": "sub", "system_prompt": "x"},
            "run.metadata.agent.system_prompt: a sub agent has none, so it is not shown",
        ),
    ],
)
def test_what_is_of_no_use_is_noted(agent: Any, note: str) -> None:
    """A prompt that is meant for the other kind of agent."""
    assert read_agent({"agent": agent})[1] == [note]


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        ("main", "run.metadata.agent: a JSON object is needed"),
        ([], "run.metadata.agent: a JSON object is needed"),
        (False, "run.metadata.agent: a JSON object is needed"),
        ({"kind": "boss"}, "run.metadata.agent.kind: 'boss' is unknown; allowed: main, sub"),
        ({"kind": ""}, "run.metadata.agent.kind: '' is unknown; allowed: main, sub"),
        ({"kind": "SUB"}, "run.metadata.agent.kind: 'SUB' is unknown; allowed: main, sub"),
        ({"kind": 1}, "run.metadata.agent.kind: a JSON int is unknown; allowed: main, sub"),
        ({"kind": ["sub"]}, "run.metadata.agent.kind: a JSON list is unknown; allowed: main, sub"),
        ({"id": 7}, "run.metadata.agent.id: a text is needed"),
        ({"id": "x" * 257}, "run.metadata.agent.id: at most 256 characters are allowed"),
        ({"role": ["x"]}, "run.metadata.agent.role: a text is needed"),
        ({"system_prompt": {}}, "run.metadata.agent.system_prompt: a text is needed"),
        ({"task_prompt": False}, "run.metadata.agent.task_prompt: a text is needed"),
    ],
)
def test_wrong_forms_are_refused(agent: Any, reason: str) -> None:
    """With the place, and what is allowed there."""
    with pytest.raises(RequestError) as caught:
        read_agent({"agent": agent})
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_REQUEST, reason)


INTERNAL_TO: list[Any] = [None, "", "reviewer", "other", "Reviewer", 5, []]


@pytest.mark.parametrize(
    ("agent", "seen"),
    [
        (MAIN, []),
        (Agent("main", "reviewer"), []),
        (SUB, [None, "", "reviewer"]),
        (NAMELESS, [None, ""]),
    ],
    ids=["main", "main with the sub-agent's id", "sub", "sub without an id"],
)
def test_what_an_agent_sees(agent: Agent, seen: list[Any]) -> None:
    """Everything that is not marked as internal; of what is, a sub-agent sees its own and that of no named agent."""
    marked = [name for name in INTERNAL_TO if agent.sees({"sub_agent_internal": True, "agent_id": name})]
    assert marked == seen
    for metadata in (None, {}, "sub_agent_internal", ["x"], 5, {"agent_id": "other"}, {"sub_agent_internal": False}):
        assert not is_internal(metadata)
        assert agent.sees(metadata)


def test_marks() -> None:
    """What is marked for a sub-agent is internal, and seen by that one alone; the main agent marks nothing."""
    assert internal_marks(None) == {}
    assert internal_marks("reviewer") == {"sub_agent_internal": True, "agent_id": "reviewer"}
    assert internal_marks("") == {"sub_agent_internal": True, "agent_id": ""}
    seen = [agent.sees(internal_marks("reviewer")) for agent in (SUB, MAIN, NAMELESS, Agent("sub", "other"))]
    assert seen == [True, False, False, False]


def test_a_missing_role_names_the_agent() -> None:
    """By its id, where it has one."""
    named, nameless = missing_role(Agent("sub", "reviewer")), missing_role(NAMELESS)
    assert {named.code, nameless.code} == {ErrorCode.MISSING_AGENT_ROLE}
    assert named.message.startswith("run.metadata.agent.role: sub-agent 'reviewer' has no role")
    assert nameless.message.startswith("run.metadata.agent.role: sub-agent without an id has no role")
