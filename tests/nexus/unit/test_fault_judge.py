"""The judge of the fault suite finds what it is there to find: each fault planted into a history that was clean."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nexus.faults.judge import first_success_after, judge, moments, undegraded_between

History = list[dict[str, Any]]


def _invoke(name: str, at: float, **changes: Any) -> dict[str, Any]:
    common = {"id": name, "owner": f"owner of {name}", "run": f"run of {name}", "mark": f"mark of {name}"}
    return {"at": at, "type": "invoke", "deadline_ms": 5_000, **common, **changes}


def _ok(name: str, at: float, **changes: Any) -> dict[str, Any]:
    identity = {"request_id": name, "answer_id": f"answer to {name}", "sha256": f"bytes for {name}"}
    content = {"owner": f"owner of {name}", "run": f"run of {name}", "marks": [f"mark of {name}"]}
    rest = {"owners": [f"owner of {name}"], "outcome": "success", "degraded": []}
    return {"at": at, "type": "ok", **identity, **content, **rest, **changes}


def _fail(name: str, at: float, outcome: str = "OVERLOADED", **changes: Any) -> dict[str, Any]:
    return _ok(name, at, **{"type": "fail", "outcome": outcome, "marks": [], "owners": [], **changes})


def _clean() -> History:
    return [_invoke("a", 1), _invoke("b", 1.1), _ok("b", 1.2), _ok("a", 1.5), _invoke("c", 2), _fail("c", 2.1)]


def _without_a() -> History:
    return [event for event in _clean() if event.get("request_id") != "a"]


def test_a_clean_history_is_clean() -> None:
    """Three requests, two contexts and an error: each answered once. Nothing sent, nothing wrong."""
    verdict = judge(_clean())
    assert verdict.clean
    assert verdict.line() == "sent=3 answered_once=3 lost=0 duplicated=0 wrong=0 late=0"
    assert verdict.worst_ms == 500
    assert verdict.outcomes == {"success": 2, "OVERLOADED": 1}
    assert (judge([]).clean, judge([]).worst_ms) == (True, 0)


_WRONG: tuple[dict[str, Any], ...] = (
    {"owner": "somebody"},
    {"run": "another"},
    {"marks": ["mark of b"]},
    {"marks": []},
    {"marks": ["mark of a", "mark of b"]},
    {"owners": ["owner of a", "owner of b"]},
)
_GONE = {"at": 1.3, "type": "info", "what": "abandoned", "id": "a"}


@pytest.mark.parametrize(
    ("history", "faults", "answered_once"),
    [
        pytest.param(_without_a(), {"lost"}, 2, id="no answer at all"),
        pytest.param([*_without_a(), _GONE], set(), 2, id="a requester that gave up needs none"),
        pytest.param([*_without_a(), _GONE, _ok("a", 1.6, owners=["x"])], {"wrong"}, 2, id="and gets no wrong one"),
        pytest.param([*_clean(), _ok("a", 3, answer_id="another")], {"duplicated"}, 2, id="two answers"),
        pytest.param([*_clean(), _ok("a", 3, sha256="other bytes")], {"duplicated"}, 2, id="the same with other bytes"),
        pytest.param([*_clean(), _fail("a", 3, answer_id="another")], {"duplicated"}, 2, id="an error after a context"),
        *(pytest.param([*_without_a(), _ok("a", 1.5, **changes)], {"wrong"}, 2, id=str(changes)) for changes in _WRONG),
        pytest.param(
            [_invoke("a", 1), _fail("a", 2, owners=["owner of b"])], {"wrong"}, 0, id="an error with another's"
        ),
        pytest.param([_invoke("a", 1, deadline_ms=1_000), _ok("a", 2.5)], {"late"}, 1, id="after the deadline"),
        pytest.param([_invoke("a", 1), _fail("a", 6.5, "DEADLINE_EXCEEDED")], set(), 1, id="an error of the deadline"),
    ],
)
def test_faults_are_found(history: History, faults: set[str], answered_once: int) -> None:
    """Each is counted for the request that it befell, and no other is found."""
    verdict = judge(history)
    found = {name for name in ("lost", "duplicated", "wrong", "late") if getattr(verdict, name)}
    assert (found, verdict.answered_once, verdict.clean) == (faults, answered_once, not faults)
    assert {name for fault in found for name in getattr(verdict, fault)} <= {"a"}


def test_the_same_bytes_again_are_no_duplicate() -> None:
    """An answer that is announced again is counted as that, and is neither a duplicate nor late."""
    verdict = judge([*_clean(), _ok("a", 30), _ok("a", 40)])
    assert (verdict.clean, verdict.reannounced) == (True, 2)


def test_an_answer_without_a_request_is_found() -> None:
    """Even where all requests have their answers."""
    assert judge([*_clean(), _ok("d", 3)]).wrong == ("d",)


def test_how_late_an_answer_may_be() -> None:
    """As late as is allowed beyond its deadline."""
    history = [_invoke("a", 1, deadline_ms=1_000), _ok("a", 2.5)]
    assert (judge(history, late_after_ms=499).late, judge(history, late_after_ms=501).late) == (("a",), ())


@given(st.permutations(_clean()))
def test_the_order_of_the_lines_does_not_matter(history: History) -> None:
    """Events are judged by their times."""
    assert judge(history) == judge(_clean())


def test_silence_about_an_outage_is_found() -> None:
    """A whole context sent and answered within an outage; not one that began before or ended after it."""
    history = [
        *(_invoke("a", 1), _ok("a", 2)),
        *(_invoke("b", 2), _ok("b", 3)),
        *(_invoke("c", 2), _ok("c", 3, degraded=["history"])),
        *(_invoke("d", 3.5), _ok("d", 5)),
    ]
    assert undegraded_between(history, 1.5, 4) == ["b"]


def test_moments_and_the_next_success() -> None:
    """When something was done, and how long it took until a context came."""
    history = [*_clean(), {"at": 1.3, "type": "info", "what": "redis_answers"}]
    assert moments(history, "redis_answers") == [1.3]
    assert first_success_after(history, 1.3) == pytest.approx(0.2)
    assert first_success_after(history, 5) > 1e6
