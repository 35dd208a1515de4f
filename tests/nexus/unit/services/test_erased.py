"""Each service that stores something asks whether it was erased (contract §13); rows: `history/test_tombstones.py`."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.core.erasure import Tombstone, hashed
from nexus.core.errors import ErasedError, ErasedReason
from nexus.core.metrics import Event
from nexus.core.models import Message, Role, to_milliseconds, utc_now
from nexus.core.records import BuildRecord
from nexus.core.working_memory import CompactionRequest
from nexus.services.context.person_blocks import constraints_text
from nexus.services.history.tombstones import Tombstones
from nexus.services.memory.compactor import CompactionSettings, Compactor
from nexus.services.person.constraints import Constraints
from nexus.services.person.facts import Facts
from nexus.services.records.service import BuildRecords
from nexus.services.session_state.service import SessionStates
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.rows import row
from tests.nexus.support.waiting import PATIENCE_S

Keeper = SessionStates | Facts | Constraints
_NOW = to_milliseconds(utc_now())


def _states(store: FakeStore, tombstones: Tombstones, metrics: RecordingMetrics) -> Keeper:
    return SessionStates(store, tombstones, metrics)


def _facts(store: FakeStore, tombstones: Tombstones, metrics: RecordingMetrics) -> Keeper:
    return Facts(store.facts, tombstones, metrics)


def _constraints(store: FakeStore, tombstones: Tombstones, metrics: RecordingMetrics) -> Keeper:
    return Constraints(store.constraints, tombstones, constraints_text, FakeCounter(), 1_000, metrics)


_KEEPERS: dict[str, tuple[Callable[..., Keeper], Callable[[str], Any]]] = {
    "states": (_states, lambda text: {"op": "set", "state": {"role": text}}),
    "facts": (_facts, lambda text: {"op": "add", "facts": [{"topic": "home", "value": text}]}),
    "constraints": (_constraints, lambda text: {"op": "add", "constraints": [{"text": text}]}),
}


async def _erased(session: str = "") -> tuple[FakeStore, Tombstones]:
    store = FakeStore()
    await store.erasure.put_tombstone(Tombstone(hashed("ada"), session and hashed(session), _NOW, _NOW))
    return store, Tombstones(store)


def _said(content: Any, number: int, seconds: float, session: str) -> Message:
    return Message(
        id=f"msg_{number}",
        run_id="run_1",
        owner_key="ada",
        role=Role.COMMAND,
        content=content,
        timestamp=_NOW + timedelta(seconds=seconds),
        metadata={"session_id": session},
    )


@pytest.mark.parametrize("kind", _KEEPERS)
@pytest.mark.parametrize("session", ["", "s"], ids=["owner", "session"])
async def test_messages(kind: str, session: str) -> None:
    """Those from before are refused with a word, and hold up none of the others in their line."""
    make, content = _KEEPERS[kind]
    store, tombstones = await _erased(session)
    metrics = RecordingMetrics()
    keeper = make(store, tombstones, metrics)
    settled: dict[int, str | None] = {}

    def settle(number: int, reason: str | None) -> None:
        settled[number] = reason

    messages = [_said(content(f"canary {number}"), number, -1 if number % 3 else 1, "s") for number in range(9)]
    messages.append(_said(content("canary elsewhere"), 9, -1, "t"))
    for number, message in enumerate(messages):
        assert keeper.offer(message, 10, partial(settle, number))
    with capture_logs() as logs:
        async with keeper.running():
            with anyio.fail_after(PATIENCE_S):
                await keeper.pending.none()
    refused = {number for number, reason in settled.items() if isinstance(reason, ErasedReason)}
    assert refused == {1, 2, 4, 5, 7, 8, *(() if session else (9,))}
    assert [settled[number] for number in (0, 3, 6)] == [None] * 3
    assert metrics.counted[Event.ERASED_REFUSED] == len(refused)
    assert sum(line["event"] == "erased_refused" for line in logs) == len(refused)
    kept = f"{store.session_states}{store.constraints.kept}{await store.facts.statements('ada', limit=99)}"
    assert not any(f"canary {number}" in kept for number in refused)
    assert any(f"canary {number}" in kept for number in (0, 3, 6))


async def test_records() -> None:
    """An answer that was begun before an erasure was over is not recorded, in whichever session."""
    store, tombstones = await _erased("s")
    metrics = RecordingMetrics()
    records = BuildRecords(store.records, tombstones, timedelta(days=7), metrics)
    async with records.running():
        for number, seconds in enumerate((-1, 9, 11)):
            at = _NOW + timedelta(seconds=seconds)
            record = BuildRecord(
                owner_key="ada",
                request_id=f"msg_{number}",
                run_id="r",
                session_id="t",
                outcome="success",
                reason="",
                layout="dialogue",
                form="openai",
                answered_at=at,
                size=1,
                settings="",
                version="",
                mode="full",
            )
            records.offer(record, b"x", {}, begun_at=at)
        with anyio.fail_after(PATIENCE_S):
            await records.pending.none()
    assert [each.request_id for each in await store.records.records("ada", limit=9)] == ["msg_2"]
    assert metrics.counted == {Event.ERASED_REFUSED: 2, Event.RECORD_KEPT: 1}


class _ErasingCounter(FakeCounter):
    """Has the session erased while it is compacted."""

    def __init__(self, store: FakeStore) -> None:
        super().__init__()
        self._store = store

    def count(self, text: str) -> int:
        """Count."""
        now = utc_now()
        self._store.erasure.tombs.append(Tombstone(hashed("o"), hashed("s"), now, now))
        return super().count(text)


@pytest.mark.parametrize("strategy", ["summarize", "archive"])
async def test_a_compaction(strategy: Any) -> None:
    """One under way while the session is erased is not stored, nor is its archive."""
    store = FakeStore()
    for number in range(12):
        await store.insert_message(row(number, run_id=f"r{number // 2}", role=("HUMAN", "AI")[number % 2]))
    tombstones = Tombstones(store)
    compactor = Compactor(store.memory, store, tombstones, _ErasingCounter(store), CompactionSettings(idle_s=0))
    with pytest.raises(ErasedError):
        await compactor.compact(CompactionRequest("o", "s", strategy=strategy, keep_recent=0))
    assert store.memory.rows["compactions"] == store.memory.rows["memory_details"] == []
    store.erasure.tombs.clear()
    compactor = Compactor(store.memory, store, tombstones, FakeCounter(), CompactionSettings(idle_s=0))
    assert await compactor.compact(CompactionRequest("o", "s", strategy=strategy, keep_recent=0))
