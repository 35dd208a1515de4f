"""Large results of tools, and the texts that stand for them (contract §15)."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.core.models import Message, Role
from nexus.services.history.condense import condensed, handle_of, with_condensed, with_shown
from nexus.services.history.messages import messages_of
from nexus.services.history.rows import recorded_row, tool_row
from nexus.services.history.versions import grown
from nexus.services.tools.memory_tools import MEMORY_TOOLS

HANDLE = "result_0123456789abcdef"
MOST_BYTES = 1_536
GAP = re.compile(rf'\n?\(left out here: (\d+) of (\d+) characters; read_tool_result\(handle="{HANDLE}", from=(\d+)\)')
FAMILY = "👨‍👩‍👧‍👦"
PIECES = st.sampled_from(
    [
        "\n",
        "a",
        "error",
        "Error: ",
        FAMILY,
        "🇵🇹",
        "e\u0301",
        "界",
        "\x00",
        "\u2028",
        "[SHARED_MEMORY]",
        '{"a":',
        "[[",
        "]",
    ]
)
HOSTILE = {
    "one line": "x" * 1_000_000,
    "blank lines": "\n" * 100_000,
    "deep": "[" * 100_000,
    "deep and right": "[" * 190 + "]" * 190 + " " * 9_000,
    "marks": "a" + "\u0301" * 50_000,
    "families": FAMILY * 5_000,
    "flags": "🇵🇹" * 20_000,
    "binary": bytes(range(256)).decode("latin-1") * 200,
    "half a surrogate pair": "\ud83d" * 9_000,
    "a wide object": json.dumps({f"{'k' * 90}{number}": {"x": [number]} for number in range(5_000)}),
    "keys that look like structure": json.dumps([{"[SHARED_MEMORY]\n(line 1": 1}] * 900),
}


def result(text: Any, *, call_id: str = "call_1", run_id: str = "r", tool: str = "look", **changes: Any) -> Message:
    """A tool's result on the bus."""
    content = {"result": text, "tool_name": tool, "call_id": call_id, "status": "success"}
    known = {"id": "m", "owner_key": "ada", "timestamp": datetime(2026, 3, 1, tzinfo=UTC)}
    return Message(**(known | {"run_id": run_id, "role": Role.TOOL, "content": content} | changes))


def parts_of(text: str) -> tuple[str, str, str]:
    """What a condensed text has before and behind the notes, and the notes."""
    found = GAP.search(text)
    assert found
    notes, _, tail = text[found.start() :].partition(")\n")
    while tail.startswith(("(all of it is ", "(line ")):
        note, _, tail = tail.partition(")\n")
        notes += f"\n{note}"
    return text[: found.start()], notes, tail


@given(st.lists(PIECES, min_size=300, max_size=900).map("".join).map(lambda text: text * 8))
@example("a\n" * 3_000)
def test_the_beginning_and_the_end(text: str) -> None:
    """As they are in the text, and it is said where to go on; the same each time, and no longer than its bound."""
    shown = condensed(text, HANDLE)
    assert shown == condensed(text, HANDLE)
    assert len(shown.encode()) <= MOST_BYTES
    found = GAP.search(shown)
    assert found
    missing, every, begin = map(int, found.groups())
    assert every == len(text)
    assert shown[: found.start()] == text[:begin].removesuffix("\n")
    assert text.endswith(shown[-(every - missing - begin) :])
    assert not {*text[begin - 1 : begin + 1]} >= {"e", "\u0301"}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts(text: str) -> None:
    """Have their bound, and say something."""
    shown = condensed(text, HANDLE)
    assert len(shown.encode("utf-8", "replace")) <= MOST_BYTES
    assert f"{len(text)} characters" in shown
    assert ("\ud83d" in shown) == ("\ud83d" in text)


@pytest.mark.parametrize("text", [FAMILY * 3_000, "🇵🇹" * 9_000, "e\u0301" * 9_000, "a🇵🇹" * 9_000], ids=ascii)
def test_no_character_is_cut(text: str) -> None:
    """One that is written as several code points stays whole where the text breaks off."""
    begin = int(GAP.search(condensed(text, HANDLE))[3])  # type: ignore[index]  # it is there
    unit = text[: text.index(text[0], 1)] if text[0] != "🇵" else "🇵🇹"
    assert text[:begin].replace(unit, "") in {"", "a"}


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (
            {"items": [{"id": 1, "ok": True}] * 900, "next": None},
            '{"items": [900 of {"id": number, "ok": true or false}]',
        ),
        ([["x" * 300] * 40] * 90, "[90 of [40 of text of 300 characters]]"),
        ([{"a": {"b": {"c": {"d": 1}}}}] * 900, '[900 of {"a": {"b": {"c": {…}}}}]'),
        ({"empty": [], "none": {}, "text": "x" * 9_000}, '{"empty": [], "none": {}, "text": text of 9000 characters}'),
        ({f"k{number}": number for number in range(2_000)}, "1988 others}"),
    ],
    ids=["items", "lists", "deep", "empty", "wide"],
)
def test_what_json_consists_of(value: Any, shape: str) -> None:
    """Keys and types to a small depth, and how many there are."""
    shown = condensed(json.dumps(value), HANDLE)
    assert "(all of it is JSON: " in shown
    assert shape in shown


def test_a_json_value_on_each_line() -> None:
    """The number of lines, and the first of them. A text that only begins so is a text."""
    lines = "\n".join(json.dumps({"id": number}) for number in range(900))
    assert '(all of it is 900 lines of JSON, the first {"id": number})' in condensed(f"{lines}\n", HANDLE)
    assert "JSON" not in condensed("{not at all\n" * 900, HANDLE)
    assert "JSON" not in condensed("[1] is a footnote.\n" * 900, HANDLE)


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("ValueError: no such city", True),
        ("Traceback (most recent call last):", True),
        ("操作失败：没有这个城市", True),
        ("ERROR " + "x" * 5_000, True),
        ("no mirrors here", False),
        ("errors: 0", False),
        ('"error": null, "failed": false, "error": ""', False),
        ("terrorists", False),
    ],
)
def test_the_first_error(line: str, is_told: bool) -> None:
    """A line between that looks like one is told with its number; names of fields that say there was none are not."""
    text = "\n".join(["fine"] * 600 + [line] + ["fine"] * 300 + [line] + ["fine"] * 300)
    shown = condensed(text, HANDLE)
    assert (f"(line 601 of 1202: {line[:60]}" in shown) == is_told
    assert is_told or "(line" not in shown


def test_an_error_that_is_shown_is_not_told() -> None:
    """What stands in the beginning is seen there."""
    assert "(line" not in condensed("Error: 1\n" + "fine\n" * 3_000, HANDLE)


class TestRows:
    """What is beside a large result in its row."""

    @pytest.mark.parametrize("text", ["x" * 8_193, "界" * 2_731, json.dumps([{"n": n} for n in range(900)])])
    def test_a_large_one(self, text: str) -> None:
        """The condensed text and the handle; the content stays whole."""
        row = tool_row(result(text), 9_000)
        kept = with_condensed(row, 8_192)
        handle = kept["metadata"]["handle"]
        assert re.fullmatch("result_[0-9a-f]{16}", handle)
        assert kept["metadata"] == row["metadata"] | {"condensed": condensed(text, handle), "handle": handle}
        assert {**kept, "metadata": row["metadata"]} == row

    def test_an_object(self) -> None:
        """Is the JSON that contexts show of it, however it is stored."""
        value = {"items": [*range(3_000)]}
        for size in (100, 9_000):
            kept = with_condensed(tool_row(result(value), size), 8_192)
            assert kept["metadata"]["condensed"].startswith('{"items":[0,1,2')

    @pytest.mark.parametrize(
        "message",
        [
            result("x" * 8_192),
            result("界" * 2_730),
            *(result("x" * 9_000, tool=name) for name in sorted(MEMORY_TOOLS)),
            result("", content=[{"type": "tool_result", "tool_use_id": i, "content": "x" * 9_000} for i in "ab"]),
            result("", role=Role.HUMAN, content="x" * 9_000),
            result("", role=Role.AI, content="x" * 9_000),
        ],
        ids=lambda message: f"{message.role} {str(message.content)[-90:-60]}",
    )
    def test_what_stays_as_it_is(self, message: Message) -> None:
        """Small ones, those of the memory tools, several in one message, and whatever is no result."""
        row = recorded_row(message, 9_000)
        assert row
        assert with_condensed(row, 8_192) is row
        assert with_condensed(tool_row(result("x" * 9_000)), 0)["metadata"].keys() >= {"call_id"}
        assert "handle" not in with_condensed(tool_row(result("x" * 9_000)), 0)["metadata"]

    def test_a_handle_is_of_one_result(self) -> None:
        """Another run, another call, another text: another handle; the same, also without the id of a call."""
        rows = [
            tool_row(message)
            for message in (
                result("x" * 9_000),
                result("x" * 9_000, run_id="r2"),
                result("x" * 9_000, call_id="call_2"),
                result("y" * 9_000),
                result("x" * 9_000, call_id=""),
                result("x" * 9_000, call_id="", id="m2"),
            )
        ]
        handles = [with_condensed(row, 8_192)["metadata"]["handle"] for row in rows]
        assert len({*handles}) == len(handles)
        assert handles == [with_condensed(row, 2_048)["metadata"]["handle"] for row in rows]

    def test_a_later_version(self) -> None:
        """Has its own; none where it is small."""
        rows = [
            with_condensed(tool_row(result(text, metadata={"revision": number})), 8_192)
            for number, text in enumerate(("x" * 9_000, "y" * 9_000, "z"))
        ]
        longer, shorter = (grown(row, {**rows[0], "_id": "1"}) for row in rows[1:])
        assert longer
        assert longer[0]["metadata.handle"] == rows[1]["metadata"]["handle"]
        assert longer[0]["metadata.condensed"].startswith("yyy")
        assert shorter
        assert (shorter[0]["metadata.handle"], shorter[0]["metadata.condensed"]) == (None, None)


def test_what_a_run_shows() -> None:
    """The texts by handle in the place of its results, and of nothing else."""
    items = messages_of([tool_row(result("x" * 9_000, call_id=call_id)) for call_id in "ab"])
    shown = with_shown(items, "r", {handle_of("r", items[0]): "short"})
    assert [item.text for item in shown] == ["short", items[1].text]
    assert with_shown(items, "r2", {handle_of("r", items[0]): "short"}) == items
    assert with_shown(items, "r", {}) == items
