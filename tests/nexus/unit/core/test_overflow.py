"""Numbers that no double holds are found wherever they stand, and nothing else is taken for one."""

import json

import pytest

from nexus.core.overflow import overflows

TOO_LARGE = ["1e309", "-1E+400", "1.5e999", "1" * 400 + ".5"]
NOT_TOO_LARGE = ["9" * 309, "1e308", "1e-999", "12.5e10", "0e99"]


@pytest.mark.parametrize("number", TOO_LARGE + NOT_TOO_LARGE)
@pytest.mark.parametrize(
    "around", ['{"a":%s}', '[%s,"1e999"]', "[1, %s ]", '{"a":{"b":[%s]},"c":"-1e999"}', "[\n%s\n]"]
)
def test_numbers_that_overflow(number: str, around: str) -> None:
    """In objects and arrays, with white space around; the same digits in a text are none."""
    payload = around % number
    assert overflows(payload.encode(), json.loads(payload)) is (number in TOO_LARGE)
