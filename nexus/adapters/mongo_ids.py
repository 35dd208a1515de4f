"""The `_id`s of MongoDB as texts, and back: every one has a text of its own, and no other has the text of an ObjectId.

That of an ObjectId says when its row was stored, so an `_id` of another program's that merely looks like one must not.
"""

from typing import Any, Final

from bson import ObjectId, Regex, json_util
from bson.errors import BSONError

from nexus.core.working_memory import is_object_id

_JSON: Final = "{"


def id_text(value: Any) -> str:
    """The text of an `_id`: its digits, itself where it is a text that reads as nothing else, or else JSON."""
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, str) and not (is_object_id(value) or value.startswith(_JSON)):
        return value
    return json_util.dumps({"_id": value}, json_options=json_util.CANONICAL_JSON_OPTIONS)


def id_of(text: str) -> Any:
    """The `_id` of which this is the text. Of a text that none has, the text."""
    if is_object_id(text):
        return ObjectId(text)
    if not text.startswith(_JSON):
        return text
    try:
        value = json_util.loads(text, json_options=json_util.CANONICAL_JSON_OPTIONS)["_id"]
    except (BSONError, ValueError, KeyError, TypeError):
        return text
    return text if _is_condition(value) else value


def _is_condition(value: Any) -> bool:
    # No row has such an `_id`, and in a query it would not stand for itself.
    names = value if isinstance(value, dict) else ()
    return isinstance(value, Regex | list) or any(name.startswith("$") for name in names)
