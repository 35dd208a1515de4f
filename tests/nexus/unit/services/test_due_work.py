"""Claims of due work; what is done with them is tried with turns and with compactions."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest

from nexus.core.errors import StoreRejectedError
from nexus.core.metrics import Event
from nexus.core.models import LONG_AGO, utc_now
from nexus.core.ports import Row
from nexus.services.due_work import NOTHING_DUE, WorkClaim, WorkSignal, after_unusable_reply, claim_due, run_due_work
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.virtual_time import VirtualLoop


def test_a_store_that_is_slow_to_claim() -> None:
    """Its claim is waited for: one given up would keep the document from everyone until it has run out."""

    async def claim(_now: datetime, _until: datetime) -> Row | None:
        await anyio.sleep(3)
        return {"id": "a"}

    async def write(_document: Row, _changes: Mapping[str, Any], _seen: Mapping[str, Any]) -> bool:
        return True

    async def claimed() -> WorkClaim | None:
        return await claim_due(claim, write, lease_s=15, unchanged=())

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        found = runner.run(claimed())
    assert found
    assert found.document == {"id": "a"}


@pytest.mark.parametrize("error", [StoreRejectedError("not a primary any more"), RuntimeError("boom")])
def test_a_store_that_takes_no_renewals(error: Exception) -> None:
    """The piece is left to the next claim, and the work on others goes on; an unexpected fault is counted."""
    waiting = [{"id": "b"}, {"id": "a"}]
    done: list[str] = []

    async def claim(_now: datetime, _until: datetime) -> Row | None:
        return waiting.pop() if waiting else None

    async def write(_document: Row, _changes: Mapping[str, Any], _seen: Mapping[str, Any]) -> bool:
        raise error

    async def claimed() -> WorkClaim | None:
        return await claim_due(claim, write, lease_s=15, unchanged=())

    async def do(piece: WorkClaim) -> None:
        await anyio.sleep(12)
        done.append(piece.document["id"])

    async def served() -> None:
        with anyio.move_on_after(60):
            await run_due_work(claimed, do, WorkSignal(), 1, metrics)

    metrics = RecordingMetrics()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(served())
    assert done == ["a", "b"]
    assert (metrics.counted[Event.BACKGROUND_FAULT] > 0) == isinstance(error, RuntimeError)


@pytest.mark.parametrize("attempts", [0, "many", float("nan"), -1, 2**63 - 1])
def test_failed_work_is_tried_again_later(attempts: Any) -> None:
    """After an hour and not at once, else a fault that stays would be repeated without a pause; it is counted."""
    document: dict[str, Any] = {"id": "a", "due_at": LONG_AGO, "attempts": attempts}

    async def claim(now: datetime, until: datetime) -> Row | None:
        if document["due_at"] > now:
            return None
        document["due_at"] = until
        return {**document}

    async def write(_document: Row, changes: Mapping[str, Any], _seen: Mapping[str, Any]) -> bool:
        document.update(changes)
        return True

    async def claimed() -> WorkClaim | None:
        return await claim_due(claim, write, lease_s=15, unchanged=())

    async def do(_piece: WorkClaim) -> None:
        raise RuntimeError("boom")

    async def served() -> None:
        with anyio.move_on_after(5):
            await run_due_work(claimed, do, WorkSignal(), 1, metrics)

    metrics = RecordingMetrics()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(served())
    assert document["attempts"] == 1
    assert timedelta(minutes=59) < document["due_at"] - utc_now() <= timedelta(hours=1)
    assert metrics.counted == {Event.BACKGROUND_FAULT: 1}


def test_unusable_replies_end_the_work() -> None:
    """Pauses double up to a day; after forty, or with the last call, nothing is due any more."""
    pauses = [after_unusable_reply({"attempts": attempts}, 30, "no")["due_at"] - utc_now() for attempts in (0, 1, 38)]
    assert [round(pause.total_seconds()) for pause in pauses] == [30, 60, 86_400]
    over = {"given_up": "it is empty", **NOTHING_DUE}
    assert after_unusable_reply({"attempts": 39}, 30, "it is empty") == {"attempts": 40, **over}
    assert after_unusable_reply({}, 30, "it is empty", is_last=True) == {"attempts": 1, **over}
