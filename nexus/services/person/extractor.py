"""Has a model read what a person said in a run, and keeps the facts that its words support (contract §15)."""

from collections.abc import Sequence
from typing import Final

import structlog
from anyio import to_thread

from nexus.core.errors import StoreRejectedError
from nexus.core.metrics import Event, Metrics, NoMetrics, Purpose
from nexus.core.models import Row, utc_now
from nexus.core.ports import LanguageModel, MessageStore
from nexus.services.person.extraction import (
    SCHEMA,
    SCHEMA_NAME,
    Reply,
    Said,
    checked,
    counted,
    document_of,
    entry_of,
    read_reply,
    said_in,
    task,
)
from nexus.services.person.facts import Facts
from nexus.services.text.model_reply import CallLimit, RoomForPrompts, SummaryModel, packed
from nexus.services.text.sentences import BYTES_A_TOKEN

_log = structlog.get_logger(__name__)

_RECENT_PARTS: Final = 64
# What a document has besides its entries, in bytes.
_AROUND: Final = 20


class FactExtractor:
    """Extracts facts by a model, in prompts of so many tokens; a token is taken for three bytes of UTF-8.

    The same messages and replies make the same statements, so that repeating it changes nothing.
    """

    def __init__(
        self,
        facts: Facts,
        model: LanguageModel,
        messages: MessageStore,
        *,
        max_input_tokens: int = 24_000,
        metrics: Metrics | None = None,
    ) -> None:
        self._facts = facts
        self._messages = messages
        self._metrics = metrics or NoMetrics()
        self._model = SummaryModel[Reply](model, SCHEMA, SCHEMA_NAME, _RECENT_PARTS, Purpose.FACTS, self._metrics)
        self._room = RoomForPrompts(max_input_tokens * BYTES_A_TOKEN - len(task().encode()))

    async def extract(
        self, owner_key: str, run_id: str, rows: Sequence[Row], known: Sequence[str], calls: CallLimit
    ) -> list[str]:
        """Keep the facts in what the person said in these rows of a run, but for messages that are `known`.

        The model is not asked where there is nothing to read.

        Returns:
            The ids of the messages that were read.

        Raises:
            ModelUnavailableError, UnusableReplyError, TooManyCallsError: there is no reply; `calls` then has the calls
                that were made.
            StoreUnavailableError: they are not kept.
        """
        messages = await to_thread.run_sync(_unread, rows, frozenset(known))
        if messages:
            replies = await self._room.fit(lambda room: self._parts(messages, room, calls))
            statements, refused = await to_thread.run_sync(checked, owner_key, replies, messages)
            # The model may have taken minutes, and what it read may be erased.
            there = await self._messages.recorded_ids(owner_key, [message.id for message in messages])
            statements = [each for each in statements if not there.isdisjoint(each.evidence)]
            try:
                await self._facts.add(owner_key, statements)
            except StoreRejectedError as error:
                # The owner has too many: asking again would change nothing.
                _log.warning("facts_refused", run_id=run_id, reason=str(error))
                self._metrics.count(Event.FACTS_REFUSED)
            else:
                self._metrics.count(Event.FACT_EXTRACTED, len(statements))
            if refused:
                self._metrics.count(Event.FACT_UNSUPPORTED, refused.total())
                _log.info("facts_unsupported", run_id=run_id, reason=", ".join(counted(refused)))
        return [message.id for message in messages]

    async def _parts(self, messages: Sequence[Said], room: int, calls: CallLimit) -> list[Reply]:
        """What the model reports, unchecked."""
        parts = await to_thread.run_sync(_parts_of, messages, room - _AROUND)
        calls.check(len(parts))
        return [await self._model.ask_once("messages", task, part, read_reply, calls) for part in parts]


def _unread(rows: Sequence[Row], known: frozenset[str]) -> list[Said]:
    return [said for said in said_in(rows, utc_now()) if said.id not in known]


def _parts_of(messages: Sequence[Said], room: int) -> list[str]:
    """The user messages in which all of it is told."""
    pieces = (piece.whole for message in messages for piece in entry_of(message).cut(room))
    return [document_of(part) for part in packed(pieces, room)]
