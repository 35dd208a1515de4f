"""Documents chosen by criteria: counted, deleted, or written to a file.

- Criteria are joined by AND. Values are only ever compared as plain strings, so an owner called `{"$ne": ""}` matches
  no other one. Age compares BSON dates; a row whose timestamp is a text, a list or missing is never old.
- An export is sorted by `_id` and holds one document at a time, so that any size fits into little memory.
- A file appears under its name when it is complete: until then it is a temporary file beside it, readable by its owner
  alone, which is removed when the export ends early.
- No cell of a CSV file is a formula for a spreadsheet (OWASP, "CSV Injection"), unless `raw` leaves text as it is.
"""

import contextlib
import csv
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Literal

import bson
from bson import json_util

from nexus.cli.options import is_utf8

from .server import Refusal, Rows, WrongUsage

PROTECTED = ("configurations", "identities")
_SAMPLE = 5
_BATCH = 500
# In an array every element is compared, so a list of dates would pass for a date.
_DATE: dict[str, Any] = {"$type": "date", "$not": {"$type": "array"}}
_NO_DATE = {"$or": [{"timestamp": {"$not": {"$type": "date"}}}, {"timestamp": {"$type": "array"}}]}


@dataclass(frozen=True)
class Criteria:
    """The criteria of documents; None: anything.

    Attributes:
        older_than: age in days that the `timestamp` must exceed.
        role: compared without case.
    """

    older_than: int | None = None
    role: str | None = None
    run: str | None = None
    owner: str | None = None
    session: str | None = None

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            if isinstance(value, str) and not is_utf8(value):
                raise WrongUsage(f"{name}: UTF-8 text is needed")

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
    """The documents that a cleanup would delete.

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
        row_id, role, timestamp = (_shown(document.get(name)) for name in ("id", "role", "timestamp"))
        yield Sample(
            _shown(document.get("_id")) if row_id is None else row_id, role, timestamp, len(bson.encode(document))
        )


def _shown(value: Any) -> Any:
    """A malformed row may hold anything in these fields; only values that cannot be a content are shown."""
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


Format = Literal["jsonl", "csv"]
FORMATS: dict[str, Format] = {"jsonl": "jsonl", "csv": "csv"}
STDOUT = "-"
MESSAGE_COLUMNS = ("id", "run_id", "owner_key", "session_id", "role", "timestamp", "content", "metadata")
# Tab and line ends are dropped by some programs before they look for a formula; wide signs count as signs for some.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def export(
    rows: Rows, query: dict[str, Any], out: IO[bytes], *, form: Format, raw: bool, advance: Callable[[int], None]
) -> tuple[int, int]:
    """Write every document that `query` means to `out`; returns how many documents and bytes."""
    documents = _counted(rows.find(query).sort("_id", 1), counts := [0], advance)
    size = sum(out.write(line) for line in _lines(rows, query, documents, form, raw=raw))
    return counts[0], size


def _counted(documents: Iterable[Any], counts: list[int], advance: Callable[[int], None]) -> Iterator[Any]:
    for document in documents:
        counts[0] += 1
        if counts[0] % _BATCH == 0:
            advance(_BATCH)
        yield document
    advance(counts[0] % _BATCH)


def _lines(
    rows: Rows, query: dict[str, Any], documents: Iterable[Mapping[str, Any]], form: Format, *, raw: bool
) -> Iterator[bytes]:
    if form == "jsonl":
        for document in documents:
            line = json_util.dumps(document, json_options=json_util.RELAXED_JSON_OPTIONS, ensure_ascii=False)
            yield f"{line}\n".encode()
        return
    columns = MESSAGE_COLUMNS if rows.name == "messages" else field_names(rows, query)
    writer = csv.writer(_Echo())
    yield _row(writer.writerow(header(columns, raw=raw)))
    for document in documents:
        yield _row(writer.writerow(cells(document, columns, raw=raw)))


def _row(text: Any) -> bytes:
    return str(text).encode()


class _Echo:
    """The target of a csv writer: `writerow` returns what `write` does."""

    def write(self, text: str) -> str:
        return text


def checked_target(name: str) -> Path | None:
    """Where to write; None for stdout. A link is followed to the file it means.

    Raises:
        WrongUsage: no file can be made there.
    """
    if name == STDOUT:
        return None
    path = Path(name).resolve()
    if path.exists() and not path.is_file():
        raise WrongUsage(f"--output {name} is no regular file; for stdout say --output -")
    if not path.parent.is_dir():
        raise WrongUsage(f"--output {name}: there is no folder {path.parent}")
    return path


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[IO[bytes]]:
    """The stream to write to; at the end of the block the file `path` is there, whole."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with (
            tempfile.NamedTemporaryFile(
                dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part", delete=False
            ) as part,
            _removed_on_failure(part.name),
        ):
            yield part
            part.flush()
            os.fsync(part.fileno())
            Path(part.name).replace(path)
    except OSError as error:
        raise Refusal(f"{path} cannot be written: {error.strerror or error}") from None


@contextlib.contextmanager
def _removed_on_failure(name: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def header(columns: Sequence[str], *, raw: bool) -> list[str]:
    """The first row. Names of fields are data too."""
    return [name if raw else _harmless(name) for name in columns]


def cells(document: Mapping[str, Any], columns: Sequence[str], *, raw: bool) -> list[str]:
    """The values of `columns`; a missing one is empty. `raw` leaves text as it is."""
    return [_cell(document.get(name), raw=raw) for name in columns]


def _cell(value: Any, *, raw: bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)  # a number is no formula, and a minus sign belongs to it
    text = as_text(value)
    return text if raw else _harmless(text)


def iso(moment: datetime) -> str:
    """A moment in UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_text(value: Any) -> str:
    """Text as it is, nothing as nothing, dates as ISO 8601, everything else as relaxed Extended JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return iso(value)
    return json_util.dumps(value, json_options=json_util.RELAXED_JSON_OPTIONS, ensure_ascii=False)


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def field_names(rows: Rows, query: dict[str, Any]) -> list[str]:
    """Every field at the top of the documents that `query` means: `_id`, then by name."""
    return sorted(types_by_field(rows, query), key=lambda name: (name != "_id", name))


def types_by_field(rows: Rows, query: dict[str, Any]) -> dict[str, dict[str, int]]:
    """By the name of each field at the top of the documents that `query` means: how many have it, by BSON type."""
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
