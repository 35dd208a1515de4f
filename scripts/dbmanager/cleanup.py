"""Which documents are meant, and deleting them after saying which they are.

Criteria are joined by AND. Values are only ever compared as plain strings, so an owner called `{"$ne": ""}` matches
nobody else. Age compares BSON dates; a row whose timestamp is a text, a list or missing is never old.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import bson

from .server import Rows

PROTECTED = ("configurations", "identities")
_SAMPLE = 5
_BATCH = 1_000
# In an array every element is compared, so a list of dates would pass for a date.
_DATE: dict[str, Any] = {"$type": "date", "$not": {"$type": "array"}}
_NO_DATE = {"$or": [{"timestamp": {"$not": {"$type": "date"}}}, {"timestamp": {"$type": "array"}}]}


@dataclass(frozen=True)
class Criteria:
    """What a document must be to be meant; None: anything.

    Attributes:
        older_than: age in days that the `timestamp` must exceed.
        role: compared without case.
    """

    older_than: int | None = None
    role: str | None = None
    run: str | None = None
    owner: str | None = None
    session: str | None = None

    @property
    def given(self) -> dict[str, str | int]:
        """The criteria that say something."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def query(self, now: datetime) -> dict[str, Any]:
        """The MongoDB filter; `{}` without criteria."""
        if self.older_than is None:
            return self._strings()
        return self._strings() | {"timestamp": {"$lt": now - timedelta(days=self.older_than), **_DATE}}

    def skipped_query(self) -> dict[str, Any] | None:
        """The documents that only their unusable timestamp keeps from being meant; None where age is no criterion."""
        return None if self.older_than is None else self._strings() | _NO_DATE

    def _strings(self) -> dict[str, Any]:
        named = {"run_id": self.run, "owner_key": self.owner, "session_id": self.session}
        query: dict[str, Any] = {field: {"$eq": value} for field, value in named.items() if value is not None}
        if self.role is not None:
            # `$` alone would also match before a line end.
            query["role"] = {"$regex": f"^{re.escape(self.role)}$(?!\n)", "$options": "i"}
        return query


@dataclass(frozen=True)
class Sample:
    """One document that is meant, without its content. Sizes are bytes."""

    id: Any
    role: Any
    timestamp: Any
    size: int


@dataclass(frozen=True)
class Meant:
    """What a cleanup would delete.

    Attributes:
        skipped: documents that are kept only because their timestamp is no date.
    """

    matched: int
    skipped: int
    sample: tuple[Sample, ...]
    query: dict[str, Any]


def find_meant(rows: Rows, criteria: Criteria, now: datetime) -> Meant:
    """Count and sample what `criteria` mean at the moment `now`."""
    query, skipped = criteria.query(now), criteria.skipped_query()
    return Meant(
        matched=rows.count_documents(query),
        skipped=0 if skipped is None else rows.count_documents(skipped),
        sample=tuple(_samples(rows, query)),
        query=query,
    )


def _samples(rows: Rows, query: dict[str, Any]) -> Iterator[Sample]:
    for document in rows.find(query).limit(_SAMPLE):
        shown = (_shown(document.get(name)) for name in ("id", "role", "timestamp"))
        row_id, role, timestamp = shown
        yield Sample(
            _shown(document.get("_id")) if row_id is None else row_id, role, timestamp, len(bson.encode(document))
        )


def _shown(value: Any) -> Any:
    """A malformed row may hold anything in these fields; only what cannot be a content is shown."""
    return f"({type(value).__name__})" if isinstance(value, dict | list | bytes) else value


def delete(rows: Rows, query: dict[str, Any]) -> Iterator[int]:
    """Delete in batches; yields how many each of them deleted.

    A document that was changed in between and is no longer meant is kept.
    """
    batch: list[Any] = []
    for document in rows.find(query, {"_id": 1}, batch_size=_BATCH):
        batch.append(document["_id"])
        if len(batch) == _BATCH:
            yield _delete_batch(rows, query, batch)
            batch = []
    if batch:
        yield _delete_batch(rows, query, batch)


def _delete_batch(rows: Rows, query: dict[str, Any], ids: list[Any]) -> int:
    return rows.delete_many({**query, "_id": {"$in": ids}}).deleted_count
