"""Records as people ask for them: found, replayed, explained, and with them where a message is in a context."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from pydantic import ValidationError

from nexus.core.concurrency import computed
from nexus.core.models import Row
from nexus.core.ports import Store
from nexus.core.records import BuildRecord
from nexus.core.working_memory import Compaction
from nexus.services.history.rows import text_or_empty
from nexus.services.records.explain import Explained, explain, explain_manifest
from nexus.services.records.pieces import joined
from nexus.services.records.why import Finding, Stored, find_message, is_continuation, oldest_shown

_PAGE: Final = 50
# How many records before one are looked through for another build like it.
_MOST_LOOKED_AT: Final = 500
_COMPACTIONS: Final = 10


@dataclass(frozen=True, slots=True)
class Replayed:
    """A record with what was answered.

    Attributes:
        answer: the bytes; None where only the manifest was kept, or where they cannot be had.
        fault: why they cannot, or that they are not those that were sent; `""` where their hash is that of the record.
    """

    record: BuildRecord
    answer: bytes | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record and what it says.

    Attributes:
        explained: None where nothing of the answer can be read; then `replayed.fault` says why.
    """

    replayed: Replayed
    explained: Explained | None

    @property
    def record(self) -> BuildRecord:
        """The record itself."""
        return self.replayed.record


class RecordReader:
    """Reads records of builds, and what is stored of the messages in them. Errors are those of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records = store.records

    async def find(self, owner_key: str, request_id: str) -> BuildRecord | None:
        """The record of a request."""
        return await self._records.find_record(owner_key, request_id)

    async def newest(
        self, owner_key: str, *, session_id: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of an owner, of one session or of all, newest first; those before `before`."""
        return await self._records.records(owner_key, session_id=session_id, before=before, limit=limit)

    async def failures(
        self, *, owner_key: str | None = None, before: BuildRecord | None = None, limit: int
    ) -> list[BuildRecord]:
        """Up to `limit` records of errors, of one owner or of all, newest first."""
        return await self._records.failures(owner_key=owner_key, before=before, limit=limit)

    async def replay(self, record: BuildRecord) -> Replayed:
        """What was answered, checked by its hash."""
        if record.mode != "full":
            return Replayed(record, None, "only the manifest was kept (context.record: manifest)")
        found = await self._records.pieces(record.owner_key, [*{*record.pieces}])
        try:
            answer = await computed(
                record.owner_key, record.size, partial(joined, record.owner_key, record.pieces, found)
            )
        except ValueError as error:
            return Replayed(record, None, str(error))
        same = hashlib.sha256(answer).hexdigest() == record.sha256
        return Replayed(record, answer, "" if same else "the bytes are not those that were sent: another SHA-256")

    async def read(self, record: BuildRecord) -> ReadRecord:
        """The record with its answer, replayed and explained; without it, by its manifest."""
        replayed = await self.replay(record)
        try:
            if replayed.answer is not None:
                work = partial(explain, replayed.answer)
                return ReadRecord(replayed, await computed(record.owner_key, record.size, work))
            if record.mode == "manifest":
                if record.outcome != "success":
                    error = (record.outcome, record.reason)
                    return ReadRecord(replayed, Explained(error, has_texts=False))
                return ReadRecord(replayed, explain_manifest(record.manifest, form=record.form))
        except ValueError as error:
            # Only bytes that are spoilt cannot be read.
            fault = replayed.fault or f"it cannot be read: {error}"
            return ReadRecord(Replayed(record, replayed.answer, fault), None)
        return ReadRecord(replayed, None)

    async def build_before(self, record: BuildRecord) -> BuildRecord | None:
        """The last context before this one of its session with its layout and format, of its own run if there is one.

        None where the latest records of the session have none.
        """
        other: BuildRecord | None = None
        async for each in self._before(record):
            if (each.outcome, each.layout, each.form) == ("success", record.layout, record.form):
                if each.run_id == record.run_id:
                    return each
                other = other or each
        return other

    async def row_of(self, owner_key: str, message_id: str) -> Row | None:
        """The row of a message by its `id`, or by the row's own `_id`; None for none of this owner."""
        header = await self._store.find_message(owner_key, message_id)
        found = await self._store.messages_of_ids(owner_key, [header["_id"] if header else message_id])
        return found[0] if found else None

    async def where_is(self, read: ReadRecord, message_id: str) -> Finding:
        """Where a message is in the context, or why it is not there. `message_id` is its `id`, or that of its row.

        ValueError where nothing of the answer can be read.
        """
        return (await self.where_are(read, [message_id]))[0]

    async def where_are(self, read: ReadRecord, message_ids: Sequence[str]) -> list[Finding]:
        """Where each of these messages is in the context, or why it is not there; as `where_is`."""
        record, explained = read.record, read.explained
        if explained is None:
            raise ValueError(read.replayed.fault)
        found = [await self.row_of(record.owner_key, message_id) for message_id in message_ids]
        rows = [row for row in found if row]
        oldest = oldest_shown(explained)
        of_context = Stored(
            "",
            None,
            oldest=await self.row_of(record.owner_key, oldest) if rows and oldest else None,
            begun_at=await self._begun_at(record) if is_continuation(explained) else None,
        )
        compactions = await self._compactions_of(record, rows)
        turns = await self._turns_of(record, rows)
        return [
            find_message(
                record,
                explained,
                replace(
                    of_context,
                    message_id=message_id,
                    row=row,
                    turn_id=turns.get(_run_of(row), ""),
                    compaction=compactions.get(row["_id"]) if row else None,
                ),
            )
            for message_id, row in zip(message_ids, found, strict=True)
        ]

    async def _turns_of(self, record: BuildRecord, rows: Sequence[Row]) -> dict[tuple[str, str], str]:
        """Ids of the turns of the rows, by session and run."""
        runs = dict.fromkeys(_run_of(row) for row in rows)
        sessions = dict.fromkeys(session_id for session_id, run_id in runs if session_id and run_id)
        found = {}
        for each in sessions:
            run_ids = [run_id for session_id, run_id in runs if session_id == each and run_id]
            for turn in await self._store.turns.turns_of_runs(record.owner_key, each, run_ids):
                found[each, str(turn.get("run_id", ""))] = str(turn.get("id", ""))
        return found

    async def _compactions_of(self, record: BuildRecord, rows: Sequence[Row]) -> dict[str, Compaction]:
        """By the `_id` of a row, the compaction of the record's session that it is under now."""
        session = record.owner_key, record.session_id
        latest = _compaction(await self._store.memory.latest_compaction(*session)) if rows else None
        sought = {row["_id"] for row in rows if latest and not latest.tail.includes(row["_id"])}
        found, before = dict[str, Compaction](), None
        while sought and (
            page := await self._store.memory.compactions(*session, limit=_COMPACTIONS, before=before, whole=True)
        ):
            for compaction in filter(None, map(_compaction, page)):
                under = sought.intersection(compaction.rows)
                found |= dict.fromkeys(under, compaction)
                sought -= under
            before = page[-1]["number"]
        return found

    async def _begun_at(self, record: BuildRecord) -> datetime | None:
        """When the first context of the record's run was answered, as far back as is looked."""
        found = [each.answered_at async for each in self._before(record) if each.run_id == record.run_id]
        return found[-1] if found else None

    async def _before(self, record: BuildRecord) -> AsyncIterator[BuildRecord]:
        """Records of the session before this one, newest first."""
        last = record
        for _ in range(_MOST_LOOKED_AT // _PAGE):
            page = await self.newest(record.owner_key, session_id=record.session_id, before=last, limit=_PAGE)
            for each in page:
                yield each
            if len(page) < _PAGE:
                return
            last = page[-1]


def _run_of(row: Row | None) -> tuple[str, str]:
    """Session and run of a row; `""` for what is no text."""
    return (text_or_empty(row.get("session_id")), text_or_empty(row.get("run_id"))) if row else ("", "")


def _compaction(document: Row | None) -> Compaction | None:
    try:
        return Compaction.model_validate(document) if document else None
    except ValidationError:
        return None
