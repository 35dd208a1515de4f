"""Runs as their rows are stored."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nexus.core.ports import Row
from nexus.services.history.run_facts import TurnFacts, read_facts

START: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)


class Run:
    """A run that is recorded row by row, each a second after the one before."""

    def __init__(self, question: Any = None) -> None:
        self.rows: list[Row] = []
        if question is not None:
            self.add("HUMAN", question, source="new_run")

    def add(self, role: str, content: Any, **metadata: Any) -> "Run":
        """A row of any role."""
        number = len(self.rows) + 1
        self.rows.append(
            {
                "_id": f"{number:024x}",
                "id": f"m{number}",
                "run_id": "r",
                "owner_key": "ada",
                "session_id": "s",
                "role": role,
                "content": content,
                "timestamp": START + timedelta(seconds=number),
                "metadata": metadata,
            }
        )
        return self

    def calls(self, *calls: tuple[str, str, Any], text: str = "", **metadata: Any) -> "Run":
        """An answer of the model that makes calls: id, name and arguments of each, in the nested form."""
        nested = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
            }
            for call_id, name, given in calls
        ]
        return self.add("AI", text, tool_calls=nested, has_tool_calls=True, **metadata)

    def result(self, call_id: str, content: Any, tool: str = "unknown", *, status: str = "success") -> "Run":
        """What came of a call."""
        known = {"tool_name": tool, "status": status, "execution_success": status == "success", "call_id": call_id}
        return self.add("TOOL", content, **known)

    def call(self, name: str, arguments: Any, result: Any, *, status: str = "success") -> "Run":
        """A call and its result."""
        call_id = f"c{len(self.rows)}"
        return self.calls((call_id, name, arguments)).result(call_id, result, name, status=status)

    def answer(self, text: str, **metadata: Any) -> "Run":
        """What the model says in the end."""
        return self.add("AI", text, tool_calls=None, has_tool_calls=False, **metadata)

    @property
    def facts(self) -> TurnFacts:
        """What is known of it."""
        return read_facts(self.rows)
