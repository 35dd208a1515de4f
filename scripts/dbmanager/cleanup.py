"""Delete what is meant, after saying what that is."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import bson

from .criteria import Criteria
from .server import Rows

PROTECTED = ("configurations", "identities")
_SAMPLE = 5
_BATCH = 1_000


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
