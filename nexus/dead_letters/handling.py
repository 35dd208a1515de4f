"""What is done with dead letters: choosing them, sending them again, dropping them.

Sent first, dropped afterwards: no letter is ever lost. When two people send one at once, or a command is cut off
between the two, it may be sent twice (but not on streams, which take it once). That does no harm, since a message with
the same id is recorded once, and a request has one effective answer.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from nexus.cli.terminal import printable
from nexus.core.errors import BusRefusedError, BusUnavailableError, NexusError
from nexus.core.ports import Bus, DeadLetter, DeadLetters
from nexus.core.tasks import ungrouped
from nexus.core.topics import Topics

# Letters come with their bodies, so few are held at a time.
_PAGE: Final = 10
_ID: Final = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_AGE: Final = re.compile(r"(?P<number>[0-9]{1,6})(?P<unit>[smhd])")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TOPICS: Final = frozenset(value for name, value in vars(Topics).items() if name.isupper())
_UNCOUNTED: Final = "sent again, and kept: on a cluster pub/sub cannot tell whether anybody heard it"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters are meant.

    Attributes:
        ids: these; or
        everything: all there are when the command begins,
        topic: of this topic,
        before_ms: that came before this moment, in milliseconds since 1970.
    """

    ids: tuple[str, ...] = ()
    everything: bool = False
    topic: str = ""
    before_ms: int | None = None

    def holds(self, letter: DeadLetter) -> bool:
        """Whether the letter is of the topic and the age."""
        return (not self.topic or letter.topic == self.topic) and (
            self.before_ms is None or letter.at_ms < self.before_ms
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one letter. Equal ones are counted together."""

    done: bool
    text: str


def checked_id(letter_id: str) -> str:
    """The id, if a letter can have it."""
    if not _ID.fullmatch(letter_id):
        allowed = "<milliseconds>-<number>, as `nexus dead-letters list` shows them"
        raise NexusError(f"{printable(letter_id)!r} is no id of a dead letter; allowed: {allowed}")
    return letter_id


def choice(ids: Sequence[str], *, everything: bool, topic: str = "", older_than: str = "") -> Choice:
    """What the options of a command mean.

    Raises:
        NexusError: they say nothing, or two things.
    """
    if everything == bool(ids):
        raise NexusError("name letters by their ids, or --all" if not ids else "either ids or --all, not both")
    if ids and (topic or older_than):
        raise NexusError("--topic and --older-than choose among --all; with ids leave them out")
    age = _AGE.fullmatch(older_than)
    if older_than and not age:
        raise NexusError(f"--older-than {printable(older_than)!r}: allowed are 90s, 15m, 12h, 7d and the like")
    before_ms = time.time_ns() // 1_000_000 - int(age["number"]) * _UNIT_MS[age["unit"]] if age else None
    return Choice(tuple(dict.fromkeys(map(checked_id, ids))), everything, topic, before_ms)


async def page(letters: DeadLetters, chosen: Choice, limit: int, before: str = "") -> list[DeadLetter]:
    """Up to `limit` letters of the choice, newest first, without their bodies but with `b""` where there is one."""
    found: list[DeadLetter] = []
    while len(found) < limit and (some := await letters.newest(_PAGE, before=before)):
        found += [_without_body(letter) for letter in some if chosen.holds(letter)]
        before = some[-1].letter_id
    return found[:limit]


async def all_ids(letters: DeadLetters, chosen: Choice) -> list[str]:
    """The letters that are meant, oldest first: as they came, they are sent again."""
    if not chosen.everything:
        return [*chosen.ids]
    # What is sent again and fails again is a new letter, which is not meant.
    return [letter.letter_id for letter in reversed(await page(letters, chosen, await letters.count()))]


@dataclass(frozen=True, slots=True)
class Resending:
    """Sends letters again on the topics they came from.

    Attributes:
        letters: where they are kept.
        bus: where they are sent.
        counts: whether the bus can tell how many hear what is sent (not pub/sub on a Redis Cluster). Where it cannot,
            letters stay.
        max_bytes: what the service takes (`bus.max_payload_bytes`).
        keep: leave the letters where they are.
        rehearse: change nothing, and say what would be done.
    """

    letters: DeadLetters
    bus: Bus
    max_bytes: int
    counts: bool = True
    keep: bool = False
    rehearse: bool = False

    async def one(self, letter_id: str) -> Outcome:
        """Send a letter again and drop it."""
        letter = await self.letters.find(letter_id)
        if letter is None:
            return Outcome(done=False, text="not found: there is no such dead letter")
        if letter.body is None:
            return Outcome(done=False, text="kept: it has no body to send (bus.dead_letter_bodies was false)")
        if fault := self._fault(letter, len(letter.body)):
            return Outcome(done=False, text=f"kept: {fault}")
        if self.rehearse:
            return Outcome(done=True, text="would be sent again")
        return await self._send(letter, letter.body)

    def _fault(self, letter: DeadLetter, size: int) -> str:
        if letter.topic not in _TOPICS:
            return "its topic is none of Nexus"
        return "it is larger than bus.max_payload_bytes" if size > self.max_bytes else ""

    async def _send(self, letter: DeadLetter, body: bytes) -> Outcome:
        await self.letters.expect_again(letter)
        if letter.topic == Topics.CONTEXT_BUILD_REQUEST and letter.message_id:
            await self.letters.forget_answer(letter.message_id)
        # Who keeps the letter may mean to send it several times.
        once = "" if self.keep or not self.counts else f"dead-letter:{letter.letter_id}"
        if not await self.bus.publish(letter.topic, body, once=once):
            return Outcome(done=False, text="kept: nobody listens on its topic")
        if self.keep:
            return Outcome(done=True, text="sent again, and kept")
        if not self.counts:
            return Outcome(done=True, text=_UNCOUNTED)
        if not await self.letters.drop(letter.letter_id):
            return Outcome(done=True, text="sent again, but meanwhile gone: somebody else may have sent it too")
        return Outcome(done=True, text="sent again and dropped")


@dataclass(frozen=True, slots=True)
class Dropping:
    """Drops letters. Attributes as for `Resending`."""

    letters: DeadLetters
    rehearse: bool = False

    async def one(self, letter_id: str) -> Outcome:
        """Drop a letter."""
        there = await (self.letters.find(letter_id) if self.rehearse else self.letters.drop(letter_id))
        if not there:
            return Outcome(done=False, text="not found: there is no such dead letter")
        return Outcome(done=True, text="would be dropped" if self.rehearse else "dropped")


async def handle(work: Resending | Dropping, ids: Sequence[str], report: Callable[[str, Outcome], None]) -> None:
    """Do the work on these letters, one after the other, and tell of each."""
    for letter_id in ids:
        report(letter_id, await work.one(letter_id))


@contextmanager
def in_plain_words() -> Iterator[None]:
    """An error of the bus, as somebody at a terminal needs to read it."""
    try:
        with ungrouped():
            yield
    except BusRefusedError as error:
        advice = "see what stands under <prefix>nexus:dead-letters (redis-cli TYPE)"
        raise BusRefusedError(f"Redis does not do what was asked ({error}): {advice}") from error
    except BusUnavailableError as error:
        advice = "see that it runs, and bus.url with its user and password (NEXUS_BUS__URL)"
        raise BusUnavailableError(f"Redis does not do what was asked ({error}): {advice}") from error


def _without_body(letter: DeadLetter) -> DeadLetter:
    return replace(letter, body=None if letter.body is None else b"")
