"""The memory tools on running services, called as orchestrators do: by redis-py and JSON alone (contract §7)."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.read_concern import ReadConcern

from nexus.services.text.escape import unescape
from tests.nexus.e2e.harness import Document, Environment, serving
from tests.nexus.e2e.long_judge import sources
from tests.nexus.e2e.long_player import Player, on_bus
from tests.nexus.support.long_session import Call, Run, Step, question_for, seal_of, session
from tests.nexus.support.model_behaviours import good, silent
from tests.nexus.support.model_server import model_server
from tests.nexus.support.waiting import until

SESSION: Final = "long"
# A model that is about to call a tool, in a run of its own.
CALLER: Final = Run(9_000, "Put your memory in order.", (Step("Done."),))
LAST: Final = Run(9_001, "And now?", (Step("Nothing."),))


@dataclass(frozen=True)
class Desk:
    """A session, and its stored documents."""

    player: Player
    database: Database[Document]

    async def done(self, tool: str, /, **arguments: Any) -> str:
        """The result of a call that succeeds."""
        call = Call(uuid.uuid4().hex, tool, arguments)
        _, result = await self.player.act(CALLER, Step("", (call,)))
        content = result["content"]
        assert (content["tool_name"], content["status"], content["execution_success"]) == (tool, "success", True), (
            result
        )
        return str(content["result"])

    async def past(self, runs: int) -> list[Run]:
        """Play so many runs in which the model does nothing for its memory."""
        played = [*session(runs, longest=1_000, most_of_a_run=2_000, with_memory=False)]
        for run in played:
            await self.player.play(run)
        await self.recorded()
        return played

    async def recorded(self) -> None:
        """Wait until all that was said is stored."""

        async def are() -> bool:
            wanted = self.player.said.messages
            return self.database["messages"].count_documents({"id": {"$in": wanted}}) == len(wanted)

        await until(are)

    def compaction(self) -> Document:
        """The only one that there is."""
        (found,) = self.database["compactions"].find()
        return found


@asynccontextmanager
async def at_desk(environment: Environment, janitor: MongoClient[Document]) -> AsyncIterator[Desk]:
    """A service, and a session."""
    async with serving(environment), on_bus(environment) as ends:
        yield Desk(Player(*ends, session=SESSION), janitor[environment["NEXUS_DATABASE__NAME"]])


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("mode", ["pubsub"], indirect=True)
async def test_an_archive_keeps_the_words(environment: Environment, mongo_janitor: MongoClient[Document]) -> None:
    """Every message that is archived stands in the details as it was said, and a phrase in it is found."""
    async with at_desk(environment, mongo_janitor) as desk:
        runs = await desk.past(8)
        said = desk.player.said.messages[:]
        told = await desk.done("compact_history", target="all", strategy="archive", keep_recent=0)
        compaction = desk.compaction()
        archive = "\n".join([await _read_through(desk, name) for name in compaction["details"]])
        found = {run.number: await desk.done("search_memory", query=question_for(run.number)) for run in runs}
        content = await desk.player.begin(LAST)
    words = [text for run in runs for text in _texts_of(run)]
    assert [text for text in words if text not in archive] == []
    assert all(name in told for name in compaction["details"])
    assert all(seal_of(number) in text for number, text in found.items())
    assert compaction["count"] == len(compaction["rows"]) == len(said)
    assert not set(said) & set(sources(content))


async def _read_through(desk: Desk, name: str) -> str:
    """A detail as a model reads it: page after page, by each page's word on the next."""
    text, start = "", "0"
    while start:
        page = await desk.done("read_memory_detail", name=name, from_character=int(start))
        head, _, shown = page.partition("\n\n")
        text += shown
        _, _, start = head.rstrip(")").partition("it goes on with from_character ")
    return text


def _texts_of(run: Run) -> list[str]:
    """The texts of a run, verbatim."""
    said = [run.input, *(step.text for step in run.steps)]
    return [*said, *(call.result for step in run.steps for call in step.calls if isinstance(call.result, str))]


def _summary_in(content: Document) -> str:
    """The summary of compacted messages in a context."""
    texts = (item["content"] or "" for item in content["messages"])
    (summary,) = (text for text in texts if text.startswith("[CONVERSATION_SUMMARY "))
    return summary


@pytest.mark.heavy
async def test_a_model_tells_it_better(environment: Environment, mongo_janitor: MongoClient[Document]) -> None:
    """The summary is by rules at once; later it is the model's, and the next run is shown that one."""
    async with model_server(silent()) as server:
        given = {"BASE_URL": server.base_url, "MODEL": "scribe", "SETTLE_S": "0", "AGAIN_S": "0.5", "TIMEOUT_S": "5"}
        environment |= {f"NEXUS_LLM__{name}": value for name, value in given.items()}
        async with at_desk(environment, mongo_janitor) as desk:
            await desk.past(6)
            await desk.done("compact_history", target="all", strategy="summarize", keep_recent=0)
            by_rules = desk.compaction()
            first = await desk.player.begin(LAST)
            server.behaviour = good()

            # As the service reads it: what is on one member alone may come a moment before.
            compactions = desk.database.get_collection("compactions", read_concern=ReadConcern("majority"))

            async def refined() -> Document | None:
                return compactions.find_one({"source": "model"})

            by_model = await until(refined)
            later = await desk.player.begin(Run(9_002, "And then?", LAST.steps))
    assert by_rules["source"] == "fallback"
    assert by_model["rows"] == by_rules["rows"]
    assert by_model["summary"] != by_rules["summary"]
    for content, compaction in ((first, by_rules), (later, by_model)):
        assert unescape(_summary_in(content)).endswith(compaction["summary"].strip())
