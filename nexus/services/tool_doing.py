"""Doing what a call of a memory tool asks for (CONTRACT §7). Whatever goes wrong, there is an outcome that says so.

A store that is away is waited for, but not for long: a model that is told so can go on without, and its user waits.
"""

from dataclasses import dataclass
from typing import Final

import structlog

from nexus.core.errors import StoreUnavailableError
from nexus.core.metrics import DeadLetterCause, Event
from nexus.core.tasks import Pauses
from nexus.services.burying import Burying
from nexus.services.memory.documents import Caller
from nexus.services.origins import RunOrigins
from nexus.services.tool_asks import ToolAsk
from nexus.services.working_memory import Outcome, WorkingMemory

_log = structlog.get_logger(__name__)

# As for build requests: one that was taken up more often kills who does it.
_MOST_ATTEMPTS: Final = 5
_STORE_AWAY_S: Final = 10.0
# Of what is repeated of a run id.
_ID_CHARS: Final = 64

_FAILED: Final = Outcome("The call failed inside the memory service, which has kept a note of it.", done=False)
_AWAY: Final = Outcome(
    "The memory cannot be reached now, so nothing is known to be changed. Try again later.", done=False
)


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a call.

    Attributes:
        session_id: where it is recorded; None where that is told by its run.
        retryable: the same call may succeed later.
    """

    event: Event
    outcome: Outcome
    session_id: str | None
    retryable: bool = False


class Doing:
    """Does what is claimed.

    Args:
        memory: where it is done.
        origins: knows to which session and agent a run belongs.
        burying: keeps a note of faults.
    """

    def __init__(self, memory: WorkingMemory, origins: RunOrigins, burying: Burying) -> None:
        self._memory = memory
        self._origins = origins
        self._burying = burying

    async def do(self, ask: ToolAsk, attempts: int) -> Ended:
        """Do it, for as long as it is worth waiting; `attempts` is how often it has been taken up."""
        if attempts > _MOST_ATTEMPTS:
            reason = f"taken up {attempts - 1} times, and never answered"
            return await self._failed(ask, reason)
        if ask.wrong is not None:
            return Ended(Event.CALL_REFUSED, Outcome(ask.wrong, done=False), ask.session_id)
        pauses = Pauses()
        while True:
            try:
                caller = await self._caller(ask)
                if isinstance(caller, Outcome):
                    return Ended(Event.CALL_REFUSED, caller, ask.session_id)
                outcome = await self._memory.run(ask.name, ask.args, caller)
                return Ended(Event.CALL_DONE if outcome.done else Event.CALL_REFUSED, outcome, caller.session_id)
            except StoreUnavailableError as error:
                if ask.waited_s > _STORE_AWAY_S:
                    return Ended(Event.CALL_FAILED, _AWAY, ask.session_id, retryable=True)
                if not pauses.begun:
                    _log.warning("tool_call_delayed", request_id=ask.ids.id, name=ask.name, reason=str(error))
                await pauses.wait()
            except Exception:  # noqa: BLE001  # the outermost handler: whatever goes wrong, the model is told
                _log.exception("tool_call_failed", request_id=ask.ids.id, name=ask.name)
                return await self._failed(ask, "doing it failed")

    async def _failed(self, ask: ToolAsk, reason: str) -> Ended:
        await self._burying.bury(ask.source.delivery, reason, DeadLetterCause.POISON, ask.ids.id)
        return Ended(Event.CALL_FAILED, _FAILED, ask.session_id)

    async def _caller(self, ask: ToolAsk) -> Caller | Outcome:
        """Who calls, in the session of the run; or why nobody can say, and so nothing is done."""
        run_id, named = ask.ids.run_id, ask.session_id
        origin = await self._origins.known(ask.ids.owner_key, run_id)
        if origin and named not in {None, origin.session_id}:
            where = f"the run {run_id[:_ID_CHARS]!r} belongs to the session {origin.session_id!r}"
            return Outcome(f"metadata.session_id: is {named!r}, and {where}; leave it out", done=False)
        session_id = origin.session_id if origin else named
        if session_id is None:
            reason = f"run_id: of the run {run_id[:_ID_CHARS]!r} it is not known to which session it belongs; "
            return Outcome(reason + "ask for its context first, or name the session in metadata.session_id", done=False)
        is_sub_agent = ask.sub_agent is not None or (origin is not None and origin.sub_agent is not None)
        return Caller(ask.ids.owner_key, session_id, run_id, ask.result_id, is_sub_agent=is_sub_agent)
