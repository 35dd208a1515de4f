"""Write documents to a file or stdout, one at a time and sorted by `_id`, so that any size fits into little memory.

A file appears under its name when it is complete: until then it is a temporary file beside it, readable by its owner
alone, which is removed when the export ends early.
"""

import contextlib
import csv
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from bson import json_util

from .analyze import field_names
from .csvcells import MESSAGE_COLUMNS, cells, header
from .server import Refusal, Rows, WrongUsage

Format = Literal["jsonl", "csv"]
FORMATS: dict[str, Format] = {"jsonl": "jsonl", "csv": "csv"}
STDOUT = "-"
_BATCH = 500


def export(
    rows: Rows, query: dict[str, Any], out: IO[bytes], *, form: Format, raw: bool, advance: Callable[[int], None]
) -> tuple[int, int]:
    """Write every document that `query` means to `out`; returns how many documents and bytes. `raw`: see `csvcells`."""
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
