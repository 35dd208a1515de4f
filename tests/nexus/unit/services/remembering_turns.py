"""A turn memory without a store: `TurnSource` as its guarantees are written, for tests of what asks it."""

from collections.abc import Sequence
from typing import Any

import anyio

from nexus.core.errors import StoreUnavailableError
from nexus.core.ports import Row
from nexus.core.turns import Goal, TurnStart


class FakeTurns:
    """Turns in memory.

    Attributes:
        documents: by session, in the order of their numbers.
        begun: what was asked for, in order.
        asked: the arguments with which past turns were asked for.
        unreadable: `goal`, `past_turns` or both fail.
        hanging: likewise never return.
        full: too much is waiting, so that nothing is taken.
    """

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], list[Row]] = {}
        self.begun: list[TurnStart] = []
        self.asked: list[dict[str, Any]] = []
        self.goals_asked = 0
        self.unreadable: set[str] = set()
        self.hanging: set[str] = set()
        self.full = False

    def begin_turn(self, start: TurnStart) -> anyio.Event | None:
        """Keep the turn, or what came along for it."""
        if self.full:
            return None
        self.begun.append(start)
        kept = anyio.Event()
        self._keep(start)
        kept.set()
        return kept

    async def goal(self, owner_key: str, session_id: str, run_id: str) -> Goal:
        """That of the run's turn, else of the latest."""
        self.goals_asked += 1
        await self._ask("goal")
        session = self.documents.get((owner_key, session_id), [])
        own = [turn for turn in session if turn["run_id"] == run_id]
        if not session:
            return Goal()
        turn = (own or session)[-1]
        number = turn["turn_number"]
        return Goal(turn["task_context"], turn["id"], number if own else None, number - 1 if own else number)

    async def past_turns(
        self, owner_key: str, session_id: str, *, limit: int, before: int | None, without_runs: Sequence[str] = ()
    ) -> list[Row]:
        """Up to `limit` turns, the highest number first."""
        self.asked.append({"limit": limit, "before": before, "without_runs": list(without_runs)})
        await self._ask("past_turns")
        found = [
            turn
            for turn in reversed(self.documents.get((owner_key, session_id), []))
            if (before is None or turn["turn_number"] < before) and turn["run_id"] not in without_runs
        ]
        return found[:limit]

    def plant(self, *turns: Row) -> None:
        """Keep documents as somebody else would."""
        for turn in turns:
            self.documents.setdefault((turn["owner_key"], turn["session_id"]), []).append(turn)

    async def _ask(self, operation: str) -> None:
        if operation in self.unreadable:
            raise StoreUnavailableError("the store is down")
        if operation in self.hanging:
            await anyio.sleep_forever()

    def _keep(self, start: TurnStart) -> None:
        session = self.documents.setdefault((start.owner_key, start.session_id), [])
        own = [turn for turn in session if turn["run_id"] == start.run_id]
        if own:
            own[0]["task_context"] = start.task_context or own[0]["task_context"]
            return
        goal = start.task_context or (session[-1]["task_context"] if session else start.input)
        number = session[-1]["turn_number"] + 1 if session else 1
        said = f"summary of {start.run_id}"
        session.append(
            {
                "id": f"turn_{number}_0",
                "turn_number": number,
                "owner_key": start.owner_key,
                "session_id": start.session_id,
                "run_id": start.run_id,
                "timestamp": start.timestamp,
                "task_context": goal,
                "summaries": {"brief": f"brief {said}", "detailed": said, "structured": {"overview": said}},
            }
        )
