"""Facts that a model reads in finished turns: once each, of the person's words alone, whatever fails (contract §15)."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from nexus.core.errors import ModelUnavailableError
from nexus.core.metrics import CallOutcome, Event, Purpose
from nexus.core.models import utc_now
from nexus.core.person import Statement
from nexus.core.ports import Row
from nexus.core.ports.memory import TurnTouch
from nexus.core.turns import EXTRACT
from nexus.services.person.facts import MOST_STATEMENTS, read_rows
from nexus.services.person.statements import facts_of
from tests.nexus.support.fake_model import FakeModel
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.waiting import until
from tests.nexus.unit.services.turns_at_work import GOOD, Memory, answer, calls, human, remembering, result

LISBON, PORTO = "I live in Lisbon.", "I moved to Porto."


def is_about_facts(system: str) -> bool:
    """Whether the model is asked for facts."""
    return system.startswith("You note what a person says")


def fact(quote: str, value: str, message: str, **changes: Any) -> dict[str, Any]:
    """A fact as a model reports it."""
    return {"topic": "home", "sub_topic": "city", "value": value, "quote": quote, "message": message, **changes}


def honest(user: str) -> list[dict[str, Any]]:
    """The last word of every message as a city."""
    entries = json.loads(user)["messages"]
    return [fact(entry["text"], entry["text"].rstrip(".").rpartition(" ")[2], entry["id"]) for entry in entries]


def reporting(report: Callable[[str], Sequence[Any]] = honest, *script: str | Callable[[], str]) -> FakeModel:
    """A model that summarises well, and reports these facts of the messages that it is given."""

    def reply(system: str, user: str) -> str:
        if not is_about_facts(system):
            return json.dumps(GOOD)
        scripted = left.pop(0) if left else json.dumps({"facts": report(user)})
        return scripted if isinstance(scripted, str) else scripted()

    left = [*script]
    return FakeModel(reply)


def read_by(model: FakeModel) -> list[list[dict[str, str]]]:
    """The messages of every prompt for facts."""
    return [json.loads(user)["messages"] for system, user in model.asked if is_about_facts(system)]


def kept(store: FakeStore, owner: str = "o") -> list[Statement]:
    """The statements that are stored."""
    return read_rows([row for row in store.facts.kept.values() if row["owner_key"] == owner], owner)


async def a_turn(memory: Memory, run_id: str, text: str, **changes: Any) -> None:
    """A run from its input to its answer, with a call."""
    session = changes.get("session_id", "s")
    await memory.store.insert_message(human(run_id, text, **changes))
    await memory.begin(run_id, text, session=session)
    for row in (calls(run_id, "1", **changes), result(run_id, "1", **changes), answer(run_id, **changes)):
        await memory.record(row)


def is_read(document: Row) -> bool:
    """Whether nothing is due on the turn after its facts were read."""
    return document["work"] is None and "extracted" in document


async def make_due(memory: Memory, run_id: str = "a", **changes: Any) -> None:
    """Have what is due later be due at once."""
    await memory.store.turns.touch_runs([TurnTouch("o", "s", run_id, {"due_at": utc_now(), **changes})])


async def test_the_facts_of_a_turn() -> None:
    """They are kept with their evidence once it is summarised; the model sees the human message and nothing else."""
    model, metrics = reporting(), RecordingMetrics()
    async with remembering(model=model, metrics=metrics, extracting=True) as memory:
        await a_turn(memory, "a", LISBON)
        document = await memory.until(is_read)
    (statement,) = kept(memory.store)
    assert (statement.value, statement.level, statement.source) == ("Lisbon", "explicit", "model")
    assert (statement.evidence, statement.session_id) == (("msg_of_a",), "s")
    assert read_by(model) == [[{"id": "msg_of_a", "text": LISBON}]]
    assert (document["extracted"], document["extraction_calls"]) == (["msg_of_a"], 1)
    assert (document["summaries"]["source"], document["given_up"]) == ("model", "")
    assert metrics.counted[Event.FACT_EXTRACTED] == 1
    assert metrics.called[Purpose.FACTS, CallOutcome.USED] == 1


async def test_off_by_default() -> None:
    """No call is made, and what was summarised meanwhile is not read once it is on."""
    store, model = FakeStore(), reporting()
    async with remembering(store, model) as memory:
        await a_turn(memory, "a", LISBON)
        await memory.until(lambda document: document["work"] is None)
    async with remembering(store, model, extracting=True) as memory:
        await a_turn(memory, "b", PORTO)
        await memory.until(is_read, 2)
    assert [[entry["text"] for entry in part] for part in read_by(model)] == [[PORTO]]


async def test_a_newer_value() -> None:
    """It holds, whichever turn was read first; the old one is in the history, both with their messages."""
    async with remembering(model=reporting(), extracting=True) as memory:
        for run_id, text in (("a", LISBON), ("b", PORTO)):
            await a_turn(memory, run_id, text, session_id=run_id)
            await memory.until(is_read, session=run_id)
    old, new = facts_of(kept(memory.store))
    assert [(each.value, each.holds, each.evidence) for each in (old, new)] == [
        ("Lisbon", False, ("msg_of_a",)),
        ("Porto", True, ("msg_of_b",)),
    ]
    assert new.supersedes == old.id


async def test_what_an_assistant_claims() -> None:
    """A thousand of its messages make no fact, though the model reports each of them."""
    texts = [f"You live in town {number}, I remember." for number in range(1_000)]

    def report(_user: str) -> list[Any]:
        lies = [fact(text, f"town {number}", f"claim_{number}") for number, text in enumerate(texts)]
        return [*lies[:10], *(fact(lie["quote"], lie["value"], "msg_of_a") for lie in lies[10:])]

    model, metrics = reporting(report), RecordingMetrics()
    async with remembering(model=model, metrics=metrics, extracting=True) as memory:
        for number, text in enumerate(texts):
            await memory.store.insert_message(answer("a", text, id=f"claim_{number}"))
        await a_turn(memory, "a", "Where is the station, please?")
        await memory.until(is_read)
    assert not kept(memory.store)
    assert read_by(model) == [[{"id": "msg_of_a", "text": "Where is the station, please?"}]]
    assert metrics.counted[Event.FACT_UNSUPPORTED] == 1_000


async def test_what_the_log_says_of_lies() -> None:
    """How many were refused for which reason, and nothing of their text."""
    lies = [fact("I live in Xanadu", "Xanadu", "msg_of_a"), fact(LISBON, "Xanadu", "msg_of_a"), "Xanadu"]
    with capture_logs() as logs:
        async with remembering(model=reporting(lambda _user: lies), extracting=True) as memory:
            await a_turn(memory, "a", LISBON)
            await memory.until(is_read)
    (line,) = [log for log in logs if log["event"] == "facts_unsupported"]
    assert line["reason"] == "quote: 1, shape: 1, value: 1"
    assert "Xanadu" not in str(logs)
    assert not kept(memory.store)


async def test_a_turn_without_anything_to_read() -> None:
    """The model is not asked."""
    model = reporting()
    async with remembering(model=model, extracting=True) as memory:
        await a_turn(memory, "a", "Thanks")
        document = await memory.until(is_read)
    assert (read_by(model), document["extracted"]) == ([], [])


async def test_a_turn_that_goes_on() -> None:
    """Of what was read before nothing is asked again; a further message of the person is."""
    model = reporting()
    async with remembering(model=model, extracting=True) as memory:
        await a_turn(memory, "a", LISBON)
        await memory.until(is_read)
        await memory.record(answer("a", "And 7 are dry.", id="later"))
        await memory.until(lambda document: is_read(document) and document["rows"] == 5)
        await memory.store.insert_message(human("a", PORTO, id="further"))
        await memory.record(answer("a", "Noted.", id="last"))
        document = await memory.until(lambda document: is_read(document) and document["rows"] == 7)
    assert [[entry["id"] for entry in part] for part in read_by(model)] == [["msg_of_a"], ["further"]]
    assert document["extracted"] == ["msg_of_a", "further"]
    assert sorted(each.value for each in kept(memory.store)) == ["Lisbon", "Porto"]


def away() -> str:
    """A model that cannot be reached."""
    raise ModelUnavailableError("away")


async def test_a_model_that_is_away() -> None:
    """It is asked again, later each time."""
    model, metrics = reporting(honest, away, away), RecordingMetrics()
    async with remembering(model=model, metrics=metrics, extracting=True) as memory:
        await a_turn(memory, "a", LISBON)
        for delays in (1, 2):
            document = await memory.until(lambda document: document.get("delays") == delays)  # noqa: B023  # at once
            assert (document["work"], document["extraction_calls"]) == (EXTRACT, 0)
            await make_due(memory)
        await memory.until(is_read)
    assert [each.value for each in kept(memory.store)] == ["Lisbon"]
    assert metrics.counted[Event.EXTRACTION_DELAYED] == 2


async def test_a_model_that_talks_nonsense() -> None:
    """It is given up after as many answers as for a summary; the summary stays as it is."""
    model, metrics = reporting(honest, *["Certainly!", '{"facts": '] * 9), RecordingMetrics()
    async with remembering(model=model, metrics=metrics, extracting=True, max_calls=3) as memory:
        await a_turn(memory, "a", LISBON)
        await memory.until(lambda document: document["attempts"] == 1 and document["work"] == EXTRACT)
        await make_due(memory)
        document = await memory.until(lambda document: document["work"] is None)
    assert (document["extraction_calls"], document["given_up"]) == (3, "")
    assert document["summaries"]["source"] == "model"
    assert (metrics.counted[Event.EXTRACTION_REFUSED], metrics.counted[Event.EXTRACTION_GIVEN_UP]) == (1, 1)
    assert not kept(memory.store)


async def test_a_summary_that_is_given_up() -> None:
    """The facts are read all the same, with a count of their own."""
    model = FakeModel(lambda system, user: json.dumps({"facts": honest(user)}) if is_about_facts(system) else "No.")
    async with remembering(model=model, extracting=True, max_calls=2) as memory:
        await a_turn(memory, "a", LISBON)
        document = await memory.until(is_read)
    assert (document["calls"], document["extraction_calls"]) == (2, 1)
    assert document["given_up"]
    assert len(kept(memory.store)) == 1


async def test_a_replica_that_ends_before_the_facts_are_kept() -> None:
    """Another asks once more, and the same statements are kept as if nothing had happened."""
    store, other, model = FakeStore(), FakeStore(), reporting()
    store.failing = "add_statements"
    async with remembering(store, model, extracting=True) as memory:
        await a_turn(memory, "a", LISBON)

        async def was_asked() -> bool:
            return bool(read_by(model)) and "add_statements" in store.calls

        await until(was_asked)
        assert not store.facts.kept
    store.failing = ""
    async with remembering(store, model, extracting=True) as memory:
        await make_due(memory)
        await memory.until(is_read)
    assert len(read_by(model)) == 2
    async with remembering(other, reporting(), extracting=True) as memory:
        await memory.store.insert_message(store.messages[0])
        await a_turn(memory, "a", LISBON)
        await memory.until(is_read)
    assert kept(store) == kept(other)


async def test_a_store_that_is_away_for_a_moment() -> None:
    """The model's answer is kept for the next attempt: it is not asked again."""
    store, model = FakeStore(), reporting()
    store.failing = "add_statements"
    async with remembering(store, model, extracting=True) as memory:
        await a_turn(memory, "a", LISBON)

        async def was_refused() -> bool:
            return "add_statements" in store.calls

        await until(was_refused)
        store.failing = ""
        await make_due(memory)
        await memory.until(is_read)
    assert (len(read_by(model)), len(kept(store))) == (1, 1)


async def test_two_replicas() -> None:
    """Each turn is read once."""
    store, model = FakeStore(), reporting()
    async with (
        remembering(store, model, extracting=True) as one,
        remembering(store, model, extracting=True) as two,
    ):
        for number in range(20):
            await a_turn((one, two)[number % 2], f"run_{number}", f"I live in Town{number}.")
        for number in range(1, 21):
            await one.until(is_read, number)
    assert sorted(part[0]["id"] for part in read_by(model)) == sorted(f"msg_of_run_{number}" for number in range(20))
    assert len(kept(store)) == 20


@pytest.mark.parametrize("holds", [1 << 30, 5_000])
async def test_a_text_that_is_too_long_for_one_prompt(holds: int) -> None:
    """It is read in parts, of half the size where the model takes no longer ones, and quotes are looked up in all."""
    text = "\n".join(f"On day {number} it rained in the hills." for number in range(120)) + f"\n{LISBON}"
    model = reporting(lambda user: [fact(LISBON, "Lisbon", "msg_of_a")] if LISBON in user else [])
    model.holds = holds
    async with remembering(model=model, extracting=True, max_calls=20) as memory:
        await a_turn(memory, "a", text)
        await memory.until(is_read)
    assert [each.value for each in kept(memory.store)] == ["Lisbon"]
    assert (len(read_by(model)) > 1) == (holds == 5_000)


async def test_an_owner_with_too_many_facts() -> None:
    """Nothing more is kept, which is logged, and the work goes on."""
    metrics = RecordingMetrics()
    async with remembering(model=reporting(), metrics=metrics, extracting=True) as memory:
        base = {"topic": "t", "sub_topic": "", "value": "v", "said_at": utc_now(), "owner_key": "o"}
        memory.store.facts.kept = {("o", str(number)): {**base, "id": str(number)} for number in range(MOST_STATEMENTS)}
        await a_turn(memory, "a", LISBON)
        await memory.until(is_read)
    assert metrics.counted[Event.FACTS_REFUSED] == 1
    assert len(memory.store.facts.kept) == MOST_STATEMENTS
