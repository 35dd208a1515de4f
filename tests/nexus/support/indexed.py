"""What the index of long-term memory has, read from the database as it is stored, and held to the messages."""

from collections import Counter
from typing import Any, Final

from pymongo.database import Database

from nexus.core.recall import EPISODE
from nexus.services.recall.texts import findable

Document = dict[str, Any]
_BLOCK: Final = 64


def waiting_in(database: Database[Document]) -> int:
    """How many messages are not indexed yet."""
    return database["messages"].count_documents({"recall.work": {"$exists": True}})


def claimed_in(database: Database[Document]) -> int:
    """How many of them a replica has claimed, which may be dead by now."""
    return database["messages"].count_documents({"recall.work": {"$exists": True}, "recall.claim": {"$exists": True}})


def faults_of_index(database: Database[Document]) -> list[str]:
    """What the index lacks, has twice, or has of no message; nothing where every message is indexed once."""
    wanted: dict[tuple[str, str, int], int] = {}
    places: Counter[tuple[str, int]] = Counter()
    faults = []
    for row in database["messages"].find():
        found = findable({**row, "_id": str(row["_id"])})
        state = row.get("recall", {})
        if "work" in state or ("place" in state) != bool(found):
            faults.append(f"{row['id']}: {state}")
        if found and "place" in state:
            places[row["owner_key"], state["place"]] += 1
            wanted |= {(row["owner_key"], term, state["place"]): value for term, value in found.terms.items()}
    faults += [f"{place}: of {count} messages" for place, count in places.items() if count > 1]
    kept = _postings(database)
    faults += [f"{each}: missing" for each in wanted.keys() - kept.keys()]
    faults += [f"{each}: of no message" for each in kept.keys() - wanted.keys()]
    return faults + [f"{each}: {kept[each]}" for each in wanted.keys() & kept.keys() if kept[each] != wanted[each]]


def _postings(database: Database[Document]) -> dict[tuple[str, str, int], int]:
    """By owner, term and place, the occurrences of all terms."""
    kept: dict[tuple[str, str, int], int] = {}
    for document in database["recall_postings"].find():
        owner, term, block = document["_id"].split("|")
        for episode, occurrences in document.get("p", {}).items():
            assert int(episode) // _BLOCK == int(block), document["_id"]
            kept |= {(owner, term, int(episode) * EPISODE + int(at)): value for at, value in occurrences.items()}
    return kept
