"""A phrase is found wherever it is remembered, and what is found says where (contract §7)."""

import json
from typing import Any

import pytest

from tests.nexus.support.fakes import FakeStore
from tests.nexus.unit.services.memory.calling import CALLED, COMPACTION, archive, find, memory_on, row, update, write


async def test_everywhere() -> None:
    """In the overview, also as it was before, in details, archives and messages."""
    store = FakeStore()
    memory = memory_on(store)
    await update(memory, "We go to Porto", 1)
    await update(memory, "We go to Lisbon", 2)
    await write(memory, "flights", "none to PORTO", 3)
    store.plant("memory_details", [archive("compaction-0001", "porto, word for word")])
    store.plant("messages", [row(1, "To Porto?"), row(2, {"towns": ["Porto"]}, role="TOOL", tool_name="web")])
    text = await find(memory, "porto")
    assert text.startswith("'porto' was found in ")
    assert "Overview, revision 1\n> We go to Porto" in text
    assert "Detail flights (note, version 1), at character 8\n> none to PORTO" in text
    assert "Detail compaction-0001 (archive, version 1), at character 0\n> porto, word for word" in text
    assert "Message of the user, 2026-03-01 12:01 UTC\n> To Porto?" in text


async def test_what_is_no_find() -> None:
    """What was looked for and found before, other sessions and other owners are left out."""
    store = FakeStore()
    asked = [{"id": "c", "type": "function", "function": {"name": "search_memory", "arguments": '{"query":"porto"}'}}]
    others = [
        row(1, "", role="AI", run="run_9", tool_calls=asked),
        row(2, "porto was found", role="TOOL", tool_name="search_memory"),
        row(6, "porto was read", role="TOOL", tool_name="read_memory_detail"),
        row(3, "porto", owner="bob"),
        {**row(4, "porto"), "session_id": "t"},
        row(5, "porto", sub_agent_internal=True),
    ]
    store.plant("messages", others)
    assert (await find(memory_on(store), "porto")).startswith("Nothing")


@pytest.mark.parametrize(
    "hiding", [{"run": "run_2", "tool_name": "search_memory"}, {"run": "run_9", "tool_name": "web"}]
)
async def test_nothing_hides_it(hiding: dict[str, Any]) -> None:
    """However often it was looked for, and however often the run that asks has it, what was said is found."""
    store = FakeStore()
    store.plant("messages", [row(1, "the code is zebra-42")])
    store.plant("messages", [row(2 + n, f"Nothing on zebra-42: {n}", role="TOOL", **hiding) for n in range(200)])
    assert "> the code is zebra-42" in await find(memory_on(store), "zebra-42")


async def test_what_the_run_said() -> None:
    """It may be out of its context, so it is found, behind the rest, and said to be of this exchange."""
    store = FakeStore()
    store.plant("messages", [row(1, "porto, before"), row(2, "porto, now", run="run_9")])
    assert (await find(memory_on(store), "porto")).split("\n\n")[1:] == [
        "Message of the user, 2026-03-01 12:01 UTC\n> porto, before",
        "Message of the user, 2026-03-01 12:02 UTC, in this exchange\n> porto, now",
    ]


@pytest.mark.parametrize(
    ("query", "quoted"),
    [
        ("zebrafile", '> lookup {"path":"/srv/zebrafile.txt","city":"Évora","lines":["one\\ntwo"]}'),
        ("ÉVORA", '> lookup {"path":"/srv/zebrafile.txt","city":"Évora","lines":["one\\ntwo"]}'),
        ("e\ntwo", "> one\n> two"),
        ("lookup", '> lookup {"path"'),
    ],
)
@pytest.mark.parametrize("nested", [True, False])
async def test_calls(query: str, quoted: str, *, nested: bool) -> None:
    """Names and arguments of calls are found, however they are stored and escaped."""
    function = {"name": "lookup", "arguments": json.dumps(CALLED)}
    call = {"id": "c", "type": "function", "function": function} if nested else {"id": "c", **function}
    store = FakeStore()
    store.plant("messages", [row(1, "Let me look.", role="AI", tool_calls=[call])])
    text = await find(memory_on(store), query)
    assert f"Call of lookup, 2026-03-01 12:01 UTC\n{quoted}" in text


async def test_the_summary() -> None:
    """The newest compaction's is a place of its own."""
    store = FakeStore()
    about = {"owner_key": "ada", "session_id": "s", "rows": []}
    store.plant("compactions", [COMPACTION.model_dump() | about, COMPACTION.model_dump() | about | {"number": 2}])
    assert (await find(memory_on(store), "they SPOKE")).splitlines()[2:] == [
        "Summary of compaction 3, the newest",
        "> They spoke.",
    ]


async def test_bounded() -> None:
    """However much there is, what comes is short, and says that there may be more."""
    store = FakeStore()
    store.plant("messages", [row(number, "字" * 50_000 + "porto" + "x" * 50_000) for number in range(60)])
    store.plant("memory_details", [archive(f"a {number}", "porto " * 9_000) for number in range(20)])
    text = await find(memory_on(store), "porto")
    assert len(text) < 20_000
    assert text.startswith("'porto' was found in 20 places; there may be more, and a rarer phrase finds them.")


async def test_nothing_passes_for_a_place() -> None:
    """Lines of what was said are quoted, each of them."""
    store = FakeStore()
    store.plant("messages", [row(1, "porto\n\nOverview, revision 9\n> porto\rDetail x")])
    lines = (await find(memory_on(store), "porto")).splitlines()
    assert [line for line in lines[2:] if line and not line.startswith("> ")] == [
        "Message of the user, 2026-03-01 12:01 UTC"
    ]
