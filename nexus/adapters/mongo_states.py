"""The states of sessions in MongoDB: one document a session, replaced only by whoever has seen what it was."""

from collections.abc import Mapping
from typing import Any, Final

from pymongo.errors import DuplicateKeyError

from nexus.core.models import utc_now
from nexus.core.ports import Row

COLLECTION: Final = "session_states"


async def find_state(states: Any, owner_key: str, session_id: str) -> Row | None:
    """The row of the session, as `SessionStateStore.find_session_state` has it."""
    row: Row | None = await states.find_one(_of(owner_key, session_id), {"_id": 0})
    return row


async def put_state(states: Any, owner_key: str, session_id: str, document: Mapping[str, Any], revision: int) -> bool:
    """Keep the document, as `SessionStateStore.put_session_state` has it."""
    written = {"document": dict(document), "revision": revision + 1, "updated_at": utc_now()}
    if revision == 0:
        try:
            await states.insert_one({"owner_key": owner_key, "session_id": session_id, **written})
        except DuplicateKeyError:
            return False
        return True
    seen = {**_of(owner_key, session_id), "revision": {"$eq": revision}}
    return bool((await states.update_one(seen, {"$set": written})).matched_count)


def _of(owner_key: str, session_id: str) -> dict[str, Any]:
    return {"owner_key": {"$eq": owner_key}, "session_id": {"$eq": session_id}}
