"""Dead letters read, sent again and dropped, by the command and by the console alike (contract §1.6).

A letter is sent first and dropped afterwards, so that none is lost. Where two operators send one at once, or the sender
ends between the two steps, it may be sent twice (on streams once); a message with the same id is recorded once, and a
request has one effective answer.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Final

from nexus.core.concurrency import computed
from nexus.core.errors import UnreadablePayloadError
from nexus.core.models import ALL_TOPICS, ANSWER_TOPICS
from nexus.core.ports import Bus, DeadLetter, DeadLetters, Delivery
from nexus.services.requests.envelope import RequestSettings, read_incoming

LETTER_ID: Final = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
# Letters come with their bodies, so few are held at a time.
_PAGE: Final = 10


class Outcome(Enum):
    """The fate of one letter: whether what was asked for was done, and how that is told."""

    SENT = True, "sent again and dropped"
    SENT_AND_KEPT = True, "sent again, and kept"
    SENT_UNCOUNTED = True, "sent again, and kept: on a cluster pub/sub cannot tell whether anybody heard it"
    SENT_AND_GONE = True, "sent again, but meanwhile gone: somebody else may have sent it too"
    WOULD_BE_SENT = True, "would be sent again"
    DROPPED = True, "dropped"
    WOULD_BE_DROPPED = True, "would be dropped"
    NOT_FOUND = False, "not found: there is no such dead letter"
    WITHOUT_BODY = False, "kept: it has no body to send (bus.dead_letter_bodies was false)"
    OTHER_TOPIC = False, "kept: its topic is none of Nexus"
    TOO_LARGE = False, "kept: it is larger than bus.max_payload_bytes"
    UNHEARD = False, "kept: nobody listens on its topic"

    def __init__(self, done: bool, text: str) -> None:
        self.done = done
        self.text = text


class LetterSender:
    """Sends letters again, on the topics and under the ids they had.

    `counts`: the bus tells how many subscribers a message reached. Where it does not, letters stay.
    """

    def __init__(self, letters: DeadLetters, bus: Bus, settings: RequestSettings, *, counts: bool) -> None:
        self._letters = letters
        self._bus = bus
        self._settings = settings
        self._counts = counts

    async def send(self, letter_id: str, *, keep: bool = False, dry_run: bool = False) -> Outcome:
        """Send a letter again and drop it. A request is then answered anew, whatever it was answered before.

        Raises:
            BusUnavailableError: of what was to be done some may be.
        """
        letter = await self._letters.find(letter_id)
        if letter is None:
            return Outcome.NOT_FOUND
        if obstacle := self._obstacle(letter):
            return obstacle
        if dry_run:
            return Outcome.WOULD_BE_SENT
        for key in await computed("", len(letter.body or b""), partial(self._keys, letter)):
            await self._letters.forget_answer(key)
        await self._letters.expect_again(letter)
        # With `keep` an operator may mean to send the letter several times.
        once = "" if keep or not self._counts else f"dead-letter:{letter.letter_id}"
        if not await self._bus.publish(letter.topic, letter.body or b"", once=once):
            return Outcome.UNHEARD
        if keep or not self._counts:
            return Outcome.SENT_AND_KEPT if keep else Outcome.SENT_UNCOUNTED
        return Outcome.SENT if await self._letters.drop(letter.letter_id) else Outcome.SENT_AND_GONE

    def _obstacle(self, letter: DeadLetter) -> Outcome | None:
        if letter.body is None:
            return Outcome.WITHOUT_BODY
        if letter.topic not in ALL_TOPICS:
            return Outcome.OTHER_TOPIC
        return Outcome.TOO_LARGE if len(letter.body) > self._settings.max_payload_bytes else None

    def _keys(self, letter: DeadLetter) -> list[str]:
        """Under which keys ledger and bus may know the request that a letter holds."""
        if letter.topic not in ANSWER_TOPICS:
            return []
        try:
            request = read_incoming(Delivery(letter.topic, letter.body or b""), 0.0, self._settings)
        except UnreadablePayloadError:
            return []
        return [request.key, request.fingerprint]


async def drop(letters: DeadLetters, letter_id: str, *, dry_run: bool = False) -> Outcome:
    """Remove a letter for good; BusUnavailableError."""
    if not await (letters.find(letter_id) if dry_run else letters.drop(letter_id)):
        return Outcome.NOT_FOUND
    return Outcome.WOULD_BE_DROPPED if dry_run else Outcome.DROPPED


async def newest(
    letters: DeadLetters, limit: int, *, before: str = "", includes: Callable[[DeadLetter], bool] = lambda _: True
) -> list[DeadLetter]:
    """Up to `limit` letters, newest first. Bodies are left out; `b""` stands where there is one. BusUnavailableError.

    `before`: only those older than the letter with this id.
    """
    found: list[DeadLetter] = []
    while len(found) < limit and (page := await letters.newest(_PAGE, before=before)):
        found += (replace(letter, body=None if letter.body is None else b"") for letter in page if includes(letter))
        before = page[-1].letter_id
    return found[:limit]
