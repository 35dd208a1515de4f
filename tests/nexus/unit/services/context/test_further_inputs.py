"""What a person says while a run is under way is recorded once and shown where it was said (contract §11)."""

import json
from typing import Any

import anyio
import pytest

from nexus.core.models import Message, Role
from nexus.core.ports import Row
from nexus.services.history.rows import further_row, llm_row
from tests.nexus.support.waiting import PATIENCE_S
from tests.nexus.unit.services.parts import Parts, opened, request

AGENT = {"kind": "sub", "id": "scout", "role": "You look."}
LATER = [
    {"id": "ai_1", "role": "AI", "content": "Oslo, then?", "timestamp": "2025-12-10T08:01:00Z"},
    {"id": "more", "role": "HUMAN", "content": "no, Bergen 🌧", "timestamp": "2025-12-10T08:02:00Z"},
]
ANSWER = {"id": "ai_2", "role": "AI", "content": "Rain in Bergen.", "timestamp": "2025-12-10T08:03:00Z"}


def asked(number: int, layout: str, later: list[dict[str, Any]] | None = None, **metadata: Any) -> Message:
    """A request of the session `s`."""
    return request("Oslo?", f"msg_{number}", later=later, run_metadata={"layout": layout, "session_id": "s"} | metadata)


async def flushed(parts: Parts) -> list[Row]:
    """The rows of the person's words, when all is written, as they came."""
    with anyio.fail_after(PATIENCE_S):
        await parts.persistence.flush()
    return sorted((row for row in parts.store.messages if row["role"] == "HUMAN"), key=lambda row: row["timestamp"])


@pytest.mark.parametrize("layout", ["dialogue", "agent", "thinking"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_in_a_history(layout: str, *, is_first: bool) -> None:
    """Also of the run's first request; however often the run goes on, and on the bus as well, it is one row."""
    words = Message(id="more", run_id="run_1", owner_key="ada", role=Role.HUMAN, content="no, Bergen 🌧")
    async with opened() as parts:
        if not is_first:
            await parts.build(asked(1, layout))
        for number in (2, 3):
            assert (await parts.build(asked(number, layout, LATER)))["status"] == "success"
            assert parts.persistence.offer(further_row(words, 10), 10)
            await flushed(parts)
        rows = await flushed(parts)
    assert [(row["id"], row["session_id"], row["content"]) for row in rows] == [
        ("human_of_run_1", "s", "Oslo?"),
        ("more", "s", "no, Bergen 🌧"),
    ]
    assert all("sub_agent_internal" not in row["metadata"] for row in rows)


@pytest.mark.parametrize("is_first", [True, False])
async def test_what_is_said_to_a_sub_agent(*, is_first: bool) -> None:
    """It is internal to that one."""
    async with opened() as parts:
        if not is_first:
            await parts.build(asked(1, "agent", agent=AGENT))
        await parts.build(asked(2, "agent", LATER, agent=AGENT))
        rows = await flushed(parts)
    assert [(row["metadata"]["sub_agent_internal"], row["metadata"]["agent_id"]) for row in rows] == [
        (True, "scout")
    ] * 2


@pytest.mark.parametrize("layout", ["dialogue", "agent"])
async def test_where_it_is_shown(layout: str) -> None:
    """In the next run, between what was said before and after it; in `dialogue` a run has one answer, its last."""
    async with opened() as parts:
        await parts.build(asked(1, layout))
        await parts.build(asked(2, layout, LATER))
        for each in (LATER[0], ANSWER):
            answer = Message(**each, run_id="run_1", owner_key="ada")
            assert parts.persistence.offer(llm_row(answer, 10), 10)
        await flushed(parts)
        metadata = {"layout": layout, "session_id": "s"}
        content = await parts.build(request("and now?", "msg_9", "run_2", run_metadata=metadata))
    shown = json.dumps(content["messages"], ensure_ascii=False)
    said = ["Oslo?", "no, Bergen 🌧", "Rain in Bergen.", "and now?"]
    places = [shown.index(text) for text in said]
    assert places == sorted(places)
    assert shown.count("Bergen 🌧") == 1
    if layout == "agent":
        assert places[0] < shown.index("Oslo, then?") < places[1]


async def test_without_ids() -> None:
    """Histories of other systems name none: each message of the run is one row, in each of its requests."""
    later = [{"role": "assistant", "content": "Oslo, then?"}, {"role": "user", "content": "no, Bergen"}]
    async with opened() as parts:
        for number in (1, 2):
            await parts.build(asked(number, "agent", later))
        await parts.build(asked(3, "agent", [*later, {"role": "user", "content": "and Voss"}]))
        rows = await flushed(parts)
    assert sorted(row["content"] for row in rows) == ["Oslo?", "and Voss", "no, Bergen"]


async def test_while_the_store_is_away() -> None:
    """It is written when the store is back."""
    async with opened() as parts:
        await parts.build(asked(1, "dialogue"))
        parts.store.down = True
        await parts.build(asked(2, "dialogue", LATER))
        assert parts.persistence.unwritten == 1
        parts.store.down = False
        rows = await flushed(parts)
    assert [row["id"] for row in rows] == ["human_of_run_1", "more"]
