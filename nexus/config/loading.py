"""Settings (contract §9): a YAML file, overridden by `NEXUS_<SECTION>__<KEY>` variables, checked at start.

- Settings are values, loaded once and passed on; nothing reads them from a global.
- An unreadable file, a wrong value, an unknown key or a missing `${VAR}` is a `ConfigError`, one line an item: where,
  which key, what is allowed. No line repeats a value, which may be a password.
- Addresses may hold passwords, so they are `SecretStr` and never show in a log or a repr.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from stat import S_IMODE, S_IRGRP, S_IROTH
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from nexus.config import STORED_SECTIONS, Sections, Settings
from nexus.core.errors import ConfigError

_PREFIX: Final = "NEXUS_"
_SECRET: Final = re.compile(r"llm\.api_key|bus\.signing\.keys\..+")
# In an address: behind its user, or as an option of a driver.
_PASSWORD: Final = re.compile(r"//[^/@]*:[^/@]+@|password=[^&]", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings from `path` (else from the file that `NEXUS_CONFIG` names), overridden by the environment.

    File and environment are each checked by themselves, so that a fault is reported where it stands.
    """
    variables = os.environ if environ is None else environ
    path = _path_of(path, variables)
    in_file = _read_file(path, variables) if path else {}
    in_environment = _read_environment(variables)
    _raise_if_any(
        [
            *_faults(in_file, lambda _: str(path)),
            *_faults(in_environment, lambda place: f"environment variable {_variable_of(place, variables)}"),
            *_misspelled(variables),
        ]
    )
    environment = variables.get("NEXUS_ENV") or "development"
    settings = Settings.model_validate({**_merged(in_file, in_environment), "environment": environment})
    _raise_if_any([f"{_source_of(line, path, in_file, variables)}{line}" for line in settings.conflicts()])
    return settings


def exposed_secrets(path: Path | None = None, environ: Mapping[str, str] | None = None) -> str | None:
    """The warning about a settings file with secrets that others than its owner may read; None where there is none.

    A `${VAR}` is no secret: its value is elsewhere.
    """
    path = _path_of(path, os.environ if environ is None else environ)
    mode = S_IMODE(path.stat().st_mode) if path else 0
    if path is None or not mode & (S_IRGRP | S_IROTH):
        return None
    literal = _fill(yaml.safe_load(path.read_text(encoding="utf-8")), {}, "", [])
    if not any(_SECRET.fullmatch(key) or _PASSWORD.search(text) for key, text in _texts(literal) if text):
        return None
    return f"{path}: holds secrets, and its mode {mode:04o} lets others read them; chmod 600 {path} mends it"


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The values inside, each with the dotted key of its place."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}".lstrip("."))
    elif value is not None:
        yield key, str(value)


def _path_of(path: Path | None, variables: Mapping[str, str]) -> Path | None:
    named = variables.get("NEXUS_CONFIG")
    return path or (Path(named) if named else None)


def with_stored(settings: Settings, document: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings, overridden by the `configurations` document of the environment (contract §9).

    Only the sections in `STORED_SECTIONS` are taken from it; environment variables override it.
    """
    stored = {name: document[name] for name in STORED_SECTIONS if document.get(name) is not None}
    source = f"configurations document of environment {settings.environment!r}"
    _raise_if_any(_faults(stored, lambda _: source))
    in_environment = _read_environment(os.environ if environ is None else environ)
    overrides = {name: keys for name, keys in in_environment.items() if name in STORED_SECTIONS}
    return Settings.model_validate(_merged(_merged(settings.model_dump(), stored), overrides))


def _raise_if_any(faults: list[str]) -> None:
    if faults:
        raise ConfigError("\n".join(faults))


def _read_file(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """The sections of a YAML file, with every `${VAR}` filled from `variables`."""
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
    _raise_if_any([f"{path}: {item}" for item in missing])
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


def _places(variables: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The variables that hold settings, each with the place of its key; a key comes before those inside it."""
    for name in sorted(variables):
        if name.startswith(_PREFIX) and "__" in name:
            yield name, name.removeprefix(_PREFIX).lower().split("__")


def _read_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """The sections from `NEXUS_<SECTION>__<KEY>` variables."""
    values: dict[str, Any] = {}
    for name, (*sections, key) in _places(variables):
        target = values
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise ConfigError(f"environment variable {name}: {section}: has a value, and no keys inside")
        target[key] = _plain_or_yaml(variables[name])
    return values


def _plain_or_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text) if text.startswith(("[", "{")) else text
    except yaml.YAMLError:
        return text


def _variable_of(place: list[str], variables: Iterable[str]) -> str:
    """The variable that sets the value at `place`, a section around it or a key inside it; empty where none does."""
    for name, set_here in _places(variables):
        shared = min(len(set_here), len(place))
        if set_here[:shared] == place[:shared]:
            return name
    return ""


def _source_of(line: str, path: Path | None, in_file: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """Where the key that a line begins with is set, as the line's beginning; nothing where it has its default."""
    place = line.partition(":")[0].split(".")
    if variable := _variable_of(place, variables):
        return f"environment variable {variable}: "
    value: Any = in_file
    for name in place:
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else f"{path}: "


def _misspelled(variables: Iterable[str]) -> list[str]:
    """Variables with one underscore where two belong, which would be ignored in silence."""
    places = [(section, key) for section in Sections.model_fields for key in _allowed([section])]
    meant = {f"{_PREFIX}{section}_{key}".upper(): f"{_PREFIX}{section}__{key}".upper() for section, key in places}
    return [f"environment variable {name}: unknown; {meant[name]} is meant" for name in variables if name in meant]


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base`, overridden by `over` key by key at every level."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _faults(values: Mapping[str, Any], source: Callable[[list[str]], str]) -> list[str]:
    """The faults of `values`, one line an item. `source` names where the value at a place comes from."""
    try:
        Sections.model_validate(values)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_input=False, include_url=False, include_context=False):
            place = [str(part) for part in item["loc"]]
            reason = item["msg"]
            if item["type"] == "extra_forbidden":
                reason = f"unknown; allowed: {', '.join(_allowed(place[:-1]))}"
            elif item["type"] == "model_type":
                # pydantic would name the class.
                reason = "keys with values are needed"
            lines.append(f"{source(place)}: {'.'.join(place)}: {reason}")
        return lines
    return []


def _allowed(place: Iterable[str]) -> list[str]:
    """The keys of the section at `place`."""
    model: type[BaseModel] = Sections
    for name in place:
        annotation = model.model_fields[name].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return sorted(model.model_fields)
