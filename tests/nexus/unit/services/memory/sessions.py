"""Rows of sessions for hypothesis: runs at once, tool calls of all kinds, clocks that differ, and what is malformed."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hypothesis import strategies as st

from nexus.core.ports import Row
from nexus.services.history.transcript import admit, transcript_of_rows

START: Final = datetime(2026, 3, 1, 9, tzinfo=UTC)
_IDS: Final = st.sampled_from(["a", "b", "c", ""])
_TOOLS: Final = st.sampled_from(["f", "g", "unknown"])
_TEXTS: Final = st.sampled_from(
    ["Is it 7?", "It is 7. 就是七。", "", " ", None, "🚂" * 40, "[Turn 3] x\n- y", {"n": 7}, ["t"]]
)
# Mostly none: most clocks agree.
_SKEWS: Final = st.sampled_from([0, 0, 0, 0, 0, 0, -5, 7, -900])


def object_id(second: int, number: int) -> str:
    """An `_id` of a row that was stored so many seconds after `START`."""
    return f"{int(START.timestamp()) + second:08x}{number:016x}"


@st.composite
def rows(draw: st.DrawFn, *, most: int = 24, foreign: bool = False) -> list[Row]:
    """Rows in the order in which they were stored, each with a `_id` and an `id` of its own."""
    second, made = 0, list[Row]()
    for number in range(draw(st.integers(0, most))):
        second += draw(st.sampled_from([0, 0, 1, 3, 400]))
        made.append(draw(_row(number, second)))
        if foreign and draw(st.integers(0, 9)) == 0:
            made[-1]["_id"] = f"foreign-{number}"
    return made


@st.composite
def _row(draw: st.DrawFn, number: int, second: int) -> Row:
    role = draw(st.sampled_from(["HUMAN", "AI", "AI", "TOOL", "TOOL", "ai", "SYSTEM", "COMMAND", 7]))
    metadata: Any = {}
    if role in {"AI", "ai"}:
        metadata = {"tool_calls": draw(st.one_of(st.none(), st.lists(_call(), max_size=3)))}
    elif role == "TOOL":
        metadata = {"call_id": draw(_IDS), "tool_name": draw(_TOOLS)}
    time: Any = START + timedelta(seconds=second + draw(_SKEWS))
    if draw(st.integers(0, 14)) == 0:
        time, metadata = draw(st.sampled_from([(None, metadata), ("?", metadata), (time, None), (time, 7)]))
    return {
        "_id": object_id(second, number),
        "id": f"m{number}",
        "run_id": draw(st.sampled_from(["r1", "r1", "r2", "r3", "", None])),
        "owner_key": "o",
        "session_id": "s",
        "role": role,
        "content": draw(_TEXTS),
        "timestamp": time,
        "metadata": metadata,
    }


@st.composite
def with_progress(draw: st.DrawFn) -> list[Row]:
    """Rows, and of some of their calls how far they have come; see `rows`. The ids of calls are those of one run."""
    made = draw(rows())
    for row in made:
        # Of two results that came before the call, and in other runs, a compaction may change which is shown.
        metadata = row["metadata"] if isinstance(row["metadata"], dict) else {}
        for known in (metadata, *(metadata.get("tool_calls") or ())):
            known |= {name: f"{row['run_id']}-{known[name]}" for name in ("id", "call_id") if known.get(name)}
    calls = [
        (row, call["id"])
        for row in made
        if isinstance(row["metadata"], dict)
        for call in row["metadata"].get("tool_calls") or ()
        if call["id"]
    ]
    told = (
        draw(st.lists(st.sampled_from(calls), max_size=4, unique_by=lambda one: (one[0]["run_id"], one[1])))
        if calls
        else []
    )
    for number, (row, call_id) in enumerate(told, 1_000):
        second = int(row["_id"][:8], 16) - int(START.timestamp()) + draw(st.sampled_from([0, 1, 400, 100_000]))
        state = draw(st.sampled_from(["working", "input_required", "working", "completed", "failed", "cancelled"]))
        known = {"source": "tool_progress", "call_id": call_id, "progress": {"state": state}}
        at = START + timedelta(seconds=second + draw(_SKEWS))
        same = {"run_id": row["run_id"], "owner_key": "o", "session_id": "s", "role": "TOOL", "content": ""}
        made.append({**same, "_id": object_id(second, number), "id": f"m{number}", "timestamp": at, "metadata": known})
    return sorted(made, key=lambda row: str(row["_id"]))


@st.composite
def approvals(draw: st.DrawFn) -> list[Row]:
    """Rows of runs at once in which calls are answered, each once at most, in any run, also several in one message."""
    made, unanswered, second = list[Row](), list[str](), 0
    for number in range(draw(st.integers(2, 12))):
        second += draw(st.sampled_from([0, 1, 3, 400]))
        calls = [f"c{number}-{index}" for index in range(draw(st.integers(0, 2)))]
        results = [unanswered.pop(draw(st.integers(0, len(unanswered) - 1))) for _ in unanswered[:2]]
        kind = draw(st.sampled_from(["said", "calls", "parts"]))
        content: Any = f"text {number}"
        metadata: Row = {}
        role = draw(st.sampled_from(["HUMAN", "AI"]))
        if kind == "calls":
            role, metadata = "AI", {"tool_calls": [{"id": call, "name": "f", "arguments": {}} for call in calls]}
        elif kind == "parts" and results:
            role, content = "user", [{"type": "text", "text": "x"}]
            content = [*({"type": "tool_result", "tool_use_id": call, "content": "z"} for call in results), *content]
        elif results:
            role, metadata = "TOOL", {"call_id": results[0], "tool_name": "f"}
        if kind == "calls":
            unanswered += [*calls, *results]
        elif kind != "parts":
            unanswered += results[1:]
        skew = draw(_SKEWS)
        made.append(
            {
                "_id": object_id(second, number),
                "id": f"m{number}",
                "run_id": draw(st.sampled_from(["r1", "r2", "r3"])),
                "role": role,
                "content": content,
                "timestamp": START + timedelta(seconds=second + skew),
                "metadata": metadata,
            }
        )
    return made


@st.composite
def _call(draw: st.DrawFn) -> dict[str, Any]:
    call_id, name = draw(_IDS), draw(_TOOLS)
    arguments = draw(st.sampled_from(['{"q": "x"}', "{", {"q": 1}, None]))
    if draw(st.booleans()):
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, "name": name, "arguments": arguments}


def blocks(rows: Sequence[Row]) -> dict[str, list[str]]:
    """What a context would show of the rows: for each message with calls its results, `""` for a lost one."""
    shown: dict[str, list[str]] = {}
    admitted = admit(transcript_of_rows(rows)[0], "rows")
    declared = ""
    for message, origin in zip(admitted.messages, admitted.origins, strict=True):
        if message["role"] == "tool":
            shown[declared].append(f"{origin.source}: {message['content']}" if origin else "")
        elif origin and origin.calls:
            declared = origin.source
            shown[declared] = [f"{message['content']} {call['function']}" for call in message["tool_calls"]]
    return shown


def orphans(rows: Sequence[Row]) -> set[str]:
    """The ids of results that a context would not show."""
    said = transcript_of_rows(rows)[0]
    shown = {origin.source for origin in admit(said, "rows").origins if origin}
    return {item.source for item in said if item.role == "tool"} - shown


def are_shown_as_before(kept: Sequence[Row], given: Sequence[Row]) -> bool:
    """Whether what stays of the given rows has the same calls with the same results.

    Where several calls have one id, a result of another run may come to another of them, for runs may change places,
    and a call without a result may come by one that answered none.
    """
    whole, spare, runs = blocks(given), orphans(given), {row["id"]: row["run_id"] for row in given}

    def is_own(said: str, call: str) -> bool:
        source = said.partition(":")[0]
        return source in runs and runs[source] == runs[call]

    def may_differ(now: str, before: str, call: str) -> bool:
        is_found = before == "" and now.partition(":")[0] in spare
        return is_found or not (is_own(now, call) or is_own(before, call))

    return orphans(kept) <= spare and all(
        now == before or may_differ(now, before, call)
        for call, shown in blocks(kept).items()
        for now, before in zip(shown, whole[call], strict=True)
    )
