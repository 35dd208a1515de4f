"""The promises of `nexus.core.ports.RecordStore`, on every adapter and on the fake that other tests use."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from pymongo import MongoClient

from nexus.adapters.mongo import open_mongo
from nexus.core.errors import StoreUnavailableError
from nexus.core.ports import RecordStore
from nexus.core.records import BuildRecord, Piece
from nexus.services.records.pieces import piece_ids
from tests.nexus.contract.test_store import OWNERS, Place, bare_place, place

__all__ = ["bare_place", "place"]

# Nothing of it expires while the tests run.
NOON = datetime(2100, 12, 10, 12, tzinfo=UTC)
WEEK = timedelta(days=7)
TEXTS = [b"", b"\x00\xff\x80", "Grüße 😀\u2028".encode(), b"$set" * 300_000]


def a_record(request_id: str = "q", owner: str = "ada", **changes: Any) -> BuildRecord:
    """A record of an answer of three pieces, two of them the same."""
    one, other = piece_ids(owner, TEXTS[:2])
    record = BuildRecord(
        owner_key=owner,
        request_id=request_id,
        run_id="r",
        session_id="s",
        outcome="success",
        reason="",
        layout="dialogue",
        form="openai",
        answered_at=NOON,
        sha256="0" * 64,
        size=3,
        settings="v",
        version="1",
        mode="full",
        pieces=(one, other, one),
    )
    return replace(record, **changes)


def pieces_of(owner: str) -> list[Piece]:
    """Some pieces of this owner."""
    return [Piece(each, owner, data) for each, data in zip(piece_ids(owner, TEXTS), TEXTS, strict=True)]


async def all_pages(store: RecordStore, owner: str, limit: int, session_id: str | None = None) -> list[BuildRecord]:
    """The records of an owner, page after page."""
    found: list[BuildRecord] = []
    while page := await store.records(owner, session_id=session_id, before=found[-1] if found else None, limit=limit):
        assert len(page) <= limit
        found += page
    return found


async def test_a_record_comes_back_as_it_was(place: Place) -> None:
    """With all its fields, whichever there are."""
    given = [
        a_record(),
        a_record("empty", pieces=(), agent="sub scöut"),
        a_record("manifest", mode="manifest", pieces=(), manifest=b'{"blocks":[]}'),
        a_record(
            "refused", outcome="DEADLINE_EXCEEDED", reason="late: $x.y\u0000 😀", layout="", form="", session_id=""
        ),
    ]
    async with place.open() as store:
        records = store.records
        assert await records.find_record("ada", "q") is None
        await records.put_records(given, NOON + WEEK)
        for each in given:
            assert await records.find_record("ada", each.request_id) == each
        assert await records.find_record("bob", "q") is None
        assert await records.find_record("ada", "other") is None


async def test_of_a_request_one_record_is_kept(place: Place) -> None:
    """The first of a success, whatever comes later; that of an error gives way."""
    late, done, again = a_record(outcome="DEADLINE_EXCEEDED"), a_record(), a_record(sha256="1" * 64)
    async with place.open() as store:
        for each, kept in ((late, late), (done, done), (again, done), (late, done)):
            # What comes with it is kept.
            await store.records.put_records([each, a_record(each.sha256 + each.outcome)], NOON + WEEK)
            assert await store.records.find_record("ada", "q") == kept
            assert await store.records.find_record("ada", each.sha256 + each.outcome)
        assert len(await store.records.records("ada", limit=10)) == 4
        assert not await store.records.failures(limit=10)


async def test_records_come_newest_first_page_by_page(place: Place) -> None:
    """Those of equal times by the ids of their requests; none is twice on pages of any size, and none is missing."""
    times = [NOON + timedelta(milliseconds=number // 4) for number in range(12)]
    given = [a_record(f"q{number:02}", answered_at=at, session_id=f"s{number % 2}") for number, at in enumerate(times)]
    async with place.open() as store:
        await store.records.put_records([*given[::2], *given[1::2], a_record(owner="bob")], NOON + WEEK)
        for limit in (1, 3, 5, 12, 13):
            assert await all_pages(store.records, "ada", limit) == given[::-1]
            assert await all_pages(store.records, "ada", limit, "s1") == given[::-2]
        assert await all_pages(store.records, "ada", 3, "s2") == []


async def test_failures_of_all_owners_or_of_one(place: Place) -> None:
    """Errors alone, newest first, page by page."""
    given = [
        a_record(f"q{number}", "ada" if number % 3 else "bob", outcome="success" if number % 2 else "INTERNAL")
        for number in range(12)
    ]
    failed = sorted((each for each in given if each.outcome != "success"), key=lambda each: each.request_id)[::-1]
    async with place.open() as store:
        await store.records.put_records(given, NOON + WEEK)
        first = await store.records.failures(limit=4)
        assert first + await store.records.failures(before=first[-1], limit=4) == failed
        mine = [each for each in failed if each.owner_key == "bob"]
        assert await store.records.failures(owner_key="bob", limit=10) == mine
        assert await store.records.failures(owner_key="bob", before=mine[0], limit=10) == mine[1:]


@pytest.mark.parametrize("owner", OWNERS)
async def test_pieces_come_back_to_their_owner_alone(place: Place, owner: str) -> None:
    """Byte for byte; the same texts of another owner are others."""
    given, others = pieces_of(owner), pieces_of(owner + "2")
    ids = [each.id for each in given]
    async with place.open() as store:
        assert await store.records.missing_pieces(ids, NOON) == {*ids}
        await store.records.put_pieces(given, NOON)
        assert await store.records.pieces(owner, ids) == dict(zip(ids, TEXTS, strict=True))
        assert await store.records.pieces(owner + "2", ids) == {}
        assert await store.records.missing_pieces([each.id for each in others], NOON) == {each.id for each in others}
        assert await store.records.missing_pieces([], NOON) == set()
        await store.records.put_pieces([], NOON)
        record = a_record("q" * 200, owner, session_id=owner)
        await store.records.put_records([record], NOON + WEEK)
        assert await store.records.records(owner, session_id=owner, limit=2) == [record]


async def test_a_piece_that_a_later_record_has_is_kept_longer(place: Place) -> None:
    """It is missing for a record that is to be kept longer, until it is put again; and it is never kept less long."""
    given = pieces_of("ada")
    ids = {each.id for each in given}
    async with place.open() as store:
        await store.records.put_pieces(given, NOON)
        assert await store.records.missing_pieces(ids, NOON) == set()
        assert await store.records.missing_pieces(ids, NOON + WEEK) == ids
        await store.records.put_pieces(given[:2], NOON + WEEK)
        assert await store.records.missing_pieces(ids, NOON + WEEK) == {each.id for each in given[2:]}
        await store.records.put_pieces(given, NOON)
        assert await store.records.missing_pieces(ids, NOON + WEEK) == {each.id for each in given[2:]}
        assert len(await store.records.pieces("ada", [*ids])) == len(TEXTS)


async def test_writers_at_once_keep_each_piece_once(place: Place) -> None:
    """Replicas write what an owner's answers share at the same time."""
    given = pieces_of("ada")
    async with place.open() as store, anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(store.records.put_pieces, given, NOON + number * WEEK)
            tasks.start_soon(store.records.put_records, [a_record("q"), a_record(f"q{number}")], NOON)
    async with place.open() as store:
        ids = [each.id for each in given]
        assert await store.records.missing_pieces(ids, NOON + 19 * WEEK) == set()
        assert len(await store.records.records("ada", limit=30)) == 21


async def test_records_of_other_hands(
    mongo_uri: str, prepared_database: str, mongo_janitor: MongoClient[dict[str, Any]]
) -> None:
    """One from before a field was there is read; of one that cannot be read it is said which, and what is wrong."""
    kept = mongo_janitor[prepared_database]["context_records"]
    async with open_mongo(mongo_uri, prepared_database, timeout_ms=10_000) as store:
        given = [a_record("old"), a_record("q1")]
        await store.records.put_records(given, NOON + WEEK)
        kept.update_one({"request_id": "old"}, {"$unset": {"agent": ""}})
        kept.update_one({"request_id": "q1"}, {"$set": {"pieces": 7}})
        assert await store.records.find_record("ada", "old") == given[0]
        with pytest.raises(StoreUnavailableError, match=r"the request 'q1' of 'ada' in .* cannot be read: pieces: "):
            await store.records.records("ada", limit=9)
