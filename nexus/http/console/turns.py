"""What is remembered of a session's runs (contract §6)."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from nexus.core.errors import TurnNotFoundError
from nexus.core.ports.store import LARGEST
from nexus.core.turns import Turn
from nexus.http.console.asked import listed, number
from nexus.http.console.shell import Page, Visit, as_text
from nexus.services.memory.kept import read_kept

_AT_ONCE: Final = 20


async def turns(visit: Visit) -> Response:
    """Turns with their summaries, the latest first, of those before a number."""
    key, before = (visit.owner, visit.session), number(visit, "before")
    found = await visit.services.store.turns.turns(*key, limit=_AT_ONCE + 1, before=before, whole=True)
    read, unreadable, behind = listed(visit, Turn, "turn_number", found, _AT_ONCE)
    return visit.session_page("turns.html", turns=read, unreadable=unreadable, before=before, next=behind)


async def turn(visit: Visit) -> Response:
    """All that is remembered of one turn."""
    wanted = number(visit, "number") or 0
    document = None
    if wanted <= LARGEST:
        document = await visit.services.store.turns.find_turn(visit.owner, visit.session, wanted)
    if document is None:
        raise TurnNotFoundError(wanted)
    found = read_kept(Turn, document, "turn_number")
    outcomes = [(each, as_text(each.arguments), as_text(each.result)) for each in found.tool_calls]
    return visit.session_page("turn.html", turn=found, outcomes=outcomes)


PAGES: Final[Mapping[str, Page]] = {"turns": turns, "turn": turn}
