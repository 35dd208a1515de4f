"""What long-term memory finds for an owner, with explained scores, and how far its index is (contract §14)."""

from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from nexus.core.recall import SCOPES, Found, Hit
from nexus.http.console.shell import Page, Visit
from nexus.services.recall.hits import by_weight, excerpt, factor, session_of, speaker

_MOST_FOUND: Final = 20
_LONGEST_QUESTION: Final = 2_000
# The states of so many of the newest messages are counted, however many there are.
_NEWEST: Final = 1_000


async def recall(visit: Visit) -> Response:
    """The messages that answer a question best, of the session or of all of the owner's."""
    question, scope = visit.asked("question").strip(), visit.asked("scope", "session")
    if scope not in SCOPES:
        raise HTTPException(400, f"scope: is unknown; allowed: {', '.join(SCOPES)}")
    if len(question) > _LONGEST_QUESTION:
        raise HTTPException(400, f"question: {len(question)} characters, at most {_LONGEST_QUESTION} are allowed")
    found: Found | None = None
    if question and visit.services.recall:
        session = visit.session if scope == "session" else None
        found = await visit.services.recall.search(visit.owner, question, session_id=session, limit=_MOST_FOUND)
    return visit.session_page(
        "recall.html",
        is_on=visit.services.recall is not None,
        question=question,
        scope=scope,
        scopes={"session": "this session", "owner": "all sessions of the owner"},
        found=found,
        hits=[*map(_explained, found.hits)] if found else [],
        index=await visit.services.store.recall.newest_status(visit.owner, newest=_NEWEST),
        most=_NEWEST,
        longest=_LONGEST_QUESTION,
    )


def _explained(hit: Hit) -> dict[str, object]:
    row = hit.row
    return {
        "row_id": row["_id"],
        "time": row.get("timestamp"),
        "session": session_of(row),
        "who": speaker(row),
        "text": excerpt(row, hit.score),
        "score": hit.score,
        "terms": by_weight(hit.score),
        "factor": factor(row),
        "around": [each["_id"] for each in hit.around if each["_id"] != row["_id"]],
    }


PAGES: Final[Mapping[str, Page]] = {"recall": recall}
