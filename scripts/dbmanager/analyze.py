"""What is in a collection. Contents stay on the server: of a message or a turn only the size of its texts is asked."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .server import Rows
from .tally import MessagesReport, MessageTally, TurnsReport, TurnTally

_BATCH = 500


def _text_bytes(value: str, otherwise: int | None = None) -> dict[str, Any]:
    return {"$cond": [{"$eq": [{"$type": value}, "string"]}, {"$strLenBytes": value}, otherwise]}


def _list_bytes(value: str) -> dict[str, Any]:
    texts = {"$map": {"input": value, "as": "item", "in": _text_bytes("$$item", 0)}}
    return {"$cond": [{"$isArray": value}, {"$sum": texts}, 0]}


_MESSAGE = {
    "_id": 0,
    **dict.fromkeys(("run_id", "owner_key", "session_id", "role", "timestamp"), 1),
    "content_bytes": _text_bytes("$content"),
    **dict.fromkeys(("metadata.tool_calls.name", "metadata.tool_calls.function.name"), 1),
    **dict.fromkeys(("metadata.tool_name", "metadata.status", "metadata.execution_success"), 1),
}
_STRUCTURED = "$summaries.structured"
_OVERVIEW = _text_bytes(f"{_STRUCTURED}.overview")
_LISTS = [_list_bytes(f"{_STRUCTURED}.{name}") for name in ("actions", "results", "decisions", "next_steps")]
_OUTCOME = {
    "name": "$$call.name",
    "success": "$$call.success",
    "answered": {"$ne": [{"$ifNull": ["$$call.result", None]}, None]},
}
_TURN = {
    "_id": 0,
    **dict.fromkeys(("turn_number", "owner_key", "session_id", "run_id", "timestamp", "status", "token_usage"), 1),
    "work": 1,
    "source": "$summaries.source",
    "brief": _text_bytes("$summaries.brief"),
    "detailed": _text_bytes("$summaries.detailed"),
    # A sum of nothing known is nothing known.
    "comprehensive": {"$add": [_OVERVIEW, *_LISTS]},
    "tool_calls": {
        "$cond": [
            {"$isArray": "$tool_calls"},
            {"$map": {"input": "$tool_calls", "as": "call", "in": _OUTCOME}},
            None,
        ]
    },
}


@dataclass(frozen=True)
class Field:
    """A field at the top of documents: in how many it is, and with which BSON types."""

    name: str
    documents: int
    types: dict[str, int]


@dataclass(frozen=True)
class FieldsReport:
    """What the documents of a collection look like."""

    database: str
    collection: str
    documents: int
    fields: tuple[Field, ...]


def analyze_messages(rows: Rows, advance: Callable[[int], None]) -> MessagesReport:
    """Count the rows of a collection of messages."""
    tally = MessageTally()
    for row in rows.aggregate([{"$project": _MESSAGE}], batchSize=_BATCH):
        tally.add(row)
        if tally.count % _BATCH == 0:
            advance(_BATCH)
    return tally.report(rows.database.name, rows.name)


def analyze_turns(rows: Rows, advance: Callable[[int], None]) -> TurnsReport:
    """Count the documents of a collection of turns."""
    tally = TurnTally()
    for turn in rows.aggregate([{"$project": _TURN}], batchSize=_BATCH):
        tally.add(turn)
        if tally.count % _BATCH == 0:
            advance(_BATCH)
    return tally.report(rows.database.name, rows.name)


def analyze_fields(rows: Rows) -> FieldsReport:
    """Count the fields of a collection's documents."""
    counts = _types_by_field(rows, {})
    fields = (Field(name, sum(types.values()), types) for name, types in counts.items())
    documents = rows.count_documents({})
    return FieldsReport(rows.database.name, rows.name, documents, tuple(sorted(fields, key=_most_frequent_first)))


def field_names(rows: Rows, query: dict[str, Any]) -> list[str]:
    """Every field at the top of the documents that `query` means: `_id`, then by name."""
    return sorted(_types_by_field(rows, query), key=lambda name: (name != "_id", name))


def _types_by_field(rows: Rows, query: dict[str, Any]) -> dict[str, dict[str, int]]:
    pipeline: list[dict[str, Any]] = [
        {"$match": query},
        {"$project": {"_id": 0, "pair": {"$objectToArray": "$$ROOT"}}},
        {"$unwind": "$pair"},
        {"$group": {"_id": {"field": "$pair.k", "type": {"$type": "$pair.v"}}, "count": {"$sum": 1}}},
    ]
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for group in rows.aggregate(pipeline, allowDiskUse=True):
        counts[group["_id"]["field"]][group["_id"]["type"]] = int(group["count"])
    return dict(counts)


def _most_frequent_first(field: Field) -> tuple[int, str]:
    return -field.documents, field.name
