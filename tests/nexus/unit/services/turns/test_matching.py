"""Which result answers which call, in the rows of one run (CONTRACT §5 validity, §6)."""

from hypothesis import given
from hypothesis import strategies as st

from nexus.services.history.run_facts import Call, Result, match_results


def call(call_id: str, name: str = "f") -> Call:
    """A call."""
    return Call(call_id, name, {})


def came(call_id: str, content: str, tool: str = "f") -> Result:
    """A result."""
    return Result(call_id, tool, None, content)


def matched(*steps: tuple[Call, ...] | Result) -> tuple[list[tuple[str, str | None]], bool]:
    """Names and results, and whether every call has one."""
    outcomes, complete = match_results(steps)
    return [(item.name, item.result) for item in outcomes], complete


def test_by_id() -> None:
    """Whatever the order, and whatever tool the result names."""
    calls = (call("a"), call("b", "g"))
    assert matched(calls, came("b", "of b"), came("a", "of a", "g")) == ([("f", "of a"), ("g", "of b")], True)


def test_without_an_id() -> None:
    """The oldest open call of the tool, else the oldest open one."""
    calls = (call("", "f"), call("", "g"), call("", "g"))
    assert matched(calls, came("", "1", "g"), came("", "2", "g"), came("", "3", "h")) == (
        [("f", "3"), ("g", "1"), ("g", "2")],
        True,
    )


def test_ids_come_first() -> None:
    """A result that names no call takes none from one that does."""
    assert matched((call("a"), call("b")), came("", "other"), came("a", "of a")) == (
        [("f", "of a"), ("f", "other")],
        True,
    )


def test_an_id_that_is_used_again() -> None:
    """The newest message that uses it is answered; an older one stays open."""
    assert matched((call("a"),), (call("a", "g"),), came("a", "x")) == ([("f", None), ("g", "x")], False)
    assert matched((call("a"),), came("a", "x"), (call("a", "g"),), came("a", "y")) == ([("f", "x"), ("g", "y")], True)
    assert matched((call("a"), call("a", "g")), came("a", "x"), came("a", "y")) == ([("f", "x"), ("g", "y")], True)


def test_a_result_before_its_call() -> None:
    """By a clock that is ahead: it is the call's all the same."""
    assert matched(came("a", "x"), (call("a"),)) == ([("f", "x")], True)
    assert matched(came("", "x"), (call(""),)) == ([("f", "x")], True)


def test_a_second_result_of_a_call() -> None:
    """Says nothing new, and answers no older call of that id."""
    assert matched((call("a"),), came("a", "x"), came("a", "y")) == ([("f", "x")], True)
    assert matched((call("a"),), (call("a", "g"),), came("a", "x"), came("a", "y")) == (
        [("f", None), ("g", "x")],
        False,
    )


def test_a_result_that_nobody_asked_for() -> None:
    """Stands by itself, where it came, and leaves open calls open."""
    steps = (came("", "early"), (call("a"),), came("z", "other", ""), (call("b", "g"),), came("b", "of b"))
    assert matched(*steps) == ([("f", "early"), ("unknown", "other"), ("g", "of b")], True)
    assert matched((call("a"),), came("z", "other", "h")) == ([("f", None), ("h", "other")], False)


def test_nothing() -> None:
    """No call is unanswered where none was made."""
    assert matched() == ([], True)


_ids = st.sampled_from(["", "a", "b", "c"])
_steps = st.lists(
    st.lists(st.builds(call, _ids, st.sampled_from("fg")), max_size=3).map(tuple)
    | st.builds(came, _ids, st.uuids().map(str), st.sampled_from(["f", "g", "h", ""])),
    max_size=12,
)


@given(_steps)
def test_no_result_is_told_twice_and_no_call_is_lost(steps: list[tuple[Call, ...] | Result]) -> None:
    """Each call has its place; a result is there at most once, and always if it names no call."""
    outcomes, complete = match_results(steps)
    calls = [item for step in steps if not isinstance(step, Result) for item in step]
    results = [step for step in steps if isinstance(step, Result)]
    told = [item.result for item in outcomes if item.result is not None]
    assert [item.name for item in outcomes if item.arguments is not None] == [item.name for item in calls]
    assert len(told) == len(set(told))
    assert {item.content for item in results if not item.call_id} <= set(told)
    assert complete == all(item.result is not None for item in outcomes)
