"""Changes of a session's state (contract §5) and how they are merged into what is stored. Pure.

- Changes have stamps, texts that sort in their order: by time, then replacing before merging, then by the message's
  id. Items of a list carry their place as well.
- For each field of each item the later stamp wins; what was emptied or removed after it was written is gone. So the
  same changes give the same document in any order and however often (docs/decisions/0012). Removed items leave a
  mark, and items keep the stamps of when they were written.
- Every part is a set of items: the role is one item with the id `""`, a sub-agent's role one item with a text.
- Of information, notes, sub-agents' roles and marks the newest are kept. Beyond these bounds the order of changes may
  show; the newest changes are there in any case.
- What is stored is JSON and BSON, and no text of a sender is a key in it. What cannot be read back is skipped.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field, WithJsonSchema
from typing_extensions import TypedDict

from nexus.services.session_state.state import (
    LISTS,
    MOST_SUB_AGENTS,
    PARTS,
    Fields,
    PatchedState,
    SessionState,
    State,
    TodoStatus,
    not_null,
    read_id,
    read_parts,
    read_sub_agent,
    removed_schema,
    state_of,
)
from nexus.services.text.checks import check_names, read_op, unknown

Document = dict[str, Any]

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "set": ("op", "state"),
    "patch": ("op", "state", "remove"),
    "clear": ("op", "parts"),
}
OPS: Final = tuple(_KEYS)
_REPLACES, _MERGES = "0", "1"
# Microseconds since year 1, the kind of the change, the message and, where there is one, the place in a list.
_STAMP: Final = re.compile(r"[0-9]{18}[01][0-9a-f]{16}(?:[0-9]{4})?")
_ID_CHARS: Final = 16
_EPOCH: Final = datetime.min.replace(tzinfo=UTC)
_MOST_REMOVED: Final = {name: part.most for name, part in LISTS.items()} | {"sub_agent_roles": MOST_SUB_AGENTS}

MOST_TODOS: Final = LISTS["todos"].most
_MOST_MARKS: Final = 1_000
MOST_BYTES: Final = 1 << 20
# Notes of each folder.
_MOST_KEPT: Final = {"useful_info": 1_000, "folder_notes": 50, "sub_agent_roles": MOST_SUB_AGENTS}
# Stamps kept of an item: the first and the newest. Only an item written more often than this forgets any.
_MOST_STAMPS: Final = 16

_ROLES: Final = {"role": ["text"], "sub_agent_roles": ["text"]}
_FIELDS: Final = _ROLES | {name: [each.spellings[0] for each in part.fields] for name, part in LISTS.items()}
_NEEDED: Final = _ROLES | {
    name: [each.spellings[0] for each in part.fields if each.needed] for name, part in LISTS.items()
}


PartName = Annotated[str, Field(json_schema_extra={"enum": [*PARTS]})]


class SetState(TypedDict):
    """Replaces the parts that `state` gives."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic's name for it
    op: Literal["set"]
    state: State


class PatchState(TypedDict):
    """Joins items by their ids, and removes those named in `remove`; it has one of the two."""

    __pydantic_config__ = ConfigDict(  # type: ignore[misc]  # as above
        extra="forbid", json_schema_extra={"anyOf": [not_null("state"), not_null("remove")]}
    )
    op: Literal["patch"]
    state: NotRequired[PatchedState | None]
    remove: NotRequired[Annotated[dict[str, list[Any]], WithJsonSchema(removed_schema())] | None]


class ClearState(TypedDict):
    """Takes these parts away, or all."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # as above
    op: Literal["clear"]
    parts: NotRequired[Annotated[list[PartName], Field(min_length=1)] | None]


# The content of a `session.state` message.
StateChange = SetState | PatchState | ClearState


@dataclass(frozen=True, slots=True)
class Change:
    """The change that a `session.state` message makes.

    Attributes:
        stamp: a text that sorts changes in time.
        emptied: parts of which everything earlier is gone, and whether they then count as given.
        items: items that are written, by part; fields that an item does not name stay as they are.
        removed: ids of the items that are removed, by part.
    """

    stamp: str
    emptied: Mapping[str, bool] = field(default_factory=dict)
    items: Mapping[str, Sequence[Fields]] = field(default_factory=dict)
    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_change(content: Any, at: datetime, message_id: str) -> Change:
    """The change in the content of a message of this time; ValueError for any other content, which says why."""
    match read_op(content, _KEYS):
        case "set":
            parts = read_parts(content.get("state"), "content.state")
            written = {name: _items(part) for name, part in parts.items()}
            return Change(_stamp(at, _REPLACES, message_id), dict.fromkeys(parts, True), written)
        case "patch":
            return _patch(content, _stamp(at, _MERGES, message_id))
        case _:
            cleared = dict.fromkeys(_parts(content.get("parts")), False)
            return Change(_stamp(at, _REPLACES, message_id), cleared)


def _stamp(at: datetime, kind: str, message_id: str) -> str:
    micros = (at - _EPOCH) // timedelta(microseconds=1)
    digest = hashlib.sha256(message_id.encode(errors="surrogatepass")).hexdigest()
    return f"{micros:018d}{kind}{digest[:_ID_CHARS]}"


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
    check_names("content.remove", value, _MOST_REMOVED)
    for name, ids in value.items():
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


@dataclass(frozen=True, slots=True)
class _Item:
    """An item as it is stored.

    Attributes:
        fields: the value and the stamp of each.
        stamps: of when the item was written, ascending; stored under `said`.
        removed: the stamp of its last removal.
    """

    fields: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    stamps: tuple[str, ...] = ()
    removed: str = ""

    def written(self, fields: Fields, stamp: str) -> "_Item":
        new = {name: (value, stamp) for name, value in fields.items() if name != "id"}
        # By stamp; by value where two messages pass for one.
        merged = {
            name: max(pair, self.fields.get(name, pair), key=lambda known: (known[1], known[0]))
            for name, pair in new.items()
        }
        stamps = sorted({*self.stamps, stamp})
        if len(stamps) > _MOST_STAMPS:
            stamps = [stamps[0], *stamps[1 - _MOST_STAMPS :]]
        return replace(self, fields={**self.fields, **merged}, stamps=tuple(stamps))

    def after(self, floor: str) -> "_Item":
        """What is left when everything up to `floor` is gone."""
        cut = max(floor, self.removed)
        return _Item(
            {name: known for name, known in self.fields.items() if known[1] > cut},
            tuple(stamp for stamp in self.stamps if stamp > cut),
            self.removed if self.removed > floor else "",
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A part as it is stored.

    Attributes:
        floor: the stamp of the last change that emptied it.
        given: whether it then counted as given.
        forgotten: the stamp of the newest removal of which no mark is kept.
        items: by id, removed ones included.
    """

    floor: str = ""
    given: bool = False
    forgotten: str = ""
    items: Mapping[str, _Item] = field(default_factory=dict)


def apply(document: Mapping[str, Any] | None, *changes: Change) -> Document:
    """The document with the changes merged in, an equal one for none; ValueError where it would become too large."""
    parts, _ = _load(document)
    merged = {name: _tidied(name, reduce(partial(_merged, name), changes, parts[name])) for name in PARTS}
    todos = len(_readable("todos", merged["todos"]))
    if todos > MOST_TODOS:
        raise ValueError(f"content.state.todos: the session would have {todos} todos, at most {MOST_TODOS} are allowed")
    dumped = {name: _dump(part) for name, part in merged.items() if part != _Part()}
    size = len(json.dumps(dumped, ensure_ascii=False).encode(errors="surrogatepass"))
    if size > MOST_BYTES:
        raise ValueError(f"content: the state of the session would have {size} bytes, at most {MOST_BYTES} are allowed")
    return dumped


def state_in(document: Mapping[str, Any] | None) -> tuple[SessionState, list[str]]:
    """The state that a stored document holds, and what of it could not be read.

    Items are in the order in which they were first written. A todo whose text is not known is left out.
    """
    parts, faults = _load(document)
    lists = {name: _readable(name, part) for name, part in parts.items()}
    given: dict[str, Any] = {
        name: lists[name] for name in LISTS if lists[name] or (parts[name].floor and parts[name].given)
    }
    given["role"] = next((item["text"] for item in lists["role"]), None)
    given["sub_agent_roles"] = {item["id"]: item["text"] for item in lists["sub_agent_roles"]}
    return state_of(given), faults


def _merged(name: str, part: _Part, change: Change) -> _Part:
    floor, given = part.floor, part.given
    if name in change.emptied:
        floor, given = max((floor, given), (change.stamp, change.emptied[name]))
    items = dict(part.items)
    # The mark of an item that is not here may have been forgotten.
    unseen = _Item(removed=part.forgotten)
    for each in change.removed.get(name, ()):
        known = items.get(each, unseen)
        items[each] = replace(known, removed=max(known.removed, change.stamp))
    for place, fields in enumerate(change.items.get(name, ())):
        # The stamp of an item follows that of its change.
        items[fields["id"]] = items.get(fields["id"], unseen).written(fields, f"{change.stamp}{place:04d}")
    return _Part(floor, given, part.forgotten, items)


def _tidied(name: str, part: _Part) -> _Part:
    items = {key: item.after(part.floor) for key, item in part.items.items()}
    forgotten = part.forgotten if part.forgotten > part.floor else ""
    marks = [(item.removed, key) for key, item in items.items() if not item.stamps and item.removed > forgotten]
    marks.sort(reverse=True)
    if len(marks) > _MOST_MARKS:
        forgotten = marks[_MOST_MARKS][0]
    kept = {key for removed, key in marks if removed > forgotten}
    kept |= _newest(name, {key: item for key, item in items.items() if item.stamps})
    return _Part(part.floor, part.given, forgotten, {key: items[key] for key in sorted(kept)})


def _newest(name: str, items: Mapping[str, _Item]) -> set[str]:
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key, item in items.items():
        groups[item.fields.get("folder", ("", ""))[0]].append((item.stamps[-1], key))
    most = _MOST_KEPT.get(name)
    return {key for group in groups.values() for _, key in sorted(group, reverse=True)[:most]}


def _readable(name: str, part: _Part) -> list[Fields]:
    there = ((key, item) for key, item in part.items.items() if item.stamps)
    whole = [(key, item) for key, item in there if all(needed in item.fields for needed in _NEEDED[name])]
    whole.sort(key=lambda pair: (pair[1].stamps[0], pair[0]))
    return [{"id": key, **{each: value for each, (value, _) in item.fields.items()}} for key, item in whole]


def _dump(part: _Part) -> Document:
    return {
        "floor": part.floor,
        "given": part.given,
        "forgotten": part.forgotten,
        "items": [
            {
                "id": key,
                "removed": item.removed,
                "said": list(item.stamps),
                "fields": {name: list(item.fields[name]) for name in sorted(item.fields)},
            }
            for key, item in part.items.items()
        ],
    }


def _load(document: Any) -> tuple[dict[str, _Part], list[str]]:
    """Every part of a stored document, and what could not be read; None for a document that does not exist."""
    faults: list[str] = []
    given = {} if document is None else document
    if not isinstance(given, Mapping):
        faults.append("is no document")
        given = {}
    return {name: _load_part(name, given.get(name, {}), faults) for name in PARTS}, faults


def _load_part(name: str, value: Any, faults: list[str]) -> _Part:
    listed = value.get("items", []) if isinstance(value, Mapping) else None
    if not isinstance(listed, list):
        faults.append(f"{name}: is no part")
        return _Part()
    try:
        floor, forgotten = (_stamp_or_none(value.get(key)) for key in ("floor", "forgotten"))
    except TypeError:
        faults.append(f"{name}: cannot tell since when")
        floor = forgotten = ""
    items: dict[str, _Item] = {}
    for index, each in enumerate(listed):
        try:
            items[_checked_text(each["id"])] = _load_item(name, each)
        except (TypeError, ValueError, LookupError, AttributeError):
            faults.append(f"{name}.items[{index}]: cannot be read")
    return _Part(floor, value.get("given") is True, forgotten, items)


def _load_item(name: str, value: Mapping[str, Any]) -> _Item:
    fields = {}
    for each in _FIELDS[name]:
        if each in value["fields"]:
            text, stamp = value["fields"][each]
            fields[each] = (_checked_text(text), _checked_stamp(stamp))
    if "status" in fields:
        TodoStatus(fields["status"][0])
    stamps = {_checked_stamp(stamp) for stamp in value["said"]}
    if fields:
        stamps.add(max(stamp for _, stamp in fields.values()))
    return _Item(fields, tuple(sorted(stamps)), _stamp_or_none(value["removed"]))


def _checked_stamp(value: Any) -> str:
    if not isinstance(value, str) or not _STAMP.fullmatch(value):
        raise TypeError
    return value


def _stamp_or_none(value: Any) -> str:
    return _checked_stamp(value) if value else ""


def _checked_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
