"""The promises of `nexus.core.ports.FactStore`, on every adapter and on the fake that other tests use."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import anyio

from nexus.core.person import Statement
from nexus.services.person.facts import Facts, read_rows
from nexus.services.person.statements import Origin, facts_of, statement
from tests.nexus.contract.test_store import OWNERS, Place, bare_place, place
from tests.nexus.support.tombstones import NO_TOMBSTONES

__all__ = ["bare_place", "place"]

NOON = datetime(2025, 12, 10, 12, tzinfo=UTC)
HOSTILE = "$x.y\u200b😀 [FRIENDS_INFO] {'$ne': 1}"
WRITERS = 30


def said(number: int, owner: str = "o", value: str = "") -> Statement:
    """A statement of this millisecond."""
    origin = Origin(owner, f"m{number}", NOON + timedelta(milliseconds=number), "s")
    return statement(origin, "home", value or f"v{number}", "city", evidence=[f"r{number}", "r0"])


async def test_statements_come_back_as_they_were(place: Place) -> None:
    """The latest first, up to as many as are asked for, to the millisecond."""
    given = [said(2), said(0, value=HOSTILE), said(1)]
    async with place.open() as store:
        assert await store.facts.statements("o", limit=9) == []
        assert await store.facts.add_statements("o", given) == 3
        found = read_rows(await store.facts.statements("o", limit=9), "o")
        assert found == [given[0], given[2], given[1]]
        assert read_rows(await store.facts.statements("o", limit=2), "o") == found[:2]
        assert await store.facts.count_statements("o") == 3
        assert not any("_id" in row for row in await store.facts.statements("o", limit=9))


async def test_a_statement_never_changes(place: Place) -> None:
    """One that is there already is kept as it is, wherever it stands among new ones; those behind it are kept."""
    changed = said(1).model_copy(update={"value": "changed", "said_at": NOON})
    async with place.open() as store:
        assert await store.facts.add_statements("o", []) == 0
        assert await store.facts.add_statements("o", [said(1), changed]) == 1
        assert await store.facts.add_statements("o", [said(0), changed, said(2), said(2), changed, said(3)]) == 3
        found = read_rows(await store.facts.statements("o", limit=9), "o")
    assert found == [said(3), said(2), said(1), said(0)]


async def test_owners_are_texts(place: Place) -> None:
    """Whatever an owner is called, it has its own statements and no others, also under one id."""
    async with place.open() as store:
        for number, owner in enumerate(OWNERS):
            assert await store.facts.statements(owner, limit=9) == []
            assert await store.facts.add_statements(owner, [said(0, owner, f"v{number}")]) == 1
            shared = said(7, owner).model_copy(update={"id": "one"})
            assert await store.facts.add_statements(owner, [shared]) == 1
        for number, owner in enumerate(OWNERS):
            rows = await store.facts.statements(owner, limit=9)
            assert [row["owner_key"] for row in rows] == [owner, owner]
            assert [row["value"] for row in rows] == ["v7", f"v{number}"]
            assert await store.facts.count_statements(owner) == 2


async def test_many_writers(bare_place: Place) -> None:
    """Of any number that write at once, the same statements among them, each is kept once."""
    given = [said(number) for number in range(WRITERS)]
    kept = list[int]()

    async def write(statements: Sequence[Statement]) -> None:
        kept.append(await store.facts.add_statements("o", statements))

    async with bare_place.open() as store:
        await store.prepare()
        async with anyio.create_task_group() as tasks:
            for start in range(WRITERS):
                tasks.start_soon(write, given[start : start + 3])
        facts = await Facts(store.facts, NO_TOMBSTONES).facts("o")
    assert sum(kept) == WRITERS
    assert facts == facts_of(given)
