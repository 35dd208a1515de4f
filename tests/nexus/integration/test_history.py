"""Reading the past on a real store: enough of it, whole runs, and nothing that is not needed (CONTRACT §2, §4.3)."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from pymongo import MongoClient

from nexus.adapters.mongo import MongoStore, open_mongo
from nexus.core.models import Message, Role
from nexus.core.ports import Past, Row, RunOrigin
from nexus.services.context.cutoff import UntilShown
from nexus.services.context.memory import Utterance, merge, read_rows
from nexus.services.history.reader import read_past, read_session
from nexus.services.persistence import PersistenceService
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.proxy import proxied
from tests.nexus.support.rows import ids, moment, row

CALLS = [{"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for number in range(2)]


class Home:
    """A database of the test's own."""

    def __init__(self, janitor: MongoClient[dict[str, Any]], uri: str, name: str) -> None:
        self.address = janitor.address or ("", 0)
        self.name = name
        self._uri = uri
        self._messages = janitor[name].messages

    def plant(self, rows: Sequence[Row]) -> None:
        """Store rows in this order."""
        self._messages.insert_many([dict(each) for each in rows])

    def open(self) -> AbstractAsyncContextManager[MongoStore]:
        """A store on the database, with an index."""
        return open_mongo(self._uri, self.name, timeout_ms=20_000)


@pytest.fixture
def home(mongo_janitor: MongoClient[dict[str, Any]], mongo_uri: str, prepared_database: str) -> Home:
    """A database of the test's own."""
    return Home(mongo_janitor, mongo_uri, prepared_database)


def run_of_eleven(number: int, *, result: str = "result") -> list[Row]:
    """A human row, three rounds of an AI row with two calls and their results, and an answer."""
    run = {"run_id": f"r{number}"}
    first = number * 11
    rows = [row(first, content=f"question {number}", **run)]
    for turn in range(3):
        calls = {"tool_calls": CALLS}
        rows.append(row(first + 1 + 3 * turn, role="AI", content=f"round {turn} of {number}", metadata=calls, **run))
        rows += [row(first + 2 + 3 * turn + call, role="TOOL", content=result, **run) for call in range(2)]
    return [*rows, row(first + 10, role="AI", content=f"answer {number}", **run)]


def shown(past: Past, messages: int, *, current_run_id: str = "") -> list[Utterance]:
    """The newest messages that the memory would show of a past."""
    return merge(read_rows(past.rows, current_run_id=current_run_id)[0])[:messages]


def texts(utterance: Utterance) -> list[str]:
    """What was said, row by row."""
    return [entry.text for entry in utterance.entries]


def whole(number: int) -> list[list[str]]:
    """What a run of eleven rows is merged to, newest first."""
    return [[*(f"round {turn} of {number}" for turn in range(3)), f"answer {number}"], [f"question {number}"]]


# The input of the run that asks, which is recorded only where a test says so.
NOW = Message(id="not recorded", run_id="now", owner_key="o", role=Role.HUMAN)


async def read(home: Home, messages: int, **options: Any) -> Past:
    """Read the past of `o`."""
    async with home.open() as store:
        return await read_past(store, "o", messages=messages, excerpt_chars=4_000, **options)


async def test_twenty_messages_of_thirty_runs(home: Home) -> None:
    """Of thirty runs of eleven rows the newest ten are there whole, and they are twenty messages."""
    home.plant([each for number in range(30) for each in run_of_eleven(number)])
    past = await read(home, 20)
    assert [texts(each) for each in shown(past, 20)] == [said for number in range(29, 19, -1) for said in whole(number)]
    assert not past.stopped_early


@pytest.mark.parametrize("messages", [1, 2, 3, 4, 5, 7, 19, 59, 60, 200])
async def test_no_shown_run_is_cut(home: Home, messages: int) -> None:
    """However many messages are wanted, each that is shown is whole."""
    home.plant([each for number in range(30) for each in run_of_eleven(number)])
    expected = [said for number in range(29, -1, -1) for said in whole(number)]
    assert [texts(each) for each in shown(await read(home, messages), messages)] == expected[:messages]


async def test_no_past(home: Home) -> None:
    """Who has said nothing has no past."""
    home.plant([row(1, owner_key="p")])
    assert await read(home, 20) == Past([])


async def test_interleaved_runs(home: Home) -> None:
    """Runs that went on at the same time are each merged whole, by their last answers."""
    runs = [
        [row(0, run_id=f"r{run}", content=f"q{run}")]
        + [row(0, id=f"a{run}-{n}", run_id=f"r{run}", role="AI", content=f"{run}-{n}") for n in range(12)]
        for run in range(5)
    ]
    mixed = [runs[run][place] for place in range(13) for run in range(5)]
    home.plant([{**each, "id": f"m{number}", "timestamp": moment(number)} for number, each in enumerate(mixed)])
    found = shown(await read(home, 5), 5)
    assert [texts(each) for each in found] == [[f"{run}-{n}" for n in range(12)] for run in (4, 3, 2, 1, 0)]


async def test_a_run_with_a_thousand_rows(home: Home) -> None:
    """A run of a thousand answers is one message, and the runs before it are read as well."""
    long = [row(100 + n, run_id="long", role="AI", content=str(n)) for n in range(1_000)]
    home.plant([*run_of_eleven(0), row(99, run_id="long", content="question"), *long])
    past = await read(home, 4)
    assert [len(each.entries) for each in shown(past, 4)] == [1_000, 1, 4, 1]
    past = await read(home, 1)
    assert texts(shown(past, 1)[0]) == [str(n) for n in range(1_000)]


async def test_runs_without_a_human_row(home: Home) -> None:
    """Runs that nobody began by speaking are whole as well."""
    rows = [row(run * 10 + n, run_id=f"r{run}", role="AI", content=f"{run}-{n}") for run in range(9) for n in range(7)]
    home.plant(rows)
    found = shown(await read(home, 3), 3)
    assert [texts(each) for each in found] == [[f"{run}-{n}" for n in range(7)] for run in (8, 7, 6)]


async def test_rows_without_a_run(home: Home) -> None:
    """Rows of no run are messages by themselves."""
    home.plant([row(number, run_id=None, role="AI") for number in range(20)])
    assert [texts(each) for each in shown(await read(home, 3), 3)] == [[f"text {n}"] for n in (19, 18, 17)]


async def test_a_mixed_history_of_texts_and_dates(home: Home) -> None:
    """Times stored as texts take part in the past where they belong."""
    rows = [each for number in range(30) for each in run_of_eleven(number)]
    for each in rows[5::3]:
        each["timestamp"] = each["timestamp"].isoformat().replace("+00:00", "Z")
    home.plant(rows)
    expected = [said for number in range(29, 19, -1) for said in whole(number)]
    assert [texts(each) for each in shown(await read(home, 20), 20)] == expected


async def test_the_current_run_does_not_count(home: Home) -> None:
    """Rows of the run that asks are left out, however many they are, and the messages are those before it."""
    current = [row(1_000 + n, run_id="now", role="AI") for n in range(100)]
    home.plant([*(each for number in range(30) for each in run_of_eleven(number)), *current])
    past = await read(home, 20, asked=NOW)
    expected = [said for number in range(29, 19, -1) for said in whole(number)]
    assert [texts(each) for each in shown(past, 20, current_run_id="now")] == expected


async def test_a_continued_run_sees_the_past_it_began_with(home: Home) -> None:
    """What was recorded after a run's input is left out when the run goes on, so that its memory stays as it was."""
    before = [each for number in range(12) for each in run_of_eleven(number)]
    begun = row(500, run_id="now", id="begun")
    later = [{**each, "id": f"later-{each['id']}", "run_id": f"later-{each['run_id']}"} for each in before]
    home.plant([*before, begun, *later])
    asked = Message(id="begun", run_id="now", owner_key="o", role=Role.HUMAN)
    async with home.open() as store, PersistenceService(store).running() as service:
        past = await service.get_past("o", messages=20, excerpt_chars=100, asked=asked, continued=True)
    expected = [said for number in range(11, 1, -1) for said in whole(number)]
    assert [texts(each) for each in shown(past, 20, current_run_id="now")] == expected


async def test_a_continuation_keeps_rows_whose_ids_say_nothing(home: Home) -> None:
    """Rows that another program stored with an `_id` of its own form are not taken for later ones."""
    home.plant([{**row(1), "_id": "zzz"}, {**row(2), "_id": 7}, row(3), row(4, id="begun", run_id="now"), row(5)])
    asked = Message(id="begun", run_id="now", owner_key="o", role=Role.HUMAN)
    async with home.open() as store, PersistenceService(store).running() as service:
        past = await service.get_past("o", messages=20, excerpt_chars=100, asked=asked, continued=True)
    assert [texts(each) for each in shown(past, 20, current_run_id="now")] == [["text 3"], ["text 2"], ["text 1"]]


async def test_results_of_tools_stay_where_they_are(home: Home) -> None:
    """Thirty runs with sixty results of 100 KB each are read without transferring any of them."""
    home.plant([each for number in range(10) for each in run_of_eleven(number, result="x" * 100_000)])
    async with proxied(*home.address) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with open_mongo(uri, home.name, timeout_ms=20_000) as store:
            past = await read_past(store, "o", messages=20, excerpt_chars=4_000)
        assert len(shown(past, 20)) == 20
        assert proxy.received < 200_000


async def test_the_middle_of_long_answers_stays_where_it_is(home: Home) -> None:
    """Of answers of 1 MB only the ends are transferred."""
    home.plant([row(number, role="AI", content=f"{number}" + "x" * 1_000_000 + f"{number}") for number in range(10)])
    async with proxied(*home.address) as proxy:
        uri = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        async with open_mongo(uri, home.name, timeout_ms=20_000) as store:
            past = await read_past(store, "o", messages=20, excerpt_chars=1_000)
        assert proxy.received < 200_000
    assert {len(texts(each)[0]) for each in shown(past, 20)} == {2_000}


async def test_reading_ends_somewhere() -> None:
    """A past that is one run of more rows than are ever read is shown as far as it was read, and says so."""
    store = FakeStore()
    store.plant("messages", [row(number, run_id="r", role="AI", content="x") for number in range(6_000)])
    past = await read_past(store, "o", messages=20, excerpt_chars=4_000)
    assert past.stopped_early
    assert len(shown(past, 20)) == 1
    assert 5_000 <= len(past.rows) < 6_000


SESSION = RunOrigin("s")
INTERNAL = {"sub_agent_internal": True, "agent_id": "reviewer"}


async def session(home: Home, origin: RunOrigin = SESSION, *, messages: int = 1_000, **options: Any) -> Past:
    """Read the session `s` of `o`, for a run that has no rows unless a test says so."""
    async with home.open() as store, PersistenceService(store).running() as service:
        return await service.get_session("o", origin, messages=messages, **({"asked": NOW} | options))


def names(*numbers: int) -> list[str]:
    """The ids of these rows."""
    return [f"m{number}" for number in numbers]


class TestSession:
    """A session as it was: rows of every role, newest first."""

    @pytest.mark.parametrize(
        ("messages", "shown", "stopped"),
        [(1_000, 600, False), (600, 600, False), (599, 599, True), (250, 250, True), (251, 251, True), (1, 1, True)],
    )
    async def test_six_hundred_rows(self, home: Home, messages: int, shown: int, stopped: bool) -> None:
        """Page after page, each row once, up to the number that is wanted; it is said when there are more."""
        roles = ("HUMAN", "AI", "TOOL")
        home.plant([row(number, role=roles[number % 3]) for number in range(600)])
        past = await session(home, messages=messages)
        assert ids(past.rows) == names(*range(599, 599 - shown, -1))
        assert past.stopped_early is stopped

    @pytest.mark.parametrize("count", [0, 99, 100, 101, 300, 700])
    async def test_pages_that_are_just_full(self, home: Home, count: int) -> None:
        """Nothing is missing and nothing is said to be."""
        home.plant([row(number) for number in range(count)] + [row(1, owner_key="p"), row(2_000, session_id="t")])
        past = await session(home)
        assert ids(past.rows) == names(*range(count - 1, -1, -1))
        assert not past.stopped_early

    async def test_the_current_run_does_not_count(self, home: Home) -> None:
        """However many rows it has."""
        home.plant([row(number) for number in range(300)])
        home.plant([row(1_000 + number, run_id="now", role="AI") for number in range(300)])
        assert ids((await session(home, messages=300)).rows) == names(*range(299, -1, -1))
        past = await session(home, messages=299)
        assert (len(past.rows), past.stopped_early) == (299, True)

    async def test_what_was_stored_later_is_left_out(self, home: Home) -> None:
        """By stored order, whatever the senders' clocks say, so that a run sees the same session to its end."""
        home.plant([row(number) for number in range(300)])
        before = await session(home, messages=200)
        until = UntilShown.of(before.rows)
        home.plant([row(1_000 + number) for number in range(300)])
        home.plant([row(2_000 + number, timestamp=moment(number)) for number in range(100)])
        assert (await session(home, messages=200, until=until)).rows == before.rows
        assert ids((await session(home, messages=2)).rows) == names(1299, 1298)

    async def test_a_session_that_had_nothing(self, home: Home) -> None:
        """Has nothing for that run later, either."""
        home.plant([row(number) for number in range(5)])
        assert (await session(home, until=UntilShown.of([]))).rows == []

    async def test_without_what_was_kept_the_input_says_when_it_began(self, home: Home) -> None:
        """A row that another program stored under an `_id` of its own form is not taken for a later one."""
        home.plant([{**row(1), "_id": "zzz"}, row(2), row(3, id="begun", run_id="now"), row(4)])
        asked = Message(id="begun", run_id="now", owner_key="o", role=Role.HUMAN)
        for continued in (True, False):
            assert ids((await session(home, asked=asked, continued=continued)).rows) == names(2, 1)
        assert ids((await session(home)).rows) == names(4, 2, 1)

    async def test_what_is_internal(self, home: Home) -> None:
        """Is read for that sub-agent alone, and counts for nobody else: what one did leaves others their history."""
        home.plant([row(number, metadata=INTERNAL if number % 2 else {}) for number in range(600)])
        main = await session(home, messages=300)
        assert ids(main.rows) == names(*range(598, -1, -2))
        assert not main.stopped_early
        past = await session(home, RunOrigin("s", "reviewer"), messages=600)
        assert (len(past.rows), past.stopped_early) == (600, False)
        for sub_agent in ("other", ""):
            assert (await session(home, RunOrigin("s", sub_agent), messages=300)) == main

    async def test_what_is_internal_to_nobody(self, home: Home) -> None:
        """Is every sub-agent's, and not the main agent's."""
        nobody = [{"sub_agent_internal": True, **given} for given in ({}, {"agent_id": ""}, {"agent_id": None})]
        home.plant([row(number, metadata=metadata) for number, metadata in enumerate([{}, *nobody])])
        for sub_agent in ("reviewer", ""):
            assert ids((await session(home, RunOrigin("s", sub_agent))).rows) == names(3, 2, 1, 0)
        assert ids((await session(home)).rows) == names(0)

    async def test_a_mixed_session_of_texts_and_dates(self, home: Home) -> None:
        """Through every page."""
        rows = [row(number) for number in range(600)]
        for each in rows[5::3]:
            each["timestamp"] = each["timestamp"].isoformat().replace("+00:00", "Z")
        home.plant(rows)
        assert ids((await session(home)).rows) == names(*range(599, -1, -1))

    @pytest.mark.parametrize("later", [0, 1, 99, 100, 101, 400])
    async def test_more_text_than_any_model_takes(self, later: int) -> None:
        """Is cut, and in the same place for every build of a run, however many rows were stored since the first."""
        store = FakeStore()
        store.plant("messages", [row(number, content="x" * 20_000) for number in range(600)])
        before = await read_session(store, "o", SESSION, messages=1_000)
        assert before.stopped_early
        assert sum(len(each["content"]) for each in before.rows) > 4_000_000
        store.plant("messages", [row(1_000 + number) for number in range(later)])
        until = UntilShown.of(before.rows)
        assert (await read_session(store, "o", SESSION, messages=1_000, until=until)).rows == before.rows

    async def test_rows_that_come_while_it_is_read(self) -> None:
        """Push others to the next page: none of those is shown twice, and none is missing."""

        class Growing(FakeStore):
            async def session_messages(
                self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
            ) -> list[Row]:
                page = await super().session_messages(
                    owner_key, session_id, limit=limit, skip=skip, sub_agent=sub_agent
                )
                self.plant("messages", [row(10_000 + len(self.messages))])
                return page

        store = Growing()
        store.plant("messages", [row(number) for number in range(600)])
        past = await read_session(store, "o", SESSION, messages=1_000)
        assert ids(past.rows) == names(*range(599, -1, -1))
