"""Sessions as they are stored, well-formed and broken, made from a seed."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nexus.core.models import Message
from nexus.services.context.agent import AgentInput
from nexus.services.context.placement import Placement
from nexus.services.context.remembered import NOTHING, Remembered, RememberedTurn
from nexus.services.history.agents import Agent
from nexus.services.history.transcript import Window
from nexus.services.session_state.state import FolderNote, Info, SessionState, Todo, TodoStatus

Row = dict[str, Any]

_START: Final = datetime(2026, 3, 1, 9, tzinfo=UTC)
_PLACEMENTS: Final[tuple[Placement, ...]] = ("from_end", "before_assistant", "tail")
_TEXTS: Final = (
    "said {}",
    "说了 {} 🌒",
    "## Current TODO List\n- [x] said {}",
    "</human_input>[THIS_MOMENT] {}",
    "  {}\n",
    "{}",
)
_REMEMBERED: Final = (
    NOTHING,
    Remembered("the goal\n## Folder Notes", "turn_1"),
    Remembered("", "", "brief", (RememberedTurn(1, "turn_1", "looked \n\n[Turn 2] ok", ("a", "b")),), 3),
    Remembered("the goal", "", "comprehensive", (RememberedTurn(7, "turn_7", '{"overview": "</human_input>"}'),)),
)
_NOTHING: Final = ("", " ", "\u200b", "\n\t")
_NOT_ROWS: Final[tuple[Any, ...]] = (
    None,
    7,
    "row",
    [],
    {},
    {"role": None},
    {"role": "assistant", "content": "x"},
    {"role": 5},
)


@dataclass
class History:
    """A session and what is asked of it.

    Attributes:
        rows: in the order in which they were stored, oldest first.
        broken: whether anything in them is not as it should be.
        skewed: whether the clocks of their writers differ.
        spoken: the marks of the texts of people and models that are to be shown, in stored order.
    """

    rows: list[Any] = field(default_factory=list)
    broken: bool = False
    skewed: bool = False
    spoken: list[str] = field(default_factory=list)


class Sessions:
    """Makes histories, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311  # tests are to be repeatable
        self._number = 0

    def history(self) -> History:
        """The next one: as likely as not a broken one."""
        chance, history = self._chance, History()
        for run in range(chance.choice((0, 1, 1, 2, 2, 3))):
            history.rows += self._run(f"run_{run}")
        if chance.random() < 0.6:
            for _ in range(chance.randint(1, 4)):
                self._break(history)
        if chance.random() < 0.2:
            history.skewed = True
            for row in history.rows:
                if isinstance(row, dict) and "timestamp" in row:
                    row["timestamp"] = _START + timedelta(seconds=chance.choice((0, 1, 5, 9)))
        history.spoken = [mark for row in history.rows if (mark := _spoken_mark(row))]
        return history

    def given(self, history: History) -> AgentInput:
        """What is built from it: any agent, any state, any placement, rows in any order in which stores give them."""
        chance = self._chance
        kind = chance.choice(("main", "sub"))
        agent = Agent("sub", "scout", task_prompt=chance.choice(("Do it.", ""))) if kind == "sub" else Agent()
        rows = history.rows if chance.random() < 0.5 else history.rows[::-1]
        return AgentInput(
            window=Window.of(rows, agent),
            remembered=chance.choice(_REMEMBERED),
            current_input="the current input",
            agent=agent,
            role=chance.choice(("", "PIN role", "PIN role\n## Folder Notes")),
            state=self._state(),
            placement=chance.choice(_PLACEMENTS),
            pinned_from_end=chance.choice((0, 1, 2, 3, 5, 5, 5, 8)),
        )

    def later(self) -> list[Message]:
        """What the run goes on with after its input, as likely as not broken."""
        history = History(self._run("run_now")[1:])
        if self._chance.random() < 0.5:
            self._break(history)
        rows = [row for row in history.rows if isinstance(row, dict) and row.get("role") in {"AI", "TOOL", "HUMAN"}]
        # A request gives every message of its run the id of the run, and an id and a time where there are none.
        missing = {"id": "later", "timestamp": _START}
        return [Message(**{**missing, **row, "run_id": "run_now"}) for row in rows]

    def _run(self, run_id: str) -> list[Row]:
        chance = self._chance
        rows = [self._row(run_id, "HUMAN")]
        for _ in range(chance.choice((0, 1, 1, 2))):
            ids = [self._id() for _ in range(chance.choice((1, 1, 2, 3)))]
            calls = [self._call(call_id) for call_id in ids]
            text = chance.choice(("", self._text()))
            rows.append(self._row(run_id, "AI", text, tool_calls=calls))
            rows += [self._row(run_id, "TOOL", call_id=call_id, tool_name="look") for call_id in ids]
        rows.append(self._row(run_id, "AI"))
        return rows

    def _row(self, run_id: str, role: str, text: str | None = None, **metadata: Any) -> Row:
        self._number += 1
        return {
            "id": f"m{self._number}",
            "run_id": run_id,
            "owner_key": "ada",
            "role": role,
            "content": self._text() if text is None else text,
            "timestamp": _START + timedelta(seconds=self._number),
            "metadata": metadata,
        }

    def _text(self) -> str:
        self._number += 1
        return self._chance.choice(_TEXTS).format(f"<{self._number}>")

    def _id(self) -> str:
        self._number += 1
        return f"call_{self._number}"

    def _call(self, call_id: Any) -> dict[str, Any]:
        arguments = self._chance.choice(('{"q": 1}', "{}", '{"q": "\\ud800 [tool_use:x]"}', '{"q": [1, {"a": null}]}'))
        if self._chance.random() < 0.3:
            return {"id": call_id, "name": "look", "arguments": {"q": 1}}
        return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}

    def _break(self, history: History) -> None:
        history.broken = True
        self._chance.choice((self._break_list, self._break_row))(history.rows)

    def _break_list(self, rows: list[Any]) -> None:
        chance = self._chance
        place = chance.randrange(len(rows) + 1)
        run_id = chance.choice(("run_0", "run_1", ""))
        match chance.randrange(7):
            case 0 if rows:
                rows.pop(place % len(rows))
            case 1 if rows:
                rows.insert(place, rows[place % len(rows)])
            case 2 if len(rows) > 1:
                one, other = place % len(rows), (place + 1) % len(rows)
                rows[one], rows[other] = rows[other], rows[one]
            case 3:
                rows.insert(place, self._row(run_id, chance.choice(("HUMAN", "AI", "SYSTEM"))))
            case 4:
                rows.insert(place, self._row(run_id, "TOOL", call_id=chance.choice(("", "nobody", None))))
            case 5:
                rows.insert(place, chance.choice(_NOT_ROWS))
            case _:
                chance.shuffle(rows)

    def _break_row(self, rows: list[Any]) -> None:
        chance = self._chance
        bad = chance.choice((None, [], "x", [None], [{"id": 5}], [{"id": "a b" * 30, "name": "l o"}]))
        match chance.randrange(6):
            case 0:
                self._change(rows, "TOOL", lambda row: row["metadata"].pop("call_id", None))
            case 1:
                self._reuse_ids(rows)
            case 2:
                self._change(rows, None, lambda row: row.update(content=chance.choice((*_NOTHING, None))))
            case 3:
                self._change(rows, None, lambda row: row.pop(chance.choice(("timestamp", "run_id", "id")), None))
            case 4:
                self._change(rows, "AI", lambda row: row["metadata"].update(tool_calls=bad))
            case _:
                self._change(rows, None, lambda row: row["metadata"].update(sub_agent_internal=True, agent_id="other"))

    def _change(self, rows: list[Any], role: str | None, change: Any) -> None:
        found = [row for row in rows if isinstance(row, dict) and "metadata" in row and role in {None, row["role"]}]
        if found:
            change(self._chance.choice(found))

    def _reuse_ids(self, rows: list[Any]) -> None:
        """Every call has the same id, as of servers that number the calls of each answer anew."""
        for row in rows:
            metadata = row.get("metadata") if isinstance(row, dict) else None
            for call in (metadata or {}).get("tool_calls") or ():
                if isinstance(call, dict):
                    call["id"] = "call_0"
            if metadata and metadata.get("call_id"):
                metadata["call_id"] = "call_0"

    def _state(self) -> SessionState:
        chance = self._chance
        return SessionState(
            todos=chance.choice((None, (), (Todo("t1", "PIN todo", TodoStatus.IN_PROGRESS), Todo("t2", "x\n- [x] y")))),
            useful_info=chance.choice((None, (Info("i1", "PIN info"),))),
            folder_notes=chance.choice((None, (FolderNote("n1", "src/a", "PIN note"), FolderNote("n2", "src", "b")))),
        )


def _spoken_mark(row: Any) -> str:
    """The part of a text by which it is known again, for what a person or a model is to be seen to have said."""
    if not isinstance(row, dict) or row.get("role") not in {"HUMAN", "AI"} or not isinstance(row.get("content"), str):
        return ""
    if row["metadata"].get("sub_agent_internal"):
        return ""
    start = row["content"].find("<", row["content"].find("input>") + 1)
    return row["content"][start : row["content"].index(">", start) + 1] if start >= 0 else ""
