"""The state of a session and how it is read from JSON (contract §5): lenient in form, strict in meaning. Pure.

It comes with a request (`run.metadata.state`) or by `session.state` messages; both are read by the same rules:

- Whatever JSON is given, a fault is a `ValueError` that names the place and what is allowed. It quotes no more than a
  plain word, since reasons are logged.
- `null` counts as missing. Unknown keys of an item are ignored, unknown keys of the state are refused: a part with a
  misspelled name would silently be missing.
- Items come out as fields under one name each, times as ISO texts in UTC, so that they can be stored as they are.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final

from pydantic import WithJsonSchema

from nexus.core.models import parse_moment
from nexus.services.text.checks import check_names, is_word, read_text, unknown

ROLE_CHARS: Final = 32_000
TEXT_CHARS: Final = 8_000
TODO_CHARS: Final = 2_000
FOLDER_CHARS: Final = 1_024
ID_CHARS: Final = 128
MOST_SUB_AGENTS: Final = 50

# The folder of a note that names none: the one in which the agent works.
HERE: Final = "."

_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{ID_CHARS}}}")
_NOT_IN_A_STATUS = re.compile(r"[ _-]")
_DERIVED_ID_CHARS: Final = 16

Fields = dict[str, Any]


class TodoStatus(StrEnum):
    """How far a todo has come."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


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
    """The state that is pinned into an agent's context, items in the order in which they were given.

    `role` is that of the main agent. Parts are None when not given, and lists `()` when given and empty.
    """

    role: str | None = None
    sub_agent_roles: Mapping[str, str] = field(default_factory=dict)
    todos: tuple[Todo, ...] | None = None
    useful_info: tuple[Info, ...] | None = None
    folder_notes: tuple[FolderNote, ...] | None = None


def read_state(value: Any, where: str) -> SessionState:
    """The state in a JSON value, an object with any of `PARTS`; ValueError for any other, which names `where`."""
    return state_of(read_parts(value, where))


def state_of(parts: Mapping[str, Any]) -> SessionState:
    """The state made of parts as `read_parts` gives them."""
    return SessionState(
        role=parts.get("role"),
        sub_agent_roles=dict(parts.get("sub_agent_roles") or {}),
        todos=_items_of(parts, "todos", Todo),
        useful_info=_items_of(parts, "useful_info", Info),
        folder_notes=_items_of(parts, "folder_notes", FolderNote),
    )


def as_object(state: SessionState) -> dict[str, Any]:
    """The parts that are given, as a `set` takes them."""
    roles = dict(state.sub_agent_roles) or None
    parts: dict[str, Any] = {"role": state.role, "sub_agent_roles": roles}
    for name in ("todos", "useful_info", "folder_notes"):
        items = getattr(state, name)
        parts[name] = None if items is None else [_given(asdict(item)) for item in items]
    return _given(parts)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if value is not None}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items()}


def _items_of(parts: Mapping[str, Any], name: str, kind: Callable[..., Any]) -> tuple[Any, ...] | None:
    items: Sequence[Fields] | None = parts.get(name)
    return None if items is None else tuple(kind(**_typed(fields)) for fields in items)


def _typed(fields: Fields) -> Fields:
    typed = {"status": TodoStatus, "created_at": parse_moment}
    return {name: typed[name](value) if name in typed else value for name, value in fields.items()}


def read_parts(value: Any, where: str, *, patch: bool = False) -> dict[str, Any]:
    """The parts that a state gives, by name: `role` a text, `sub_agent_roles` texts by id, the others lists of fields.

    In a patch an item may give only some of its fields, and a part or a role that is `null` is returned as None.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: a JSON object is needed, with any of {', '.join(PARTS)}")
    check_names(where, value, PARTS)
    given = {part: value[part] for part in PARTS if part in value and (patch or value[part] is not None)}
    return {
        part: None if content is None else _READERS[part](content, f"{where}.{part}", patch=patch)
        for part, content in given.items()
    }


def read_id(value: Any, where: str) -> str:
    """The id of an item: a text, or a whole number, which becomes one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    # A larger number has too many digits, and Python might refuse to write it out.
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 4 * ID_CHARS:
        value = str(value)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError(
            f"{where}: 1 to {ID_CHARS} letters, digits, '.', '_', ':' or '-', or a whole number, are allowed"
        )
    return value


def read_sub_agent(value: Any, where: str) -> str:
    """The id of a sub-agent: a text, which may be a name with spaces."""
    return read_text(value, where, ID_CHARS)


def _status(value: Any, where: str) -> str:
    """Also accepts `inProgress`, `in-progress` and `IN_PROGRESS`, which are unambiguous."""
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


def _read_role(value: Any, where: str, *, patch: bool) -> str:  # noqa: ARG001  # the signature of all readers
    return read_text(value, where, ROLE_CHARS)


def _read_roles(value: Any, where: str, *, patch: bool) -> dict[str, str | None]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: a JSON object is needed, with the role of each sub-agent under its id")
    if len(value) > MOST_SUB_AGENTS:
        raise ValueError(f"{where}: {len(value)} sub-agents, at most {MOST_SUB_AGENTS} are allowed")
    roles: dict[str, str | None] = {}
    for index, (agent, role) in enumerate(value.items()):
        name = read_sub_agent(agent, f"{where}: the id at place {index}")
        place = f"{where}.{name}" if is_word(name) else f"{where}: the role at place {index}"
        if role is not None:
            roles[name] = read_text(role, place, ROLE_CHARS)
        elif patch:
            roles[name] = None
    return roles


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of an item: the keys under which it may stand, its own name first, and the check of its value.

    `schema`: of the values to send, as JSON Schema.
    """

    spellings: tuple[str, ...]
    read: Callable[[Any, str], str]
    schema: Fields
    needed: bool = False


@dataclass(frozen=True, slots=True)
class _List:
    """A part that is a list of at most `most` items with an id and these fields.

    `defaults` are the fields of an item that is a mere text; None where an item must be an object with an id.
    """

    most: int
    fields: tuple[_Field, ...]
    defaults: Mapping[str, str] | None = None

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
            # An equal item without an id is a repetition, and counts once.
        return items

    def _read_item(self, given: Any, where: str, *, patch: bool) -> Fields:
        item = {**self.defaults, "text": given} if isinstance(given, str) and self.defaults is not None else given
        if not isinstance(item, Mapping):
            raise ValueError(
                f"{where}: {'a JSON object' if self.defaults is None else 'a text or a JSON object'} is needed"
            )
        has_id = item.get("id") is not None
        if not has_id and self.defaults is None:
            raise ValueError(f"{where}.id: is needed")
        fields: Fields = {"id": read_id(item["id"], f"{where}.id")} if has_id else {}
        for each in self.fields:
            name = each.spellings[0]
            spelling = next((key for key in each.spellings if item.get(key) is not None), None)
            if spelling is not None:
                fields[name] = each.read(item[spelling], f"{where}.{spelling}")
            elif each.needed and not (patch and has_id):
                if name not in (self.defaults or {}):
                    raise ValueError(f"{where}.{name}: is needed")
                fields[name] = (self.defaults or {})[name]
        return fields if has_id else {"id": _derived_id(fields), **fields}


def _derived_id(fields: Fields) -> str:
    joined = "\0".join(f"{name}={fields[name]}" for name in sorted(fields))
    return hashlib.sha256(joined.encode(errors="surrogatepass")).hexdigest()[:_DERIVED_ID_CHARS]


def _text_schema(most: int) -> Fields:
    return {"type": "string", "maxLength": most, "pattern": r"\S"}


def _text_field(*spellings: str, most: int) -> _Field:
    return _Field(spellings, partial(read_text, most=most), _text_schema(most), needed=True)


_CREATED_AT: Final = _Field(("created_at", "createdAt"), _moment, {"type": "string", "format": "date-time"})
_TEXT: Final = _text_field("text", "content", most=TEXT_CHARS)
_TODO_TEXT: Final = _text_field("text", "content", most=TODO_CHARS)
_STATUS: Final = _Field(("status",), _status, {"enum": [*TodoStatus]})
_FOLDER: Final = _text_field("folder", "path", most=FOLDER_CHARS)

LISTS: Final[Mapping[str, _List]] = {
    "todos": _List(500, (_TODO_TEXT, _STATUS)),
    "useful_info": _List(1_000, (_TEXT, _CREATED_AT), defaults={}),
    "folder_notes": _List(1_000, (_FOLDER, _TEXT, _CREATED_AT), defaults={"folder": HERE}),
}
_READERS: Final[Mapping[str, Callable[..., Any]]] = {
    "role": _read_role,
    "sub_agent_roles": _read_roles,
    **{name: part.read for name, part in LISTS.items()},
}
PARTS: Final = tuple(_READERS)

_ID_SCHEMA: Final[Fields] = {"anyOf": [{"type": "string", "pattern": f"^{_ID.pattern}$"}, {"type": "integer"}]}
_NULL: Final[Fields] = {"type": "null"}


def _or_null(schema: Fields) -> Fields:
    return {"anyOf": [schema, _NULL]}


def _item_schema(part: _List, *, patch: bool) -> Fields:
    """Of an item of a list: every field under any of its keys, and those that are needed under one of them."""
    fields = {key: _or_null(each.schema) for each in part.fields for key in each.spellings}
    needed = [each.spellings for each in part.fields if each.needed and each.spellings[0] not in (part.defaults or {})]
    given = [{"anyOf": [not_null(key) for key in spellings]} for spellings in needed]
    if patch:
        given = [{"anyOf": [not_null("id"), {"allOf": given}]}]
    if part.defaults is None:
        given.append(not_null("id"))
    item = {"type": "object", "properties": {"id": _or_null(_ID_SCHEMA), **fields}, "allOf": given}
    return item if part.defaults is None else {"anyOf": [_text_schema(TEXT_CHARS), item]}


def not_null(key: str) -> Fields:
    """The JSON Schema of objects in which something stands under the key."""
    return {"required": [key], "properties": {key: {"not": _NULL}}}


def state_schema(*, patch: bool = False) -> Fields:
    """The JSON Schema of a state, or of the state in a patch, in the spellings that it is best sent in.

    What it accepts `read_parts` accepts, but for ids that stand twice in a list and texts of invisible characters.
    """
    role = _text_schema(ROLE_CHARS)
    roles = {
        "type": "object",
        "maxProperties": MOST_SUB_AGENTS,
        "propertyNames": _text_schema(ID_CHARS),
        "additionalProperties": _or_null(role),
    }
    lists = {
        name: {"type": "array", "maxItems": part.most, "items": _item_schema(part, patch=patch)}
        for name, part in LISTS.items()
    }
    parts = {"role": role, "sub_agent_roles": roles, **lists}
    return {
        "type": "object",
        "properties": {name: _or_null(schema) for name, schema in parts.items()},
        "additionalProperties": False,
    }


def removed_schema() -> Fields:
    """The JSON Schema of ids to remove, by part."""
    ids = {name: {"type": "array", "maxItems": part.most, "items": _ID_SCHEMA} for name, part in LISTS.items()}
    agents = {"type": "array", "maxItems": MOST_SUB_AGENTS, "items": _text_schema(ID_CHARS)}
    return {"type": "object", "properties": {**ids, "sub_agent_roles": agents}, "additionalProperties": False}


# A state in JSON, for the types of messages that hold one.
State = Annotated[dict[str, Any], WithJsonSchema(state_schema())]
PatchedState = Annotated[dict[str, Any], WithJsonSchema(state_schema(patch=True))]
