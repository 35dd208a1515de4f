"""Inserting many documents in small commands, in passing, past the drivers (CONTRACT §2).

Rules of this module:

- A command inserts so little that whoever comes meanwhile hardly waits for it, and is made when there is time for it.
- Each document fares by itself: one that is too large or cannot be sent is no other's business.
- What is large goes by the driver, and what there is no reply to be had for. That may insert again what is inserted,
  with the same `_id`: it is refused as a duplicate then, and stands there once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import bson
from bson import ObjectId
from pymongo.errors import BulkWriteError, OperationFailure

from nexus.adapters.mongo_calls import TOO_LARGE, UNSENDABLE
from nexus.adapters.mongo_pipelines import NotPipelinedError, Pipelines
from nexus.adapters.mongo_replies import REPLIES
from nexus.core.ports import Row

# In one command. With half of them, the commands themselves cost more than they spare others.
_TOGETHER: Final = 32
_TOGETHER_BYTES: Final = 1 << 16
# For how long all of them may wait for reads of others.
_PATIENCE_S: Final = 0.015

# As a server says it of what it does not keep: InvalidBSON.
_UNSENDABLE: Final = {"code": 22, "errmsg": "cannot be sent"}

_Fault = Mapping[str, Any]


class Bulk:
    """Inserts into a collection.

    Args:
        collection: of motor or of pymongo's asyncio client.
        pipelines: on which it is done.
    """

    def __init__(self, collection: Any, pipelines: Pipelines) -> None:
        self._collection = collection
        self._pipelines = pipelines
        self._database: str = collection.database.name
        self._command: dict[str, Any] = {"insert": collection.name}
        if concern := collection.write_concern.document:
            self._command["writeConcern"] = concern

    async def insert_many(self, documents: Sequence[Row], *, ordered: bool = True) -> None:
        """Insert documents as a driver's `insert_many` does; these are not changed.

        Args:
            documents: which; one without `_id` is given one.
            ordered: whether none is inserted after one that is refused.

        Raises:
            BulkWriteError: some of them were refused, or cannot be sent; its details say which and why. The others are
                inserted, unless they come later and these are ordered.
            PyMongoError: nobody knows which of them were inserted.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S
        faults: list[_Fault] = []
        concerns: list[_Fault] = []
        done = 0
        while done < len(documents) and not (ordered and faults):
            # Encoding is part of what waits.
            await self._pipelines.passing.wait(until)
            piece = _Piece(documents, done)
            details = await self._insert(piece, ordered=ordered)
            concerns += details.get("writeConcernErrors", ())
            faults += [{**fault, "index": fault["index"] + done} for fault in details.get("writeErrors", ())]
            done += len(piece.documents)
            if piece.fault and not (ordered and faults):
                faults.append({**piece.fault, "index": done})
                done += 1
        if faults or concerns:
            inserted = faults[0]["index"] if ordered and faults else len(documents) - len(faults)
            raise BulkWriteError({"writeErrors": faults, "writeConcernErrors": concerns, "nInserted": inserted})

    async def _insert(self, piece: "_Piece", *, ordered: bool) -> Mapping[str, Any]:
        """The details of a `BulkWriteError` about these, as far as there is something wrong."""
        if piece.encoded:
            command = {**self._command, "ordered": ordered}
            try:
                reply = await self._pipelines.run(self._database, command, REPLIES, piece.encoded)
            except NotPipelinedError:
                pass
            else:
                concern = reply.get("writeConcernError")
                return {**reply, "writeConcernErrors": [concern]} if concern else reply
        if not piece.documents:
            return {}
        try:
            await self._collection.insert_many(piece.documents, ordered=ordered)
        except BulkWriteError as error:
            return error.details or {}
        except UNSENDABLE:
            # Nothing but one that is large by itself.
            return {"writeErrors": [{**_UNSENDABLE, "index": 0}]}
        except OperationFailure as error:
            if error.code != TOO_LARGE:
                raise
            return {"writeErrors": [{"code": TOO_LARGE, "index": 0}]}
        return {}


class _Piece:
    """What is inserted of some documents with one command, from one place on.

    Attributes:
        documents: these, with an `_id` each.
        encoded: the same as BSON; none where the driver has to insert it, because it is large.
        fault: why the document behind them cannot be sent; None where that is not so, or not known.
    """

    def __init__(self, documents: Sequence[Row], start: int) -> None:
        self.documents: list[Row] = []
        self.encoded: list[bytes] = []
        self.fault: _Fault | None = None
        room = _TOGETHER_BYTES
        for document in documents[start : start + _TOGETHER]:
            with_id = {"_id": ObjectId(), **document}
            try:
                encoded = bson.encode(with_id)
            except UNSENDABLE:
                self.fault = _UNSENDABLE
                return
            room -= len(encoded)
            if room < 0 and self.documents:
                return
            self.documents.append(with_id)
            if room < 0:
                return
            self.encoded.append(encoded)
