"""Claims of due work; what is done with them is tried with turns and with compactions."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import anyio

from nexus.core.ports import Row
from nexus.services.due_work import WorkClaim, claim_due
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
