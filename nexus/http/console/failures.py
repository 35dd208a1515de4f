"""Which requests failed and why: records of errors, of all owners (contract §13)."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from nexus.http.console.shell import Page, Visit
from nexus.services.requests.letters import newest

_FAILURES_AT_ONCE: Final = 50
_LETTERS_BESIDE: Final = 5


async def failures(visit: Visit) -> Response:
    """Answers that were errors, newest first, and the newest messages that could not even be answered."""
    records = visit.services.records
    owner, request = visit.asked("before_owner"), visit.asked("before")
    before = await records.find(owner, request) if records and request else None
    found = await records.failures(before=before, limit=_FAILURES_AT_ONCE + 1) if records else []
    return visit.page(
        "failures.html",
        are_kept=records is not None,
        failures=found[:_FAILURES_AT_ONCE],
        more=len(found) > _FAILURES_AT_ONCE,
        is_first=before is None,
        letters=await newest(visit.services.letters, _LETTERS_BESIDE) if before is None else [],
        days=visit.services.settings.context.record_days,
    )


PAGES: Final[Mapping[str, Page]] = {"failures": failures}
