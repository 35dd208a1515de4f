"""Forgets an owner, a session, or what was said before a time, wherever it is kept (contract §13).

- A tombstone comes first: from then on services refuse what was said until then. What they have in hand at that moment
  may still be written, so that after a pause all is looked through again, until nothing more is found.
- Each time the tombstone is renewed: removal may take minutes, and a model's summary of what was still there minutes
  more. Services do not store what was begun before.
- What is recorded of the owner, or in the session, while it runs goes, too.
- Any erasure takes all kept contexts of the owner: records, answers, beginnings of runs, and entries of streams that
  are done with. They show what was said before, in whichever session.
- It may be broken off and repeated at any time.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import anyio
from pydantic_core import from_json

from nexus.core.erasure import BUS_KINDS, STORE_KINDS, Erasure, Tombstone, hashed
from nexus.core.models import DEFAULT_SESSION, TICK, parse_moment, to_milliseconds, utc_now
from nexus.core.ports import BusErasure, DeadLetter, DeadLetters, ErasureStore, Outbox, OutboxRow
from nexus.core.recall import Language
from nexus.core.wire import owner_of
from nexus.services.persistence import read_outbox_row
from nexus.services.recall.terms import terms_of

# Between two batches, so that others have their turn.
_PAUSE_S: Final = 0.02
_MOST_PASSES: Final = 6
_LETTERS_AT_ONCE: Final = 10

# What people call the kinds of what there is of an owner, in the order in which they are shown.
KINDS: Final[Mapping[str, str]] = {
    "records": "records of builds",
    "pieces": "pieces of recorded answers",
    "facts": "statements of facts",
    "constraints": "documents of rules",
    "states": "session states",
    "turns": "turns",
    "details": "details of working memory, archives too",
    "overviews": "revisions of overviews",
    "compactions": "compactions with their summaries",
    "messages": "messages",
    "index": "entries of the index of long-term memory",
    "profile": "profiles",
    "answers": "kept answers",
    "beginnings": "kept beginnings of runs",
    "entries": "entries of streams",
    "outbox": "messages in the outbox",
    "letters": "dead letters with their message",
}
# Kinds that stay for now, and why.
STAYS: Final[Mapping[str, str]] = {
    "in_hand": "requests that are being answered: their answers are kept; repeat it",
    "pending": "entries of streams that are not done with: services refuse what they hold; repeat it then",
    "unknown": "values on the bus that do not say whose they are: they last bus.answer_ttl_s",
}
# A pass that found no more than these was the last. The rest of a request that is in hand comes soon.
_NOT_WAITED_FOR: Final = STAYS.keys() - {"in_hand"}

# Called with a kind, and how many of it were removed or looked at just now.
Report = Callable[[str, int], None]


def _say_nothing(_kind: str, _count: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure has done.

    Attributes:
        removed: how many of each kind.
        still_coming: the last pass found something that goes.
    """

    removed: Mapping[str, int]
    still_coming: bool


class Eraser:
    """Erases in a store, and on a bus with its outbox and dead letters; None for a bus that is not within reach.

    `settle_s` is how long a service may take to write what it has in hand. Errors of the store and of the bus.
    """

    def __init__(
        self,
        store: ErasureStore,
        *,
        settle_s: float,
        kept: BusErasure | None = None,
        outbox: Outbox | None = None,
        letters: DeadLetters | None = None,
        language: Language = "english",
    ) -> None:
        self._store = store
        self._settle_s = settle_s
        self._kept = kept
        self._outbox = outbox
        self._letters = letters
        self._language = language

    async def preview(self, erasure: Erasure) -> dict[str, int | None]:
        """How many of each kind there are of what would go; None where counting takes too long. Writes nothing."""
        sessions = await self._store.sessions(erasure)
        found: dict[str, int | None] = {kind: await self._store.count(kind, erasure, sessions) for kind in STORE_KINDS}
        return {**found, **await self._sweep(erasure, _say_nothing, remove=False)}

    async def erase(self, erasure: Erasure, report: Report = _say_nothing) -> Erased:
        """Leave the tombstone, and remove; `report` is called with every batch."""
        now = to_milliseconds(utc_now())
        until = now if erasure.before is None else to_milliseconds(erasure.before) - TICK
        session = "" if erasure.session_id is None else hashed(erasure.session_id)
        removed, found = Counter[str](), Counter[str]()
        for number in range(_MOST_PASSES):
            if number:
                await anyio.sleep(self._settle_s)
                now = to_milliseconds(utc_now())
            await self._store.put_tombstone(Tombstone(hashed(erasure.owner_key), session, until, now))
            found = await self._pass(erasure, report)
            removed.update({kind: count for kind, count in found.items() if kind not in STAYS})
            if number and not {*+found} - _NOT_WAITED_FOR:
                break
        return Erased(removed, still_coming=bool({*+found} - STAYS.keys()))

    async def find_text(self, text: str, report: Report = _say_nothing) -> dict[str, int]:
        """Where a text is kept of whomever, in documents and keys, as counts by collection and by kind of key."""
        forms = _forms_of(text, self._language)
        found = Counter[str]()
        sources = [self._store.find_text(forms), *([self._kept.find_text(forms)] if self._kept else [])]
        for source in sources:
            async with aclosing(source) as places:
                async for place, count in places:
                    found[place] += count
                    report(place, 1)
        return dict(sorted((+found).items()))

    async def _pass(self, erasure: Erasure, report: Report) -> Counter[str]:
        """Remove all that there is now; how many of each kind were found."""
        found = Counter[str]()
        sessions = await self._store.sessions(erasure)
        for kind in STORE_KINDS:
            async with aclosing(self._store.remove(kind, erasure, sessions)) as batches:
                async for count in batches:
                    found[kind] += count
                    report(kind, count)
                    await anyio.sleep(_PAUSE_S)
        found.update(await self._sweep(erasure, report, remove=True))
        return found

    async def _sweep(self, erasure: Erasure, report: Report, *, remove: bool) -> Counter[str]:
        """What the bus has; with `remove` it is removed."""
        found = Counter[str]()
        if self._kept:
            found.update(dict.fromkeys(BUS_KINDS, 0))
            async with aclosing(self._kept.sweep(erasure.owner_key, remove=remove)) as batches:
                async for batch in batches:
                    found.update(batch)
                    report("keys", sum(batch.values()))
        if self._outbox:
            rows = await self._outbox.of_owner(erasure.owner_key)
            going = [row for row in rows if _row_goes(row, erasure)]
            found["outbox"] += len(going)
            if remove:
                await self._outbox.remove(going)
                report("outbox", len(going))
        if self._letters:
            found["letters"] += await self._sweep_letters(self._letters, erasure, remove=remove)
        return found

    async def _sweep_letters(self, letters: DeadLetters, erasure: Erasure, *, remove: bool) -> int:
        found, before = 0, ""
        while page := await letters.newest(_LETTERS_AT_ONCE, before=before):
            before = page[-1].letter_id
            going = [letter for letter in page if _letter_goes(letter, erasure)]
            for letter in going:
                if remove:
                    await letters.drop(letter.letter_id)
            found += len(going)
        return found


def read_before(text: str) -> datetime:
    """The time up to which is erased, as people write it; ValueError for none, and for one that lies ahead."""
    moment = parse_moment(text)
    if moment is None:
        raise ValueError(f"before '{text}': a day (2026-05-01) or a time in ISO 8601 is needed")
    if moment > utc_now():
        raise ValueError("before: lies in the future; without it all goes that there is")
    return moment


def _row_goes(kept: OutboxRow, erasure: Erasure) -> bool:
    """Whether a row of the owner goes; of one that cannot be read it is not known that it may stay."""
    row = read_outbox_row(kept)
    if row is None:
        return True
    if erasure.session_id not in {None, row.get("session_id") or DEFAULT_SESSION}:
        return False
    moment = parse_moment(row["timestamp"])
    return erasure.before is None or moment is None or moment < erasure.before


def _letter_goes(letter: DeadLetter, erasure: Erasure) -> bool:
    """Whether a letter holds a message of the owner, and says of neither session nor time that it may stay."""
    if letter.body is None or owner_of(letter.body) != erasure.owner_key:
        return False
    message = _object(letter.body)
    named = [_named(message), _named(message.get("content"))]
    if erasure.session_id is not None and any(named) and erasure.session_id not in named:
        return False
    moment = parse_moment(message.get("timestamp"))
    return erasure.before is None or moment is None or moment < erasure.before


def _named(message: Any) -> str | None:
    """The session that a message, or the run in it, names."""
    metadata = message.get("metadata") if isinstance(message, Mapping) else None
    session = metadata.get("session_id") if isinstance(metadata, Mapping) else None
    return session if isinstance(session, str) and session else None


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = from_json(body)
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


def _forms_of(text: str, language: Language) -> Sequence[bytes]:
    """How a text may be kept: as it is, as JSON, as JSON in JSON, and one word as its term in the index."""
    once = _as_json(text)
    terms = terms_of(text, language)
    forms = [text, *once, *(form for each in once for form in _as_json(each))]
    forms += [f"|{terms[0]}|"] if len(terms) == 1 else []
    return [each.encode("utf-8", "surrogatepass") for each in dict.fromkeys(forms)]


def _as_json(text: str) -> list[str]:
    """A text within JSON, in UTF-8 and in ASCII."""
    return [json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True)]
