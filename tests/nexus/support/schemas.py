"""JSON held to the schemas under docs/schemas."""

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jsonschema_rs import Draft202012Validator

SCHEMAS: Final = Path(__file__).parents[3] / "docs" / "schemas"
_SHOWN: Final = 200


def faults(name: str, value: Any, *, ours: bool = False, example: bool = False) -> list[str]:
    """What is wrong with a value by the schema of that name.

    `name` may go on with a path, as `answer.content`: then the value is what stands there, and may be a part of it.
    `ours`: Nexus has made it, so it has no field that the schema does not name. `example`: a text with `…` in it is
    shortened, and not looked at.
    """
    name, *path = name.split(".")
    for key in reversed(path):
        value = {key: value}
    return [
        f"{'.'.join(map(str, error.instance_path))}: {error.message[:_SHOWN]}"
        for error in _validator(name, ours=ours or bool(path), partly=bool(path)).iter_errors(value)
        if not (example and isinstance(error.instance, str) and "…" in error.instance)
    ]


@lru_cache
def _validator(name: str, *, ours: bool, partly: bool) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    for each in _objects(schema):
        if ours and "properties" in each and each.get("type") == "object":
            each.setdefault("additionalProperties", False)
        # A property may be called so, too.
        if partly and isinstance(each.get("required"), list):
            del each["required"]
    return Draft202012Validator(schema)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(each)
