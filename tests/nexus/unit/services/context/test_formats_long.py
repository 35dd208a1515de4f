"""Long lists in every form."""

import json
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from nexus.services.context.formats import FORMATS, convert
from tests.nexus.support.providers import anthropic_faults, gemini_faults, openai_faults
from tests.nexus.unit.services.context.canonical_lists import AGENT, TOOLS

FAULTS = {"openai": openai_faults, "anthropic": anthropic_faults, "gemini": gemini_faults}


@pytest.mark.parametrize("form", FORMATS)
def test_a_long_list_is_accepted(form: str) -> None:
    """10,000 messages, half of them calls and results."""
    assert FAULTS[form](convert(form, repeated(1_250), TOOLS, stable=9_000, goes_on=True)) == []


@pytest.mark.parametrize("form", ["anthropic", "gemini"])
def test_work_grows_with_the_list_and_no_faster(form: str) -> None:
    """Counted in calls of functions: 10,000 messages take twice as many as 5,000."""

    def work(times: int) -> int:
        messages = repeated(times)
        return calls_made(lambda: convert(form, messages, TOOLS, stable=len(messages) // 2, goes_on=True))

    assert work(1_250) < 2.1 * work(625)


def repeated(times: int) -> list[dict[str, Any]]:
    """Eight messages again and again, with ids that occur once."""
    text = json.dumps(AGENT[2:-1])
    return [message for time in range(times) for message in json.loads(re.sub(r'"c([12])"', rf'"c\1_{time}"', text))]


def calls_made(work: Callable[[], object]) -> int:
    """How many functions are called, by Python and from it in C."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
