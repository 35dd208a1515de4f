"""Whatever stands in the place of any part of what people really send: nothing ends, and nothing said is lost silently.

The inputs of tests/nexus/cases are played, one after the other, against a service whose bus and store are in memory,
each time with something else in the place of one part of a row, a message or a request, or without that part: a list in
the place of each part that has a name of its own, and a sample of the many other ways. NEXUS_TEST_EXPLORE=100000 tries
all of them, which takes an hour.
"""

import json
import os
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import pytest
from structlog.testing import capture_logs

from nexus.adapters.in_memory import MemoryBus, MemoryDeadLetters, MemoryLedger
from nexus.config import Settings
from nexus.connections import Transport
from nexus.core.errors import ErrorCode, StoreRejectedError
from nexus.core.models import Topics, utc_now
from nexus.core.ports import Delivery, Subscription
from nexus.core.wire import decode
from nexus.services.requests.dispatcher import Dispatcher
from nexus.services.transfer.transcripts import messages_in, rows_of
from nexus.wiring import Nexus, create_nexus
from tests.nexus.e2e.harness import Document, a_message
from tests.nexus.support.case_checks import Answer, faults_of
from tests.nexus.support.cases import CASES, filled, request_of, stored_rows
from tests.nexus.support.fakes import FakeStore
from tests.nexus.support.stored import stored
from tests.nexus.support.waiting import PATIENCE_S

# Of each case.
TRIED: Final = int(os.environ.get("NEXUS_TEST_EXPLORE") or 16) // 2
REMOVED: Final = object()
ROW: Final = "a row"
LAYOUTS: Final = ("dialogue", "agent", "thinking")
FORMATS: Final = ("openai", "anthropic", "gemini")
# A person's or a sender's fault, which the answer names.
REFUSALS: Final = {
    *(ErrorCode.INVALID_REQUEST, ErrorCode.EMPTY_INPUT, ErrorCode.UNKNOWN_LAYOUT, ErrorCode.MISSING_AGENT_ROLE),
    *(ErrorCode.OWNER_MISMATCH, ErrorCode.PAYLOAD_TOO_LARGE),
}
# Parts that say to whom, to which run or session, and to which place in it something belongs.
BELONGING: Final = {"owner_key", "run_id", "session_id", "id", "timestamp", "sub_agent_internal", "agent_id", "layout"}
# One of all that are in a list, so that those that are alike do not crowd out the others.
MOST_ITEMS: Final = 4


def _nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = wrap(value)
    return value


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


# What stands in the place of a part, made of the part itself.
ODD: Final[Sequence[Callable[[Any], Any]]] = (
    _always(REMOVED),
    lambda part: [part],
    lambda part: {"text": part},
    lambda part: json.dumps(part, default=str),
    *map(_always, (None, True, 3, -1, 1.5, 10**30, 10**400, "", " ", "x", "half a pair \ud83d", "word " * 8_000)),
    *map(_always, ([], {}, [None], [[]], [{}], {"type": []}, {"text": {}})),
    _always(_nested(40, lambda inner: [inner])),
    _always(_nested(20, lambda inner: {"content": [inner]})),
)

# Which of them is a list of one: a name or a number is often looked up in a set, which takes no list.
LIST: Final = 1

# What is stored or sent, and where.
Sent = tuple[str, Document]


def sent_in(case: Document, layout: str, form: str) -> list[Sent]:
    """All of a case, of an owner of its own; the last is the request that is judged."""
    owner = f"o{uuid.uuid4().hex}"
    steps, ask = filled([case["steps"], case["ask"]], {"$O": owner})
    sent: list[Sent] = []
    for step in steps:
        sent += [(ROW, row) for row in stored_rows(step.get("rows", []), owner)]
        if "publish" in step:
            sent.append((step["publish"], {**a_message(None), "owner_key": owner, **step["message"]}))
        if "ask" in step:
            sent.append((Topics.CONTEXT_BUILD_REQUEST, request_of(step["ask"], owner)))
    return [*sent, (Topics.CONTEXT_BUILD_REQUEST, request_of(ask, owner, layout=layout, format=form))]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every part."""
    if path:
        yield path
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:MOST_ITEMS]) if isinstance(value, list) else ()
    )
    for key, item in items:
        yield from places(item, (*path, key))


def changed(value: Any, path: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """A copy of a document with another part in this place, or without it."""
    if not path:
        return change(value)
    key, *rest = path
    new = changed(value[key], rest, change)
    if isinstance(value, list):
        return [*value[:key], *([] if new is REMOVED else [new]), *value[key + 1 :]]
    return {name: new if name == key else item for name, item in value.items() if name != key or new is not REMOVED}


def texts_in(value: Any) -> Iterator[str]:
    """Every text in a document that may be something said: ids, types and the like have no space."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)
    elif isinstance(value, str) and " " in value.strip():
        yield value.replace("\\", "")


@dataclass
class Played:
    """What came of it: the content of the answers, how much was refused, and what nobody should see."""

    answers: list[Document] = field(default_factory=list)
    refused: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def last(self) -> Document:
        """The content of the last answer."""
        return self.answers[-1]

    @property
    def shown(self) -> str:
        """All that the last answer says, without what marks a quotation mark in JSON."""
        return Answer(self.last, self.last.get("format", "openai")).everything.replace("\\", "")

    def says_more_than(self, other: "Played") -> bool:
        """Whether more is refused or left out by name."""
        is_refused = self.refused > other.refused or any(answer["status"] == "error" for answer in self.answers)
        return is_refused or bool(self.left_out - other.left_out)

    @property
    def left_out(self) -> Counter[tuple[str, str]]:
        """What the last answer does not show, and why."""
        return Counter((each["what"], each["why"]) for each in self.last["context"]["left_out"])


class Trial:
    """A service in memory to which everything is told."""

    def __init__(self, nexus: Nexus, dispatcher: Dispatcher, store: FakeStore, letters: MemoryDeadLetters) -> None:
        self.nexus, self._dispatcher, self.store, self._letters = nexus, dispatcher, store, letters

    async def play(self, sent: Sequence[Sent], layout: str) -> Played:
        """Store and send all of it, each when the one before is done."""
        self.store.messages.clear()
        self.store.tools.clear()
        await self.nexus.catalog.refresh()
        before, played = await self._letters.count(), Played()
        with capture_logs() as log:
            for where, document in sent:
                if where != ROW:
                    await self._tell(where, document, played)
                    continue
                try:
                    self.store.plant("messages", [stored(document)])
                except StoreRejectedError:
                    played.refused += 1
        played.refused += await self._letters.count() - before
        played.faults += [str(line) for line in log if "exc_info" in line]
        form = played.last.get("format", "openai")
        played.faults += faults_of(Answer(played.last, form), [], layout)
        return played

    async def _tell(self, topic: str, document: Document, played: Played) -> None:
        nexus, ended = self.nexus, anyio.Event()
        async with nexus.bus.subscribe(Topics.CONTEXT_BUILD_RESPONSE) as heard:
            with anyio.fail_after(PATIENCE_S):
                await self._dispatcher.dispatch_all(_one(Delivery(topic, json.dumps(document).encode())), ended)
                for pending in (nexus.requests.pending, nexus.catalog.pending, nexus.states.pending):
                    await pending.none()
                await nexus.persistence.flush()
                await self._dispatcher.pending.none()
            if topic == Topics.CONTEXT_BUILD_REQUEST:
                played.answers.append(await _content(heard, played))


async def _one(delivery: Delivery) -> AsyncIterator[Delivery]:
    yield delivery


async def _content(heard: Subscription, played: Played) -> Document:
    """The content of the one answer."""
    await heard.stop()
    answer: Document
    (answer,) = [decode(delivery.payload).content async for delivery in heard]
    error = answer.get("error", {"code": ErrorCode.INVALID_REQUEST, "message": ":"})
    if error["code"] not in REFUSALS or ":" not in error["message"] or answer.get("degraded"):
        played.faults.append(f"{error} {answer.get('degraded')}")
    return answer


@asynccontextmanager
async def trying() -> AsyncIterator[Trial]:
    """A service at work."""
    bus, store, letters = MemoryBus(), FakeStore(), MemoryDeadLetters()
    ledger = MemoryLedger(bus)
    nexus = create_nexus(Settings(), Transport(bus, ledger, letters, ledger, ledger.outbox, ledger), store, None)
    dispatcher = Dispatcher(
        *(nexus.bus, nexus.requests, nexus.persistence, nexus.catalog, nexus.queues),
        *(nexus.suspects, nexus.dead_letter_writer, nexus.reload_settings, nexus.requests.settings),
    )
    async with AsyncExitStack() as stack:
        parts: tuple[Any, ...] = (nexus.turns, nexus.persistence, nexus.requests, nexus.catalog, dispatcher)
        for part in (*nexus.queues.values(), *parts):
            await stack.enter_async_context(part.running())
        yield Trial(nexus, dispatcher, store, letters)


# Of what is sent in a case the number, the path of a part, and the number of what stands there.
Try = tuple[int, tuple[Any, ...], int]


def tries() -> dict[str, list[Try]]:
    """By case: a list in the place of each part that has another name than those before, and a sample of all others."""
    chosen, known = dict[str, list[Try]](), set[Any]()
    for name, case in CASES.items():
        chosen[name], every = [], []
        for index, (where, document) in enumerate(sent_in(case, "dialogue", "openai")):
            for path in places(document):
                every += [(index, path, odd) for odd in range(len(ODD))]
                named = where, *[key for key in path if isinstance(key, str)][-2:]
                if named not in known:
                    known.add(named)
                    chosen[name].append((index, path, LIST))
        chosen[name] += random.Random(name).sample(every, min(TRIED, len(every)))  # noqa: S311  # the same each time
    return chosen


TRIES: Final = tries()


def imported(document: Any) -> None:
    """Read it as a transcript, which may be refused by a ValueError."""
    try:
        messages = messages_in(json.dumps([document], default=str).encode())
    except ValueError:
        return
    assert [*rows_of(messages, "ada", "default", utc_now())]


@pytest.mark.heavy
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", CASES)
async def test_odd_parts(name: str) -> None:
    """One case, with a service of its own: what it answers, logs and shows."""
    case, plain = CASES[name], dict[str, Played]()
    async with trying() as trial:
        for number, (index, path, odd) in enumerate(TRIES[name]):
            layout, form = LAYOUTS[number % 3], FORMATS[number // 3 % 3]
            where = f"{name}: {index}: {path} as ODD[{odd}], {layout}, {form}"
            if layout not in plain:
                plain[layout] = await trial.play(sent_in(case, layout, "openai"), layout)
            sent = sent_in(case, layout, form)
            topic, document = sent[index]
            sent[index] = topic, changed(document, path, ODD[odd])
            imported(sent[index][1])
            played = await trial.play(sent, layout)
            assert played.faults == [], where
            # The layout `thinking` shows no messages.
            if layout != "thinking" and BELONGING.isdisjoint(path):
                said = {text for text in texts_in(sent[index][1]) if text in plain[layout].shown}
                lost = [text for text in said if text not in played.shown]
                assert not lost or played.says_more_than(plain[layout]), (where, lost)
