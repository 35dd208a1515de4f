"""What is known of the parts of a session's state and of the items in them, and its form in the store. Pure.

Rules of this module:

- Of what is said of one field the later stamp counts. What is emptied or removed later than it was said is gone.
- What is stored is JSON and BSON, and no text of a sender is a key in it. What somebody else has written there is
  passed over where it cannot be read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nexus.services.context.session_state import TodoStatus
from nexus.services.context.state_change import STAMP
from nexus.services.context.state_parts import LISTS, PARTS, Fields

# When an item was spoken of: the first time and the last ones. More would have to be said of it before something that
# was emptied earlier comes to be known.
_MOST_SAID: Final = 16
_FIELDS: Final = {
    "role": ("text",),
    "sub_agent_roles": ("text",),
    **{name: tuple(each.spellings[0] for each in part.fields) for name, part in LISTS.items()},
}


@dataclass(frozen=True, slots=True)
class Item:
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
        """When it was spoken of last."""
        return self.said[-1]

    def spoken_of(self, fields: Fields, stamp: str) -> "Item":
        """The item when this has been said of it as well."""
        told = {name: (value, stamp) for name, value in fields.items() if name != "id"}
        joined = {name: max(known, self.fields.get(name, known), key=_last) for name, known in told.items()}
        said = sorted({*self.said, stamp})
        if len(said) > _MOST_SAID:
            said = [said[0], *said[1 - _MOST_SAID :]]
        return replace(self, fields={**self.fields, **joined}, said=tuple(said))

    def after(self, floor: str) -> "Item":
        """What is left of the item when all that was said until then is gone."""
        cut = max(floor, self.removed)
        return Item(
            {name: known for name, known in self.fields.items() if known[1] > cut},
            tuple(stamp for stamp in self.said if stamp > cut),
            self.removed if self.removed > floor else "",
        )


@dataclass(frozen=True, slots=True)
class Part:
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
    items: Mapping[str, Item] = field(default_factory=dict)


def _last(known: tuple[str, str]) -> tuple[str, str]:
    """By stamp; by value where two messages pass for one."""
    value, stamp = known
    return stamp, value


def dump(part: Part) -> dict[str, Any]:
    """The part as it is stored."""
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


def load(document: Any) -> tuple[dict[str, Part], list[str]]:
    """Every part of a stored document, and what in it could not be read; None is one of which nothing is known."""
    faults: list[str] = []
    given = {} if document is None else document
    if not isinstance(given, Mapping):
        faults.append("is no document")
        given = {}
    return {name: _loaded(name, given.get(name, {}), faults) for name in PARTS}, faults


def _loaded(name: str, value: Any, faults: list[str]) -> Part:
    listed = value.get("items", []) if isinstance(value, Mapping) else None
    if not isinstance(listed, list):
        faults.append(f"{name}: is no part")
        return Part()
    try:
        floor, forgotten = (_stamp_or_none(value.get(key)) for key in ("floor", "forgotten"))
    except TypeError:
        faults.append(f"{name}: cannot tell since when")
        floor = forgotten = ""
    items: dict[str, Item] = {}
    for index, each in enumerate(listed):
        try:
            items[_text(each["id"])] = _loaded_item(name, each)
        except (TypeError, ValueError, LookupError, AttributeError):
            faults.append(f"{name}.items[{index}]: cannot be read")
    return Part(floor, value.get("given") is True, forgotten, items)


def _loaded_item(name: str, value: Mapping[str, Any]) -> Item:
    fields = {}
    for each in _FIELDS[name]:
        if each in value["fields"]:
            told, stamp = value["fields"][each]
            fields[each] = (_text(told), _stamp(stamp))
    if "status" in fields:
        TodoStatus(fields["status"][0])
    said = {_stamp(stamp) for stamp in value["said"]}
    if fields:
        said.add(max(stamp for _, stamp in fields.values()))
    return Item(fields, tuple(sorted(said)), _stamp_or_none(value["removed"]))


def _stamp(value: Any) -> str:
    if not isinstance(value, str) or not STAMP.fullmatch(value):
        raise TypeError
    return value


def _stamp_or_none(value: Any) -> str:
    return _stamp(value) if value else ""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
