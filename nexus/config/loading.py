"""Reads values from a YAML file and from environment variables, and reports faults, a line an item.

No message repeats a value, which may be a password.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from nexus.core.errors import ConfigError

_PREFIX: Final = "NEXUS_"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def raise_config_error(wrong: list[str]) -> None:
    """Raise a `ConfigError` with these lines, if there are any."""
    if wrong:
        raise ConfigError("\n".join(wrong))


def read_file(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """The sections of a YAML file, with every `${VAR}` filled from `variables`.

    Raises:
        ConfigError: it cannot be read, is no YAML, holds no sections, or a variable is not set.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except yaml.YAMLError as error:
        # The parser's own words quote the line, which may hold a password.
        mark = getattr(error, "problem_mark", None)
        place = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}: is not YAML{place}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds a {type(values).__name__}; sections with keys are needed")
    missing: list[str] = []
    filled: dict[str, Any] = _fill(values, variables, "", missing)
    raise_config_error([f"{path}: {item}" for item in missing])
    # A section with all its keys commented out reads as null.
    return {name: {} if section is None else section for name, section in filled.items()}


def _fill(value: Any, variables: Mapping[str, str], key: str, missing: list[str]) -> Any:
    if isinstance(value, dict):
        return {name: _fill(item, variables, f"{key}.{name}".lstrip("."), missing) for name, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, variables, f"{key}[{index}]", missing) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    names = _VARIABLE.findall(value)
    missing += [f"{key}: the environment variable {name} is not set" for name in names if name not in variables]
    return _VARIABLE.sub(lambda match: variables.get(match[1], ""), value)


def read_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """The sections from `NEXUS_<SECTION>__<KEY>` variables.

    Raises:
        ConfigError: one variable sets a key that another takes for a section.
    """
    values: dict[str, Any] = {}
    # Sorted, so that a key comes before those inside it.
    for name in sorted(variables):
        if not _is_setting(name):
            continue
        *sections, key = _place_of(name)
        target = values
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise ConfigError(f"environment variable {name}: {section}: has a value, and no keys inside")
        target[key] = _plain_or_yaml(variables[name])
    return values


def _is_setting(variable: str) -> bool:
    return variable.startswith(_PREFIX) and "__" in variable


def _place_of(variable: str) -> list[str]:
    return variable.removeprefix(_PREFIX).lower().split("__")


def variable_of(place: list[str], variables: Iterable[str]) -> str:
    """The name of the variable that sets the value at `place`, a section around it or a key inside it."""
    for name in sorted(filter(_is_setting, variables)):
        set_here = _place_of(name)
        shared = min(len(set_here), len(place))
        if set_here[:shared] == place[:shared]:
            return name
    return f"{_PREFIX}{'__'.join(place)}".upper()


def misspelled_variables(model: type[BaseModel], variables: Iterable[str]) -> list[str]:
    """Variables with one underscore where two belong, which would be ignored in silence."""
    places = [(section, key) for section in model.model_fields for key in _allowed(model, [section])]
    meant = {f"{_PREFIX}{section}_{key}".upper(): f"{_PREFIX}{section}__{key}".upper() for section, key in places}
    return [f"environment variable {name}: unknown; {meant[name]} is meant" for name in variables if name in meant]


def _plain_or_yaml(text: str) -> Any:
    if not text.startswith(("[", "{")):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base`, overridden by `over` key by key at every level."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def validation_errors(
    model: type[BaseModel], values: Mapping[str, Any], source: Callable[[list[str]], str]
) -> list[str]:
    """The faults of `values`, one line an item. `source` names where the value at a place comes from."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_input=False, include_url=False, include_context=False):
            place = [str(part) for part in item["loc"]]
            unknown = item["type"] == "extra_forbidden"
            reason = f"unknown; allowed: {', '.join(_allowed(model, place[:-1]))}" if unknown else _message(item)
            lines.append(f"{source(place)}: {'.'.join(place)}: {reason}")
        return lines
    return []


def _message(item: Mapping[str, Any]) -> str:
    # pydantic would name the class.
    return "keys with values are needed" if item["type"] == "model_type" else str(item["msg"])


def _allowed(model: type[BaseModel], place: Iterable[str]) -> list[str]:
    """The keys of the section at `place`."""
    for name in place:
        annotation = model.model_fields[name].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return sorted(model.model_fields)
