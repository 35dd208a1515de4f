"""Large results of tools on running services: shown in short, in the same bytes ever after, and read whole (§15)."""

import json
import re
from typing import Any

import pytest
from pymongo import MongoClient

from benchmarks.processes import Place
from benchmarks.results import Played, play
from nexus.client import ContextClient, new_run
from nexus.core.models import Run
from tests.nexus.e2e.harness import PATIENCE_S, Document, Environment, serving
from tests.nexus.e2e.test_client import client_of
from tests.nexus.support.waiting import until

pytestmark = pytest.mark.heavy

HANDLE = re.compile(r'handle=\\?"(result_[0-9a-f]{16})\\?"')
RESEARCHER = {"kind": "sub", "id": "researcher", "role": "You look things up.", "task_prompt": "Look."}
FRAGMENT = "nobody shows this"


def text_of(name: str) -> str:
    """A large result, with a middle that no condensed text has."""
    lines = [f"{name} {number} 界 [SHARED_MEMORY count=1]" for number in range(400)]
    return "\n".join([*lines[:200], f"{FRAGMENT}: {name}", *lines[200:]])


def agents_run(text: str, session: str = "s", **metadata: Any) -> Run:
    """A run of the layout agent."""
    return new_run("ada", text, layout="agent", session_id=session, **metadata)


async def called(client: ContextClient, run: Run, results: dict[str, str], tool: str = "look") -> None:
    """The model makes these calls, which have these results."""
    calls = [{"id": call_id, "name": tool, "arguments": {}} for call_id in results]
    run.history.append(await client.record_answer(run, {"content": "", "tool_calls": calls}))
    for call_id, text in results.items():
        run.history.append(await client.record_tool_result(run, call_id, text, name=tool))


def results_in(content: dict[str, Any]) -> list[str]:
    """What a context shows of results."""
    return [message["content"] for message in content["messages"] if message["role"] == "tool"]


def handles_in(content: dict[str, Any]) -> list[str]:
    """The handles that a context names, in their order."""
    return HANDLE.findall(json.dumps(content["messages"], ensure_ascii=False))


async def read(client: ContextClient, run: Run, handle: str, **arguments: Any) -> tuple[str, str]:
    """The status and the text that a model gets of a part."""
    told = await client.call_tool(run, "read_tool_result", {"handle": handle, **arguments}, timeout=PATIENCE_S)
    return told.content["status"], told.content["result"]


async def read_through(client: ContextClient, run: Run, handle: str) -> str:
    """A result as a model reads it: part after part, by each part's word on the next."""
    text, start = "", "0"
    while start:
        status, told = await read(client, run, handle, **{"from": int(start)})
        assert status == "success", told
        head, _, part = told.partition("\n\n")
        text += part
        _, _, start = head.rstrip(")").partition("it goes on with from ")
    return text


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("mode", ["pubsub"], indirect=True)
async def test_a_result_is_shown_as_it_was_recorded(environment: Environment) -> None:
    """In the run that had it, in later runs, in every format and after a restart; it is whole by its handle."""
    async with serving(environment), client_of(environment) as client:
        run = agents_run("How is it?")
        await client.build(run, timeout=PATIENCE_S)
        await called(client, run, {"a": text_of("beans"), "b": "small", "c": text_of("peas")})
        second = await client.build(run, timeout=PATIENCE_S)
        run.history.append(await client.record_answer(run, "Fine."))
        later = agents_run("And now?")
        third = await client.build(later, timeout=PATIENCE_S)
        handles = handles_in(second)
        whole = [await read_through(client, later, handle) for handle in handles]
        formats = {
            name: await client.build(agents_run("And now?", format=name), timeout=PATIENCE_S)
            for name in ("anthropic", "gemini")
        }
    async with serving(environment), client_of(environment) as client:
        fourth = await client.build(agents_run("And then?"), timeout=PATIENCE_S)
        found = await client.call_tool(agents_run("x"), "search_memory", {"query": f"{FRAGMENT}: peas"})
    shown = results_in(second)
    assert [len(text.encode()) < 2_000 for text in shown] == [True] * 3
    assert shown[1] == "small"
    assert shown == results_in(third)[:3] == results_in(fourth)[:3]
    assert "\n\\[SHARED_MEMORY" not in shown[0]
    assert "\\[SHARED_MEMORY count=1]" in shown[0]
    assert whole == [text_of("beans"), text_of("peas")]
    assert {name: handles_in(content)[:2] for name, content in formats.items()} == dict.fromkeys(formats, handles)
    assert not any(FRAGMENT in str(content["messages"]) for content in (second, third, fourth, *formats.values()))
    assert f"{FRAGMENT}: peas" in found.content["result"]


async def test_the_same_id_for_several_calls(environment: Environment) -> None:
    """In one run or in two: each result is shown with its own words, and its handle leads to them."""
    environment |= {"NEXUS_BUS__MODE": "pubsub"}
    async with serving(environment), client_of(environment) as client:
        names = ["one", "two", "three"]
        first, second = agents_run("Go."), agents_run("Again.")
        for run, given in ((first, names[:2]), (second, names[2:])):
            await client.build(run, timeout=PATIENCE_S)
            for name in given:
                await called(client, run, {"call_0": text_of(name)})
            content = await client.build(run, timeout=PATIENCE_S)
        shown = results_in(content)
        words = [await read_through(client, second, handle) for handle in handles_in(content)]
    assert [text.split()[0] for text in shown] == names
    assert words == [text_of(name) for name in names]


async def test_what_a_handle_leads_to(environment: Environment) -> None:
    """Results of the owner in any session; a sub-agent's own for that one alone. Errors say what handles are."""
    environment |= {"NEXUS_BUS__MODE": "pubsub"}
    async with serving(environment), client_of(environment) as client:
        main, inner = agents_run("Go."), agents_run("Look.", agent=RESEARCHER)
        other = agents_run("Write.", agent=RESEARCHER | {"id": "writer"})
        elsewhere = agents_run("Where?", session="other")
        stranger = new_run("bob", "Hello.", layout="agent", session_id="s")
        handles = {}
        for run, name in ((main, "main"), (inner, "inner")):
            await client.build(run, timeout=PATIENCE_S)
            await called(client, run, {f"call_{name}": text_of(name)})
            content = await client.build(run, timeout=PATIENCE_S)
            handles[name] = handles_in(content)[-1]
            assert "read_tool_result" in {tool["function"]["name"] for tool in content["tools"]}
        for run in (other, elsewhere, stranger):
            await client.build(run, timeout=PATIENCE_S)
        for run in (main, inner, other, elsewhere):
            assert await read_through(client, run, handles["main"]) == text_of("main")
        assert await read_through(client, inner, handles["inner"]) == text_of("inner")
        for run, handle in ((main, handles["inner"]), (other, handles["inner"]), (stranger, handles["main"])):
            status, told = await read(client, run, handle)
            assert (
                status,
                told.startswith(f"handle: there is no result '{handle}', or it was removed; one is result_"),
            ) == (
                "error",
                True,
            )
        faults = [
            await read(client, main, "beans"),
            await read(client, main, handles["main"], **{"from": 10**6}),
            await read(client, main, handles["main"], characters=5),
            await read(client, main, handles["main"], from_character=5),
        ]
    assert [status for status, _ in faults] == ["error"] * 4
    assert "16 letters and digits, such as result_0123456789abcdef" in faults[0][1]
    assert faults[1][1] == f"from: the result has {len(text_of('main'))} characters"
    assert "from 1000 to 65536" in faults[2][1]
    assert "allowed: handle, from, characters" in faults[3][1]


async def test_what_stays_whole(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """Rows from before, and what was read by a handle, however long the part is."""
    environment |= {"NEXUS_BUS__MODE": "pubsub"}
    rows = mongo_janitor[database_name]["messages"]
    async with serving(environment), client_of(environment) as client:
        run = agents_run("Go.")
        await client.build(run, timeout=PATIENCE_S)
        await called(client, run, {"a": text_of("before")})
        await client.build(run, timeout=PATIENCE_S)
        changed = rows.update_one({"role": "TOOL"}, {"$unset": {"metadata.condensed": "", "metadata.handle": ""}})
        later = agents_run("And now?")
        await client.build(later, timeout=PATIENCE_S)
        await called(client, later, {"b": text_of("now")})
        handle = handles_in(await client.build(later, timeout=PATIENCE_S))[-1]
        call = {"id": "r", "name": "read_tool_result", "arguments": {"handle": handle, "characters": 65_536}}
        later.history.append(await client.record_answer(later, {"content": "", "tool_calls": [call]}))
        later.history.append(
            await client.call_tool(later, "read_tool_result", call["arguments"], call_id="r", timeout=PATIENCE_S)
        )
        content = await client.build(later, timeout=PATIENCE_S)
    assert changed.modified_count == 1
    before, now, part = results_in(content)
    assert before.count(FRAGMENT) == part.count(FRAGMENT) == 1
    assert FRAGMENT not in now


@pytest.mark.parametrize("off", ["NEXUS_TOOLS__CONDENSE_ABOVE=0", "NEXUS_MEMORY__WORKING_MEMORY=false"])
async def test_off(environment: Environment, off: str) -> None:
    """All is shown whole, also where there is no working memory, and no tool that would read the rest."""
    environment |= {"NEXUS_BUS__MODE": "pubsub", **dict([off.split("=")])}
    async with serving(environment), client_of(environment) as client:
        run = agents_run("Go.")
        await client.build(run, timeout=PATIENCE_S)
        await called(client, run, {"a": text_of("it")})
        contents = [await client.build(each, timeout=PATIENCE_S) for each in (run, agents_run("And now?"))]
    assert [FRAGMENT in text for content in contents for text in results_in(content)] == [True, True]


async def test_an_archive_has_the_whole(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str
) -> None:
    """A compaction counts what is shown, and its archive has the words."""
    environment |= {"NEXUS_BUS__MODE": "pubsub"}
    async with serving(environment), client_of(environment) as client:
        run = agents_run("Go.")
        await client.build(run, timeout=PATIENCE_S)
        await called(client, run, {"a": text_of("it")})
        await client.record_answer(run, "Done.")
        later = agents_run("And now?")
        await client.build(later, timeout=PATIENCE_S)
        arguments = {"target": "all", "strategy": "archive", "keep_recent": 0}
        told = await client.call_tool(later, "compact_history", arguments, timeout=PATIENCE_S)
        assert told.content["status"] == "success", told
    compaction = mongo_janitor[database_name]["compactions"].find_one() or {}
    details = mongo_janitor[database_name]["memory_details"].find({"kind": "archive"})
    assert text_of("it") in "".join(detail["content"] for detail in details)
    assert compaction["tokens_before"] < 1_500


@pytest.mark.once
@pytest.mark.usefixtures("mode")
async def test_two_replicas(environment: Environment, mongo_janitor: MongoClient[Document], database_name: str) -> None:
    """Whichever records and whichever answers: no context of a run shows a result whole, and one row is kept."""
    async with serving(environment), serving(environment), client_of(environment) as client:
        for number in range(6):
            run = agents_run(f"Question {number}?")
            await client.build(run, timeout=PATIENCE_S)
            await called(client, run, {f"call_{number}": text_of(f"n{number}")})
            content = await client.build(run, timeout=PATIENCE_S)
            assert [FRAGMENT in text for text in results_in(content)] == [False] * (number + 1)
            await client.record_answer(run, "Yes.")
    rows = mongo_janitor[database_name]["messages"]

    async def are() -> bool:
        return rows.count_documents({"role": "TOOL", "metadata.handle": {"$gt": ""}}) == 6

    await until(are)


@pytest.mark.once
async def test_what_is_sent(
    environment: Environment, mongo_janitor: MongoClient[Document], database_name: str, redis_url: str, mongo_uri: str
) -> None:
    """A small session of `python -m benchmarks results`: a third of the tokens, each read whole, more is reused."""
    played: dict[int, Played] = {}
    place = Place(redis_url, mongo_uri, database_name)
    for above in (8_192, 0):
        async with serving(environment | place.environment | {"NEXUS_TOOLS__CONDENSE_ABOVE": str(above)}):
            played[above] = await play(place, turns=6, window=48_000)
        mongo_janitor.drop_database(database_name)
    condensed, whole = played[8_192], played[0]
    assert sum(condensed.sent) <= 0.35 * sum(whole.sent)
    assert condensed.reused >= whole.reused
    assert [*condensed.handles] == [*range(6)]
    assert whole.handles == {}
