"""A document store in memory, for unit tests. The store's contract suite runs on it too."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import bson

from nexus.adapters.mongo.schema import id_text, origin_of
from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.models import DEFAULT_SESSION, LONG_AGO, is_object_id, new_row_id, parse_moment, utc_now
from nexus.core.ports import Inventory, Row, RunOrigin, SessionSummary
from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.ports.store import (
    ARGUMENTS_LEFT_OUT,
    CALLS_LEFT_OUT,
    LEFT_OUT,
    LONGEST_CONTENT,
    MOST_CALLS,
    MOST_COUNTED,
    VALUE_LEFT_OUT,
    TextsOf,
)
from nexus.core.working_memory import Tail
from nexus.services.memory.search import tool_of
from nexus.services.text.content import place_of
from tests.nexus.support.fake_erasure import FakeErasure
from tests.nexus.support.fake_memory import FakeMemoryStore
from tests.nexus.support.fake_person import FakeConstraints, FakeFacts
from tests.nexus.support.fake_recall import FakeRecall
from tests.nexus.support.fake_records import FakeRecords
from tests.nexus.support.fake_replicas import FakeReplicas
from tests.nexus.support.fake_retention import FakeRetention
from tests.nexus.support.fake_turns import FakeTurns
from tests.nexus.support.stored import stored

_LARGEST, _LARGEST_CALL = 1 << 16, 1 << 12
_KEPT = {"source", "call_id", "revision"}
_HIDDEN = {"tool", "system", "command"}
_HEADER = ("_id", "id", "run_id", "owner_key", "session_id", "role", "timestamp")


class FakeStore:
    """`nexus.core.ports.Store` in memory.

    Attributes:
        down: every operation fails, as if the server had gone.
        failing: the operation that fails even so; `""` for none.
        messages: what is recorded, in stored order.
        calls: the names of the operations that were asked for.
    """

    def __init__(self) -> None:
        self.down = False
        self.failing = ""
        self.messages: list[Row] = []
        self.identities: list[Row] = []
        self.configurations: list[Row] = []
        self.tools: dict[str, Row] = {}
        self.session_states: list[Row] = []
        self.said_at: dict[str, datetime] = {}
        self.calls: list[str] = []
        self.turns = FakeTurns(self._ask)
        self.memory = FakeMemoryStore(self._ask)
        self.retention = FakeRetention(self, self._ask)
        self.recall = FakeRecall(self, self._ask)
        self.facts = FakeFacts(self._ask)
        self.constraints = FakeConstraints(self._ask)
        self.records = FakeRecords(self._ask)
        self.replicas = FakeReplicas(self._ask)
        self.erasure = FakeErasure(self, self._ask)

    def plant(self, collection: str, documents: Sequence[Row]) -> None:
        """Store any documents, as another program would."""
        if collection == "tools":
            self.tools |= {document["name"]: document["definition"] for document in documents}
            return
        if collection == "constraints":
            self.constraints.kept |= {(row["owner_key"], row["place"]): row for row in documents}
            return
        if collection in self.memory.rows:
            self.memory.rows[collection] += map(stored, documents)
            return
        if collection == "turns":
            self.turns.rows += map(stored, documents)
            return
        planted = ({"_id": bson.ObjectId(new_row_id()), **document} for document in documents)
        getattr(self, collection).extend({**document, "_id": id_text(document["_id"])} for document in planted)

    async def prepare(self) -> None:
        """There are no indexes to make."""
        self._ask("prepare")

    async def inspect(self) -> Inventory:
        """It is always there, with all that it needs."""
        self._ask("inspect")
        return Inventory("fake", ("messages",), (), ())

    async def ping(self) -> None:
        """Return when the store answers."""
        self._ask("ping")

    async def insert_message(self, row: Row) -> bool:
        """Record a row. False when its owner has a row with that `id`."""
        self._ask("insert_message")
        kept = stored(row)
        if any(known.get("id") == row["id"] for known in self._of(row["owner_key"])):
            return False
        self.plant("messages", [{**kept, "_id": bson.ObjectId(row["_id"])} if "_id" in row else kept])
        self.recall.written(self.messages[-1]["_id"])
        return True

    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Record rows, one by one."""
        fates: list[bool | StoreRejectedError | StoreUnavailableError] = []
        for row in rows:
            try:
                fates.append(await self.insert_message(row))
            except (StoreRejectedError, StoreUnavailableError) as error:
                fates.append(error)
        return fates

    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip`, newest first, of any role but tools, system and commands."""
        self._ask("newest_messages")
        shown = [row for row in self._of(owner_key) if _is_shown(row) and not _is_internal(row)]
        return [_excerpt(row, excerpt_chars) for row in shown][skip : skip + limit]

    async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` rows of every role, newest first."""
        self._ask("all_messages")
        return [_excerpt(row, None) for row in self._of(owner_key)[:limit]]

    async def messages_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of these runs as `newest_messages` gives them."""
        self._ask("messages_of_runs")
        rows = [row for row in self._of(owner_key) if row.get("run_id") in run_ids and _is_shown(row)]
        rows = [row for row in rows if not _is_internal(row)]
        return [_excerpt(row, excerpt_chars) for row in rows[:limit]]

    async def results_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int
    ) -> list[Row]:
        """Up to `limit` rows of tools in these runs, newest first."""
        self._ask("results_of_runs")
        rows = [row for row in self._of(owner_key) if row.get("run_id") in run_ids and not _is_shown(row)]
        rows = [row for row in rows if str(row["role"]).lower() == "tool"]
        return [_excerpt(row, excerpt_chars) for row in rows[:limit]]

    async def find_message(self, owner_key: str, message_id: str) -> Row | None:
        """The row with that `id`, without its content."""
        self._ask("find_message")
        found = [row for row in self._of(owner_key) if row.get("id") == message_id]
        return {name: found[0][name] for name in _HEADER if name in found[0]} if found else None

    async def update_message(
        self, owner_key: str, row_id: str, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Change fields of a row, nested ones by their path."""
        self._ask("update_message")
        row = next((row for row in self._of(owner_key) if row["_id"] == row_id), None)
        if row is None:
            return False

        def place(path: str) -> tuple[dict[str, Any], str]:
            *outer, name = path.split(".")
            return (row[outer[0]] if outer else row), name

        if any(where.get(name) != value for (where, name), value in ((place(path), seen[path]) for path in seen)):
            return False
        for path, value in stored(dict(changes)).items():
            where, name = place(path)
            where[name] = value
        self.recall.written(row_id)
        return True

    async def recorded_ids(self, owner_key: str, message_ids: Sequence[str]) -> set[str]:
        """Those of these `id`s that the owner has rows of."""
        self._ask("recorded_ids")
        return {row["id"] for row in self._of(owner_key) if row.get("id") in message_ids}

    async def session_messages(
        self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session after the newest `skip`, newest first, of any role."""
        self._ask("session_messages")
        of_session = [row for row in self._of(owner_key) if is_of_session(row, session_id)]
        seen = [row for row in of_session if _is_seen_by(sub_agent, row)]
        return [_shown(row) for row in seen[skip : skip + limit]]

    async def tail_messages(
        self,
        owner_key: str,
        session_id: str,
        tail: Tail,
        *,
        limit: int,
        skip: int = 0,
        oldest_first: bool = False,
        sub_agent: str | None = None,
    ) -> list[Row]:
        """Up to `limit` rows of a session that the tail includes, in the order in which they were stored."""
        self._ask("tail_messages")
        found = [
            row
            for row in self._of(owner_key)
            if is_of_session(row, session_id)
            and (_is_seen_by(sub_agent, row) if _is_internal(row) else tail.includes(row["_id"]))
        ]
        found.sort(key=lambda row: _stored_order(row["_id"]), reverse=not oldest_first)
        return [_shown(row) for row in found[skip : skip + limit]]

    async def messages_of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """The rows with these `_id`s, in any order."""
        self._ask("messages_of_ids")
        wanted = frozenset(row_ids)
        return [_excerpt(row, None) for row in self._of(owner_key) if row["_id"] in wanted]

    async def search_messages(
        self,
        owner_key: str,
        session_id: str,
        text: str,
        *,
        limit: int,
        texts_of: TextsOf,
        without_tools: Collection[str] = (),
        without_run: str | None = None,
    ) -> list[Row]:
        """Up to `limit` rows of a session that have `text` in them, newest first."""
        self._ask("search_messages")
        if len(text) > LONGEST_QUERY:
            raise StoreRejectedError(f"no text of more than {LONGEST_QUERY} characters can be searched for")
        stored({"text": text})
        of_session = [row for row in self._of(owner_key) if is_of_session(row, session_id)]
        own = [row for row in of_session if tool_of(row) not in without_tools and not _is_internal(row)]
        others = [row for row in own if without_run is None or row.get("run_id") != without_run]
        found = [
            row for row in others if any(place_of(each, text) is not None for _, each in texts_of(row, without_tools))
        ]
        return [dict(row) for row in found[:limit]]

    async def run_messages(
        self, owner_key: str, run_id: str, *, limit: int, before: Row | None = None, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a run, newest first, of any role; only those that come behind the row `before`."""
        self._ask("run_messages")
        of_run = [row for row in self._of(owner_key) if row.get("run_id") == run_id]
        found = [row for row in of_run if before is None or _newest_order(row) < _newest_order(before)]
        return [_excerpt(row, excerpt_chars) for row in found[:limit]]

    async def condensed_results(self, owner_key: str, handles: Sequence[str]) -> dict[str, str]:
        """By handle, the texts that contexts show of these large results."""
        self._ask("condensed_results")
        known = [row["metadata"] for row in self._of(owner_key) if isinstance(row.get("metadata"), dict)]
        return {each["handle"]: each["condensed"] for each in known if each.get("handle") in handles}

    async def find_result(self, owner_key: str, handle: str, *, sub_agent: str | None = None) -> Row | None:
        """The row of the large result with this handle, whole."""
        self._ask("find_result")
        seen = [row for row in self._of(owner_key) if _is_seen_by(sub_agent, row)]
        return next((dict(row) for row in seen if (row.get("metadata") or {}).get("handle") == handle), None)

    async def sessions(
        self, owner_key: str, *, limit: int, before: SessionSummary | None = None
    ) -> list[SessionSummary]:
        """Up to `limit` sessions that have rows, the one with the latest row first."""
        self._ask("sessions")
        times = dict[str | None, list[datetime | None]]()
        for row in self._of(owner_key):
            session = session_of(row)
            times.setdefault(session if isinstance(session, str) else None, []).append(
                parse_moment(row.get("timestamp"))
            )
        found = [
            SessionSummary(name, min(len(each), MOST_COUNTED + 1), each[-1], each[0]) for name, each in times.items()
        ]
        found.sort(key=_session_order)
        end = _session_order(before) if before else None
        return [each for each in found if end is None or _session_order(each) > end][:limit]

    async def stored_messages(
        self, owner_key: str, session_id: str, *, limit: int, before: str = "", excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session, the last stored first."""
        self._ask("stored_messages")
        found = [row for row in self._of(owner_key) if is_of_session(row, session_id)]
        found.sort(key=lambda row: _stored_order(row["_id"]), reverse=True)
        earlier = [row for row in found if not before or _stored_order(row["_id"]) < _stored_order(before)]
        return [_excerpt(row, excerpt_chars) for row in earlier[:limit]]

    async def whole_message(self, owner_key: str, row_id: str) -> Row | None:
        """The row with this `_id`, whole."""
        self._ask("whole_message")
        return next((stored(row) for row in self._of(owner_key) if row["_id"] == row_id), None)

    async def owners(self, *, after: str = "", prefix: str = "", limit: int) -> list[str]:
        """Up to `limit` owners that have rows, in the order of their keys."""
        self._ask("owners")
        owners = {owner for row in self.messages if isinstance(owner := row.get("owner_key"), str)}
        return sorted(owner for owner in owners if owner > after and owner.startswith(prefix))[:limit]

    async def first_input(self, owner_key: str, session_id: str) -> Row | None:
        """The oldest row of role HUMAN in a session that is not internal to a sub-agent."""
        self._ask("first_input")
        of_session = [row for row in self._of(owner_key) if is_of_session(row, session_id)]
        inputs = [row for row in of_session if row.get("role") == "HUMAN" and not _is_internal(row)]
        return dict(inputs[-1]) if inputs else None

    async def run_input(self, owner_key: str, run_id: str) -> Row | None:
        """The oldest row of role HUMAN of a run that is not internal to a sub-agent."""
        self._ask("run_input")
        of_run = [row for row in self._of(owner_key) if row.get("run_id") == run_id]
        inputs = [row for row in of_run if row.get("role") == "HUMAN" and not _is_internal(row)]
        return dict(inputs[-1]) if inputs else None

    async def find_origin(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """Where the run's human input was recorded."""
        self._ask("find_origin")
        of_run = [row for row in self._of(owner_key) if row.get("run_id") == run_id and row.get("role") == "HUMAN"]
        return origin_of(of_run[-1] if of_run else {})

    async def find_identity(self, public_key: str) -> Row | None:
        """The identity with that public key."""
        self._ask("find_identity")
        return _first(self.identities, "public_key", public_key)

    async def find_configuration(self, environment: str) -> Row | None:
        """The `configurations` document of the environment."""
        self._ask("find_configuration")
        return _first(self.configurations, "environment", environment)

    async def put_tool(self, name: str, definition: Mapping[str, Any] | None, said_at: datetime) -> bool:
        """Keep the definition, or that there is none, unless something that was said later is kept."""
        self._ask("put_tool")
        if name in self.said_at and said_at < self.said_at[name]:
            return False
        self.said_at[name] = said_at
        if definition is None:
            self.tools.pop(name, None)
        else:
            self.tools[name] = stored(dict(definition))
        return True

    async def list_tools(self) -> list[Row]:
        """The definitions that are kept, by name."""
        self._ask("list_tools")
        return [definition for _, definition in sorted(self.tools.items())]

    async def find_session_state(self, owner_key: str, session_id: str) -> Row | None:
        """The session's document and its revision."""
        self._ask("find_session_state")
        found = self._state_of(owner_key, session_id)
        return stored({name: value for name, value in found.items() if name != "_id"}) if found else None

    async def put_session_state(
        self, owner_key: str, session_id: str, document: Mapping[str, Any], revision: int
    ) -> bool:
        """Keep the document in place of the one with that revision. False when another was kept in between."""
        self._ask("put_session_state")
        known = self._state_of(owner_key, session_id)
        if (known["revision"] if known else 0) != revision:
            return False
        written = stored({"document": dict(document), "revision": revision + 1, "updated_at": utc_now()})
        if known:
            known.update(written)
        else:
            self.plant("session_states", [{"owner_key": owner_key, "session_id": session_id, **written}])
        return True

    def _state_of(self, owner_key: str, session_id: str) -> Row | None:
        own = [row for row in self.session_states if row.get("owner_key") == owner_key]
        return next((row for row in own if row.get("session_id") == session_id), None)

    def bounded(self, row: Row) -> Row:
        """A row as reads give it, of bounded size."""
        return _excerpt(row, None)

    def _ask(self, operation: str) -> None:
        self.calls.append(operation)
        if self.down or operation == self.failing:
            raise StoreUnavailableError("the store is down")

    def _of(self, owner_key: str) -> list[Row]:
        own = [row for row in self.messages if row.get("owner_key") == owner_key]
        return sorted(own, key=_newest_order, reverse=True)


def _newest_order(row: Row) -> tuple[datetime, str]:
    return _moment(row), row["_id"]


def session_of(row: Row) -> Any:
    """The session of a row; one that names none is of the default one."""
    return row.get("session_id") or DEFAULT_SESSION


def is_of_session(row: Row, session_id: str) -> bool:
    """Whether the row is read in this session."""
    return session_id in (row.get("session_id"), session_of(row))


def _session_order(session: SessionSummary) -> tuple[float, str]:
    return -(session.last or LONG_AGO).timestamp(), session.session_id or ""


def _stored_order(row_id: str) -> tuple[bool, str]:
    return is_object_id(row_id), row_id


def _moment(row: Row) -> datetime:
    return parse_moment(row.get("timestamp")) or datetime.min.replace(tzinfo=UTC)


def _is_shown(row: Row) -> bool:
    return str(row.get("role")).lower() not in _HIDDEN


def _is_internal(row: Row) -> bool:
    metadata = row.get("metadata")
    return isinstance(metadata, dict) and metadata.get("sub_agent_internal") is True


def _is_seen_by(sub_agent: str | None, row: Row) -> bool:
    if not _is_internal(row):
        return True
    return sub_agent is not None and row["metadata"].get("agent_id") in (None, "", sub_agent)


def _shown(row: Row) -> Row:
    """A row as contexts show it."""
    metadata, read = row.get("metadata"), _excerpt(row, None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("condensed"), str):
        return read
    kept = {name: value for name, value in metadata.items() if name not in {"condensed", "raw"}}
    return {**read, "content": metadata["condensed"], "metadata": kept}


def _excerpt(row: Row, chars: int | None) -> Row:
    shown = {name: row[name] for name in (*_HEADER, "content", "metadata") if name in row}
    ends, mark = (LONGEST_CONTENT // 2, LEFT_OUT) if chars is None else (chars, "")
    content, metadata = row.get("content"), row.get("metadata")
    if isinstance(content, str) and len(content) > 2 * ends:
        shown["content"] = content[:ends] + mark.format(len(content) - 2 * ends) + content[-ends:]
    elif not isinstance(content, str) and _size(content) > _LARGEST:
        shown["content"] = VALUE_LEFT_OUT.format(_size(content))
    if isinstance(metadata, dict) and len(bson.encode(metadata)) > _LARGEST:
        calls = metadata.pop("tool_calls", None) if (metadata := dict(metadata)) else None
        kept = {name: value for name, value in metadata.items() if name in _KEPT}
        if calls is not None and _size(calls) <= _LARGEST:
            kept["tool_calls"] = calls
        elif isinstance(calls, list):
            kept["tool_calls"] = list(map(_call, calls[:MOST_CALLS]))
            kept |= {CALLS_LEFT_OUT: len(calls) - MOST_CALLS} if len(calls) > MOST_CALLS else {}
        shown["metadata"] = kept
    return shown


def _call(call: Any) -> Any:
    if _size(call) <= _LARGEST_CALL:
        return call
    name = call.get("function", call.get("custom", call))["name"]
    return {
        "id": call.get("call_id", call.get("id")),
        "name": name,
        "arguments": ARGUMENTS_LEFT_OUT.format(_size(call)),
    }


def _size(value: Any) -> int:
    return len(bson.encode({"value": value}))


def _first(documents: list[Row], name: str, value: str) -> Row | None:
    found = next((document for document in documents if document.get(name) == value), None)
    return {key: item for key, item in found.items() if key != "_id"} if found else None
