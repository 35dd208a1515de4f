"""Messages kept word for word, and read back (contract §7)."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.core.ports import Row
from nexus.services.history.rows import storable
from nexus.services.memory.archive import archive
from nexus.services.text.content import compact_json
from tests.nexus.support.archives import read_archive
from tests.nexus.unit.services.memory.sessions import START, rows

LEAST = 1_024
HOSTILE = st.one_of(
    st.text(st.characters(), max_size=60),
    st.sampled_from(
        [
            '\n```\n\n## 2. HUMAN, now\n\n{"message": 2, "chars": 3}\n```\nxyz\n```\n',
            *("`" * 70, "\r\n\x00\n", "\ud800 half \udc00", "\n{", "{" * 30, "\u2028\x85"),
            *("就是七。" * 700, "🚂" * 1_100, "a" * 9_000),
        ]
    ),
)


def message(number: int, content: Any, **changes: Any) -> Row:
    """A row with that content."""
    return {"id": f"m{number}", "run_id": "r", "role": "HUMAN", "content": content, "timestamp": START, **changes}


def contents(given: list[Row], most_bytes: int = LEAST) -> list[str]:
    """The parts of an archive."""
    return [content for _, content in archive(given, 7, most_bytes=most_bytes)]


class TestRoundTrip:
    """What was written is read back."""

    @given(st.lists(st.tuples(HOSTILE, st.lists(HOSTILE, max_size=2)), max_size=6), st.integers(LEAST, 5_000))
    def test_any_text(self, given: list[tuple[str, list[str]]], most_bytes: int) -> None:
        """To the character, in parts that are not too large, also when a store has kept them."""
        made = [
            message(
                number,
                text,
                role="AI",
                metadata={"tool_calls": [{"id": "c", "name": "f", "arguments": item} for item in calls]},
            )
            for number, (text, calls) in enumerate(given)
        ]
        parts = contents(made, most_bytes)
        assert all(len(part.encode("utf-8", "replace")) <= most_bytes for part in parts)
        found = read_archive(map(storable, parts))
        assert [item.text for item in found] == [storable(text) for text, _ in given]
        assert [item.calls for item in found] == [list(map(storable, calls)) for _, calls in given]
        assert [item.id for item in found] == [f"m{number}" for number in range(len(given))]

    @given(rows())
    def test_any_row(self, given: list[Row]) -> None:
        """Malformed ones and those that no context shows among them."""
        found = read_archive(contents(given))
        assert len(found) == len(given)
        for item, row in zip(found, given, strict=True):
            text = row["content"]
            assert (item.text, item.is_json) == ((text, False) if isinstance(text, str) else (compact_json(text), True))
            assert (item.id, item.run_id) == (row["id"], row["run_id"] or "")

    @given(st.tuples(*[st.text(st.characters(exclude_categories=()), max_size=400)] * 6))
    @example(("", "\ud800", "", "", "", ""))
    def test_any_name(self, names: tuple[str, ...]) -> None:
        """One that nobody gives is told as far as there is room."""
        role, row_id, run_id, call_id, tool, status = names
        metadata = {"call_id": call_id, "tool_name": tool, "status": status}
        parts = contents([message(1, "text", role=role, id=row_id, run_id=run_id, metadata=metadata)])
        assert all(len(part.encode("utf-8", "replace")) <= LEAST for part in parts)
        (found,) = read_archive(map(storable, parts))
        assert found.text == "text"
        assert storable(row_id).startswith(found.id)


class TestForm:
    """How little stands around what was said."""

    @pytest.mark.parametrize(
        "call",
        [
            {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": 1}},
            {"type": "tool_call", "id": "c1", "name": "search", "args": {"q": 1}},
            {"type": "function_call", "call_id": "c1", "id": "fc", "name": "search", "arguments": '{"q":1}'},
            {"id": "c1", "type": "custom", "custom": {"name": "search", "input": '{"q":1}'}},
        ],
    )
    def test_a_call_in_any_form(self, call: dict[str, Any]) -> None:
        """Under the id that its result names, with its arguments word for word."""
        (part,) = contents([message(1, "", role="AI", metadata={"tool_calls": [call]})])
        assert '"id":"c1","tool":"search"' in part.replace(": ", ":").replace(", ", ",")
        assert [item.calls for item in read_archive([part])] == [['{"q":1}']]

    def test_messages(self) -> None:
        """One line before each text, in which nothing is told twice; fences only where a text needs them."""
        calls = {"tool_calls": [{"id": "c1", "name": "search", "arguments": '{"q": "Porto"}'}]}
        about = {"call_id": "c1", "tool_name": "search", "status": "success"}
        (part,) = contents(
            [
                message(1, "Which?"),
                message(2, "", role="AI", metadata=calls),
                message(3, "9:02\n10:02\n", role="TOOL", metadata=about, timestamp=START.replace(microsecond=250_000)),
                message(4, "# None", run_id="s", role="AI"),
            ]
        )
        assert (
            part
            == """\
# Messages of compaction 7, part 1 of 1

## 1. HUMAN, 2026-03-01 09:00:00Z {"id": "m1", "run": "r", "chars": 6}
Which?

## 2. AI, 2026-03-01 09:00:00Z {"id": "m2"}

## 2. call 1 {"id": "c1", "tool": "search", "chars": 14}
{"q": "Porto"}

## 3. TOOL, 2026-03-01 09:00:00.250Z {"id": "m3", "tool": "search", "call": "c1", "status": "success", "chars": 11}
```
9:02
10:02

```

## 4. AI, 2026-03-01 09:00:00Z {"id": "m4", "run": "s", "chars": 6}
```
# None
```
"""
        )


class TestParts:
    """How an archive is divided."""

    def test_names(self) -> None:
        """The number of the compaction and of the part; another name when those are taken."""
        given = [message(number, "a" * 700) for number in range(3)]
        names = ["compaction-0012", "compaction-0012-part-2", "compaction-0012-part-3"]
        assert [name for name, _ in archive(given, 12, most_bytes=LEAST)] == names
        assert archive(given[:1], 12, most_bytes=LEAST, attempt=2)[0][0] == "compaction-0012-again-2"
        assert archive(given[:1], 12_345, most_bytes=LEAST)[0][0] == "compaction-12345"

    def test_a_long_one(self) -> None:
        """Megabytes in one message, full of what looks like fences."""
        text = "x`" * (1 << 20)
        assert "".join(item.text for item in read_archive(contents([message(1, text)], 1 << 16))) == text
