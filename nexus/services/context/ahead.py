"""What is done for a build while its request is being claimed, and what is left to do when it is answered.

A claim tells along the way how things are with the owner, and the step that publishes an answer takes the run's input
and what later builds of the run begin with (CONTRACT §1.5, §4.6). So a first build needs no round trip of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nexus.core.models import Message, Run
from nexus.core.ports import Ending, JournalRow, Look, Moved, OwnersPast, Standing
from nexus.services.context.request import BuildRequest


class Glance(NamedTuple):
    """What is seen of a request at first: enough to begin reading what it will need.

    Attributes:
        run: that it is about.
        since: when this was begun, on the monotonic clock.
        past: of the owner; None where the layout shows another.
        history_size, excerpt_chars: for how many messages that is, and how short contents may be.
    """

    run: Run
    since: float
    past: OwnersPast | None = None
    history_size: int = 0
    excerpt_chars: int = 0


@dataclass(slots=True)
class Ahead:
    """One request on its way through claim, build and answer.

    Attributes:
        message: the envelope.
        request: what it asks.
        kept_key: under which later builds of the run find what they begin with.
        past: of the owner; None where the layout shows another.
        allowed_ms: how long the requester waits.
        since: when this was begun, on the monotonic clock.
        history_size, excerpt_chars: for how many messages that is, and how short contents may be.
        may_be_at_once: whether the answer can be made without a claim, if the past is there.
        standing: how things were with the owner when the request was claimed; None until then, and where nobody can
            tell.
        row: the run's input, where the answer takes it along.
        kept, keep_ms: what the answer takes along for later builds.
        timings_ms: of what was built at once, by stage.
        afterwards: what a build has left to be done when its answer is published; it is told of the move of the owner's
            version because of `row`, and of none where that did not come about.
    """

    message: Message
    request: BuildRequest
    kept_key: str
    allowed_ms: int
    since: float
    past: OwnersPast | None = None
    history_size: int = 0
    excerpt_chars: int = 0
    may_be_at_once: bool = False
    standing: Standing | None = None
    row: JournalRow | None = None
    kept: bytes = b""
    keep_ms: int = 0
    timings_ms: dict[str, float] = field(default_factory=dict)
    afterwards: Callable[[Moved | None], None] | None = None

    @property
    def look(self) -> Look:
        """What is asked along with the claim."""
        return Look(self.request.owner_key, self.kept_key, self.past.version if self.past else "")

    @property
    def ending(self) -> Ending:
        """What is to happen in the step that publishes the answer."""
        return Ending(self.row, self.kept_key, self.kept, self.keep_ms)

    def claimed(self, standing: Standing | None) -> None:
        """The request is this replica's."""
        self.standing = standing
        if self.past:
            self.past.claimed()

    def begun_by_another(self, kept: bytes) -> None:
        """Another build of the run was answered first, and this is what later ones begin with."""
        self.standing = replace(self.standing or Standing(""), kept=kept)
        self.kept = b""

    def begin_again(self) -> None:
        """Nothing came of what was built, and nobody is to know of it."""
        self.row, self.kept, self.afterwards = None, b"", None

    def answered(self, moved: Moved | None) -> None:
        """The answer was published, with the move of the owner's version; None if it was not."""
        if self.past:
            self.past.shown(moved)
        afterwards, self.afterwards = self.afterwards, None
        if afterwards:
            afterwards(moved if self.row and moved and moved.after else None)
