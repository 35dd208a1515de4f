"""The newest rows of an owner that are shown, which every context begins with (CONTRACT §2).

Rules of this module:

- A condition on the metadata takes the server a seventh of the time in which it finds 40 rows, and hardly any owner has
  rows that it leaves out. So it is asked without, until one comes.
- What is internal is found out here as the server would find it out by `past_of`, also where metadata are no object, or
  have a list where there should be a truth value.
"""

from typing import Any, Final

from nexus.adapters.mongo_find import Page
from nexus.adapters.mongo_messages import LONG, MongoMessages, Noted
from nexus.adapters.mongo_replies import restored
from nexus.adapters.mongo_schema import NEWEST_FIRST, NOT_INTERNAL, NOT_SHOWN
from nexus.core.ports import Row
from nexus.services.context.agents import INTERNAL

_SHOWN: Final = {"role": {"$nin": NOT_SHOWN}}


def past_of(owner_key: str) -> dict[str, Any]:
    """The condition for the rows of an owner that are shown."""
    return {"owner_key": {"$eq": owner_key}, **_SHOWN, **NOT_INTERNAL}


class MongoPast:
    """Reads the newest rows of owners that are shown.

    Args:
        messages: where rows are read.
    """

    def __init__(self, messages: MongoMessages) -> None:
        self._messages = messages
        # Rows of owners who have none that are internal to a sub-agent.
        self._small = Noted()

    async def newest(self, owner_key: str, *, limit: int, skip: int, excerpt_chars: int | None) -> list[Row]:
        """What `MessageStore.newest_messages` promises."""
        if excerpt_chars is not None and not await self._messages.has_text_times():
            rows = await self._unconditional(owner_key, Page(limit, skip, NEWEST_FIRST), excerpt_chars)
            if rows is not None:
                return rows
        return await self._messages.newest(past_of(owner_key), limit=limit, skip=skip, excerpt_chars=excerpt_chars)

    async def _unconditional(self, owner_key: str, page: Page, excerpt_chars: int) -> list[Row] | None:
        """A page of the rows; None where some may have to be left out."""
        rows = await self._messages.if_small(
            self._small, {"owner_key": {"$eq": owner_key}, **_SHOWN}, page, excerpt_chars
        )
        if rows is None:
            return None
        unusual = [row for row in rows if type(of := row.get("metadata")) is not dict or of.get(INTERNAL)]
        if any(map(_is_internal, unusual)):
            self._small.note(owner_key, LONG)
            return None
        return rows


def _is_internal(row: Row) -> bool:
    # The condition on a field looks at what is in a list, too, and that on a field of objects at those in a list.
    metadata = restored(row.get("metadata"))
    objects = metadata if isinstance(metadata, list) else [metadata]
    values = [each.get(INTERNAL) for each in objects if isinstance(each, dict)]
    return any(value is True or (isinstance(value, list) and any(each is True for each in value)) for value in values)
