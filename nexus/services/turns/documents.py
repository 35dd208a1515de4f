"""Turns as stored documents: how they begin, go on and are closed. Pure.

Besides the fields of `nexus.core.turns.Turn`, a document has the work that is due on it:

| field | meaning |
|---|---|
| `work`, `due_at` | `close` (see whether it is over), `summarise` (by a model), or None; and from when on |
| `begun_at` | when its first context was asked for |
| `heard_at` | when something of its run was last recorded |
| `rows` | how many rows its summaries stand for |
| `attempts` | how often a model gave an unusable reply |
| `delays` | how often the model could not be asked |
| `overtaken` | a later turn of the session began before this one was over, and nothing of it was recorded since |
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from nexus.core.models import utc_now
from nexus.core.ports import Row
from nexus.core.turns import (
    CLOSE,
    OVER,
    SUMMARISE,
    Summaries,
    ThinkingPhase,
    ThinkingRound,
    ToolOutcome,
    Turn,
    TurnStart,
    TurnStatus,
)
from nexus.core.wire import is_deeper
from nexus.services.history.rows import storable
from nexus.services.history.run_facts import RunMessage, TurnFacts
from nexus.services.text.content import compact_json
from nexus.services.turns.rule_summary import summarise_by_rules, summarise_input

# How soon a turn is looked at that may have gone on unnoticed.
LOOKED_AFTER: Final = timedelta(seconds=30)
# The first pause before looking again for a result that is recorded after the answer.
_RESULT_AFTER: Final = timedelta(seconds=1)
# Changes to a turn that is not over when another begins: it counts as completed, until more of it is recorded.
OVERTAKEN: Final[Mapping[str, Any]] = {"status": TurnStatus.COMPLETED.value, "overtaken": True}
# Arguments and results in a document; the rows have them whole.
_MOST_CHARS: Final = 4_000
_MOST_CHARS_A_TURN: Final = 1 << 20
_FEWEST_CHARS: Final = 40
_DEEPEST: Final = 50


def begun(start: TurnStart, latest: Row | None, goal: str, now: datetime) -> Row:
    """The document of a turn that follows `latest`, with a summary by rules of its input."""
    number = 1 + (latest["turn_number"] if latest else 0)
    milliseconds = int(start.timestamp.timestamp() * 1_000)
    turn = Turn(
        id=f"turn_{number}_{milliseconds}",
        turn_number=number,
        owner_key=start.owner_key,
        session_id=start.session_id,
        run_id=start.run_id,
        timestamp=start.timestamp,
        status=TurnStatus.THINKING if start.thinking else TurnStatus.PENDING,
        task_context=goal,
        workspace_context=start.workspace_context,
        messages=(start.input_id,) if start.input_id else (),
        thinking_phase=_phase(start.rounds),
        summaries=_first_summaries(start),
    )
    return {
        **turn.model_dump(mode="python"),
        "status": turn.status.value,
        "work": CLOSE,
        "due_at": now + LOOKED_AFTER,
        "begun_at": now,
        "heard_at": now,
        "rows": 0,
        "attempts": 0,
        "overtaken": False,
    }


def _first_summaries(start: TurnStart) -> Summaries:
    """By rules, from the input and the rounds of thought that came along with it."""
    if not start.rounds:
        return summarise_input(start.input)
    return summarise_by_rules(
        TurnFacts(rounds=start.rounds, messages=(RunMessage(start.input_id, "user", start.input),))
    )


def taken_over(start: TurnStart, kept: Row) -> dict[str, Any]:
    """The changes that a later request of the run makes in its turn: a goal, surroundings, further rounds."""
    changes: dict[str, Any] = {}
    if start.task_context and start.task_context != kept.get("task_context"):
        changes["task_context"] = start.task_context
    if start.workspace_context and not kept.get("workspace_context"):
        changes["workspace_context"] = start.workspace_context
    phase = _phase(start.rounds)
    if phase and len(phase.rounds) > _rounds_in(kept):
        changes["thinking_phase"] = phase.model_dump()
    if start.thinking and is_going_on(kept):
        changes["status"] = TurnStatus.THINKING.value
    return changes


def looked_after(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Further changes where `close` is not due: a turn that goes on because of these changes is looked at again."""
    return {"work": CLOSE, "due_at": utc_now() + LOOKED_AFTER} if "status" in changes else {}


def touched(row: Row, now: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
    """The changes to a turn when this row of its run is recorded.

    Returns:
        Changes to make in any case, and those to make only where `close` is not due.
    """
    metadata = row["metadata"]
    if row["role"] == "HUMAN":
        return {"heard_at": now}, {}
    if row["role"] == "TOOL":
        status = TurnStatus.ACTING
    elif metadata.get("phase") == "thinking":
        status = TurnStatus.THINKING
    elif metadata.get("has_tool_calls"):
        status = TurnStatus.EXECUTING
    else:
        # This may be all.
        return {"status": TurnStatus.ACTING.value, "heard_at": now, "work": CLOSE, "due_at": now}, {}
    changes = {"status": status.value, "overtaken": False, "heard_at": now}
    return changes, {"work": CLOSE, "due_at": now + _RESULT_AFTER}


def overtaken(document: Row, due_by: datetime) -> Row:
    """The document of a turn that is inserted together with a later one of its session."""
    return {**document, **OVERTAKEN, "due_at": min(document["due_at"], due_by)}


def is_overtaken(document: Row, latest: Row) -> bool:
    """Whether the latest turn of its session began after the last row of this one was recorded, or at that moment."""
    begun_at = latest.get("begun_at")
    is_later = latest["turn_number"] > document["turn_number"]
    return is_later and isinstance(begun_at, datetime) and begun_at >= document["heard_at"]


def looked_at(
    document: Row, facts: TurnFacts, rows: int, now: datetime, *, idle: timedelta, settled: timedelta
) -> dict[str, Any]:
    """The changes to a turn after a look at its rows, whether it is over or not.

    After a silence of `idle` a turn is over without an answer; after one of `settled` no row of it is on its way any
    more. `rows` is how many rows there are.
    """
    silence = now - document["heard_at"]
    if facts.finished or silence >= idle or rows < (document.get("rows") or 0):
        return _closed(document, facts, rows, document["heard_at"] + settled)
    if document.get("overtaken") and silence >= settled:
        # More may come, and then it is closed again: a model is asked only when that has become unlikely.
        return _closed(document, facts, rows, document["heard_at"] + idle)
    # With an answer known, the result of a tool is missing: it may be recorded at any moment, or never.
    pause = max(silence, _RESULT_AFTER) if facts.answer else LOOKED_AFTER
    return {"due_at": now + min(pause, LOOKED_AFTER, idle - silence)}


def is_put_off(changes: Mapping[str, Any]) -> bool:
    """Whether the changes from `looked_at` leave the turn going on."""
    return changes.keys() == {"due_at"}


def goal_of(document: Row | None) -> str:
    """The goal that a turn carries; `""` for none, or none that can be read."""
    return _text(document.get("task_context")) if document else ""


def is_going_on(document: Row | None) -> bool:
    """Whether there is a turn and it is not over."""
    return document is not None and document.get("status") not in OVER


def facts_of(document: Row) -> dict[str, Any]:
    """The arguments of `read_facts` that come from the document."""
    rounds = _phase_of(document)
    return {
        "goal": goal_of(document),
        "workspace": _text(document.get("workspace_context")),
        "rounds": rounds.rounds if rounds else (),
    }


def summarised(summaries: Summaries, insights: Sequence[str]) -> dict[str, Any]:
    """The changes when a model has summarised the turn."""
    return {"summaries": summaries.model_dump(), "insights": list(insights), "work": None, "due_at": None}


def given_up(document: Row) -> dict[str, Any]:
    """The changes to a turn whose result the store refuses: nothing is due on it any more."""
    over = {"status": TurnStatus.COMPLETED.value} if is_going_on(document) else {}
    return {**over, "work": None, "due_at": None}


def is_numbered(turn: Row) -> bool:
    """Whether the turn has a number that another can follow."""
    number = turn.get("turn_number")
    return isinstance(number, int | float) and not isinstance(number, bool)


def is_placed(turn: Row) -> bool:
    """Whether the turn says which one it is, of which run, session and owner; any other cannot be changed."""
    return is_numbered(turn) and all(isinstance(turn.get(name), str) for name in ("owner_key", "session_id", "run_id"))


def read_turn(document: Row) -> Turn | None:
    """The stored turn; None where the document is malformed."""
    try:
        return Turn.model_validate(document)
    except ValidationError:
        return None


def _closed(document: Row, facts: TurnFacts, rows: int, summarise_at: datetime) -> dict[str, Any]:
    known = document.get("rows") or 0
    if rows < known or not facts.messages:
        # Rows were removed or never came: the summaries that are there stay.
        over = TurnStatus.COMPLETED if known or document.get("overtaken") else TurnStatus.FAILED
        return {"status": over.value, "work": None, "due_at": None}
    phase = _phase_of(document)
    thought = facts.usage.thinking or (phase.tokens_used if phase else 0)
    changes = {
        "status": (TurnStatus.COMPLETED if _is_answered(document, facts) else TurnStatus.FAILED).value,
        "messages": list(facts.message_ids),
        "tool_calls": [outcome.model_dump() for outcome in _shortened(facts.outcomes)],
        "token_usage": {"thinking": thought, "action": facts.usage.action, "total": thought + facts.usage.action},
        "rows": rows,
    }
    if known == rows and _source(document) == "model":
        # Nothing new was recorded since the last look.
        return {**changes, "work": None, "due_at": None}
    if not _says_all(document, facts):
        changes |= {"summaries": summarise_by_rules(facts).model_dump(), "insights": []}
    return {
        **changes,
        "work": SUMMARISE,
        "due_at": summarise_at,
        "attempts": 0,
        "delays": 0,
    }


def _is_answered(document: Row, facts: TurnFacts) -> bool:
    said = any(item.speaker == "assistant" and item.text for item in facts.messages)
    return facts.finished or said or bool(document.get("overtaken"))


def _says_all(document: Row, facts: TurnFacts) -> bool:
    """Whether the first summary, which is of the input alone, still covers the whole turn."""
    asked_alone = len(facts.messages) == 1 and facts.messages[0].speaker == "user" and not facts.rounds
    return asked_alone and not document.get("rows") and _source(document) == "fallback"


def _source(document: Row) -> Any:
    summaries = document.get("summaries")
    return summaries.get("source") if isinstance(summaries, Mapping) else None


def _shortened(outcomes: Sequence[ToolOutcome]) -> list[ToolOutcome]:
    """The outcomes, with long arguments and results shortened so that a document can hold them all."""
    most = max(min(_MOST_CHARS, _MOST_CHARS_A_TURN // (2 * max(len(outcomes), 1))), _FEWEST_CHARS)
    return [
        outcome.model_copy(
            update={"arguments": _shorten(outcome.arguments, most), "result": _shorten(outcome.result, most)}
        )
        for outcome in outcomes
    ]


def _shorten(value: Any, most: int) -> Any:
    """The value as a store keeps it, or both ends of its text and how much is between them."""
    text = value if isinstance(value, str) else compact_json(value)
    if len(text) <= most:
        return storable(text if isinstance(value, dict | list) and is_deeper(value, _DEEPEST) else value)
    half = most // 2
    return storable(f"{text[:half]} … ({len(text) - 2 * half} characters more) … {text[-half:]}")


def _phase(rounds: Sequence[ThinkingRound]) -> ThinkingPhase | None:
    return ThinkingPhase(rounds=tuple(rounds), tokens_used=sum(item.tokens_used for item in rounds)) if rounds else None


def _phase_of(document: Row) -> ThinkingPhase | None:
    phase = document.get("thinking_phase")
    if phase is None:
        return None
    try:
        return ThinkingPhase.model_validate(phase)
    except ValidationError:
        return None


def _rounds_in(document: Row) -> int:
    phase = _phase_of(document)
    return len(phase.rounds) if phase else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
