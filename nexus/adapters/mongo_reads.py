"""How recorded messages are read from MongoDB (CONTRACT §2)."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from pymongo.errors import PyMongoError

from nexus.adapters.mongo_calls import UNSENDABLE, Calls, completed, translated
from nexus.adapters.mongo_find import DriverFinds, FindsAside, Page, PipelinedFinds
from nexus.adapters.mongo_ids import id_text
from nexus.adapters.mongo_messages import Known, MongoMessages
from nexus.adapters.mongo_past import MongoPast, past_of
from nexus.adapters.mongo_pipelines import NotPipelinedError, Pipelines
from nexus.adapters.mongo_schema import (
    HEADER,
    NOT_INTERNAL,
    NOT_SHOWN,
    OF_RUN,
    OF_SESSION,
    OLDEST_FIRST,
    ORIGIN,
    newest_first,
    of_session,
    origin_of,
    seen_by,
)
from nexus.adapters.mongo_search import Searched, search_rows
from nexus.adapters.mongo_tail import MongoTail
from nexus.core.ports import Row, RunOrigin
from nexus.core.working_memory import Tail

_ROLE: Final = {"_id": 0, "owner_key": 1, "run_id": 1, "role": 1}
_INPUT: Final = {"_id": 0, **HEADER, "content": 1}


class MongoReads:
    """The reads of `nexus.core.ports.MessageStore`.

    Args:
        messages: the collection, of motor or of pymongo's asyncio client.
        calls: through which the client is called.
        pipelines: past which it is, for what every context needs.
    """

    def __init__(self, messages: Any, calls: Calls, pipelines: Pipelines) -> None:
        self.calls = calls
        self._messages = messages
        self._finds = DriverFinds(messages)
        self._aside = FindsAside(messages, pipelines)
        known = Known()
        self._rows = MongoMessages(self._finds, known)
        self._past = MongoPast(MongoMessages(PipelinedFinds(messages, pipelines), known))

    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip`, newest first, of any role but tools, system and commands."""
        try:
            return await self._past.newest(owner_key, limit=limit, skip=skip, excerpt_chars=excerpt_chars)
        except NotPipelinedError:
            return await self._past_of_driver(owner_key, limit, skip, excerpt_chars)
        except (PyMongoError, *UNSENDABLE) as error:
            raise translated(error) from error

    @completed
    async def _past_of_driver(self, owner_key: str, limit: int, skip: int, excerpt_chars: int | None) -> list[Row]:
        return await self._rows.newest(past_of(owner_key), limit=limit, skip=skip, excerpt_chars=excerpt_chars)

    @completed
    async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` rows of every role, whole, newest first."""
        return await self._rows.newest({"owner_key": {"$eq": owner_key}}, limit=limit)

    @completed
    async def messages_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of these runs, newest first, without those of tools, system and commands."""
        query = {"owner_key": {"$eq": owner_key}, "run_id": {"$in": list(run_ids)}, "role": {"$nin": NOT_SHOWN}}
        return await self._rows.newest(query, limit=limit, excerpt_chars=excerpt_chars)

    @completed
    async def find_message(self, owner_key: str, message_id: str) -> Row | None:
        """The row with that `id`, without its content."""
        query = {"owner_key": {"$eq": owner_key}, "id": {"$eq": message_id}}
        row: Row | None = await self._messages.find_one(query, HEADER)
        return {**row, "_id": id_text(row["_id"])} if row else None

    @completed
    async def session_messages(
        self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session after the newest `skip`, whole, newest first, of any role."""
        query = {**of_session(owner_key, session_id), **seen_by(sub_agent)}
        # Where thousands of the newest rows are not shown, no index does better than another in the server's trials. It
        # takes the owner's then, and what it remembers of that has it hold trials again for every other session.
        return await self._rows.newest(query, limit=limit, skip=skip, index=OF_SESSION)

    @completed
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
        """Up to `limit` rows of a session that the tail includes, whole, in the order in which they were stored."""
        rows = MongoTail(self._rows, owner_key, session_id, tail, oldest_first=oldest_first)
        return await rows.read(limit=limit, skip=skip, sub_agent=sub_agent)

    @completed
    async def messages_of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """The rows with these `_id`s, whole and in any order."""
        return await self._rows.of_ids(owner_key, row_ids)

    @completed
    async def search_messages(
        self,
        owner_key: str,
        session_id: str,
        text: str,
        *,
        limit: int,
        without_tools: Collection[str] = (),
        without_run: str | None = None,
    ) -> list[Row]:
        """Up to `limit` rows of a session that have `text` in them, newest first."""
        searched = Searched(of_session(owner_key, session_id), text, tuple(without_tools), without_run)
        return await search_rows(self._rows, searched, limit=limit)

    @completed
    async def run_messages(self, owner_key: str, run_id: str, *, limit: int, skip: int = 0) -> list[Row]:
        """Up to `limit` rows of a run after the newest `skip`, whole, newest first, of any role."""
        query = {"owner_key": {"$eq": owner_key}, "run_id": {"$eq": run_id}}
        return await self._rows.newest(query, limit=limit, skip=skip)

    @completed
    async def rows_of_runs(self, runs: Collection[tuple[str, str]], *, limit: int) -> list[Row]:
        """Up to `limit` rows of these runs, whole, newest first, of any role; any of them where there are more."""
        if not runs:
            return []
        queries = [{"owner_key": {"$eq": owner_key}, "run_id": {"$eq": run_id}} for owner_key, run_id in runs]
        # Where the server sorts those of many runs, it takes half as long again.
        query = {"$or": queries} if len(queries) > 1 else queries[0]
        return newest_first(await self._rows.find(query, limit=limit, order=()))

    @completed
    async def roles_of_runs(self, runs: Collection[tuple[str, str]], *, limit: int) -> list[Row]:
        """What `rows_of_runs` gives in any order, no more of each row than its `owner_key`, `run_id` and `role`."""
        of_owners: dict[str, list[str]] = {}
        for owner_key, run_id in runs:
            of_owners.setdefault(owner_key, []).append(run_id)
        queries = [{"owner_key": {"$eq": owner}, "run_id": {"$in": of_owner}} for owner, of_owner in of_owners.items()]
        if not queries:
            return []
        query = {"$or": queries} if len(queries) > 1 else queries[0]
        # All of it stands in the index: no row is read, unless others have written one whose run is a list.
        return await self._aside.rows(query, Page(limit), only=_ROLE, index=OF_RUN)

    @completed
    async def first_input(self, owner_key: str, session_id: str) -> Row | None:
        """The oldest row of role HUMAN in a session that is not internal to a sub-agent, whole."""
        query = {**of_session(owner_key, session_id), "role": "HUMAN", **NOT_INTERNAL}
        return await self._rows.oldest(query, index=OF_SESSION)

    @completed
    async def first_inputs(self, sessions: Collection[tuple[str, str]]) -> dict[tuple[str, str], Row]:
        """What `first_input` gives of each of these sessions; those without are left out."""
        queries = {place: {**of_session(*place), "role": "HUMAN", **NOT_INTERNAL} for place in sessions}
        rows = await self._finds.first_of_each([*queries.values()], OLDEST_FIRST, only=_INPUT)
        found: dict[tuple[str, str], Row] = {}
        odd = False
        for row in rows:
            if isinstance(row.get("session_id"), str) and isinstance(row.get("timestamp"), datetime):
                found[row["owner_key"], row["session_id"]] = row
            else:
                # The server sorts a time that is a text before all dates.
                odd = True
        for place, query in queries.items() if odd else ():
            if place not in found and (oldest := await self._rows.oldest(query, index=OF_SESSION)):
                found[place] = oldest
        return found

    @completed
    async def run_input(self, owner_key: str, run_id: str) -> Row | None:
        """The oldest row of role HUMAN of a run that is not internal to a sub-agent, whole."""
        of_run = {"owner_key": {"$eq": owner_key}, "run_id": {"$eq": run_id}}
        return await self._rows.oldest({**of_run, "role": "HUMAN", **NOT_INTERNAL})

    @completed
    async def find_origin(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """Where the run's human input was recorded."""
        query = {"owner_key": {"$eq": owner_key}, "run_id": {"$eq": run_id}, "role": "HUMAN"}
        row: Row | None = await self._messages.find_one(query, ORIGIN, sort=OLDEST_FIRST)
        return origin_of(row or {})
