"""What a `session.state` message changes (CONTRACT §5, docs/contract.md "Session state"). Pure.

Rules of this module:

- What was said later counts. Every change has a stamp, a text that compares as the changes follow each other: first by
  the moment, then what replaces before what merges, then by the message's id. What stands in a list is stamped with its
  place as well, so that all that a message says comes after what the same message empties.
- A part is a set of items, whatever its form: the role is one item without an id, a sub-agent's role one with a text.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nexus.services.context.request import DEFAULT_SESSION
from nexus.services.context.state_parts import (
    LISTS,
    MOST_SUB_AGENTS,
    PARTS,
    Fields,
    read_id,
    read_parts,
    read_sub_agent,
    unknown,
)

OPS: Final = ("set", "patch", "clear")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "set": ("op", "state"),
    "patch": ("op", "state", "remove"),
    "clear": ("op", "parts"),
}
_REPLACES, _MERGES = "0", "1"
# A moment in microseconds, the kind of the change, the message, and where there is one the place in a list.
STAMP: Final = re.compile(r"[0-9]{18}[01][0-9a-f]{16}(?:[0-9]{4})?")
_ID_CHARS: Final = 16
_SESSION_CHARS: Final = 256
_EPOCH: Final = datetime.min.replace(tzinfo=UTC)
_MOST_REMOVED: Final = {name: part.most for name, part in LISTS.items()} | {"sub_agent_roles": MOST_SUB_AGENTS}


@dataclass(frozen=True, slots=True)
class Change:
    """What a message changes.

    Attributes:
        stamp: when it was said, as a text that compares.
        emptied: the parts of which everything that was said before is gone, and whether they are then given.
        items: what is said of items, by part; a field that is not among an item's stays as it is.
        removed: the ids of the items that are taken away, by part.
    """

    stamp: str
    emptied: Mapping[str, bool] = field(default_factory=dict)
    items: Mapping[str, Sequence[Fields]] = field(default_factory=dict)
    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def stamp_at(self, place: int) -> str:
        """The stamp of an item, which follows that of the change itself."""
        return f"{self.stamp}{place:04d}"


def read_change(content: Any, said_at: datetime, message_id: str) -> Change:
    """The change in the content of a message.

    Raises:
        ValueError: it is none; says where and what is allowed.
    """
    op = content.get("op") if isinstance(content, Mapping) else None
    if op is None:
        raise ValueError(f"content: a JSON object is needed, with op: {', '.join(OPS)}")
    if op not in OPS:
        raise unknown("content.op", op, OPS)
    for key in content:
        if key not in _KEYS[op]:
            raise unknown("content", key, _KEYS[op])
    match op:
        case "set":
            return _set(content, _stamp(said_at, _REPLACES, message_id))
        case "patch":
            return _patch(content, _stamp(said_at, _MERGES, message_id))
        case _:
            cleared = dict.fromkeys(_parts(content.get("parts")), False)
            return Change(_stamp(said_at, _REPLACES, message_id), cleared)


def read_session(metadata: Mapping[str, Any]) -> str:
    """The session that a message is about.

    Raises:
        ValueError: it names none.
    """
    session = metadata.get("session_id")
    if session is None:
        return DEFAULT_SESSION
    if not isinstance(session, str) or not 1 <= len(session) <= _SESSION_CHARS:
        raise ValueError(f"metadata.session_id: a text of 1 to {_SESSION_CHARS} characters is needed")
    return session


def _stamp(said_at: datetime, kind: str, message_id: str) -> str:
    micros = (said_at - _EPOCH) // timedelta(microseconds=1)
    # Ids are as long as their senders like; what follows here needs to differ, not to say anything.
    digest = hashlib.sha256(message_id.encode(errors="surrogatepass")).hexdigest()
    return f"{micros:018d}{kind}{digest[:_ID_CHARS]}"


def _set(content: Mapping[str, Any], stamp: str) -> Change:
    parts = read_parts(content.get("state"), "content.state")
    return Change(stamp, dict.fromkeys(parts, True), {name: _items(given) for name, given in parts.items()})


def _patch(content: Mapping[str, Any], stamp: str) -> Change:
    given, remove = content.get("state"), content.get("remove")
    if given is None and remove is None:
        raise ValueError("content: a patch needs state or remove")
    parts = {} if given is None else read_parts(given, "content.state", patch=True)
    removed = {} if remove is None else _removed(remove)
    roles = parts.get("sub_agent_roles") or {}
    if gone := [agent for agent, role in roles.items() if role is None]:
        removed["sub_agent_roles"] = [*removed.get("sub_agent_roles", ()), *gone]
    return Change(
        stamp,
        {name: False for name, part in parts.items() if part is None},
        {name: _items(part) for name, part in parts.items() if part is not None},
        removed,
    )


def _items(part: str | Mapping[str, str | None] | Sequence[Fields]) -> Sequence[Fields]:
    if isinstance(part, str):
        return [{"id": "", "text": part}]
    if isinstance(part, Mapping):
        return [{"id": agent, "text": role} for agent, role in part.items() if role is not None]
    return part


def _removed(value: Any) -> dict[str, list[str]]:
    if not isinstance(value, Mapping):
        raise ValueError(f"content.remove: a JSON object is needed, with ids under any of {', '.join(_MOST_REMOVED)}")
    removed = {}
    for name, ids in value.items():
        if name not in _MOST_REMOVED:
            raise unknown("content.remove", name, [*_MOST_REMOVED])
        where, most = f"content.remove.{name}", _MOST_REMOVED[name]
        if not isinstance(ids, list | tuple) or len(ids) > most:
            raise ValueError(f"{where}: a list of at most {most} ids is needed")
        read = read_sub_agent if name == "sub_agent_roles" else read_id
        removed[name] = [read(each, f"{where}[{index}]") for index, each in enumerate(ids)]
    return removed


def _parts(value: Any) -> Sequence[str]:
    if value is None:
        return PARTS
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"content.parts: a list of parts is needed, any of {', '.join(PARTS)}; without it all go")
    for index, name in enumerate(value):
        if name not in PARTS:
            raise unknown(f"content.parts[{index}]", name, PARTS)
    return value
