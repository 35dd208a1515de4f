"""The inputs of tests/nexus/cases, which tests/nexus/e2e/test_cases.py describes, as documents to store and to send."""

import base64
import json
import random
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bson import json_util

from tests.nexus.e2e.harness import Document, a_message, a_request

CASES: Final = {
    path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parents[1] / "cases").glob("*.json"))
}


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """A value of a case with names and long texts in their places."""
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(name, text)
    elif isinstance(value, list):
        value = [filled(item, names) for item in value]
    elif isinstance(value, dict):
        word = next(iter(value), "")
        if word in MADE:
            return MADE[word](value[word], names)
        value = {filled(name, names): filled(item, names) for name, item in value.items()}
    return value


# What is long, by its name in a case.
MADE: Final[Mapping[str, Callable[[Any, Mapping[str, str]], Any]]] = {
    "$times": lambda given, _: given[0] * given[1],
    "$join": lambda given, names: "".join(filled(given, names)),
    "$picture": lambda given, _: base64.b64encode(random.Random(given).randbytes(given)).decode(),  # noqa: S311
    "$range": lambda given, names: [filled(given[1], {**names, "$I": str(number)}) for number in range(given[0])],
}


def stored_rows(rows: list[Document], owner: str) -> list[Document]:
    """Rows of a step, as they are to be stored."""
    made = json_util.loads(json.dumps(rows), json_options=json_util.RELAXED_JSON_OPTIONS)
    return [
        {"owner_key": owner, "id": f"row{index}"} | {name: item for name, item in row.items() if item != "$absent"}
        for index, row in enumerate(made)
    ]


def request_of(ask: Document, owner: str, **metadata: str) -> Document:
    """The build request of a step."""
    run = ask.get("run") or f"run_{uuid.uuid4().hex}"
    later = [a_message(None, run, owner_key=owner) | message for message in ask.get("more", ())]
    run_metadata = {**ask.get("metadata", {}), **metadata}
    return a_request(ask["input"], owner=owner, run_id=run, later=later, run_metadata=run_metadata)
