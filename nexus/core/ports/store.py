"""The document store (contract §2)."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.models import Row
from nexus.core.ports.erasure import ErasureStore
from nexus.core.ports.memory import MemoryStore, TurnStore
from nexus.core.ports.person import ConstraintStore, FactStore
from nexus.core.ports.recall import RecallIndex
from nexus.core.ports.records import RecordStore
from nexus.core.ports.replicas import ReplicaStore
from nexus.core.ports.retention import RetentionStore
from nexus.core.working_memory import Tail

# In a search, rows whose contents or arguments are compared one by one because the server has no pattern for them.
STRUCTURED_SEARCHED: Final = 2_000
# Rows of a session are counted so far.
MOST_COUNTED: Final = 1_000
# The highest number that a store can hold.
LARGEST: Final = 2**63 - 1
# A content of more characters is read as its beginning and its end, each of half as many, with the mark between them.
LONGEST_CONTENT: Final = 1 << 16
LEFT_OUT: Final = "\n(left out here: {} characters)\n"
# In the place of a content that is no text, and of the arguments of a call, where it would take long to read them.
VALUE_LEFT_OUT: Final = "(left out: a value of {} bytes)"
ARGUMENTS_LEFT_OUT: Final = '{{"left_out":"arguments of {} bytes"}}'
# Of a message with large metadata, how many calls are read; the number of the others is in its metadata.
MOST_CALLS: Final = 128
CALLS_LEFT_OUT: Final = "calls_left_out"
# Of a row, and names of tools whose calls are left out: each text in it, with the name of the called tool or `""`.
TextsOf = Callable[[Row, Collection[str]], Iterable[tuple[str, str]]]

# Called when what was accepted is stored (None), or with the reason why it never will be.
Settled = Callable[[str | None], None]
# Called with a document that the store refused, and the reason.
Refused = Callable[[Row, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Where a run belongs: to a session, and to the main agent or a sub-agent by its id, which may be `""`."""

    session_id: str
    sub_agent: str | None = None


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session of an owner: how many rows it has, and the times of the first and the last, None where unreadable.

    `session_id` is None for rows of other writers whose session is no text. Rows that name none are of `default`. Of
    more than `MOST_COUNTED` rows `messages` says `MOST_COUNTED` and one more.
    """

    session_id: str | None
    messages: int
    first: datetime | None
    last: datetime | None


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is there of a store.

    Attributes:
        database: its name.
        collections: those it has; a database without any does not exist yet.
        others: the databases beside it that this user may see.
        missing: the indexes that are not there, as `collection.index`.
    """

    database: str
    collections: tuple[str, ...]
    others: tuple[str, ...]
    missing: tuple[str, ...]


class MessageStore(Protocol):
    """Recorded messages (contract §2). Rows are plain dictionaries.

    - `_id` is a text that grows with the time of storing, to the second where several replicas write.
    - Every read names an owner and returns rows of that owner only.
    - Rows come in bounded size, a few hundred KiB at most: of a content of more than `LONGEST_CONTENT` characters the
      middle is left out, and so are larger values of other kinds, and calls, with a mark in their place.
    - Of a large result, which has `metadata.condensed`, reads of sessions and tails give that text in the place of the
      content, and of the metadata what is needed besides, with `handle`.
    - What is said to be stored, now or before, outlives the loss of a minority of the servers. So does what is read of
      other stores; a row that is read may not.
    - Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for a row it cannot keep.
    """

    async def insert_message(self, row: Row) -> bool:
        """Record a row. False, and no change, when its owner has a row with that `id`.

        A row may bring its `_id`, made by `new_row_id`; else the store gives it one.
        """

    async def insert_messages(self, rows: Sequence[Row]) -> list[bool | StoreRejectedError | StoreUnavailableError]:
        """Record rows in their order; returns of each what `insert_message` returns or raises.

        StoreUnavailableError where it is not known which of them were recorded.
        """

    async def newest_messages(
        self, owner_key: str, *, limit: int, skip: int = 0, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows after the newest `skip`, newest first, of any role but tools, system and commands.

        What is internal to a sub-agent (`metadata.sub_agent_internal: true`) is left out.

        With `excerpt_chars`, contents longer than twice this come as their first and last so many characters, without a
        mark between.
        """

    async def all_messages(self, owner_key: str, *, limit: int) -> list[Row]:
        """Up to `limit` rows of every role, newest first."""

    async def messages_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of these runs as `newest_messages` gives them, newest first."""

    async def results_of_runs(
        self, owner_key: str, run_ids: Sequence[str], *, limit: int, excerpt_chars: int
    ) -> list[Row]:
        """Up to `limit` rows of tools in these runs, newest first, also those internal to a sub-agent.

        `excerpt_chars` as for `newest_messages`.
        """

    async def find_message(self, owner_key: str, message_id: str) -> Row | None:
        """The row with that `id`, without its content."""

    async def recorded_ids(self, owner_key: str, message_ids: Sequence[str]) -> set[str]:
        """Those of these `id`s that the owner has rows of."""

    async def update_message(
        self, owner_key: str, row_id: str, changes: Mapping[str, Any], *, seen: Mapping[str, Any]
    ) -> bool:
        """Change fields of the row with this `_id` where those in `seen` still have these values; whether they had."""

    async def session_messages(
        self, owner_key: str, session_id: str, *, limit: int, skip: int = 0, sub_agent: str | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session after the newest `skip`, newest first, of any role.

        With `sub_agent`, also the rows that are internal to the sub-agent of this id or to one without an id; None for
        nothing internal.
        """

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
        """Up to `limit` rows of a session that the tail includes, in the order in which they were stored.

        It takes as long as what is read, whatever lies before the tail. With `sub_agent`, also the rows that are
        internal to this sub-agent, wherever they are; `""` for one without an id, None for nothing internal.
        """

    async def messages_of_ids(self, owner_key: str, row_ids: Sequence[str]) -> list[Row]:
        """The rows with these `_id`s, as texts, in any order. Those that are not there are left out."""

    async def search_messages(
        self,
        owner_key: str,
        session_id: str,
        text: str,
        *,
        limit: int,
        texts_of: TextsOf,
        without_tools: Collection[str] = (),
        without_run: str | None = None,
    ) -> list[Row]:
        """Up to `limit` rows of a session that have `text` in them, whatever the case, newest first.

        Searched are contents and, of each call, its name and its arguments as they are written. `text` is taken
        literally; one of more than `LONGEST_QUERY` characters is rejected. Rows internal to a sub-agent and those of
        `without_run` are left out, and so are results and calls of `without_tools`. Contents that are objects or lists,
        and arguments that are or that have an escape in them, are compared as the texts that `texts_of` gives of the
        row, in the newest `STRUCTURED_SEARCHED` rows with such. Contents that are texts come whole.
        """

    async def run_messages(
        self, owner_key: str, run_id: str, *, limit: int, before: Row | None = None, excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a run, newest first, of any role; only those that come behind the row `before`.

        Of that row `_id` and `timestamp` count; it may be gone. `excerpt_chars` as for `newest_messages`.
        """

    async def condensed_results(self, owner_key: str, handles: Sequence[str]) -> dict[str, str]:
        """By handle, what contexts show of these large results (`metadata.condensed`); only those there are."""

    async def find_result(self, owner_key: str, handle: str, *, sub_agent: str | None = None) -> Row | None:
        """The row of the large result with this `metadata.handle`; its content, where that is a text, whole.

        `sub_agent` as for `session_messages`. None where there is none that this agent sees.
        """

    async def sessions(
        self, owner_key: str, *, limit: int, before: SessionSummary | None = None
    ) -> list[SessionSummary]:
        """Up to `limit` sessions that have rows, the one with the latest row first; only those behind `before`.

        It takes as long as there are sessions, however many rows they have. Of a session some rows of which have a text
        as their time, and others none, the latter say when it was.
        """

    async def stored_messages(
        self, owner_key: str, session_id: str, *, limit: int, before: str = "", excerpt_chars: int | None = None
    ) -> list[Row]:
        """Up to `limit` rows of a session, the last stored first; only those stored before the one with this `_id`.

        They are of any role, and those internal to a sub-agent are among them. `excerpt_chars` as for
        `newest_messages`.
        """

    async def whole_message(self, owner_key: str, row_id: str) -> Row | None:
        """The row with this `_id` with all that it holds, however much that is."""

    async def owners(self, *, after: str = "", prefix: str = "", limit: int) -> list[str]:
        """Up to `limit` owners that have rows, in the order of their keys.

        Only those behind `after` whose keys begin with `prefix`.
        """

    async def first_input(self, owner_key: str, session_id: str) -> Row | None:
        """The oldest row of role HUMAN in a session that is not internal to a sub-agent."""

    async def run_input(self, owner_key: str, run_id: str) -> Row | None:
        """The oldest row of role HUMAN of a run that is not internal to a sub-agent."""

    async def find_origin(self, owner_key: str, run_id: str) -> RunOrigin | None:
        """Where the run's first human input was recorded; None when it was not, or not in a session."""


class DocumentStore(Protocol):
    """Everything else that is kept: profiles, settings and tools. Errors as for `MessageStore`."""

    async def prepare(self) -> None:
        """Make the indexes that the promises rest on. May be repeated and run by many at once."""

    async def inspect(self) -> Inventory:
        """What is there. Reads alone, and makes nothing."""

    async def ping(self) -> None:
        """Return when the store answers; StoreRejectedError where a newer release has written to it."""

    async def find_identity(self, public_key: str) -> Row | None:
        """The identity with that public key."""

    async def find_configuration(self, environment: str) -> Row | None:
        """The `configurations` document of the environment."""

    async def put_tool(self, name: str, definition: Mapping[str, Any] | None, said_at: datetime) -> bool:
        """Keep the definition, or for None that there is none, unless the one that is kept is later than `said_at`.

        So the same messages in any order, however often, lead to the same tools. Returns whether it was kept; times are
        compared to the millisecond.
        """

    async def list_tools(self) -> list[Row]:
        """The definitions that are kept, by name."""


class SessionStateStore(Protocol):
    """The states of sessions (contract §5), one document each. Errors as for `MessageStore`."""

    async def find_session_state(self, owner_key: str, session_id: str) -> Row | None:
        """The session's `document` and its `revision`, with `owner_key` and `session_id`; None when there is none."""

    async def put_session_state(
        self, owner_key: str, session_id: str, document: Mapping[str, Any], revision: int
    ) -> bool:
        """Keep the document in place of the one with that `revision`; 0 where there is none yet. It gets the next one.

        False, and no change, when another was kept in between.
        """


class Store(MessageStore, DocumentStore, SessionStateStore, Protocol):
    """A whole document store, as an adapter is one."""

    @property
    def turns(self) -> TurnStore:
        """Where turns are kept."""

    @property
    def memory(self) -> MemoryStore:
        """Where working memory is kept."""

    @property
    def retention(self) -> RetentionStore:
        """What retention reads and removes."""

    @property
    def recall(self) -> RecallIndex:
        """The index of long-term memory."""

    @property
    def facts(self) -> FactStore:
        """Where statements about persons are kept."""

    @property
    def constraints(self) -> ConstraintStore:
        """Where constraints are kept."""

    @property
    def records(self) -> RecordStore:
        """Where records of builds are kept."""

    @property
    def replicas(self) -> ReplicaStore:
        """What replicas tell each other."""

    @property
    def erasure(self) -> ErasureStore:
        """Where tombstones are kept."""


class TransferStore(Protocol):
    """Rows of any writer, with all that they hold, as JSON.

    What JSON has no word for is an object with a key like `$date`; `from_json(to_json(x))` is `x` for all that is
    stored. Rows in JSON have their `_id`.

    Errors: `StoreUnavailableError`, within the store's time limit; `StoreRejectedError` for what it cannot keep.
    """

    def to_json(self, value: Any) -> Any:
        """A stored value as JSON."""

    def from_json(self, value: Any) -> Any:
        """The value that `to_json` gave this JSON for; ValueError, which says what is wrong, for other JSON."""

    def checked(self, document: Row) -> Row:
        """The document as it is read again once it is stored; ValueError, which says what is wrong, if it cannot be."""

    def row_id(self, row: Row) -> str:
        """The `_id` of a row in JSON as the text by which compactions name it."""

    async def count_rows(self, owner_key: str, session_id: str) -> int:
        """How many rows a session has."""

    def rows(self, owner_key: str, session_id: str) -> AsyncGenerator[list[Row]]:
        """All rows of a session in JSON, in the order of their `_id`s, in pages that are read as they are asked for."""

    async def find_elsewhere(self, owner_key: str, session_id: str, rows: Sequence[Row]) -> Row | None:
        """A row of another session whose `_id`, or whose owner and `id`, one of these rows in JSON has; None for none.

        It has `_id`, `id`, `owner_key` and `session_id` alone.
        """

    async def insert_rows(self, rows: Sequence[Row]) -> int:
        """Store rows in JSON, in their order, up to the first whose `_id` or `id` is taken. Returns how many."""


class TransferableStore(Store, Protocol):
    """A document store from which sessions can be exported, and into which they can be imported."""

    @property
    def transfer(self) -> TransferStore:
        """Recorded messages as exports hold them."""


@dataclass(frozen=True, slots=True)
class Past:
    """Rows of one owner, newest first, enough for the messages that were asked for."""

    rows: list[Row]
    stopped_early: bool = False  # reading ended at a limit although more could have been needed
    complete: bool = True  # every row of the owner that this process accepted before was there to be read


class Cutoff(Protocol):
    """The row up to which a history goes."""

    def includes(self, row: Row) -> bool:
        """Whether the row is part of the history."""
