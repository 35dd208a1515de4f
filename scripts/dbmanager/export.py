"""Write documents to a file or stdout, one at a time and sorted by `_id`, so that any size fits into little memory.

- A file appears under its name when it is complete: until then it is a temporary file beside it, readable by its owner
  alone, which is removed when the export ends early.
- No cell of a CSV file is a formula for a spreadsheet (OWASP, "CSV Injection"), unless `raw` leaves text as it is.
"""

import contextlib
import csv
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Literal

from bson import json_util

from .analyze import field_names
from .server import Refusal, Rows, WrongUsage
from .terminal import iso

Format = Literal["jsonl", "csv"]
FORMATS: dict[str, Format] = {"jsonl": "jsonl", "csv": "csv"}
STDOUT = "-"
_BATCH = 500
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
    """What a csv writer writes to: `writerow` returns what `write` does."""

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
