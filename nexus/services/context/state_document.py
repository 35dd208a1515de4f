"""The state of a session as it is kept: what was said last of each field of each item. Pure.

Rules of this module:

- A change is joined to what is kept so that the same changes give the same document in any order and however often:
  of what is said of one thing the later stamp counts, and what was emptied or removed later than it was said is gone.
  So a mark stays of what was removed, and an item keeps when it was spoken of: whatever is emptied late, it is still
  known since when the item has been there, which is its place in the list.
- What only grows makes room: of information, notes and roles of sub-agents the newest are kept, of marks too. Beyond
  these bounds the order of changes may show; the newest of them are there in any case.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any, Final

from nexus.services.context.session_state import SessionState, state_of
from nexus.services.context.state_change import Change
from nexus.services.context.state_kept import Item, Part, dump, load
from nexus.services.context.state_parts import LISTS, MOST_SUB_AGENTS, PARTS, Fields

Document = dict[str, Any]

MOST_TODOS: Final = LISTS["todos"].most
MOST_INFOS: Final = 1_000
MOST_NOTES_A_FOLDER: Final = 50
MOST_MARKS: Final = 1_000
MOST_BYTES: Final = 1 << 20
_MOST_KEPT: Final = {
    "useful_info": MOST_INFOS,
    "folder_notes": MOST_NOTES_A_FOLDER,
    "sub_agent_roles": MOST_SUB_AGENTS,
}

_NEEDED: Final = {
    "role": ("text",),
    "sub_agent_roles": ("text",),
    **{name: tuple(each.spellings[0] for each in part.fields if each.needed) for name, part in LISTS.items()},
}


def apply(document: Mapping[str, Any] | None, *changes: Change) -> Document:
    """The document with the changes in it; one that equals it, where they say nothing new.

    Raises:
        ValueError: the state would become too large; says what is allowed.
    """
    parts, _ = load(document)
    joined = {name: _tidied(name, reduce(partial(_joined, name), changes, parts[name])) for name in PARTS}
    todos = len(_shown("todos", joined["todos"]))
    if todos > MOST_TODOS:
        raise ValueError(f"content.state.todos: the session would have {todos} todos, at most {MOST_TODOS} are allowed")
    dumped = {name: dump(part) for name, part in joined.items() if part != Part()}
    size = len(json.dumps(dumped, ensure_ascii=False).encode(errors="surrogatepass"))
    if size > MOST_BYTES:
        raise ValueError(f"content: the state of the session would have {size} bytes, at most {MOST_BYTES} are allowed")
    return dumped


def shown(document: Mapping[str, Any] | None) -> tuple[SessionState, list[str]]:
    """The state that a document holds, and what in it could not be read. A todo of which no text is known is left out.

    An item's place is that of the first time it was spoken of.
    """
    parts, faults = load(document)
    lists = {name: _shown(name, part) for name, part in parts.items()}
    given: dict[str, Any] = {
        name: lists[name] for name in LISTS if lists[name] or (parts[name].floor and parts[name].given)
    }
    given["role"] = next((item["text"] for item in lists["role"]), None)
    given["sub_agent_roles"] = {item["id"]: item["text"] for item in lists["sub_agent_roles"]}
    return state_of(given), faults


def _joined(name: str, part: Part, change: Change) -> Part:
    floor, given = part.floor, part.given
    if name in change.emptied:
        floor, given = max((floor, given), (change.stamp, change.emptied[name]))
    items = dict(part.items)
    # Of an item that is not here the mark may be gone.
    unseen = Item(removed=part.forgotten)
    for each in change.removed.get(name, ()):
        known = items.get(each, unseen)
        items[each] = replace(known, removed=max(known.removed, change.stamp))
    for place, fields in enumerate(change.items.get(name, ())):
        known = items.get(fields["id"], unseen)
        items[fields["id"]] = known.spoken_of(fields, change.stamp_at(place))
    return Part(floor, given, part.forgotten, items)


def _tidied(name: str, part: Part) -> Part:
    """Without what was emptied or removed, and what has to make room."""
    items = {key: item.after(part.floor) for key, item in part.items.items()}
    forgotten = part.forgotten if part.forgotten > part.floor else ""
    marks = [(item.removed, key) for key, item in items.items() if not item.said and item.removed > forgotten]
    marks.sort(reverse=True)
    if len(marks) > MOST_MARKS:
        forgotten = marks[MOST_MARKS][0]
    kept = {key for removed, key in marks if removed > forgotten}
    kept |= _newest(name, {key: item for key, item in items.items() if item.said})
    return Part(part.floor, part.given, forgotten, {key: items[key] for key in sorted(kept)})


def _newest(name: str, items: Mapping[str, Item]) -> set[str]:
    """The ids of the items that are kept."""
    groups: dict[Any, list[tuple[str, str]]] = defaultdict(list)
    for key, item in items.items():
        groups[item.fields.get("folder", ("", ""))[0]].append((item.newest, key))
    most = _MOST_KEPT.get(name)
    return {key for group in groups.values() for _, key in sorted(group, reverse=True)[:most]}


def _shown(name: str, part: Part) -> list[Fields]:
    there = ((key, item) for key, item in part.items.items() if item.said)
    whole = [(key, item) for key, item in there if all(needed in item.fields for needed in _NEEDED[name])]
    whole.sort(key=lambda pair: (pair[1].said[0], pair[0]))
    return [{"id": key, **{each: value for each, (value, _) in item.fields.items()}} for key, item in whole]
