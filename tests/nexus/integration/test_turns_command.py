"""`nexus turns` as operators use it: the program, on a MongoDB."""

import json
import os
import shlex
import sys
from typing import Any, Final

import anyio
import pytest
from pymongo import MongoClient

from nexus.adapters.mongo import open_mongo
from nexus.core.ports import Row
from nexus.core.turns import Turn
from tests.nexus.support.desk import Desk, is_printable
from tests.nexus.support.kept_turns import a_turn
from tests.nexus.support.stored_session import NASTY

pytestmark = [pytest.mark.once, pytest.mark.heavy]

OF_S1: Final = ("--owner", "ada", "--session", "s1")


class TurnsDesk(Desk):
    """The command, on a database of the test's own."""

    async def keep(self, *documents: Row) -> None:
        """Keep turns, as a service does."""
        uri, name = self.environment["NEXUS_DATABASE__URI"], self.environment["NEXUS_DATABASE__NAME"]
        async with open_mongo(uri, name, timeout_ms=10_000) as store:
            assert await store.turns.insert_turns(documents) == len(documents)


@pytest.fixture
def desk(mongo_uri: str, database_name: str) -> TurnsDesk:
    """The command, on the test's own names."""
    return TurnsDesk.on("turns", mongo_uri, database_name)


SHOWN = """turn        2  turn_2_1767225600002
time        2026-01-01 00:02:00 UTC
run         r2
status      completed
summary by  model
messages    2
tokens      100 (thinking 7, action 93)

Goal

  Review statins.
  Only new trials.

Brief

  Asked for statins, 2. 156.

Detailed

  Asked.
  Found 156.

Structured

  Overview: Statins were looked up. 😀
  Actions:
  - pubmed_search(query=statins)
  Results:
  - 156 articles
  - HR 0.86 (95% CI 0.80-0.93)
  Next steps:
  - Extract

Insights

  - 15 reviews remain

Rounds of thought

  Round 1 (7 tokens):
    Look
    first.

Tools

  - pubmed_search: succeeded
    arguments:
      {"query": "statins"}
    result:
      156 articles
  - pubmed_search: failed
    arguments:
      {"query": "文章"}
    result:
      {"$ref": "a", "$id": 1}
  - filter: outcome unknown
"""


async def test_a_list(desk: TurnsDesk) -> None:
    """The latest first, with tools and the source of the summary; up to the limit, or only those with a text."""
    other = {**a_turn(3)["summaries"], "brief": "Said\nhello.", "source": "fallback"}
    await desk.keep(a_turn(1), a_turn(2), a_turn(3, summaries=other, tool_calls=[], insights=[], status="acting"))
    assert (await desk.said("list", *OF_S1)).splitlines() == [
        "TURN  TIME (UTC)           STATUS     SUMMARY BY  TOOLS                      BRIEF",
        "3     2026-01-01 00:03:00  acting     fallback    -                          Said hello.",
        "2     2026-01-01 00:02:00  completed  model       pubmed_search (2), filter  Asked for statins, 2. 156.",
        "1     2026-01-01 00:01:00  completed  model       pubmed_search (2), filter  Asked for statins, 1. 156.",
        "3 shown of session s1 of ada; 3 in all.",
    ]
    one = (await desk.said("list", *OF_S1, "--limit", "1")).splitlines()
    assert one[1:] == [one[1], "1 shown of session s1 of ada; 3 in all; --limit shows more."]
    found = json.loads(await desk.said("list", *OF_S1, "--search", "REMAIN", "--limit", "1", "--json"))
    assert (found["total"], found["more"]) == (3, True)
    assert found["turns"] == [
        {
            "turn_number": 2,
            "id": "turn_2_1767225600002",
            "run_id": "r2",
            "timestamp": "2026-01-01T00:02:00Z",
            "status": "completed",
            "source": "model",
            "tools": {"pubmed_search": 2, "filter": 1},
            "brief": "Asked for statins, 2. 156.",
        }
    ]
    nowhere = await desk.said("list", *OF_S1, "--search", ".*")
    assert nowhere == "There are no turns of session s1 of ada with '.*'; 3 in all.\n"


async def test_one_turn(desk: TurnsDesk) -> None:
    """Everything of it in readable form, no text like a heading or a fact; its summary at one level; all as JSON."""
    forged = "Yes.\n\nTools\n\n- rm: succeeded\nstatus      failed"
    await desk.keep(a_turn(1, task_context=forged), a_turn(2))
    first = (await desk.said("show", *OF_S1, "1")).splitlines()
    assert [line for line in first if line.startswith(("status", "Tools"))] == ["status      completed", "Tools"]
    assert {"  Tools", "  - rm: succeeded", "  status      failed"} <= {*first}
    assert await desk.said("show", *OF_S1, "2") == SHOWN
    brief = await desk.said("show", *OF_S1, "2", "--level", "brief")
    before, _, after = SHOWN.partition("Detailed\n")
    assert brief == before + "Insights\n" + after.partition("Insights\n")[2]
    as_json = await desk.said("show", *OF_S1, "2", "--json")
    assert json.loads(as_json) == Turn.model_validate(a_turn(2)).model_dump(mode="json")
    summaries = json.loads(await desk.said("show", *OF_S1, "2", "--level", "comprehensive", "--json"))["summaries"]
    assert summaries == {name: a_turn(2)["summaries"][name] for name in ("structured", "source")}
    for number in ("3", "9" * 30):
        assert await desk.refused("show", *OF_S1, number) == f"Turn {number} not found"


async def test_streams_that_take_no_more(desk: TurnsDesk) -> None:
    """A full one is a fault of every command; one that is closed early is none."""
    await desk.keep(*(a_turn(number) for number in range(1, 20)))
    nexus = [sys.executable, "-m", "nexus"]
    environment = {**os.environ, **desk.environment, "NEXUS_BUS__MODE": "memory"}
    for words in (["turns", "list", "--json", *OF_S1], ["doctor", "--quick"]):
        full = f"{shlex.join([*nexus, *words])} > /dev/full"
        done = await anyio.run_process(["bash", "-c", full], check=False, env=environment)
        assert done.returncode == 1
        assert done.stderr == b"nexus: standard output: cannot be written: No space left on device\n"
    piped = f"{shlex.join([*nexus, 'turns', 'list', '--json', *OF_S1])} | head -c 1"
    closed = await anyio.run_process(["bash", "-c", piped], check=False, env=environment)
    assert (closed.stdout, b"Traceback" in closed.stderr) == (b"{", False)


async def test_what_others_have_stored(
    desk: TurnsDesk, mongo_janitor: MongoClient[dict[str, Any]], database_name: str
) -> None:
    """What cannot be read is named and left out, and nothing but printable characters reaches a terminal."""
    owner = f"$a {NASTY}"
    texts = dict.fromkeys(("id", "run_id", "task_context", "workspace_context"), NASTY)
    structured = {"overview": NASTY, "actions": [NASTY]}
    summaries = {"brief": NASTY, "detailed": f"{NASTY}\nlast", "structured": structured, "source": "model"}
    nasty = a_turn(
        1,
        **{**texts, "owner_key": owner, "summaries": summaries, "insights": [NASTY]},
        tool_calls=[{"name": NASTY, "arguments": NASTY, "result": {NASTY: float("nan")}}],
        thinking_phase={"rounds": [{"round_number": 1, "content": NASTY}]},
    )
    await desk.keep(nasty)
    unreadable_turns = (
        {**a_turn(2, owner_key=owner), "summaries": NASTY},
        {**a_turn(3, owner_key=owner), "tool_calls": [{"name": "t", "result": b"\xff"}]},
    )
    mongo_janitor[database_name]["turns"].insert_many(unreadable_turns)
    unreadable = "nexus: 2 turns cannot be read and are left out; the first is turn "
    for words in (("list",), ("list", "--json")):
        done = await desk.run(*words, "--owner", owner, "--session", "s1")
        assert done.returncode == 0
        assert done.stderr.startswith(unreadable)
        assert is_printable(done.stdout + done.stderr)
        assert "[31mred" in done.stdout
    for form in ((), ("--json",)):
        shown = await desk.said("show", "1", "--owner", owner, "--session", "s1", *form)
        assert is_printable(shown)
    faults = {"2": "summaries: Input should be a valid dictionary", "3": "it holds something"}
    for number, fault in faults.items():
        said = await desk.refused("show", number, "--owner", owner, "--session", "s1")
        assert said.startswith(f"turn {number} cannot be read: {fault}")
        assert "Summaries" not in said
