"""The settings `bus.signing` (CONTRACT §1.7), and the keys they make. Nothing said of them repeats one."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, LiteralString

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

from nexus.core.signing import Signing

_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHORTEST_SECRET: Final = 16
_NO_KEY: Final = (
    "bus.signing.required: needs a key to sign with: set bus.signing.keys, for instance "
    "NEXUS_BUS__SIGNING__KEYS='{k1: a secret of 16 characters or more}', or leave it at false"
)
_NO_MAPPING: Final = "Secrets by their ids are needed, for instance {k1: a secret of 16 characters or more}"


def _checked(keys: Any) -> Any:
    # As a whole, since the place of a fault would name the id, which may be a secret that was put on the wrong side.
    if keys is None:
        return {}
    if not isinstance(keys, Mapping):
        raise PydanticCustomError("signing_keys", _NO_MAPPING)
    for name, secret in keys.items():
        if wrong := _fault(name, secret):
            raise PydanticCustomError("signing_keys", wrong)
    return keys


def _fault(name: Any, secret: Any) -> LiteralString | None:
    """Which rule a key fails, without a word of it."""
    text = secret.get_secret_value() if isinstance(secret, SecretStr) else secret
    if not isinstance(name, str):
        return "An id of a key is no text: put it in quotes"
    if not _KEY_ID.fullmatch(name):
        return "An id of a key is not of 1 to 64 of A-Z a-z 0-9 . _ -"
    if not isinstance(text, str):
        return "A secret is no text: put it in quotes, since what looks like a number or a date is none"
    return None if len(text) >= _SHORTEST_SECRET else "A secret is shorter than 16 characters"


class SigningSettings(BaseModel):
    """Who is believed on the bus. Secret by key id: the first key signs, every key verifies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: Annotated[dict[str, SecretStr], BeforeValidator(_checked)] = Field(default_factory=dict)
    required: bool = False

    def faults(self) -> list[str]:
        """What is wrong with them together, one line an item."""
        return [_NO_KEY] if self.required and not self.keys else []


def signing_of(settings: SigningSettings) -> Signing | None:
    """The keys of the bus; None where there are none, and signatures do not matter."""
    if not settings.keys:
        return None
    secrets = {name: secret.get_secret_value().encode() for name, secret in settings.keys.items()}
    return Signing(secrets, required=settings.required)
