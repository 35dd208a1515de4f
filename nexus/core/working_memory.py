"""The working memory of a session (CONTRACT §7): overview, details, compactions, and where a history goes on.

What is stored and exported has these shapes. Reading one that is malformed raises pydantic's `ValidationError`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Self, get_args

import anyio
from pydantic import BaseModel, ConfigDict, Field

from nexus.core.models import Moment
from nexus.core.turns import Source, Texts

Target = Literal["conversation", "tools", "all"]
TARGETS: Final[tuple[Target, ...]] = get_args(Target)
Strategy = Literal["summarize", "archive"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
# Who brought it about: a call of the model's, the service by itself, or an operator.
Trigger = Literal["tool", "automatic", "operator"]
Author = Literal["model", "operator", "import"]

# What may be due on a compaction: to have a model write its summary.
REFINE: Final = "refine"

OBJECT_ID: Final = re.compile(r"[0-9a-f]{24}")
# Of an `_id` that MongoDB made, the second in which it was.
SECOND: Final = slice(0, 8)
_FIRST_SECOND: Final = "00000000"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Overview(_Part):
    """One revision of what the model keeps in view, as Markdown.

    Attributes:
        revision: from 1 in each session. Where there is none yet, the template is shown, as revision 0.
        turn_number: of the turn in which it was written; 0 where nobody knows.
        call_id: of the message that asked for it; `""` for none.
    """

    revision: int = Field(ge=1)
    content: str
    updated_at: Moment
    author: Author = "model"
    run_id: str = ""
    turn_number: int = Field(default=0, ge=0)
    call_id: str = ""


class Detail(_Part):
    """One version of a named note, or messages as they were said, which no later version replaces.

    Attributes:
        version: from 1 for each name.
        bytes: of the content in UTF-8.
        content: `""` where only the header was read.
        compaction: of an archive, the number of the compaction that it belongs to.
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
    """Which rows of a session are under no compaction yet: those stored from a second on, without these.

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
        """Whether the row with that `_id` is under none. One whose `_id` says no second is, from the first one on."""
        if self.is_all:
            return True
        return is_object_id(row_id) and row_id[SECOND] >= self.since and row_id not in self.without

    def after(self, covered: Iterable[str], since: str) -> Self:
        """What is left when these are covered too, where every row stored before `since` is."""
        later = {row_id for row_id in {*self.without, *covered} if is_object_id(row_id) and row_id[SECOND] >= since}
        return type(self)(since, frozenset(later))


WHOLE: Final = Tail()


class Compaction(_Part):
    """A record of which rows are represented by which summary. No row is under two.

    Attributes:
        number: from 1 in each session; the summary of each carries that of the one before.
        rows: `_id`s of the rows, in the order in which they were said; `()` where only the header was read.
        count: how many they are.
        total: rows under this one and all before it.
        is_step: others are to follow that do the rest of what was asked for.
        since, without: of the `Tail` that is left.
        details: names of those that hold the rows word for word.
        keep_recent: messages that were to be kept; None where tokens decided.
        summary_tokens: that its summary may have, whoever writes it.
        disowned: names of archives, among those of this number and all before it, of compactions that never came about.
        tokens_before, tokens_after: of what was compacted, and of the summary now; 0 where nobody counted.
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
    count: int = Field(ge=0)
    total: int = Field(ge=0)
    is_step: bool = False
    since: str = Field(pattern=r"^[0-9a-f]{8}$")
    without: Texts = ()
    details: Texts = ()
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
        """What is left of the session."""
        return Tail(self.since, frozenset(self.without))


def is_object_id(row_id: str) -> bool:
    """Whether the text is an `_id` that MongoDB made, which says when its row was stored."""
    return OBJECT_ID.fullmatch(row_id) is not None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is kept of a session's working memory.

    Attributes:
        overview: the newest revision; None while there is only the template.
        details: their newest versions, by name, without contents; of many, those written last.
        details_in_all: how many there are; None where `details` are all.
        compaction: the newest one, without `rows`; None where nothing is compacted.
    """

    overview: Overview | None = None
    details: tuple[Detail, ...] = ()
    compaction: Compaction | None = None
    details_in_all: int | None = None

    @property
    def detail_count(self) -> int:
        """How many details there are, whether they are among `details` or not."""
        return len(self.details) if self.details_in_all is None else self.details_in_all

    @property
    def tail(self) -> Tail:
        """Which rows of the session are under no compaction."""
        return self.compaction.tail if self.compaction else WHOLE


@dataclass(frozen=True, slots=True)
class Wish:
    """A compaction that somebody wants.

    Attributes:
        keep_recent: messages that stay, the newest; None where `keep_tokens` says how much stays.
        keep_tokens: of the newest messages, as many as are no more tokens than this.
        summary_tokens: that the summary may have, where that is less than what the settings allow.
        run_id: the run that asks, of which nothing is compacted; `""` for none.
        call_id: of the message that asks: what one message asks for is done once. `""` for none.
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


@dataclass(slots=True)
class CompactionJob:
    """A compaction that is being brought about.

    Attributes:
        done: set when it has come to its end, whatever that is.
        made: the compaction; None while there is none, and where there was nothing to compact.
        failed: it could not be brought about.
    """

    done: anyio.Event = field(default_factory=anyio.Event)
    made: Compaction | None = None
    failed: bool = False
