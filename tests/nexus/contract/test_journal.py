"""The promises of `nexus.core.ports.Journal`, and of what claims and answers do of it along the way."""

from functools import partial
from typing import Any, Final

import anyio
import pytest

from nexus.core.ports import (
    MOST_JOURNALED,
    THE_ANSWER,
    Acquired,
    Announced,
    Answering,
    Asking,
    Busy,
    Claim,
    Concluded,
    Conflict,
    Delivery,
    Ending,
    JournalRow,
    KeptBefore,
    Look,
    Moved,
    Standing,
    StoreRead,
)
from nexus.core.topics import Topics
from tests.nexus.contract.ledgers import Desk, OpenDesk, memory_desk, pubsub_desk, streams_desk
from tests.nexus.contract.test_ledger import announced

_LEASE_MS: Final = 60_000
_LONG_MS: Final = 3_600_000
_LONG_US: Final = _LONG_MS * 1_000
TOPIC: Final = "answers"
# Whatever an orchestrator takes for the key of an owner.
STRANGE: Final = ("ada", "ada:b", "a b", "{ada}", "añ☃𝄞", "nul\x00nul", "x" * 5_000, "*", "%s", "")
STRANGE_IDS: Final = ("r", "a:b c", "{r}", "☃𝄞", "nul\x00nul", "x" * 2_000, "12 34", "*")


@pytest.fixture(params=["memory", "pubsub", "streams"])
def open_desk(request: pytest.FixtureRequest) -> OpenDesk:
    """How to open what is tested."""
    if request.param == "memory":
        return memory_desk
    url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("channel_prefix")
    return partial(pubsub_desk if request.param == "pubsub" else streams_desk, url, prefix)


async def claimed(desk: Desk, look: Look | None, key: str = "k") -> Acquired:
    """The claim on a request that is free."""
    claim = await desk.ledger.begin(key, "f", _LEASE_MS, 0, look)
    assert isinstance(claim, Acquired)
    return claim


async def journal(desk: Desk, row: JournalRow, key: str = "k") -> Moved:
    """Answer a request that takes the row along."""
    done = await desk.ledger.conclude(await claimed(desk, None, key), TOPIC, b"answer", _LONG_MS, None, Ending(row))
    assert isinstance(done, Concluded)
    return done.moved


def row(row_id: str = "r", owner: str = "ada", content: bytes = b"\x00\xff row") -> JournalRow:
    """A row."""
    return JournalRow(owner, row_id, content)


async def standing(desk: Desk, owner: str = "ada", version: str = "") -> Standing:
    """How things are with an owner."""
    return await desk.journal.standing(Look(owner, version=version))


class TestVersions:
    """How recent what is known of an owner is."""

    async def test_they_grow_with_every_row(self, open_desk: OpenDesk) -> None:
        """Whatever moves them, and each says from which to which."""
        async with open_desk() as desk:
            versions = [(await standing(desk)).version]
            for number in range(5):
                moves = [
                    await journal(desk, row(f"h{number}"), f"k{number}"),
                    await desk.journal.moved("ada", f"r{number}"),
                ]
                for moved in moves:
                    assert moved.before == versions[-1]
                    versions.append(moved.after)
            assert (await standing(desk)).version == versions[-1]
        assert sorted({*map(int, versions)}) == [*map(int, versions)]

    async def test_looking_moves_nothing(self, open_desk: OpenDesk) -> None:
        """Nor does taking out what is written; and it is quiet for longer and longer."""
        async with open_desk() as desk:
            before = await standing(desk)
            await desk.journal.written([row()])
            await claimed(desk, Look("ada"))
            after = await standing(desk)
        assert after.version == before.version
        assert after.quiet_us >= before.quiet_us

    async def test_none_comes_again(self, open_desk: OpenDesk) -> None:
        """When they are lost, what is known of an owner from before is not taken for the newest."""
        async with open_desk() as desk:
            known = {(await standing(desk)).version}
            for number in range(5):
                known.add((await desk.journal.moved("ada", f"r{number}")).after)
                await desk.forget_versions()
                version = (await standing(desk)).version
                assert all(int(version) > int(other) for other in known)
                known.add(version)

    async def test_a_row_that_comes_again_at_once_moves_it_once(self, open_desk: OpenDesk) -> None:
        """The reply is the same, also after a row was journaled: what came since is not known to whoever asks."""
        async with open_desk() as desk:
            first = await desk.journal.moved("ada", "r")
            assert await desk.journal.moved("ada", "r") == first
            journaled = await journal(desk, row("h"))
            assert await desk.journal.moved("ada", "r") == first
            assert (await standing(desk)).version == journaled.after
            assert (await desk.journal.moved("ada", "other")).before == journaled.after

    async def test_many_at_once(self, open_desk: OpenDesk) -> None:
        """Of any number of rows each moves it from where another has left it."""
        moves: list[Moved] = []
        async with open_desk() as desk:

            async def move(row_id: str) -> None:
                moves.append(await desk.journal.moved("ada", row_id))

            async with anyio.create_task_group() as tasks:
                for number in range(30):
                    tasks.start_soon(move, f"r{number}")
        moves.sort(key=lambda moved: int(moved.after))
        assert [moved.before for moved in moves[1:]] == [moved.after for moved in moves[:-1]]


class TestRows:
    """What is recorded and not yet in the store."""

    async def test_they_are_told_with_a_claim(self, open_desk: OpenDesk) -> None:
        """And with what is kept, unless the version is the one that is known."""
        async with open_desk() as desk:
            await desk.ledger.keep_first("p", b"prefix", _LONG_MS)
            moved = await journal(desk, row())
            told = (await claimed(desk, Look("ada", "p"), "a")).standing
            known = (await claimed(desk, Look("ada", "other", moved.after), "b")).standing
            nobody = (await claimed(desk, None, "c")).standing
        assert told
        assert known
        assert (told.version, told.rows, told.kept) == (moved.after, (b"\x00\xff row",), b"prefix")
        assert (known.version, known.rows, known.kept) == (moved.after, None, None)
        assert nobody is None

    async def test_until_they_are_written(self, open_desk: OpenDesk) -> None:
        """Taken out once or twice, and no other."""
        async with open_desk() as desk:
            await journal(desk, row("r1"), "k1")
            await journal(desk, row("r2", content=b"2"), "k2")
            await journal(desk, row("r1", "bob"), "k3")
            for _ in range(2):
                await desk.journal.written([row("r1"), row("unknown"), row("r1", "nobody")])
            assert (await standing(desk)).rows == (b"2",)
            assert len((await standing(desk, "bob")).rows or ()) == 1

    async def test_one_with_an_id(self, open_desk: OpenDesk) -> None:
        """Another with it takes its place."""
        async with open_desk() as desk:
            await journal(desk, row(content=b"1"), "k1")
            await journal(desk, row(content=b"2"), "k2")
            assert (await standing(desk)).rows == (b"2",)
            await desk.journal.written([row()])
            assert (await standing(desk)).rows == ()

    async def test_strange_owners_and_ids(self, open_desk: OpenDesk) -> None:
        """Each owner has rows and a version of its own, whatever it is called; a row is found under any id."""
        async with open_desk() as desk:
            for number, owner in enumerate(STRANGE):
                await journal(desk, row("r", owner, owner.encode()), f"k{number}")
            for owner in STRANGE:
                assert (await standing(desk, owner)).rows == (owner.encode(),)
            await desk.journal.written([row("r", owner) for owner in STRANGE])
            for number, row_id in enumerate(STRANGE_IDS):
                await journal(desk, row(row_id, content=row_id.encode()), f"l{number}")
                first = await desk.journal.moved("ada", row_id)
                assert await desk.journal.moved("ada", row_id) == first
            await desk.age(60_000)
            assert {*await desk.journal.unwritten(30_000, 100)} == {row_id.encode() for row_id in STRANGE_IDS}
            await desk.journal.written([row(row_id) for row_id in STRANGE_IDS])
            assert await desk.journal.unwritten(-1_000, 100) == []
            assert (await standing(desk)).rows == ()

    async def test_the_forsaken(self, open_desk: OpenDesk) -> None:
        """Those that have waited for so long, the oldest first, as many as are asked for."""
        async with open_desk() as desk:
            for number in range(3):
                await journal(desk, row(f"r{number}", f"owner{number}", b"%d" % number), f"k{number}")
                await desk.age(10_000)
            await journal(desk, row("new", content=b"new"), "k")
            assert await desk.journal.unwritten(5_000, 2) == [b"0", b"1"]
            assert await desk.journal.unwritten(15_000, 9) == [b"0", b"1"]
            await desk.journal.written([row("r0", "owner0")])
            assert await desk.journal.unwritten(5_000, 9) == [b"1", b"2"]


class TestEndings:
    """What happens in one step with an answer's being published."""

    async def test_all_of_it_or_nothing(self, open_desk: OpenDesk) -> None:
        """Where another is kept, nothing is published, journaled or moved, and the request is still the caller's."""
        async with open_desk() as desk:
            await desk.ledger.keep_first("p", b"first", _LONG_MS)
            claim = await claimed(desk, Look("ada", "p"))
            assert claim.standing
            ending = Ending(row(), "p", b"mine", _LONG_MS)
            conclude = partial(desk.ledger.conclude, claim, TOPIC, b"answer", _LONG_MS, None, ending)
            assert await announced(desk, conclude) == []
            assert await conclude() == KeptBefore(b"first")
            after = await standing(desk)
            assert (after.version, after.rows) == (claim.standing.version, ())
            assert await desk.journal.unwritten(-1_000, 9) == []
            assert await desk.ledger.renew(claim, _LEASE_MS)
            same = Ending(row(), "p", b"first", _LONG_MS)
            again = partial(desk.ledger.conclude, claim, TOPIC, b"answer", _LONG_MS, None, same)
            assert await announced(desk, again) == [b"answer"]
            assert (await standing(desk)).rows == (b"\x00\xff row",)

    async def test_it_is_kept(self, open_desk: OpenDesk) -> None:
        """For the next one that asks, as `keep_first` keeps it."""
        async with open_desk() as desk:
            ending = Ending(None, "p", b"mine", _LONG_MS)
            done = await desk.ledger.conclude(await claimed(desk, None), TOPIC, b"answer", _LONG_MS, None, ending)
            assert isinstance(done, Concluded)
            assert done.moved == Moved()
            assert await desk.ledger.kept("p") == b"mine"
            assert await desk.ledger.keep_first("p", b"other", _LONG_MS) == b"mine"

    async def test_the_answer_is_kept(self, open_desk: OpenDesk) -> None:
        """It need not come twice, and counts as what it is: another answer comes too late."""
        async with open_desk() as desk:
            ending = Ending(row(), "p", THE_ANSWER, _LONG_MS)
            first, second = await claimed(desk, None), await claimed(desk, None, "k2")
            assert isinstance(await desk.ledger.conclude(first, TOPIC, b"answer", _LONG_MS, None, ending), Concluded)
            assert await desk.ledger.kept("p") == b"answer"
            assert await desk.ledger.keep_first("p", b"other", _LONG_MS) == b"answer"
            third = await claimed(desk, Look("ada", "p"), "k3")
            assert third.standing
            assert third.standing.kept == b"answer"
            other = await desk.ledger.conclude(second, TOPIC, b"other", _LONG_MS, None, ending)
            assert other == KeptBefore(b"answer")
            assert isinstance(await desk.ledger.conclude(second, TOPIC, b"answer", _LONG_MS, None, ending), Concluded)

    async def test_the_answer_is_kept_for_long_enough(self, open_desk: OpenDesk) -> None:
        """For later builds also where it is not for who asks again; when it is gone, so is what they begin with."""
        async with open_desk() as desk:
            ending = Ending(row(), "p", THE_ANSWER, 60_000)
            done = await desk.ledger.conclude(await claimed(desk, None), TOPIC, b"answer", 50, None, ending)
            assert isinstance(done, Concluded)
            await desk.advance(100)
            assert await desk.ledger.kept("p") == b"answer"
            await desk.forget()
            assert await desk.ledger.kept("p") in {None, b"answer"}
            first = await desk.ledger.keep_first("p", b"mine", _LONG_MS)
            assert first == await desk.ledger.kept("p")
            again = await claimed(desk, Look("ada", "p"))
            assert again.standing
            assert again.standing.kept == first

    async def test_repeated(self, open_desk: OpenDesk) -> None:
        """By the same one, it is done once; by another, who comes too late, not at all."""
        async with open_desk() as desk:
            claim = await claimed(desk, Look("ada"))
            conclude = partial(desk.ledger.conclude, claim, TOPIC, b"answer", _LONG_MS, None, Ending(row()))
            done = await conclude()
            assert isinstance(done, Concluded)
            await desk.journal.written([row()])
            assert isinstance(await conclude(), Concluded)
            late = Acquired(claim.key, claim.fingerprint, "another", claim.now_ms)
            assert await desk.ledger.conclude(late, TOPIC, b"late", _LONG_MS, None, Ending(row("late"))) is None
            after = await standing(desk)
        assert (after.version, after.rows) == (done.moved.after, ())


class TestAtOnce:
    """A request that is claimed and answered in one step, of what is known of its owner."""

    async def test_it_is_answered(self, open_desk: OpenDesk) -> None:
        """Published, kept, journaled and done, as by `begin` and `conclude`; whoever asks again is told so."""
        async with open_desk() as desk:
            version = (await standing(desk)).version
            done = None

            async def answered() -> None:
                nonlocal done
                done = await at_once(desk, version)

            assert await announced(desk, answered) == [b"answer"]
            after = await standing(desk)
            assert done == Concluded(1, Moved(version, after.version))
            assert (after.rows, await desk.ledger.kept("p")) == ((b"\x00\xff row",), b"mine")
            assert await desk.ledger.begin("k", "f", _LEASE_MS) == Announced()
            assert await desk.ledger.begin("k", "g", _LEASE_MS) == Conflict()

    async def test_the_version_has_moved(self, open_desk: OpenDesk) -> None:
        """The request is the caller's, who is told what there is to know; nobody hears anything."""
        async with open_desk() as desk:
            version = (await standing(desk)).version
            moved = await desk.journal.moved("ada", "other")
            claim = await unanswered(desk, version)
            assert claim.standing
            assert (claim.standing.version, claim.standing.rows) == (moved.after, ())
            assert (claim.attempts, claim.standing.kept) == (1, None)
            assert (await standing(desk)).version == moved.after
            assert await desk.ledger.kept("p") is None
            assert await desk.ledger.renew(claim, _LEASE_MS)
            assert await desk.ledger.begin("k", "f", _LEASE_MS) == Busy()

    async def test_another_began_the_run(self, open_desk: OpenDesk) -> None:
        """What that one has kept is told."""
        async with open_desk() as desk:
            version = (await standing(desk)).version
            await desk.ledger.keep_first("p", b"first", _LONG_MS)
            for kept in (b"mine", THE_ANSWER):
                claim = await unanswered(desk, version, key=kept.decode(), kept=kept)
                assert claim.standing
                assert claim.standing.kept == b"first"
            assert isinstance(await at_once(desk, version, key="other", kept=b"first"), Concluded)

    async def test_nothing_is_to_be_kept(self, open_desk: OpenDesk) -> None:
        """It is answered unless something is kept, and what is kept stays as it is."""
        async with open_desk() as desk:
            version = (await standing(desk)).version
            done = await at_once(desk, version, kept=b"")
            assert isinstance(done, Concluded)
            assert await desk.ledger.kept("p") is None
            await desk.ledger.keep_first("p", b"first", _LONG_MS)
            claim = await unanswered(desk, done.moved.after, key="other", kept=b"")
            assert claim.standing
            assert claim.standing.kept == await desk.ledger.kept("p") == b"first"

    async def test_not_the_first_attempt(self, open_desk: OpenDesk) -> None:
        """It may be what kills who builds it, and is looked at more closely."""
        async with open_desk() as desk:
            version = (await standing(desk)).version
            claim = await desk.ledger.begin("k", "f", 1)
            assert isinstance(claim, Acquired)
            await desk.advance(10)
            assert (await unanswered(desk, version)).attempts == 2

    async def test_asked_long_ago(self, open_desk: OpenDesk) -> None:
        """By the clock of the ledger, which remembers a request that was given back, or of the bus."""
        async with open_desk() as desk:
            version = (await standing(desk)).version
            claim = await desk.ledger.begin("k", "f", _LEASE_MS, 5_000)
            assert isinstance(claim, Acquired)
            await desk.ledger.release(claim)
            again = await unanswered(desk, version, within_ms=4_999)
            assert again.now_ms - again.asked_ms >= 5_000
            sent = Delivery(Topics.CONTEXT_BUILD_REQUEST, b"", sent_ms=again.now_ms - 3_000)
            await unanswered(desk, version, key="other", within_ms=2_999, delivery=sent)
            assert isinstance(await at_once(desk, version, key="third", within_ms=60_000, delivery=sent), Concluded)

    async def test_the_journal_is_full(self, open_desk: OpenDesk) -> None:
        """No more is put into it."""
        async with open_desk() as desk:
            for number in range(MOST_JOURNALED):
                moved = await journal(desk, row(str(number)), f"k{number}")
            claim = await unanswered(desk, moved.after)
            assert claim.standing
            assert claim.standing.waiting == MOST_JOURNALED
            await desk.journal.written([row("0")])
            assert isinstance(await at_once(desk, moved.after, key="other"), Concluded)

    async def test_of_many_at_once(self, open_desk: OpenDesk) -> None:
        """One of those that ask for a request answers it; of several requests of an owner the first."""
        async with open_desk() as desk:
            version = (await standing(desk)).version
            done: list[Claim | Concluded] = []

            async def answer(key: str) -> None:
                done.append(await at_once(desk, version, key=key, kept=key.encode(), kept_key=key))

            async with anyio.create_task_group() as tasks:
                for key in ("a", "a", "a", "b", "c"):
                    tasks.start_soon(answer, key)
            assert sum(isinstance(each, Concluded) for each in done) == 1
            assert (await standing(desk)).waiting == 1


class TestOfWhatWasRead:
    """The same, of what was read of the store when no version was known."""

    async def test_of_an_owner_of_whom_nothing_is_known(self, open_desk: OpenDesk) -> None:
        """From which version it moved is not told, since nobody knows how long there has been none."""
        async with open_desk() as desk:
            await known_time(desk)
            done = await at_once(desk, read=read_since(desk, 1_000, _LONG_US))
            after = await standing(desk)
            assert isinstance(done, Concluded)
            assert done.moved == Moved("", after.version)
            assert (after.rows, await desk.ledger.kept("p")) == ((b"\x00\xff row",), b"mine")

    async def test_nothing_has_moved(self, open_desk: OpenDesk) -> None:
        """The owner's version is older than the read, and it is told."""
        async with open_desk() as desk:
            version = await an_old_version(desk)
            heard = []

            async def answered() -> None:
                heard.append(await at_once(desk, read=read_since(desk, 5_000, _LONG_US)))

            assert await announced(desk, answered) == [b"answer"]
            assert heard == [Concluded(1, Moved(version, (await standing(desk)).version))]

    async def test_something_has_moved(self, open_desk: OpenDesk) -> None:
        """The read may not have it."""
        async with open_desk() as desk:
            await known_time(desk)
            moved = await desk.journal.moved("ada", "other")
            claim = await unanswered(desk, read=read_since(desk, 60_000_000, _LONG_US))
            assert claim.standing
            assert (claim.standing.version, claim.standing.rows) == (moved.after, ())
            assert (await standing(desk)).version == moved.after

    async def test_it_took_too_long(self, open_desk: OpenDesk) -> None:
        """What the store has by now may have left the journal."""
        async with open_desk() as desk:
            await known_time(desk)
            await unanswered(desk, read=read_since(desk, 250_000, 250_000))
            await unanswered(desk, key="other", read=read_since(desk, 250_000, 100_000))

    async def test_a_read_that_is_yet_to_begin(self, open_desk: OpenDesk) -> None:
        """Where one of two clocks is wrong, nothing is certain."""
        async with open_desk() as desk:
            await an_old_version(desk)
            if desk.redis is not None:
                await unanswered(desk, read=read_since(desk, -60_000_000, _LONG_US))

    async def test_rows_of_the_journal(self, open_desk: OpenDesk) -> None:
        """All that are there must be in it; what is not there any more may be."""
        async with open_desk() as desk:
            for number, row_id in enumerate(STRANGE_IDS):
                await journal(desk, row(row_id, content=row_id.encode()), f"k{number}")
            await known_time(desk)
            for left_out in STRANGE_IDS:
                others = (*({*STRANGE_IDS} - {left_out}), "gone", "")
                claim = await unanswered(desk, key=left_out, read=read_since(desk, 5_000, _LONG_US, others))
                assert claim.standing
                assert {*(claim.standing.rows or ())} == {each.encode() for each in STRANGE_IDS}
            done = await at_once(desk, key="all", read=read_since(desk, 5_000, _LONG_US, ("gone", *STRANGE_IDS)))
            assert isinstance(done, Concluded)

    async def test_of_many_at_once(self, open_desk: OpenDesk) -> None:
        """Of several requests of an owner the first; for the others, something has moved."""
        async with open_desk() as desk:
            await known_time(desk)
            done: list[Claim | Concluded] = []

            async def answer(key: str) -> None:
                done.append(await at_once(desk, key=key, kept_key=key, read=read_since(desk, 5_000, _LONG_US)))

            async with anyio.create_task_group() as tasks:
                for key in ("a", "a", "b", "c"):
                    tasks.start_soon(answer, key)
            assert sum(isinstance(each, Concluded) for each in done) == 1
            assert (await standing(desk)).waiting == 1

    async def test_otherwise_as_by_its_version(self, open_desk: OpenDesk) -> None:
        """Another build of the run was answered; it was begun before; it was asked long ago."""
        async with open_desk() as desk:
            await known_time(desk)
            await desk.ledger.keep_first("p", b"first", _LONG_MS)
            await unanswered(desk, key="one", read=read_since(desk, 5_000, _LONG_US))
            assert isinstance(await desk.ledger.begin("k", "f", 1), Acquired)
            await desk.advance(10)
            assert (await unanswered(desk, kept_key="q", read=read_since(desk, 5_000, _LONG_US))).attempts == 2
            sent = Delivery(Topics.CONTEXT_BUILD_REQUEST, b"", sent_ms=(await known_time(desk)) - 3_000)
            await unanswered(
                desk, key="two", kept_key="q", within_ms=2_999, delivery=sent, read=read_since(desk, 5_000, _LONG_US)
            )
            done = await at_once(
                desk, key="three", kept_key="q", within_ms=60_000, delivery=sent, read=read_since(desk, 5_000, _LONG_US)
            )
            assert isinstance(done, Concluded)

    async def test_of_no_owner(self, open_desk: OpenDesk) -> None:
        """Nothing is journaled, so there is nothing to be sure of."""
        async with open_desk() as desk:
            await known_time(desk)
            answering = Answering(
                TOPIC, b"answer", _LONG_MS, None, Ending(), _LONG_MS, read_since(desk, 5_000, _LONG_US)
            )
            asking = Asking("k", "f", _LEASE_MS)
            assert isinstance(await desk.ledger.begin_and_conclude(asking, answering), Acquired)


def read_since(desk: Desk, age_us: int, lasts_us: int, journaled: tuple[str, ...] = ()) -> StoreRead:
    """What began to be read so long ago."""
    return StoreRead(desk.clock() - age_us / 1e6, lasts_us, journaled)


async def known_time(desk: Desk) -> int:
    """Ask often enough for what time it is to be known, and a moment longer; returns the milliseconds."""
    for number in range(5):
        claim = await claimed(desk, None, f"time {number} {anyio.current_time()}")
    await anyio.sleep(0.02)
    await desk.advance(20)
    return claim.now_ms


async def an_old_version(desk: Desk) -> str:
    """The version of ada, of which nothing was recorded for a moment."""
    version = (await standing(desk)).version
    await desk.advance(20)
    await known_time(desk)
    return version


async def at_once(  # noqa: PLR0917  # each is of one test
    desk: Desk,
    version: str = "",
    key: str = "k",
    kept: bytes = b"mine",
    kept_key: str = "p",
    within_ms: int = _LONG_MS,
    delivery: Delivery | None = None,
    read: StoreRead | None = None,
) -> Claim | Concluded:
    """Ask for a request with its answer."""
    asking = Asking(key, "f", _LEASE_MS, 0, Look("ada", kept_key, version))
    ending = Ending(row(key), kept_key, kept, _LONG_MS)
    answering = Answering(TOPIC, b"answer", _LONG_MS, delivery, ending, within_ms, read)
    return await desk.ledger.begin_and_conclude(asking, answering)


async def unanswered(desk: Desk, version: str = "", **given: Any) -> Acquired:
    """The same, where nothing but a claim comes of it."""
    claims: list[Claim | Concluded] = []

    async def ask() -> None:
        claims.append(await at_once(desk, version, **given))

    assert await announced(desk, ask) == []
    (claim,) = claims
    assert isinstance(claim, Acquired)
    return claim
