"""What a build needs of the store, read at once and under one deadline (CONTRACT §1.4, §4.3)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import anyio
import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Part
from nexus.core.ports import Conversation, Cutoff, DocumentStore, Past, Row, RunOrigin, TurnSource
from nexus.core.turns import Goal
from nexus.core.working_memory import Tail
from nexus.services.context.ahead import Ahead
from nexus.services.context.pinned import is_all_given
from nexus.services.context.request import BuildRequest, read_history_size
from nexus.services.context.session_state import SessionState

_log = structlog.get_logger(__name__)

# The profile may take this part of the time: should it want more of the past, that has to be read after it.
_PROFILE: Final = 0.5
STOPPED_EARLY: Final = "history: reading stopped early"
INCOMPLETE: Final = "history: what was heard last is not written yet"


class StateSource(Protocol):
    """Where the state of a session is kept."""

    async def get(self, owner_key: str, session_id: str) -> SessionState:
        """The state; an empty one where there is none.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...


@dataclass(slots=True)
class GatheredSession:
    """What was read for one build of the agent layout.

    Attributes:
        rows: of the session, newest first.
        cut: the session has older rows.
        state: what is stored of the session's state; an empty one also where it was not needed.
        goal: what is stored of it; None where it was not read.
        complete, degraded, notes: as for `Gathered`.
    """

    rows: Sequence[Row] = ()
    cut: bool = False
    state: SessionState = field(default_factory=SessionState)
    goal: Goal | None = None
    complete: bool = True
    degraded: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Gathered:
    """What was read for one build.

    Attributes:
        profile: the owner's; None when there is none.
        rows: of the owner's history, enough for `history_size` messages.
        complete: nothing is missing from the rows that was heard before and is not written yet.
        degraded: parts that could not be had in time, by name.
        notes: what was passed over, for the manifest.
    """

    profile: Mapping[str, Any] | None
    rows: Sequence[Row] = ()
    history_size: int = 0
    complete: bool = True
    degraded: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def gather(
    request: BuildRequest,
    conversation: Conversation,
    documents: DocumentStore,
    *,
    history_size: int,
    excerpt_chars: int,
    seconds: float,
    ahead: Ahead | None = None,
) -> Gathered:
    """Read what the request needs, as far as it can be had within `seconds`.

    Args:
        request: whose, and for which run.
        conversation: where the history is.
        documents: where the profile is, unless the request brings it.
        history_size: messages for an owner who has no wish of his own.
        excerpt_chars: contents longer than twice this may come without their middle.
        seconds: the time for everything.
        ahead: of a request that was claimed at the ledger.
    """
    gathered = Gathered(request.user_profile)

    async def read_profile() -> None:
        profile = await documents.find_identity(request.owner_key)
        if profile and profile.get("public_key") != request.owner_key:
            raise StoreUnavailableError("the store answered with the profile of somebody else")
        gathered.profile = profile

    async def read_history() -> None:
        past = await _read_past(request, conversation, gathered.history_size, excerpt_chars, ahead)
        gathered.rows, gathered.complete = past.rows, past.complete
        gathered.notes = [STOPPED_EARLY] if past.stopped_early else []
        gathered.notes += [] if past.complete else [INCOMPLETE]

    ends_at = anyio.current_time() + seconds
    first_size, _ = read_history_size(gathered.profile, history_size)
    gathered.history_size = first_size
    if request.user_profile is None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(within, ends_at - seconds * _PROFILE, "profile", read_profile, gathered.degraded)
            tasks.start_soon(within, ends_at, "history", read_history, gathered.degraded)
    else:
        await within(ends_at, "history", read_history, gathered.degraded)
    gathered.history_size, size_notes = read_history_size(gathered.profile, history_size)
    if gathered.history_size > first_size and "history" not in gathered.degraded:
        # The profile, which was read meanwhile, wants more of the past than was asked for.
        await within(ends_at, "history", read_history, gathered.degraded)
    gathered.notes = [*request.notes, *size_notes, *gathered.notes]
    return gathered


def gathered_besides(request: BuildRequest, history_size: int) -> Gathered:
    """What `gather` gives for a request that brings its profile, but for the past."""
    size, notes = read_history_size(request.user_profile, history_size)
    return Gathered(request.user_profile, history_size=size, notes=[*request.notes, *notes])


async def _read_past(
    request: BuildRequest, conversation: Conversation, messages: int, excerpt_chars: int, ahead: Ahead | None
) -> Past:
    if request.continuation:
        # What it began with is not kept any more. Up to where that went, the store alone can tell.
        caught_up = not (ahead and ahead.standing) or await conversation.write_journal(ahead.standing.rows or ())
        past = await conversation.get_past(
            request.owner_key, messages=messages, excerpt_chars=excerpt_chars, asked=request.human, continued=True
        )
        return past if caught_up else replace(past, complete=False)
    if ahead and ahead.past and (ahead.history_size, ahead.excerpt_chars) == (messages, excerpt_chars):
        reading = ahead.past
    else:
        reading = conversation.past(
            request.owner_key, messages=messages, excerpt_chars=excerpt_chars, asked=request.human
        )
    return await reading.get(ahead.standing if ahead else None)


async def gather_session(
    request: BuildRequest,
    conversation: Conversation,
    states: StateSource,
    turns: TurnSource | None,
    *,
    messages: int,
    until: Cutoff | None,
    tail: Tail,
    deadline: float,
) -> GatheredSession:
    """Read what the agent layout needs, as far as it can be had until the deadline.

    Args:
        request: whose, which session, and for which run.
        conversation: where the history is.
        states: where the state of the session is, unless the request brings all of it.
        turns: where the goal is; None when it is not needed.
        messages: rows of the session at most.
        until: where the history ends for this run; None when that is not known.
        tail: which rows are under no compaction.
        deadline: for everything, by `anyio.current_time()`.
    """
    gathered = GatheredSession(notes=[*request.notes])

    async def read_history() -> None:
        past = await conversation.get_session(
            request.owner_key,
            RunOrigin(request.session_id, request.agent.sub_agent),
            messages=messages,
            asked=request.human,
            until=until,
            tail=tail,
            continued=request.continuation,
        )
        gathered.rows, gathered.cut, gathered.complete = past.rows, past.stopped_early, past.complete
        gathered.notes += [] if past.complete else [INCOMPLETE]

    async def read_state() -> None:
        gathered.state = await states.get(request.owner_key, request.session_id)

    async with anyio.create_task_group() as tasks:
        if not is_all_given(request.agent, request.state):
            tasks.start_soon(within, deadline, Part.STATE, read_state, gathered.degraded)
        if turns:
            tasks.start_soon(_gather_goal, request, turns, deadline, gathered)
        tasks.start_soon(within, deadline, Part.HISTORY, read_history, gathered.degraded)
    return gathered


async def gather_goal(request: BuildRequest, turns: TurnSource, *, deadline: float, degraded: list[str]) -> Goal | None:
    """The goal that is stored for the run; None where it cannot be had until the deadline, and `degraded` says so."""
    found: list[Goal] = []

    async def read_goal() -> None:
        found.append(await turns.goal(request.owner_key, request.session_id, request.run_id))

    await within(deadline, Part.TURNS, read_goal, degraded)
    return next(iter(found), None)


async def _gather_goal(request: BuildRequest, turns: TurnSource, deadline: float, gathered: GatheredSession) -> None:
    gathered.goal = await gather_goal(request, turns, deadline=deadline, degraded=gathered.degraded)


async def within(deadline: float, part: str, read: Callable[[], Awaitable[None]], degraded: list[str]) -> bool:
    """Read a part until the deadline; whether that was done. A part that cannot be had is named in `degraded`."""
    try:
        with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
            await read()
    except (StoreUnavailableError, StoreRejectedError, TimeoutError) as error:
        _log.warning("degraded", part=part, reason=str(error) or "not in time")
        degraded.append(part)
        return False
    return True
