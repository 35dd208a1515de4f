"""Facts about persons: how statements are read, what follows from them, and how they are kept (contract §15)."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event
from nexus.core.models import Message, Role, utc_now
from nexus.core.person import Fact, FactLevel, Statement
from nexus.core.ports import Row
from nexus.services.person.facts import Facts, unsupported
from nexus.services.person.statements import Origin, facts_of, read_statements, statement
from tests.nexus.support.fake_person import FakeFacts
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.metrics import RecordingMetrics
from tests.nexus.support.tombstones import NO_TOMBSTONES

NOON = datetime(2025, 12, 10, 12, tzinfo=UTC)


def said(
    value: str,
    second: int = 0,
    *,
    topic: str = "home",
    sub_topic: str = "city",
    level: FactLevel = "explicit",
    session: str = "",
    retires: bool = False,
    evidence: Sequence[str] = (),
) -> Statement:
    """A statement of this second, from a message of its own."""
    origin = Origin("ada", f"msg_{second}", NOON + timedelta(seconds=second), session or f"s{second}")
    return statement(origin, topic, value, sub_topic, level=level, retires=retires, evidence=evidence or [f"m{second}"])


def derived(value: str, second: int, session: str = "") -> Statement:
    """A statement that was concluded."""
    return said(value, second, level="derived", session=session)


def retired(value: str, second: int) -> Statement:
    """That the value no longer holds."""
    return said(value, second, retires=True)


def holding(*statements: Statement) -> list[str]:
    """The values that hold."""
    return [each.value for each in facts_of(statements) if each.holds]


def intervals(*statements: Statement) -> list[tuple[str, int | None, int | None]]:
    """Values, and the seconds from and to which they held."""

    def second(moment: datetime | None) -> int | None:
        return int((moment - NOON).total_seconds()) if moment else None

    return [(each.value, second(each.valid_from), second(each.valid_to)) for each in facts_of(statements)]


def test_a_newer_value_supersedes_the_older_one() -> None:
    """Whatever the case and the blanks of its topic; both rows are evidence."""
    old, new = facts_of([said("Porto", 2, topic="HOME ", sub_topic=" City"), said("Lisbon", 1)])
    assert (old.value, old.evidence, old.valid_to) == ("Lisbon", ("m1",), NOON + timedelta(seconds=2))
    assert (new.value, new.evidence, new.valid_to) == ("Porto", ("m2",), None)
    assert (new.supersedes, old.supersedes) == (old.id, None)
    assert new.holds
    assert not old.holds


def test_the_same_value_said_again_supports_it() -> None:
    """It is one interval, with all that support it, in the words of the first."""
    (fact,) = facts_of([said("Lisbon", 1), said(" lisbon", 5), derived("LISBON", 7, "s1")])
    assert (fact.value, fact.support, fact.evidence) == ("Lisbon", 2, ("m1", "m5", "m7"))
    assert fact.valid_from == NOON + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([derived("Lisbon", 1)], []),
        ([derived("Lisbon", 1, "s"), derived("Lisbon", 2, "s")], []),
        ([derived("Lisbon", 1, "s"), derived("Lisbon", 2, "t")], ["Lisbon"]),
        ([said("Porto", 1), derived("Lisbon", 2), derived("Lisbon", 3)], ["Porto"]),
        ([derived("Lisbon", 1), derived("Lisbon", 2), said("Porto", 3)], ["Porto"]),
        ([derived("Lisbon", 1), derived("Lisbon", 2), derived("Faro", 3)], ["Lisbon"]),
        ([derived("Lisbon", 1), derived("Lisbon", 2), derived("Faro", 3), derived("Faro", 4)], ["Faro"]),
        # One more session is not enough to bring back what was superseded.
        (
            [*(derived("Lisbon", n) for n in (1, 2)), *(derived("Faro", n) for n in (3, 4)), derived("Lisbon", 5)],
            ["Faro"],
        ),
        ([derived("Lisbon", 1), said("Lisbon", 2), derived("Faro", 3), derived("Faro", 4)], ["Lisbon"]),
    ],
)
def test_a_derived_value_needs_two_sessions_and_nothing_explicit(
    statements: list[Statement], expected: list[str]
) -> None:
    """What the person or an operator wrote always wins."""
    assert holding(*statements) == expected


def test_what_a_model_read_takes_no_value_from_what_was_written() -> None:
    """It is later and explicit, and still a reading; of two readings the later holds."""
    read = [said(value, second).model_copy(update={"source": "model"}) for second, value in ((2, "Porto"), (3, "Faro"))]
    assert holding(said("Lisbon", 1), *read) == ["Lisbon"]
    assert holding(derived("Lisbon", 0), derived("Lisbon", 1), *read) == ["Faro"]
    assert holding(*read, said("Lisbon", 4)) == ["Lisbon"]


def test_a_derived_value_holds_from_its_second_session_on() -> None:
    """All who said it before are its evidence. Without that support it never held."""
    (fact,) = facts_of([derived("Lisbon", 1), derived("Lisbon", 2)])
    assert (fact.valid_from, fact.evidence, fact.level) == (NOON + timedelta(seconds=2), ("m1", "m2"), "derived")
    (fact,) = facts_of([derived("Lisbon", 1)])
    assert (fact.valid_from, fact.support, fact.holds) == (None, 1, False)


@pytest.mark.parametrize("value", ["Porto", " PORTO", ""])
def test_what_was_superseded_does_not_come_back_by_a_retirement(value: str) -> None:
    """It ends what holds, and that alone."""
    assert intervals(said("Lisbon", 1), said("Porto", 2), retired(value, 3)) == [("Lisbon", 1, 2), ("Porto", 2, 3)]


def test_a_retirement_of_another_value_ends_nothing() -> None:
    """But the value before is not told any more where it was that."""
    statements = [said("Lisbon", 1), said("Porto", 2), retired("Lisbon", 3), retired("Faro", 4)]
    assert intervals(*statements) == [("Lisbon", 1, 2), ("Porto", 2, None)]
    assert [each.supersedes for each in facts_of(statements)] == [None, None]


def test_what_was_retired_may_be_said_again() -> None:
    """A derived one needs its two sessions anew."""
    assert intervals(said("Lisbon", 1), retired("", 2), said("Lisbon", 3)) == [("Lisbon", 1, 2), ("Lisbon", 3, None)]
    assert holding(derived("Lisbon", 1), derived("Lisbon", 2), retired("Lisbon", 3), derived("Lisbon", 4)) == []
    assert holding(derived("Lisbon", 1), retired("Lisbon", 3), derived("Lisbon", 4)) == []


SOME = st.builds(
    said,
    st.sampled_from(["Lisbon", "lisbon", "Porto", "Faro"]),
    st.integers(0, 6),
    sub_topic=st.sampled_from(["city", "", "CITY"]),
    level=st.sampled_from(["explicit", "derived"]),
    session=st.sampled_from(["s", "t", "u"]),
    retires=st.booleans(),
)


@given(st.lists(SOME, max_size=12), st.data())
def test_the_same_statements_give_the_same_facts(statements: list[Statement], data: st.DataObject) -> None:
    """In any order, and however often each is sent; of a slot one value holds at a time."""
    facts = facts_of(statements)
    again = data.draw(st.lists(st.sampled_from(statements), max_size=4)) if statements else []
    assert facts_of(data.draw(st.permutations([*statements, *again]))) == facts
    for slot in {(each.topic.casefold(), each.sub_topic.casefold()) for each in facts}:
        held = [
            each for each in facts if (each.topic.casefold(), each.sub_topic.casefold()) == slot and each.valid_from
        ]
        assert sum(each.holds for each in held) <= 1
        ends = [(each.valid_from, each.valid_to) for each in held]
        assert all(end and begin and end <= begin for (_, end), (begin, _) in pairwise(ends))


def test_thousands_of_statements_of_one_slot_are_gone_through_once() -> None:
    """None of them is looked at again for each of the others."""
    statements = [derived(f"v{number % 7}", number, f"s{number % 3}") for number in range(5_000)]
    assert sum(each.holds for each in facts_of(statements)) == 1
    assert sum(each.holds for each in facts_of([said(f"v{number}", number) for number in range(5_000)])) == 1


def read(content: Any, *, at: datetime = NOON, key: str = "msg_1") -> list[Statement]:
    """The statements of a message."""
    return read_statements(content, Origin("ada", key, at, "s1"))


def test_a_message_brings_statements() -> None:
    """Its texts are kept on one line; times are those of the message, or earlier ones."""
    content = {
        "op": "add",
        "facts": [
            {"topic": "home", "sub_topic": "city", "value": " Porto,\n Portugal\u200b", "valid_from": "2024-02-01"},
            {"topic": "tea", "value": "green", "level": "derived", "evidence": ["m2", "m1", "m1"], "sub_topic": None},
        ],
    }
    city, tea = read(content)
    assert (city.value, city.said_at, city.level) == ("Porto, Portugal", datetime(2024, 2, 1, tzinfo=UTC), "explicit")
    assert (tea.sub_topic, tea.said_at, tea.evidence, tea.session_id) == ("", NOON, ("m1", "m2"), "s1")
    assert [each.id for each in read(content, at=NOON + timedelta(hours=1))] == [city.id, tea.id]
    assert {each.id for each in read(content, key="msg_2")}.isdisjoint({city.id, tea.id})


HOME = {"topic": "home", "value": "Porto"}


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (None, "content: a JSON object is needed, with op: add, retire"),
        ({"op": "set"}, "content.op: 'set' is unknown; allowed: add, retire"),
        ({"op": "add", "fact": []}, "content: 'fact' is unknown; allowed: op, facts"),
        ({"op": "add", "facts": []}, "content.facts: a list of 1 to 100 facts"),
        ({"op": "add", "facts": "home"}, "content.facts: a list"),
        ({"op": "add", "facts": [HOME] * 101}, "content.facts: a list"),
        ({"op": "add", "facts": ["home"]}, r"content.facts\[0\]: a JSON object is needed"),
        ({"op": "add", "facts": [{**HOME, "colour": 1}]}, r"content.facts\[0\]: 'colour' is unknown"),
        ({"op": "retire", "facts": [{**HOME, "level": "derived"}]}, r"content.facts\[0\]: 'level' is unknown"),
        ({"op": "add", "facts": [HOME, {"topic": "home"}]}, r"content.facts\[1\].value: is missing or blank"),
        ({"op": "add", "facts": [{**HOME, "value": "\u200b \n"}]}, r"content.facts\[0\].value: is missing or blank"),
        ({"op": "add", "facts": [{**HOME, "value": 7}]}, r"content.facts\[0\].value: a text"),
        ({"op": "add", "facts": [{**HOME, "value": "x" * 501}]}, "value: 501 characters, at most 500 are allowed"),
        ({"op": "add", "facts": [{**HOME, "topic": "a\0"}]}, "topic: a NUL at place 2 cannot be kept; leave it out"),
        ({"op": "add", "facts": [{**HOME, "value": "\udc00"}]}, "value: half a surrogate pair at place 1 cannot"),
        ({"op": "add", "facts": [{**HOME, "topic": "x" * 65}]}, "topic: 65 characters, at most 64 are allowed"),
        ({"op": "add", "facts": [{**HOME, "sub_topic": "x" * 65}]}, "sub_topic: 65 characters"),
        ({"op": "add", "facts": [{**HOME, "level": "sure"}]}, "level: 'sure' is unknown; allowed: explicit, derived"),
        ({"op": "add", "facts": [{**HOME, "evidence": "m1"}]}, "evidence: a list of up to 20 message ids"),
        ({"op": "add", "facts": [{**HOME, "evidence": ["m"] * 21}]}, "evidence: a list of up to 20 message ids"),
        ({"op": "add", "facts": [{**HOME, "evidence": [""]}]}, r"evidence\[0\]: a message id"),
        ({"op": "add", "facts": [{**HOME, "evidence": ["\ud800"]}]}, r"evidence\[0\]: a message id"),
        ({"op": "add", "facts": [{**HOME, "valid_from": "soon"}]}, "valid_from: a time in ISO 8601 is needed"),
        ({"op": "add", "facts": [{**HOME, "valid_from": "2026-01-01"}]}, "valid_from: is later than the message"),
        ({"op": "add", "facts": [HOME, {**HOME, "topic": "HOME", "value": "Faro"}]}, r"has the topic and sub_topic of"),
    ],
)
def test_what_is_no_statement_is_refused(content: Any, where: str) -> None:
    """With the place, and what is allowed there."""
    with pytest.raises(ValueError, match=where):
        read(content)


def test_a_pair_may_have_several_values_one_after_another() -> None:
    """Of different times; and the same one twice."""
    content = {"op": "add", "facts": [HOME, HOME, {**HOME, "value": "Faro", "valid_from": "2020-01-01"}]}
    assert holding(*read(content)) == ["Porto"]


def message(content: Any, second: int = 0, *, owner: str = "ada", **metadata: Any) -> Message:
    """A `memory.facts` message."""
    at = NOON + timedelta(seconds=second)
    return Message(
        id=f"msg_{second}",
        run_id="r",
        owner_key=owner,
        role=Role.COMMAND,
        content=content,
        timestamp=at,
        metadata=metadata,
    )


def city(value: str) -> dict[str, Any]:
    """A fact, added."""
    return {"op": "add", "facts": [{"topic": "home", "sub_topic": "city", "value": value}]}


def values(found: Sequence[Fact]) -> list[str]:
    """The values that hold."""
    return [each.value for each in found if each.holds]


async def test_messages_are_kept_and_read_back() -> None:
    """By their own owner alone; a reader waits for what was accepted before."""
    store, metrics = FakeStore(), RecordingMetrics()
    facts, settled = Facts(store.facts, NO_TOMBSTONES, metrics), list[str | None]()
    async with facts.running():
        for owner in ("a|b", "$set"):
            assert facts.offer(message(city(f"home of {owner}"), owner=owner, session_id="s"), 100, settled.append)
        assert values(await facts.facts("a|b")) == ["home of a|b"]
        assert values(await facts.facts("$set")) == ["home of $set"]
        assert values(await facts.facts("a")) == []
    assert settled == [None, None]
    assert metrics.counted == {Event.FACTS_RECORDED: 2}


async def test_a_message_that_comes_again_changes_nothing() -> None:
    """Nor does one that an earlier message overtook."""
    store = FakeStore()
    facts = Facts(store.facts, NO_TOMBSTONES)
    async with facts.running():
        for second, value in ((2, "Porto"), (1, "Lisbon"), (2, "Porto")):
            facts.offer(message(city(value), second), 100)
        await facts.pending.none()
    assert await store.facts.count_statements("ada") == 2
    assert values(await Facts(store.facts, NO_TOMBSTONES).facts("ada")) == ["Porto"]


async def test_a_wrong_message_is_refused_at_once() -> None:
    """With the reason."""
    with pytest.raises(ValueError, match=r"content\.op"):
        Facts(FakeStore().facts, NO_TOMBSTONES).offer(message({"op": "drop"}), 100)
    with pytest.raises(ValueError, match=r"metadata\.session_id"):
        Facts(FakeStore().facts, NO_TOMBSTONES).offer(message(city("Porto"), session_id=7), 100)


async def test_a_clock_that_is_ahead_wins_until_now_alone() -> None:
    """The statement counts as made now."""
    facts = Facts(FakeStore().facts, NO_TOMBSTONES)
    ahead = message(city("Porto")).model_copy(update={"timestamp": utc_now() + timedelta(days=400)})
    async with facts.running():
        facts.offer(ahead, 100)
        (fact,) = await facts.facts("ada")
    assert fact.valid_from
    assert fact.valid_from <= utc_now()


async def test_what_the_store_cannot_take_now_is_kept_later() -> None:
    """A reader is told, and nothing is lost."""
    store = FakeStore()
    facts = Facts(store.facts, NO_TOMBSTONES)
    store.down = True
    async with facts.running():
        facts.offer(message(city("Porto")), 100)
        with pytest.raises(StoreUnavailableError, match="the store is down"):
            await facts.facts("ada")
        store.down = False
        await facts.pending.none()
        assert values(await facts.facts("ada")) == ["Porto"]


async def test_what_is_unwritten_at_the_end_is_told() -> None:
    """In the log and as a number."""
    store, metrics = FakeStore(), RecordingMetrics()
    facts = Facts(store.facts, NO_TOMBSTONES, metrics)
    store.down = True
    with capture_logs() as logs:
        async with facts.running():
            facts.offer(message(city("Porto")), 100)
            await anyio.wait_all_tasks_blocked()
    assert [entry["pending"] for entry in logs if entry["event"] == "facts_unwritten"] == [1]
    assert metrics.counted[Event.FACTS_LOST] == 1


async def test_an_owner_has_a_bounded_number_of_statements() -> None:
    """More are refused with the reason; what is kept already may come again."""
    facts, settled = Facts(FakeStore().facts, NO_TOMBSTONES), list[str | None]()
    await facts.add("ada", [said(f"v{second}", second, topic="other") for second in range(4_498)])
    async with facts.running():
        for second in (1, 2, 3, 2):
            facts.offer(message(city(f"v{second}"), second), 100, settled.append)
            await facts.pending.none()
        assert [settled[0], settled[1], settled[3]] == [None] * 3
        assert "of the owner 4500 statements are kept, and at most 4500 may be; 500 more are for op" in (
            settled[2] or ""
        )
        assert values(await facts.facts("ada"))[0] == "v2"
        with pytest.raises(StoreRejectedError, match="at most 4500"):
            await facts.remember("ada", "s", "c", "tea", "green")


async def test_where_nothing_else_is_kept_what_is_wrong_can_be_mended() -> None:
    """The last statements of an owner are for what takes back and for operators."""
    facts = Facts(FakeStore().facts, NO_TOMBSTONES)
    await facts.add("ada", [said("Lisbon", 1)])
    await facts.add("ada", [said(f"v{second}", second, topic="other") for second in range(4_499)])
    operator = Origin("ada", "op_1", utc_now(), source="operator")
    assert values(await facts.say(operator, "home", "Porto", "city")) == ["Porto"]
    await facts.add("ada", [retired("Porto", 10**9)])
    assert values(await facts.facts("ada")) == ["v4498"]
    await facts.add("ada", [retired("Porto", 10**9 + second) for second in range(1, 499)])
    with pytest.raises(StoreRejectedError, match="at most 5000"):
        await facts.add("ada", [retired("Porto", 10**9 - 1)])


class MixedFacts(FakeFacts):
    """A store that mixes owners up, and in which another program writes."""

    async def statements(self, owner_key: str, *, limit: int) -> list[Row]:
        """What there is of the owner, of another one, and what is no statement."""
        foreign = {**said("Faro", 9).model_dump(), "owner_key": "bob"}
        odd = {**said("Faro", 9).model_dump(), "topic": {"$gt": ""}}
        return [*await super().statements(owner_key, limit=limit), foreign, odd]


async def test_a_stored_document_that_cannot_be_read_spoils_nothing() -> None:
    """It is passed over with a line in the log, as one of another owner is."""
    facts = Facts(MixedFacts(lambda _name: None), NO_TOMBSTONES)
    await facts.add("ada", [said("Porto", 1)])
    with capture_logs() as logs:
        assert values(await facts.facts("ada")) == ["Porto"]
    assert {entry["event"] for entry in logs} == {"foreign_rows_withheld", "stored_facts_passed_over"}


async def test_a_tool_remembers_once_for_each_call() -> None:
    """It is told what holds of that topic, and what held."""
    store = FakeStore()
    facts = Facts(store.facts, NO_TOMBSTONES)
    await facts.add("ada", [said("Lisbon", 1), said("green", 1, topic="tea", sub_topic="")])
    for _ in range(2):
        found = await facts.remember("ada", "s1", "call_1", "Home", "Porto", "CITY", ["m9"])
        assert [(each.value, each.holds, each.source) for each in found] == [
            ("Lisbon", False, "message"),
            ("Porto", True, "tool"),
        ]
    assert await store.facts.count_statements("ada") == 3
    with pytest.raises(ValueError, match="topic: is missing or blank"):
        await facts.remember("ada", "s1", "call_2", " ", "Porto")


async def test_what_is_said_now_comes_after_clocks_that_are_ahead() -> None:
    """A message may be said to be of up to five minutes from now; a call or a command counts as later."""
    facts = Facts(FakeStore().facts, NO_TOMBSTONES)
    ahead = message(city("Faro")).model_copy(update={"timestamp": utc_now() + timedelta(seconds=200)})
    async with facts.running():
        facts.offer(ahead, 100)
        assert values(await facts.remember("ada", "s", "call_1", "home", "Porto", "city")) == ["Porto"]
        operator = Origin("ada", "op_1", utc_now(), source="operator")
        assert values(await facts.say(operator, "home", "", "city", retires=True)) == []
        assert values(await facts.say(replace(operator, key="op_2"), "home", "Lisbon", "city")) == ["Lisbon"]


async def test_what_is_said_now_comes_after_what_only_confirmed_a_value() -> None:
    """A value may have been said again by a clock that is ahead, and what does not hold have been taken back by one."""
    facts, soon = Facts(FakeStore().facts, NO_TOMBSTONES), utc_now() + timedelta(seconds=200)
    operator = Origin("ada", "op_1", utc_now(), source="operator")
    tea = statement(Origin("ada", "msg_3", soon), "tea", "", retires=True)
    await facts.add("ada", [said("Faro", 1), said("Faro", 2).model_copy(update={"said_at": soon}), tea])
    assert values(await facts.say(operator, "home", "Porto", "city")) == ["Porto"]
    assert values(await facts.say(operator, "tea", "green")) == ["green"]


async def test_facts_without_evidence_are_known() -> None:
    """Those that hold and name messages, of which the owner has none; also more than are looked up at once."""
    store = FakeStore()
    store.plant("messages", [{"id": f"m{n}", "owner_key": "ada", "role": "HUMAN"} for n in (1, 1_500)])
    store.plant("messages", [{"id": "m2", "owner_key": "bob", "role": "HUMAN"}])
    statements = [said("x", second, topic=f"topic {second}") for second in range(1_600)]
    statements += [said("x", 7, topic="both", evidence=["gone", "m1"]), said("old", 1, topic="topic 2")]
    found = await unsupported(store, "ada", facts_of(statements))
    assert {each.topic for each in found} == {f"topic {second}" for second in range(1_600)} - {"topic 1", "topic 1500"}
    nothing = statement(Origin("ada", "x", NOON), "tea", "green")
    assert await unsupported(store, "ada", facts_of([nothing])) == []
