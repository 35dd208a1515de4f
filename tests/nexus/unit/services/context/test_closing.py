"""What every list ends with: it fits, or it is refused (CONTRACT §7, §8)."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexus.core.compact_json import compact
from nexus.core.errors import ErrorCode, RequestError
from nexus.services.context.closing import close
from nexus.services.context.meta import MOST_TOKENS, Meta
from nexus.services.context.prefix import RunPrefix
from nexus.services.context.request import BuildRequest, read_request
from nexus.services.context.tokens import Measure
from nexus.services.context.validity import faults
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.unit.services.context.test_budget import words_of
from tests.nexus.unit.services.parts import definition, request

FORMS = st.sampled_from(["openai", "anthropic", "gemini"])
OPENING = [{"role": "system", "content": "You help."}, {"role": "user", "content": "look it up"}]


def a_request(results: list[str]) -> BuildRequest:
    """A run that has called a tool so often, with these results."""
    later: list[dict[str, Any]] = []
    for number, text in enumerate(results):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}}
        later.append(
            {"id": f"a{number}", "role": "AI", "content": f"step {number}", "metadata": {"tool_calls": [call]}}
        )
        later.append({"id": f"t{number}", "role": "TOOL", "content": text, "metadata": {"call_id": f"c{number}"}})
    return read_request(request("look it up", later=later, run_metadata={"layout": "agent"}))


def content_of(results: list[str], measure: Measure, tools: int = 1) -> dict[str, Any]:
    """The content of an answer before it is closed."""
    manifest = {"blocks": [{"tag": "OPENING", "index": 0}], "prefix": {"messages": 1}}
    prefix = RunPrefix(OPENING, manifest, [definition(f"t{number}") for number in range(tools)], [], [])
    return prefix.continued(a_request(results), measure)


def outcome(content: dict[str, Any], measure: Measure, limit: int, meta: Meta | None) -> dict[str, Any] | RequestError:
    """The content of the answer, or the error that is answered."""
    try:
        return close(content, measure, limit, meta)
    except RequestError as error:
        return error


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 400).map(words_of), max_size=5),
    st.integers(1, 2_500),
    FORMS,
    st.booleans(),
    st.integers(0, 2),
)
def test_it_fits_or_is_refused(results: list[str], limit: int, form: str, says: bool, tools: int) -> None:
    """Never more than the limit, by a count of its own; what was said and called stays, the newest results too."""
    measure = Measure(FakeCounter(), form)
    content = content_of(results, measure, tools)
    before = compact(content)
    meta = Meta(limit) if says else None
    closed = outcome(content, measure, limit, meta)
    assert compact(content) == before
    if isinstance(closed, RequestError):
        assert closed.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert str(limit) in closed.message
        return
    messages, manifest = closed["messages"], closed["context"]
    assert faults(messages) == []
    used = measure.messages(messages) + measure.tools(closed["tools"])
    assert manifest["tokens"] == {
        "used": used,
        "limit": limit,
        "tools": measure.tools(closed["tools"]),
        "exact": form == "openai",
    }
    assert used <= limit
    assert (messages[-1]["content"].startswith("[CONTEXT_META]\n") and messages[-1]["role"] == "system") is says
    said = messages[:-1] if says else messages
    changed = [place for place, message in enumerate(said) if message != content["messages"][place]]
    assert all(said[place]["role"] == "tool" for place in changed)
    run = next((block for block in manifest["blocks"] if block["tag"] == "RUN"), None)
    if run:
        shown = said[run["index"] :]
        assert run["truncated"] == len(changed)
        assert run["bytes"] == len(json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode())
        assert run["tokens"] == sum(map(measure.message, shown))
    if says:
        assert manifest["blocks"][-1]["index"] == len(messages) - 1
        assert f"messages: {len(messages)}\n" in messages[-1]["content"]
    assert compact(close(content, measure, limit, meta)) == compact(closed)


@pytest.mark.parametrize("form", ["openai", "anthropic", "gemini"])
def test_to_the_last_token(form: str) -> None:
    """What takes all that there is, is sent as it is; with a token less, a result is left out; then it is refused."""
    measure = Measure(FakeCounter(), form)
    content = content_of([words_of(100), words_of(100)], measure)
    enough = measure.messages(content["messages"]) + measure.tools(content["tools"])
    assert close(content, measure, enough, None)["messages"] == content["messages"]
    tight = close(content, measure, enough - 1, None)["messages"]
    assert tight[3]["content"].startswith("(left out: a result of 499 characters, for which there was no room in the")
    assert tight[5] == content["messages"][5]
    with pytest.raises(RequestError) as refused:
        close(content, measure, 60, None)
    assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_room_for_what_is_said_of_it() -> None:
    """The block at the end has its room before anything is counted, so that it never brings the list over the limit."""
    measure = Measure(FakeCounter())
    content = content_of([words_of(300)], measure, tools=0)
    taken = measure.messages(content["messages"])
    assert "left out" not in str(close(content, measure, taken + MOST_TOKENS, Meta(taken + MOST_TOKENS)))
    assert "left out" in str(close(content, measure, taken + MOST_TOKENS - 1, Meta(taken + MOST_TOKENS - 1)))


def test_a_list_without_a_run() -> None:
    """There is nothing to shorten: it fits or is refused, and says by how much."""
    measure = Measure(FakeCounter())
    content = content_of([], measure, tools=0)
    taken = measure.messages(OPENING)
    assert close(content, measure, taken, None)["messages"] == OPENING
    with pytest.raises(RequestError, match=f"take {taken} tokens, at most {taken - 1} are allowed"):
        close(content, measure, taken - 1, None)
