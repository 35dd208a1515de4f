"""What is to be true of every context of a long session, and of what is stored of it in the end.

It shares no code with the service: tokens are counted by another tokenizer, blocks are known from what was said, and
the accounts are made of the documents in the database.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pymongo.database import Database

from nexus.services.context.formats import Converted
from tests.nexus.e2e.harness import Document
from tests.nexus.e2e.long_player import Heard, Said
from tests.nexus.support.long_session import MARK
from tests.nexus.support.providers import openai_faults
from tests.nexus.support.tokens import tokens

# What a provider adds to texts (docs/working-memory.md).
_A_MESSAGE: Final = 3
_A_CALL: Final = 12
_A_RESULT: Final = 8
_THE_REPLY: Final = 3
# A number that is counted itself may be told too high, by the token by which a higher one is shorter.
_TOLD_TOO_HIGH: Final = 3
_USED: Final = re.compile(r"^tokens_used: (\d+)$", re.MULTILINE)
_SHOWN: Final = {"HISTORY", "INPUT", "RUN"}

count = lru_cache(maxsize=10_000)(tokens)


@dataclass(frozen=True, slots=True)
class Account:
    """Where the messages of a session are.

    Attributes:
        lost: in no context and under no compaction.
        twice: under two, or under one and in the context as well.
    """

    messages: int
    in_context: int
    summarised: int
    lost: int
    twice: int


class Judge:
    """Holds every context to its promises, and takes notes.

    Args:
        window: tokens that no context may have more of.
        said: what was said until now.

    Attributes:
        tokens: of each context.
    """

    def __init__(self, window: int, said: Said) -> None:
        self._window = window
        self._said = said
        self.tokens: list[int] = []

    def __call__(self, heard: Heard) -> None:
        """Look at an answer."""
        content, where = heard.content, (heard.run.id, heard.step)
        assert content["status"] == "success", (where, content)
        assert content["degraded"] == [], where
        messages, tools = content["messages"], content["tools"]
        assert openai_faults(Converted(messages, tools, [], [], None), typed=False) == [], where
        used = tokens_of(messages, tools)
        assert used <= self._window, (where, used)
        assert 0 <= told_tokens(messages) - used <= _TOLD_TOO_HIGH, where
        self.tokens.append(used)
        shown = sources(content)
        assert len(shown) == len(set(shown)), where
        split = [block for block in self._said.blocks if 0 < len(block & set(shown)) < len(block)]
        assert not split, (where, [block - set(shown) for block in split], content["context"]["notes"])
        assert {message["id"] for message in heard.later} <= set(shown), where
        marks = list(marks_of(messages))
        assert marks == sorted(set(marks)), (where, marks)


def tokens_of(messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> int:
    """Tokens of messages in the OpenAI form, with what the provider adds, and of tool definitions as compact JSON."""
    return _THE_REPLY + sum(map(tokens_of_one, messages)) + sum(count(_compact(tool)) for tool in tools)


def tokens_of_one(message: Mapping[str, Any]) -> int:
    """Tokens of one message."""
    told: int = _A_MESSAGE + count(message["role"]) + count(message["content"] or "")
    told += _A_RESULT * (message["role"] == "tool")
    for call in message.get("tool_calls", ()):
        function = call["function"]
        told += _A_CALL + count(function["name"]) + count(function["arguments"])
    return told


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def told_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many tokens the context itself says that it has."""
    last = messages[-1]
    assert last["role"] == "system"
    (used,) = _USED.findall(last["content"])
    return int(used)


def sources(content: Mapping[str, Any]) -> list[str]:
    """The ids of the session's messages that stand in a context as they were said."""
    blocks = content["context"]["blocks"]
    return [source for block in blocks if block["tag"] in _SHOWN for source in block["sources"]]


def marks_of(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """The texts that stand in a context verbatim, by their marks."""
    for message in messages:
        found = MARK.match(message["content"] or "")
        if found and message["role"] != "system":
            yield int(found[1]), int(found[2])


def account(database: Database[Document], session: str, content: Mapping[str, Any]) -> Account:
    """The messages of a session in this context and under compactions, by the database alone."""
    rows = {str(row["_id"]): row["id"] for row in database["messages"].find({"session_id": session}, {"id": 1})}
    covered = Counter(row for made in database["compactions"].find({"session_id": session}) for row in made["rows"])
    shown = set(sources(content))
    places = {row: covered[row] + (row_id in shown) for row, row_id in rows.items()}
    assert not covered.keys() - rows.keys(), "a compaction names what is not there"
    return Account(
        messages=len(rows),
        in_context=sum(row_id in shown for row_id in rows.values()),
        summarised=sum(bool(covered[row]) for row in rows),
        lost=sum(not found for found in places.values()),
        twice=sum(found > 1 for found in places.values()),
    )
