"""The state of a session: role, TODO list, useful information, folder notes (CONTRACT §5). Pure.

It comes with a request (`run.metadata.state`) or by `session.state` messages; both are read by the same rules, those of
`nexus.services.context.state_parts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nexus.services.context.clock import parse_moment
from nexus.services.context.state_parts import Fields, TodoStatus, read_parts

__all__ = ["FolderNote", "Info", "SessionState", "Todo", "TodoStatus", "read_state", "state_of"]


@dataclass(frozen=True, slots=True)
class Todo:
    """An entry of the TODO list."""

    id: str
    text: str
    status: TodoStatus = TodoStatus.PENDING


@dataclass(frozen=True, slots=True)
class Info:
    """A piece of useful information; `created_at` in UTC, None where it is not known."""

    id: str
    text: str
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FolderNote:
    """A note on a folder; `created_at` as for `Info`."""

    id: str
    folder: str
    text: str
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SessionState:
    """What is pinned into the context of an agent, in the order in which it was given.

    Attributes:
        role: of the main agent; None when it is not given.
        sub_agent_roles: by the sub-agent's id.
        todos, useful_info, folder_notes: None when not given, `()` when given and empty.
    """

    role: str | None = None
    sub_agent_roles: Mapping[str, str] = field(default_factory=dict)
    todos: tuple[Todo, ...] | None = None
    useful_info: tuple[Info, ...] | None = None
    folder_notes: tuple[FolderNote, ...] | None = None


def read_state(value: Any, where: str) -> SessionState:
    """The state in a JSON value.

    Args:
        value: an object with any of `role`, `sub_agent_roles`, `todos`, `useful_info` and `folder_notes`.
        where: what it is called in what is said of it, such as `run.metadata.state`.

    Raises:
        ValueError: it is none; says where and what is allowed. Nothing else is raised, whatever the value is.
    """
    return state_of(read_parts(value, where))


def state_of(parts: Mapping[str, Any]) -> SessionState:
    """The state that `read_parts` gives part by part."""
    return SessionState(
        role=parts.get("role"),
        sub_agent_roles=dict(parts.get("sub_agent_roles") or {}),
        todos=None if (todos := _given(parts, "todos")) is None else tuple(map(_todo, todos)),
        useful_info=None if (infos := _given(parts, "useful_info")) is None else tuple(map(_info, infos)),
        folder_notes=None if (notes := _given(parts, "folder_notes")) is None else tuple(map(_note, notes)),
    )


def _given(parts: Mapping[str, Any], name: str) -> Sequence[Fields] | None:
    return parts.get(name)


def _todo(fields: Fields) -> Todo:
    return Todo(fields["id"], fields["text"], TodoStatus(fields.get("status", TodoStatus.PENDING)))


def _info(fields: Fields) -> Info:
    return Info(fields["id"], fields["text"], parse_moment(fields.get("created_at")))


def _note(fields: Fields) -> FolderNote:
    return FolderNote(fields["id"], fields["folder"], fields["text"], parse_moment(fields.get("created_at")))
