"""Settings (CONTRACT §9): a YAML file, overridden by `NEXUS_<SECTION>__<KEY>` variables, checked at start.

Rules of this package:

- Settings are values. They are loaded once by the composition root and passed on; nothing reads them from a global.
- A wrong value, an unknown key or a missing `${VAR}` is a `ConfigError` of one line an item: where, which key, what is
  allowed.
- Addresses may hold passwords, so they are `SecretStr` and never show in a log or a repr.

Plain pydantic does this rather than pydantic-settings, which passes over an unknown `NEXUS_BUSS__URL` in silence.
"""

from nexus.config.settings import (
    STORED_SECTIONS,
    BusSettings,
    ContextSettings,
    DatabaseSettings,
    LlmSettings,
    Settings,
    load_settings,
)
from nexus.config.signing import SigningSettings, signing_of

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
