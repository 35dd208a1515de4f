"""Erasing in passes: the tombstone first, until nothing more is found, wherever it is kept."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, get_args

import anyio
import pytest

from nexus.adapters.in_memory import MemoryBus, MemoryDeadLetters, MemoryLedger
from nexus.core.erasure import BUS_KINDS, STORE_KINDS, BusKind, Erasure, hashed
from nexus.core.errors import ErasedError, StoreUnavailableError
from nexus.core.models import utc_now
from nexus.core.ports import DeadLetter, OutboxRow
from nexus.services.erasure import KINDS, STAYS, Eraser
from nexus.services.history.tombstones import Made, Tombstones
from nexus.services.persistence import write_outbox_row
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import moment, row

OLD, NEW = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
CUT = datetime(2026, 2, 1, tzinfo=UTC)


def eraser(store: FakeStore, **parts: Any) -> Eraser:
    """One that does not wait."""
    return Eraser(store.erasure, settle_s=0, **parts)


def test_every_kind_has_its_words() -> None:
    """What is removed is shown, and what stays, too."""
    assert {*KINDS} == {*STORE_KINDS, *BUS_KINDS, "outbox", "letters"}
    assert {*STAYS} == {*get_args(BusKind)} - {*BUS_KINDS}


class Coming:
    """A bus on which something comes for so many passes, and has requests in hand for so many."""

    def __init__(self, passes: int, in_hand: int = 0) -> None:
        self.passes, self.in_hand, self.swept = passes, in_hand, 0

    async def sweep(self, owner_key: str, *, remove: bool) -> AsyncGenerator[Mapping[BusKind, int]]:
        """So many answers."""
        assert owner_key == "o"
        if remove:
            self.swept += 1
        yield {"answers": int(self.swept <= self.passes), "in_hand": int(self.swept <= self.in_hand), "unknown": 1}

    async def find_text(self, forms: Sequence[bytes]) -> AsyncGenerator[tuple[str, int]]:
        """The text, once."""
        yield "keys", len(forms) > 0


@pytest.mark.parametrize(("passes", "in_hand", "swept"), [(0, 0, 2), (1, 0, 2), (2, 0, 3), (0, 3, 4), (99, 0, 6)])
async def test_it_looks_again_until_nothing_is_found(passes: int, in_hand: int, swept: int) -> None:
    """Twice at least; not for ever, and then it says so. What does not say whose it is holds up nothing."""
    bus = Coming(passes, in_hand)
    done = await eraser(FakeStore(), kept=bus).erase(Erasure("o"))
    assert (bus.swept, done.removed.get("answers", 0), done.still_coming) == (swept, min(passes, 6), passes == 99)
    assert "unknown" not in done.removed


async def test_the_tombstone_comes_first() -> None:
    """Where it cannot be kept, nothing is removed; its time is that of the erasure, or the one that limits it."""
    store = FakeStore()
    await store.insert_message(row(1))
    store.failing = "put_tombstone"
    with pytest.raises(StoreUnavailableError):
        await eraser(store).erase(Erasure("o"))
    assert len(store.messages) == 1
    store.failing = ""
    before = utc_now() - timedelta(milliseconds=1)
    await eraser(store).erase(Erasure("o"))
    await eraser(store).erase(Erasure("o", "s", CUT))
    whole, limited = store.erasure.tombs
    assert (whole.owner, whole.session) == (hashed("o"), "")
    assert before <= whole.until <= utc_now()
    assert (limited.session, limited.until) == (hashed("s"), CUT - timedelta(milliseconds=1))
    assert limited.covers("s", CUT - timedelta(milliseconds=1))
    assert not limited.covers("s", CUT)


@pytest.mark.parametrize("before", [None, CUT])
async def test_work_that_begins_while_it_removes(before: datetime | None) -> None:
    """It is not stored, however long after the first tombstone it began, and though the same was erased before."""
    store = FakeStore()
    tombstones = Tombstones(store)
    begun: list[datetime] = []

    def begin(_kind: str, _count: int) -> None:
        # As if the removal had taken an hour up to here.
        store.erasure.tombs = [
            replace(each, erased_at=each.erased_at - timedelta(hours=1)) for each in store.erasure.tombs
        ]
        begun.append(utc_now())

    for _ in range(2):
        await store.insert_message(row(1, timestamp=OLD))
        begun.clear()
        await eraser(store).erase(Erasure("o", before=before), begin)
        assert len(store.erasure.tombs) == 1 or before is None
        with pytest.raises(ErasedError, match="while this was made"):
            await tombstones.raise_if_erased([Made("o", begun[0])])


def stop_after(scope: anyio.CancelScope, seen: Counter[str], batches: int, kind: str, count: int) -> None:
    """Cancel after so many messages."""
    seen[kind] += count
    if seen["messages"] == batches:
        scope.cancel()


async def test_broken_off_and_repeated() -> None:
    """Cancelled between any two batches, it goes on; the preview says what is left, and writes nothing."""
    store = FakeStore()
    for number in range(20):
        await store.insert_message(row(number))
    for batches in (1, 5, 9):
        seen = Counter[str]()
        with anyio.CancelScope() as scope:
            await eraser(store).erase(Erasure("o"), partial(stop_after, scope, seen, batches))
        assert scope.cancelled_caught
    kept = [*store.messages]
    assert (await eraser(store).preview(Erasure("o")))["messages"] == 5
    assert store.messages == kept
    assert (await eraser(store).erase(Erasure("o"))).removed["messages"] == 5
    assert store.messages == []


def letter(**fields: Any) -> DeadLetter:
    """A letter with a message of `o`."""
    message = {"id": "m", "run_id": "r", "owner_key": "o", "content": "canary", **fields}
    return DeadLetter("llm.results", json.dumps(message), "0" * 64, 1, body=json.dumps(message).encode())


LETTERS = {
    "other": letter(owner_key="p"),
    "bare": letter(),
    "s old": letter(metadata={"session_id": "s"}, timestamp=OLD.isoformat()),
    "t new": letter(metadata={"session_id": "t"}, timestamp=NEW.isoformat()),
    "s in its run": letter(content={"metadata": {"session_id": "s"}}, timestamp=NEW.isoformat()),
    "cut off": DeadLetter("x", "y", "1" * 64, 1, body=b'{"id": "m", "run_id": "r", "owner_key": "o", "content": "can'),
    "without body": DeadLetter("x", "z", "2" * 64, 1),
    "no message": DeadLetter("x", "w", "3" * 64, 1, body=b"\xff\x00 o"),
}


@pytest.mark.parametrize(
    ("erasure", "stay"),
    [
        (Erasure("o"), {"other", "without body", "no message"}),
        (Erasure("o", "s"), {"other", "without body", "no message", "t new"}),
        (Erasure("o", before=CUT), {"other", "without body", "no message", "t new", "s in its run"}),
        (Erasure("o", "t", CUT), {"other", "without body", "no message", "s old", "t new", "s in its run"}),
        (Erasure("nobody"), {*LETTERS}),
    ],
)
async def test_dead_letters(erasure: Erasure, stay: set[str]) -> None:
    """Those of the owner, unless they say that they are of another session, or of later."""
    letters = MemoryDeadLetters()
    for each in LETTERS.values():
        await letters.keep(each)
    expected = len(LETTERS) - len(stay)
    assert (await eraser(FakeStore(), letters=letters).preview(erasure))["letters"] == expected
    done = await eraser(FakeStore(), letters=letters).erase(erasure)
    assert done.removed["letters"] == expected
    left = {each.reason for each in await letters.newest(99)}
    assert left == {LETTERS[name].reason for name in stay}


async def test_the_outbox() -> None:
    """Inputs that wait: of the session and the time, and those that cannot be read."""
    ledger = MemoryLedger(MemoryBus())
    rows = [row(1, session_id="s", timestamp=OLD), row(2, session_id="s", timestamp=NEW), row(3, session_id="t")]
    waiting = [write_outbox_row({**each, "_id": f"{at:024x}"}) for at, each in enumerate(rows)]
    waiting += [OutboxRow("o", "odd", b"?"), OutboxRow("p", "odd", b"?")]
    for each in waiting:
        ledger.outbox.put(each)
    parts = {"outbox": ledger.outbox, "kept": ledger}
    assert (await eraser(FakeStore(), **parts).erase(Erasure("o", "s", CUT))).removed["outbox"] == 2
    assert await ledger.outbox.of_owner("o") == waiting[1:3]
    assert (await eraser(FakeStore(), **parts).erase(Erasure("o"))).removed["outbox"] == 2
    assert await ledger.outbox.oldest(9) == waiting[4:]


@pytest.mark.parametrize("text", ["canary", 'say "é\n🙂', "two words", "\\n", "文"])
async def test_a_text_is_found_however_it_is_kept(text: str) -> None:
    """As it is, as JSON, and as JSON in JSON; nothing of it is told."""
    inner = json.dumps({"x": text})
    for content in (text, inner, json.dumps(inner), json.dumps(json.dumps({"x": text}, ensure_ascii=False))):
        store = FakeStore()
        await store.insert_message(row(1, content=f"before {content} after"))
        found = await eraser(store).find_text(text)
        assert found == {"messages": 1}, content
        assert await eraser(store).find_text(f"{text}!") == {}


async def test_times() -> None:
    """What is said before goes, what is said since stays."""
    store = FakeStore()
    for number in range(4):
        await store.insert_message(row(number))
    done = await eraser(store).erase(Erasure("o", before=moment(2)))
    assert done.removed["messages"] == 2
    assert [each["id"] for each in store.messages] == ["m2", "m3"]
