"""Documents of other programs: any type of BSON in any field that is read harms nothing beside it (contract §2)."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

import anyio
import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import BulkWriteError

from nexus.adapters.mongo import Driver
from nexus.adapters.mongo.store import open_mongo
from nexus.core.errors import NexusError, StoreUnavailableError
from nexus.core.person import Statement
from nexus.core.ports.store import TransferableStore
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.memory.documents import audit
from nexus.services.transfer.exporter import export_session
from tests.nexus.e2e.harness import Collector, Document, Environment, Requester, a_message, a_request, serving
from tests.nexus.e2e.long_player import on_bus
from tests.nexus.support.drivers import DRIVERS
from tests.nexus.support.kept_turns import a_turn
from tests.nexus.support.model_behaviours import good
from tests.nexus.support.model_server import model_server
from tests.nexus.support.odd_values import ODD_VALUES, VARIANTS, with_value

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
SHOWN: Final = "This stands beside it."
STAMP: Final = f"{1:018d}0{'a' * 16}"
CALLS: Final = [
    {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"q": 1}'}},
    {"id": "c2", "name": "look_up", "arguments": {"q": 1}},
]
COSTS: Final = {"usage": {"prompt_tokens": 1}, "phase": "thinking"}
AT_ONCE: Final = 24
# So that several processors share the work, and CI has one part of it.
PARTS: Final = 8
LAYOUTS: Final = {
    "messages": ("agent", "dialogue"),
    "turns": ("thinking",),
    "identities": ("dialogue",),
    "facts": ("dialogue",),
    **dict.fromkeys(("memory_details", "working_memory", "compactions", "session_states"), ("agent",)),
}
# Sessions that are audited and exported, and whose memory is used by a model: those of some types.
LOOKED_AT: Final = ("default", "code", "nan")
TOOLS: Final[Mapping[str, Document]] = {
    "search_memory": {"query": "kept"},
    "read_memory_detail": {"name": "n3"},
    "write_memory_detail": {"name": "mine", "content": "Kept."},
    "update_working_memory": {"content": "# Mine"},
    "remember": {"topic": "home", "sub_topic": "city", "value": "Faro"},
    "compact_history": {"target": "all", "strategy": "archive", "keep_recent": 0},
}
# Fields that may be long: one is enough where there are many documents.
LONG: Final = ("content", "summaries.brief")


def a_row(role: str, content: Any, **metadata: Any) -> Document:
    """A recorded message."""
    return {"id": "m", "run_id": "r", "role": role, "content": content, "timestamp": NOW, "metadata": metadata}


# What is stored with an odd value in each of its fields. Of these a session may have many,
MANY: Final[Mapping[str, list[Document]]] = {
    "messages": [
        a_row("HUMAN", "asked", source="new_run"),
        a_row("AI", "said", tool_calls=CALLS, has_tool_calls=True, sub_agent_internal=False, agent_id="a", **COSTS),
        a_row("TOOL", {"found": [1]}, tool_name="look_up", status="success", execution_success=True, call_id="c1"),
    ],
    "turns": [{**a_turn(7), "begun_at": NOW, "delays": 0, "work": "close", "status": "acting"}],
    "memory_details": [
        Detail(name="n", version=1, bytes=4, updated_at=NOW, content="kept").model_dump(),
        Detail(name="a", version=1, kind="archive", bytes=4, updated_at=NOW, content="kept", compaction=1).model_dump(),
    ],
    "facts": [
        Statement(
            id="m", owner_key="o", topic="home", sub_topic="city", value="Porto", evidence=("m1",), said_at=NOW
        ).model_dump(mode="json")
        | {"said_at": NOW}
    ],
}
# and of these the newest counts.
ONE: Final[Mapping[str, list[Document]]] = {
    "working_memory": [Overview(revision=2, content="# Goal", updated_at=NOW, run_id="r", turn_number=1).model_dump()],
    "compactions": [
        {
            **Compaction(
                number=1, created_at=NOW, summary="- Asked.", rows=("m0",), count=1, total=1, since="00000001",
                without=("a" * 24,), details=("a",), disowned=("b",), first_at=NOW, last_at=NOW, keep_recent=1,
            ).model_dump(),
            "work": "refine", "due_at": NOW, "attempts": 0, "delays": 0, "waits": NOW,
        }
    ],
    "session_states": [
        {
            "revision": 1,
            "document": {
                "todos": {
                    "floor": "", "given": True, "forgotten": "",
                    "items": [{
                        "id": "t1", "removed": "", "said": [f"{STAMP}0000"],
                        "fields": {"text": ["Test.", STAMP], "status": ["pending", STAMP]},
                    }],
                }
            },
        }
    ],
    "identities": [
        {
            "public_key": "", "config_overrides": {"history_context_size": 5}, "created_at": NOW, "metadata": {"a": 1},
            "prompt_overrides": {"friends_profile": "Likes tests.", "learning": "Likes tests."},
        }
    ],
}  # fmt: skip


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Every field, dotted; of a list of alike items the first."""
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list | tuple) else ()
    )
    for key, item in items:
        yield f"{prefix}{key}"
        yield from paths(item, f"{prefix}{key}.")


def cases() -> Iterator[tuple[str, int, str]]:
    """A collection, which of its documents, and the path of a field."""
    for collection, documents in [*MANY.items(), *ONE.items()]:
        for place, document in enumerate(documents):
            yield from (
                (collection, place, path) for path in paths(document) if path not in {"owner_key", "session_id"}
            )


def whole(document: Document, owner: str, session: str, number: int) -> Document:
    """The document in its place in a session."""
    unique = {
        "id": f"m{number}",
        "run_id": f"r{number}",
        "turn_number": number,
        "name": f"n{number}",
        "public_key": owner,
    }
    changed = {name: value for name, value in unique.items() if name in document}
    return {**document, **changed, "owner_key": owner, "session_id": session}


def stored_in(database: Database[Document], part: int) -> list[tuple[str, str]]:
    """Store every odd value in every field of a part, an owner each; returns the sessions."""
    documents: dict[str, list[Any]] = {collection: [] for collection in [*MANY, *ONE]}
    sessions: dict[tuple[str, str], None] = {}
    for collection, place, path in islice(cases(), part, None, PARTS):
        owner = f"{collection} {place} {path}"
        for number, (name, value) in enumerate(ODD_VALUES.items(), start=2):
            if (name in VARIANTS and collection in ONE) or (name == "long" and (path not in LONG or collection in ONE)):
                continue
            session = "default" if collection in MANY else name
            of_one = f"{owner} {name}" if collection == "identities" else owner
            sessions[of_one, session] = None
            document = {**MANY, **ONE}[collection][place]
            documents[collection].append(with_value(whole(document, of_one, session, number), path, value))
    for owner, session in sessions:
        beside = {
            **a_row("HUMAN", SHOWN),
            "id": f"beside {session}",
            "run_id": "beside",
            "timestamp": NOW + timedelta(hours=1),
        }
        documents["messages"].append({**beside, "owner_key": owner, "session_id": session})
    for collection, stored in documents.items():
        # What a server does not take, or what is twice then, is not there.
        with suppress(BulkWriteError):
            if stored:
                database[collection].insert_many(stored, ordered=False)
    return [*sessions]


async def worked_on(database: Database[Document]) -> None:
    """Wait until everything that was due has been claimed."""
    due = {"work": {"$in": ["close", "refine"]}, "due_at": {"$lte": NOW}}
    while any(database[name].count_documents(due) for name in ("turns", "compactions")):  # noqa: ASYNC110  # elsewhere
        await anyio.sleep(0.1)


async def build(requester: Requester, owner: str, session: str, layout: str) -> None:
    """A context is built, and what stands beside the odd documents is shown, but in a layout without messages."""
    request = a_request("And now?", owner=owner, run_metadata={"layout": layout, "session_id": session})
    await requester.publish("context.build.request", request)
    (answer,) = await requester.answered(request["id"])
    assert (answer["status"], answer.get("degraded")) == ("success", []), (owner, session, layout, answer)
    assert layout == "thinking" or SHOWN in str(answer["messages"]), (owner, session, layout)


async def call(requester: Requester, results: Collector, owner: str, session: str, tool: str) -> None:
    """A call of a memory tool has a result, whatever it says."""
    asked = {"name": tool, "args": TOOLS[tool], "call_id": f"{owner} {session} {tool}"}
    message = a_message(asked, "caller", "SYSTEM", owner_key=owner, metadata={"session_id": session})
    await requester.publish("tools.requests", message)
    (result,) = await results.all_of(str(asked["call_id"]))
    assert result["content"]["result"] not in {"", None}, result


class Folder:
    """An export that goes nowhere."""

    def put(self, name: str, line: str) -> None:
        """Add a line to a file."""

    def write(self, name: str, content: str) -> None:
        """Write a whole file."""


async def look(store: TransferableStore, owner: str, session: str) -> None:
    """What the commands read: an audit, and an export, which may say that something is malformed."""
    await audit(store.memory, store.turns, store, owner, session)
    with suppress(NexusError):
        try:
            await export_session(store, owner, session, Folder(), exported_at=NOW)
        except StoreUnavailableError:
            pytest.fail("the driver or its caller cannot read a document")


@pytest.mark.heavy
@pytest.mark.once
@pytest.mark.timeout(300)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("part", range(PARTS))
async def test_odd_documents(
    environment: Environment, mongo_janitor: MongoClient[Document], driver: Driver, part: int
) -> None:
    """Contexts of every layout, memory tools, background work, audits, exports: nothing fails, ends or is missing."""
    if mongo_janitor.admin.command("serverStatus")["process"] == "secantus":
        pytest.skip("secantusdb decodes what it is given")
    uri, name = environment["NEXUS_DATABASE__URI"], environment["NEXUS_DATABASE__NAME"]
    database, places = mongo_janitor[name], anyio.Semaphore(AT_ONCE)

    async def in_place(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        async with places:
            await work(*arguments)

    async with model_server(good()) as model:
        given = {
            "LLM__BASE_URL": model.base_url,
            "LLM__MODEL": "scribe",
            "LLM__SETTLE_S": "0",
            "DATABASE__DRIVER": driver,
        }
        async with serving(environment | {f"NEXUS_{key}": value for key, value in given.items()}) as service:
            sessions = await anyio.to_thread.run_sync(stored_in, database, part)
            await worked_on(database)
            async with on_bus(environment) as (requester, results), open_mongo(uri, name, driver=driver) as store:
                async with anyio.create_task_group() as tasks:
                    for owner, session in sessions:
                        for layout in LAYOUTS[owner.partition(" ")[0]]:
                            tasks.start_soon(in_place, build, requester, owner, session, layout)
                async with anyio.create_task_group() as tasks:
                    for owner, session in sessions:
                        if session in LOOKED_AT:
                            tasks.start_soon(in_place, look, store, owner, session)
                            for tool in TOOLS:
                                tasks.start_soon(in_place, call, requester, results, owner, session, tool)
            assert [
                line for line in service.log if "exception" in line or line["event"] == "foreign_rows_withheld"
            ] == []
            assert await service.stop() == 0
    assert service.errors == []
