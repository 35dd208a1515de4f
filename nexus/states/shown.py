"""The state of a session as people and programs read it.

What a state holds was written by whoever spoke on the bus: nothing of it reaches a terminal but printable characters.
"""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from nexus.cli.terminal import printable
from nexus.services.context.blocks import Block
from nexus.services.context.escape import canonical
from nexus.services.context.pinned import pinned_blocks
from nexus.services.context.session_state import SessionState
from nexus.services.context.state_parts import PARTS


def lines(state: SessionState) -> list[str]:
    """The parts as they are pinned for the main agent, and the roles of sub-agents; `[]` where nothing is given."""
    return [printable(line) for line in "\n\n".join(_sections(state)).splitlines()]


def as_object(state: SessionState) -> dict[str, Any]:
    """The state as a `set` takes it: the parts that are given."""
    roles = dict(state.sub_agent_roles) or None
    lists = {name: _items(getattr(state, name)) for name in ("todos", "useful_info", "folder_notes")}
    parts = {"role": state.role, "sub_agent_roles": roles, **lists}
    return {name: part for name, part in parts.items() if part is not None}


def _sections(state: SessionState) -> Iterator[str]:
    for block in pinned_blocks(state.role or "", state):
        yield from _pinned(block)
    if state.sub_agent_roles:
        roles = (f"- {printable(agent)}: {canonical(role).strip()}" for agent, role in state.sub_agent_roles.items())
        yield "Roles of sub-agents:\n\n" + "\n".join(role.replace("\n", "\n  ") for role in roles)
    if empty := [name for name in PARTS if getattr(state, name) == ()]:
        yield f"Given and empty: {', '.join(empty)}"


def _pinned(block: Block) -> Iterator[str]:
    yield block.text
    if block.dropped:
        yield f"({block.dropped} more, older, are kept and not pinned; --json shows them)"


def _items(items: tuple[Any, ...] | None) -> list[dict[str, Any]] | None:
    return None if items is None else [_fields(asdict(item)) for item in items]


def _fields(item: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in item.items()
        if value is not None
    }
