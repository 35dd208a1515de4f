"""What is answered on `/livez`, `/readyz` and `/metrics`. It knows nothing of what it reports on (CONTRACT §10)."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import anyio

from nexus.core.errors import NexusError

# Says what is wrong, by its outcome or by a NexusError, without addresses or content; None when all is well.
Check: TypeAlias = Callable[[], Awaitable[str | None]]

_JSON: Final = "application/json"
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its status, type and bytes; `allow` names the methods where another was used."""

    status: int
    body: bytes
    content_type: str = _JSON
    allow: str = ""


def plain(status: int, text: str, *, allow: str = "") -> Reply:
    """An answer that says `text` in JSON."""
    return Reply(status, _encoded({"status": text}), allow=allow)


class Recent:
    """A check whose outcome counts for `keep_s` seconds, so that who asks often does not burden what is checked.

    The check is made once in that time at most, however many ask and whether or not they wait for it. It has `limit_s`.
    """

    def __init__(self, check: Check, *, limit_s: float = 1.0, keep_s: float = 1.0) -> None:
        self._check = check
        self._limit_s = limit_s
        self._keep_s = keep_s
        self._lock = anyio.Lock()
        self._next = float("-inf")
        self._outcome: str | None = "not known yet"

    async def __call__(self) -> str | None:
        """The outcome, made now or a moment ago."""
        async with self._lock:
            if anyio.current_time() >= self._next:
                self._next = anyio.current_time() + self._keep_s
                self._outcome = await _made(self._check, self._limit_s)
        return self._outcome


class Health:
    """Answers what is asked of it. Ready is a service all of whose checks are well; alive is one that answers.

    Each check has `check_s`; one that takes longer has failed.
    """

    def __init__(self, checks: Mapping[str, Check], metrics: Callable[[], bytes], *, check_s: float = 2.0) -> None:
        self._checks = dict(checks)
        self._metrics = metrics
        self._check_s = check_s

    async def reply(self, method: str, path: str) -> Reply:
        """The answer to `method` on `path`: 404 for a path that is not here, 405 for a method but GET and HEAD."""
        if path not in {"/livez", "/readyz", "/metrics"}:
            return plain(404, "not found")
        if method not in {"GET", "HEAD"}:
            return plain(405, "method not allowed", allow="GET, HEAD")
        if path == "/livez":
            return plain(200, "ok")
        if path == "/metrics":
            return Reply(200, self._metrics(), _METRICS)
        return await self._ready()

    async def _ready(self) -> Reply:
        outcomes = dict.fromkeys(self._checks, "")

        async def make(name: str, check: Check) -> None:
            outcomes[name] = await _made(check, self._check_s) or "ok"

        async with anyio.create_task_group() as tasks:
            for name, check in self._checks.items():
                tasks.start_soon(make, name, check)
        well = all(outcome == "ok" for outcome in outcomes.values())
        described = {"status": "ok" if well else "unavailable", "checks": outcomes}
        return Reply(200 if well else 503, _encoded(described))


async def _made(check: Check, seconds: float) -> str | None:
    with anyio.move_on_after(seconds):
        try:
            return await check()
        except NexusError as error:
            return str(error) or type(error).__name__
    return "no answer in time"


def _encoded(value: Mapping[str, object]) -> bytes:
    return json.dumps(value).encode() + b"\n"
