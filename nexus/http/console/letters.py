"""Dead letters: what could not be used, sent again and dropped as `nexus dead-letters` does it (contract §1.6)."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from nexus.core.signing import FRESH_S
from nexus.http.console.asked import number
from nexus.http.console.shell import Page, Visit
from nexus.services.requests.letters import LETTER_ID, Outcome, drop, newest

_LETTERS_AT_ONCE: Final = 25
_MOST_CHARS: Final = 1 << 16
# In a form, how the field of each chosen letter begins.
_CHOSEN: Final = "letter:"


async def letters(visit: Visit) -> Response:
    """Letters, newest first, and what became of those that a form was about."""
    before = visit.asked("before")
    kept = visit.services.letters
    found = await newest(kept, _LETTERS_AT_ONCE + 1, before=before)
    outcomes = [(outcome, count) for outcome in Outcome if (count := number(visit, outcome.name.lower()))]
    return visit.page(
        "letters.html",
        letters=found[:_LETTERS_AT_ONCE],
        more=len(found) > _LETTERS_AT_ONCE,
        before=before,
        total=await kept.count(),
        outcomes=outcomes,
        chosen=_CHOSEN,
    )


async def letter(visit: Visit) -> Response:
    """One letter with all that is kept of it."""
    letter_id = visit.asked("id")
    found = await visit.services.letters.find(letter_id)
    if found is None:
        raise HTTPException(404, f"there is no dead letter {letter_id[:64]}; it may have been sent again or dropped")
    body = None if found.body is None else found.body[: 4 * _MOST_CHARS].decode("utf-8", "backslashreplace")
    signing = visit.services.settings.bus.signing
    return visit.page(
        "letter.html",
        letter=found,
        body=body[:_MOST_CHARS] if body else body,
        cut=bool(body) and len(body or "") > _MOST_CHARS,
        if_sent=(await visit.services.sender.send(letter_id, dry_run=True)).text,
        stale_s=FRESH_S if signing.keys and found.at_ms < (time.time() - FRESH_S) * 1_000 else None,
        chosen=_CHOSEN,
    )


async def send_letters(visit: Visit) -> Response:
    """Send the chosen letters again."""
    return await _carry_out(visit, "letter_sent", visit.services.sender.send)


async def drop_letters(visit: Visit) -> Response:
    """Drop the chosen letters, once the form says that it is sure."""
    if "sure" not in visit.fields:
        return visit.page("letters_sure.html", ids=_chosen(visit.fields), chosen=_CHOSEN)
    return await _carry_out(visit, "letter_dropped", partial(drop, visit.services.letters))


async def _carry_out(visit: Visit, action: str, do: Callable[[str], Awaitable[Outcome]]) -> Response:
    outcomes: Counter[Outcome] = Counter()
    # Oldest first, as they came.
    for letter_id in reversed(_chosen(visit.fields)):
        outcome = await do(letter_id)
        outcomes[outcome] += 1
        visit.changed(action, entry=letter_id, outcome=outcome.name.lower())
    return visit.seen("letters", **{outcome.name.lower(): count for outcome, count in outcomes.items()})


def _chosen(fields: Mapping[str, str]) -> list[str]:
    ids = [name.removeprefix(_CHOSEN) for name in fields if name.startswith(_CHOSEN)]
    if not ids:
        raise HTTPException(400, "no letter was chosen")
    if not all(map(LETTER_ID.fullmatch, ids)):
        raise HTTPException(400, "a letter is named by its id, as the list shows it")
    return ids


PAGES: Final[Mapping[str, Page]] = {"letters": letters, "letter": letter}
FORMS: Final[Mapping[str, Page]] = {"letters-send": send_letters, "letters-drop": drop_letters}
