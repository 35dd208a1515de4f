"""Databases that tests use in turn: to empty one takes a tenth of the time that making and dropping it takes.

Rules of this module:

- A database is emptied when it is taken again, some tests after it was given back: by then also that is there which a
  writer who was cancelled had on its way.
- One whose collections, their options or indexes are not as they were made is not used again.
"""

import uuid
from collections import deque
from contextlib import suppress
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from nexus.adapters.mongo.schema import INDEXES, WORDS_INDEX

_Shape = dict[str, tuple[dict[str, Any], list[str]]]

_IN_TURN: Final = 8


class DatabasePool:
    """Databases that are as Nexus prepares them, and empty, on this client's server."""

    def __init__(self, client: MongoClient[dict[str, Any]]) -> None:
        self._client = client
        self._rest: deque[tuple[str, _Shape]] = deque()

    def take(self) -> tuple[str, _Shape]:
        """The name of a database for one test, and its shape: both are for `give_back`."""
        if len(self._rest) < _IN_TURN:
            return self.make()
        name, shape = self._rest.popleft()
        for collection in shape:
            self._client[name][collection].delete_many({})
        return name, shape

    def give_back(self, name: str, shape: _Shape) -> None:
        """The test has ended, and its connections are closed."""
        if self._shape(name) == shape:
            self._rest.append((name, shape))
        else:
            self._client.drop_database(name)

    def close(self) -> None:
        """Drop them all."""
        for name, _ in self._rest:
            self._client.drop_database(name)

    def make(self) -> tuple[str, _Shape]:
        """The same of a database that no test has had."""
        name = f"test_{uuid.uuid4().hex}"
        for collection, indexes in INDEXES.items():
            self._client[name][collection].create_indexes(indexes)
        self._client[name].create_collection("schema")
        # Nexus does without it where it has to.
        with suppress(PyMongoError):
            self._client[name]["memory_details"].create_indexes([WORDS_INDEX])
        return name, self._shape(name)

    def _shape(self, name: str) -> _Shape:
        """The options and the names of the indexes of each collection."""
        database = self._client[name]
        return {
            each["name"]: (each["options"], sorted(database[each["name"]].index_information()))
            for each in database.list_collections()
        }
