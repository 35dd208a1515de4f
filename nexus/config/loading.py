"""Settings (contract §9): a YAML file, overridden by `NEXUS_<SECTION>__<KEY>` variables, checked at start.

- Settings are values, loaded once and passed on; nothing reads them from a global.
- An unreadable file, a wrong value, an unknown key, a key that is there twice or a missing `${VAR}` is a `ConfigError`,
  one line an item: where, which key, what is allowed. No line repeats a value, which may be a password.
- Addresses may hold passwords, so they are `SecretStr` and never show in a log or a repr.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_IMODE, S_IRGRP, S_IROTH
from typing import Any, Final

import yaml

from nexus.config import NOT_STORED, STORED_SECTIONS, Sections, Settings
from nexus.config.faults import allowed_keys, find_faults
from nexus.core.errors import ConfigError

_PREFIX: Final = "NEXUS_"
_KEYS: Final = "bus.signing.keys"
_SECRET: Final = re.compile(r"(llm|recall)\.api_key|bus\.signing\.keys\..+|(console|mcp\.tokens)\.token")
# In an address: behind its user, or as an option of a driver.
_PASSWORD: Final = re.compile(r"//[^/@]*:[^/@]+@|password=[^&]", re.IGNORECASE)
# A value that only looks like a date is a ValueError, one nested too deep a RecursionError.
_NOT_YAML: Final = (yaml.YAMLError, ValueError, RecursionError)
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings from `path` (else from the file that `NEXUS_CONFIG` names), overridden by the environment.

    File and environment are each checked by themselves, so that a fault is reported where it stands.
    """
    variables = os.environ if environ is None else environ
    path = path_of(path, variables)
    in_file = _read_file(path, variables) if path else {}
    in_environment = read_environment(variables)
    _raise_if_any(
        [
            *find_faults(in_file, lambda _: str(path)),
            *find_faults(in_environment, lambda place: f"environment variable {variable_of(place, variables)}"),
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
    path = path_of(path, os.environ if environ is None else environ)
    mode = S_IMODE(path.stat().st_mode) if path else 0
    if path is None or not mode & (S_IRGRP | S_IROTH):
        return None
    literal = _fill(parse_yaml(path.read_text(encoding="utf-8"), str(path)), {}, "", [])
    if not any(_SECRET.fullmatch(key) or _PASSWORD.search(text) for key, text in _texts(literal) if text):
        return None
    return f"{path}: holds secrets, and its mode {mode:04o} lets others read them; chmod 600 {path} mends it"


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The values inside, each with the dotted key of its place."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif value is not None:
        yield key, str(value)


def path_of(path: Path | None, variables: Mapping[str, str]) -> Path | None:
    """The settings file; None for none."""
    named = variables.get("NEXUS_CONFIG")
    return path or (Path(named) if named else None)


def with_stored(settings: Settings, document: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings, overridden by the `configurations` document of the environment (contract §9).

    Only what `stored_in` gives is taken from it; environment variables override it.
    """
    source = f"configurations document of environment {settings.environment!r}"
    stored = stored_in(document)
    _raise_if_any(find_faults(stored, lambda _: source))
    in_environment = read_environment(os.environ if environ is None else environ)
    overrides = {name: keys for name, keys in in_environment.items() if name in STORED_SECTIONS}
    result = Settings.model_validate(_merged(_merged(settings.model_dump(), stored), overrides))
    _raise_if_any([f"{source}: {line}" for line in result.conflicts()])
    return result


def stored_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """What counts of a stored document: its `STORED_SECTIONS` without what is `NOT_STORED`."""
    found = {name: document[name] for name in STORED_SECTIONS if document.get(name) is not None}
    if isinstance(memory := found.get("memory"), Mapping):
        found["memory"] = {name: value for name, value in memory.items() if name not in NOT_STORED}
    return found


def _raise_if_any(faults: list[str]) -> None:
    if faults:
        raise ConfigError("\n".join(faults))


def _read_file(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """The sections of a YAML file, with every `${VAR}` filled from `variables`."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds a {type(values).__name__}; sections with keys are needed")
    missing: list[str] = []
    filled: dict[str, Any] = _fill(values, variables, "", missing)
    _raise_if_any([f"{path}: {item}" for item in missing])
    # A section with all its keys commented out reads as null.
    return {name: {} if section is None else section for name, section in filled.items()}


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML document.

    Raises:
        ConfigError: it is none, a mapping has a key twice, or a value holds itself. Each line begins with `source`.
    """
    try:
        return _load_yaml(text, source)
    except _NOT_YAML as error:
        # The parser's own words quote the line, which may hold a password.
        mark = getattr(error, "problem_mark", None)
        place = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}: is not YAML{place}") from None


def _load_yaml(text: str, source: str, key: str = "") -> Any:
    """As `parse_yaml`, for the section or setting `key`; what is not YAML is an error of `_NOT_YAML`."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _raise_if_any([f"{source}: {fault}" for fault in _misused_keys(root, key, (), set())])
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _misused_keys(node: yaml.Node, key: str, above: tuple[yaml.Node, ...], seen: set[yaml.Node]) -> Iterator[str]:
    """What YAML's loader passes over: keys that stand twice in a mapping, and values that hold themselves.

    A key that `<<` brings as well is no fault: that of the mapping overrides it.
    """
    if node in above:
        yield f"{key}: holds itself, by an alias of what begins in line {node.start_mark.line + 1}"
    if node in seen:
        return
    seen.add(node)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _misused_keys(item, f"{key}[{index}]", (*above, node), seen)
    elif isinstance(node, yaml.MappingNode):
        lines = dict[tuple[str, str], int]()
        for name, value in node.value:
            inside = f"{key}.{name.value}".lstrip(".") if isinstance(name, yaml.ScalarNode) else key
            # An id may be a secret that was put on the wrong side.
            shown = _KEYS if inside.startswith(f"{_KEYS}.") else inside
            line = name.start_mark.line + 1
            if first := lines.get((name.tag, str(name.value))):
                yield f"{shown}: the same key in line {first} and in line {line}; once is allowed"
            lines[name.tag, str(name.value)] = line
            yield from _misused_keys(value, shown, (*above, node), seen)


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


def read_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """The sections from `NEXUS_<SECTION>__<KEY>` variables."""
    values: dict[str, Any] = {}
    for name, (*sections, key) in _places(variables):
        target = values
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise ConfigError(f"environment variable {name}: {section}: has a value, and no keys inside")
        target[key] = _plain_or_yaml(variables[name], name, ".".join([*sections, key]))
    return values


def _plain_or_yaml(text: str, variable: str, key: str) -> Any:
    try:
        return _load_yaml(text, f"environment variable {variable}", key) if text.startswith(("[", "{")) else text
    except _NOT_YAML:
        return text


def variable_of(place: Sequence[str], variables: Iterable[str]) -> str:
    """The variable that sets the value at `place`, a section around it or a key inside it; empty where none does."""
    for name, set_here in _places(variables):
        shared = min(len(set_here), len(place))
        if set_here[:shared] == [*place[:shared]]:
            return name
    return ""


def _source_of(line: str, path: Path | None, in_file: Mapping[str, Any], variables: Mapping[str, str]) -> str:
    """Where the key that a line begins with is set, as the line's beginning; nothing where it has its default."""
    place = line.partition(":")[0].split(".")
    if variable := variable_of(place, variables):
        return f"environment variable {variable}: "
    value: Any = in_file
    for name in place:
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else f"{path}: "


def _misspelled(variables: Iterable[str]) -> list[str]:
    """Variables with one underscore where two belong, which would be ignored in silence."""
    places = [(section, key) for section in Sections.model_fields for key in allowed_keys([section])]
    meant = {f"{_PREFIX}{section}_{key}".upper(): f"{_PREFIX}{section}__{key}".upper() for section, key in places}
    return [f"environment variable {name}: unknown; {meant[name]} is meant" for name in variables if name in meant]


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base`, overridden by `over` key by key at every level."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
