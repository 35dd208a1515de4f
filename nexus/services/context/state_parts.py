"""The parts of a session's state as they are given (CONTRACT §5): lenient in form, strict in meaning. Pure.

Rules of this module:

- Whatever JSON is given, what is wrong with it is a `ValueError` that names the place and what is allowed, and quotes
  no more than a plain word: the reason may be logged.
- `null` is as good as nothing. Keys of an item that are not known are passed over, those of the state are refused: a
  part with a misspelled name would silently be missing.
- Items come out as fields under one name each, moments as ISO texts in UTC, so that they can be stored as they are.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from nexus.services.context.clock import parse_moment
from nexus.services.context.escape import canonical

ROLE_CHARS: Final = 32_000
TEXT_CHARS: Final = 8_000
TODO_CHARS: Final = 2_000
FOLDER_CHARS: Final = 1_024
ID_CHARS: Final = 128
MOST_SUB_AGENTS: Final = 50

# A note that names no folder is one on the folder in which the agent works.
HERE: Final = "."

_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{ID_CHARS}}}")
# What may be quoted: no more than somebody takes for one of our own words.
_WORD = re.compile(r"[A-Za-z_-]{1,16}")
_NOT_IN_A_STATUS = re.compile(r"[ _-]")
_DERIVED_ID_CHARS: Final = 16

Fields = dict[str, Any]


class TodoStatus(StrEnum):
    """How far a todo has come."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


def read_parts(value: Any, where: str, *, patch: bool = False) -> dict[str, Any]:
    """The parts that a state gives, by name: `role` a text, `sub_agent_roles` texts by id, the others lists of fields.

    Args:
        value: a JSON object.
        where: what it is called in what is said of it.
        patch: an item may give only some of its fields. A part that is `null` is kept as None, and a role too.

    Raises:
        ValueError: it is no state.
    """
    state = _object(value, where, PARTS)
    given = {part: state[part] for part in PARTS if part in state and (patch or state[part] is not None)}
    return {
        part: None if content is None else _READERS[part](content, f"{where}.{part}", patch=patch)
        for part, content in given.items()
    }


def read_id(value: Any, where: str) -> str:
    """The id of an item: a text, or a whole number as one.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    # A number of so many bits has more digits than may be, and Python would not write it out.
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 4 * ID_CHARS:
        value = str(value)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError(
            f"{where}: 1 to {ID_CHARS} letters, digits, '.', '_', ':' or '-', or a whole number, are allowed"
        )
    return value


def read_sub_agent(value: Any, where: str) -> str:
    """The id of a sub-agent: a text, which may be a name with spaces.

    Raises:
        ValueError: it is none.
    """
    return _text(value, where, most=ID_CHARS)


def unknown(where: str, value: Any, allowed: Sequence[str]) -> ValueError:
    """What is said of a value that is none of those allowed."""
    if not isinstance(value, str):
        shown = f"a JSON {type(value).__name__}"
    else:
        shown = repr(value) if _WORD.fullmatch(value) else f"a text of {len(value)} characters"
    return ValueError(f"{where}: {shown} is unknown; allowed: {', '.join(allowed)}")


def _object(value: Any, where: str, allowed: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: a JSON object is needed, with any of {', '.join(allowed)}")
    for key in value:
        if key not in allowed:
            raise unknown(where, key, allowed)
    return value


def _text(value: Any, where: str, *, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: a text of 1 to {most} characters is needed")
    if len(value) > most:
        raise ValueError(f"{where}: {len(value)} characters, at most {most} are allowed")
    if not canonical(value).strip():
        raise ValueError(f"{where}: is blank; a text of 1 to {most} characters is needed")
    return value


def _status(value: Any, where: str) -> str:
    """Also `inProgress`, `in-progress` and `IN_PROGRESS`: no two of the three could be meant."""
    spelled = _NOT_IN_A_STATUS.sub("", value).lower() if isinstance(value, str) else None
    for status in TodoStatus:
        if spelled == status.replace("_", ""):
            return status.value
    raise unknown(where, value, [*TodoStatus])


def _moment(value: Any, where: str) -> str:
    moment = parse_moment(value)
    if moment is None:
        raise ValueError(f"{where}: a time in ISO 8601 is needed")
    return moment.isoformat()


def _read_role(value: Any, where: str, *, patch: bool) -> str:  # noqa: ARG001  # a reader as the others are
    return _text(value, where, most=ROLE_CHARS)


def _read_roles(value: Any, where: str, *, patch: bool) -> dict[str, str | None]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: a JSON object is needed, with the role of each sub-agent under its id")
    if len(value) > MOST_SUB_AGENTS:
        raise ValueError(f"{where}: {len(value)} sub-agents, at most {MOST_SUB_AGENTS} are allowed")
    roles: dict[str, str | None] = {}
    for index, (agent, role) in enumerate(value.items()):
        name = read_sub_agent(agent, f"{where}: the id at place {index}")
        place = f"{where}.{name}" if _WORD.fullmatch(name) else f"{where}: the role at place {index}"
        if role is not None:
            roles[name] = _text(role, place, most=ROLE_CHARS)
        elif patch:
            roles[name] = None
    return roles


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of an item.

    Attributes:
        spellings: the keys under which it may stand, its own name first.
        read: checks it and says what is wrong.
        needed: an item is none without it.
    """

    spellings: tuple[str, ...]
    read: Callable[[Any, str], str]
    needed: bool = False


@dataclass(frozen=True, slots=True)
class _List:
    """A part that is a list.

    Attributes:
        most: how many items may be given at once.
        fields: of an item, besides its id.
        plain: what is added to an item that is a mere text or does not say it; None where an item needs an id, and is
            no mere text.
    """

    most: int
    fields: tuple[_Field, ...]
    plain: Mapping[str, str] | None = None

    def read(self, value: Any, where: str, *, patch: bool) -> list[Fields]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where}: a list is needed")
        if len(value) > self.most:
            raise ValueError(f"{where}: {len(value)} items, at most {self.most} are allowed")
        places: dict[str, str] = {}
        items: list[Fields] = []
        for index, given in enumerate(value):
            place = f"{where}[{index}]"
            item = self._read_item(given, place, patch=patch)
            if item["id"] not in places:
                places[item["id"]] = place
                items.append(item)
            elif isinstance(given, Mapping) and given.get("id") is not None:
                raise ValueError(f"{place}.id: is that of {places[item['id']]} too; every item needs its own")
            # The very same item without an id, once more, is no second one.
        return items

    def _read_item(self, given: Any, where: str, *, patch: bool) -> Fields:
        item = {**self.plain, "text": given} if isinstance(given, str) and self.plain is not None else given
        if not isinstance(item, Mapping):
            raise ValueError(
                f"{where}: {'a JSON object' if self.plain is None else 'a text or a JSON object'} is needed"
            )
        has_id = item.get("id") is not None
        if not has_id and self.plain is None:
            raise ValueError(f"{where}.id: is needed")
        fields: Fields = {"id": read_id(item["id"], f"{where}.id")} if has_id else {}
        for field in self.fields:
            name = field.spellings[0]
            spelling = next((each for each in field.spellings if item.get(each) is not None), None)
            if spelling is not None:
                fields[name] = field.read(item[spelling], f"{where}.{spelling}")
            elif field.needed and not (patch and has_id):
                if name not in (self.plain or {}):
                    raise ValueError(f"{where}.{name}: is needed")
                fields[name] = (self.plain or {})[name]
        return fields if has_id else {"id": _derived_id(fields), **fields}


def _derived_id(fields: Fields) -> str:
    said = "\0".join(f"{name}={fields[name]}" for name in sorted(fields))
    return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()[:_DERIVED_ID_CHARS]


_CREATED_AT: Final = _Field(("created_at", "createdAt"), _moment)
_TEXT: Final = _Field(("text", "content"), partial(_text, most=TEXT_CHARS), needed=True)
_TODO_TEXT: Final = _Field(("text", "content"), partial(_text, most=TODO_CHARS), needed=True)
_STATUS: Final = _Field(("status",), _status)
_FOLDER: Final = _Field(("folder", "path"), partial(_text, most=FOLDER_CHARS), needed=True)

LISTS: Final[Mapping[str, _List]] = {
    "todos": _List(500, (_TODO_TEXT, _STATUS)),
    "useful_info": _List(1_000, (_TEXT, _CREATED_AT), plain={}),
    "folder_notes": _List(1_000, (_FOLDER, _TEXT, _CREATED_AT), plain={"folder": HERE}),
}
_READERS: Final[Mapping[str, Callable[..., Any]]] = {
    "role": _read_role,
    "sub_agent_roles": _read_roles,
    **{name: part.read for name, part in LISTS.items()},
}
PARTS: Final = tuple(_READERS)
