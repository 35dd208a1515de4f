"""What others make "the newest 20 messages as a context" with: a process in a peer's own virtual environment.

`python peer.py langchain|openai|llama`. Reads a job a line from stdin: `uri` and `database`, `session`, and either
`store` (messages: `role`, `content`) or `times`, how often to read. Writes a line to stdout for each: `ms` of every
reading, and how many `messages` the last one had. Each is used as its documentation shows, with what it offers for a
limit. Nothing of Nexus is imported here: it is not installed there.
"""
# ruff: noqa: PLC0415  # only one of the peers is installed

import asyncio
import json
import sys
import time
from abc import ABC, abstractmethod
from typing import Any

_NEWEST = 20

Messages = list[dict[str, str]]


class Peer(ABC):
    """One session of a peer."""

    @abstractmethod
    async def store(self, messages: Messages) -> None:
        """Add these messages, oldest first."""

    @abstractmethod
    async def read(self) -> list[Any]:
        """The newest messages."""


class LangChain(Peer):
    """`MongoDBChatMessageHistory` with its limit, then `trim_messages`."""

    def __init__(self, uri: str, database: str, session: str) -> None:
        from langchain_mongodb import MongoDBChatMessageHistory

        self._history = MongoDBChatMessageHistory(uri, session, database, history_size=_NEWEST)

    async def store(self, messages: Messages) -> None:
        """Each a document."""
        from langchain_core.messages import AIMessage, HumanMessage

        kinds = {"user": HumanMessage, "assistant": AIMessage}
        await self._history.aadd_messages([kinds[each["role"]](each["content"]) for each in messages])

    async def read(self) -> list[Any]:
        """Twenty of them, from a question on."""
        from langchain_core.messages import trim_messages

        messages = await self._history.aget_messages()
        return [*trim_messages(messages, strategy="last", token_counter=len, max_tokens=_NEWEST, start_on="human")]


class OpenAI(Peer):
    """`MongoDBSession`, read with its limit."""

    def __init__(self, uri: str, database: str, session: str) -> None:
        from agents.extensions.memory import MongoDBSession

        self._session = MongoDBSession.from_uri(session, uri=uri, database=database)

    async def store(self, messages: Messages) -> None:
        """A batch a turn, as the runner does it."""
        for first in range(0, len(messages), 2):
            await self._session.add_items(messages[first : first + 2])

    async def read(self) -> list[Any]:
        """Twenty of them."""
        items: list[Any] = await self._session.get_items(limit=_NEWEST)
        return items


class Llama(Peer):
    """`ChatMemoryBuffer` on `MongoChatStore`: its limit is one of tokens."""

    def __init__(self, uri: str, database: str, session: str) -> None:
        from llama_index.core.memory import ChatMemoryBuffer
        from llama_index.storage.chat_store.mongo import MongoChatStore

        self._store, self._key = MongoChatStore(mongo_uri=uri, db_name=database), session
        self._memory = ChatMemoryBuffer.from_defaults(chat_store=self._store, chat_store_key=session, token_limit=1_500)

    async def store(self, messages: Messages) -> None:
        """All at once."""
        from llama_index.core.llms import ChatMessage

        await self._store.aset_messages(self._key, [ChatMessage(**each) for each in messages])

    async def read(self) -> list[Any]:
        """Some twenty."""
        messages: list[Any] = await self._memory.aget()
        return messages


def _session(name: str, uri: str, database: str, session: str) -> Peer:
    if name == "langchain":
        return LangChain(uri, database, session)
    return OpenAI(uri, database, session) if name == "openai" else Llama(uri, database, session)


async def main(name: str) -> None:
    """Do the jobs until stdin ends."""
    peer: Peer | None = None
    for line in iter(sys.stdin.readline, ""):
        job = json.loads(line)
        peer = peer or _session(name, job["uri"], job["database"], job["session"])
        found: list[Any] = []
        ms = []
        if "store" in job:
            await peer.store(job["store"])
        for _ in range(job.get("times", 0)):
            started = time.perf_counter()
            found = await peer.read()
            ms.append((time.perf_counter() - started) * 1e3)
        print(json.dumps({"ms": ms, "messages": len(found)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
