"""Which agent a context is for: the main agent, or a sub-agent that it sent (contract §5). Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from nexus.core.errors import ErrorCode, RequestError
from nexus.core.models import AGENT_ID, INTERNAL, is_internal

Kind = Literal["main", "sub"]

_ID_CHARS: Final = 256
_SHOWN_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent that a context is for, as `run.metadata.agent` describes it. Texts that were not given are `""`."""

    kind: Kind = "main"
    id: str = ""
    role: str = ""
    system_prompt: str = ""
    task_prompt: str = ""

    @property
    def sub_agent(self) -> str | None:
        """The id of a sub-agent, `""` for one without; None for the main agent."""
        return self.id if self.kind == "sub" else None

    def sees(self, metadata: Any) -> bool:
        """Whether a message with this metadata is for this agent.

        What is internal to a sub-agent never reaches the main agent, and another sub-agent only if it names no agent.
        """
        if not is_internal(metadata):
            return True
        # Not a set: a row may have anything there.
        return self.kind == "sub" and metadata.get(AGENT_ID) in (None, "", self.id)


MAIN: Final = Agent()


def internal_marks(sub_agent: str | None) -> dict[str, Any]:
    """The metadata of what belongs to this sub-agent; nothing for the main agent."""
    return {} if sub_agent is None else {INTERNAL: True, AGENT_ID: sub_agent}


def read_agent(metadata: Mapping[str, Any]) -> tuple[Agent, list[str]]:
    """The agent in `run.metadata`, the main one when it is not given, and notes on fields that are ignored.

    Raises:
        RequestError: INVALID_REQUEST, naming the place.
    """
    given = metadata.get("agent")
    if given is None:
        return MAIN, []
    if not isinstance(given, Mapping):
        raise invalid_request("run.metadata.agent: a JSON object is needed")
    kind = "main" if given.get("kind") is None else given["kind"]
    if kind not in get_args(Kind):
        raise invalid_request(unknown_value("run.metadata.agent.kind", kind, get_args(Kind)))
    texts = {name: _text(given, name) for name in ("id", "role", "system_prompt", "task_prompt")}
    if len(texts["id"]) > _ID_CHARS:
        raise invalid_request(f"run.metadata.agent.id: at most {_ID_CHARS} characters are allowed")
    agent = Agent("sub" if kind == "sub" else "main", **texts)
    useless = "task_prompt" if kind == "main" else "system_prompt"
    notes = [f"run.metadata.agent.{useless}: a {kind} agent has none, so it is not shown"] if texts[useless] else []
    return agent, notes


def missing_role(agent: Agent) -> RequestError:
    """MISSING_AGENT_ROLE for a sub-agent without a role."""
    named = repr(agent.id) if agent.id else "without an id"
    reason = f"run.metadata.agent.role: sub-agent {named} has no role, neither here nor in the state of its session"
    return RequestError(ErrorCode.MISSING_AGENT_ROLE, reason)


def invalid_request(reason: str) -> RequestError:
    """INVALID_REQUEST for this reason, which names the place."""
    return RequestError(ErrorCode.INVALID_REQUEST, reason)


def owner_mismatch(where: str) -> RequestError:
    """OWNER_MISMATCH for this place."""
    return RequestError(ErrorCode.OWNER_MISMATCH, f"{where}: is not the owner_key of the envelope")


def unknown_value(where: str, value: Any, allowed: Iterable[str]) -> str:
    """The reason that a value is none of those allowed."""
    shown = repr(value[:_SHOWN_CHARS]) if isinstance(value, str) else f"a JSON {type(value).__name__}"
    return f"{where}: {shown} is unknown; allowed: {', '.join(allowed)}"


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise invalid_request(f"run.metadata.agent.{name}: a text is needed")
    return value
