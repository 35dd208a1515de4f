"""Turns as stored documents: how they begin, change and are closed, and the text that contexts show of them. Pure.

Besides the fields of `nexus.core.turns.Turn`, a document has the work that is due on it:

| field | meaning |
|---|---|
| `work`, `due_at` | `close` (see whether it is over), `summarise`, `extract` (by a model), or None; and from when on |
| `begun_at` | when its first context was asked for |
| `heard_at` | when something of its run was last recorded |
| `rows` | how many rows its summaries stand for |
| `rows_gone` | retention has removed them |
| `attempts` | how often a model gave an unusable reply |
| `calls` | how many replies the model has given for its summary, over all attempts |
| `extraction_calls` | likewise for the facts in what the person said |
| `extracted` | ids of the messages in which they were looked for |
| `delays` | how often the model could not be asked |
| `traceparent` | the span of its first request, where there was one |
| `overtaken` | a later turn of the session began before this one was over, and nothing of it was recorded since |

- Every text is put on one line, so that no other line can begin a turn.
- Insights are shown at `brief` only as far as the turn then takes no more than a third of what it takes at
  `detailed`.
- A text of a model about a turn without an answer begins with `(unanswered)`; those by rules say so in their words.
- The texts of a `Structured` are escaped one by one before they are JSON, in which no control character is left that
  JSON would write as a letter.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from nexus.core.models import to_milliseconds, utc_now
from nexus.core.ports import Row
from nexus.core.turns import (
    CLOSE,
    OVER,
    SUMMARISE,
    Level,
    Source,
    Structured,
    Summaries,
    ThinkingPhase,
    ThinkingRound,
    ToolOutcome,
    Turn,
    TurnStart,
    TurnStatus,
)
from nexus.core.wire import is_deeper
from nexus.services.due_work import NOTHING_DUE, count_in
from nexus.services.history.messages import HistoryMessage, messages_of
from nexus.services.history.progress import PENDING, is_progress
from nexus.services.history.rows import storable, text_or_empty
from nexus.services.history.run_facts import TurnFacts, read_facts
from nexus.services.text.content import compact_json
from nexus.services.text.escape import canonical, escape, escape_within_line, one_line
from nexus.services.turns.rule_summary import summarise_by_rules, summarise_input

# How soon a turn is looked at that may have gone on unnoticed.
_LOOK_AFTER: Final = timedelta(seconds=30)
# The first pause before looking again for a result that is recorded after the answer.
_RESULT_AFTER: Final = timedelta(seconds=1)
# Changes to a turn that is not over when another begins: it counts as unanswered, until more of it is recorded.
OVERTAKEN: Final[Mapping[str, Any]] = {"status": TurnStatus.UNANSWERED.value, "overtaken": True}
# Arguments and results in a document; the rows have them whole.
_MOST_CHARS: Final = 4_000
_MOST_CHARS_A_TURN: Final = 1 << 20
_FEWEST_CHARS: Final = 40
_DEEPEST: Final = 50


def new_document(start: TurnStart, latest: Row | None, goal: str, *, begun_at: datetime, now: datetime) -> Row:
    """The document of a turn that follows `latest`, with a summary by rules of its input."""
    number = 1 + (int(latest["turn_number"]) if latest else 0)
    turn = Turn(
        id=f"turn_{number}_{int(start.timestamp.timestamp() * 1_000)}",
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
        "due_at": now + _LOOK_AFTER,
        "begun_at": begun_at,
        "heard_at": now,
        "rows": 0,
        "attempts": 0,
        "overtaken": False,
        **({"traceparent": start.traceparent} if start.traceparent else {}),
    }


def _first_summaries(start: TurnStart) -> Summaries:
    """By rules, from the input and the rounds of thought that came along with it."""
    if not start.rounds:
        return summarise_input(start.input)
    return summarise_by_rules(
        TurnFacts(rounds=start.rounds, messages=(HistoryMessage("user", start.input, start.input_id),))
    )


def changes_by_request(start: TurnStart, kept: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """The changes that a later request of the run makes in its turn: a goal, surroundings, further rounds.

    Returns:
        Changes to make in any case, and those to make only where `close` is not due.
    """
    changes: dict[str, Any] = {}
    if start.task_context and start.task_context != kept.get("task_context"):
        changes["task_context"] = start.task_context
    if start.workspace_context and not kept.get("workspace_context"):
        changes["workspace_context"] = start.workspace_context
    known = _phase_of(kept)
    phase = _phase(start.rounds)
    if phase and len(phase.rounds) > (len(known.rounds) if known else 0):
        changes["thinking_phase"] = phase.model_dump()
    if not (start.thinking and is_going_on(kept)):
        return changes, {}
    changes["status"] = TurnStatus.THINKING.value
    return changes, {"work": CLOSE, "due_at": utc_now() + _LOOK_AFTER}


def changes_by_row(row: Row, now: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
    """The changes to a turn when this row of its run is recorded, as `changes_by_request` returns them."""
    metadata = row["metadata"]
    if row["role"] == "HUMAN":
        # An input may come out of the outbox when the turn has been closed without it.
        return {"heard_at": now}, {"work": CLOSE, "due_at": now}
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


def is_overtaken(document: Row, latest: Row) -> bool:
    """Whether the latest turn of its session began after the last row of this one was recorded, or at that moment."""
    begun_at = latest.get("begun_at")
    is_later = latest["turn_number"] > document["turn_number"]
    return is_later and isinstance(begun_at, datetime) and begun_at >= document["heard_at"]


def with_progress(document: Row, rows: Sequence[Row]) -> Row:
    """The turn as heard of when a tool was last reported to be at work: its run is not silent."""
    reported = [item.moment for item in messages_of(filter(is_progress, rows)) if item.state in PENDING and item.moment]
    return {**document, "heard_at": max(document["heard_at"], *reported)} if reported else document


def changes_by_review(
    document: Row, facts: TurnFacts, rows: int, now: datetime, *, idle: timedelta, settled: timedelta
) -> dict[str, Any]:
    """The changes to a turn after a look at its rows, whether it is over or not.

    After a silence of `idle` a turn is over without an answer; after one of `settled` no row of it is on its way any
    more. `rows` is how many rows there are.
    """
    heard_at = min(document["heard_at"], now)
    silence = now - heard_at
    if facts.finished or silence >= idle or rows < count_in(document, "rows"):
        return _changes_at_end(document, facts, rows, heard_at + settled)
    if document.get("overtaken") and silence >= settled:
        # More may come, and then it is closed again: a model is asked only when that has become unlikely.
        return _changes_at_end(document, facts, rows, heard_at + idle)
    # With an answer known, the result of a tool is missing: it may be recorded at any moment, or never.
    pause = max(silence, _RESULT_AFTER) if facts.answer else _LOOK_AFTER
    return {"due_at": now + min(pause, _LOOK_AFTER, idle - silence)}


def goal_of(document: Row | None) -> str:
    """The goal that a turn carries; `""` for none, or none that can be read."""
    return text_or_empty(document.get("task_context")) if document else ""


def is_going_on(document: Row | None) -> bool:
    """Whether there is a turn and it is not over."""
    return document is not None and document.get("status") not in OVER


def facts_of(document: Row, rows: Sequence[Row]) -> TurnFacts:
    """The facts of a turn: those in the rows of its run, and those in its document."""
    phase = _phase_of(document)
    workspace, rounds = text_or_empty(document.get("workspace_context")), phase.rounds if phase else ()
    return replace(read_facts(rows), goal=goal_of(document), workspace=workspace, rounds=rounds)


def changes_by_reading(document: Row, facts: TurnFacts, rows: int) -> dict[str, Any]:
    """The summaries of an open turn as they will be when it is closed, if nothing more is recorded of it; else `{}`."""
    changes = _changes_at_end(document, facts, rows, document["heard_at"])
    return {name: changes[name] for name in ("summaries", "insights") if name in changes}


def changes_by_summary(summaries: Summaries, insights: Sequence[str]) -> dict[str, Any]:
    """The changes when a model has summarised the turn."""
    return {"summaries": summaries.model_dump(), "insights": list(insights), **NOTHING_DUE}


def changes_by_refusal(document: Row) -> dict[str, Any]:
    """The changes to a turn whose result the store refuses: nothing is due on it any more."""
    over = {"status": TurnStatus.COMPLETED.value} if is_going_on(document) else {}
    return {**over, **NOTHING_DUE}


def is_numbered(turn: Row) -> bool:
    """Whether the turn has a number that another can follow."""
    number = turn.get("turn_number")
    return isinstance(number, int | float) and not isinstance(number, bool)


def is_placed(turn: Row) -> bool:
    """Whether the turn says which one it is, of which run, session and owner; any other cannot be changed."""
    return is_numbered(turn) and all(isinstance(turn.get(name), str) for name in ("owner_key", "session_id", "run_id"))


def repaired(turn: Row) -> dict[str, Any]:
    """What others have stored in place of fields by which a change of the turn is noticed, as it should be."""
    changes: dict[str, Any] = {}
    if not isinstance(turn.get("heard_at"), datetime):
        changes["heard_at"] = to_milliseconds(utc_now())
    if not isinstance(turn.get("overtaken", False), bool):
        changes["overtaken"] = False
    return changes


def read_turn(document: Row) -> Turn | None:
    """The stored turn; None where the document is malformed."""
    try:
        return Turn.model_validate(document)
    except ValidationError:
        return None


def _changes_at_end(document: Row, facts: TurnFacts, rows: int, summarise_at: datetime) -> dict[str, Any]:
    known = count_in(document, "rows")
    if rows < known or not facts.messages or document.get("removed"):
        # Rows were removed or never came: the summaries that are there stay.
        over = TurnStatus.COMPLETED if known else TurnStatus.UNANSWERED
        return {"status": over.value, **NOTHING_DUE}
    phase = _phase_of(document)
    thought = facts.usage.thinking or (phase.tokens_used if phase else 0)
    changes = {
        "status": (TurnStatus.COMPLETED if facts.finished or facts.answer else TurnStatus.UNANSWERED).value,
        "messages": list(facts.message_ids),
        "tool_calls": [outcome.model_dump() for outcome in _shortened(facts.outcomes)],
        "token_usage": {"thinking": thought, "action": facts.usage.action, "total": thought + facts.usage.action},
        "rows": rows,
    }
    if known == rows and _source(document) == "model":
        # Nothing new was recorded since the last look.
        return {**changes, **NOTHING_DUE}
    if not _says_all(document, facts):
        changes |= {"summaries": summarise_by_rules(facts).model_dump(), "insights": []}
    return {**changes, "work": SUMMARISE, "due_at": summarise_at, "attempts": 0, "delays": 0, "given_up": ""}


def _says_all(document: Row, facts: TurnFacts) -> bool:
    """Whether the first summary, which is of the input alone, still covers the whole turn."""
    input_alone = len(facts.messages) == 1 and facts.messages[0].role == "user" and not facts.rounds
    return input_alone and not document.get("rows") and _source(document) == "fallback"


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
    try:
        return ThinkingPhase.model_validate(document.get("thinking_phase"))
    except ValidationError:
        return None


_LISTS: Final = [name for name in Structured.model_fields if name != "overview"]
_THIRD: Final = 3
_UNANSWERED: Final = "(unanswered) "
_CONTROLS: Final = re.compile(r"[\x00-\x1f]+")


@dataclass(frozen=True, slots=True)
class RememberedTurn:
    """A turn at one level of detail.

    Attributes:
        text: brief, detailed, or for `comprehensive` the structured summary as JSON; not escaped.
    """

    number: int
    id: str
    text: str
    insights: tuple[str, ...] = ()
    source: Source = "fallback"


def read_turns(rows: Sequence[Row], level: Level) -> tuple[tuple[RememberedTurn, ...], int]:
    """Stored turns at that level, the lowest number first, and how many were malformed and left out.

    Of a turn without a summary at the level that of another level is taken.
    """
    turns: dict[int, RememberedTurn] = {}
    for turn in filter(None, map(read_turn, rows)):
        if text := _text(turn, level):
            insights = _fitting(turn, text) if level == "brief" else turn.insights
            shown = RememberedTurn(turn.turn_number, turn.id, text, insights, turn.summaries.source)
            turns.setdefault(turn.turn_number, shown)
    return tuple(turns[number] for number in sorted(turns)), len(rows) - len(turns)


def accumulated(rows: Sequence[Row], level: Level) -> str:
    """Stored turns at that level as a context shows them; `""` where there are none."""
    return turns_text(read_turns(rows, level)[0], level, escape)


def turns_text(turns: Sequence[RememberedTurn], level: Level, escape: Callable[[str], str]) -> str:
    """The turns as they are shown, with a blank line between two; `escape` may be one that counts."""
    return "\n\n".join(_turn_text(turn, level, escape) for turn in turns)


def _turn_text(turn: RememberedTurn, level: Level, escape: Callable[[str], str]) -> str:
    line = _as_json(turn.text, escape) if level == "comprehensive" else escape(one_line(turn.text))
    insights = "; ".join(filter(None, map(one_line, turn.insights)))
    return f"[Turn {turn.number}] {line}" + (f"\nInsights: {escape(insights)}" if insights else "")


def _as_json(text: str, escape: Callable[[str], str]) -> str:
    escaped = {
        name: _plain(value, escape) if isinstance(value, str) else [_plain(item, escape) for item in value]
        for name, value in json.loads(text).items()
    }
    return json.dumps(escaped, ensure_ascii=False, separators=(",", ":"))


def _plain(text: str, escape: Callable[[str], str]) -> str:
    return escape_within_line(one_line(_CONTROLS.sub(" ", canonical(text))), escape)


def _fitting(turn: Turn, brief: str) -> tuple[str, ...]:
    """The first insights of a turn, as many as fit beside `brief` into a third of what `detailed` takes."""
    room = _weight(turn, _text(turn, "detailed"), turn.insights) // _THIRD
    counts = range(len(turn.insights), 0, -1)
    return turn.insights[: next((count for count in counts if _weight(turn, brief, turn.insights[:count]) <= room), 0)]


def _weight(turn: Turn, text: str, insights: tuple[str, ...]) -> int:
    return len(_turn_text(RememberedTurn(turn.turn_number, turn.id, text, insights), "detailed", canonical).encode())


def _text(turn: Turn, level: Level) -> str:
    structured = turn.summaries.structured
    brief, detailed, overview = turn.summaries.brief, turn.summaries.detailed, structured.overview
    if turn.status is TurnStatus.UNANSWERED and turn.summaries.source == "model":
        brief, detailed, overview = (text and f"{_UNANSWERED}{text}" for text in (brief, detailed, overview))
    match level:
        case "brief":
            return _first(brief, detailed, overview)
        case "detailed":
            return _first(detailed, brief, overview)
        case "comprehensive":
            lists = {name: list(filter(one_line, getattr(structured, name))) for name in _LISTS}
            summary = {"overview": _first(overview, detailed, brief), **lists}
            return json.dumps(summary, ensure_ascii=False) if any(summary.values()) else ""


def _first(*texts: str) -> str:
    return next((text for text in texts if one_line(text)), "")
