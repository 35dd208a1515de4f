"""A phrase is found wherever it is remembered, and messages near it, and what is found says where (contract §7)."""

import json
from typing import Any

import pytest

from nexus.core.ports import Row
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.recall_source import WordCounts
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


def remembering(*rows: Row) -> tuple[FakeStore, WordCounts]:
    """A store with these messages, and a long-term memory of them."""
    store = FakeStore()
    store.plant("messages", [*rows])
    return store, WordCounts(store.messages)


def of_session(session_id: str, found: Row) -> Row:
    """The row in another session."""
    return {**found, "session_id": session_id}


class TestLongTermMemory:
    """What has the words of the query in other words and orders comes behind what has it as it is written."""

    async def test_this_session(self) -> None:
        """Behind the places of the phrase, and each message once; nothing of other sessions."""
        store, recall = remembering(
            row(1, "What is the dog called?"),
            row(2, "The dog is called Biscuit.", role="AI"),
            row(3, "Biscuit, nice for a dog"),
            of_session("t", row(4, "the dog Biscuit")),
        )
        text = await find(memory_on(store, recall=recall), "dog is called")
        assert text.split("\n\n") == [
            "'dog is called' was found in 1 place.",
            "Message of the assistant, 2026-03-01 12:02 UTC\n> The dog is called Biscuit.",
            "Besides, near it in words or meaning, best first: 2 messages of this session.",
            (
                "Message of the user, 2026-03-01 12:01 UTC\n> What is the dog called?\n"
                "After it, the assistant:\n> The dog is called Biscuit."
            ),
            "Message of the user, 2026-03-01 12:03 UTC\n> Biscuit, nice for a dog",
        ]

    async def test_all_sessions(self) -> None:
        """Date, session and speaker of each; what stands beside it, cut; the documents of this session first."""
        store, recall = remembering(
            of_session("a\nb", row(1, "What does the dog eat?\nAnd when?")),
            of_session("a\nb", row(2, "Biscuit eats\ngrain-free food.", role="AI")),
            of_session("a\nb", row(3, "字" * 500)),
            row(4, "biscuit", owner="bob"),
        )
        memory = memory_on(store, recall=recall)
        await update(memory, "Biscuit is a dog", 1)
        text = await find(memory, "biscuit", scope="owner")
        assert text.split("\n\n") == [
            "'biscuit' was found in 1 place.",
            "Overview, revision 1\n> Biscuit is a dog",
            "Besides, near it in words or meaning, best first: 1 message of all sessions.",
            (
                "Message of the assistant, session a b, 2026-03-01 12:02 UTC\n> Biscuit eats\n> grain-free food.\n"
                "Before it, the user:\n> What does the dog eat? And when?\n"
                f"After it, the user:\n> {'字' * 120}..."
            ),
        ]

    async def test_the_phrase_in_this_session_gives_way(self) -> None:
        """With all sessions the best come, and what has the phrase here only as far as there is room."""
        store, recall = remembering(
            *(row(number, f"pork chops, {number}") for number in range(3)),
            *(of_session("t", row(number, f"pork chops, {number}")) for number in range(3, 6)),
        )
        memory = memory_on(store, recall=WordCounts(recall.rows[3:]))
        for limit, found in ((3, [3, 4, 5]), (5, [1, 2, 3, 4, 5])):
            text = await find(memory, "pork chops", scope="owner", limit=limit)
            assert [number for number in range(6) if f"> pork chops, {number}" in text] == found

    @pytest.mark.parametrize("scope", ["session", "owner"])
    async def test_what_is_no_find(self, scope: str) -> None:
        """The run's own messages, what was looked for and found before, and what is internal to a sub-agent."""
        asked = {"id": "c", "type": "function", "function": {"name": "search_memory", "arguments": '{"query":"dog x"}'}}
        store, recall = remembering(
            row(1, "is there a dog? an x?", run="run_9"),
            row(2, [{"type": "text", "text": ""}], role="AI", tool_calls=[asked]),
            row(3, "dog and x were found", role="TOOL", tool_name="search_memory"),
            row(4, "an x and a dog", sub_agent_internal=True),
        )
        others = "" if scope == "session" else ", and no message of another session is near it"
        assert await find(memory_on(store, recall=recall), "dog x", scope=scope) == (
            f"Nothing that is remembered of this session has 'dog x' in it{others}. "
            "A shorter or rarer word may be found."
        )

    async def test_how_many(self) -> None:
        """At most `limit` messages, with and without the phrase together; searches before take nobody's place."""
        found_before = [row(100 + n, "a dog named x", role="TOOL", tool_name="search_memory") for n in range(20)]
        store, recall = remembering(*(row(n, f"dog x {n}" if n < 2 else f"x dog {n}") for n in range(9)), *found_before)
        text = await find(memory_on(store, recall=recall), "dog x", limit=4)
        assert text.count("Message of the user") == 4
        assert text.count("> dog x") == 2

    @pytest.mark.parametrize("text", ["字" * 40_000 + " 字典 " + "字" * 20_000, "a\x85b\u2028字典\rc"])
    async def test_long_and_odd_texts(self, text: str) -> None:
        """A find is short, shows the words, and every line of it is quoted."""
        store, recall = remembering(*(of_session("t", row(number, text)) for number in range(50)))
        found = await find(memory_on(store, recall=recall), "字典 嗎", scope="owner", limit=50)
        assert len(found) < 60_000
        assert found.count("字典") == 51
        heads = [line for line in found.splitlines()[1:] if line and not line.startswith("> ")]
        assert {line.partition(",")[0] for line in heads} == {"Message of the user"}

    async def test_it_is_away(self) -> None:
        """What has the phrase is found, and it is said what was not searched."""
        store, recall = remembering(row(1, "To Porto"))
        recall.away = True
        for source, scope, fault in (
            (None, "owner", "Other sessions cannot be searched now: what was found is of this session alone."),
            (recall, "owner", "Other sessions cannot be searched now: what was found is of this session alone."),
            (recall, "session", "Messages that are near it in words or meaning cannot be searched now."),
        ):
            text = await find(memory_on(store, recall=source), "porto", scope=scope)
            assert text.split("\n\n") == [
                "'porto' was found in 1 place.",
                "Message of the user, 2026-03-01 12:01 UTC\n> To Porto",
                fault,
            ]
        assert fault in await find(memory_on(store, recall=recall), "Faro")
