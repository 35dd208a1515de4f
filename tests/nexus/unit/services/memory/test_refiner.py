"""Summaries of compactions by a model, in the background: in their order, by nobody twice (contract §7)."""

from datetime import timedelta
from typing import Any

import pytest

from nexus.core.errors import ModelUnavailableError
from nexus.core.metrics import CallOutcome, Event, Purpose
from nexus.core.models import utc_now
from nexus.core.working_memory import Compaction
from tests.nexus.support.fake_counter import FakeCounter
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.waiting import until
from tests.nexus.unit.services.memory.refining_at_work import (
    Session,
    attempted,
    documents,
    figures_told,
    is_over,
    is_refined,
    pause_of,
    said,
    writing,
)

GERMAN = "Der Nutzer wollte wissen, wie es um die Bohnen steht, und das Werkzeug hat sich die Beete angesehen. " * 2
INVENTED = "The 771 beans of 8812 beds weigh 4490 pounds, which took 3356 hours."


@pytest.fixture
def session() -> Session:
    """A session on a store in memory."""
    return Session(FakeStore())


def away() -> str:
    """A model that cannot be reached."""
    raise ModelUnavailableError("away")


async def test_a_summary_by_the_model(session: Session) -> None:
    """It replaces that by rules, which nothing else of the record follows; the rows are told as they were said."""
    await session.compact(1)
    before, model = await session.document(), writing()
    async with session.refining(model):
        document = await session.until(is_refined)
    assert "1001 beans are wet" in document["summary"]
    assert document["tokens_after"] == FakeCounter().count(document["summary"])
    changed = {name for name in document if document[name] != before[name]}
    assert changed == {"summary", "source", "tokens_after", "work", "due_at"}
    assert is_over(document)
    assert Compaction.model_validate(document).source == "model"
    (asked,) = documents(model)
    assert asked["summary"] == ""
    assert [{name: entry[name] for name in entry if name != "at"} for entry in asked["messages"]] == [
        {"from": "user", "text": "How are the 1001 beans of bed 3?"},
        {"from": "assistant", "text": "I look at all 1001."},
        {"from": "assistant", "calls": "look", "arguments": '{"at": "bed 3"}'},
        {"from": "tool", "tool": "look", "success": True, "text": "1001 beans are wet"},
        {"from": "assistant", "text": "They are wet, all 1001."},
    ]
    assert session.metrics.counted == {Event.COMPACTION_REFINED: 1}


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
async def test_the_lower_number_first(session: Session, order: tuple[int, ...]) -> None:
    """Whichever is due first, each is written on the model's summary of the one before, and each row is told once."""
    now = utc_now()
    for number in (1, 2, 3):
        await session.compact(number, due_at=now + timedelta(milliseconds=order.index(number) - 10))
    model = writing()
    # Whoever waits is not looked at again before the test is over, unless the one before it says so.
    async with session.refining(model, lease_s=1_000):
        newest = await session.until(is_refined, 3)
    kept = [(await session.document(number))["summary"] for number in (1, 2)]
    assert [document["summary"] for document in documents(model)] == ["", *kept]
    assert [figures_told(document) for document in documents(model)] == [{"1001"}, {"1002"}, {"1003"}]
    assert all(f"{figure} beans are wet" in newest["summary"] for figure in (1001, 1002, 1003))


async def test_one_that_is_refused_holds_up_the_next_for_a_while(session: Session) -> None:
    """After three refusals the next is written on its rules; when that is done, nobody asks for this one any more."""
    await session.compact(1)
    await session.compact(2)
    model = writing(*["nonsense"] * 6)
    async with session.refining(model):
        for times in (1, 2):
            await session.until(attempted(times))
            assert {tuple(figures_told(document)) for document in documents(model)} == {("1001",)}
            await session.hasten()
        await session.until(attempted(3))
        await session.until(is_refined, 2)
        assert documents(model)[-1]["summary"] == "By rules, number 1."
        asked = len(model.asked)
        await session.hasten()
        await session.until(is_over)
    assert len(model.asked) == asked
    assert (await session.document(1))["summary"] == "By rules, number 1."


async def test_a_summary_that_somebody_else_changed_meanwhile(session: Session) -> None:
    """It is not overwritten with what was made for another one: the model is asked again."""
    await session.compact(1)
    theirs = "Somebody's own words, of which there are many more than the rules had. " * 9
    stood = []

    def meanwhile() -> str:
        session.store.memory.rows["compactions"][0]["summary"] = theirs
        return said("All 1001 beans are wet, which is too short for what there is now.")

    def later() -> str:
        stood.append(session.store.memory.rows["compactions"][0]["summary"])
        return said("All 1001 beans are wet, as was found in bed 3, " * 9)

    async with session.refining(writing(meanwhile, later), lease_s=1_000):
        document = await session.until(is_refined)
    assert stood == [theirs]
    assert document["summary"].endswith("as was found in bed 3,")


async def test_a_model_that_is_away(session: Session) -> None:
    """The summary by rules stays, and the model is asked again, in the end every ten minutes."""
    await session.compact(1)
    model = writing(away, away, away)
    async with session.refining(model):
        first = await session.until(lambda document: document.get("delays") == 1)
        assert (first["summary"], first["source"]) == ("By rules, number 1.", "fallback")
        await session.hasten()
        again = await session.until(lambda document: document.get("delays") == 2)
        assert timedelta(seconds=50) < pause_of(again) < timedelta(seconds=61)
        await session.hasten(delays=99)
        late = await session.until(lambda document: document["delays"] == 100)
        assert timedelta(minutes=9) < pause_of(late) < timedelta(minutes=11)
        await session.hasten()
        await session.until(is_refined)
    assert session.metrics.counted == {Event.REFINING_DELAYED: 3, Event.COMPACTION_REFINED: 1}


@pytest.mark.parametrize("nonsense", [said(GERMAN), said(INVENTED)], ids=["German", "invented"])
async def test_a_model_that_talks_nonsense(session: Session, nonsense: str) -> None:
    """It is asked once more, and later, less and less often; the summary by rules stays until it makes sense."""
    await session.compact(1)
    model = writing(*[nonsense] * 4)
    async with session.refining(model):
        first = await session.until(attempted(1))
        assert (first["summary"], first["source"]) == ("By rules, number 1.", "fallback")
        paused = pause_of(first)
        assert "could not be used" in model.asked[1][0]
        await session.hasten()
        assert pause_of(await session.until(attempted(2))) > paused
        await session.hasten()
        await session.until(is_refined)
    assert len(model.asked) == 5
    assert session.metrics.counted == {Event.REFINING_REFUSED: 2, Event.COMPACTION_REFINED: 1}


async def test_calls_for_one_compaction_are_bounded(session: Session) -> None:
    """Over all attempts; then the summary by rules stays, and the next one is not held up."""
    await session.compact(1)
    await session.compact(2)
    model = writing(*["nonsense"] * 3)
    async with session.refining(model, max_calls=3):
        await session.until(attempted(1))
        await session.hasten()
        document = await session.until(is_over)
        await session.until(is_refined, 2)
    assert (document["calls"], document["given_up"]) == (3, "it holds no JSON object")
    assert document["summary"] == "By rules, number 1."
    assert len(model.asked) == 4
    assert session.metrics.counted[Event.REFINING_GIVEN_UP] == 1
    assert session.metrics.called[Purpose.COMPACTION, CallOutcome.UNUSABLE] == 3


async def test_rows_that_were_removed(session: Session) -> None:
    """What the rules said of them stays, and nobody is asked."""
    await session.compact(1)
    del session.store.messages[2]
    model = writing()
    async with session.refining(model):
        document = await session.until(is_over)
    assert not model.asked
    assert (document["summary"], document["source"]) == ("By rules, number 1.", "fallback")


async def test_a_store_that_goes_away_meanwhile(session: Session) -> None:
    """The work waits, and goes on when it is back."""
    await session.compact(1)

    def gone() -> str:
        session.store.down = True
        return said("All 1001 beans are wet, as was found in bed 3.")

    async def is_gone() -> bool:
        return bool(session.store.down)

    model = writing(gone)
    async with session.refining(model, lease_s=0.1):
        await until(is_gone)
        session.store.down = False
        await session.until(is_refined)


@pytest.mark.parametrize("bad", [{"rows": None}, {"summary": 7}, {"rows": [7]}])
async def test_a_malformed_document(session: Session, bad: dict[str, Any]) -> None:
    """It does not stop the work on the others, nor for good that on the next of its session."""
    await session.compact(1, **bad)
    other = Session(session.store, "other")
    await other.compact(1)
    async with session.refining(writing()):
        await other.until(is_refined)
        document = await session.until(lambda document: is_over(document) or document.get("attempts") == 1)
    assert document["source"] == "fallback"
