"""Documents as they come in replies to commands, which cost less than a cursor, and what they lack (CONTRACT §2). Pure.

Rules of this module:

- Of a command's reply the drivers make references of objects with `$ref` and `$id`, whatever the codec says.
- Times are decoded without a zone and made aware here: pymongo's decoder takes 0.6 µs to make one aware, of which a sum
  takes 0.1, and what is aware of `datetime.UTC` itself costs those nothing who want it in UTC.
"""

from datetime import UTC, datetime
from typing import Any, Final

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.dbref import DBRef

# As `mongo_schema.CODEC` for the rest.
REPLIES: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    tz_aware=False,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
)
# What is added to their difference is aware.
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE_EPOCH: Final = EPOCH.replace(tzinfo=None)
_LACKING: Final = frozenset({dict, list, datetime, DBRef})


def restored(value: Any) -> Any:
    """The value with aware times, and objects for references, at any depth; lists and objects are changed in place."""
    kind = type(value)
    if kind is dict:
        for name, item in value.items():
            if type(item) in _LACKING:
                value[name] = restored(item)
    elif kind is datetime and value.tzinfo is None:
        return EPOCH + (value - NAIVE_EPOCH)
    elif kind is list:
        for place, item in enumerate(value):
            if type(item) in _LACKING:
                value[place] = restored(item)
    elif kind is DBRef:
        return restored(dict(value.as_doc()))
    return value
