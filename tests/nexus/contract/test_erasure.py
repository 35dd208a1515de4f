"""The promises of `nexus.core.ports.ErasureStore`, on every adapter and on the fake that other tests use."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from pymongo import MongoClient

from nexus.adapters.mongo import open_mongo
from nexus.core.erasure import STORE_KINDS, Erasure, Tombstone, hashed
from nexus.core.errors import StoreUnavailableError
from nexus.core.models import DEFAULT_SESSION, new_row_id, to_milliseconds, utc_now
from nexus.core.person import Constraint, Statement
from nexus.core.ports import Row, Store
from nexus.core.recall import EPISODE, Entry, occurrence
from nexus.core.records import BuildRecord, Piece
from nexus.services.recall.texts import findable
from tests.nexus.contract.test_recall_index import claim
from tests.nexus.contract.test_store import OWNERS, Place, place
from tests.nexus.support.rows import START, moment, row

__all__ = ["place"]

DAY: Final = timedelta(days=1)
# Of what is planted of each session: on day 1, and on day 3.
CUT: Final = START + 2 * DAY
OLD, NEW = START + DAY, START + 3 * DAY
# How many of each kind are planted of an owner with two sessions.
WHOLE: Final = {
    "records": 1,
    "pieces": 1,
    "facts": 4,
    "constraints": 5,
    "states": 2,
    "turns": 4,
    "details": 4,
    "overviews": 4,
    "compactions": 4,
    "messages": 8,
    "profile": 1,
}


def word(owner: str, session: str, at: datetime) -> str:
    """A word that stands in all that is planted of an owner, a session and a time."""
    return f"canary{hashed(owner)[:6]}{session}{at.day}x"


def constraint(owner: str, session: str, at: datetime, scope: Any, **changes: Any) -> Row:
    """A rule as it is stored."""
    run = f"r-{session}-{at.day}" if scope == "run" else ""
    return Constraint(
        id=f"{scope}-{hashed(session + str(at))[:16]}",
        text=word(owner, session, at),
        scope=scope,
        session_id="" if scope == "owner" else session,
        run_id=run,
        valid_from=at,
        **changes,
    ).model_dump()


async def fill(place: Place, store: Store, owner: str, sessions: Sequence[str] = ("s", "t")) -> None:
    """Plant something of every kind of an owner, old and new in each session."""
    place.plant("identities", [{"public_key": owner, "name": word(owner, "s", OLD)}])
    until = utc_now() + DAY
    await store.records.put_pieces([Piece(owner.encode(), owner, b"x")], until)
    at, texts = to_milliseconds(utc_now()), ("r", "r", "s", "success", "", "dialogue", "openai")
    await store.records.put_records(
        [BuildRecord(owner, *texts, at, 1, "v", "1", "full", "0" * 64, (b"p" * 16,))], until
    )
    places: dict[str, list[Row]] = {"owner": []}
    for session in sessions:
        for at in (OLD, NEW):
            text, base = word(owner, session, at), {"owner_key": owner, "session_id": session}
            number = at.day
            rows = [
                row(each, **base, id=f"m-{session}-{number}-{each}", run_id=f"r-{session}-{number}", content=text)
                for each in (0, 1)
            ]
            for each in rows:
                assert await store.insert_message({**each, "timestamp": at + timedelta(minutes=len(each["id"]))})
            turn = {**base, "run_id": f"r-{session}-{number}", "turn_number": number, "timestamp": at, "goal": text}
            place.plant("turns", [turn])
            place.plant("working_memory", [{**base, "revision": number, "content": text, "updated_at": at}])
            detail = {**base, "name": f"n{number}", "version": 1, "kind": "note", "content": text, "updated_at": at}
            place.plant("memory_details", [detail])
            place.plant("compactions", [{**base, "number": number, "summary": text, "created_at": at, "first_at": at}])
            said = Statement(
                id=f"f-{session}-{number}", owner_key=owner, topic="t", value=text, session_id=session, said_at=at
            )
            await store.facts.add_statements(owner, [said])
            places["owner"].append(constraint(owner, session, at, "owner", source_message_id=rows[0]["id"]))
            places.setdefault(f"session:{session}", []).append(constraint(owner, session, at, "session"))
            if session == "s":
                places.setdefault(f"run:r-{session}-{number}", []).append(constraint(owner, session, at, "run"))
        assert await store.put_session_state(owner, session, {"role": word(owner, session, OLD)}, 0)
    for name, entries in places.items():
        document = {"constraints": entries, "retired": [{"id": "run-0123456789abcdef", "valid_to": OLD}]}
        assert await store.constraints.put_constraints(owner, name, document, 0)
    due = await claim(store)
    given = await store.recall.give_places(due)
    await store.recall.write(
        [found.at(each["owner_key"], given[each["_id"]]) for each in due if (found := findable(each))]
    )
    await store.recall.finish(due)


async def counts(store: Store, erasure: Erasure) -> dict[str, int]:
    """How many of each kind there are of what would go."""
    sessions = await store.erasure.sessions(erasure)
    found = {kind: await store.erasure.count(kind, erasure, sessions) for kind in STORE_KINDS}
    return {kind: count for kind, count in found.items() if count}


async def removed(store: Store, erasure: Erasure) -> dict[str, int]:
    """Remove it; how many of each kind went."""
    found = Counter[str]()
    sessions = await store.erasure.sessions(erasure)
    for kind in STORE_KINDS:
        async for count in store.erasure.remove(kind, erasure, sessions):
            found[kind] += count
    return dict(+found)


async def erased(store: Store, erasure: Erasure) -> dict[str, int]:
    """Remove it until nothing is found any more; as many went as were counted, without the index."""
    expected = await counts(store, erasure)
    found = await removed(store, erasure)
    again = await removed(store, erasure)
    assert {*again} <= {"index"}
    assert await removed(store, erasure) == {}
    for each in (expected, found):
        each.pop("index", None)
    assert found == expected
    return found


async def places_with(store: Store, text: str) -> dict[str, int]:
    """Where a text is, and its term in the index."""
    found = Counter[str]()
    async for name, count in store.erasure.find_text([text.encode(), f"|{text}|".encode()]):
        found[name] += count
    return dict(+found)


async def test_a_whole_owner(place: Place) -> None:
    """All that there is goes, once; of another with the same names nothing does."""
    async with place.open() as store:
        for owner in ("ada", "ada|", "ad"):
            await fill(place, store, owner)
        others = [await counts(store, Erasure(owner)) for owner in ("ada|", "ad")]
        assert await erased(store, Erasure("ada")) == WHOLE
        assert await counts(store, Erasure("ada")) == {}
        assert [await counts(store, Erasure(owner)) for owner in ("ada|", "ad")] == others
        for session in ("s", "t"):
            for at in (OLD, NEW):
                assert await places_with(store, word("ada", session, at)) == {}
                assert len(await places_with(store, word("ad", session, at))) > 5


@pytest.mark.parametrize("owner", OWNERS)
async def test_hostile_names(place: Place, owner: str) -> None:
    """Whatever an owner is called, it is that owner alone whose things go."""
    if owner == "" or "\0" in owner:
        pytest.skip("no message names such an owner")
    async with place.open() as store:
        await fill(place, store, "o")
        kept = await counts(store, Erasure("o"))
        if owner != "o":
            await fill(place, store, owner)
        await erased(store, Erasure(owner))
        assert await counts(store, Erasure(owner)) == {}
        assert await counts(store, Erasure("o")) == kept


async def test_a_session(place: Place) -> None:
    """Of the session all goes, and all records; of another session and of the owner the rest stays."""
    async with place.open() as store:
        await fill(place, store, "ada")
        await fill(place, store, "bob")
        bob = await counts(store, Erasure("bob"))
        assert await erased(store, Erasure("ada", "s")) == {
            **{kind: WHOLE[kind] // 2 for kind in WHOLE if kind not in {"records", "pieces", "constraints", "profile"}},
            "records": 1,
            "pieces": 1,
            "constraints": 4,
        }
        for at in (OLD, NEW):
            left = await places_with(store, word("ada", "s", at))
            # The profile, which is of the owner.
            assert {*left} <= ({"identities", "profile"} if at == OLD else set())
            assert len(await places_with(store, word("ada", "t", at))) > 5
        postings = await store.recall.postings("ada", [word("ada", "t", OLD), word("ada", "s", OLD)], [])
        assert {*postings.terms} == {word("ada", "t", OLD)}
        assert await counts(store, Erasure("bob")) == bob


async def test_before_a_time(place: Place) -> None:
    """What was said before goes, and what may repeat it; what was said since stays, and is found."""
    async with place.open() as store:
        await fill(place, store, "ada", ["s", DEFAULT_SESSION])
        await fill(place, store, "bob")
        bob = await counts(store, Erasure("bob"))
        gone = await erased(store, Erasure("ada", before=CUT))
        assert {kind: gone[kind] for kind in ("messages", "facts")} == {"messages": 4, "facts": 2}
        # Each may repeat what was said before in its session.
        summaries = ("states", "turns", "details", "overviews", "compactions")
        assert {kind: gone[kind] for kind in summaries} == {kind: WHOLE[kind] for kind in summaries}
        for session in ("s", DEFAULT_SESSION):
            left = await places_with(store, word("ada", session, OLD))
            assert {*left} <= {"identities", "profile"}
            assert len(await places_with(store, word("ada", session, NEW))) >= 3
            term = word("ada", session, NEW)
            assert {*(await store.recall.postings("ada", [term], ["#message"])).terms} == {term}
        assert await counts(store, Erasure("bob")) == bob
        await fill(place, store, "cleo")
        of_one = await erased(store, Erasure("cleo", "s", CUT))
        assert (of_one["messages"], of_one["overviews"], of_one["facts"]) == (2, 2, 1)
        assert len(await places_with(store, word("cleo", "t", OLD))) > 5


async def test_a_session_that_began_later_is_left_alone(place: Place) -> None:
    """Its summaries, overview and details repeat nothing from before."""
    async with place.open() as store:
        base = {"owner_key": "o", "session_id": "late"}
        await store.insert_message(row(1, **base, timestamp=NEW))
        place.plant("working_memory", [{**base, "revision": 1, "content": "x", "updated_at": NEW}])
        await store.insert_message(row(2, session_id="early", timestamp=OLD))
        assert await store.erasure.sessions(Erasure("o", before=CUT)) == ["early"]
        assert await erased(store, Erasure("o", before=CUT)) == {"messages": 1}
        assert await store.memory.latest_overview("o", "late") is not None


async def test_times_of_other_writers(place: Place) -> None:
    """A text that is a time is read; what has none that can be read goes, since it may be from before."""
    times: dict[str, Any] = {
        "early": "2024-01-02T00:00:00Z",
        "late": "2024-01-04T00:00:00Z",
        "none": None,
        "word": "yesterday",
        "number": 1_704_600_000,
        "date": NEW,
    }
    place.plant("messages", [row(at, id=name, timestamp=time) for at, (name, time) in enumerate(times.items())])
    async with place.open() as store:
        assert await erased(store, Erasure("o", before=CUT)) == {"messages": 3}
        assert {each["id"] for each in await store.all_messages("o", limit=9)} == {"late", "number", "date"}


async def test_what_names_a_message_goes_with_it(place: Place) -> None:
    """A fact with it as evidence, and a rule that it set, whatever their own session and time."""
    async with place.open() as store:
        await store.insert_message(row(1, id="old", session_id="s", timestamp=OLD))
        await store.insert_message(row(2, id="new", session_id="t", timestamp=NEW))
        for number, evidence in enumerate([("old",), ("new", "old"), ("new",), ()]):
            said = Statement(id=f"f{number}", owner_key="o", topic="t", value="v", evidence=evidence, said_at=NEW)
            await store.facts.add_statements("o", [said])
        entries = [
            {**constraint("o", "s", NEW, "owner", source_message_id=source), "id": f"owner-{source:0>16}"}
            for source in ("old", "new", "")
        ]
        await store.constraints.put_constraints("o", "owner", {"constraints": entries, "retired": []}, 0)
        assert await erased(store, Erasure("o", "s")) == {"messages": 1, "facts": 2, "constraints": 1}
        (left,) = await store.constraints.find_constraints("o", ["owner"])
        assert [each["source_message_id"] for each in left["document"]["constraints"]] == ["new", ""]
        assert left["revision"] == 2
        assert {each["id"] for each in await store.facts.statements("o", limit=9)} == {"f2", "f3"}


async def test_rules_of_another_shape(place: Place) -> None:
    """What cannot be read of a document of rules keeps nothing else from going."""
    wrong = {"constraints": ["x", {"text": "no time"}, constraint("o", "s", NEW, "owner")], "retired": "none"}
    place.plant("constraints", [{"owner_key": "o", "place": "owner", "document": wrong, "revision": 3}])
    async with place.open() as store:
        async for _ in store.erasure.remove("constraints", Erasure("o", before=CUT), []):
            pass
        (left,) = await store.constraints.find_constraints("o", ["owner"])
        assert [each["valid_from"] for each in left["document"]["constraints"]] == [NEW]


async def test_more_than_a_batch(place: Place) -> None:
    """Rows go in several, and the index of other rows in the same episodes stays."""
    async with place.open() as store:
        rows = [row(number, _id=new_row_id()) for number in range(1_100)]
        await store.insert_messages(rows)
        while due := await claim(store, limit=500):
            given = await store.recall.give_places(due)
            entries = [Entry("o", given[each["_id"]], {f"w{each['id']}": occurrence(1, 1)}, ["#f"]) for each in due]
            await store.recall.write(entries)
            await store.recall.finish(due)
        cut = 2 * EPISODE + 5
        assert (await erased(store, Erasure("o", before=moment(cut))))["messages"] == cut
        words = [f"wm{number}" for number in range(1_100)]
        postings = await store.recall.postings("o", words, ["#f"])
        assert {*postings.terms} == {*words[cut:]}
        assert sum(bits.bit_count() for bits in postings.flags["#f"].values()) == 1_100 - cut
        assert (await erased(store, Erasure("o", "s")))["messages"] == 1_100 - cut
        assert (await store.recall.postings("o", words, [])).terms == {}


async def test_broken_off_at_every_place(place: Place) -> None:
    """However often it is broken off, it goes on where it ended, and all of it goes."""
    erasure = Erasure("ada", before=CUT)
    async with place.open() as store:
        await fill(place, store, "ada")
        is_broken = True
        while is_broken:
            is_broken = False
            sessions = await store.erasure.sessions(erasure)
            for kind in STORE_KINDS:
                removing = store.erasure.remove(kind, erasure, sessions)
                async for count in removing:
                    if count:
                        is_broken = True
                        break
                await removing.aclose()
                if is_broken:
                    break
        for session in ("s", "t"):
            assert {*(await places_with(store, word("ada", session, OLD)))} <= {"identities", "profile"}


async def test_tombstones(place: Place) -> None:
    """Each is kept once, with its latest time, and found by its owner's name; they hold no name."""
    at = datetime(2026, 5, 1, tzinfo=UTC)
    stones = [Tombstone(hashed(owner), hashed("s"), at, at) for owner in ("ada", "bob")]
    async with place.open() as store:
        for stone in [*stones, *stones[:1]]:
            await store.erasure.put_tombstone(stone)
        assert {*await store.erasure.tombstones(["ada", "nobody"])} == {stones[0]}
        assert {*await store.erasure.tombstones(["ada", "bob"])} == {*stones}
        assert await places_with(store, "ada") == {}
        later, earlier = (replace(stones[0], erased_at=at + days * DAY) for days in (2, 1))
        for stone in (later, earlier):
            await store.erasure.put_tombstone(stone)
        assert await store.erasure.tombstones(["ada"]) == [later]


def test_what_a_tombstone_covers() -> None:
    """What was said up to its time, as precisely as stores keep times, in its session or in any."""
    at = datetime(2026, 5, 1, tzinfo=UTC)
    one, all_of_them = Tombstone("o", hashed("s"), at, at), Tombstone("o", "", at, at)
    assert one.covers("s", at + timedelta(microseconds=999))
    assert not one.covers("s", at + timedelta(milliseconds=1))
    assert not one.covers("t", at)
    assert all_of_them.covers("t", at)


async def test_rows_that_are_being_indexed(
    prepared_database: str, mongo_uri: str, mongo_janitor: MongoClient[dict[str, Any]]
) -> None:
    """An indexer that writes what it has claimed before the rows went leaves nothing for good."""
    async with open_mongo(mongo_uri, prepared_database, timeout_ms=10_000) as store:
        await store.insert_message(row(1, content="canaryone", timestamp=OLD))
        await store.insert_message(row(2, content="canarytwo", timestamp=NEW))
        due = await claim(store)
        given = await store.recall.give_places(due)
        entries = [Entry("o", given[each["_id"]], {each["content"]: occurrence(1, 1)}) for each in due]
        erasure = Erasure("o", before=CUT)
        assert (await removed(store, erasure))["messages"] == 1
        await store.recall.write(entries)
        await removed(store, erasure)
        assert await removed(store, erasure) == {}
        names = {each["_id"] for each in mongo_janitor[prepared_database]["recall_postings"].find()}
        assert names == {"o|canarytwo|0"}
        (owner,) = mongo_janitor[prepared_database]["recall_owners"].find()
        assert "released" not in owner


async def test_a_store_that_is_away(unused_port: int) -> None:
    """It says so, and nothing is taken for erased."""
    uri = f"mongodb://127.0.0.1:{unused_port}"
    async with open_mongo(uri, "d", timeout_ms=300, server_selection_timeout_ms=300) as store:
        with pytest.raises(StoreUnavailableError):
            await store.erasure.put_tombstone(Tombstone("o", "", OLD, OLD))
        for call in (counts, removed):
            with pytest.raises(StoreUnavailableError):
                await call(store, Erasure("o"))
