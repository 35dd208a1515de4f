"""How the `configurations` document of an environment is made, and completed from a template that an operator gives.

- Whatever is stored outranks the service's settings file, so nothing is stored but what the template holds.
- A stored value that differs from the template is kept; a missing one is added. A value that is reset is that of the
  template, or is removed where that has none. Keys are written as paths with dots: `memory.history_context_size`.
- A document that was changed after it was read is read again, so that two operators at once lose nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pymongo.errors import DuplicateKeyError, OperationFailure

from nexus.config import STORED_SECTIONS, Settings
from nexus.config.loading import parse_yaml, stored_in, with_stored
from nexus.core.errors import ConfigError

from .server import Refusal, Rows, WrongUsage, explain, one_line

COLLECTION = "configurations"
_ATTEMPTS = 10
# The name under which Nexus itself makes it.
_INDEX = "one_per_environment"

State = Literal["added", "kept", "same", "reset", "removed", "unknown"]
_OWN_KEYS = ("_id", "environment", "created_at", "updated_at")
_VARIABLE = re.compile(r"\$\{[A-Za-z_]")
_MISSING = object()


@dataclass(frozen=True)
class Entry:
    """One key and its change. The value of a key that the settings do not know is not shown: None."""

    key: str
    value: Any
    state: State


@dataclass(frozen=True)
class Plan:
    """How the stored document changes.

    Attributes:
        sections: the stored sections as they will be, without keys that the settings do not know.
        changes: path to new value, for an update of the document that was read.
        removed: the paths that are no longer in it.
        unchanged: what those paths must still hold for the plan to be valid, as a MongoDB filter.
    """

    entries: tuple[Entry, ...]
    sections: dict[str, Any]
    changes: dict[str, Any]
    removed: tuple[str, ...]
    unchanged: dict[str, Any]


def checked_template(values: Any) -> dict[str, Any]:
    """The sections of a settings file that may be stored.

    Raises:
        ValueError: it holds none, or something that cannot be stored.
    """
    given = stored_in(values) if isinstance(values, dict) else {}
    sections = {name: value for name, value in given.items() if value}
    if not sections:
        raise ValueError(f"holds none of the sections {', '.join(STORED_SECTIONS)}")
    for path, value in _leaves(sections):
        if not all(isinstance(name, str) and name and "." not in name and not name.startswith("$") for name in path):
            raise ValueError(f"{_dotted(path)}: cannot be stored: names are text, not empty, without . and leading $")
        if isinstance(value, str) and _VARIABLE.search(value):
            raise ValueError(f"{_dotted(path)}: ${{VAR}} is not filled in stored settings; write the value")
    return sections


def make_plan(template: Mapping[str, Any], stored: Mapping[str, Any], reset: Sequence[str] = ()) -> Plan:
    """The plan for `stored` (`{}` for none). `reset`: keys, or sections, to take from the template or to remove.

    Raises:
        WrongUsage: a key in `reset` is neither a setting that can be stored nor stored.
    """
    wanted = dict(_leaves(template))
    extra = [path for path, _ in _leaves({name: stored[name] for name in STORED_SECTIONS if name in stored})]
    extra = [path for path in extra if path not in wanted and not _covers(path, wanted)]
    _check_reset(reset, [_dotted(path) for path in extra])
    by_path = {path: _entry(path, value, _lookup(stored, path), reset) for path, value in wanted.items()}
    by_path |= {path: _extra_entry(path, stored, reset) for path in extra}
    others = [Entry(name, None, "unknown") for name in stored if name not in (*STORED_SECTIONS, *_OWN_KEYS)]

    result: dict[str, Any] = {name: stored[name] for name in STORED_SECTIONS if stored.get(name) is not None}
    written = [path for path in wanted if by_path[path].state in {"added", "reset"}]
    for path in written:
        result = _with(result, path, wanted[path])
    taken = [path for path in extra if by_path[path].state == "removed"]
    for path in taken:
        result = _without(result, path)
    changed = {_dotted(point): point for point in (_point(stored, path) for path in written)}
    changes = {key: _lookup(result, point) for key, point in changed.items()}
    removed = {_dotted(point): point for point in (_emptied(result, path) for path in taken)}
    unchanged = {key: _same(_lookup(stored, point)) for key, point in (changed | removed).items()}
    return Plan((*by_path.values(), *others), _without_unknown(result), changes, tuple(removed), unchanged)


def _check_reset(reset: Iterable[str], stored: Sequence[str]) -> None:
    for name in reset:
        path = name.split(".")
        if not (path[0] in STORED_SECTIONS and _known(path)) and not any(_begins(key, name) for key in stored):
            allowed = f"{', '.join(STORED_SECTIONS)}, and keys in them"
            raise WrongUsage(f"--reset {name}: neither a setting that can be stored nor stored; allowed: {allowed}")


def _entry(path: tuple[str, ...], value: Any, old: Any, reset: Iterable[str]) -> Entry:
    key = _dotted(path)
    if old is _MISSING:
        return Entry(key, value, "added")
    if old == value:
        return Entry(key, value, "same")
    if any(_begins(key, name) for name in reset):
        return Entry(key, value, "reset")
    return Entry(key, old, "kept")


def _extra_entry(path: tuple[str, ...], stored: Mapping[str, Any], reset: Iterable[str]) -> Entry:
    key, known = _dotted(path), _known(path)
    state: State = "kept" if known else "unknown"
    if any(_begins(key, name) for name in reset):
        state = "removed"
    return Entry(key, _lookup(stored, path) if known else None, state)


def _covers(path: tuple[str, ...], wanted: Iterable[tuple[str, ...]]) -> bool:
    """Whether a value stands where the template has keys: it is listed with those."""
    return any(key[: len(path)] == path for key in wanted)


def _known(path: Sequence[str]) -> bool:
    model: type[BaseModel] = Settings
    for name in path:
        field = model.model_fields.get(name)
        if field is None:
            return False
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return True
        model = field.annotation
    return True


def _without_unknown(sections: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[str, Any]:
    kept = {name: value for name, value in sections.items() if _known((*above, str(name)))}
    return {
        name: _without_unknown(value, (*above, name)) if isinstance(value, Mapping) else value
        for name, value in kept.items()
    }


def _leaves(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        elif value is not None or above:  # a section without anything in it reads as null
            yield (*above, name), value


def _lookup(values: Any, path: Sequence[str]) -> Any:
    """The value at `path`, or the value that stands in its way; `_MISSING` where there is neither."""
    for name in path:
        if values is None:
            return _MISSING
        if not isinstance(values, Mapping):
            return values
        values = values.get(name, _MISSING)
        if values is _MISSING:
            return _MISSING
    return values


def _point(stored: Mapping[str, Any], path: tuple[str, ...]) -> tuple[str, ...]:
    """Where to write so that `path` holds its value: higher up if something other than keys stands in the way."""
    for depth in range(1, len(path)):
        value = _lookup(stored, path[:depth])
        if value is not _MISSING and not isinstance(value, Mapping):
            return path[:depth]
    return path


def _with(values: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    if len(path) == 1:
        return {**values, path[0]: value}
    below = values.get(path[0])
    return {**values, path[0]: _with(below if isinstance(below, Mapping) else {}, path[1:], value)}


def _without(values: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """`values` without `path`, and without what is left empty around it."""
    name, *below = path
    left = _without(values[name], below) if below else {}
    return {key: left if key == name else value for key, value in values.items() if key != name or left}


def _emptied(values: Mapping[str, Any], path: tuple[str, ...]) -> tuple[str, ...]:
    """The outermost section around `path`, or the path, that `values` do not hold."""
    depths = range(1, len(path))
    return next((path[:depth] for depth in depths if _lookup(values, path[:depth]) is _MISSING), path)


def _same(old: Any) -> dict[str, Any]:
    return {"$exists": False} if old is _MISSING else {"$eq": old}


def _begins(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def _dotted(path: Iterable[Any]) -> str:
    return ".".join(str(name) for name in path)


def load_template(path: Path, environment: str) -> dict[str, Any]:
    """The sections to store, from a settings file.

    Raises:
        WrongUsage: the file cannot be read.
        Refusal: what it holds is no settings.
    """
    try:
        template = checked_template(parse_yaml(path.read_text(encoding="utf-8"), f"template {path}"))
    except OSError as error:
        raise WrongUsage(f"--from {path}: cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise Refusal(one_line(str(error))) from None
    except ValueError as error:
        raise Refusal(f"template {path}: {error}") from None
    fault = _fault(template, environment)
    if fault:
        raise Refusal(f"template {path}: {fault}; nothing was written")
    return template


def read(rows: Rows, environment: str) -> dict[str, Any]:
    """The stored document; `{}` if there is none."""
    return rows.find_one({"environment": {"$eq": environment}}) or {}


def check(plan: Plan, environment: str) -> None:
    """Let the service's own settings judge the result.

    Raises:
        Refusal: it would not start with it.
    """
    fault = _fault(plan.sections, environment)
    if fault:
        raise Refusal(f"stored {fault}; nothing was written: mend it there, or say --reset KEY")


def apply(rows: Rows, environment: str, replan: Callable[[Mapping[str, Any]], Plan]) -> tuple[Plan, bool]:
    """Carry out the plan that `replan` makes for the stored document; returns the plan, and whether it wrote.

    A document that changed after it was read is read again, so that no other's change is lost.

    Raises:
        Refusal: the result would not be valid, or the document keeps changing.
    """
    _make_index(rows)
    for _ in range(_ATTEMPTS):
        stored = read(rows, environment)
        plan = replan(stored)
        check(plan, environment)
        if stored and not plan.changes and not plan.removed:
            return plan, False
        if _write(rows, environment, stored, plan):
            return plan, True
    raise Refusal(f"the document of environment {environment!r} keeps being changed by others: try again")


def _make_index(rows: Rows) -> None:
    try:
        rows.create_index("environment", unique=True, name=_INDEX)
    except OperationFailure as error:
        if any(
            index["key"] == [("environment", 1)] and index.get("unique") for index in rows.index_information().values()
        ):
            return
        raise Refusal(f"the unique index on {COLLECTION}.environment cannot be made: {explain(error)}") from None


def _write(rows: Rows, environment: str, stored: Mapping[str, Any], plan: Plan) -> bool:
    now = datetime.now(UTC)
    if not stored:
        try:
            rows.insert_one({"environment": environment, **plan.sections, "created_at": now, "updated_at": now})
        except DuplicateKeyError:
            return False
        return True
    meant = {"_id": stored["_id"], **plan.unchanged}
    update = {"$set": {**plan.changes, "updated_at": now}}
    if plan.removed:
        update["$unset"] = dict.fromkeys(plan.removed, "")
    return rows.update_one(meant, update).matched_count == 1


def _fault(sections: Mapping[str, Any], environment: str) -> str | None:
    try:
        with_stored(Settings(environment=environment), sections, environ={})
    except ConfigError as error:
        return "; ".join(str(error).split("\n")).replace(
            f"configurations document of environment {environment!r}: ", ""
        )
    return None
