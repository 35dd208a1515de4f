"""What MongoDB keeps, as JSON that says all of it, and back. Pure.

MongoDB's Extended JSON does nearly that: text, truth, null, lists and most numbers are themselves, and all else is an
object such as `{"$date": "2026-01-01T00:00:00Z"}`. It is not enough where a message itself holds such an object, as
results of tools do, or a small number of 64 bits. So here

- an object that has a key with a `$` in front stands inside of another: `{"$object": {…}}`;
- an integer of 64 bits that has room in 32 is `{"$numberLong": "…"}`.
"""

import json
import math
from typing import Any, Final

from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.dbref import DBRef
from bson.errors import BSONError
from bson.int64 import Int64
from bson.json_util import JSONMode, JSONOptions

_LITERAL: Final = "$object"
_SMALL: Final = range(-(2**31), 2**31)
_OPTIONS: Final = JSONOptions(
    json_mode=JSONMode.RELAXED, tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


def spelled(value: Any) -> Any:
    """A value that MongoDB gave, as JSON."""
    if isinstance(value, dict):
        items = {name: spelled(item) for name, item in value.items()}
        return {_LITERAL: items} if _is_marked(value) else items
    if isinstance(value, list | tuple):
        return [spelled(item) for item in value]
    if isinstance(value, Int64):
        # A range looks for what is no plain `int` one by one.
        plain = int(value)
        return {"$numberLong": str(plain)} if plain in _SMALL else plain
    # A text of MongoDB's code is a `str` too, so the type has to be it.
    if value is None or type(value) in {str, bool, int} or (isinstance(value, float) and math.isfinite(value)):
        return value
    return json.loads(json_util.dumps(value, json_options=_OPTIONS))


def unspelled(value: Any) -> Any:
    """What `spelled` was given.

    Raises:
        ValueError: it gives no such JSON; says what is wrong.
    """
    if isinstance(value, list):
        return [unspelled(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not _is_marked(value):
        return {name: unspelled(item) for name, item in value.items()}
    literal = value.get(_LITERAL)
    if len(value) == 1 and isinstance(literal, dict):
        return {name: unspelled(item) for name, item in literal.items()}
    return _marked(value)


def _is_marked(value: dict[str, Any]) -> bool:
    return any(name.startswith("$") for name in value)


def _marked(value: dict[str, Any]) -> Any:
    fault = f'an object whose key begins with $ is no Extended JSON; as it is, it is written {{"{_LITERAL}": …}}'
    try:
        found = json_util.loads(json.dumps(value), json_options=_OPTIONS)
    # Its parsers raise whatever the constructors behind them do.
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, BSONError):
        raise ValueError(fault) from None
    if isinstance(found, dict | DBRef):
        raise ValueError(fault)
    return found
