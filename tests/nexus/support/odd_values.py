"""Every type of BSON, for a field that is to hold something else; also what a writer other than a driver may store."""

import struct
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

_HOLE: Final = Binary(b"a value of which a document is made", 0x80)
_MISSING: Final = object()
_DEPTH: Final = 80


def _deep(wrap: Any) -> Any:
    value: Any = "bottom"
    for _ in range(_DEPTH):
        value = wrap(value)
    return value


class Raw(bytes):
    """A value as its type's byte and its bytes, for what no driver writes."""


def _text(content: bytes) -> bytes:
    return struct.pack("<i", len(content) + 1) + content + b"\x00"


ODD_VALUES: Final[Mapping[str, Any]] = {
    "null": None,
    "missing": _MISSING,
    "true": True,
    "zero": 0,
    "minus": -1,
    "int64": Int64(2**63 - 1),
    "fraction": 1.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "decimal": Decimal128("NaN"),
    "empty": "",
    "long": "x" * (1 << 20),
    "nul": "\x00",
    "not UTF-8": Raw(b"\x02" + _text(b"caf\xe9 \xff\xfe")),
    "lone surrogate": Raw(b"\x02" + _text(b"\xed\xa0\x80")),
    "binary": Binary(b"\x00\xff", 0),
    "uuid": Binary.from_uuid(uuid.UUID(int=7), UuidRepresentation.STANDARD),
    "object id": ObjectId("65a000000000000000000001"),
    "year 1": datetime(1, 1, 1, tzinfo=UTC),
    "year 9999": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    "out of range": DatetimeMS(2**62),
    "timestamp": Timestamp(2**32 - 1, 1),
    "regex": Regex("(a+)+$", "i"),
    "code": Code("while (true) {}"),
    "code with scope": Code("x", {"x": 1}),
    "symbol": Raw(b"\x0e" + _text(b"symbol")),
    "undefined": Raw(b"\x06"),
    "pointer": Raw(b"\x0c" + _text(b"a.b") + b"\x01" * 12),
    "min": MinKey(),
    "max": MaxKey(),
    "reference": DBRef("messages", ObjectId("65a000000000000000000001"), "db"),
    "array": [None, {}, [1], Code("x"), "x"],
    "deep array": _deep(lambda value: [value]),
    "object": {"a.b": 1, "$set": {"x": 1}, "": {}, "__proto__": None},
    "deep object": _deep(lambda value: {"a": value}),
    "key not UTF-8": Raw(b"\x03" + struct.pack("<i", 12) + b"\x08caf\xe9\x00\x01" + b"\x00"),
}
# Values of a type that another of them has as well.
VARIANTS: Final = frozenset(
    {"zero", "fraction", "inf", "nul", "lone surrogate", "uuid", "year 1", "array", "object", "key not UTF-8"}
)


def with_value(document: Mapping[str, Any], path: str, value: Any) -> RawBSONDocument:
    """The document with this in the place that a dotted path names; list items have their number there."""
    made = _replaced(document, path.split("."), _MISSING if value is _MISSING else _HOLE)
    encoded = bson.encode(made)
    if value is _MISSING:
        return RawBSONDocument(encoded)
    if isinstance(value, Raw):
        kind, content = value[:1], bytes(value[1:])
    else:
        element = bson.encode({"": value})
        kind, content = element[4:5], element[6:-1]
    return RawBSONDocument(_filled(encoded, kind, content))


def _replaced(value: Any, path: list[str], new: Any) -> Any:
    key, *rest = path
    if isinstance(value, list | tuple):
        listed = list(value)
        listed[int(key)] = _replaced(listed[int(key)], rest, new) if rest else new
        return [item for item in listed if item is not _MISSING]
    items = dict(value)
    if rest:
        items[key] = _replaced(items[key], rest, new)
    elif new is _MISSING:
        items.pop(key, None)
    else:
        items[key] = new
    return items


def _filled(document: bytes, kind: bytes, content: bytes) -> bytes:
    """The encoded document with another element's type and value in place of the hole, wherever that is in it."""
    made = b""
    for element_kind, name, value in _elements(document):
        if element_kind in b"\x03\x04":
            made += element_kind + name + _filled(value, kind, content)
        elif element_kind == b"\x05" and value.endswith(bytes(_HOLE)) and value[4] == _HOLE.subtype:
            made += kind + name + content
        else:
            made += element_kind + name + value
    return struct.pack("<i", len(made) + 5) + made + b"\x00"


_FIXED: Final = {1: 8, 6: 0, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16, 0xFF: 0, 0x7F: 0}


def _elements(document: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    at = 4
    while document[at]:
        kind, end = document[at : at + 1], document.index(0, at + 1) + 1
        name = document[at + 1 : end]
        length = int.from_bytes(document[end : end + 4], "little")
        size = {2: length + 4, 3: length, 4: length, 5: length + 5}.get(kind[0], _FIXED.get(kind[0], 0))
        yield kind, name, document[end : end + size]
        at = end + size
