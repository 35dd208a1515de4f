"""A session of an agent that uses tools, for the benchmarks: what is said in it, and the state that changes with it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nexus.core.models import Message, Role
from nexus.services.context.session_state import Info, SessionState, Todo, TodoStatus


@dataclass(frozen=True, slots=True)
class Turn:
    """One run: what is asked, and the model calls and results that follow."""

    number: int
    messages: list[Message]

    def rows(self) -> Iterator[dict[str, Any]]:
        """As they are recorded."""
        for message in self.messages:
            calls = {"tool_calls": message.metadata["tool_calls"]} if "tool_calls" in message.metadata else {}
            yield {
                "id": message.id,
                "run_id": message.run_id,
                "role": message.role.value,
                "content": message.content,
                "timestamp": message.timestamp,
                "metadata": {**calls, "call_id": message.metadata.get("call_id", "")},
            }

    def builds(self) -> Iterator[list[Message]]:
        """The later messages of the run at each of its model calls: after the input, and after each round of tools."""
        for index, message in enumerate(self.messages):
            if message.role is Role.AI:
                yield self.messages[1:index]


def session(turns: int, rounds: tuple[int, int] = (0, 4), *, first: int = 0) -> Iterator[Turn]:
    """Runs of a tool-using agent, the same each time.

    Each has from as many to as many rounds of one to three parallel calls, with results of 0.2 to 3 KB. The first run
    has the number `first`; runs of other numbers have other ids.
    """
    chance = random.Random(1)  # noqa: S311  # nothing of it is secret
    at = datetime(2026, 1, 5, 9, tzinfo=UTC)
    for number in range(first, first + turns):
        messages: list[Message] = []

        def say(
            role: Role, content: str, *, number: int = number, messages: list[Message] = messages, **metadata: Any
        ) -> None:
            nonlocal at
            at += timedelta(seconds=chance.uniform(0.5, 20))
            fields = {"id": f"m{number}_{len(messages)}", "run_id": f"run_{number}", "owner_key": "ada"}
            messages.append(Message(**fields, role=role, content=content, timestamp=at, metadata=metadata))

        say(Role.HUMAN, "Please look into the next question. " * chance.randint(1, 8))
        for _ in range(chance.randint(*rounds)):
            ids = [f"call_{number}_{len(messages)}_{place}" for place in range(chance.randint(1, 3))]
            say(Role.AI, "", tool_calls=[_call(call_id, chance) for call_id in ids])
            for call_id in ids:
                say(Role.TOOL, "A line of the result. " * chance.randint(10, 140), call_id=call_id)
        say(Role.AI, "This is what was found out. " * chance.randint(5, 40))
        yield Turn(number, messages)


def state_at(turn: int, step: int) -> SessionState:
    """A plan of eight steps of which one is ticked off with each call, and a piece of information every fifth turn."""
    done = (turn * 3 + step) % 8
    todos = tuple(
        Todo(f"t{number}", f"Step {number} of the plan that was made", _status(number, done)) for number in range(8)
    )
    return SessionState(
        todos=todos, useful_info=tuple(Info(f"i{n}", "Something learned. " * 5) for n in range(turn // 5))
    )


def _status(number: int, done: int) -> TodoStatus:
    if number < done:
        return TodoStatus.COMPLETED
    return TodoStatus.IN_PROGRESS if number == done else TodoStatus.PENDING


def _call(call_id: str, chance: random.Random) -> dict[str, Any]:
    function = {"name": "search", "arguments": f'{{"query": "something {chance.randint(0, 999)}"}}'}
    return {"id": call_id, "type": "function", "function": function}
