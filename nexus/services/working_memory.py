"""The working memory of sessions (CONTRACT §7): what contexts show of it, and what the memory tools do.

Rules of this module:

- A call is checked before anything is done, and a call that is refused changes nothing.
- What one message asks for is done once, however often it is asked for, by however many replicas, and also where the
  one who did it died before saying so.
- A sub-agent may look; what is written belongs to the main agent.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from nexus.core.errors import CallRefusedError, StoreRejectedError
from nexus.core.ports import MemoryStore, MessageStore, TurnSource
from nexus.core.working_memory import Compaction, CompactionJob, Snapshot, Target, Wish
from nexus.services.memory.details import read_detail, write_detail
from nexus.services.memory.documents import Caller, read_snapshot
from nexus.services.memory.finding import search
from nexus.services.memory.overviews import update_overview
from nexus.services.memory.soon import CompactingSoon
from nexus.services.tools.memory_calls import (
    CompactHistory,
    MemoryCall,
    ReadDetail,
    SearchMemory,
    UpdateOverview,
    WriteDetail,
    read_call,
)
from nexus.services.tools.memory_tools import READING_TOOLS, MemoryLimits

_NOTHING_TO_COMPACT: Final = (
    "There is nothing to compact: what is not under a summary yet are the newest messages, which are to stay, "
    "exchanges that are not over, or messages of the other kind. Nothing was changed."
)


class Compacting(Protocol):
    """Whoever brings compactions about."""

    async def compact(self, wish: Wish) -> Compaction | None:
        """Bring it about; see `MemorySource.compact`."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call, as the model is told.

    Attributes:
        done: what was asked for is so; else `text` says why not, and nothing was changed.
    """

    text: str
    done: bool = True


class WorkingMemory:
    """Reads and changes it. Use `running()` to have compactions brought about in the background.

    Args:
        store: where it is kept.
        messages: where the session's messages are.
        compactor: brings compactions about.
        turns: says in which turn something is written; without it nobody knows.

    Attributes:
        limits: how large what is kept may be. May be replaced at any time.
    """

    def __init__(
        self,
        store: MemoryStore,
        messages: MessageStore,
        compactor: Compacting,
        turns: TurnSource | None = None,
        limits: MemoryLimits | None = None,
    ) -> None:
        self._store = store
        self._messages = messages
        self._compactor = compactor
        self._turns = turns
        self._soon: CompactingSoon | None = None
        self.limits = limits or MemoryLimits()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Compact what nobody waits for, until the context ends."""
        async with CompactingSoon(self._compactor.compact).running() as self._soon:
            yield self

    async def snapshot(self, owner_key: str, session_id: str) -> Snapshot:
        """What is kept of a session; see `MemorySource.snapshot`."""
        return await read_snapshot(self._store, owner_key, session_id)

    async def compact(self, wish: Wish) -> Compaction | None:
        """Bring a compaction about; see `MemorySource.compact`."""
        return await self._compactor.compact(wish)

    def compact_soon(self, wish: Wish, *, long: bool = False) -> CompactionJob | None:
        """Bring a compaction about in the background, where that is running; see `MemorySource.compact_soon`."""
        return self._soon.want(wish, long=long) if self._soon else None

    async def run(self, name: str, args: Any, caller: Caller) -> Outcome:
        """Do what a call of a memory tool asks for.

        Args:
            name: of the tool.
            args: as the model gave them.
            caller: who calls.

        Raises:
            StoreUnavailableError: the store did not answer. It may have been done or not; asking again with the same
                caller does it once.
        """
        try:
            return Outcome(await self._do(self._checked(name, args, caller), caller))
        except CallRefusedError as error:
            return Outcome(str(error), done=False)
        except StoreRejectedError as error:
            return Outcome(f"The database does not accept it: {error}", done=False)

    def _checked(self, name: str, args: Any, caller: Caller) -> MemoryCall:
        if caller.is_sub_agent and name not in READING_TOOLS:
            allowed = " and ".join(sorted(READING_TOOLS))
            raise CallRefusedError(f"{name}: is the main agent's. A sub-agent may use {allowed}, and report the rest")
        try:
            return read_call(name, args, self.limits)
        except ValueError as error:
            raise CallRefusedError(str(error)) from None

    async def _do(self, call: MemoryCall, caller: Caller) -> str:
        match call:
            case UpdateOverview():
                return await self._update(call, caller)
            case WriteDetail():
                detail = await write_detail(self._store, caller, call)
                return f"{detail.name} is kept as version {detail.version}, {detail.bytes} bytes."
            case ReadDetail():
                return await read_detail(self._store, caller, call)
            case SearchMemory(query):
                return await search(self._store, self._messages, caller, query)
            case CompactHistory():
                return await self._compact(call, caller)

    async def _update(self, call: UpdateOverview, caller: Caller) -> str:
        async def turn_number() -> int:
            if self._turns is None:
                return 0
            return (await self._turns.goal(*caller.session, caller.run_id)).turn_number or 0

        overview = await update_overview(self._store, caller, call, turn_number)
        if overview.call_id != caller.call_id:
            return f"That is what the overview says already: unchanged, revision {overview.revision}."
        size = len(overview.content.encode("utf-8", "replace"))
        return (
            f"The overview is revision {overview.revision} now, {size} of {self.limits.overview_max_bytes} bytes. The "
            "next exchange begins with it."
        )

    async def _compact(self, call: CompactHistory, caller: Caller) -> str:
        wish = Wish(
            *caller.session,
            target=call.target,
            strategy=call.strategy,
            trigger="tool",
            keep_recent=call.keep_recent,
            run_id=caller.run_id,
            call_id=caller.call_id,
        )
        compaction = await self.compact(wish)
        return _told(compaction, call.target) if compaction else _NOTHING_TO_COMPACT


def _told(compaction: Compaction, asked: Target) -> str:
    """What came of a compaction that was asked for."""
    made = f"Compaction {compaction.number} is made, of {_messages(compaction.count)}"
    lines = [f"{made}; the summary stands for {_messages(compaction.total)} now. The next context shows it."]
    if compaction.tokens_before:
        grown = f"the summary went from {compaction.tokens_carried} to {compaction.tokens_after}"
        lines.append(f"What is newly covered took {compaction.tokens_before} tokens, and {grown}.")
    if compaction.target != asked:
        lines.append("The oldest messages of the other kind are among them: too many compacted ones lay between.")
    if compaction.details:
        lines.append(f"Word for word they are in: {', '.join(compaction.details)}. read_memory_detail opens them.")
    lines.append("search_memory finds what was said. What has to stay in view belongs into the overview.")
    return "\n".join(lines)


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"
