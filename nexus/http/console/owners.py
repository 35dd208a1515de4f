"""Owners, their sessions and runs (contract §16)."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from nexus.http.console.shell import Page, Visit

_OWNERS_AT_ONCE: Final = 50


async def owners(visit: Visit) -> Response:
    """Owners in the order of their keys, from the one that was asked for on."""
    after = visit.asked("after")
    found = await visit.services.store.owners(after=after, limit=_OWNERS_AT_ONCE + 1)
    return visit.page("owners.html", owners=found[:_OWNERS_AT_ONCE], more=len(found) > _OWNERS_AT_ONCE, after=after)


PAGES: Final[Mapping[str, Page]] = {"owners": owners}
