"""Other `_id`s for the rows of a session that is imported as another one, and what refers to them (CONTRACT §7). Pure.

Rules of this module:

- An `_id` says in which second its row was stored, and what is left of a session after a compaction is told by that. So
  a new one is of the same second, and in the same place among those of its second.
- The same rows get the same ones each time, so that an import that was broken off can be gone on with.
- An `_id` that no MongoDB made says no second; a text takes its place, which says none either.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nexus.core.ports import Row
from nexus.core.working_memory import SECOND, Compaction, is_object_id

# What is left of an `_id` for those of one second, as digits.
_RANK_DIGITS: Final = 6
_SEED_DIGITS: Final = 10


def new_ids(row_ids: Iterable[str], owner_key: str, session_id: str) -> dict[str, str]:
    """A new `_id` for each, as they are named in that session of that owner.

    Raises:
        ValueError: there are too many of one second.
    """
    # With its length, so that no owner and session spell the same as another pair.
    named = f"{len(owner_key)} {owner_key} {session_id}".encode(errors="surrogatepass")
    seed = hashlib.sha256(named).hexdigest()[:_SEED_DIGITS]
    seconds = defaultdict[str, list[str]](list)
    foreign = list[str]()
    for row_id in row_ids:
        if is_object_id(row_id):
            seconds[row_id[SECOND]].append(row_id)
        else:
            foreign.append(row_id)
    renamed = {row_id: f"{seed}:{place:012d}" for place, row_id in enumerate(foreign)}
    for second, of_second in seconds.items():
        if len(of_second) > 16**_RANK_DIGITS:
            raise ValueError(f"more than {16**_RANK_DIGITS} messages were stored in one second")
        renamed |= {row_id: f"{second}{seed}{rank:06x}" for rank, row_id in enumerate(sorted(of_second))}
    return renamed


def renamed_row(document: Row, row_id: str, new_id: str, owner_key: str, session_id: str) -> Row:
    """A spelled row of another session; `row_id` and `new_id` are its `_id` as it was and as it is to be."""
    names: dict[str, Any] = {"owner_key": owner_key, "session_id": session_id}
    if new_id != row_id:
        names["_id"] = {"$oid": new_id} if is_object_id(new_id) else new_id
    # In the places that they had: somebody may show the fields in their order.
    return {**document, **names}


def renamed_compaction(compaction: Compaction, ids: Mapping[str, str]) -> Compaction:
    """The compaction with the new names of its rows. Of a row that is not there any more it keeps the name."""
    rows, without = _renamed(compaction.rows, ids), _renamed(compaction.without, ids)
    return compaction.model_copy(update={"rows": rows, "without": tuple(sorted(without))})


def _renamed(row_ids: Sequence[str], ids: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(ids.get(row_id, row_id) for row_id in row_ids)
