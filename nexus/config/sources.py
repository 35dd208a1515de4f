"""Where the value of each setting comes from, and how it is shown; what counts more stands later in `Source`."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, SecretStr

from nexus.config import Settings
from nexus.config.loading import path_of, read_environment, stored_in, variable_of, with_stored

Source = Literal["default", "file", "stored", "environment"]

_MASK: Final = "***"
_ADDRESSES: Final = ("bus.url", "database.uri", "llm.base_url", "recall.base_url", "tracing.otlp_endpoint")
_HOST: Final = r"(?:[\w.-]+|\[[\w:.%]+\])(?::\d+)?"
_OPTION: Final = r"\w+=[^&@\s]*"
# An address that looks otherwise may have its password anywhere.
_ADDRESS: Final = re.compile(
    r"(?P<scheme>[a-z+]+://)(?P<user>[^?\s]*@)?"
    rf"(?P<place>(?:{_HOST}(?:,{_HOST})*)?(?:/[^?@\s]*)?)(?P<options>(?:\?{_OPTION}(?:&{_OPTION})*)?)"
)
_MAYBE_SECRET: Final = re.compile(r"=(?!(?:true|false)(?:&|$))[^&]*")
_VERSION_DIGITS: Final = 12


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

    @property
    def shown(self) -> Any:
        """The value with passwords and keys masked."""
        return _masked(self.key, self.value)

    @property
    def given_by(self) -> str:
        """The place in words, else the source."""
        return f"stored for {self.place}" if self.source == "stored" else self.place or self.source


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
    stored = stored_in(document)
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


def version_of(settings: Settings) -> str:
    """A short name for these settings, which records of answers have. Of a secret it tells only whether it is set."""
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:_VERSION_DIGITS]


def text_of(value: Any) -> str:
    """A value as a person reads it."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _masked(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _masked(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, BaseModel):
        return _masked(key, dict(value))
    if isinstance(value, tuple):
        return [_masked(key, item) for item in value]
    if not isinstance(value, SecretStr):
        return value
    text = value.get_secret_value()
    found = _ADDRESS.fullmatch(text) if key in _ADDRESSES else None
    if not found:
        return text and _MASK
    user = f"{_MASK}@" if found["user"] else ""
    return f"{found['scheme']}{user}{found['place']}{_MAYBE_SECRET.sub(f'={_MASK}', found['options'])}"


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
