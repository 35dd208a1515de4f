"""Compacting a session that has become too long for the window, in the build of a context (contract §7).

Rules of this module:

- A session is compacted before the answer, in a part of the time that there is. Where that does not come about, the
  oldest of its messages are left out of this one context, and the next build tries again.
- Where there are more messages than are ever read for a context, those are compacted in the background.
- The session is the main agent's. A sub-agent, whose model may be a smaller one, is shown less of it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import anyio

from nexus.core.ports import MemorySource
from nexus.core.working_memory import CompactionRequest
from nexus.services.context.blocks import Assembled
from nexus.services.context.gather import Build

# Of the time that is left, what a compaction may take.
_COMPACTING: Final = 0.5
# A session that is heavy with runs in progress would ask with every build. Runs end, but seldom between two steps.
_COOLDOWN_S: Final = 10.0
_MOST_SESSIONS: Final = 1_000
NOT_IN_TIME: Final = "history: the session could not be compacted in time; it is tried again for the next context"


class CompactionCooldown:
    """Sessions in which there was nothing to compact a moment ago."""

    def __init__(self) -> None:
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def begin(self, request: CompactionRequest) -> None:
        """There was nothing: try again in 10 s."""
        self._until[request.session] = anyio.current_time() + _COOLDOWN_S
        if len(self._until) > _MOST_SESSIONS:
            self._until.popitem(last=False)

    def holds(self, request: CompactionRequest) -> bool:
        """Whether the session is not to be tried yet."""
        return anyio.current_time() < self._until.get(request.session, 0.0)


async def compact(
    memory: MemorySource,
    cooldown: CompactionCooldown,
    build: Build,
    assembled: Assembled,
    tools: Sequence[dict[str, Any]],
    *,
    cut: bool,
) -> bool | None:
    """Compact the session if the context is too heavy.

    Args:
        memory: which brings compactions about.
        cooldown: of sessions.
        build: for which.
        assembled: the context as it would be.
        tools: that go with it.
        cut: the session has messages that are not read for a context.

    Returns:
        Whether it was, so that everything is to be read again; None where that was wanted and not done in time.
    """
    wish = _wish(build, assembled, tools, cut=cut)
    if wish is None or cooldown.holds(wish):
        return False
    job = memory.compact_soon(wish, long=cut)
    if cut:
        # It takes long. Should there be nothing to compact, the next steps of the run need not ask again.
        cooldown.begin(wish)
    if cut or job is None:
        return False
    with anyio.move_on_after(max((build.deadline - anyio.current_time()) * _COMPACTING, 0)):
        await job.done.wait()
    if job.made is not None:
        return True
    if job.failed or not job.done.is_set():
        return None
    cooldown.begin(wish)
    return False


def _wish(
    build: Build, assembled: Assembled, tools: Sequence[dict[str, Any]], *, cut: bool
) -> CompactionRequest | None:
    """The compaction that is wanted, if one is."""
    request, budget, weights, window = build.request, build.budget_with(tools), assembled.weights, build.settings.window
    measure, limit = budget.measure, budget.limit
    if weights is None or measure is None or request.agent.kind == "sub":
        return None
    taken = budget.besides(assembled.run_room)
    if not (cut or window.is_heavy(weights, taken, limit)):
        return None
    return CompactionRequest(
        request.owner_key,
        request.session_id,
        keep_tokens=window.keep_tokens(weights, taken, limit, measure, cut=cut),
        summary_tokens=window.summary_tokens(limit, measure),
        run_id=request.run_id,
    )
