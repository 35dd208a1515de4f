"""What a build needs of the store, read at once and under one deadline (CONTRACT §1.4, §4.3)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import structlog

from nexus.core.errors import StoreRejectedError, StoreUnavailableError
from nexus.core.ports import Conversation, DocumentStore, Row
from nexus.services.context.request import BuildRequest, read_history_size

_log = structlog.get_logger(__name__)

# The profile may take this part of the time: should it want more of the past, that has to be read after it.
_PROFILE: Final = 0.5


@dataclass(slots=True)
class Gathered:
    """What was read for one build.

    Attributes:
        profile: the owner's; None when there is none.
        rows: of the owner's history, enough for `history_size` messages.
        degraded: parts that could not be had in time, by name.
        notes: what was passed over, for the manifest.
    """

    profile: Mapping[str, Any] | None
    rows: Sequence[Row] = ()
    history_size: int = 0
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
) -> Gathered:
    """Read what the request needs, as far as it can be had within `seconds`.

    Args:
        request: whose, and for which run.
        conversation: where the history is.
        documents: where the profile is, unless the request brings it.
        history_size: messages for an owner who has no wish of his own.
        excerpt_chars: contents longer than twice this may come without their middle.
        seconds: the time for everything.
    """
    gathered = Gathered(request.user_profile)

    async def read_profile() -> None:
        profile = await documents.find_identity(request.owner_key)
        if profile and profile.get("public_key") != request.owner_key:
            raise StoreUnavailableError("the store answered with the profile of somebody else")
        gathered.profile = profile

    async def read_history() -> None:
        past = await conversation.get_past(
            request.owner_key,
            messages=gathered.history_size,
            excerpt_chars=excerpt_chars,
            current_run_id=request.run_id,
            continued=request.human if request.continuation else None,
        )
        gathered.rows = past.rows
        gathered.notes = ["history: reading stopped early"] if past.stopped_early else []

    ends_at = anyio.current_time() + seconds
    first_size, _ = read_history_size(gathered.profile, history_size)
    gathered.history_size = first_size
    async with anyio.create_task_group() as tasks:
        if request.user_profile is None:
            tasks.start_soon(_within, ends_at - seconds * _PROFILE, "profile", read_profile, gathered.degraded)
        tasks.start_soon(_within, ends_at, "history", read_history, gathered.degraded)
    gathered.history_size, size_notes = read_history_size(gathered.profile, history_size)
    if gathered.history_size > first_size and "history" not in gathered.degraded:
        # The profile, which was read meanwhile, wants more of the past than was asked for.
        await _within(ends_at, "history", read_history, gathered.degraded)
    # Which part failed first is chance; the answer must not depend on it.
    gathered.degraded.sort()
    gathered.notes = [*request.notes, *size_notes, *gathered.notes]
    return gathered


async def _within(deadline: float, part: str, read: Callable[[], Awaitable[None]], degraded: list[str]) -> None:
    """Read a part until the deadline; a part that cannot be had is named in `degraded`."""
    try:
        with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
            await read()
    except (StoreUnavailableError, StoreRejectedError, TimeoutError) as error:
        _log.warning("degraded", part=part, reason=str(error) or "not in time")
        degraded.append(part)
