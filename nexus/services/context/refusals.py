"""What a request is told that cannot be built as it is (CONTRACT §1.4). Pure."""

from collections.abc import Iterable
from typing import Any, Final

from nexus.core.errors import ErrorCode, RequestError

_SHOWN_CHARS: Final = 60


def invalid(reason: str) -> RequestError:
    """INVALID_REQUEST for this reason, which names the place."""
    return RequestError(ErrorCode.INVALID_REQUEST, reason)


def mismatch(where: str) -> RequestError:
    """OWNER_MISMATCH for this place."""
    return RequestError(ErrorCode.OWNER_MISMATCH, f"{where}: is not the owner_key of the envelope")


def unknown(where: str, value: Any, allowed: Iterable[str]) -> str:
    """The reason that a value is none of those allowed."""
    shown = repr(value[:_SHOWN_CHARS]) if isinstance(value, str) else f"a JSON {type(value).__name__}"
    return f"{where}: {shown} is unknown; allowed: {', '.join(allowed)}"
