"""Constraints read from JSON, and changes of them merged into what is stored (contract §15). Pure.

- Of each id the latest setting and the latest taking back count, by the times of their messages. So the same changes
  give the same document in any order and however often, also where a constraint is taken back before it is there.
- All in force are kept. Of the others the newest `_MOST_OTHERS` are; only beyond that the order of changes may show.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from nexus.core.models import Moment, to_milliseconds
from nexus.core.person import CONSTRAINT_SCOPES, KINDS, MAX_CONSTRAINT_CHARS, Constraint, ConstraintScope
from nexus.core.wire import explain
from nexus.services.text.checks import check_names, read_op, read_text, unknown
from nexus.services.text.escape import canonical

MOST_IN_FORCE: Final = 100
_MOST_OTHERS: Final = 500
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {"add": ("op", "constraints"), "retire": ("op", "ids", "constraints")}
_FIELDS: Final = ("text", "kind", "scope")
_ID: Final = re.compile(rf"({'|'.join(CONSTRAINT_SCOPES)})-[0-9a-f]{{16}}")
_ID_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class Target:
    """The owner, session and run that a change is about: they are the places of its scopes."""

    owner_key: str
    session_id: str
    run_id: str

    def place(self, scope: str) -> str:
        """The place of a scope."""
        return place_of(scope, self.session_id, self.run_id)


@dataclass(frozen=True, slots=True)
class PlaceChange:
    """What changes in one place: constraints that are set, and by their ids when others were taken back."""

    added: Sequence[Constraint] = ()
    retired: Mapping[str, datetime] = field(default_factory=dict)


# By place.
Change = Mapping[str, PlaceChange]


class _Retired(BaseModel):
    """That a constraint which is not there was taken back."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    id: str
    valid_to: Moment


def place_of(scope: str, session_id: str, run_id: str) -> str:
    """Where constraints of a scope are kept, among those of their owner."""
    return {"owner": "owner", "session": f"session:{session_id}", "run": f"run:{run_id}"}[scope]


def read_constraints(
    value: Any,
    where: str,
    target: Target,
    *,
    at: datetime,
    source_message_id: str = "",
    default_scope: ConstraintScope = "session",
    scopes: Sequence[ConstraintScope] = CONSTRAINT_SCOPES,
) -> list[Constraint]:
    """The constraints in a JSON list of texts, or of objects `{text, kind?, scope?}`, set at this time.

    A text alone is a `must`; `null` counts as missing. Texts stay as they are. A ValueError names the place, from
    `where` on, and what is allowed.
    """
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MOST_IN_FORCE:
        raise ValueError(f"{where}: a list of 1 to {MOST_IN_FORCE} constraints is needed, each a text or a JSON object")
    return [
        read_constraint(
            each,
            f"{where}[{index}]",
            target,
            at=at,
            source_message_id=source_message_id,
            default_scope=default_scope,
            scopes=scopes,
        )
        for index, each in enumerate(value)
    ]


def read_constraint(
    value: Any,
    where: str,
    target: Target,
    *,
    at: datetime,
    source_message_id: str = "",
    default_scope: ConstraintScope = "session",
    scopes: Sequence[ConstraintScope] = CONSTRAINT_SCOPES,
) -> Constraint:
    """One constraint, as in `read_constraints`; `where` may be `""`."""
    given = {"text": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise ValueError(f"{where}: a text or a JSON object with text, kind and scope is needed")
    check_names(where, given, _FIELDS)
    inside = f"{where}." if where else ""
    text = read_text(given.get("text"), f"{inside}text", MAX_CONSTRAINT_CHARS)
    kind = _word(given.get("kind"), f"{inside}kind", KINDS, "must")
    scope = _word(given.get("scope"), f"{inside}scope", scopes, default_scope)
    place = target.place(scope)
    joined = "\0".join((place, kind, canonical(text).strip()))
    return Constraint(
        id=f"{scope}-{hashlib.sha256(joined.encode()).hexdigest()[:_ID_CHARS]}",
        text=text,
        kind=cast("Any", kind),
        scope=cast("Any", scope),
        session_id="" if scope == "owner" else target.session_id,
        run_id=target.run_id if scope == "run" else "",
        source_message_id=source_message_id,
        valid_from=to_milliseconds(at),
    )


def moved(constraint: Constraint, target: Target) -> Constraint:
    """The same constraint as one of another owner, session or run."""
    return read_constraint(
        {"text": constraint.text, "kind": constraint.kind, "scope": constraint.scope},
        "",
        target,
        at=constraint.valid_from,
        source_message_id=constraint.source_message_id,
    )


def read_change(content: Any, target: Target, at: datetime, message_id: str) -> Change:
    """The change in the content of a message of this time; ValueError for any other content, which says why."""
    op = read_op(content, _KEYS)
    given, ids = content.get("constraints"), content.get("ids")
    if op == "retire" and given is None and ids is None:
        raise ValueError("content: to retire, ids or constraints are needed")
    constraints: list[Constraint] = []
    if op == "add" or given is not None:
        constraints = read_constraints(given, "content.constraints", target, at=at, source_message_id=message_id)
    if op == "add":
        return adding(constraints)
    named = [] if ids is None else _ids(ids, "content.ids")
    return retiring([*named, *(each.id for each in constraints)], target, at)


def adding(constraints: Iterable[Constraint]) -> Change:
    """The change that sets these."""
    places: dict[str, list[Constraint]] = defaultdict(list)
    for each in constraints:
        places[place_of(each.scope, each.session_id, each.run_id)].append(each)
    return {place: PlaceChange(added=added) for place, added in places.items()}


def retiring(ids: Iterable[str], target: Target, at: datetime) -> Change:
    """The change that takes those with these ids back. An id says of which scope it is."""
    places: dict[str, dict[str, datetime]] = defaultdict(dict)
    for each in ids:
        places[target.place(each.partition("-")[0])][each] = to_milliseconds(at)
    return {place: PlaceChange(retired=retired) for place, retired in places.items()}


def apply(document: Any, place: str, *changes: PlaceChange) -> dict[str, Any]:
    """The document of a place with the changes merged in; an equal one for changes that are in it already."""
    known, _ = constraints_in(document, place)
    given = {each.id: each for each in known}
    retired = {each.id: each.valid_to for each in known if each.valid_to} | _bare_retirements(document)
    for change in changes:
        for each in change.added:
            given[each.id] = max(each, given.get(each.id, each), key=_order_of_setting)
        for name, at in change.retired.items():
            retired[name] = max(at, retired.get(name, at))
    merged = {name: each.model_copy(update={"valid_to": retired.get(name)}) for name, each in given.items()}
    # All that hold, and the newest of the others: those taken back, and retirements of what is not there.
    others = sorted((at, name) for name, at in retired.items() if name not in merged or not merged[name].holds)[
        -_MOST_OTHERS:
    ]
    kept = {name for _, name in others} | {name for name, each in merged.items() if each.holds}
    return {
        "constraints": [merged[name].model_dump() for name in sorted(kept) if name in merged],
        "retired": [{"id": name, "valid_to": retired[name]} for name in sorted(kept) if name not in merged],
    }


def constraints_in(document: Any, place: str) -> tuple[list[Constraint], list[str]]:
    """The constraints in a stored document, also those taken back, as they were set; and what could not be read.

    Those set at the same time are in the order of their ids.
    """
    found, faults = list[Constraint](), list[str]()
    for index, value in enumerate(_list_in(document, "constraints", faults)):
        try:
            constraint = Constraint.model_validate(value)
        except ValidationError as error:
            faults.append(f"constraints[{index}]: {explain(error)}")
            continue
        if place_of(constraint.scope, constraint.session_id, constraint.run_id) == place:
            found.append(constraint)
        else:
            faults.append(f"constraints[{index}]: is one of another place")
    return sorted(found, key=lambda each: (each.valid_from, each.id)), faults


def _bare_retirements(document: Any) -> dict[str, datetime]:
    retired = {}
    for value in _list_in(document, "retired", []):
        try:
            read = _Retired.model_validate(value)
        except ValidationError:
            continue
        retired[read.id] = read.valid_to
    return retired


def _list_in(document: Any, name: str, faults: list[str]) -> Sequence[Any]:
    if document is None:
        return ()
    value = document.get(name, []) if isinstance(document, Mapping) else None
    if not isinstance(value, list):
        faults.append(f"{name}: a list is needed")
        return ()
    return value


def _order_of_setting(constraint: Constraint) -> tuple[datetime, str, str, str]:
    # Where two pass for one, any fixed order.
    return constraint.valid_from, constraint.source_message_id, constraint.text, constraint.session_id


def _word(value: Any, where: str, allowed: Sequence[str], default: str) -> str:
    if value is None:
        return default
    if not isinstance(value, str) or value not in allowed:
        raise unknown(where, value, allowed)
    return value


def _ids(value: Any, where: str) -> list[str]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= _MOST_OTHERS:
        raise ValueError(f"{where}: a list of 1 to {_MOST_OTHERS} ids is needed")
    return [read_id(each, f"{where}[{index}]") for index, each in enumerate(value)]


def read_id(value: Any, where: str) -> str:
    """The id of a constraint; a ValueError says what one looks like."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        allowed = ", ".join(CONSTRAINT_SCOPES)
        raise ValueError(f"{where}: no id of a constraint: its scope ({allowed}), '-' and {_ID_CHARS} of 0-9a-f")
    return value
