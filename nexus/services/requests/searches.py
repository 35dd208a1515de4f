"""Answers searches in long-term memory that come over the bus (`memory.search`, contract §14)."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import anyio

from nexus.core.concurrency import computed
from nexus.core.errors import ErrorCode, RequestError, StoreUnavailableError
from nexus.core.models import DEFAULT_SESSION, Message, parse_moment, role_of
from nexus.core.payloads import Neighbour, SearchHit, SearchResult
from nexus.core.ports import RecallSource, Row
from nexus.core.ports.store import LEFT_OUT
from nexus.core.recall import Found, Hit
from nexus.core.wire import compact
from nexus.services.context.request import Deadline
from nexus.services.history.rows import chars_of, invalid_request, read_session_id
from nexus.services.recall.texts import text_of
from nexus.services.tools.memory_tools import SearchMemory, read_search

# Of a query.
_MOST_CHARS: Final = 1_000
_ALLOWED: Final = ("query", "scope", "session_id", "limit")
# Of each text: the first of these with which an answer is small enough. The messages beside a hit have a quarter.
_TEXT_CHARS: Final = (16_384, 4_096, 1_024, 256)
# Of an answer: the envelope, with the longest ids and a signature.
_ENVELOPE_BYTES: Final = 4_096


class MemorySearches:
    """Answers searches; `recall` is None where no long-term memory is kept. An answer has at most `most_bytes`."""

    def __init__(self, recall: RecallSource | None, most_bytes: int) -> None:
        self._recall = recall
        self._most_bytes = max(most_bytes - _ENVELOPE_BYTES, 0)

    async def answer(self, message: Message, deadline: Deadline) -> dict[str, Any] | RequestError:
        """The content of the answer to a search, or an error."""
        try:
            search, session_id = _read(message)
        except RequestError as error:
            return error
        if self._recall is None:
            return invalid_request("long-term memory is off in this service (recall.enabled)")
        try:
            with anyio.move_on_after(deadline.left_s):
                found = await self._recall.search(
                    message.owner_key, search.query, session_id=session_id, limit=search.limit
                )
                chars = sum(chars_of(row) for hit in found.hits for row in hit.around)
                call = partial(_content, search, found, self._most_bytes)
                return {**await computed(message.owner_key, chars, call)}
        except StoreUnavailableError:
            return RequestError(ErrorCode.HISTORY_UNAVAILABLE, "long-term memory cannot be read now")
        return deadline.exceeded()


def _read(message: Message) -> tuple[SearchMemory, str | None]:
    """The search, and the session that it is of; None for all of them."""
    content = message.content
    if not isinstance(content, Mapping):
        raise invalid_request(f"content: an object is needed, with {', '.join(_ALLOWED)}")
    given = {name: value for name, value in content.items() if value is not None}
    if unknown := next((name for name in given if name not in _ALLOWED), None):
        raise invalid_request(f"content: {unknown[:40]!r} is unknown; allowed: {', '.join(_ALLOWED)}")
    in_session = "session_id" in given
    try:
        session_id = read_session_id(given, "session_id")
        search = read_search(given, default="session" if in_session else "owner", most=_MOST_CHARS)
    except ValueError as error:
        raise invalid_request(f"content.{error}") from None
    if search.scope == "session" and not in_session:
        raise invalid_request("content.session_id: is missing; the scope session needs it")
    if search.scope == "owner" and in_session:
        raise invalid_request("content.session_id: goes with the scope session; leave out one of the two")
    return search, session_id if in_session else None


def _content(search: SearchMemory, found: Found, most_bytes: int) -> SearchResult:
    """The content of the answer: with shorter texts, and in the end fewer hits, where it would be too large."""
    result: SearchResult = {
        "status": "success",
        "query": search.query,
        "scope": search.scope,
        "hits": [],
        "considered": found.considered,
        "formula": found.formula,
        "generation": found.generation,
    }
    for chars in _TEXT_CHARS:
        result["hits"] = [_hit(hit, chars) for hit in found.hits]
        if len(compact(result)) <= most_bytes:
            return result
    while result["hits"] and len(compact(result)) > most_bytes:
        result["hits"] = result["hits"][: len(result["hits"]) // 2]
    return result


def _hit(hit: Hit, chars: int) -> SearchHit:
    row, score = hit.row, hit.score
    return {
        **_neighbour(row, chars),
        "session_id": str(row.get("session_id") or DEFAULT_SESSION),
        "run_id": str(row.get("run_id", "")),
        "score": score.total,
        "parts": {
            "terms": dict(score.terms),
            "session": score.session,
            "date": score.date,
            "similarity": score.similarity,
        },
        "around": [_neighbour(each, chars // 4) for each in hit.around if each["_id"] != row["_id"]],
    }


def _neighbour(row: Row, chars: int) -> Neighbour:
    text, role, moment = text_of(row), role_of(row), parse_moment(row.get("timestamp"))
    return {
        "id": str(row.get("id", row["_id"])),
        "role": role.value if role else "",
        "timestamp": moment.isoformat() if moment else None,
        "text": text if len(text) <= chars else text[:chars] + LEFT_OUT.format(len(text) - chars),
    }
