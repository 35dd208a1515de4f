"""Settings (CONTRACT §9): a YAML file, overridden by `NEXUS_<SECTION>__<KEY>` variables, checked at start.

Rules of this module:

- Settings are values. They are loaded once by the composition root and passed on; nothing reads them from a global.
- A wrong value, an unknown key or a missing `${VAR}` is a `ConfigError` of one line an item: where, which key, what is
  allowed.
- Addresses may hold passwords, so they are `SecretStr` and never show in a log or a repr.

plain pydantic does this rather than pydantic-settings, which passes over an unknown `NEXUS_BUSS__URL` in silence.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError

from nexus.core.errors import ConfigError

_PREFIX = "NEXUS_"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Sections that the `configurations` document of an environment may hold (CONTRACT §9).
STORED_SECTIONS = ("memory", "layouts", "user_defaults")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SystemSettings(_Section):
    """The process itself."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    drain_seconds: float = Field(default=10.0, ge=0, le=600)


class BusSettings(_Section):
    """The bus and what is promised about a request on it (CONTRACT §1.5, §1.6)."""

    mode: Literal["pubsub", "memory"] = "pubsub"
    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    channel_prefix: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9._:-]*$")
    request_deadline_ms: int = Field(default=5_000, ge=100, le=60_000)
    clock_skew_ms: int = Field(default=30_000, ge=0, le=86_400_000)
    lease_ms: int = Field(default=2_000, ge=200, le=60_000)
    answer_ttl_s: int = Field(default=3_600, ge=1, le=604_800)
    max_payload_bytes: int = Field(default=1_048_576, ge=1_024, le=67_108_864)
    max_in_flight: int = Field(default=256, ge=1, le=65_536)
    heartbeat_s: float = Field(default=5.0, ge=0.05, le=60)
    dead_letter_bodies: bool = False
    dead_letter_max: int = Field(default=10_000, ge=1, le=1_000_000)


class DatabaseSettings(_Section):
    """The document store."""

    driver: Literal["motor", "pymongo"] = "motor"
    uri: SecretStr = SecretStr("mongodb://127.0.0.1:27017")
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,38}$")] = "nexus"
    timeout_ms: int = Field(default=1_500, ge=50, le=60_000)
    server_selection_timeout_ms: int = Field(default=1_500, ge=50, le=60_000)


class ContextSettings(_Section):
    """How a context is built when a part of it cannot be had."""

    on_history_failure: Literal["degrade", "error"] = "degrade"


class LayoutSettings(_Section):
    """Recipes for the message list."""

    default: Literal["dialogue"] = "dialogue"


class MemorySettings(_Section):
    """How much of the past is shown (CONTRACT §4.3)."""

    history_context_size: int = Field(default=20, ge=1, le=200)
    truncate_chars: int = Field(default=500, ge=20, le=20_000)


class ToolSettings(_Section):
    """Where tools come from (CONTRACT §3)."""

    modules: tuple[str, ...] = ()
    refresh_seconds: float = Field(default=30.0, ge=1, le=3_600)


class UserConfigDefaults(_Section):
    """Settings of an owner who has set none."""

    history_context_size: int | None = Field(default=None, ge=1, le=200)


class FriendsProfileDefault(_Section):
    """The profile text of an owner who has none, and what an editor may say of it."""

    content: str = ""
    editable: bool = True
    description: str = "About this friend - preferences, patterns, and context"


class UserPromptDefaults(_Section):
    """Prompts of an owner who has set none."""

    friends_profile: FriendsProfileDefault = FriendsProfileDefault()


class UserDefaults(_Section):
    """What holds for every owner until the owner says otherwise."""

    config: UserConfigDefaults = UserConfigDefaults()
    prompts: UserPromptDefaults = UserPromptDefaults()


class Settings(_Section):
    """Every setting of Nexus. `config.example.yml` lists them with their defaults and meanings."""

    environment: str = "development"
    system: SystemSettings = SystemSettings()
    bus: BusSettings = BusSettings()
    database: DatabaseSettings = DatabaseSettings()
    context: ContextSettings = ContextSettings()
    layouts: LayoutSettings = LayoutSettings()
    memory: MemorySettings = MemorySettings()
    tools: ToolSettings = ToolSettings()
    user_defaults: UserDefaults = UserDefaults()

    def with_stored(self, document: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> "Settings":
        """These settings, overridden by the `configurations` document of the environment (CONTRACT §9).

        Only the sections in `STORED_SECTIONS` are taken from it; what the environment variables say still wins.

        Raises:
            ConfigError: a value in the document is not allowed.
        """
        stored = {name: document[name] for name in STORED_SECTIONS if document.get(name) is not None}
        merged = _merge(self.model_dump(), stored)
        variables = {name: value for name, value in _from_environment(environ).items() if name in STORED_SECTIONS}
        where = f"configurations document of environment {self.environment!r}"
        return _checked(_merge(merged, variables), where, environ)


def load_settings(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings from `path` (else from the file that `NEXUS_CONFIG` names), overridden by the environment.

    Raises:
        ConfigError: the file cannot be read, holds an unknown key or a wrong value, or names an unset variable.
    """
    variables = os.environ if environ is None else environ
    named = variables.get("NEXUS_CONFIG")
    path = path or (Path(named) if named else None)
    values = _merge(_from_file(path, variables) if path else {}, _from_environment(variables))
    if "environment" in values:
        raise ConfigError(f"{path}: environment: unknown section; set the environment with NEXUS_ENV")
    values["environment"] = variables.get("NEXUS_ENV") or "development"
    return _checked(values, str(path) if path else "settings", variables)


def _checked(values: Mapping[str, Any], where: str, environ: Mapping[str, str] | None) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        names = set(os.environ if environ is None else environ)
        raise ConfigError("\n".join(_explain(error, where, names))) from None


def _from_file(path: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds a {type(values).__name__}; sections with keys are needed")
    missing: list[str] = []
    filled: dict[str, Any] = _fill(values, variables, "", missing)
    if missing:
        raise ConfigError("\n".join(f"{path}: {item}" for item in missing))
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


def _from_environment(environ: Mapping[str, str] | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in (os.environ if environ is None else environ).items():
        if not name.startswith(_PREFIX) or "__" not in name:
            continue
        *sections, key = name.removeprefix(_PREFIX).lower().split("__")
        target = values
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = _scalar_or_list(text)
    return values


def _scalar_or_list(text: str) -> Any:
    if not text.startswith(("[", "{")):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _explain(error: ValidationError, where: str, variables: Iterable[str]) -> list[str]:
    lines = []
    for item in error.errors(include_input=False, include_url=False, include_context=False):
        path = [str(part) for part in item["loc"]]
        variable = _PREFIX + "__".join(path).upper()
        source = f"environment variable {variable}" if variable in variables else where
        reason = item["msg"]
        if item["type"] == "extra_forbidden":
            reason = f"unknown; allowed: {', '.join(_allowed(path[:-1]))}"
        lines.append(f"{source}: {'.'.join(path)}: {reason}")
    return lines


def _allowed(path: Iterable[str]) -> list[str]:
    model: type[BaseModel] = Settings
    for name in path:
        annotation = model.model_fields[name].annotation if name in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return sorted(set(model.model_fields) - {"environment"})
