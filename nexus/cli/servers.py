"""The servers and services that commands ask; their errors become one line with what to do about them."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

import anyio
import typer

from nexus.cli.terminal import counted, printable, session_named
from nexus.client import AnswerError, ContextClient
from nexus.config import BusSettings, DatabaseSettings, signing_of
from nexus.connections import counts_subscribers, open_client, open_store
from nexus.core.concurrency import ungrouped
from nexus.core.errors import (
    BusRefusedError,
    BusUnavailableError,
    ErrorCode,
    NewerDocumentError,
    NexusError,
    StoreRejectedError,
    StoreUnavailableError,
)
from nexus.core.models import DOCTOR, Message, Role, Run, new_run_id
from nexus.core.ports import Bus, Row, Store
from nexus.core.ports.store import TransferableStore
from nexus.core.working_memory import WHOLE
from nexus.services.person.constraint_changes import place_of

_Result = TypeVar("_Result")

_PAGE: Final = 50
_MOST_SESSIONS: Final = 10
# Who asks whether a service answers, and how long it is waited for.
_ANSWER_S: Final = 3.0
SEE_MONGODB: Final = "see that MongoDB runs, and database.uri with its user and password (NEXUS_DATABASE__URI)"
_SEE_REDIS: Final = "see that Redis runs, and bus.url with its user and password (NEXUS_BUS__URL)"
# By the kind of the error, or by words of Redis's own where the kind says little.
_BUS_ADVICE: Final = {
    "AuthenticationError": "correct user and password in bus.url (NEXUS_BUS__URL)",
    "NoPermissionError": "give this user the rights in docs/operations.md, 'Users and rights', for your prefix",
    "ReadOnlyError": "name the master in bus.url, or the sentinels that know it: this server is a read-only replica",
    "OutOfMemoryError": "raise maxmemory of Redis or free memory; a lower bus.answer_ttl_s needs less of it",
    "MasterNotFoundError": "see that the sentinels run, and the name of their service in bus.url",
    "BusyLoadingError": "wait: Redis is loading its data",
    "MovedError": "write redis+cluster:// in bus.url: this server is a node of a cluster",
    "cluster support disabled": "write redis:// in bus.url: this server is no node of a cluster",
    "'SENTINEL'": "name sentinels in a redis+sentinel:// URL, or write redis://: this server is no sentinel",
    "MISCONF": "free disk space where Redis runs, and see its log: it cannot save its data",
}


async def require_session(store: Store, owner: str, session: str) -> None:
    """A NexusError that names the owner's sessions where nothing at all is stored of this one."""
    key, memory = (owner, session), store.memory
    if (
        await store.tail_messages(*key, WHOLE, limit=1)
        or await store.turns.latest_turn(*key)
        or await store.find_session_state(*key)
        or await store.constraints.find_constraints(owner, [place_of("session", session, "")])
        or await memory.latest_overview(*key)
        or await memory.list_details(*key)
        or await memory.latest_compaction(*key)
    ):
        return
    found = await store.sessions(owner, limit=_MOST_SESSIONS + 1)
    names = ", ".join(printable(each.session_id or "-") for each in found[:_MOST_SESSIONS])
    more = " and more (nexus sessions list)" if len(found) > _MOST_SESSIONS else ""
    there = f"there are: {names}{more}" if found else f"no other of {printable(owner)} has messages"
    raise NexusError(f"there is no {session_named(owner, session)}; {there}")


async def newest(field: str, limit: int, read: Callable[..., Awaitable[list[Row]]]) -> list[Row]:
    """Up to `limit` documents, the highest number in `field` first. `read` takes `limit` and `before`."""
    found, before = list[Row](), None
    while most := min(_PAGE, limit - len(found)):
        page = await read(limit=most, before=before)
        found += page
        if len(page) < most:
            break
        before = page[-1][field]
    return found


def run_on_store(settings: DatabaseSettings, work: Callable[[TransferableStore], Awaitable[_Result]]) -> _Result:
    """The result of `work` on the store, whose errors become NexusErrors with what to do about them."""

    async def on_store() -> _Result:
        async with open_store(settings) as store:
            return await work(store)

    return run(on_store)


def run(work: Callable[[], Awaitable[_Result]], *, key: str = "") -> _Result:
    """The result of `work` on store and bus, whose errors become NexusErrors with what to do about them.

    `key` is what it is about in Redis, without the prefix.
    """
    try:
        with ungrouped():
            return anyio.run(work)
    except (StoreUnavailableError, StoreRejectedError) as error:
        raise store_error(error) from error
    except BusUnavailableError as error:
        is_in_the_way = key and isinstance(error, BusRefusedError)
        advice = f"see what stands under <prefix>{key} (redis-cli TYPE)" if is_in_the_way else bus_advice(error)
        raise NexusError(f"Redis does not do what was asked ({error}): {advice}") from error


def store_error(error: StoreUnavailableError | StoreRejectedError) -> NexusError:
    """A store's error, with what to do about it."""
    # The second one is what keeps the indexes from being made.
    if any(isinstance(each, StoreRejectedError | NewerDocumentError) for each in (error, error.__cause__)):
        return NexusError(f"MongoDB refuses what was asked: {error}")
    return NexusError(f"MongoDB does not do what was asked ({error}): {SEE_MONGODB}")


def service_client(settings: BusSettings, connect_s: float) -> AbstractAsyncContextManager[ContextClient]:
    """A client of the service on this bus; a NexusError where that is one process alone."""
    if settings.mode == "memory":
        raise NexusError("bus.mode is memory: there is no other process to ask")
    return open_client(
        settings.url.get_secret_value(),
        mode=settings.mode,
        channel_prefix=settings.channel_prefix,
        signing=signing_of(settings.signing),
        connect_s=connect_s,
        max_payload_bytes=settings.max_payload_bytes,
    )


async def ask_service(bus: Bus, settings: BusSettings) -> None:
    """Ask a question that is refused before anything of it is recorded: it shows that a service listens and answers.

    A NexusError or TimeoutError where none does.
    """
    run_id = new_run_id()
    nothing = Message(run_id=run_id, owner_key=DOCTOR, role=Role.HUMAN, content=" ")
    async with ContextClient(bus, signing=signing_of(settings.signing)).listening() as client:
        try:
            await client.build(Run(id=run_id, owner_key=DOCTOR, history=[nothing]), timeout=_ANSWER_S)
        except AnswerError as error:
            if error.code is not ErrorCode.EMPTY_INPUT:
                raise


def say_who_heard(subscribers: int, settings: BusSettings, on_stream: str) -> None:
    """Say how many services heard what was published; on streams, whose readers are not counted, say `on_stream`."""
    if settings.mode == "streams":
        typer.echo(f"Sent: {on_stream}.")
    elif not counts_subscribers(settings):
        typer.echo("Sent. On a cluster pub/sub cannot tell whether anybody heard it.")
    else:
        typer.echo(f"Sent: {counted(subscribers, 'service')} heard it.")


def bus_advice(error: Exception) -> str:
    """The advice for an error of the bus."""
    words = f"{error} {error.__cause__}"
    return next((advice for known, advice in _BUS_ADVICE.items() if known in words), _SEE_REDIS)
