"""What is said of wrong settings: where each stands, what is allowed there and, for times and sizes, in which unit.

No text repeats a value, which may be a password; of a number with a unit it says what to write instead.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from nexus.config import RULE, Sections

# Of settings, by the end of their names.
_UNITS: Final = {
    "_ms": "milliseconds",
    "_s": "seconds",
    "_seconds": "seconds",
    "_days": "days",
    "_bytes": "bytes",
    "_chars": "characters",
    "_tokens": "tokens",
    "condense_above": "bytes",
    "context_window": "tokens",
}
# What stands behind numbers that are given with a unit, as a multiple of the setting's own.
_IN_MS: Final = {"ms": 1, "s": 1_000, "sec": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_MULTIPLES: Final[Mapping[str, Mapping[str, float]]] = {
    "milliseconds": _IN_MS,
    "seconds": {name: size / 1_000 for name, size in _IN_MS.items()},
    "days": {name: size / 86_400_000 for name, size in _IN_MS.items()},
    "bytes": {"b": 1, "kb": 1_000, "mb": 1_000_000, "kib": 1 << 10, "mib": 1 << 20},
    "characters": {"k": 1_000},
    "tokens": {"k": 1_000},
}
_WITH_UNIT: Final = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([A-Za-z]{1,12})\s*")
# Keys of a release before, and where to set now what they set.
_MOVED: Final = {
    "layouts.agent.shares": "memory.budget.turns.ceiling (turn_memory) and memory.budget.notes.ceiling (pinned)",
}
_KINDS: Final = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a text"}


def find_faults(values: Mapping[str, Any], source: Callable[[Sequence[str]], str]) -> list[str]:
    """The faults of settings, one line an item. `source` names where the value at a place comes from."""
    try:
        Sections.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        return [_line([str(part) for part in fault["loc"]], fault, source) for fault in faults]
    return []


def allowed_keys(place: Iterable[str]) -> list[str]:
    """The keys of the section at `place`."""
    return sorted(_section(place)[0].model_fields)


def _section(place: Iterable[str]) -> tuple[type[BaseModel], str]:
    """The innermost section around a place, and the name of the setting in it; `""` where the place is the section."""
    model: type[BaseModel] = Sections
    for name in place:
        annotation = model.model_fields[name].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return model, name
        model = annotation
    return model, ""


def _line(place: Sequence[str], fault: Mapping[str, Any], source: Callable[[Sequence[str]], str]) -> str:
    match fault["type"]:
        case "extra_forbidden" if now := _MOVED.get(".".join(place)):
            reason = f"is set by {now} now"
        case "extra_forbidden" | "invalid_key":
            reason = f"unknown; allowed: {', '.join(allowed_keys(place[:-1]))}"
        case "model_type":
            reason = f"keys with values are needed; allowed: {', '.join(allowed_keys(place))}"
        case kind if kind == RULE:
            reason = fault["msg"]
        case _:
            is_unreadable = fault["type"].endswith("_parsing")
            reason = _rule(*_section(place), fault["input"] if is_unreadable else None)
    return f"{source(place)}: {'.'.join(place)}: {reason}"


def _rule(section: type[BaseModel], name: str, given: str | None) -> str:
    """What is allowed for a setting, in its unit. `given`: a text that is no number, for advice on what to write."""
    schema = section.model_json_schema()["properties"][name]
    default = schema.get("default")
    or_null = ", or null," if "anyOf" in schema else ""
    schema = schema["anyOf"][0] if or_null else schema
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])} is needed"
    if words := schema.get("items", {}).get("enum"):
        return f"a list of any of {', '.join(words)} is needed"
    rule = schema.get("description") or _KINDS.get(schema["type"], "a list of texts, as [a, b],")
    if "maxLength" in schema:
        rule += f" of at most {schema['maxLength']} characters"
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    if unit:
        rule += f" of {unit}"
    if "exclusiveMinimum" in schema:
        rule += f" above {schema['exclusiveMinimum']}, up to {schema['maximum']},"
    elif "minimum" in schema:
        rule += f" from {schema['minimum']} to {schema['maximum']}"
    rule += f"{or_null} is needed"
    if unit and given is not None:
        rule += f", without a unit{_advice(schema, unit, given, default)}"
    return rule


def _advice(schema: Mapping[str, Any], unit: str, given: str, default: float | None) -> str:
    """What to write for a number with a unit: it in the setting's own unit, where that is allowed."""
    if found := _WITH_UNIT.fullmatch(given):
        number = round(float(found[1]) * _MULTIPLES[unit].get(found[2].lower(), -1), 6)
        if schema["minimum"] <= number <= schema["maximum"] and (schema["type"] == "number" or number.is_integer()):
            return f": {_shortest(number)}"
    return "" if default is None else f", for instance {_shortest(default)}"


def _shortest(number: float) -> str:
    return str(int(number) if number == int(number) else number)
