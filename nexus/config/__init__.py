"""Settings (contract §9): a YAML file, overridden by `NEXUS_<SECTION>__<KEY>` variables, checked at start.

- Settings are values, loaded once and passed on; nothing reads them from a global.
- A wrong value, an unknown key or a missing `${VAR}` is a `ConfigError`, one line an item: where, which key, what is
  allowed.
- Addresses may hold passwords, so they are `SecretStr` and never show in a log or a repr.
"""

from nexus.config.settings import (
    STORED_SECTIONS,
    BusSettings,
    ContextSettings,
    DatabaseSettings,
    LlmSettings,
    Settings,
    SigningSettings,
    load_settings,
    signing_of,
)

__all__ = [
    "STORED_SECTIONS",
    "BusSettings",
    "ContextSettings",
    "DatabaseSettings",
    "LlmSettings",
    "Settings",
    "SigningSettings",
    "load_settings",
    "signing_of",
]
