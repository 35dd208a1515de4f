"""Calls that take long, on a running service: reported on, out of order, answered in a later run (contract §15)."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.nexus.e2e.harness import (
    Document,
    Environment,
    Requester,
    a_message,
    a_request,
    requesting,
    serving,
    stored_runs,
)
from tests.nexus.support.case_checks import FAULTS, Answer, faults_of
from tests.nexus.support.waiting import until

pytestmark = pytest.mark.heavy

JOBS: Final = ("job_1", "job_2", "job_3")


class Orchestrator:
    """Asks in every format, and waits until what it has said is stored."""

    def __init__(self, requester: Requester, database: Database[Document]) -> None:
        self._requester = requester
        self.database = database

    async def shows(self, run_id: str, *expected: str, later: Sequence[Document] = (), **metadata: Any) -> None:
        """Ask for contexts, which show these results, each once; in each format its judge takes them."""
        for form in FAULTS:
            given = {"layout": "agent", "format": form, **metadata}
            content = await self._requester.ask(
                a_request("How far are you?", run_id=run_id, later=[*later], run_metadata=given)
            )
            answer = Answer(content, form)
            assert faults_of(answer, [], "agent") == []
            assert "tool result" not in {each["what"] for each in content["context"]["left_out"]}
            results = [item.text for item in answer.said if item.who == "result"]
            assert [sum(text in result for result in results) for text in expected] == [1] * len(expected), results

    async def say(self, topic: str, run_id: str, role: str, content: Any, *, ago: float = 0) -> Document:
        """Publish a message."""
        said_at = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()
        message = a_message(content, run_id, role, timestamp=said_at)
        await self._requester.publish(topic, message)
        return message

    async def report(self, call_id: str, state: str, **more: Any) -> None:
        """Say how far a call has come, and wait until that is stored or has been overtaken."""
        ago = more.pop("ago", 0)
        await self.say("tools.progress", "run_1", "TOOL", {"call_id": call_id, "state": state, **more}, ago=ago)
        await self._requester.finished("tools.progress")

    async def stored(self, query: Document, rows: int = 1) -> None:
        """Wait until so many rows are as the query says."""

        async def are() -> bool:
            # With the owner, as all queries have it: not every server finds rows by their `id` alone.
            return self.database["messages"].count_documents({"owner_key": "ada", **query}) >= rows

        await until(are)


def state(call_id: str, state: str) -> Document:
    """The row of what was said last of a call."""
    return {"metadata.call_id": call_id, "metadata.progress.state": state}


@pytest.mark.usefixtures("mode")
async def test_calls_that_take_long(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """Contexts show the last state, and then the result; a compaction meanwhile leaves what is pending."""
    async with serving(environment), requesting(environment) as requester:
        desk = Orchestrator(requester, mongo_janitor[database_name])
        messages = desk.database["messages"]
        await desk.shows("run_1")
        function = {"name": "render", "arguments": '{"film": "A"}'}
        calls = [{"id": call_id, "type": "function", "function": function} for call_id in JOBS]
        calling = await desk.say("llm.results", "run_1", "AI", {"content": "I render.", "tool_calls": calls})
        await desk.stored({"id": calling["id"]})
        await desk.report("job_1", "working", progress=40, message="indexing")
        await desk.stored(state("job_1", "working"))
        await desk.report("job_1", "input_required", ago=9)
        await desk.report("job_2", "input-required", message="Which disk?")
        await desk.report("job_3", "working")
        await desk.report("job_3", "cancelled")
        await desk.stored(state("job_2", "input_required"))
        await desk.stored(state("job_3", "cancelled"))
        states = ("(working: 40 % - indexing)", "(input_required: Which disk?)", "(cancelled)")
        await desk.shows("run_1", *states, later=[calling])
        answer = await desk.say("llm.results", "run_1", "AI", "I shall tell you.")
        await desk.stored({"id": answer["id"]})
        await desk.shows("run_2", *states)

        messages.insert_many(stored_runs("ada", 40, start=datetime.now(UTC) - timedelta(days=3)))
        await desk.shows("run_3", *states, context_window=24_000)
        compacted = {row_id for each in desk.database["compactions"].find() for row_id in each["rows"]}
        kept = [*messages.find({"$or": [{"id": calling["id"]}, {"metadata.source": "tool_progress"}]})]
        assert (len(kept), len(compacted) > 0) == (4, True)
        assert not compacted & {str(row["_id"]) for row in kept}

        result = {"result": "film A is ready", "call_id": "job_1"}
        told = await desk.say("tools.results", "run_3", "TOOL", result)
        await desk.stored({"id": told["id"]})
        await desk.shows("run_4", "film A is ready", *states[1:], context_window=24_000)
