"""JSON, a value a line, as exports are written and as files that somebody may have edited are read. Pure.

Rules of this module:

- Characters that a terminal might obey, or not show, are written as escapes; all others as they are.
- A fault is said with its line and what is allowed, and quotes nothing but names of fields.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from nexus.core.canonical import parsed
from nexus.core.wire import explain, is_deeper

# As `json` and pydantic say what no user can know: the line of a line, and a class.
_PLACE: Final = re.compile(r": line 1 column (\d+) \(char \d+\)$")
_CLASS: Final = re.compile(r" or instance of \w+")
# As deep as MongoDB keeps a document.
MOST_DEPTH: Final = 100
# Whole numbers that BSON has room for.
_NUMBERS: Final = range(-(2**63), 2**63)

_Model = TypeVar("_Model", bound=BaseModel)


def visible(text: str) -> str:
    """The JSON with escapes for what cannot be shown, which can only stand in its texts."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def line_of_model(model: type[BaseModel], document: Any) -> str:
    """The line of a document, without its end: the fields of the model.

    Raises:
        ValueError: it is malformed; says what is wrong.
    """
    try:
        return visible(model.model_validate(document).model_dump_json())
    except ValidationError as error:
        raise ValueError(explained(error)) from None
    except PydanticSerializationError:
        raise ValueError("it holds something that is no JSON") from None


def numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines that have text, with their numbers."""
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def object_in(number: int, line: bytes, *, most_depth: int = MOST_DEPTH) -> dict[str, Any]:
    """The object that a line holds.

    Raises:
        ValueError: it holds none; the line, what is wrong, what is allowed.
    """
    try:
        value = parsed(line)
    except ValueError as error:
        # The line is one of the file, and the only one of its own.
        said = _PLACE.sub(r" at column \1", str(error))
        raise ValueError(f"line {number}: {said}") from None
    if not isinstance(value, dict):
        raise ValueError(f"line {number}: a JSON object is needed")
    if is_deeper(value, most_depth):
        raise ValueError(f"line {number}: nested deeper than {most_depth}")
    return value


def model_in(number: int, line: bytes, model: type[_Model]) -> _Model:
    """What a line says, read strictly: no text and no truth value is a number.

    Raises:
        ValueError: it says no such thing; the line, what is wrong, what is allowed.
    """
    value = object_in(number, line)
    for fault in unstorable(value):
        raise ValueError(f"line {number}: {fault}")
    try:
        return model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise ValueError(f"line {number}: {explained(error)}") from None


def unstorable(value: Any) -> Iterator[str]:
    """What in it no store can hold."""
    if isinstance(value, dict):
        if any("\x00" in key for key in value):
            yield "a key with a NUL; no document may have one"
        for item in value.values():
            yield from unstorable(item)
    elif isinstance(value, list):
        for item in value:
            yield from unstorable(item)
    elif isinstance(value, int) and value not in _NUMBERS:
        yield "a whole number of more than 64 bits; no document may have one"


def explained(error: ValidationError) -> str:
    """What pydantic found wrong, in words for somebody who did not write the model."""
    return _CLASS.sub("", explain(error))
