"""The state of a session as it is kept: what was said last of each field of each item. Pure.

Rules of this module:

- A change is joined to what is kept so that the same changes give the same document in any order and however often:
  of what is said of one thing the later stamp counts, and what was emptied or removed later than it was said is gone.
  So a mark stays of what was removed, and an item keeps when it was spoken of: whatever is emptied late, it is still
  known since when the item has been there, which is its place in the list.
- What only grows makes room: of information, notes and roles of sub-agents the newest are kept, of marks too. Beyond
  these bounds the order of changes may show; the newest of them are there in any case.
- What is kept is JSON and BSON, and no text of a sender is a key in it. What somebody else has written there is passed
  over where it cannot be read.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nexus.services.context.session_state import SessionState, TodoStatus, state_of
from nexus.services.context.state_change import Change
from nexus.services.context.state_parts import LISTS, MOST_SUB_AGENTS, PARTS, Fields

Document = dict[str, Any]

MOST_TODOS: Final = LISTS["todos"].most
MOST_INFOS: Final = 1_000
MOST_NOTES_A_FOLDER: Final = 50
MOST_MARKS: Final = 1_000
MOST_BYTES: Final = 1 << 20
# When an item was spoken of: the first time and the last ones. More would have to be said of it before something that
# was emptied earlier comes to be known.
_MOST_SAID: Final = 16
_MOST_KEPT: Final = {
    "useful_info": MOST_INFOS,
    "folder_notes": MOST_NOTES_A_FOLDER,
    "sub_agent_roles": MOST_SUB_AGENTS,
}

_FIELDS: Final = {
    "role": ("text",),
    "sub_agent_roles": ("text",),
    **{name: tuple(each.spellings[0] for each in part.fields) for name, part in LISTS.items()},
}
_NEEDED: Final = {
    "role": ("text",),
    "sub_agent_roles": ("text",),
    **{name: tuple(each.spellings[0] for each in part.fields if each.needed) for name, part in LISTS.items()},
}


@dataclass(frozen=True, slots=True)
class _Item:
    """What is known of an item.

    Attributes:
        fields: the value and the stamp of each.
        said: the stamps of when it was spoken of, ascending.
        removed: the stamp of its last removal.
    """

    fields: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    removed: str = ""

    @property
    def newest(self) -> str:
        return self.said[-1]

    def spoken_of(self, fields: Fields, stamp: str) -> "_Item":
        told = {name: (value, stamp) for name, value in fields.items() if name != "id"}
        joined = {name: max(known, self.fields.get(name, known), key=_last) for name, known in told.items()}
        said = sorted({*self.said, stamp})
        if len(said) > _MOST_SAID:
            said = [said[0], *said[1 - _MOST_SAID :]]
        return replace(self, fields={**self.fields, **joined}, said=tuple(said))

    def after(self, floor: str) -> "_Item":
        cut = max(floor, self.removed)
        return _Item(
            {name: known for name, known in self.fields.items() if known[1] > cut},
            tuple(stamp for stamp in self.said if stamp > cut),
            self.removed if self.removed > floor else "",
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """What is known of a part.

    Attributes:
        floor: the stamp of what emptied it last.
        given: whether it was then given.
        forgotten: the stamp of the newest removal of which no mark is kept.
        items: by id, the removed ones with them.
    """

    floor: str = ""
    given: bool = False
    forgotten: str = ""
    items: Mapping[str, _Item] = field(default_factory=dict)


def apply(document: Mapping[str, Any] | None, change: Change) -> Document:
    """The document with the change in it; one that equals it, where the change says nothing new.

    Raises:
        ValueError: the state would become too large; says what is allowed.
    """
    parts, _ = _load(document)
    joined = {name: _tidied(name, _joined(parts[name], name, change)) for name in PARTS}
    todos = len(_shown("todos", joined["todos"]))
    if todos > MOST_TODOS:
        raise ValueError(f"content.state.todos: the session would have {todos} todos, at most {MOST_TODOS} are allowed")
    dumped = {name: _dumped(part) for name, part in joined.items() if part != _Part()}
    size = len(json.dumps(dumped, ensure_ascii=False).encode(errors="surrogatepass"))
    if size > MOST_BYTES:
        raise ValueError(f"content: the state of the session would have {size} bytes, at most {MOST_BYTES} are allowed")
    return dumped


def shown(document: Mapping[str, Any] | None) -> tuple[SessionState, list[str]]:
    """The state that a document holds, and what in it could not be read. A todo of which no text is known is left out.

    An item's place is that of the first time it was spoken of.
    """
    parts, faults = _load(document)
    lists = {name: _shown(name, part) for name, part in parts.items()}
    given: dict[str, Any] = {
        name: lists[name] for name in LISTS if lists[name] or (parts[name].floor and parts[name].given)
    }
    given["role"] = next((item["text"] for item in lists["role"]), None)
    given["sub_agent_roles"] = {item["id"]: item["text"] for item in lists["sub_agent_roles"]}
    return state_of(given), faults


def _last(known: tuple[str, str]) -> tuple[str, str]:
    """By stamp; by value where two messages pass for one."""
    value, stamp = known
    return stamp, value


def _joined(part: _Part, name: str, change: Change) -> _Part:
    floor, given = part.floor, part.given
    if name in change.emptied:
        floor, given = max((floor, given), (change.stamp, change.emptied[name]))
    items = dict(part.items)
    # Of an item that is not here the mark may be gone.
    unseen = _Item(removed=part.forgotten)
    for each in change.removed.get(name, ()):
        known = items.get(each, unseen)
        items[each] = replace(known, removed=max(known.removed, change.stamp))
    for place, fields in enumerate(change.items.get(name, ())):
        known = items.get(fields["id"], unseen)
        items[fields["id"]] = known.spoken_of(fields, change.stamp_at(place))
    return _Part(floor, given, part.forgotten, items)


def _tidied(name: str, part: _Part) -> _Part:
    """Without what was emptied or removed, and what has to make room."""
    items = {key: item.after(part.floor) for key, item in part.items.items()}
    forgotten = part.forgotten if part.forgotten > part.floor else ""
    marks = [(item.removed, key) for key, item in items.items() if not item.said and item.removed > forgotten]
    marks.sort(reverse=True)
    if len(marks) > MOST_MARKS:
        forgotten = marks[MOST_MARKS][0]
    kept = {key for removed, key in marks if removed > forgotten}
    kept |= _newest(name, {key: item for key, item in items.items() if item.said})
    return _Part(part.floor, part.given, forgotten, {key: items[key] for key in sorted(kept)})


def _newest(name: str, items: Mapping[str, _Item]) -> set[str]:
    """The ids of the items that are kept."""
    groups: dict[Any, list[tuple[str, str]]] = defaultdict(list)
    for key, item in items.items():
        groups[item.fields.get("folder", ("", ""))[0]].append((item.newest, key))
    most = _MOST_KEPT.get(name)
    return {key for group in groups.values() for _, key in sorted(group, reverse=True)[:most]}


def _shown(name: str, part: _Part) -> list[Fields]:
    there = ((key, item) for key, item in part.items.items() if item.said)
    whole = [(key, item) for key, item in there if all(needed in item.fields for needed in _NEEDED[name])]
    whole.sort(key=lambda pair: (pair[1].said[0], pair[0]))
    return [{"id": key, **{each: value for each, (value, _) in item.fields.items()}} for key, item in whole]


def _dumped(part: _Part) -> dict[str, Any]:
    return {
        "floor": part.floor,
        "given": part.given,
        "forgotten": part.forgotten,
        "items": [
            {
                "id": key,
                "removed": item.removed,
                "said": list(item.said),
                "fields": {name: list(item.fields[name]) for name in sorted(item.fields)},
            }
            for key, item in part.items.items()
        ],
    }


def _load(document: Any) -> tuple[dict[str, _Part], list[str]]:
    faults: list[str] = []
    given = {} if document is None else document
    if not isinstance(given, Mapping):
        faults.append("is no document")
        given = {}
    return {name: _loaded(name, given.get(name, {}), faults) for name in PARTS}, faults


def _loaded(name: str, value: Any, faults: list[str]) -> _Part:
    listed = value.get("items", []) if isinstance(value, Mapping) else None
    if not isinstance(listed, list):
        faults.append(f"{name}: is no part")
        return _Part()
    items: dict[str, _Item] = {}
    for index, each in enumerate(listed):
        try:
            items[_text(each["id"])] = _loaded_item(name, each)
        except (TypeError, ValueError, LookupError, AttributeError):
            faults.append(f"{name}.items[{index}]: cannot be read")
    stamps = {key: stamp for key in ("floor", "forgotten") if isinstance(stamp := value.get(key), str)}
    return _Part(**stamps, given=value.get("given") is True, items=items)


def _loaded_item(name: str, value: Mapping[str, Any]) -> _Item:
    fields = {}
    for each in _FIELDS[name]:
        if each in value["fields"]:
            told, stamp = value["fields"][each]
            fields[each] = (_text(told), _text(stamp))
    if "status" in fields:
        TodoStatus(fields["status"][0])
    said = {_text(stamp) for stamp in value["said"]}
    if fields:
        said.add(max(stamp for _, stamp in fields.values()))
    return _Item(fields, tuple(sorted(said)), _text(value["removed"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
