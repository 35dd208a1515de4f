"""Searches over the bus (contract §14): each has one answer, of its owner alone, and an error where it must be one."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import anyio
import pytest

from nexus.core.metrics import Event
from nexus.core.models import Message, Role, Topics, utc_now
from nexus.core.ports import Delivery, Row
from nexus.core.recall import Found
from nexus.core.signing import Signing
from nexus.core.wire import decode, encode
from nexus.services.requests.answerer import RequestService
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.recall_source import WordCounts
from tests.nexus.support.schemas import faults
from tests.nexus.support.waiting import PATIENCE_S, take
from tests.nexus.unit.services.memory.calling import NOON, row
from tests.nexus.unit.services.serving import Serving, code, serving

RESULTS: Final = Topics.MEMORY_SEARCH_RESULT
SIGNING: Final = Signing({"k1": b"the first secret"}, required=True)


def search(content: Any, number: int = 1, owner: str = "ada", **metadata: Any) -> Message:
    """A search, with this content."""
    return Message(
        id=f"msg_{number}", run_id="run_1", owner_key=owner, role=Role.HUMAN, content=content, metadata=metadata
    )


def asking(message: Message, **about: Any) -> Delivery:
    """It as the bus delivers it."""
    return Delivery(Topics.MEMORY_SEARCH, encode(message), **about)


@asynccontextmanager
async def searching(*rows: Row, **settings: Any) -> AsyncIterator[tuple[Serving, WordCounts]]:
    """A service with a long-term memory of these messages."""
    store = FakeStore()
    store.plant("messages", [*rows])
    recall = WordCounts(store.messages)
    async with serving(RESULTS, recall=recall, **settings) as trial:
        yield trial, recall


async def found(trial: Serving, content: Any, number: int = 1, **about: Any) -> Any:
    """The content of the answer to a search."""
    trial.offer(asking(search(content, number, **about)))
    (answer,) = await trial.answers()
    with anyio.fail_after(PATIENCE_S):
        await trial.service.pending.none()
    whole = answer.model_dump(mode="json")
    assert faults("memory-search-result", whole, ours=True) == []
    return answer.content


def texts(content: Any) -> list[str]:
    """What was found."""
    return [hit["text"] for hit in content["hits"]]


async def test_an_answer() -> None:
    """It says of each message who said it, when and where, with its score and what stands beside it."""
    rows = [row(1, "Which dog?", role="HUMAN"), row(2, "Biscuit, 狗", role="AI"), row(3, "Ah")]
    async with searching(*rows) as (trial, _):
        content = await found(trial, {"query": " biscuit 狗 ", "session_id": "s"})
    beside = [
        {"id": "m_1", "role": "HUMAN", "timestamp": "2026-03-01T12:01:00+00:00", "text": "Which dog?"},
        {"id": "m_3", "role": "HUMAN", "timestamp": "2026-03-01T12:03:00+00:00", "text": "Ah"},
    ]
    assert content == {
        "status": "success",
        "query": "biscuit 狗",
        "scope": "session",
        "hits": [
            {
                "id": "m_2",
                "session_id": "s",
                "run_id": "run_1",
                "role": "AI",
                "timestamp": "2026-03-01T12:02:00+00:00",
                "text": "Biscuit, 狗",
                "score": 2.0,
                "parts": {"terms": {"biscuit": 1.0, "狗": 1.0}, "session": 0.0, "date": 0.0, "similarity": 0.0},
                "around": beside,
            }
        ],
        "considered": 3,
        "formula": 1,
        "generation": "",
    }
    assert trial.metrics.counted == {None: 1}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"query": "a"}, ["a t", "a s"]),
        ({"query": "a", "scope": "owner", "session_id": None}, ["a t", "a s"]),
        ({"query": "a", "session_id": "t"}, ["a t"]),
        ({"query": "a", "session_id": "t", "scope": "session", "limit": 1.0}, ["a t"]),
        ({"query": "a", "session_id": "x|y"}, []),
        ({"query": "a", "limit": 1}, ["a t"]),
        ({"query": "a", "limit": None}, ["a t", "a s"]),
    ],
)
async def test_what_is_searched(content: dict[str, Any], expected: list[str]) -> None:
    """The session that is named, else all that the owner has; never what is another's."""
    others = [row(3, "a", owner="ada|s"), row(4, "a", owner="ad"), row(5, "a", owner="a%64a")]
    async with searching(row(1, "a s"), {**row(2, "a t"), "session_id": "t"}, *others) as (trial, _):
        assert texts(await found(trial, content)) == expected


UNKNOWN: Final = "content: 'sesion_id' is unknown; allowed: query, scope, session_id, limit"
WHOLE: Final = "is not allowed; a whole number from 1 to 50 is"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "content: an object is needed, with query, scope, session_id, limit"),
        ("porto", "content: an object is needed, with query, scope, session_id, limit"),
        ([{"query": "a"}], "content: an object is needed, with query, scope, session_id, limit"),
        ({}, "content.query: is missing; a text is needed"),
        ({"query": ""}, "content.query: is empty; a text with something in it is needed"),
        ({"query": " \u200b\n"}, "content.query: is empty; a text with something in it is needed"),
        ({"query": 5}, "content.query: a text is needed, not 5"),
        (
            {"query": "字" * 100_000},
            "content.query: 100000 characters, at most 1000 are allowed; a rare word is enough",
        ),
        ({"query": "a", "sesion_id": "s"}, UNKNOWN),
        ({"query": "a", "scope": "all"}, "content.scope: 'all' is unknown; allowed: session, owner"),
        ({"query": "a", "scope": "session"}, "content.session_id: is missing; the scope session needs it"),
        (
            {"query": "a", "scope": "owner", "session_id": "s"},
            "content.session_id: goes with the scope session; leave out one of the two",
        ),
        ({"query": "a", "session_id": ""}, "content.session_id: a text of 1 to 256 characters is needed"),
        ({"query": "a", "session_id": 7}, "content.session_id: a text of 1 to 256 characters is needed"),
        ({"query": "a", "limit": 0}, f"content.limit: 0 {WHOLE}"),
        ({"query": "a", "limit": 51}, f"content.limit: 51 {WHOLE}"),
        ({"query": "a", "limit": "10"}, f"content.limit: '10' {WHOLE}"),
        ({"query": "a", "limit": True}, f"content.limit: true {WHOLE}"),
    ],
)
async def test_a_wrong_search(content: Any, reason: str) -> None:
    """The answer says what is wrong, where, and what is allowed; nothing is searched."""
    async with searching(row(1, "a")) as (trial, recall):
        answer = await found(trial, content)
    assert answer["error"] == {"code": "INVALID_REQUEST", "message": reason, "retryable": False}
    assert recall.asked == []


async def test_it_cannot_be_searched() -> None:
    """A database that is away is an error that may pass; a memory that is not kept is none; a fault is the log's."""
    async with searching(row(1, "a")) as (trial, recall):
        recall.away = True
        away = await found(trial, {"query": "a"}, 1)
        recall.away, recall.fault = False, ZeroDivisionError("!")
        failed = await found(trial, {"query": "a"}, 2)
        recall.fault = None
        assert texts(await found(trial, {"query": "a"}, 3)) == ["a"]
        assert (await trial.letters.count(), code(failed), failed["error"]["retryable"]) == (1, "INTERNAL", True)
    assert away["error"] == {
        "code": "HISTORY_UNAVAILABLE",
        "message": "long-term memory cannot be read now",
        "retryable": True,
    }
    async with serving(RESULTS) as trial:
        off = await found(trial, {"query": "a"})
    assert off["error"]["message"] == "long-term memory is off in this service (recall.enabled)"


async def test_a_deadline() -> None:
    """A search that takes longer than its requester waits is answered in time."""

    class Hanging(WordCounts):
        async def search(self, owner_key: str, question: str, **about: Any) -> Found:
            await anyio.sleep_forever()
            return await super().search(owner_key, question, **about)

    async with serving(RESULTS, recall=Hanging()) as trial:
        assert code(await found(trial, {"query": "a"}, deadline_ms=100)) == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("most", [1 << 20, 150_000, 5_000])
@pytest.mark.parametrize("text", ['字\x01"' * 100_000, "a" * 3_000])
async def test_an_answer_is_no_larger_than_a_message_may_be(most: int, text: str) -> None:
    """Of long texts the beginnings come, with a mark; where that does not do, fewer."""
    rows = [row(number, f"a {number} {text}") for number in range(60)]
    async with searching(*rows, max_payload_bytes=most) as (trial, _):
        trial.offer(asking(search({"query": "a", "limit": 50})))
        (delivery,) = await take(trial.heard, 1)
        await trial.service.pending.none()
    hits = decode(delivery.payload).content["hits"]
    assert len(delivery.payload) <= most
    assert len(hits) == 50 if most > 5_000 else len(hits) < 50
    for hit in hits:
        begin, _, mark = hit["text"].partition("\n(left out here: ")
        whole = next(each["content"] for each in rows if each["id"] == hit["id"])
        left_out = int(mark.partition(" ")[0] or 0)
        assert (whole[: len(begin)], len(begin) + left_out) == (begin, len(whole))


@pytest.mark.parametrize("is_shared", [False, True])
async def test_one_answer(is_shared: bool) -> None:
    """Sent again it is answered the same; a build with its id is another request, another search a conflict."""
    async with searching(row(1, "a")) as (trial, recall):
        about: dict[str, Any] = {"entry": "1-0", "shared": True} if is_shared else {}
        first = search({"query": "a"}).model_copy(update={"timestamp": NOON})
        trial.offer(asking(first, **about))
        (answer,) = await trial.answers()
        await trial.service.pending.none()
        trial.ledger.clock.now += 2
        trial.offer(asking(first, **about))
        (again,) = await trial.answers()
        conflict = await found(trial, {"query": "b"})
        assert recall.asked == ["a"]
        async with trial.bus.subscribe(Topics.CONTEXT_BUILD_RESPONSE) as contexts:
            built = first.model_copy(update={"content": {"owner_key": "ada", "history": []}})
            trial.offer(Delivery(Topics.CONTEXT_BUILD_REQUEST, encode(built)))
            (delivery,) = await take(contexts, 1)
            await trial.service.pending.none()
        assert code(decode(delivery.payload).content) == "INVALID_REQUEST"
    assert again == answer
    assert answer.metadata["request_id"] == "msg_1"
    assert code(conflict) == "ID_CONFLICT"
    assert trial.metrics.counted[Event.ANSWER_REPEATED] == 1


async def test_two_replicas() -> None:
    """One of them searches, and one answers."""
    async with searching(row(1, "a")) as (trial, recall):
        delivery = asking(search({"query": "a"}))
        async with another(trial, recall) as other:
            other.offer(delivery)
            trial.offer(delivery)
            (answer,) = await trial.finish()
    assert (code(answer.content), recall.asked) == ("success", ["a"])


@asynccontextmanager
async def another(trial: Serving, recall: WordCounts) -> AsyncIterator[Serving]:
    """A replica on the same bus and ledger."""
    service = RequestService(trial.builder, trial.bus, trial.ledger, trial.writer, recall=recall)
    async with service.running():
        yield replace(trial, service=service)
        await service.pending.none()


async def test_signatures() -> None:
    """Where they are required: without one, or with one for another topic, a search is refused; answers have one."""
    async with searching(row(1, "a"), signing=SIGNING) as (trial, recall):
        stamped = [search({"query": "a"}, n).model_copy(update={"timestamp": utc_now()}) for n in range(4)]
        payloads: Sequence[bytes] = [
            encode(stamped[0]),
            encode(stamped[1], topic=Topics.CONTEXT_BUILD_REQUEST, signing=SIGNING),
            encode(
                stamped[2].model_copy(update={"timestamp": utc_now() - timedelta(seconds=400)}),
                topic=Topics.MEMORY_SEARCH,
                signing=SIGNING,
            ),
            encode(stamped[3], topic=Topics.MEMORY_SEARCH, signing=SIGNING),
        ]
        for payload in payloads:
            trial.offer(Delivery(Topics.MEMORY_SEARCH, payload))
        heard = [decode(each.payload, topic=RESULTS, signing=SIGNING) for each in await take(trial.heard, 4)]
        await trial.service.pending.none()
    codes = {answer.metadata["request_id"]: code(answer.content) for answer in heard}
    assert codes == {**{f"msg_{n}": "UNAUTHENTICATED" for n in range(3)}, "msg_3": "success"}
    assert recall.asked == ["a"]


async def test_a_requester_of_its_own() -> None:
    """The answer goes where the search says; a topic that is none is refused on the common one."""
    async with searching(row(1, "a")) as (trial, _), trial.bus.subscribe(f"{RESULTS}.me") as mine:
        trial.offer(asking(search({"query": "a"}, reply_to="me")))
        (delivery,) = await take(mine, 1)
        assert code(await found(trial, {"query": "a"}, 2, reply_to="a b")) == "INVALID_REQUEST"
    assert texts(decode(delivery.payload).content) == ["a"]


async def test_owners_take_turns() -> None:
    """Of an owner who asks a hundred times at once, those of another wait for one, not for all."""
    async with searching(row(1, "a"), row(2, "a", owner="bob"), max_in_flight=8, max_in_flight_per_owner=1) as (
        trial,
        _,
    ):
        for number in range(100):
            trial.offer(asking(search({"query": "a"}, number), entry=f"{number}-0", shared=True))
        trial.offer(asking(search({"query": "a"}, 999, owner="bob"), entry="999-0", shared=True))
        answers = await trial.finish()
    successes = [answer.metadata["request_id"] for answer in answers if code(answer.content) == "success"]
    refused = {code(answer.content) for answer in answers} - {"success"}
    assert "msg_999" in successes[:3]
    assert (len(answers), refused) == (101, {"OVERLOADED"})
