"""The names and values that others rely on, letter by letter (contract §1.1, §1.2, §1.4)."""

import re
from datetime import UTC
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from nexus.core import errors
from nexus.core.concurrency import ungrouped
from nexus.core.errors import ErrorCode, NexusError
from nexus.core.models import Message, Role, Run, Topics


def test_topics() -> None:
    """Every topic has the name that the orchestrators know."""
    assert {name: value for name, value in vars(Topics).items() if name.isupper()} == {
        "RUNS_NEW": "runs.new",
        "CONTEXT_BUILD_REQUEST": "context.build.request",
        "CONTEXT_BUILD_RESPONSE": "context.build.response",
        "LLM_REQUESTS": "llm.requests",
        "LLM_RESULTS": "llm.results",
        "TOOLS_REQUESTS": "tools.requests",
        "TOOLS_RESULTS": "tools.results",
        "UI_EVENTS": "ui.events",
        "SYSTEM_COMMAND": "system.command",
        "COMMAND_RESULT": "command.result",
        "RUNS_INPUT": "runs.input",
        "TOOLS_PROGRESS": "tools.progress",
        "TOOLS_REGISTER": "tools.register",
        "TOOLS_UNREGISTER": "tools.unregister",
        "SESSION_STATE": "session.state",
        "MEMORY_FACTS": "memory.facts",
        "SESSION_CONSTRAINTS": "session.constraints",
        "CONFIG_CHANGED": "config.changed",
        "MEMORY_SEARCH": "memory.search",
        "MEMORY_SEARCH_RESULT": "memory.search.result",
    }


def test_error_codes() -> None:
    """The codes of the contract, each spelled as it is called, and which of them are worth another try."""
    assert {code.name: code.retryable for code in ErrorCode} == {
        "INVALID_REQUEST": False,
        "EMPTY_INPUT": False,
        "UNKNOWN_LAYOUT": False,
        "MISSING_AGENT_ROLE": False,
        "OWNER_MISMATCH": False,
        "ID_CONFLICT": False,
        "PAYLOAD_TOO_LARGE": False,
        "UNAUTHENTICATED": False,
        "OVERLOADED": True,
        "DEADLINE_EXCEEDED": True,
        "HISTORY_UNAVAILABLE": True,
        "INTERNAL": True,
    }
    assert all(code.value == code.name for code in ErrorCode)


def test_one_tree_of_errors() -> None:
    """Whatever is raised on purpose is a NexusError."""
    classes = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)]
    assert all(issubclass(item, NexusError) for item in classes)


def test_fields_of_a_message() -> None:
    """The envelope has these fields and makes up what is missing."""
    message = Message(run_id="run_1", owner_key="ada", role=Role.HUMAN)
    assert list(Message.model_fields) == ["id", "run_id", "owner_key", "role", "content", "timestamp", "metadata"]
    assert re.fullmatch("msg_[0-9a-f]{32}", message.id)
    assert message.timestamp.tzinfo is UTC
    assert (message.content, message.metadata) == (None, {})


def test_fields_of_a_run() -> None:
    """The run has these fields and makes up what is missing."""
    run = Run(owner_key="ada")
    assert list(Run.model_fields) == ["id", "owner_key", "status", "history", "iteration_count", "tools", "metadata"]
    assert re.fullmatch("run_[0-9a-f]{32}", run.id)
    assert run.model_dump(exclude={"id"}) == {
        "owner_key": "ada",
        "status": "PENDING",
        "history": [],
        "iteration_count": 0,
        "tools": [],
        "metadata": {},
    }


@pytest.mark.parametrize(
    "owner", [{"$ne": ""}, "", "x" * 257, None, 5, ["ada"], "ada\0", "\ud800ada", "a\udfffda", "ada\ufffd"]
)
def test_an_owner_is_a_text(owner: Any) -> None:
    """No object, number or empty text passes for an owner."""
    with pytest.raises(ValidationError, match="owner_key"):
        Message.model_validate({"run_id": "run_1", "owner_key": owner, "role": "HUMAN"})


class TestUngrouped:
    """Around task groups, an exception that is alone comes out as itself."""

    async def test_one_exception_comes_out_alone(self) -> None:
        """However many groups are around it."""
        failure = KeyError("mine")
        with pytest.raises(KeyError) as caught, ungrouped():
            async with anyio.create_task_group(), anyio.create_task_group():
                raise failure
        assert caught.value is failure

    async def test_of_several_of_a_kind_the_first_comes_out(self) -> None:
        """As when a database is away for two reads at once."""
        with pytest.raises(KeyError, match="a"), ungrouped():
            raise ExceptionGroup("three", [KeyError("a"), ExceptionGroup("two", [KeyError("b"), KeyError("c")])])

    async def test_several_stay_a_group(self) -> None:
        """None of them is lost."""
        with pytest.raises(ExceptionGroup) as caught, ungrouped():
            raise ExceptionGroup("two", [KeyError("a"), ValueError("b")])
        assert len(caught.value.exceptions) == 2
