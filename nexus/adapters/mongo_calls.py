"""Calling MongoDB's drivers: whoever stops waiting does not stop the call, and errors become those of the ports.

pymongo's asyncio client does not survive that a task is cancelled while it waits for the connection pool (measured with
pymongo 4.20 and anyio): "Lock is not acquired", or a lock that nobody gives back, on which every later call hangs with
no time limit. So a call runs in a task of its own, to its end, which its own time limit brings about.

So that calls that nobody waits for cannot pile up, only so many run at once; the others wait, and those can be
cancelled. While there is no server a call would cost its time limit each time: after a failure calls fail at once, for
a moment.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import anyio
from bson.errors import BSONError
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

from nexus.core.errors import StoreRejectedError, StoreUnavailableError

_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_Call = Coroutine[Any, Any, _Result]


_REFUSALS: Final = {
    13: "the user of the database may not do this (OperationFailure 13)",
    18: "wrong user or password of the database (OperationFailure 18)",
}
# What the drivers raise for what they cannot even send.
UNSENDABLE: Final = (BSONError, DocumentTooLarge, OverflowError, UnicodeEncodeError)
# For how long calls fail at once after one that found no server.
_SILENT_S: Final = 0.5
# Of a document among several the server says so as of the whole command.
TOO_LARGE: Final = 10334
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


def translated(error: Exception) -> StoreRejectedError | StoreUnavailableError:
    """What the ports promise for all that can go wrong. Texts name no host and no content."""
    if isinstance(error, OperationFailure):
        code = _code_of(error)
        text = _REFUSALS.get(code or 0, f"{type(error).__name__} {code}")
        is_write = isinstance(error, WriteError | BulkWriteError)
        return StoreRejectedError(text) if is_unacceptable(code, is_write=is_write) else StoreUnavailableError(text)
    return (StoreRejectedError if isinstance(error, UNSENDABLE) else StoreUnavailableError)(type(error).__name__)


def is_unacceptable(code: int | None, *, is_write: bool = True) -> bool:
    """Whether what fails with this code fails however often it is tried."""
    return code == TOO_LARGE or (is_write and code in _UNACCEPTABLE)


def _code_of(error: OperationFailure) -> int | None:
    # Of several documents written at once, the first that failed says why.
    faults = (error.details or {}).get("writeErrors") if isinstance(error, BulkWriteError) else None
    return faults[0].get("code") if faults else error.code


class Calls:
    """Calls to one client that are on their way, at most `at_once` of them."""

    def __init__(self, at_once: int) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._places = anyio.Semaphore(at_once, fast_acquire=True)
        self._silent_until = 0.0

    @property
    def under_way(self) -> int:
        """How many have begun and not ended."""
        return len(self._running)

    async def run(self, call: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """What the call returns. Errors are translated; to be cancelled here leaves a call that has begun running."""
        await self._places.acquire()
        if asyncio.get_running_loop().time() < self._silent_until:
            self._places.release()
            raise StoreUnavailableError("did not answer a moment ago")
        task = asyncio.create_task(call())
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except (BSONError, OverflowError, UnicodeEncodeError, PyMongoError) as error:
            raise translated(error) from error

    async def finish(self, seconds: float) -> None:
        """Wait for the calls that nobody waits for any more; after `seconds` they are cancelled."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._places.release()
        # Looked at here, because nobody else may be there to do so.
        error = None if task.cancelled() else task.exception()
        # One slow query says nothing about the server, and one that is no longer the primary names the way to the next.
        passing = NetworkTimeout | WaitQueueTimeoutError | NotPrimaryError
        if isinstance(error, ConnectionFailure) and not isinstance(error, passing):
            # No task runs here, without which anyio knows of no loop unless it was anyio that started it.
            self._silent_until = task.get_loop().time() + _SILENT_S


class _Calling(Protocol):
    @property
    def calls(self) -> Calls: ...


_Caller = TypeVar("_Caller", bound=_Calling)


def completed(
    method: Callable[Concatenate[_Caller, _P], _Call[_Result]],
) -> Callable[Concatenate[_Caller, _P], _Call[_Result]]:
    """A method that runs to its end, although its caller may not wait for it, and raises what the ports promise."""

    @wraps(method)
    async def call(caller: _Caller, /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        return await caller.calls.run(partial(method, caller, *args, **kwargs))

    return call
