"""JSON without blanks, as fast as it can be had. Pure."""

import json
from typing import Any

import orjson
from pydantic_core import PydanticSerializationError, to_json


def compact(value: Any) -> bytes:
    """`value` as compact JSON in UTF-8, the form that is counted, hashed, kept and sent.

    Of what is no JSON, whatever pydantic makes of it; NaN and infinities become null.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_UTC_Z)
    except TypeError:
        # An integer of more than 64 bits, a key that is no text, deep nesting: orjson is for what is usual.
        pass
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        # Half a surrogate pair.
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
