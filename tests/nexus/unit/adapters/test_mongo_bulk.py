"""Which documents go in which command, and what is said of each."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from pymongo import WriteConcern
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure

from nexus.adapters.mongo_bulk import Bulk
from nexus.adapters.mongo_passing import Passing
from nexus.adapters.mongo_pipelines import NotPipelinedError

Said = Mapping[str, Any] | Exception


class Server:
    """Stands for the pipelines, and for the driver's collection: says of each command what it is told to.

    Attributes:
        commands: the values in the documents of each that came past the driver, or `driver` and those.
        asked: these commands.
        said: of each that comes past the driver; then that all went well.
        by_driver: likewise.
    """

    def __init__(self, said: Sequence[Said] = (), by_driver: Sequence[Said] = ()) -> None:
        self.passing = Passing()
        self.name = "messages"
        self.database = SimpleNamespace(name="nexus")
        self.write_concern = WriteConcern("majority")
        self.commands: list[list[Any]] = []
        self.asked: list[Mapping[str, Any]] = []
        self.ids: list[Any] = []
        self.said, self.by_driver = [*said], [*by_driver]

    async def run(self, database: str, command: Mapping[str, Any], _: object, documents: Sequence[bytes]) -> Any:
        """Past the driver."""
        assert database == "nexus"
        self.asked.append(command)
        return self._says([bson.decode(each) for each in documents], self.said)

    async def insert_many(self, documents: Sequence[Mapping[str, Any]], *, ordered: bool) -> None:
        """By the driver."""
        if details := self._says(documents, self.by_driver, "driver", ordered):
            raise BulkWriteError(details)

    def _says(self, documents: Sequence[Mapping[str, Any]], said: list[Said], *how: Any) -> Any:
        self.commands.append([*how, *(each["n"] for each in documents)])
        self.ids.append([each["_id"] for each in documents])
        answer = said.pop(0) if said else {}
        if isinstance(answer, Exception):
            raise answer
        return answer


def insert(server: Server, documents: Sequence[Mapping[str, Any]], *, ordered: bool = True) -> dict[str, Any]:
    """The details of what went wrong."""
    try:
        asyncio.run(Bulk(server, server).insert_many([dict(each) for each in documents], ordered=ordered))  # type: ignore[arg-type]  # stands for it
    except BulkWriteError as error:
        return dict(error.details or {})
    return {}


def numbered(count: int, text: str = "") -> list[dict[str, Any]]:
    """So many documents."""
    return [{"n": number, "text": text} for number in range(count)]


def places(details: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Of what was refused, and with which code."""
    return [(fault["index"], fault["code"]) for fault in details.get("writeErrors", ())]


def test_no_command_is_long() -> None:
    """Thirty-two documents, or 64 KiB of them; with the collection's own promise of how they are kept."""
    server = Server()
    assert insert(server, numbered(70)) == {}
    assert server.commands == [[*range(32)], [*range(32, 64)], [*range(64, 70)]]
    assert server.asked[0] == {"insert": "messages", "ordered": True, "writeConcern": {"w": "majority"}}
    server = Server()
    assert insert(server, numbered(5, "x" * 30_000), ordered=False) == {}
    assert server.commands == [[0, 1], [2, 3], [4]]
    assert server.asked[0]["ordered"] is False


def test_each_has_one_id() -> None:
    """Its own, or a new one, with which it is inserted however often."""
    server = Server([NotPipelinedError()])
    documents: list[dict[str, Any]] = [{"n": 0}, {"n": 1, "_id": "mine"}]
    assert insert(server, documents) == {}
    assert server.commands == [[0, 1], ["driver", True, 0, 1]]
    assert server.ids[0] == server.ids[1]
    assert server.ids[0][1] == "mine"
    assert "_id" not in documents[0]


def test_what_is_large_is_the_drivers() -> None:
    """By itself, and the others go as ever, in their order."""
    server = Server()
    documents = numbered(4)
    documents[1]["text"] = "x" * 70_000
    assert insert(server, documents) == {}
    assert server.commands == [[0], ["driver", True, 1], [2, 3]]


@pytest.mark.parametrize("value", ["\ud800", 1 << 64, object()])
def test_what_cannot_be_sent(value: object) -> None:
    """Is refused as a server would, and no other is; of ordered ones none behind it is inserted."""
    documents = [*numbered(40), {"n": 40, "value": value}, *numbered(2)]
    server = Server()
    details = insert(server, documents, ordered=False)
    assert (places(details), details["nInserted"]) == ([(40, 22)], 42)
    assert server.commands == [[*range(32)], [*range(32, 40)], [0, 1]]
    server = Server()
    details = insert(server, documents)
    assert (places(details), details["nInserted"]) == ([(40, 22)], 40)
    assert server.commands == [[*range(32)], [*range(32, 40)]]


@pytest.mark.parametrize("by_driver", [False, True])
def test_what_is_refused(*, by_driver: bool) -> None:
    """Is told with its place among all; of ordered ones nothing is inserted after it."""
    faults = [{"index": 3, "code": 11000}, {"index": 5, "code": 121}]
    refused = [NotPipelinedError()] if by_driver else [{"writeErrors": faults}]
    for ordered in (False, True):
        said = [{}, *refused]
        server = Server(said, [{"writeErrors": faults[: 1 if ordered else 2]}])
        if ordered and not by_driver:
            server.said[1] = {"writeErrors": faults[:1]}
        details = insert(server, numbered(70), ordered=ordered)
        assert places(details) == [(35, 11000)] if ordered else [(35, 11000), (37, 121)]
        assert details["nInserted"] == (35 if ordered else 68)
        assert (server.commands[-1] == [*range(64, 70)]) is not ordered


def test_what_may_be_lost_again() -> None:
    """A server that does not promise to keep what it has inserted says so."""
    concern = {"code": 64, "errmsg": "waiting for replication timed out"}
    details = insert(Server([{}, {"writeConcernError": concern}]), numbered(70))
    assert (details["writeConcernErrors"], details["writeErrors"]) == ([concern], [])
    details = insert(Server([NotPipelinedError()], [{"writeConcernErrors": [concern]}]), numbered(3))
    assert details["writeConcernErrors"] == [concern]


@pytest.mark.parametrize("error", [OperationFailure("no", 13), AutoReconnect("gone")])
def test_what_says_nothing_of_each(error: Exception) -> None:
    """Is raised as it comes, past the driver and by it."""
    for server in (Server([error]), Server([NotPipelinedError()], [error])):
        with pytest.raises(type(error)):
            insert(server, numbered(3))


def test_larger_than_a_server_takes() -> None:
    """Is that document's own fault, whoever finds it out."""
    documents: list[dict[str, Any]] = [{"n": 0, "text": "x" * 70_000}, {"n": 1}]
    for error in (OperationFailure("too large", 10334), bson.errors.InvalidDocument("too large")):
        server = Server([], [error])
        details = insert(server, documents, ordered=False)
        assert [index for index, _ in places(details)] == [0]
        assert server.commands == [["driver", False, 0], [1]]
