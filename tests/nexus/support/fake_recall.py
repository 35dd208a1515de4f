"""The index of long-term memory, in memory, for unit tests. Its contract suite runs on it too."""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nexus.core.models import DEFAULT_SESSION, utc_now
from nexus.core.ports import Row
from nexus.core.recall import EPISODE, MEANING, WORDS, Entry, IndexStatus, Place, Postings

if TYPE_CHECKING:
    from tests.nexus.support.fakes import FakeStore

_FAILED = "failed"

# By term, flag or generation, by episode, by place within it.
_ByTerm = dict[str, dict[str, dict[str, Any]]]


class FakeRecall:
    """`nexus.core.ports.RecallIndex` in memory.

    Args:
        store: where the rows are.
        ask: called with the name of every operation before it is done.

    Attributes:
        states: by the `_id` of a row, what stands under `recall` in it where a real store keeps it.
    """

    def __init__(self, store: "FakeStore", ask: Callable[[str], None]) -> None:
        self._store = store
        self._ask = ask
        self.states: dict[str, Row] = {}
        self._sessions: dict[tuple[str, str | None], list[Place]] = {}
        self._episodes: dict[str, int] = {}
        self._terms: dict[str, _ByTerm] = {}
        self._flags: dict[str, _ByTerm] = {}
        self._codes: dict[str, _ByTerm] = {}
        self._claims = 0

    def written(self, row_id: str) -> None:
        """A row was recorded, or a later version of it: its words are to be indexed."""
        _make_due(self.states.setdefault(row_id, {}), WORDS)

    async def claim(self, work: str, now: datetime, until: datetime, *, limit: int) -> list[Row]:
        """Claim up to `limit` messages on which this work has been due the longest by `now`."""
        self._ask("claim")
        due = [row for row in self._store.messages if self._work(row) == work and self._state(row)["due_at"] <= now]
        claimed = sorted(due, key=lambda row: self._state(row)["due_at"])[:limit]
        self._claims += 1
        for row in claimed:
            self._state(row).update(due_at=until, claim=self._claims)
        return [self._given(row) for row in sorted(claimed, key=_id)]

    async def give_places(self, rows: Sequence[Row]) -> dict[str, Place]:
        """By `_id`, the places of these rows; one that has none gets the next of its session."""
        self._ask("give_places")
        for row in sorted(self._stored(rows), key=_id):
            if "place" not in self._state(row):
                self._state(row)["place"] = self._next(row["owner_key"], _session(row))
        return {row["_id"]: self._state(row)["place"] for row in self._stored(rows)}

    async def write(self, entries: Sequence[Entry]) -> None:
        """Keep these entries."""
        self._ask("write")
        for by_owner, entry, term, value in self._parts(entries):
            episode, at = _at(entry.place)
            by_owner.setdefault(entry.owner_key, {}).setdefault(term, {}).setdefault(episode, {})[at] = value

    async def finish(self, rows: Sequence[Row], *, next_work: str | None = None, generation: str | None = None) -> None:
        """Nothing is due on these rows any more, but for `next_work`."""
        self._ask("finish")
        for state in self._claimed(rows):
            for name in ("work", "due_at", "failed", "claim"):
                state.pop(name, None)
            state.update({"work": next_work, "due_at": utc_now()} if next_work else {})
            state.update({"generation": generation} if generation else {})

    async def fail(self, row: Row, reason: str) -> None:
        """Nothing is due on the row any more, for this reason."""
        self._ask("fail")
        for state in self._claimed([row]):
            _make_due(state, _FAILED)
            state["failed"] = reason

    async def add_key(self, owner_key: str, message_id: str, text: str) -> None:
        """Have the message with this `id` found by the words of this text, too."""
        self._ask("add_key")
        for row in self._of(owner_key):
            if row.get("id") == message_id:
                self._state(row)["key"] = text
                _make_due(self._state(row), WORDS)

    async def put_off(self, rows: Sequence[Row], until: datetime) -> None:
        """The work that is due on these rows is due at `until`."""
        self._ask("put_off")
        for state in self._claimed(rows):
            state["due_at"] = until

    async def mark(self, owner_key: str, *, limit: int, again: bool = False, skip: int = 0) -> tuple[int, int]:
        """Have messages of the owner indexed that nothing was ever to be done on; with `again`, all of them."""
        self._ask("mark")
        page = sorted(self._of(owner_key), key=_id)[skip : skip + limit]
        marked = [row for row in page if again or row["_id"] not in self.states]
        for row in marked:
            _make_due(self._state(row), WORDS)
        return len(marked), len(page)

    async def mark_outdated(self, generation: str, *, limit: int) -> int:
        """Have up to `limit` indexed messages embedded that have no codes of this generation."""
        self._ask("mark_outdated")
        states = [self._state(row) for row in self._store.messages if row["_id"] in self.states]
        outdated = [
            state
            for state in states
            if "place" in state and "work" not in state and state.get("generation") != generation
        ][:limit]
        for state in outdated:
            _make_due(state, MEANING)
        return len(outdated)

    async def forget(self, entries: Sequence[Entry]) -> None:
        """Remove these terms, flags and codes of these places, and the codes of the generation that their rows have."""
        self._ask("forget")
        own = ((row["owner_key"], state) for row in self._store.messages if (state := self.states.get(row["_id"], {})))
        generations = {(owner, state.get("place")): state.get("generation") for owner, state in own}
        coded = [
            Entry(each.owner_key, each.place, codes={generation: b""})
            for each in entries
            if (generation := generations.get((each.owner_key, each.place)))
        ]
        for by_owner, entry, term, _ in self._parts([*entries, *coded]):
            episode, at = _at(entry.place)
            by_owner.get(entry.owner_key, {}).get(term, {}).get(episode, {}).pop(at, None)

    async def postings(
        self,
        owner_key: str,
        terms: Collection[str],
        flags: Collection[str],
        *,
        session_id: str | None = None,
        generation: str | None = None,
    ) -> Postings:
        """What the index has of these terms and flags, and the codes of a generation."""
        self._ask("postings")
        sessions = [(owner_key, session_id)] if session_id is not None else self._sessions
        places = [place for key in sessions if key[0] == owner_key for place in self._sessions.get(key, [])]
        episodes = {str(place // EPISODE) for place in places}

        def found(by_owner: dict[str, _ByTerm], wanted: Collection[str]) -> _ByTerm:
            by_term = {term: by_owner.get(owner_key, {}).get(term, {}) for term in wanted}
            kept = {
                term: {episode: dict(places) for episode, places in by_place.items() if places and episode in episodes}
                for term, by_place in by_term.items()
            }
            return {term: by_place for term, by_place in kept.items() if by_place}

        bits = {
            flag: {episode: sum(1 << int(at) for at in places) for episode, places in by_place.items()}
            for flag, by_place in found(self._flags, flags).items()
        }
        codes = found(self._codes, [generation]).get(generation, {}) if generation else {}
        return Postings(len(places), found(self._terms, terms), bits, codes)

    async def places_of(self, owner_key: str, row_ids: Collection[str]) -> set[Place]:
        """The places of the rows with these `_id`s, of those that have one."""
        self._ask("places_of")
        states = [self.states.get(row["_id"], {}) for row in self._of(owner_key) if row["_id"] in row_ids]
        return {state["place"] for state in states if "place" in state}

    async def rows_at(self, owner_key: str, places: Collection[Place]) -> dict[Place, Row]:
        """The rows at these places."""
        self._ask("rows_at")
        placed = {self.states.get(row["_id"], {}).get("place"): row for row in self._of(owner_key)}
        return {place: self._given(placed[place]) for place in places if place in placed}

    async def status(self, owner_key: str | None = None) -> IndexStatus:
        """The states of an owner's messages, or of all."""
        self._ask("status")
        return self._status(self._store.messages if owner_key is None else self._of(owner_key))

    async def newest_status(self, owner_key: str, *, newest: int) -> IndexStatus:
        """The states of the owner's newest messages, up to so many."""
        self._ask("newest_status")
        return self._status(sorted(self._of(owner_key), key=lambda row: row["timestamp"], reverse=True)[:newest])

    def _status(self, rows: Sequence[Row]) -> IndexStatus:
        states = [self.states.get(row["_id"]) for row in rows]
        works = [state.get("work") for state in states if state]
        return IndexStatus(
            indexed=sum("place" in state for state in states if state),
            waiting=works.count(WORDS),
            failed=works.count(_FAILED),
            unmarked=states.count(None),
            meaning_waiting=works.count(MEANING),
            faults={row["id"]: self._state(row)["failed"] for row in rows if self._work(row) == _FAILED},
        )

    def drop(self, row: Row) -> None:
        """A row is erased: nothing of it stays."""
        place = self.states.pop(row["_id"], {}).get("place")
        if place is not None:
            episode, at = _at(place)
            for by_owner in (self._terms, self._flags, self._codes):
                for by_term in by_owner.get(row["owner_key"], {}).values():
                    by_term.get(episode, {}).pop(at, None)

    def _stored(self, rows: Sequence[Row]) -> list[Row]:
        ids = {row["_id"] for row in rows}
        return [row for row in self._store.messages if row["_id"] in ids]

    def _given(self, row: Row) -> Row:
        state = self.states.get(row["_id"], {})
        beside = {f"recall_{name}": state[name] for name in ("key", "claim") if name in state}
        return {**self._store.bounded(row), **beside}

    def _claimed(self, rows: Sequence[Row]) -> list[Row]:
        claims = {row["_id"]: row.get("recall_claim") for row in rows}
        states = [(self._state(row), claims[row["_id"]]) for row in self._stored(rows)]
        return [state for state, claim in states if claim and state.get("claim") == claim]

    def _of(self, owner_key: str) -> list[Row]:
        return [row for row in self._store.messages if row.get("owner_key") == owner_key]

    def _state(self, row: Row) -> Row:
        return self.states.setdefault(row["_id"], {})

    def _work(self, row: Row) -> str | None:
        return self.states.get(row["_id"], {}).get("work")

    def _next(self, owner_key: str, session: str | None) -> Place:
        places = self._sessions.setdefault((owner_key, session), [])
        if len(places) % EPISODE:
            place = Place(places[-1] + 1)
        else:
            episode = self._episodes.get(owner_key, 0)
            self._episodes[owner_key] = episode + 1
            place = Place(episode * EPISODE)
        places.append(place)
        return place

    def _parts(self, entries: Sequence[Entry]) -> Iterable[tuple[dict[str, _ByTerm], Entry, str, Any]]:
        for entry in entries:
            yield from ((self._terms, entry, term, value) for term, value in entry.terms.items())
            yield from ((self._flags, entry, flag, True) for flag in entry.flags)
            yield from ((self._codes, entry, generation, code) for generation, code in entry.codes.items())


def _make_due(state: Row, work: str) -> None:
    state.update(work=work, due_at=utc_now())
    state.pop("claim", None)


def _id(row: Row) -> str:
    row_id: str = row["_id"]
    return row_id


def _session(row: Row) -> str | None:
    """The session of a row, as for `rows_of_session`; None for one that is no text."""
    session = row.get("session_id") or DEFAULT_SESSION
    return session if isinstance(session, str) else None


def _at(place: Place) -> tuple[str, str]:
    episode, at = divmod(place, EPISODE)
    return str(episode), str(at)
