"""An owner, a session, or what was said before a time, is erased after a preview, as `nexus erase` does it (§13)."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from nexus.core.erasure import Erasure, hashed
from nexus.http.console.asked import number, owner_and_session, refused
from nexus.http.console.shell import Page, Visit
from nexus.services.erasure import KINDS, STAYS, read_before

_LONGEST_TEXT: Final = 1_000


async def erase(visit: Visit, fault: str = "") -> Response:
    """How many of each kind there are of what would go, and the form that has it erased; `fault`: why it was not."""
    # Looking for what there is goes through the whole bus.
    visit.access.check_write()
    erasure = _asked(visit)
    found = await visit.services.eraser.preview(erasure)
    return _page(visit, "erase.html", erasure, status=400 if fault else 200, found=found, fault=fault)


async def erase_form(visit: Visit) -> Response:
    """Erase what the address names, once the owner's key is typed; the page that follows has the counts."""
    erasure = _asked(visit)
    if visit.fields.get("typed") != erasure.owner_key:
        return await erase(visit, "Nothing was erased: type the owner's key as it stands above.")
    done = await visit.services.eraser.erase(erasure)
    outcome = "still_coming" if done.still_coming else "erased"
    visit.changed("owner_erased", sha256=hashed(erasure.owner_key), outcome=outcome, rows=sum(done.removed.values()))
    removed = {kind: count for kind, count in done.removed.items() if count}
    return visit.seen("erased", **_named(erasure), still_coming=1 if done.still_coming else None, **removed)


async def erased(visit: Visit) -> Response:
    """What an erasure has removed, and what there is now."""
    visit.access.check_write()
    erasure = _asked(visit)
    removed = {kind: count for kind in KINDS if (count := number(visit, kind))}
    left = await visit.services.eraser.preview(erasure)
    return _page(
        visit, "erased.html", erasure, removed=removed, found=left, still_coming=bool(visit.asked("still_coming"))
    )


async def verify(visit: Visit) -> Response:
    """Look for a text in all collections and keys, of all owners. It changes nothing, and may take long."""
    text = visit.fields.get("text", "")
    if not text.strip() or len(text) > _LONGEST_TEXT:
        raise HTTPException(400, f"text: a text of 1 to {_LONGEST_TEXT} characters is needed")
    places = await visit.services.eraser.find_text(text)
    return visit.page("verified.html", text=text, places=places, longest=_LONGEST_TEXT)


def _asked(visit: Visit) -> Erasure:
    """What the address names."""
    owner, session = owner_and_session(visit)
    before = visit.asked("before").strip()
    with refused():
        return Erasure(owner, session if visit.asked("session") else None, read_before(before) if before else None)


def _named(erasure: Erasure) -> dict[str, Any]:
    before = erasure.before.isoformat() if erasure.before else None
    return {"owner": erasure.owner_key, "session": erasure.session_id, "before": before}


def _page(visit: Visit, template: str, erasure: Erasure, *, status: int = 200, **values: Any) -> Response:
    return visit.page(
        template,
        status=status,
        owner=erasure.owner_key,
        session=erasure.session_id or "",
        named=_named(erasure),
        kinds=KINDS,
        stays=STAYS,
        longest=_LONGEST_TEXT,
        **values,
    )


PAGES: Final[Mapping[str, Page]] = {"erase": erase, "erased": erased}
FORMS: Final[Mapping[str, Page]] = {"erase": erase_form, "verify": verify}
