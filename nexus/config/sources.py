"""Where the value of each setting comes from; what counts more stands later in `Source`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from nexus.config import STORED_SECTIONS, Settings
from nexus.config.loading import path_of, read_environment, variable_of, with_stored

Source = Literal["default", "file", "stored", "environment"]


@dataclass(frozen=True, slots=True)
class Origin:
    """A setting's value, and where it comes from.

    Attributes:
        key: with dots, as `bus.url`.
        value: that counts. Secrets are `SecretStr`s.
        place: the file, the environment whose stored document it is, or the variable; `""` for a default.
        outranked: the value of the file, where it has another one than the stored document: a tuple of it, or `()`.
    """

    key: str
    value: Any
    source: Source
    place: str
    outranked: tuple[Any, ...] = ()


def origins(
    settings: Settings,
    document: Mapping[str, Any],
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Origin]:
    """Every setting, for `settings` as `load_settings` read them from `path`, and the stored document (`{}` for none).

    Raises:
        ConfigError: as `with_stored`.
    """
    variables = os.environ if environ is None else environ
    in_environment = read_environment(variables)
    stored = {name: document[name] for name in STORED_SECTIONS if name in document}
    effective = {key: value for key, value, _ in _values(with_stored(settings, document, variables))}
    found = []
    for key, loaded, is_given in _values(settings):
        keys, value = key.split("."), effective[key]
        if key == "environment":
            variable = "NEXUS_ENV" if variables.get("NEXUS_ENV") else ""
            found.append(Origin(key, value, "environment" if variable else "default", variable))
        elif _holds(in_environment, keys):
            found.append(Origin(key, value, "environment", variable_of(keys, variables)))
        elif _holds(stored, keys):
            outranked = (loaded,) if is_given and loaded != value else ()
            found.append(Origin(key, value, "stored", settings.environment, outranked))
        else:
            place = str(path_of(path, variables) or "") if is_given else ""
            found.append(Origin(key, value, "file" if is_given else "default", place))
    return found


def _values(section: BaseModel, before: str = "") -> Iterator[tuple[str, Any, bool]]:
    """The settings of a section, each with its value, and whether that was given rather than is the default."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _values(value, f"{before}{name}.")
        else:
            yield before + name, value, name in section.model_fields_set


def _holds(values: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(values, Mapping) or key not in values:
            return False
        values = values[key]
    return True
