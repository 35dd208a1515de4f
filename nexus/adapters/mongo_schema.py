"""What MongoDB holds and how it is asked for: indexes, projections and the order of rows (CONTRACT §2). Pure.

Rules of this module:

- Rows of tools are skipped in the index. How big contents stay on the server: see `nexus.adapters.mongo_excerpts`.
- MongoDB sorts values of one type before those of another, so rows whose `timestamp` is a text come after all that have
  a date, however new they are. They are read by themselves and put in their place here.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.dbref import DBRef
from pymongo import ASCENDING, DESCENDING, TEXT, IndexModel

from nexus.core.ports import Row, RunOrigin
from nexus.services.context.agents import AGENT_ID, INTERNAL, named_agent
from nexus.services.context.clock import LONG_AGO, parse_moment


class _NoReferences(TypeDecoder):
    """An object with `$ref` and `$id` comes back as the object that it was: somebody's JSON schema, say."""

    @property
    def bson_type(self) -> type[DBRef]:
        """What pymongo makes of such an object."""
        return DBRef

    def transform_bson(self, value: DBRef) -> dict[str, Any]:
        """The object."""
        return dict(value.as_doc())


# Dates that Python cannot hold and text that is not UTF-8 come through changed rather than spoil the rows around them.
CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    tz_aware=True,
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
    type_registry=TypeRegistry([_NoReferences()]),
)
NEWEST_FIRST: Final = [("timestamp", DESCENDING), ("_id", DESCENDING)]
OLDEST_FIRST: Final = [("timestamp", ASCENDING), ("_id", ASCENDING)]
NOT_SHOWN: Final = [form for role in ("TOOL", "SYSTEM", "COMMAND") for form in (role, role.lower(), role.title())]
HEADER: Final = dict.fromkeys(("id", "run_id", "owner_key", "session_id", "role", "timestamp"), 1)
ORIGIN: Final = dict.fromkeys(("session_id", f"metadata.{INTERNAL}", f"metadata.{AGENT_ID}"), 1)
NOT_INTERNAL: Final = {f"metadata.{INTERNAL}": {"$ne": True}}
ONLY_INTERNAL: Final = {f"metadata.{INTERNAL}": True}
TEXT_TIME: Final = {"timestamp": {"$type": "string"}}
NO_TEXT_TIME: Final = {"timestamp": {"$not": {"$type": "string"}}}

# The role stands last in an index so that the sort is served and rows of tools are passed over without being read.
_SORTED: Final = [*NEWEST_FIRST, ("role", ASCENDING)]
OF_RUN: Final = [("owner_key", ASCENDING), ("run_id", ASCENDING), *_SORTED]
_SESSION: Final = [("owner_key", ASCENDING), ("session_id", ASCENDING)]
OF_SESSION: Final = [*_SESSION, *NEWEST_FIRST]
STORED_IN_SESSION: Final = [*_SESSION, ("_id", ASCENDING)]
INTERNAL_IN_SESSION: Final = [*_SESSION, (f"metadata.{AGENT_ID}", ASCENDING), ("_id", ASCENDING)]
# Holds no more than the documents on which something is due: no session, however long, makes claiming slower.
_IS_DUE: Final = {"work": {"$gt": ""}}
INDEXES: Final[dict[str, list[IndexModel]]] = {
    "messages": [
        IndexModel([("owner_key", ASCENDING), *_SORTED], name="newest_of_owner"),
        IndexModel(OF_RUN, name="newest_of_run"),
        IndexModel(OF_SESSION, name="newest_of_session"),
        IndexModel(STORED_IN_SESSION, name="stored_in_session"),
        IndexModel(INTERNAL_IN_SESSION, name="internal_in_session", partialFilterExpression=ONLY_INTERNAL),
        # Partial, because rows that others wrote without an id must not stand in each other's way.
        IndexModel(
            [("owner_key", ASCENDING), ("id", ASCENDING)],
            name="one_per_id",
            unique=True,
            partialFilterExpression={"id": {"$gt": ""}},
        ),
        # Empty where Nexus alone writes. It tells at once whether there is any such row.
        IndexModel([("timestamp", ASCENDING)], name="text_times", partialFilterExpression=TEXT_TIME),
    ],
    "identities": [IndexModel([("public_key", ASCENDING)], name="one_per_key", unique=True)],
    "configurations": [IndexModel([("environment", ASCENDING)], name="one_per_environment", unique=True)],
    "tools": [IndexModel([("name", ASCENDING)], name="one_per_name", unique=True)],
    "session_states": [IndexModel(_SESSION, name="one_per_session", unique=True)],
    "turns": [
        IndexModel([*_SESSION, ("turn_number", DESCENDING)], name="one_per_number", unique=True),
        # The run comes before the session, because what is heard of a run need not say where it belongs.
        IndexModel(
            [("owner_key", ASCENDING), ("run_id", ASCENDING), ("session_id", ASCENDING)],
            name="one_per_run",
            unique=True,
        ),
        IndexModel([("work", ASCENDING), ("due_at", DESCENDING)], name="work_due", partialFilterExpression=_IS_DUE),
    ],
    "working_memory": [IndexModel([*_SESSION, ("revision", DESCENDING)], name="one_per_revision", unique=True)],
    "memory_details": [
        IndexModel([*_SESSION, ("name", ASCENDING), ("version", ASCENDING)], name="one_per_version", unique=True),
        IndexModel(
            [*_SESSION, ("kind", ASCENDING), ("updated_at", DESCENDING), ("name", DESCENDING)], name="newest_of_kind"
        ),
        IndexModel(
            [*_SESSION, ("kind", ASCENDING), ("name", ASCENDING), ("version", ASCENDING)], name="versions_of_kind"
        ),
    ],
    "compactions": [
        IndexModel([*_SESSION, ("number", DESCENDING)], name="one_per_number", unique=True),
        IndexModel([("work", ASCENDING), ("due_at", ASCENDING)], name="work_due", partialFilterExpression=_IS_DUE),
    ],
}
WORDS: Final = "words"
# What only makes something faster. Not every server can make these.
WELCOME: Final[dict[str, list[IndexModel]]] = {
    # Words as they are written: no language's stems and stop words, and no field that names a language.
    "memory_details": [
        IndexModel([*_SESSION, ("content", TEXT)], name=WORDS, default_language="none", language_override="_language")
    ],
}


def is_same_index(wanted: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether `other`, as a collection tells of its indexes, does what `wanted` is to do, whatever its name is."""
    options = ("unique", "partialFilterExpression")
    same_keys = list(wanted["key"].items()) == list(other["key"])
    return same_keys and all((wanted.get(option) or None) == (other.get(option) or None) for option in options)


def seen_by(sub_agent: str | None) -> dict[str, Any]:
    """The condition for the rows that this sub-agent sees, None for the main agent; see `Agent.sees`."""
    if sub_agent is None:
        return NOT_INTERNAL
    return {"$or": [NOT_INTERNAL, _names(sub_agent)]}


def internal_to(sub_agent: str) -> dict[str, Any]:
    """The condition for the rows that the main agent does not see, and this sub-agent does."""
    return {**ONLY_INTERNAL, **_names(sub_agent)}


def _names(sub_agent: str) -> dict[str, Any]:
    return {f"metadata.{AGENT_ID}": {"$in": [None, "", sub_agent]}}


def of_session(owner_key: str, session_id: str) -> dict[str, Any]:
    """The condition for what belongs to a session: texts, so that nothing that one is called can be an operator."""
    return {"owner_key": {"$eq": owner_key}, "session_id": {"$eq": session_id}}


def containing(text: str) -> dict[str, str]:
    """The condition for a text that has this one in it, whatever the case."""
    # A pattern ends at a NUL, so that is written as what stands for it.
    return {"$regex": re.escape(text).replace("\x00", r"\x00"), "$options": "i"}


def origin_of(row: Row) -> RunOrigin | None:
    """Where the run of a human's row belongs, read leniently."""
    session, metadata = row.get("session_id"), row.get("metadata")
    if not isinstance(session, str):
        return None
    return RunOrigin(session, named_agent(metadata))


def newest_first(rows: Iterable[Row]) -> list[Row]:
    """The rows by moment, whatever form their timestamps have; those without a readable one last."""
    return sorted(rows, key=lambda row: (parse_moment(row.get("timestamp")) or LONG_AGO, row["_id"]), reverse=True)
