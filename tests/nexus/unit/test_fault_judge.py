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


def test_a_clean_history_is_clean() -> None:
    """Three requests, two contexts and an error: each answered once."""
    verdict = judge(_clean())
    assert verdict.clean
    assert verdict.line() == "sent=3 answered_once=3 lost=0 duplicated=0 wrong=0 late=0"
    assert verdict.worst_ms == 500
    assert verdict.outcomes == {"success": 2, "OVERLOADED": 1}


def test_nothing_at_all_is_clean() -> None:
    """Nothing sent, nothing wrong."""
    assert judge([]).clean
    assert judge([]).worst_ms == 0


def test_a_loss_is_found() -> None:
    """A request without any answer."""
    verdict = judge([event for event in _clean() if event.get("request_id") != "a"])
    assert verdict.lost == ("a",)
    assert verdict.answered_once == 2
    assert not verdict.clean


def test_who_went_away_has_lost_nothing() -> None:
    """A request whose requester gave up needs no answer; one that comes is judged all the same."""
    gone = {"at": 1.3, "type": "info", "what": "abandoned", "id": "a"}
    history = [*(event for event in _clean() if event.get("request_id") != "a"), gone]
    assert judge(history).clean
    assert judge([*history, _ok("a", 1.6, owners=["somebody"])]).wrong == ("a",)


@pytest.mark.parametrize("changes", [{"answer_id": "another"}, {"sha256": "other bytes"}])
def test_a_duplicate_is_found(changes: dict[str, Any]) -> None:
    """Two answers that are not the same."""
    verdict = judge([*_clean(), _ok("a", 3, **changes)])
    assert verdict.duplicated == ("a",)
    assert verdict.answered_once == 2


def test_an_error_after_a_context_is_a_duplicate() -> None:
    """A second answer need not be a context to be one."""
    assert judge([*_clean(), _fail("a", 3, answer_id="another")]).duplicated == ("a",)


def test_the_same_bytes_again_are_no_duplicate() -> None:
    """An answer that is announced again is counted as that, and is neither a duplicate nor late."""
    verdict = judge([*_clean(), _ok("a", 30), _ok("a", 40)])
    assert verdict.clean
    assert verdict.reannounced == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": "somebody"},
        {"run": "another"},
        {"marks": ["mark of b"]},
        {"marks": []},
        {"marks": ["mark of a", "mark of b"]},
        {"owners": ["owner of a", "owner of b"]},
    ],
)
def test_a_wrong_answer_is_found(changes: dict[str, Any]) -> None:
    """Another's owner, run, input, or any text of another."""
    history = [event for event in _clean() if event.get("request_id") != "a"]
    verdict = judge([*history, _ok("a", 1.5, **changes)])
    assert verdict.wrong == ("a",)
    assert verdict.answered_once == 2
    assert not verdict.clean


def test_an_error_that_shows_anothers_text_is_wrong() -> None:
    """Errors are looked through as well."""
    assert judge([_invoke("a", 1), _fail("a", 2, owners=["owner of b"])]).wrong == ("a",)


def test_an_answer_to_what_nobody_asked_is_found() -> None:
    """Even where all requests have their answers."""
    verdict = judge([*_clean(), _ok("d", 3)])
    assert verdict.wrong == ("d",)
    assert not verdict.clean


def test_a_late_answer_is_found() -> None:
    """After the deadline, and what is allowed beyond it."""
    history = [_invoke("a", 1, deadline_ms=1_000), _ok("a", 2.5)]
    assert judge(history).late == ("a",)
    assert judge(history, late_after_ms=499).late == ("a",)
    assert judge(history, late_after_ms=501).late == ()


def test_who_says_that_it_is_too_late_is_not_late() -> None:
    """DEADLINE_EXCEEDED can only come after the deadline."""
    verdict = judge([_invoke("a", 1), _fail("a", 6.5, "DEADLINE_EXCEEDED")])
    assert verdict.clean
    assert verdict.outcomes == {"DEADLINE_EXCEEDED": 1}


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
