"""The history of a scenario, and the verdict on the promises (contract §1.4, §1.5).

A history is what an orchestrator saw, one event a line, each with `at` on one monotonic clock:

    invoke   a request was sent for the first time: id, owner, run, mark, deadline_ms
    ok       an answer with a context was heard: request_id, answer_id, sha256, owner, run, outcome, degraded, marks,
             owners; `marks` are those in [THIS_MOMENT], `owners` those of all marks anywhere in the answer
    fail     the same of an answer that is an error; `outcome` is its code
    info     anything else: `what` says what. `abandoned` with an id: the requester went away by itself

The mark of a request is a text in its input that nothing else has, and names its owner.
"""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

Event = Mapping[str, Any]

_EXPIRED: Final = "DEADLINE_EXCEEDED"


class History:
    """Events as JSON lines in a file. One monotonic clock for all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")

    def note(self, kind: str, **fields: Any) -> float:
        """Write an event down. Returns when it happened."""
        at = time.monotonic()
        self._file.write(json.dumps({"at": round(at, 6), "type": kind, **fields}) + "\n")
        return at

    def happened(self, what: str, **fields: Any) -> float:
        """Write down an action on the system. Returns its moment."""
        return self.note("info", what=what, wall=datetime.now(UTC).isoformat(), **fields)

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()

    def events(self) -> list[dict[str, Any]]:
        """Every event until now."""
        if not self._file.closed:
            self._file.flush()
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Requests by outcome, named by their ids, so that a history can be searched for them.

    Attributes:
        sent: requests, each counted once however often it was sent.
        answered_once: requests with exactly one effective answer, and that a right one.
        lost: nobody answered, and the requester waited to the end.
        duplicated: two answers that differ in their id or bytes.
        wrong: answers to another request, owner or run, to nothing that was asked, or with another's text.
        late: the first answer came after the deadline and what is allowed beyond it. An answer that says itself that
            the deadline has passed is `expired` and not late.
        reannounced: how often an answer was heard again, the same to the byte.
        outcomes: of the first answers.
        latencies_ms: of the first answers, by request.
    """

    sent: int = 0
    answered_once: int = 0
    lost: tuple[str, ...] = ()
    duplicated: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    reannounced: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    latencies_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Nothing lost, duplicated, wrong or late."""
        return not (self.lost or self.duplicated or self.wrong or self.late)

    @property
    def worst_ms(self) -> int:
        """The longest anybody waited for a first answer."""
        return round(max(self.latencies_ms.values(), default=0))

    def line(self) -> str:
        """The figures that every scenario prints."""
        lists = ("lost", "duplicated", "wrong", "late")
        counts = " ".join(f"{name}={len(getattr(self, name))}" for name in lists)
        return f"sent={self.sent} answered_once={self.answered_once} {counts}"


def judge(history: Iterable[Event], *, late_after_ms: float = 0) -> Verdict:
    """Judge a history.

    Args:
        history: events in any order.
        late_after_ms: what is allowed beyond each request's own deadline.
    """
    asked: dict[str, Event] = {}
    answers: defaultdict[str, list[Event]] = defaultdict(list)
    abandoned: set[str] = set()
    for event in sorted(history, key=lambda event: event["at"]):
        match event["type"]:
            case "invoke":
                asked[event["id"]] = event
            case "ok" | "fail":
                answers[event["request_id"]].append(event)
            case _ if event.get("what") == "abandoned":
                abandoned.add(event["id"])
    known = {request_id: said for request_id, said in answers.items() if request_id in asked}
    first = {request_id: said[0] for request_id, said in known.items()}
    wrong = {request_id for request_id in answers if request_id not in asked}
    wrong |= {name for name, said in known.items() if any(not _right(asked[name], answer) for answer in said)}
    effective = {name: {(answer["answer_id"], answer["sha256"]) for answer in said} for name, said in known.items()}
    waited = {name: (answer["at"] - asked[name]["at"]) * 1_000 for name, answer in first.items()}
    return Verdict(
        sent=len(asked),
        answered_once=sum(len(said) == 1 and name not in wrong for name, said in effective.items()),
        lost=tuple(name for name in asked if name not in answers and name not in abandoned),
        duplicated=tuple(name for name, said in effective.items() if len(said) > 1),
        wrong=tuple(sorted(wrong)),
        late=tuple(
            name
            for name, waited_ms in waited.items()
            if waited_ms > asked[name]["deadline_ms"] + late_after_ms and first[name]["outcome"] != _EXPIRED
        ),
        reannounced=sum(len(said) - len(effective[name]) for name, said in known.items()),
        outcomes=Counter(answer["outcome"] for answer in first.values()),
        latencies_ms=waited,
    )


def _right(asked: Event, answer: Event) -> bool:
    """Whether an answer is to this request and shows no other owner's text."""
    same = answer["owner"] == asked["owner"] and answer["run"] == asked["run"]
    own = set(answer["owners"]) <= {asked["owner"]}
    shown = answer["type"] == "fail" or set(answer["marks"]) == {asked["mark"]}
    return same and own and shown


def moments(history: Iterable[Event], what: str) -> list[float]:
    """When something happened."""
    return sorted(event["at"] for event in history if event["type"] == "info" and event.get("what") == what)


def undegraded_between(history: Sequence[Event], begin: float, end: float) -> list[str]:
    """Requests sent and answered between two moments whose answer has a context and names no missing part."""
    sent = {event["id"]: event["at"] for event in history if event["type"] == "invoke"}
    return [
        event["request_id"]
        for event in history
        if event["type"] == "ok"
        and begin <= sent.get(event["request_id"], begin - 1)
        and event["at"] <= end
        and not event["degraded"]
    ]


def first_success_after(history: Iterable[Event], moment: float) -> float:
    """Seconds from `moment` to the next answer with a context; infinite when there is none."""
    return min(
        (event["at"] - moment for event in history if event["type"] == "ok" and event["at"] >= moment), default=1e9
    )
