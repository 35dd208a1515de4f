"""The folder of an exported session, and how its files are written and read, one document at a time. Pure.

`docs/working-memory.md` ("A session as a folder") says what each file holds.

- Messages are in the order of storing, as `TransferStore.to_json` gives them; turns, compactions and revisions have
  the lowest number first; details are by name and version. The header is written last.
- Characters that a terminal might obey, or not show, are written as escapes in JSON.
- Readers raise a `ValueError` with the file, the line, the field and what is allowed. It quotes nothing but names.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from nexus.core.models import Identifier, Moment
from nexus.core.person import Constraint, Statement
from nexus.core.ports import Row
from nexus.core.ports.store import TransferableStore
from nexus.core.signing import parsed
from nexus.core.turns import Turn
from nexus.core.wire import explain, is_deeper
from nexus.core.working_memory import Compaction, Detail, Overview
from nexus.services.person.constraint_changes import Target, moved
from nexus.services.text.escape import one_line
from nexus.services.tools.memory_tools import is_reserved, read_name

HEADER: Final = "session.json"
MESSAGES: Final = "messages.jsonl"
TURNS: Final = "turns.jsonl"
COMPACTIONS: Final = "compactions.jsonl"
STATE: Final = "state.json"
CONSTRAINTS: Final = "constraints.jsonl"
FACTS: Final = "facts.jsonl"
MEMORY_FOLDER: Final = "working-memory"
OVERVIEW: Final = f"{MEMORY_FOLDER}/overview.md"
REVISIONS: Final = f"{MEMORY_FOLDER}/revisions.jsonl"
DETAILS: Final = f"{MEMORY_FOLDER}/details.jsonl"
DETAIL_FOLDER: Final = f"{MEMORY_FOLDER}/detail"
SUFFIX: Final = ".md"
# Names in the folder itself.
TOP: Final = frozenset({HEADER, MESSAGES, TURNS, COMPACTIONS, STATE, CONSTRAINTS, FACTS, MEMORY_FOLDER})

# As deep as MongoDB keeps a document; in JSON each object of it may stand in another one.
_MOST_DEPTH: Final = 100
_MOST_JSON_DEPTH: Final = 200

# In messages of `json`, of no use to an operator: the line within a line.
_POSITION: Final = re.compile(r": line 1 column (\d+) \(char \d+\)$")

_Model = TypeVar("_Model", bound=BaseModel)
_Count = Field(ge=0)


class Folder(Protocol):
    """The folder that an import reads. Raises a `ValueError` for a file that cannot be read."""

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
    """The header of an export: `exported_at` is when it was made, the counts are lines of its files."""

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
    constraints: int = Field(default=0, ge=0)
    facts: int = Field(default=0, ge=0)

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
            CONSTRAINTS: self.constraints,
            FACTS: self.facts,
        }


def json_line(value: Any) -> str:
    """A JSON value on one line, with escapes for characters that cannot be shown."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def json_of_model(model: type[BaseModel], document: Any) -> dict[str, Any]:
    """The fields of the model in a stored document, as JSON; a ValueError says what is malformed."""
    try:
        # By way of a text, where no number is infinite, and bytes that are no text are a fault.
        value: dict[str, Any] = json.loads(model.model_validate(document).model_dump_json())
    except ValidationError as error:
        raise ValueError(explain(error)) from None
    except (PydanticSerializationError, UnicodeDecodeError):
        raise ValueError("it holds something that is no JSON") from None
    return value


def read_turn(document: Any) -> Turn:
    """The turn in a stored document, as an export has it; a ValueError says what is malformed."""
    return Turn.model_validate(json_of_model(Turn, document))


def read_header(folder: Folder) -> Header:
    """The header of an export."""
    content = folder.content(HEADER)
    if content is None:
        raise ValueError(f"{HEADER}: it is missing, so the folder is no export of a session")
    return _model(HEADER, _object(HEADER, content), Header)


def messages_in(folder: Folder, header: Header, store: TransferableStore) -> Iterator[tuple[str, Row]]:
    """The messages of an export behind their places, in JSON as the store will give them."""
    transfer = store.transfer
    places: dict[tuple[str, str], str] = {}
    for place, value in _objects(folder, MESSAGES, most_depth=_MOST_JSON_DEPTH):
        _check_session(place, value, header)
        if not isinstance(value.get("_id"), str | int | float | dict):
            raise ValueError(f"{place}: _id: one is needed that is no list")
        try:
            row: Row = transfer.to_json(transfer.checked(transfer.from_json(value)))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        message_id = row.get("id")
        for name, given in (("_id", transfer.row_id(row)), ("id", message_id if isinstance(message_id, str) else "")):
            if given and places.setdefault((name, given), place) != place:
                raise ValueError(f"{place}: {name}: it is that of {places[name, given]}")
        yield place, row


def turns_in(folder: Folder, header: Header) -> Iterator[tuple[str, Turn]]:
    """The turns of an export behind their places."""
    for place, value in _objects(folder, TURNS):
        turn = _model(place, value, Turn)
        _check_session(place, value, header)
        yield place, turn


def revisions_in(folder: Folder, exported_at: datetime) -> Iterator[tuple[str, Overview]]:
    """The revisions of the overview behind their places. A file that no line lists is revision 1, by an import."""
    text = _text(folder, OVERVIEW)
    is_listed = False
    for place, value in _objects(folder, REVISIONS):
        is_listed = True
        if "content" not in value and text is None:
            raise ValueError(f"{place}: its content is in {OVERVIEW}, which is missing")
        yield place, _model(place, {"content": text, **value}, Overview)
    if text is not None and not is_listed:
        yield OVERVIEW, Overview(revision=1, content=text, updated_at=exported_at, author="import")


def details_in(folder: Folder, exported_at: datetime) -> Iterator[tuple[str, Detail]]:
    """The versions of details behind their places. A file that no line lists is a new note."""
    read, names = set[str](), set[str]()
    for place, value in _objects(folder, DETAILS):
        given = value
        if "content" not in value:
            file = value.get("file")
            if not isinstance(file, str) or "/" in file or file.startswith("."):
                raise ValueError(f"{place}: file: the name of a file in {DETAIL_FOLDER} is needed")
            text = _text(folder, f"{DETAIL_FOLDER}/{file}")
            if text is None:
                raise ValueError(f"{place}: its content is in {DETAIL_FOLDER}/{file}, which is missing")
            read.add(file)
            given = {**value, "content": text, "bytes": len(text.encode())}
        detail = _model(place, given, Detail)
        if len(detail.content.encode()) != detail.bytes:
            raise ValueError(f"{place}: bytes: the content has {len(detail.content.encode())}")
        names.add(detail.name)
        yield place, detail
    for file in folder.names(DETAIL_FOLDER):
        if file not in read:
            yield f"{DETAIL_FOLDER}/{file}", _new_detail(folder, file, names, exported_at)


def compactions_in(folder: Folder) -> Iterator[tuple[str, Compaction]]:
    """The compactions of an export behind their places."""
    for place, value in _objects(folder, COMPACTIONS):
        compaction = _model(place, value, Compaction)
        if len(compaction.rows) != compaction.count:
            raise ValueError(f"{place}: count: there are {len(compaction.rows)} rows")
        yield place, compaction


def state_in(folder: Folder, store: TransferableStore) -> Row | None:
    """The document of the session's state, as the store takes it; None where there is none."""
    content = folder.content(STATE)
    if content is None:
        return None
    value = _object(STATE, content)
    try:
        return store.transfer.checked(store.transfer.from_json(value))
    except ValueError as error:
        raise ValueError(f"{STATE}: {error}") from None


def constraints_in(folder: Folder, target: Target) -> Iterator[tuple[str, Constraint]]:
    """The constraints of an export behind their places, as those of another owner and session."""
    for place, value in _objects(folder, CONSTRAINTS):
        constraint = _model(place, value, Constraint)
        if constraint.scope == "run" or not constraint.holds:
            raise ValueError(f"{place}: one in force is needed, of scope owner or session")
        try:
            yield place, moved(constraint, target)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None


def facts_in(folder: Folder, header: Header, owner_key: str, session_id: str) -> Iterator[tuple[str, Statement]]:
    """The statements of an export behind their places, as those of another owner and session."""
    for place, value in _objects(folder, FACTS):
        said = _model(place, value, Statement)
        for name, text in (("topic", said.topic), ("value", said.value)):
            if not one_line(text) and not (name == "value" and said.retires):
                raise ValueError(f"{place}: {name}: is blank; a text is needed")
        of_session = {"session_id": session_id} if said.session_id == header.session_id else {}
        yield place, said.model_copy(update={"owner_key": owner_key, **of_session})


def detail_files(names: Collection[str]) -> dict[str, str]:
    """By its name the file of each detail in `DETAIL_FOLDER`; no two are the same, also where case does not count."""
    folded = {name: unicodedata.normalize("NFKC", name).casefold() for name in names}
    counts = Counter(folded.values())
    return {name: _detail_file(name, is_alone=counts[folded[name]] == 1) for name in names}


def _check_session(place: str, value: Row, header: Header) -> None:
    for name in ("owner_key", "session_id"):
        if value.get(name) != getattr(header, name):
            raise ValueError(f"{place}: {name}: it is not that of {HEADER}")


def _new_detail(folder: Folder, file: str, names: set[str], exported_at: datetime) -> Detail:
    place = f"{DETAIL_FOLDER}/{file}"
    name = file.removesuffix(SUFFIX)
    if name == file:
        raise ValueError(f"{place}: a detail is a file whose name ends with {SUFFIX}")
    name = read_name(name, place)
    if is_reserved(name) or name in names:
        raise ValueError(f"{place}: no new detail can be called so; another name is needed")
    text = _text(folder, place) or ""
    return Detail(name=name, version=1, bytes=len(text.encode()), updated_at=exported_at, content=text)


def _objects(folder: Folder, name: str, *, most_depth: int = _MOST_DEPTH) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, one a line, each behind its place (`turns.jsonl: line 3`). Blank lines are passed over."""
    for number, line in enumerate(folder.lines(name), 1):
        if line.strip():
            place = f"{name}: line {number}"
            yield place, _object(place, line, most_depth=most_depth)


def _object(place: str, content: bytes, *, most_depth: int = _MOST_DEPTH) -> dict[str, Any]:
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


def _model(place: str, value: dict[str, Any], model: type[_Model]) -> _Model:
    """The model of an object, read strictly: no text and no truth value is a number."""
    try:
        return model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise ValueError(f"{place}: {explain(error)}") from None


def _text(folder: Folder, name: str) -> str | None:
    """The text of a Markdown file, as it is; None where it is missing."""
    content = folder.content(name)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 at byte {error.start}") from None


def _detail_file(name: str, *, is_alone: bool) -> str:
    try:
        if is_alone and read_name(name) == name:
            return name + SUFFIX
    except ValueError:
        # A name that no tool gives, and that may be no name of a file either.
        pass
    return f"~{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:16]}{SUFFIX}"
