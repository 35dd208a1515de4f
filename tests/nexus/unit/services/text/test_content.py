"""Contents of messages as text (contract §2)."""

from typing import Any

import pytest

from nexus.services.text.content import compact_json, text_of_parts


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a"], "a"),
        (("a", {"text": "b"}), "a\nb"),
        ([""], ""),
        *(([], None), (None, None), ("a", None), ({"text": "a"}, None), ([{"type": "image"}], None), (["a", 7], None)),
    ],
)
def test_the_text_of_content_parts(content: Any, text: str | None) -> None:
    """Every part must have one."""
    assert text_of_parts(content) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, None, "你"]}, '{"a":[1,null,"你"]}'),
        ({"n": float("nan"), "i": float("inf")}, '{"n":null,"i":null}'),
        ({1: 2}, '{"1":2}'),
        ({"s": {1}}, '{"s":[1]}'),
        (b"\xff", '"_w=="'),
    ],
)
def test_compact_json(value: Any, text: str) -> None:
    """Without spaces, and without values that JSON does not know."""
    assert compact_json(value) == text


def test_a_value_that_json_cannot_hold() -> None:
    """A value that contains itself, or is nested beyond all measure, is an empty object."""
    endless: dict[str, Any] = {}
    endless["self"] = endless
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"d": deep}
    assert compact_json(endless) == compact_json(deep) == "{}"
