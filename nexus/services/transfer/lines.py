"""The folder of an exported session, and how its files are written and read. Pure.

| file | contents |
|---|---|
| `session.json` | the header: whose session, and how many lines the other files have; written last |
| `messages.jsonl` | a line a recorded row, in the order of storing, as `TransferStore.to_json` gives it |
| `turns.jsonl` | a line a turn, the lowest number first |
| `compactions.jsonl` | a line a compaction, the lowest number first |
| `state.json` | the session's state for agents; missing where there is none |
| `working-memory/overview.md` | the newest revision of the overview |
| `working-memory/revisions.jsonl` | a line a revision, the lowest first; the newest without `content`: see above |
| `working-memory/detail/*.md` | the newest version of each detail |
| `working-memory/details.jsonl` | a line a version, by name; the newest of each with `file` in place of `content` |

Rules of this module:

- Characters that a terminal might obey, or not show, are written as escapes in JSON; all others as they are.
- A fault is reported with its file, its line, its field and what is allowed. It quotes nothing but names.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Final, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from nexus.core.models import Identifier, Moment
from nexus.core.signing import parsed
from nexus.core.wire import explain, is_deeper
from nexus.services.tools.memory_tools import read_name

HEADER: Final = "session.json"
MESSAGES: Final = "messages.jsonl"
TURNS: Final = "turns.jsonl"
COMPACTIONS: Final = "compactions.jsonl"
STATE: Final = "state.json"
MEMORY_FOLDER: Final = "working-memory"
OVERVIEW: Final = f"{MEMORY_FOLDER}/overview.md"
REVISIONS: Final = f"{MEMORY_FOLDER}/revisions.jsonl"
DETAILS: Final = f"{MEMORY_FOLDER}/details.jsonl"
DETAIL_FOLDER: Final = f"{MEMORY_FOLDER}/detail"
SUFFIX: Final = ".md"
# What stands in the folder itself.
TOP: Final = frozenset({HEADER, MESSAGES, TURNS, COMPACTIONS, STATE, MEMORY_FOLDER})

# As deep as MongoDB keeps a document; in JSON each object of it may stand in another one.
MOST_DEPTH: Final = 100
MOST_JSON_DEPTH: Final = 200

# As `json` and pydantic say what no user can know: the line within a line, and a class.
_POSITION: Final = re.compile(r": line 1 column (\d+) \(char \d+\)$")
_CLASS: Final = re.compile(r" or instance of \w+")

_Model = TypeVar("_Model", bound=BaseModel)
_Count = Field(ge=0)


class Folder(Protocol):
    """The folder that an import reads. Raises `NexusError` for what cannot be read."""

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file; none where it is missing."""
        ...

    def content(self, name: str) -> bytes | None:
        """A whole file; None where it is missing."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder, in order, without hidden ones; `[]` where it is missing."""
        ...


class NewFolder(Protocol):
    """The folder that an export writes."""

    def put(self, name: str, line: str) -> None:
        """Append a line, given without its end, to a file."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a whole file."""
        ...


class Header(BaseModel):
    """What an export says of itself: `exported_at` is when it was made, the counts are lines of its files."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal["nexus-session"]
    version: Literal[1]
    owner_key: Identifier
    session_id: Identifier
    exported_at: Moment
    messages: int = _Count
    turns: int = _Count
    compactions: int = _Count
    revisions: int = _Count
    details: int = _Count
    has_state: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """How many documents each file holds."""
        return {
            MESSAGES: self.messages,
            TURNS: self.turns,
            COMPACTIONS: self.compactions,
            REVISIONS: self.revisions,
            DETAILS: self.details,
            STATE: int(self.has_state),
        }


def json_line(value: Any) -> str:
    """A JSON value on one line, with escapes for what cannot be shown."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def json_of_model(model: type[BaseModel], document: Any) -> dict[str, Any]:
    """The fields of the model in a stored document, as JSON.

    Raises:
        ValueError: it is malformed; says what is wrong.
    """
    try:
        # By way of a text, where no number is infinite, and bytes that are no text are a fault.
        value: dict[str, Any] = json.loads(model.model_validate(document).model_dump_json())
    except ValidationError as error:
        raise ValueError(explained(error)) from None
    except (PydanticSerializationError, UnicodeDecodeError):
        raise ValueError("it holds something that is no JSON") from None
    return value


def read_header(folder: Folder) -> Header:
    """The header of an export.

    Raises:
        ValueError: it has none that can be read.
    """
    content = folder.content(HEADER)
    if content is None:
        raise ValueError(f"no {HEADER} is in it: it is no export of a session")
    return model_in(HEADER, object_in(HEADER, content), Header)


def objects_in(folder: Folder, name: str, *, most_depth: int = MOST_DEPTH) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, one a line, each behind its place (`turns.jsonl: line 3`). Blank lines are passed over.

    Raises:
        ValueError: a line holds none.
    """
    for number, line in enumerate(folder.lines(name), 1):
        if line.strip():
            place = f"{name}: line {number}"
            yield place, object_in(place, line, most_depth=most_depth)


def object_in(place: str, content: bytes, *, most_depth: int = MOST_DEPTH) -> dict[str, Any]:
    """The JSON object in these bytes.

    Raises:
        ValueError: they hold none.
    """
    try:
        value = parsed(content)
    except ValueError as error:
        fault = _POSITION.sub(r" at column \1", str(error))
        raise ValueError(f"{place}: {fault}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place}: a JSON object is needed")
    if is_deeper(value, most_depth):
        raise ValueError(f"{place}: nested deeper than {most_depth}")
    return value


def model_in(place: str, value: dict[str, Any], model: type[_Model]) -> _Model:
    """What an object says, read strictly: no text and no truth value is a number.

    Raises:
        ValueError: it says no such thing.
    """
    try:
        return model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise ValueError(f"{place}: {explained(error)}") from None


def text_in(place: str, content: bytes) -> str:
    """The text of a Markdown file, as it is.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: not UTF-8 at byte {error.start}") from None


def explained(error: ValidationError) -> str:
    """The first fault that pydantic found, without its names of classes."""
    return _CLASS.sub("", explain(error))


def detail_files(names: Collection[str]) -> dict[str, str]:
    """By its name the file of each detail in `DETAIL_FOLDER`; no two are the same, also where case does not count."""
    folded = Counter(map(_folded, names))
    return {name: _detail_file(name, is_alone=folded[_folded(name)] == 1) for name in names}


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def _detail_file(name: str, *, is_alone: bool) -> str:
    try:
        if is_alone and read_name(name) == name:
            return name + SUFFIX
    except ValueError:
        # A name that no tool gives, and that may be no name of a file either.
        pass
    return f"~{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:16]}{SUFFIX}"
