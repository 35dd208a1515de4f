"""The promises of `nexus.core.ports.RecallIndex`, on every adapter and on the fake that other tests use."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

import anyio
import pytest
from bson import ObjectId
from pymongo import MongoClient

from nexus.adapters.mongo import open_mongo
from nexus.core.models import new_row_id, utc_now
from nexus.core.ports import Row, Store
from nexus.core.ports.store import LONGEST_CONTENT
from nexus.core.recall import EPISODE, MEANING, WORDS, Entry, IndexStatus, Place, Postings, occurrence
from nexus.core.working_memory import WHOLE
from nexus.services.memory.search import texts_of
from tests.nexus.contract.test_store import OWNERS, insert_all, place
from tests.nexus.contract.test_store import Place as Server
from tests.nexus.support.rows import ids, row

__all__ = ["place"]

LEASE: Final = timedelta(minutes=1)
ONCE: Final = occurrence(1, 5)
# Names of which one is the beginning of another with what might end it.
NAMES: Final = [*OWNERS, "a", "a|b", "a|", "|a", "a%7Cb", "a%", "a%25", "a|~g|0", "{}", "日本|語", "p.0.1"]


def later(**delta: float) -> datetime:
    """A time after now, to the millisecond, at which all is due that became so."""
    moment = utc_now() + timedelta(seconds=1, **delta)
    return moment.replace(microsecond=0)


async def claim(store: Store, work: str = WORDS, *, limit: int = 5_000) -> list[Row]:
    """Claim what is due now."""
    now = later()
    return await store.recall.claim(work, now, now + LEASE, limit=limit)


async def index(store: Store, rows: Sequence[Row], **entry: Any) -> dict[str, Place]:
    """Index these rows with the same terms, flags and codes; returns their places by `id`."""
    places = await store.recall.give_places(rows)
    parts = {"terms": {"word": ONCE}, **entry}
    await store.recall.write([Entry(each["owner_key"], places[each["_id"]], **parts) for each in rows])
    await store.recall.finish(rows)
    return {each["id"]: places[each["_id"]] for each in rows}


async def read(store: Store, owner_key: str = "o", **where: Any) -> Postings:
    """What is there of `word`, `other` and `#flag`."""
    return await store.recall.postings(owner_key, ["word", "other"], ["#flag"], **where)


def places_of(postings: Postings, term: str = "word") -> set[int]:
    """The places of a term."""
    by_place = postings.terms.get(term, {})
    return {int(episode) * EPISODE + int(at) for episode, places in by_place.items() for at in places}


async def test_what_is_recorded_is_due_at_once(place: Server) -> None:
    """However it is recorded, of any role, and comes in stored order, as other reads give it."""
    long = "a" * (2 * LONGEST_CONTENT)
    odd = [row(3, content=long), row(4, role="TOOL", session_id=None), row(5, owner_key="日本|語", metadata={"x": [1]})]
    async with place.open() as store:
        await insert_all(store, [row(1), row(2)])
        assert await store.insert_messages(odd) == [True, True, True]
        # What is there already is not due once more.
        assert await store.insert_messages([row(1)]) == [False]
        found = await claim(store)
        assert ids(found) == ["m1", "m2", "m3", "m4", "m5"]
        own = [{name: value for name, value in each.items() if name != "recall_claim"} for each in found[:4]]
        assert own == (await store.all_messages("o", limit=9))[::-1]
        assert len(found[2]["content"]) < len(long)
        assert await claim(store) == []
        assert await claim(store, MEANING) == []


async def test_what_is_claimed_is_due_again_later(place: Server) -> None:
    """When the claim has run out, and not a moment before; what has been due the longest comes first."""
    async with place.open() as store:
        await insert_all(store, [row(1)])
        now = later()
        assert ids(await store.recall.claim(WORDS, now, now + LEASE, limit=9)) == ["m1"]
        await insert_all(store, [row(2)])
        just_before = now + LEASE - timedelta(milliseconds=1)
        assert ids(await store.recall.claim(WORDS, just_before, now + 3 * LEASE, limit=9)) == ["m2"]
        await insert_all(store, [row(3)])
        at_last = now + LEASE
        assert ids(await store.recall.claim(WORDS, at_last, now + 3 * LEASE, limit=1)) == ["m3"]
        assert ids(await store.recall.claim(WORDS, at_last, now + 3 * LEASE, limit=1)) == ["m1"]
        assert await store.recall.claim(WORDS, at_last, now + 3 * LEASE, limit=1) == []


async def test_a_claim_that_ran_out_changes_nothing(place: Server) -> None:
    """What another has claimed since is the other's: neither done, nor failed, nor put off by the first."""
    async with place.open() as store:
        await insert_all(store, [row(1)])
        first = await claim(store)
        now = later() + 2 * LEASE
        second = await store.recall.claim(WORDS, now, now + LEASE, limit=9)
        assert ids(first) == ids(second) == ["m1"]
        await store.recall.finish(first)
        await store.recall.fail(first[0], "late")
        await store.recall.put_off(first, later())
        status = await store.recall.status("o")
        assert (status.waiting, status.failed) == (1, 0)
        assert await store.recall.claim(WORDS, now, now + LEASE, limit=9) == []
        await store.recall.finish(second)
        assert (await store.recall.status("o")).waiting == 0


async def test_claims_at_once_get_different_rows(place: Server) -> None:
    """Each row one of them; all rows together, when they have claimed until there were none."""
    async with place.open() as store:
        await store.insert_messages([row(number) for number in range(100)])
        claimed: list[Any] = []
        now = later()

        async def work() -> None:
            while rows := await store.recall.claim(WORDS, now, now + LEASE, limit=7):
                claimed.extend(ids(rows))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(work)
        # One that found others' rows alone may have ended too early.
        claimed += ids(await store.recall.claim(WORDS, now, now + LEASE, limit=100))
        assert sorted(claimed) == sorted(f"m{number}" for number in range(100))


async def test_places_of_a_session_follow_each_other(place: Server) -> None:
    """In stored order, whatever order the rows are given in; an episode is full before the next begins."""
    async with place.open() as store:
        await store.insert_messages([row(number) for number in range(40)])
        rows = await claim(store)
        first, second = rows[:10], rows[10:]
        Random(1).shuffle(second)  # noqa: S311  # a test, not a secret
        places = [*(await store.recall.give_places(first)).values(), *(await store.recall.give_places(second)).values()]
        assert sorted(places) == [*range(40)]
        given = await store.recall.give_places(rows[::-1])
        assert [given[each["_id"]] for each in rows] == [*range(40)]
        await store.insert_messages([row(50, session_id="another"), row(51), row(52, owner_key="p")])
        more = await index(store, await claim(store))
        assert sorted(more.values()) == [0, 40, 64]
        assert more["m51"] == 40
        assert await store.recall.give_places(rows) == given


async def test_places_given_at_once(place: Server) -> None:
    """However many give places to the same rows and to others, each row has one place and each place one row."""
    async with place.open() as store:
        sessions = [f"s{number % 3}" for number in range(150)]
        rows = [row(number, session_id=session) for number, session in enumerate(sessions)]
        await store.insert_messages([*rows, *(row(number, owner_key="p") for number in range(20))])
        rows = await claim(store)
        chance = Random(2)  # noqa: S311  # a test, not a secret
        given: list[dict[str, Place]] = []

        async def give() -> None:
            given.append(await store.recall.give_places(chance.sample(rows, 100)))

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(give)
        at_last = await store.recall.give_places(rows)
        assert len(at_last) == len(rows)
        for places in given:
            assert places.items() <= at_last.items()
        owners = {each["_id"]: each["owner_key"] for each in rows}
        assert len({(owners[row_id], place) for row_id, place in at_last.items()}) == len(rows)
        for session in ("s0", "s1", "s2"):
            own = [at_last[each["_id"]] for each in rows if (each["owner_key"], each["session_id"]) == ("o", session)]
            episodes = {place // EPISODE for place in own}
            others = {at_last[each["_id"]] // EPISODE for each in rows if each["owner_key"] == "o"} - episodes
            assert len(own) == 50
            assert not episodes & others
        assert {*await store.recall.rows_at("o", [*at_last.values()])} == {
            at_last[row_id] for row_id, owner in owners.items() if owner == "o"
        }


async def test_entries_are_kept(place: Server) -> None:
    """Terms with their occurrences, flags as bits, codes by generation; only what is asked for is found."""
    async with place.open() as store:
        await store.insert_messages([row(number) for number in range(34)])
        rows = await claim(store)
        places = await store.recall.give_places(rows)
        entries = [
            Entry(
                "o",
                places[each["_id"]],
                {"word": occurrence(number % 20, number), **({"other": ONCE, "third": ONCE} if number == 33 else {})},
                ("#flag",) if number % 2 else (),
                {"g-1.0": bytes([number, 0xFF]), "g-2.0": b"", **({"g": b"x"} if number == 3 else {})},
            )
            for number, each in enumerate(rows)
        ]
        assert await read(store) == Postings(34, {}, {})
        await store.recall.write(entries[20:])
        await store.recall.write(entries[:20])
        found = await read(store, generation="g-1.0")
        assert found.messages == 34
        assert found.terms == {
            "word": {
                "0": {str(number): occurrence(number % 20, number) for number in range(32)},
                "1": {"0": occurrence(12, 32), "1": occurrence(13, 33)},
            },
            "other": {"1": {"1": ONCE}},
        }
        assert found.flags == {"#flag": {"0": 0xAAAAAAAA, "1": 2}}
        assert found.codes == {
            "0": {str(number): bytes([number, 0xFF]) for number in range(32)},
            "1": {"0": b"\x20\xff", "1": b"\x21\xff"},
        }
        assert (await read(store, generation="g")).codes == {"0": {"3": b"x"}}
        assert (await read(store, generation="none")).codes == {}
        assert (await store.recall.postings("o", [], [], generation=None)) == Postings(34, {}, {})


async def test_indexers_at_once(place: Server) -> None:
    """Of the same terms that none has written before: nothing is lost, and no one is refused."""
    async with place.open() as store:
        await store.insert_messages([row(number) for number in range(96)])
        places = [*(await store.recall.give_places(await claim(store))).values()]
        terms = {"word": ONCE, **{f"t{number}": ONCE for number in range(100)}}
        entries = [Entry("o", each, terms, ["#flag"]) for each in places]
        async with anyio.create_task_group() as tasks:
            for first in range(0, 96, 8):
                tasks.start_soon(store.recall.write, entries[first : first + 8])
        found = await store.recall.postings("o", terms, ["#flag"])
        assert {term: places_of(found, term) for term in terms} == {term: {*range(96)} for term in terms}
        assert found.flags == {"#flag": dict.fromkeys("012", 0xFFFFFFFF)}


async def test_writing_twice_is_writing_once(place: Server) -> None:
    """Also at once, and what is there of a place and a term is replaced, while everything else stays."""
    async with place.open() as store:
        entries = [
            Entry(
                "o",
                Place(number),
                {"word": ONCE, f"t{number % 7}": ONCE},
                ["#flag", "#2026", "a.b", "$c", "%24c"],
                {"g": b"c"},
            )
            for number in range(100)
        ]
        await store.insert_messages([row(number) for number in range(100)])
        await index(store, await claim(store), terms={})
        await store.recall.write(entries)
        once = await read(store, generation="g")
        odd = await store.recall.postings("o", [], ["a.b", "$c", "%24c", "a", "#"])
        assert odd.flags == dict.fromkeys(("a.b", "$c", "%24c"), once.flags["#flag"])
        async with anyio.create_task_group() as tasks:
            for first in range(0, 100, 20):
                tasks.start_soon(store.recall.write, entries[first:])
        assert await read(store, generation="g") == once
        await store.recall.write([Entry("o", Place(5), {"word": occurrence(7, 7)}, (), {"g": b"d"})])
        changed = await read(store, generation="g")
        assert changed.terms["word"]["0"] == {**once.terms["word"]["0"], "5": occurrence(7, 7)}
        assert changed.codes["0"] == {**once.codes["0"], "5": b"d"}
        assert changed.flags == once.flags


@pytest.mark.parametrize("steps", range(4))
async def test_an_indexer_that_ends(place: Server, steps: int) -> None:
    """After any step: another does all of it again, and everything is there once."""
    async with place.open() as store:
        await store.insert_messages([row(number, session_id=f"s{number % 2}") for number in range(70)])

        async def work(now: datetime, steps: int) -> None:
            rows = await store.recall.claim(WORDS, now, now + LEASE, limit=100)
            places = await store.recall.give_places(rows) if steps > 0 else {}
            entries = [Entry("o", places[each["_id"]], {"word": ONCE}, ("#flag",)) for each in rows if places]
            await store.recall.write(entries if steps > 2 else entries[:30])
            if steps > 3:
                await store.recall.finish(rows)

        await work(later(), steps)
        status = await store.recall.status("o")
        assert status.waiting == 70
        assert (await store.recall.newest_status("o", newest=50)).waiting == 50
        await work(later() + LEASE, 4)
        found = await read(store)
        assert (len(places_of(found)), found.messages) == (70, 70)
        assert sum(bits.bit_count() for bits in found.flags["#flag"].values()) == 70
        assert await store.recall.status("o") == IndexStatus(indexed=70, waiting=0, failed=0, unmarked=0)
        assert len(await store.recall.rows_at("o", [*map(Place, places_of(found))])) == 70


async def test_owners_are_apart(place: Server) -> None:
    """Whatever they are called, nothing of one is found, placed, read or forgotten for another."""
    async with place.open() as store:
        rows = [row(number, owner_key=owner, session_id="s") for number, owner in enumerate(NAMES)]
        await insert_all(store, rows)
        for number, each in enumerate(sorted(await claim(store), key=lambda each: NAMES.index(each["owner_key"]))):
            code = bytes([number])
            places = await index(store, [each], terms={"word": number + 1}, flags=["#flag"], codes={"g": code})
            assert [*places.values()] == [0]
        for number, owner in enumerate(NAMES):
            for session in (None, "s"):
                assert await read(store, owner, session_id=session, generation="g") == Postings(
                    1, {"word": {"0": {"0": number + 1}}}, {"#flag": {"0": 1}}, {"0": {"0": bytes([number])}}
                )
            assert {place: each["id"] for place, each in (await store.recall.rows_at(owner, [Place(0)])).items()} == {
                0: f"m{number}"
            }
            assert (await store.recall.status(owner)).indexed == 1
        every = [each["_id"] for owner in NAMES for each in await store.all_messages(owner, limit=9)]
        assert await store.recall.places_of("a", every) == {0}
        assert await store.recall.places_of("b", every) == set()
        await store.recall.forget([Entry("a", Place(0), {"word": ONCE}, ["#flag"], {"g": b""})])
        assert await read(store, "a", generation="g") == Postings(1, {}, {})
        assert all([(await read(store, owner)).terms for owner in NAMES if owner != "a"])
        assert await read(store, "nobody", generation="g") == Postings(0, {}, {})


async def test_sessions(place: Server) -> None:
    """Whatever they are called, a search in one finds nothing of another; rows that name none are of `default`."""
    async with place.open() as store:
        named: list[Any] = [*NAMES[1:], None, "", "default"]
        await insert_all(store, [row(number, session_id=name) for number, name in enumerate(named)])
        places = await index(store, await claim(store), flags=["#flag"], codes={"g": b"c"})
        for number, name in enumerate(NAMES[1:]):
            found = await read(store, session_id=name, generation="g")
            assert places_of(found) == {places[f"m{number}"]}
            assert (found.messages, len(found.flags["#flag"]), len(found.codes)) == (1, 1, 1)
        found = await read(store, session_id="default")
        assert (found.messages, places_of(found)) == (3, {places[f"m{len(named) - back}"] for back in (1, 2, 3)})
        found = await read(store)
        assert (found.messages, places_of(found)) == (len(named), {*places.values()})
        assert await read(store, session_id="none") == Postings(0, {}, {})


async def test_many_episodes(place: Server) -> None:
    """Of 130 sessions, which is more than one document of a term holds."""
    async with place.open() as store:
        await store.insert_messages([row(number, session_id=f"s{number}") for number in range(130)])
        rows = await claim(store)
        places = await index(store, rows, flags=["#flag"], codes={"g": b"c"})
        assert {*places.values()} == {number * EPISODE for number in range(130)}
        found = await read(store, generation="g")
        assert places_of(found) == {*places.values()}
        assert found.flags == {"#flag": dict.fromkeys(map(str, range(130)), 1)}
        assert found.codes == {str(number): {"0": b"c"} for number in range(130)}
        for number in (0, 63, 64, 129):
            found = await read(store, session_id=f"s{number}", generation="g")
            assert places_of(found) == {places[f"m{number}"]}
            assert (len(found.flags["#flag"]), len(found.codes)) == (1, 1)
        at = await store.recall.rows_at("o", [*places.values(), Place(1), Place(10**9)])
        assert {place: each["id"] for place, each in at.items()} == {place: name for name, place in places.items()}


async def test_next_work_and_generations(place: Server) -> None:
    """What is to be done next is due at once; messages without codes of a generation are to be embedded again."""
    async with place.open() as store:
        await insert_all(store, [row(number) for number in range(4)])
        rows = await claim(store)
        await store.recall.give_places(rows[:3])
        await store.recall.finish(rows[:2], next_work=MEANING)
        await store.recall.finish(rows[2:])
        assert await store.recall.status("o") == IndexStatus(3, 0, 0, 0, meaning_waiting=2)
        found = await claim(store, MEANING)
        assert ids(found) == ["m0", "m1"]
        await store.recall.finish(found, generation="g1")
        assert await store.recall.status("o") == IndexStatus(3, 0, 0, 0)
        # The one without codes, and not the one without a place.
        assert await store.recall.mark_outdated("g1", limit=9) == 1
        assert await store.recall.mark_outdated("g1", limit=9) == 0
        assert ids(await claim(store, MEANING)) == ["m2"]
        assert await store.recall.mark_outdated("g2", limit=1) == 1
        assert await store.recall.mark_outdated("g2", limit=9) == 1
        assert await store.recall.mark_outdated("g2", limit=9) == 0
        found = await claim(store, MEANING)
        assert ids(found) == ["m0", "m1"]
        await store.recall.finish(found, generation="g2")
        assert await store.recall.mark_outdated("g2", limit=9) == 0


async def test_failures(place: Server) -> None:
    """Nothing is due on what failed, its reason is told, and it can be marked again."""
    async with place.open() as store:
        await insert_all(store, [row(number) for number in range(3)])
        rows = await claim(store)
        await store.recall.fail(rows[0], "no text")
        await store.recall.give_places(rows[1:])
        await store.recall.finish(rows[1:], next_work=MEANING)
        await store.recall.fail((await claim(store, MEANING))[0], "refused " + "界" * 5_000)
        status = await store.recall.status("o")
        assert await store.recall.newest_status("o", newest=9) == status
        assert status.faults.keys() == {"m0", "m1"}
        assert status.faults["m0"] == "no text"
        assert status.faults["m1"].startswith("refused 界")
        assert (status.indexed, status.waiting, status.failed, status.meaning_waiting) == (2, 0, 2, 1)
        assert await store.recall.claim(WORDS, later() + 9 * LEASE, later(), limit=9) == []
        assert await store.recall.mark_outdated("g", limit=9) == 0
        assert await store.recall.mark("o", limit=9) == (0, 3)
        assert await store.recall.mark("o", limit=9, again=True) == (3, 3)
        again = await claim(store)
        assert ids(again) == ["m0", "m1", "m2"]
        await store.recall.give_places(again)
        await store.recall.finish(again)
        assert await store.recall.status("o") == IndexStatus(3, 0, 0, 0)


async def test_work_is_put_off(place: Server) -> None:
    """Until the time that is said, sooner or later than the claim runs out."""
    async with place.open() as store:
        await insert_all(store, [row(number) for number in range(3)])
        rows = await claim(store)
        now = later()
        await store.recall.put_off(rows[:1], now)
        await store.recall.put_off(rows[1:2], now + 5 * LEASE)
        assert ids(await store.recall.claim(WORDS, now, now + LEASE, limit=9)) == ["m0"]
        assert ids(await store.recall.claim(WORDS, now + 2 * LEASE, now + 9 * LEASE, limit=9)) == ["m0", "m2"]
        assert ids(await store.recall.claim(WORDS, now + 5 * LEASE, now + 9 * LEASE, limit=9)) == ["m1"]


async def test_a_later_version(place: Server) -> None:
    """Of a message that is being indexed, or was, is indexed in the same place."""
    async with place.open() as store:
        await insert_all(store, [row(1), row(2)])
        rows = await claim(store)
        places = await store.recall.give_places(rows)
        assert await store.update_message("o", rows[0]["_id"], {"content": "more"}, seen={"content": "text 1"})
        for change in (
            store.recall.finish(rows),
            store.recall.fail(rows[0], "no"),
            store.recall.put_off(rows, later()),
        ):
            await change
        found = await claim(store)
        assert [each["content"] for each in found] == ["more"]
        assert await store.recall.give_places(found) == {rows[0]["_id"]: places[rows[0]["_id"]]}
        await store.recall.finish(found)
        assert await store.update_message("o", rows[1]["_id"], {"content": "new"}, seen={"content": "text 2"})
        assert not await store.update_message("o", rows[0]["_id"], {"content": "new"}, seen={"content": "?"})
        assert [each["content"] for each in await claim(store)] == ["new"]


async def test_rows_that_were_removed(place: Server) -> None:
    """While they are indexed, or afterwards: what is left of them stands in nothing's way."""
    async with place.open() as store:
        await insert_all(store, [row(number) for number in range(4)])
        rows = await claim(store)
        removed = [each["_id"] for each in rows[:2]]
        assert await store.retention.remove("messages", "o", removed) == 2
        places = await store.recall.give_places(rows)
        assert places == {each["_id"]: Place(number) for number, each in enumerate(rows[2:])}
        await store.recall.finish(rows)
        await store.recall.fail(rows[0], "gone")
        assert await store.recall.status("o") == IndexStatus(2, 0, 0, 0)
        await store.retention.remove("messages", "o", [rows[2]["_id"]])
        found = await store.recall.rows_at("o", [Place(number) for number in range(32)])
        assert ids([*found.values()]) == ["m3"]
        assert await store.recall.places_of("o", [each["_id"] for each in rows]) == {*found}


async def test_forgetting(place: Server) -> None:
    """What is named of a place, and nothing else; of what is not there, nothing."""
    async with place.open() as store:
        await insert_all(store, [row(number) for number in range(3)])
        entry: dict[str, Any] = {"terms": {"word": ONCE, "other": ONCE}, "flags": ["#flag"], "codes": {"g": b"c"}}
        await index(store, await claim(store), **entry)
        await store.recall.forget([Entry("o", Place(1), {"word": ONCE, "never": ONCE}, ["#flag", "#no"], {"h": b""})])
        found = await read(store, generation="g")
        assert (places_of(found), places_of(found, "other")) == ({0, 2}, {0, 1, 2})
        assert found.flags == {"#flag": {"0": 0b101}}
        assert found.codes["0"].keys() == {"0", "1", "2"}
        everything = [Entry("o", Place(number), **entry) for number in range(3)]
        await store.recall.forget(everything)
        await store.recall.forget([*everything, Entry("o", Place(9_999), **entry)])
        assert await read(store, generation="g") == Postings(3, {}, {})


async def test_forgetting_what_rows_have(place: Server) -> None:
    """The codes of a row go whichever embedder made them; those of rows beside it, and of other owners, stay."""
    async with place.open() as store:
        await insert_all(store, [row(number, owner_key=owner) for owner in ("o", "p") for number in range(2)])
        rows = await claim(store)
        places = await store.recall.give_places(rows)
        await store.recall.write([Entry(each["owner_key"], places[each["_id"]], codes={"g": b"c"}) for each in rows])
        await store.recall.finish(rows, generation="g")
        await store.recall.forget([Entry("o", Place(1), {"word": ONCE})])
        for owner, left in {"o": {"0"}, "p": {"0", "1"}}.items():
            assert (await read(store, owner, generation="g")).codes["0"].keys() == left


async def test_marking(place: Server) -> None:
    """Rows of other writers, in pages, each once; those that Nexus recorded only when they are to be indexed again."""
    strange: list[Any] = [7, -1.5, "a", "$owner_key", "z" * 100, {"x": 1}, b"bytes", True, ObjectId(), ObjectId()]
    planted = [row(number, _id=each, session_id=f"s{number % 3}") for number, each in enumerate(strange)]
    planted[1]["recall"], planted[2]["recall"] = None, "yes"
    place.plant("messages", planted)
    place.plant("messages", [row(99, _id=new_row_id(), owner_key="p")])
    async with place.open() as store:
        await insert_all(store, [row(20), row(21)])
        await store.recall.finish(await claim(store))
        status = await store.recall.status("o")
        assert (status.waiting, status.unmarked) == (0, len(strange))
        assert await store.recall.newest_status("o", newest=99) == status

        async def mark(*, again: bool) -> list[int]:
            counts, seen = [], 0
            while True:
                marked, looked_at = await store.recall.mark("o", limit=5, again=again, skip=seen)
                counts.append(marked)
                seen += looked_at
                if looked_at < 5:
                    return counts

        assert sum(await mark(again=False)) == len(strange)
        assert await mark(again=False) == [0, 0, 0]
        rows = await claim(store)
        assert {each["id"] for each in rows} == {f"m{number}" for number in range(len(strange))}
        places = await index(store, rows)
        assert len({*places.values()}) == len(strange)
        found = await store.recall.rows_at("o", [*places.values()])
        assert {each["id"]: at for at, each in found.items()} == places
        assert await store.recall.places_of("o", [each["_id"] for each in rows]) == {*places.values()}
        assert await store.recall.status("o") == IndexStatus(len(strange), 0, 0, 0)
        assert (await store.recall.status()).unmarked == 1
        assert sum(await mark(again=True)) == len(strange) + 2
        assert len(await claim(store)) == len(strange) + 2
        assert await store.recall.mark("nobody", limit=5) == (0, 0)


async def test_places_of_other_writers(place: Server) -> None:
    """What is no place is replaced by one, and keeps no other row from being indexed."""
    odd: list[Any] = ["abc", None, 1.5, {"x": 1}]
    place.plant("messages", [row(at, _id=new_row_id(), recall={"place": each}) for at, each in enumerate(odd)])
    async with place.open() as store:
        assert await store.recall.mark("o", limit=9, again=True) == (4, 4)
        assert {*(await index(store, await claim(store))).values()} == {0, 1, 2, 3}
        assert (await store.recall.status("o")).indexed == 4


async def test_status_of_all(place: Server) -> None:
    """Of one owner, and of all together."""
    place.plant("messages", [row(50), row(51, owner_key="p")])
    async with place.open() as store:
        assert await store.recall.status("q") == IndexStatus(0, 0, 0, 0)
        await insert_all(store, [row(1), row(2, owner_key="p"), row(3, owner_key="p")])
        rows = await claim(store)
        await index(store, rows[:1])
        await store.recall.fail(rows[1], "no")
        assert await store.recall.status("o") == IndexStatus(1, 0, 0, 1)
        assert await store.recall.status("p") == IndexStatus(0, 1, 1, 1, faults={"m2": "no"})
        assert await store.recall.status() == IndexStatus(1, 1, 1, 2, faults={"m2": "no"})


async def test_nothing(place: Server) -> None:
    """Empty lists, and an index without anything."""
    async with place.open() as store:
        recall = store.recall
        assert await claim(store) == []
        assert await recall.give_places([]) == {}
        for empty in (recall.write([]), recall.finish([]), recall.forget([]), recall.put_off([], later())):
            await empty
        assert await recall.rows_at("o", []) == {}
        assert await recall.places_of("o", []) == set()
        assert await recall.mark_outdated("g", limit=9) == 0
        assert await recall.status() == IndexStatus(0, 0, 0, 0)


async def test_rows_are_read_as_they_were_recorded(place: Server) -> None:
    """What the index keeps in them is in no row that is read."""
    async with place.open() as store:
        await insert_all(store, [row(1)])
        await index(store, await claim(store))
        rows: list[Row | None] = [
            *await store.newest_messages("o", limit=9),
            *await store.newest_messages("o", limit=9, excerpt_chars=2),
            *await store.all_messages("o", limit=9),
            *await store.messages_of_runs("o", ["r1"], limit=9),
            *await store.session_messages("o", "s", limit=9),
            *await store.tail_messages("o", "s", WHOLE, limit=9),
            *await store.search_messages("o", "s", "text", limit=9, texts_of=texts_of),
            *await store.run_messages("o", "r1", limit=9),
            *(await store.recall.rows_at("o", [Place(0)])).values(),
            *await store.retention.rows_of_runs("o", "s", ["r1"]),
            await store.find_message("o", "m1"),
            await store.first_input("o", "s"),
            await store.run_input("o", "r1"),
        ]
        assert len(rows) == 13
        for each in rows:
            assert each is not None
            assert "recall" not in each


async def test_exports(mongo_uri: str, prepared_database: str) -> None:
    """Hold nothing of the index; what is imported is indexed anew."""
    async with open_mongo(mongo_uri, prepared_database, timeout_ms=10_000) as store:
        await insert_all(store, [row(1)])
        await index(store, await claim(store))
        exported = [each async for page in store.transfer.rows("o", "s") for each in page]
        assert "recall" not in exported[0]
        await store.retention.remove("messages", "o", [exported[0]["_id"]["$oid"]])
        assert await store.transfer.insert_rows(exported) == 1
        assert ids(await claim(store)) == ["m1"]
        assert [each async for page in store.transfer.rows("o", "s") for each in page] == exported


async def test_switched_off(mongo_uri: str, prepared_database: str, mongo_janitor: MongoClient[dict[str, Any]]) -> None:
    """Nothing is to be indexed; what was recorded then can be marked later."""
    async with open_mongo(mongo_uri, prepared_database, timeout_ms=10_000, recall=False) as store:
        await insert_all(store, [row(1)])
        await store.insert_messages([row(2)])
        (stored, *_) = await store.all_messages("o", limit=1)
        assert await store.update_message("o", stored["_id"], {"content": "new"}, seen={})
        exported = [each async for page in store.transfer.rows("o", "s") for each in page]
        await store.retention.remove("messages", "o", [exported[0]["_id"]["$oid"]])
        await store.transfer.insert_rows(exported[:1])
        assert await claim(store) == []
        assert (await store.recall.status("o")).unmarked == 2
        assert mongo_janitor[prepared_database]["messages"].count_documents({"recall": {"$exists": True}}) == 0
        assert await store.recall.mark("o", limit=9) == (2, 2)
        assert len(await claim(store)) == 2


async def test_a_key_of_a_message(place: Server) -> None:
    """It makes the words due again, also while they are claimed, and comes with the row of its owner."""
    async with place.open() as store:
        await insert_all(store, [row(1), row(2)])
        claimed = await claim(store)
        await store.recall.add_key("o", "m1", "biscuits")
        await store.recall.add_key("eve", "m2", "biscuits")
        await store.recall.add_key("o", "nobody", "biscuits")
        places = await store.recall.give_places(claimed)
        await store.recall.finish(claimed)
        again = await claim(store)
        assert [(each["id"], each.get("recall_key")) for each in again] == [("m1", "biscuits")]
        await store.recall.finish(again)
        rows = await store.recall.rows_at("o", [*places.values()])
        assert {each["id"]: each.get("recall_key") for each in rows.values()} == {"m1": "biscuits", "m2": None}
        await store.recall.add_key("o", "m1", "tea")
        (newer,) = await claim(store)
        assert newer["recall_key"] == "tea"
