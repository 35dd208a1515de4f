"""Numbers in JSON that no double holds: a parser takes them for infinities, which JSON has none of (CONTRACT §1.6)."""

import math
import re
from collections.abc import Iterable
from typing import Any, Final

# A number that overflows has an exponent of two digits, or more digits than these. Looked for in the payload with every
# digit and point as 0, every e as e, and as a space whatever may stand before a number: of ids and texts few pass.
_LOOKS: Final = {"0": "0123456789.", "e": "eE", "+": "+", " ": " \t\n\r:,[-"}
_NUMBERS: Final = bytes(next((ord(look) for look, of in _LOOKS.items() if chr(code) in of), 0) for code in range(256))
_LARGE_EXPONENT: Final = re.compile(rb" 0++e\+?00")
_MANY_DIGITS: Final = b"0" * 309


def overflows(payload: bytes, value: Any) -> bool:
    """Whether there is such a number in the payload, of which `value` was parsed: an object or an array."""
    numbers = payload.translate(_NUMBERS)
    return (_MANY_DIGITS in numbers or _LARGE_EXPONENT.search(numbers) is not None) and _holds_infinity(value)


def _holds_infinity(value: Any) -> bool:
    level = [value]
    while level:
        items = [item for parent in level for item in _items(parent)]
        if any(isinstance(item, float) and not math.isfinite(item) for item in items):
            return True
        level = [item for item in items if isinstance(item, dict | list)]
    return False


def _items(parent: Any) -> Iterable[Any]:
    items: Iterable[Any] = parent.values() if isinstance(parent, dict) else parent
    return items
