"""The working memory of sessions (contract §7): read for contexts, and changed by the memory tools.

- A call is checked before anything is done, and a refused call changes nothing.
- One message is served once, however often and by however many replicas it is tried.
- Inserting a revision or version is the compare-and-set: of several writers of the same one, one succeeds and the
  others read again.
- Names of details ignore case. Archives are read-only. Sub-agents may read; writing is the main agent's.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from nexus.core.concurrency import Pauses
from nexus.core.errors import CallRefusedError, StoreRejectedError, StoreUnavailableError
from nexus.core.metrics import Event, Metrics, NoMetrics
from nexus.core.models import to_milliseconds, utc_now
from nexus.core.ports import ConstraintSource, FactSource, MemoryStore, MessageStore, RecallSource, TurnSource
from nexus.core.working_memory import (
    Author,
    Compaction,
    CompactionJob,
    CompactionRequest,
    Detail,
    Overview,
    Snapshot,
    Target,
)
from nexus.services.history.messages import messages_of
from nexus.services.history.rows import revision_of
from nexus.services.memory.compactor import BackgroundCompactions, Compact
from nexus.services.memory.documents import LOOKED_BACK, TEMPLATE, Caller, document_of, read_all, read_snapshot
from nexus.services.memory.search import search
from nexus.services.text.sentences import weight
from nexus.services.tools.memory_tools import (
    DEFAULT_CHARACTERS,
    HANDLES,
    READING_TOOLS,
    UPDATE_WORKING_MEMORY,
    CompactHistory,
    MemoryCall,
    MemoryLimits,
    PinConstraint,
    ReadDetail,
    ReadResult,
    Remember,
    SearchMemory,
    UpdateOverview,
    WriteDetail,
    read_call,
)

MOST_NOTES: Final = 500
# Of one part of a detail or a result in UTF-8: by default, and where more characters are asked for.
_PART_BYTES: Final = 16_384
_MOST_PART_BYTES: Final = 65_536
# Each failed attempt to write is a successful one of another writer.
_MOST_ATTEMPTS: Final = 50
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1
# Versions may be large, and messages are resent soon.
_VERSIONS_LOOKED_BACK: Final = 5
_MOST_NAMES_TOLD: Final = 50

_HOW_LONG: Final = {
    "run": "for this exchange",
    "session": "for this session",
    "owner": "for all sessions of this person",
}
_NOTHING_TO_COMPACT: Final = (
    "There is nothing to compact: what is not under a summary yet are the newest messages, which are to stay, "
    "exchanges that are not over, or messages of the other kind. Nothing was changed."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call, as the model reads it. Without `done`, it says why nothing was changed."""

    text: str
    done: bool = True


class WorkingMemory:
    """Reads and changes working memories; compacts in the background while `running()`.

    `recall` is None where other sessions are not to be searched; `limits` may be replaced at any time.
    """

    def __init__(
        self,
        store: MemoryStore,
        messages: MessageStore,
        compact: Compact,
        turns: TurnSource | None = None,
        *,
        constraints: ConstraintSource,
        facts: FactSource,
        recall: RecallSource | None = None,
        limits: MemoryLimits | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._messages = messages
        self._compact_session = compact
        self._turns = turns
        self._constraints = constraints
        self._facts = facts
        self._recall = recall
        self._metrics = metrics or NoMetrics()
        self._background: BackgroundCompactions | None = None
        self.limits = limits or MemoryLimits()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Make compactions in the background, until the context ends."""
        async with BackgroundCompactions(self._compact_session, self._metrics).running() as self._background:
            yield self

    async def snapshot(self, owner_key: str, session_id: str) -> Snapshot:
        """The working memory of a session."""
        return await read_snapshot(self._store, owner_key, session_id)

    def compact_soon(self, request: CompactionRequest, /, *, long: bool = False) -> CompactionJob | None:
        """Compact in the background, while `running()`."""
        return self._background.start(request, long=long) if self._background else None

    async def run(self, name: str, args: Any, caller: Caller) -> Outcome:
        """Carry out a call of the memory tool `name`; `args` as the model gave them.

        When the store does not answer, the call may have been carried out or not; trying again with the same caller
        carries it out once.
        """
        try:
            return Outcome(await self._carry_out(self._checked(name, args, caller), caller))
        except CallRefusedError as error:
            return Outcome(str(error), done=False)
        except StoreRejectedError as error:
            return Outcome(f"The database does not accept it: {error}", done=False)

    async def edit_overview(
        self, owner_key: str, session_id: str, content: str, *, base_revision: int, edit_id: str
    ) -> Overview:
        """Write an operator's text as the next revision after `base_revision`; returns what is the newest then.

        `edit_id` names the edit, which is served once, as a message is. An equal text writes nothing.

        Raises:
            CallRefusedError: the text is none, or `base_revision` is not the newest; nothing is changed.
            StoreUnavailableError, StoreRejectedError: it may be stored or not; the same edit again stores it once.
        """
        caller = Caller(owner_key, session_id, run_id="", call_id=edit_id)
        given = {"content": content, "base_revision": base_revision}
        call = self._checked(UPDATE_WORKING_MEMORY, given, caller)
        assert isinstance(call, UpdateOverview)  # noqa: S101  # the calls of this tool are
        return await self._write_overview(call, caller, author="operator")

    def _checked(self, name: str, args: Any, caller: Caller) -> MemoryCall:
        if caller.sub_agent is not None and name not in READING_TOOLS:
            allowed = ", ".join(sorted(READING_TOOLS))
            raise CallRefusedError(f"{name}: is the main agent's. A sub-agent may use {allowed}, and report the rest")
        try:
            return read_call(name, args, self.limits)
        except ValueError as error:
            raise CallRefusedError(str(error)) from None

    async def _carry_out(self, call: MemoryCall, caller: Caller) -> str:
        match call:
            case UpdateOverview():
                told = await self._update_overview(call, caller)
            case WriteDetail():
                detail = await self._write_detail(call, caller)
                told = f"{detail.name} is kept as version {detail.version}, {detail.bytes} bytes."
            case PinConstraint():
                told = await self._pin(call, caller)
            case ReadDetail() | ReadResult():
                told = await self._read_part(call, caller)
            case Remember():
                told = await self._remember(call, caller)
            case SearchMemory():
                told = await search(self._store, self._messages, self._recall, caller, call)
            case CompactHistory():
                told = await self._compact(call, caller)
        return told

    async def _update_overview(self, call: UpdateOverview, caller: Caller) -> str:
        overview = await self._write_overview(call, caller)
        if overview.call_id != caller.call_id:
            return f"That is what the overview says already: unchanged, revision {overview.revision}."
        return (
            f"The overview is revision {overview.revision} now, {weight(overview.content)} of "
            f"{self.limits.overview_max_bytes} bytes. The next exchange begins with it."
        )

    async def _write_overview(self, call: UpdateOverview, caller: Caller, author: Author = "model") -> Overview:
        """Write the next revision, unless this message has written one or the newest has the same text."""
        if call.content.strip() == TEMPLATE.strip():
            raise CallRefusedError("content: is the template as it was, which says nothing; fill it in")
        pauses = Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        for _ in range(_MOST_ATTEMPTS):
            documents = await self._store.overviews(*caller.session, limit=LOOKED_BACK)
            known = read_all(Overview, caller.session, documents)
            if earlier := next((each for each in known if each.call_id == caller.call_id), None):
                return earlier
            revision = revision_of(documents[0] if documents else None, "overview", "working_memory")
            if call.base_revision not in {None, revision}:
                raise CallRefusedError(_outdated(call, revision, known))
            if known and (known[0].revision, known[0].content) == (revision, call.content):
                return known[0]
            overview = Overview(
                revision=revision + 1,
                content=call.content,
                updated_at=to_milliseconds(utc_now()),
                author=author,
                run_id=caller.run_id,
                turn_number=await self._turn_number(caller),
                call_id=caller.call_id,
            )
            if await self._store.insert_overview(document_of(overview, caller.session)):
                await self._drop_revisions(overview, caller)
                return overview
            await pauses.wait()
        raise StoreUnavailableError("others keep writing the overview at the same time")

    async def _drop_revisions(self, newest: Overview, caller: Caller) -> None:
        """Remove those that are too many. Where the store does not do it now, the next update does."""
        below = newest.revision - self.limits.keep_revisions + 1
        with suppress(StoreUnavailableError, StoreRejectedError):
            dropped = await self._store.drop_overviews(*caller.session, below=below) if below > 1 else 0
            self._metrics.count(Event.REVISION_REMOVED, dropped)

    async def _turn_number(self, caller: Caller) -> int:
        if self._turns is None or not caller.run_id:
            return 0
        return (await self._turns.goal(*caller.session, caller.run_id)).turn_number or 0

    async def _write_detail(self, call: WriteDetail, caller: Caller) -> Detail:
        """Write the next version of a note, unless this message has written one."""
        pauses = Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        for _ in range(_MOST_ATTEMPTS):
            known = read_all(Detail, caller.session, await self._store.list_details(*caller.session))
            same = _named(known, call.name)
            _check_writable(call, known, same)
            if same and (earlier := await self._written_before(same, caller)):
                return earlier
            detail = Detail(
                name=same.name if same else call.name,
                version=same.version + 1 if same else 1,
                bytes=len(call.content.encode()),
                updated_at=to_milliseconds(utc_now()),
                content=call.content,
                call_id=caller.call_id,
            )
            if await self._store.insert_details([document_of(detail, caller.session)]):
                return detail
            await pauses.wait()
        raise StoreUnavailableError("others keep writing the detail at the same time")

    async def _written_before(self, newest: Detail, caller: Caller) -> Detail | None:
        if newest.call_id == caller.call_id:
            return newest
        if newest.version == 1:
            return None
        after = newest.name, max(newest.version - _VERSIONS_LOOKED_BACK, 0)
        documents = await self._store.detail_versions(*caller.session, limit=_VERSIONS_LOOKED_BACK, after=after)
        versions = read_all(Detail, caller.session, documents)
        return next((each for each in versions if each.name == newest.name and each.call_id == caller.call_id), None)

    async def _find_detail(self, name: str, caller: Caller) -> Detail:
        for found in read_all(Detail, caller.session, [await self._store.find_detail(*caller.session, name)]):
            return found
        known = read_all(Detail, caller.session, await self._store.list_details(*caller.session))
        if same := _named(known, name):
            for found in read_all(Detail, caller.session, [await self._store.find_detail(*caller.session, same.name)]):
                return found
        raise CallRefusedError(f"name: there is no detail {name!r}; {_names_of(known)}")

    async def _pin(self, call: PinConstraint, caller: Caller) -> str:
        key = (*caller.session, caller.run_id)
        try:
            constraint, count = await self._constraints.pin(*key, call.given, message_id=caller.call_id)
        except ValueError as error:
            raise CallRefusedError(str(error)) from None
        if not constraint.holds:
            return f"{constraint.id} was pinned, but was taken back since."
        held = "1 constraint holds" if count == 1 else f"{count} constraints hold"
        return (
            f"{constraint.id} is pinned {_HOW_LONG[constraint.scope]}, and in [CONSTRAINTS] from the next context on. "
            f"{held} now."
        )

    async def _read_part(self, call: ReadDetail | ReadResult, caller: Caller) -> str:
        if isinstance(call, ReadDetail):
            detail = await self._find_detail(call.name, caller)
            about = f"{detail.name} ({detail.kind}, version {detail.version}, {_time(detail.updated_at)}"
            return _part_of(detail.content, call, about, "detail", "from_character")
        row = await self._messages.find_result(caller.owner_key, call.handle, sub_agent=caller.sub_agent)
        if row is None:
            raise CallRefusedError(f"handle: there is no result {call.handle!r}, or it was removed; {HANDLES}")
        (result,) = messages_of([row])
        moment = f", {_time(result.moment)}" if result.moment else ""
        return _part_of(result.text, call, f"{result.tool_name or 'a tool'} ({call.handle}{moment}", "result", "from")

    async def _remember(self, call: Remember, caller: Caller) -> str:
        asked = await self._messages.run_input(caller.session[0], caller.run_id)
        said_in = (str(asked["id"]),) if asked and asked.get("id") else ()
        try:
            facts = await self._facts.remember(
                *caller.session, caller.call_id, call.topic, call.value, call.sub_topic, said_in
            )
        except ValueError as error:
            raise CallRefusedError(str(error)) from None
        holds = next((each for each in facts if each.holds), None)
        if holds is None:
            return "It is kept, but was taken back since."
        before = next((each.value for each in facts if each.id == holds.supersedes), None)
        superseded = "" if before is None else f"; it supersedes {before}"
        topic = " / ".join(filter(None, (holds.topic, holds.sub_topic)))
        return f"It is kept for all sessions of this person. {topic}: {holds.value}{superseded}."

    async def _compact(self, call: CompactHistory, caller: Caller) -> str:
        request = CompactionRequest(
            *caller.session,
            target=call.target,
            strategy=call.strategy,
            trigger="tool",
            keep_recent=call.keep_recent,
            run_id=caller.run_id,
            call_id=caller.call_id,
        )
        compaction = await self._compact_session(request)
        return _report(compaction, call.target) if compaction else _NOTHING_TO_COMPACT


def _outdated(call: UpdateOverview, revision: int, known: list[Overview]) -> str:
    head = f"base_revision: {call.base_revision} is not the newest. Nothing was changed. The newest is revision"
    current = next((overview for overview in known if overview.revision == revision), None)
    if current is None:
        return f"{head} {revision}, " + ("which cannot be read." if revision else "the template: nothing is kept yet.")
    return f"{head} {revision}. Put what you want to change into this text:\n\n{current.content}"


def _named(known: Iterable[Detail], name: str) -> Detail | None:
    """The detail of that name, else one whose name differs in case alone."""
    alike = [detail for detail in known if detail.name.casefold() == name.casefold()]
    return next((detail for detail in alike if detail.name == name), next(iter(alike), None))


def _check_writable(call: WriteDetail, known: list[Detail], same: Detail | None) -> None:
    if same and same.kind == "archive":
        raise CallRefusedError(f"name: {same.name!r} is an archive, which nobody writes to; take another name")
    if same is None and sum(detail.kind == "note" for detail in known) >= MOST_NOTES:
        raise CallRefusedError(
            f"name: {call.name!r} would be one more than the {MOST_NOTES} notes that are kept; use one"
        )


def _names_of(known: list[Detail]) -> str:
    if not known:
        return "there are none yet"
    latest = sorted(known, key=lambda detail: detail.updated_at)[-_MOST_NAMES_TOLD:]
    others = len(known) - len(latest)
    names = ", ".join(sorted(detail.name for detail in latest))
    return f"there are: {names}" + (f", and {others} older ones" if others else "")


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _part_of(content: str, call: ReadDetail | ReadResult, about: str, kind: str, argument: str) -> str:
    """The requested part of a text, below a line of what is told `about` it and where it goes on.

    `argument` is the one that says where to begin.
    """
    text = content[call.from_character :]
    if call.from_character and not text:
        raise CallRefusedError(f"{argument}: the {kind} has {len(content)} characters")
    part = _cut(text, call.characters)
    end = call.from_character + len(part)
    head = about
    if len(part) < len(content):
        head += f", characters {call.from_character} to {end} of {len(content)}"
        head += f"; it goes on with {argument} {end}" if end < len(content) else "; this is the end"
    return f"{head})\n\n{part}"


def _cut(text: str, characters: int) -> str:
    """The beginning of the text, up to the end of a line if that is half of it or more."""
    most_bytes = _PART_BYTES if characters <= DEFAULT_CHARACTERS else _MOST_PART_BYTES
    encoded = text[:characters].encode("utf-8", "replace")
    part = encoded[:most_bytes].decode("utf-8", "ignore")
    if len(part) == len(text):
        return text
    line = part.rfind("\n") + 1
    return part[:line] if line * 2 >= len(part) else part


def _report(compaction: Compaction, asked: Target) -> str:
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
