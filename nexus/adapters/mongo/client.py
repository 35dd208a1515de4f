"""How a client of MongoDB is called, by motor or by pymongo's asyncio API (contract §2).

- Every call has a time limit (`timeoutMS`), and a bounded number runs at once; further ones wait, and can be
  cancelled.
- A call runs to its end in a task of its own, even where its caller is cancelled: pymongo's pool does not survive
  cancellation (pymongo 4.20: "Lock is not acquired", or a lock that is never released).
- After a call that found no server one call in half a second is made until one is answered, and the others fail at
  once: builds would queue behind builds that wait.
- Errors become `StoreRejectedError` (the same write would fail again) or `StoreUnavailableError` here and nowhere
  else. Their texts name no host and no content.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import anyio
import structlog
from bson.errors import BSONError, InvalidDocument, InvalidStringData
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    DocumentTooLarge,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    WaitQueueTimeoutError,
    WriteError,
)

from nexus.core.errors import NexusError, StoreRejectedError, StoreUnavailableError

_log = structlog.get_logger(__name__)

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

_COOLDOWN_S: Final = 0.5

DUPLICATE_KEY: Final = 11000
# The hint names no index of the collection.
NO_SUCH_INDEX: Final = 2
# What the drivers raise for a document that they cannot encode.
NOT_ENCODABLE: Final = (InvalidDocument, InvalidStringData, DocumentTooLarge, OverflowError, UnicodeEncodeError)
_DOCUMENT_TOO_LARGE: Final = 10334
_REFUSALS: Final = {
    13: "the user of the database may not do this (OperationFailure 13)",
    18: "wrong user or password of the database (OperationFailure 18)",
}
# A write that fails with one of these fails again however often it is tried: MongoDB does not keep such a document.
# Every other failure (a full disk, a time limit, a change of the primary) may pass.
_UNACCEPTABLE: Final = frozenset(
    {
        2,  # BadValue
        9,  # FailedToParse
        14,  # TypeMismatch
        15,  # Overflow
        16,  # InvalidLength
        17,  # ProtocolError
        22,  # InvalidBSON
        28,  # PathNotViable
        52,  # DollarPrefixedFieldName
        53,  # InvalidIdField
        55,  # InvalidDBRef
        56,  # EmptyFieldName
        57,  # DottedFieldName
        121,  # DocumentValidationFailure
        17280,  # KeyTooLong
    }
)


class Calls:
    """Calls to one client, at most `at_once` of which run at a time."""

    def __init__(self, at_once: int) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._places = anyio.Semaphore(at_once, fast_acquire=True)
        self._is_away = False
        self._next_try = 0.0

    async def run(self, call: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """The call's result. A caller that is cancelled here leaves a call that has begun running."""
        await self._places.acquire()
        if self._is_away:
            now = asyncio.get_running_loop().time()
            if now < self._next_try:
                self._places.release()
                raise StoreUnavailableError("did not answer a moment ago")
            self._next_try = now + _COOLDOWN_S
        task = asyncio.create_task(call())
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except NexusError:
            raise
        except Exception as error:
            raise translated(error) from error
        except asyncio.CancelledError:
            if task.cancelled():
                raise StoreUnavailableError("is being closed") from None
            raise

    async def finish(self, seconds: float) -> None:
        """Wait for the calls that still run; after `seconds` they are cancelled."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._places.release()
        # Retrieved here, because the caller may have been cancelled.
        error = None if task.cancelled() else task.exception()
        # A slow query says nothing about the server, and a server that is no longer primary names the way to the next.
        passing = NetworkTimeout | WaitQueueTimeoutError | NotPrimaryError
        if isinstance(error, ConnectionFailure) and not isinstance(error, passing):
            self._is_away, self._next_try = True, task.get_loop().time() + _COOLDOWN_S
        elif not (task.cancelled() or isinstance(error, ConnectionFailure)):
            self._is_away = False


class Operations:
    """Operations on collections, run by `calls`; `indexed` returns once the indexes are made."""

    def __init__(self, calls: Calls, indexed: Callable[[], Awaitable[None]]) -> None:
        self.calls = calls
        self.indexed = indexed


_Caller = TypeVar("_Caller", bound=Operations)


def driver_call(
    method: Callable[Concatenate[_Caller, _P], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_Caller, _P], Coroutine[Any, Any, _Result]]:
    """Run a method by `self.calls`. Such a method awaits no other one, which would take a second place."""

    @wraps(method)
    async def call(caller: _Caller, /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        return await caller.calls.run(lambda: method(caller, *args, **kwargs))

    return call


def insert_call(
    method: Callable[Concatenate[_Caller, _P], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_Caller, _P], Coroutine[Any, Any, _Result]]:
    """Run a method by `self.calls` once the indexes are made, without a place while it waits for them."""

    @wraps(method)
    async def call(caller: _Caller, /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        await caller.indexed()
        return await caller.calls.run(lambda: method(caller, *args, **kwargs))

    return call


def translated(error: Exception) -> StoreRejectedError | StoreUnavailableError:
    """The port's error for an error of the driver."""
    if isinstance(error, OperationFailure):
        code = code_of(error)
        text = _REFUSALS.get(code or 0, f"{type(error).__name__} {code}")
        is_write = isinstance(error, WriteError | BulkWriteError)
        return StoreRejectedError(text) if is_unacceptable(code, is_write=is_write) else StoreUnavailableError(text)
    if isinstance(error, NOT_ENCODABLE):
        return StoreRejectedError(type(error).__name__)
    if not isinstance(error, PyMongoError | BSONError):
        # A reply that is not as it should be, on which the driver or its caller failed; or a fault of Nexus.
        _log.error("store_call_failed", reason=type(error).__name__, exc_info=error)
    return StoreUnavailableError(type(error).__name__)


def is_unacceptable(code: int | None, *, is_write: bool = True) -> bool:
    """Whether a command that fails with this code fails however often it is tried."""
    return code == _DOCUMENT_TOO_LARGE or (is_write and code in _UNACCEPTABLE)


def code_of(error: OperationFailure) -> int | None:
    """The code of an error, of a bulk write that of what is wrong first."""
    if not isinstance(error, BulkWriteError):
        return error.code
    # Where no majority has what was written, none of it is settled. Else the first document that failed says why.
    faults = error.details["writeConcernErrors"] or error.details["writeErrors"]
    code: int | None = faults[0].get("code")
    return code
