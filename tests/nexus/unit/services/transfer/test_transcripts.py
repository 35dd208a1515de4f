"""Transcripts of other systems as rows of a session."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, messages_to_dict

from nexus.core.models import Why
from nexus.services.history.messages import read_messages
from nexus.services.history.transcript import transcript_of_rows
from nexus.services.transfer.transcripts import Imported, messages_in, rows_of
from tests.nexus.support.sdk_transcripts import GOAL, INSTRUCTIONS, SAID, SDKS, THANKS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def imported(value: Any, *, session: str = "s1", now: datetime = NOW) -> list[Imported]:
    """The messages of a transcript with this JSON value, or of a file with these bytes."""
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return [*rows_of(messages_in(content), "ada", session, now)]


def rows(value: Any, *, session: str = "s1", now: datetime = NOW) -> list[Any]:
    """The rows that are stored of it."""
    return [message.row for message in imported(value, session=session, now=now) if message.row]


def said(stored: Sequence[Any]) -> list[Any]:
    """What contexts show of rows: texts, calls and results."""
    messages, faults = transcript_of_rows(stored)
    assert faults == 0
    return [
        item
        for message in messages
        for item in [
            *([message.text] if message.text else []),
            *((call.name, dict(call.arguments)) for call in message.calls),
        ]
    ]


@pytest.mark.parametrize("sdk", SDKS)
def test_what_sdks_make(sdk: str) -> None:
    """Everything that was said is there, in its order; instructions are stored, and thinking is named."""
    found = imported(SDKS[sdk][1]())
    stored = [message.row for message in found if message.row]
    image = f"{GOAL}\n[image: image/png, 1 KB]"
    assert said(stored) == [image, *SAID[1:]]
    assert (stored[0]["role"], stored[0]["content"]) == ("SYSTEM", INSTRUCTIONS)
    assert [message.repaired for message in found if message.repaired] == []
    left_out = {(entry.what, entry.why) for message in found for entry in message.left_out}
    assert left_out == ({("thinking", Why.THINKING)} if sdk in {"responses", "anthropic", "gemini"} else set())
    assert {row["metadata"]["source"] for row in stored} == {"import"}


def test_a_result_that_looks_like_another_envelope() -> None:
    """Is opened once: what is stored of it is what is shown."""
    answer = {"result": 5, "status": "late"}
    (stored,) = rows([{"role": "tool", "tool_call_id": "c", "content": {"result": answer, "status": "ok"}}])
    (message,) = read_messages([stored])
    assert message.row["content"] == stored["content"] == answer


@pytest.mark.parametrize("sdk", SDKS)
def test_runs(sdk: str) -> None:
    """A run begins with a person's message: not with the instructions, nor with results under the person's name."""
    stored = rows(SDKS[sdk][1]())
    runs = [row["run_id"] for row in stored]
    first = [run for index, run in enumerate(runs) if run not in runs[:index]]
    assert len(first) == 3
    assert runs == sorted(runs, key=first.index)
    begins = [row["role"] for index, row in enumerate(stored) if row["run_id"] not in runs[:index]]
    assert begins == ["SYSTEM", "HUMAN", "HUMAN"]
    assert THANKS in str(stored[runs.index(first[2])]["content"])


@pytest.mark.parametrize("sdk", SDKS)
def test_imported_twice(sdk: str) -> None:
    """The same messages have the same ids, at any time and in any layout of the JSON; other sessions have others."""
    value = SDKS[sdk][1]()
    ids = [row["id"] for row in rows(value)]
    assert len({*ids}) == len(ids)
    assert [row["id"] for row in rows(json.dumps(value, indent=2).encode(), now=NOW + timedelta(days=9))] == ids
    assert {row["id"] for row in rows(value, session="s2")}.isdisjoint(ids)


def test_a_transcript_that_has_grown() -> None:
    """Only what is new has new ids, also where it says what was said before."""
    turn = [{"role": "user", "content": "Again"}, {"role": "assistant", "content": "Done."}]
    before = rows(turn * 2)
    after = rows([*turn, *turn, *turn, {"role": "user", "content": "Enough"}], now=NOW + timedelta(hours=1))
    assert [row["id"] for row in after[:4]] == [row["id"] for row in before]
    assert [row["run_id"] for row in after[:4]] == [row["run_id"] for row in before]
    assert len({row["id"] for row in after}) == 7
    assert min(row["timestamp"] for row in after[4:]) > max(row["timestamp"] for row in before)


def test_what_only_says_the_same() -> None:
    """A transcript that has lost its beginning, or took another way, has messages of its own from there on."""
    given = [{"role": "user", "content": text} for text in ("Plan", "Continue", "Look", "Continue")]
    ids = [row["id"] for row in rows(given)]
    assert {row["id"] for row in rows(given[2:])}.isdisjoint(ids)
    other = [row["id"] for row in rows([given[0], {"role": "user", "content": "Wait"}, *given[2:]])]
    assert other[0] == ids[0]
    assert {*other[1:]}.isdisjoint(ids)


def test_other_instructions() -> None:
    """They are stored; the messages after them are the same."""
    said = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    before, after = (rows([{"role": "system", "content": f"It is day {day}."}, *said]) for day in (1, 2))
    assert [row["id"] for row in before[1:]] == [row["id"] for row in after[1:]]
    assert before[0]["id"] != after[0]["id"]


def test_places_in_the_store() -> None:
    """Rows have `_id`s in the order of what was said."""
    stored = rows([{"role": "user", "content": str(number)} for number in range(300)])
    assert [row["content"] for row in sorted(stored, key=lambda row: row["_id"])] == [str(each) for each in range(300)]


def test_lines() -> None:
    """JSON Lines, whatever ends them, behind a byte order mark; a text may hold what elsewhere ends a line."""
    odd = "a\u2028b\u0085c"
    lines = [{"role": "user", "content": odd}, {"messages": [{"role": "assistant", "content": "B"}]}]
    given = [json.dumps(line, ensure_ascii=False).encode() for line in lines]
    for content in (b"\r\n".join(given), b"\xef\xbb\xbf" + b"\n\n".join(given) + b"\n \n", b"".join(given)):
        assert [row["content"] for row in rows(content)] == [odd, "B"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "it is empty"),
        (b" \r\n", "it is empty"),
        (b"\xef\xbb\xbf", "it is empty"),
        (b'[{"role": "user", "content": "caf\xe9"}]', "not UTF-8 at byte 33"),
        ("[]".encode("utf-16"), "not UTF-8 at byte 0"),
        (b'[\n{"role": "user",\n}]', "line 3: not JSON: .* at column 1"),
        (b'{"role": "user", "content": "A"}\n{"role": "us', "line 2: not JSON"),
        (b"# Chat\nHello", "line 1: not JSON: Expecting value at column 1"),
        (b"[" * 1_000_000, "nested too deep"),
        (b'{"a":' * 1_000_000, "nested too deep"),
    ],
)
def test_files_that_are_no_transcript(content: bytes, fault: str) -> None:
    """The fault says where."""
    with pytest.raises(ValueError, match=fault):
        messages_in(content)


def test_one_bad_message_among_good_ones() -> None:
    """It is left out by its place, and the others are read."""
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    bad: list[Any] = [
        5,
        None,
        "Hello",
        [],
        {},
        {"role": "narrator", "content": "x"},
        {"role": 1},
        {"role": "user", "content": deep},
    ]
    good = {"role": "user", "content": "A"}
    found = imported([good, *bad, {**good, "content": "B"}])
    assert [message.said for message in found] == ["HUMAN A", *[""] * len(bad), "HUMAN B"]
    assert [entry for message in found for entry in message.left_out] == [
        ("message", f"message {number + 2}", Why.UNREADABLE) for number in range(len(bad))
    ]


def test_messages_that_say_nothing() -> None:
    """They are not stored, and said to be empty."""
    given = [
        {"role": "user", "content": " "},
        {"role": "assistant", "content": []},
        {"role": "system", "content": None},
    ]
    found = imported(given)
    assert [message.row for message in found] == [None] * 3
    assert [message.left_out[0].why for message in found] == [Why.EMPTY] * 3
    assert rows([{"role": "tool", "tool_call_id": "c", "content": ""}])[0]["content"] == ""


def test_what_another_system_calls_its_own() -> None:
    """Its ids, owners, runs and metadata name nothing here; none of it hides a message from contexts."""
    other = {
        "id": "x" * 1_000,
        "_id": {"$oid": "no"},
        "run_id": "",
        "owner_key": "eve",
        "session_id": "hers",
        "metadata": {
            "sub_agent_internal": True,
            "agent_id": "a",
            "session_id": "hers",
            "revision": 9,
            "phase": "thinking",
        },
    }
    [row] = rows([{**other, "role": "user", "content": "A"}])
    assert (row["owner_key"], row["session_id"], row["metadata"]) == ("ada", "s1", {"source": "import"})
    assert row["id"].startswith("msg_")
    assert row["run_id"].startswith("run_")
    odd: list[Any] = [None, 5, "x", [], {"tool_calls": 5}]
    for metadata in odd:
        assert rows([{"role": "user", "content": "A", "metadata": metadata}])[0]["content"] == "A"


def test_times() -> None:
    """They are the transcript's own, in its order, and none is later than the import."""
    given = [
        {"role": "system", "content": "A"},
        {"role": "user", "content": "B", "timestamp": "2025-03-01T12:00:00+01:00"},
        {"role": "assistant", "content": "C", "created_at": 1_740_826_860},
        {"role": "user", "content": "D", "created_at": "yesterday"},
        {"role": "user", "content": "E", "timestamp": "2025-01-01"},
        {"role": "user", "content": "F", "timestamp": "9999-12-31T23:59:59Z"},
        {"role": "user", "content": "G", "timestamp": "0001-01-01T00:00:00Z"},
    ]
    step, noon = timedelta(milliseconds=1), datetime(2025, 3, 1, 11, tzinfo=UTC)
    moments = [row["timestamp"] for row in rows(given)]
    assert moments[:3] == [noon - step, noon, noon + timedelta(minutes=1)]
    assert moments[3:] == [moments[2] + step * count for count in range(1, 5)]
    untimed = [row["timestamp"] for row in rows([{"role": "user", "content": str(each)} for each in range(3)])]
    assert untimed == [NOW - step * 2, NOW - step, NOW]
    late = [{"role": "user", "content": str(each), "timestamp": NOW.isoformat()} for each in range(3)]
    assert [row["timestamp"] for row in rows(late)] == untimed


def test_repairs() -> None:
    """Arguments that are no strict JSON, and what no store keeps, are named."""

    def call(arguments: Any) -> Any:
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}],
        }

    for kept in ('{"a": 1}', "{}", "", {"a": 1}, None):
        assert imported([call(kept)])[0].repaired == []
    for broken in ('{"a": 1', "{'a': 1}", "no", '"{\\"a\\": 1}"', [1]):
        assert imported([call(broken)])[0].repaired == ["the arguments of f are no strict JSON object"]
    [half] = imported(b'[{"role": "user", "content": "\\ud83d and NaN", "x": NaN, "n": 1e999}]')
    assert half.repaired == ["half a character, or a number, that no store keeps"]
    assert half.row
    assert half.row["content"] == "\ufffd and NaN"


def test_requests_and_responses() -> None:
    """Where the messages are, whichever API it is; texts in their place; several in one list."""
    text = {"role": "user", "content": "A"}
    completion = {"choices": [{"message": {"role": "assistant", "content": "B"}}], "created": 1_740_826_860}
    for value in ({"input": "A", "output": "B"}, [{"messages": [text]}, completion], {"contents": "A", "output": "B"}):
        assert [(row["role"], row["content"]) for row in rows(value)] == [("HUMAN", "A"), ("AI", "B")]
    assert rows(completion)[0]["timestamp"] == datetime(2025, 3, 1, 11, 1, tzinfo=UTC)
    assert rows({"choices": []}) == []


def test_messages_that_langchain_dumped() -> None:
    """Those of `dumpd`, as checkpoints have them, beside those of `messages_to_dict`."""
    history = [HumanMessage("hi"), AIMessage("", tool_calls=[{"id": "c", "name": "look", "args": {}}]), AIMessage("so")]
    assert said(rows([dumpd(message) for message in history])) == said(rows(messages_to_dict(history)))


def test_items_of_hosted_tools() -> None:
    """Items of OpenAI's Responses API without a role are the model's; those that are not understood are named."""
    [search] = imported([{"type": "web_search_call", "id": "ws_1", "status": "completed"}])
    assert [(entry.what, entry.why) for entry in search.left_out] == [("web_search_call", Why.UNREADABLE)]
    found = said(
        rows(
            [
                {
                    "type": "mcp_call",
                    "id": "m1",
                    "name": "f",
                    "arguments": '{"a":1}',
                    "output": "4",
                    "server_label": "s",
                },
                {"type": "computer_call_output", "call_id": "m1", "output": "5"},
            ]
        )
    )
    assert ("f", {"a": 1}) in found
    assert found[-1] == "5"


def test_a_result_together_with_a_text() -> None:
    """What a person adds to the results of tools begins no run, and is shown."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": "4"}
    stored = rows(
        [
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [result, {"type": "text", "text": "Hurry"}]},
        ]
    )
    assert len({row["run_id"] for row in stored}) == 1
    assert said(stored) == ["A", ("f", {}), "4", "Hurry"]
