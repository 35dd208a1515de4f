"""The working memory of a session (contract §7): overview, details, compactions, and the tail of its history.

These are the shapes in which it is stored and exported. Reading a malformed one raises pydantic's `ValidationError`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Self, get_args

import anyio
from pydantic import BaseModel, ConfigDict, Field

from nexus.core.models import SECOND, Moment, is_object_id
from nexus.core.turns import Source, Texts

Target = Literal["conversation", "tools", "all"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)
Strategy = Literal["summarize", "archive"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
# A call by the model, the 75 % rule, or an operator.
Trigger = Literal["tool", "automatic", "operator"]
Author = Literal["model", "operator", "import"]

# The `work` of a compaction whose summary a model is to write.
REFINE: Final = "refine"

_FIRST_SECOND: Final = "00000000"


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Overview(_Stored):
    """One revision of the overview, in Markdown.

    Attributes:
        revision: from 1 in each session. Before the first, the template is shown as revision 0.
        turn_number: the turn in which it was written; 0 where it is not known.
        call_id: of the message that asked for it; `""` for none.
    """

    revision: int = Field(ge=1)
    content: str
    updated_at: Moment
    author: Author = "model"
    run_id: str = ""
    turn_number: int = Field(default=0, ge=0)
    call_id: str = ""


class Detail(_Stored):
    """One version of a named note, or of an archive: compacted messages word for word, which has one version only.

    Attributes:
        version: from 1 for each name.
        bytes: of the content in UTF-8.
        content: `""` where only the header was read.
        compaction: of an archive, the number of its compaction.
        call_id: as for `Overview`.
    """

    name: str
    version: int = Field(ge=1)
    kind: Literal["note", "archive"] = "note"
    bytes: int = Field(ge=0)
    updated_at: Moment
    content: str = ""
    compaction: int | None = None
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Tail:
    """The rows of a session that are under no compaction: those stored from a second on, except some.

    Attributes:
        since: the second, as the first eight digits of an `_id`.
        without: `_id`s of rows stored later that are under a compaction.
    """

    since: str = _FIRST_SECOND
    without: frozenset[str] = field(default_factory=frozenset)

    @property
    def is_all(self) -> bool:
        """Whether no row is under a compaction."""
        return self.since == _FIRST_SECOND and not self.without

    def includes(self, row_id: str) -> bool:
        """Whether the row is in the tail. One whose `_id` is no ObjectId is covered by the first compaction."""
        if self.is_all:
            return True
        return is_object_id(row_id) and row_id[SECOND] >= self.since and row_id not in self.without

    def after(self, covered: Iterable[str], since: str) -> Self:
        """The tail that is left when these rows, and all that were stored before `since`, are covered as well."""
        later = {row_id for row_id in {*self.without, *covered} if is_object_id(row_id) and row_id[SECOND] >= since}
        return type(self)(since, frozenset(later))


WHOLE: Final = Tail()


class Compaction(_Stored):
    """A record of which rows are represented by which summary. No row is under two.

    Attributes:
        number: from 1 in each session; each summary carries that of the compaction before.
        rows: `_id`s of the rows, in the order of the conversation; `()` where only the header was read.
        removed: those of the rows that retention removed.
        count: how many rows there are under it, removed ones too.
        total: rows under this compaction and all before it.
        is_step: more compactions are to follow for the same request.
        since, without: the `Tail` that is left.
        details: names of the archives that hold the rows word for word.
        details_removed: those of them that retention removed.
        keep_recent: messages that were to stay; None where tokens decided.
        summary_tokens: the most that its summary may have, by rules or by a model.
        disowned: names of archives, of this number and all before, whose compaction was never stored.
        tokens_before, tokens_after: of the compacted rows, and of the summary now; 0 where not counted.
        tokens_carried: of the summary before this one, which is part of `tokens_after`.
        call_id: as for `Overview`.
    """

    number: int = Field(ge=1)
    created_at: Moment
    target: Target = "all"
    strategy: Strategy = "summarize"
    trigger: Trigger = "automatic"
    summary: str
    source: Source = "fallback"
    rows: Texts = ()
    removed: Texts = ()
    count: int = Field(ge=0)
    total: int = Field(ge=0)
    is_step: bool = False
    since: str = Field(pattern=r"^[0-9a-f]{8}$")
    without: Texts = ()
    details: Texts = ()
    details_removed: Texts = ()
    disowned: Texts = ()
    first_at: Moment | None = None
    last_at: Moment | None = None
    keep_recent: int | None = None
    summary_tokens: int | None = None
    run_id: str = ""
    call_id: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    tokens_carried: int = 0

    @property
    def tail(self) -> Tail:
        """The rows that are left."""
        return Tail(self.since, frozenset(self.without))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The working memory of a session, as far as a context shows it.

    Attributes:
        overview: the newest revision; None while there is only the template.
        details: their newest versions, by name, without contents; of many, those written last.
        detail_count: how many there are, whether they are among `details` or not.
        compaction: the newest one, without `rows`; None where nothing is compacted.
    """

    overview: Overview | None = None
    details: tuple[Detail, ...] = ()
    compaction: Compaction | None = None
    detail_count: int = 0

    @property
    def tail(self) -> Tail:
        """The rows of the session that are under no compaction."""
        return self.compaction.tail if self.compaction else WHOLE


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """A compaction that is asked for.

    Attributes:
        keep_recent: the newest messages that stay; None where `keep_tokens` says how much stays.
        keep_tokens: as many of the newest messages stay as take no more tokens than this.
        summary_tokens: the most that the summary may have, where that is less than the settings allow.
        run_id: the run that asks, of which nothing is compacted; `""` for none.
        call_id: of the message that asks; one message is served once. `""` for none.
    """

    owner_key: str
    session_id: str
    target: Target = "all"
    strategy: Strategy = "summarize"
    trigger: Trigger = "automatic"
    keep_recent: int | None = None
    keep_tokens: int | None = None
    summary_tokens: int | None = None
    run_id: str = ""
    call_id: str = ""

    @property
    def session(self) -> tuple[str, str]:
        """Owner and session."""
        return self.owner_key, self.session_id


@dataclass(slots=True)
class CompactionJob:
    """A compaction under way."""

    done: anyio.Event = field(default_factory=anyio.Event)  # set when it has ended, whatever came of it
    made: Compaction | None = None  # None also where there was nothing to compact
    failed: bool = False
