"""How much of a past is read: whole runs, whatever lies between them (contract §2, §4.3)."""

from typing import Any

import bson
import pytest

from nexus.core.models import Message, Role
from nexus.core.ports import Past, Row, RunOrigin
from nexus.services.history.merge import newest
from nexus.services.history.reader import read_past
from nexus.services.persistence import PersistenceService
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.rows import ids, moment, row
from tests.nexus.support.tombstones import NO_TOMBSTONES

CALLS = [{"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for number in range(2)]
# The input of the run that asks, which is not recorded.
NOW = Message(id="not recorded", run_id="now", owner_key="o", role=Role.HUMAN)
BEGUN = Message(id="begun", run_id="now", owner_key="o", role=Role.HUMAN)


class Asked(FakeStore):
    """A store that knows how often it was asked."""

    asked = 0

    def _ask(self, operation: str) -> None:
        super()._ask(operation)
        self.asked += 1


async def read(rows: list[Row], messages: int = 20, **options: Any) -> Past:
    """The past of `o` in a store with these rows."""
    store = FakeStore()
    store.plant("messages", rows)
    return await read_past(store, "o", messages=messages, excerpt_chars=4_000, **options)


async def continued(rows: list[Row]) -> Past:
    """The past of a run that goes on."""
    store = FakeStore()
    store.plant("messages", rows)
    service = PersistenceService(store, NO_TOMBSTONES)
    return await service.get_past("o", messages=20, excerpt_chars=100, asked=BEGUN, continued=True)


def shown(past: Past, messages: int = 20) -> list[list[str]]:
    """What the memory shows of a past, row by row, newest first."""
    utterances = newest(past.rows, messages, current_run_id="now").utterances
    return [[entry.text for entry in utterance.entries] for utterance in utterances]


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


def whole(number: int) -> list[list[str]]:
    """What a run of eleven rows is merged to, newest first."""
    return [[*(f"round {turn} of {number}" for turn in range(3)), f"answer {number}"], [f"question {number}"]]


def runs(count: int) -> list[Row]:
    """The rows of runs of eleven."""
    return [each for number in range(count) for each in run_of_eleven(number)]


@pytest.mark.parametrize("inputs", [0, 1, 2, 3])
async def test_a_past_is_asked_for_once(inputs: int) -> None:
    """Also where what is shown begins within a run: its input is among what was read, and need not be found again."""
    rows = [row(n, role=("HUMAN", "AI")[n % 2], run_id=f"r{n // 2}") for n in range(100)]
    rows += [row(100 + 2 * n) for n in range(inputs)]
    store = Asked()
    store.plant("messages", rows)
    past = await read_past(store, "o", messages=20, excerpt_chars=500)
    assert (len(past.rows), store.asked) == (40, 1)


@pytest.mark.parametrize("messages", [1, 2, 3, 4, 5, 7, 19, 20, 59, 60, 200])
async def test_no_shown_run_is_cut(messages: int) -> None:
    """Of thirty runs of eleven rows, however many messages are wanted, each that is shown is whole."""
    past = await read(runs(30), messages)
    assert shown(past, messages) == [said for number in range(29, -1, -1) for said in whole(number)][:messages]
    assert not past.stopped_early


async def test_interleaved_runs() -> None:
    """Runs that went on at the same time are each merged whole, by their last answers."""
    each_run = [
        [row(0, run_id=f"r{run}", content=f"q{run}")]
        + [row(0, run_id=f"r{run}", role="AI", content=f"{run}-{n}") for n in range(12)]
        for run in range(5)
    ]
    mixed = [each_run[run][place] for place in range(13) for run in range(5)]
    past = await read([{**each, "id": f"m{n}", "timestamp": moment(n)} for n, each in enumerate(mixed)], 5)
    assert shown(past, 5) == [[f"{run}-{n}" for n in range(12)] for run in (4, 3, 2, 1, 0)]


async def test_a_run_does_not_begin_with_what_is_said_in_it() -> None:
    """A run in which a person has spoken again is read to its beginning all the same."""
    answers = [row(1 + n, role="AI", run_id="r", content=str(n)) for n in range(30)]
    further = row(31, run_id="r", content="and Bergen?", metadata={"source": "run_input"})
    last = row(32, role="AI", run_id="r", content="the same")
    past = await read([row(0, run_id="r", content="Oslo?"), *answers, further, last], 2)
    assert shown(past, 3) == [[*(str(n) for n in range(30)), "the same"], ["and Bergen?"], ["Oslo?"]]


async def test_a_run_with_a_thousand_rows() -> None:
    """Is one message, and the runs before it are read as well."""
    long = [row(100 + n, run_id="long", role="AI", content=str(n)) for n in range(1_000)]
    rows = [*run_of_eleven(0), row(99, run_id="long", content="question"), *long]
    assert [len(said) for said in shown(await read(rows, 4), 4)] == [1_000, 1, 4, 1]
    assert shown(await read(rows, 1), 1) == [[str(n) for n in range(1_000)]]


@pytest.mark.parametrize("rows", [0, 1, 100, 6_000])
async def test_the_current_run_does_not_count(rows: int) -> None:
    """However many rows it has, the messages are those before it; beyond 5,000 nothing more is read."""
    current = [row(10_000 + n, run_id="now", role="AI") for n in range(rows)]
    past = await read([*runs(30), *current], asked=NOW)
    expected = [said for number in range(29, 19, -1) for said in whole(number)]
    assert shown(past)[:10] == (expected[:10] if not past.stopped_early else [])
    assert past.stopped_early is (rows == 6_000)


async def test_a_continued_run_sees_the_past_it_began_with() -> None:
    """What was recorded after a run's input is left out when the run goes on, so that its memory stays as it was."""
    later = [{**each, "id": f"later-{each['id']}", "run_id": f"later-{each['run_id']}"} for each in runs(12)]
    past = await continued([*runs(12), row(500, run_id="now", id="begun"), *later])
    assert shown(past) == [said for number in range(11, 1, -1) for said in whole(number)]


@pytest.mark.parametrize("continued", [False, True])
async def test_the_row_that_the_build_inserts_ends_no_past(*, continued: bool) -> None:
    """It is made before the build reads, and results of replicas whose clocks are ahead may seem to be later.

    Under another `_id` the input is of an earlier request of the run, which saw nothing of what was stored since.
    """
    input_id, answer_id = f"{100:08x}{1:016x}", f"{101:08x}{2:016x}"
    store = FakeStore()
    store.plant("messages", [row(1, role="AI", _id=bson.ObjectId(answer_id))])
    store.plant("messages", [row(2, id="begun", run_id="now", _id=bson.ObjectId(input_id))])
    service = PersistenceService(store, NO_TOMBSTONES)
    for own_row_id, found in ((input_id, ["m1"]), (f"{102:08x}{1:016x}", [])):
        given: dict[str, Any] = {"asked": BEGUN, "own_row_id": own_row_id, "continued": continued}
        past = await service.get_past("o", messages=20, excerpt_chars=100, **given)
        session = await service.get_session("o", RunOrigin("s"), messages=20, **given)
        assert ids([each for each in past.rows if each["run_id"] != "now"]) == ids(session.rows) == found


async def test_reading_ends_somewhere() -> None:
    """A past that is one run of more rows than are ever read is shown as far as it was read, and says so."""
    past = await read([row(number, run_id="r", role="AI", content="x") for number in range(6_000)])
    assert past.stopped_early
    assert len(shown(past)) == 1
    assert 5_000 <= len(past.rows) < 6_000


class TestResults:
    """What tools gave, where it is asked for."""

    async def test_of_the_runs_that_are_shown(self) -> None:
        """Of no others, without their middle, in one more query; newest first, whatever the rows are called."""
        rows = [each for number in range(5) for each in run_of_eleven(number, result="x" * 9_000)]
        for asked in (rows, [{**each, "_id": f"of another program {each['id']}"} for each in rows]):
            store = FakeStore()
            store.plant("messages", asked)
            past = await read_past(store, "o", messages=4, excerpt_chars=4_000, results=True)
            tools = [each for each in past.rows if each["role"] == "TOOL"]
            assert {each["run_id"] for each in tools} == {"r3", "r4"}
            assert (len(tools), len(tools[0]["content"])) == (12, 800)
            assert past.rows == sorted(past.rows, key=lambda each: each["timestamp"], reverse=True)
            assert shown(past, 4) == shown(await read_past(store, "o", messages=4, excerpt_chars=4_000), 4)
            assert store.calls.count("results_of_runs") == 1

    async def test_where_no_call_is_shown(self) -> None:
        """Nothing is asked for."""
        store = FakeStore()
        store.plant("messages", [row(0), row(1, role="AI"), row(2, role="TOOL")])
        past = await read_past(store, "o", messages=4, excerpt_chars=4_000, results=True)
        assert ids(past.rows) == ["m1", "m0"]
        assert "results_of_runs" not in store.calls

    async def test_as_of_the_first_build(self) -> None:
        """What came after the run's input is not in its history."""
        calling = {"tool_calls": CALLS}
        rows = [row(0, role="AI", metadata=calling), row(1, role="TOOL", metadata={"call_id": "c0"})]
        begun = row(2, id=BEGUN.id, run_id=BEGUN.run_id)
        later = row(3, role="TOOL", run_id="r0", metadata={"call_id": "c1"})
        store = FakeStore()
        store.plant("messages", [*rows, begun, later])
        service = PersistenceService(store, NO_TOMBSTONES)
        past = await service.get_past("o", messages=20, excerpt_chars=100, asked=BEGUN, continued=True, results=True)
        assert "m3" not in ids(past.rows)
