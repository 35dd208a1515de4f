"""What the index keeps of a row: the text by which it is found, its terms, and what else is true of it. Pure.

- Of a large result of a tool the first lines are kept, of a call its annotation, of all else the whole text.
- A row may have a key, such as the summary of its turn: another text whose words lead to it, and which is not shown.
- Rows that no context shows, those internal to a sub-agent, calls and results of memory tools, and what was itself
  recalled have no text: they are never found.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from nexus.core.models import Row, is_internal, metadata_of
from nexus.core.recall import Entry, Language, Occurrence, Place
from nexus.services.history.messages import HistoryMessage, messages_of
from nexus.services.history.tool_calls import annotate
from nexus.services.recall.terms import flags_of, occurrences
from nexus.services.text.content import without_recalled
from nexus.services.tools.memory_tools import MEMORY_TOOLS

# Bytes of a result of a tool.
_MOST_OF_RESULT: Final = 2_048


class Findable(NamedTuple):
    """By what a row is found."""

    terms: Mapping[str, Occurrence]
    flags: list[str]

    def at(self, owner_key: str, place: Place) -> Entry:
        """The entry of the index for a row of the owner at this place."""
        return Entry(owner_key, place, self.terms, self.flags)


def findable(row: Row, language: Language = "english") -> Findable | None:
    """By what a row is found, with words in Latin letters of that language; None for one that never is."""
    messages = [message for message in messages_of([row]) if said_in(message)]
    if not messages:
        return None
    by_assistant = all(message.role == "assistant" for message in messages)
    key = row.get("recall_key")
    # What the row says itself counts as it is said there.
    terms = {
        **occurrences(key if isinstance(key, str) else "", language),
        **occurrences(_joined(row, messages), language),
    }
    return Findable(terms, flags_of(messages[0].moment, by_assistant=by_assistant))


def text_of(row: Row) -> str:
    """The text by which a row is found, behind the name of who said it; `""` for one that never is."""
    return _joined(row, messages_of([row]))


def _joined(row: Row, messages: Sequence[HistoryMessage]) -> str:
    said = "\n".join(filter(None, map(said_in, messages)))
    name = metadata_of(row).get("name")
    # A result has the name of its tool there.
    is_named = isinstance(name, str) and name.strip() and messages and messages[0].role != "tool"
    return f"{str(name).strip()}: {said}" if said and is_named else said


def said_in(message: HistoryMessage) -> str:
    """The text of a message; `""` for one that is never found."""
    if message.role is None or is_internal(message.metadata) or message.tool_name in MEMORY_TOOLS:
        return ""
    text = without_recalled(message.text)
    if message.role == "tool":
        return _first_lines(text).strip()
    calls = annotate([call for call in message.calls if call.name not in MEMORY_TOOLS], str)
    return "\n".join(filter(None, (text.strip(), calls)))


def _first_lines(text: str) -> str:
    """Whole lines of the beginning; of a long line its beginning."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= _MOST_OF_RESULT:
        return text
    head = encoded[:_MOST_OF_RESULT].decode("utf-8", "ignore")
    if encoded[_MOST_OF_RESULT : _MOST_OF_RESULT + 1] == b"\n":
        return head
    return head[: head.rfind("\n")] if "\n" in head.strip() else head
