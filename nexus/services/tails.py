"""The newest rows of owners, kept in memory for as long as nothing newer is recorded (CONTRACT §4.3).

Rules of this module:

- What is kept is what was read, and the version that the owner had before that. It is good for whoever is told by Redis
  that this is still the version, or an earlier one.
- A row that this process records is added, if nobody else has recorded one in between: then the version before it is
  the one that is known. Otherwise what is kept is let go.
- Bounded in bytes: whoever was not asked for the longest goes first. And in time, since rows may be removed from the
  store by others, who move no version.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import anyio

from nexus.core.ports import Moved, Row
from nexus.services.history.merge import merge
from nexus.services.history.rows import read_row, read_rows

_LASTS_S: Final = 60.0
# Rows that are not needed any more are let go when they are so many that it is worth reading the others anew.
_SPARE: Final = 1.5
# No owner takes more than this part of the memory.
_SHARE: Final = 8
# What a dictionary with the fields of a row takes beside its content, and what was read of it.
_ROW_BYTES: Final = 1_200


class ReadRows(list[Any]):
    """Rows, and what is said in them."""

    def __init__(self, rows: Iterable[Any] = ()) -> None:
        super().__init__(rows)
        self.entries, self.repaired = read_rows(self)
        self.runs = {entry.run_id for entry in self.entries} - {""}
        self.utterances = merge(self.entries)


class OwnersTail:
    """What is kept of one owner.

    Attributes:
        version: of the owner; all that moved it up to this one is among the rows.
        stopped_early: as for `Past`.
        until: when it is let go, by `anyio.current_time()`.
        size: in bytes, roughly, and of rows that may be let go already.

    Args:
        rows: newest first.
        messages: for how many messages they are enough.
        excerpt_chars: contents longer than twice this may be without their middle.
        size: as above, where it is known.
        has_grown: there may be rows among them that are not needed any more.
    """

    __slots__ = (
        "_excerpt_chars",
        "_has_grown",
        "_made_of",
        "_messages",
        "_rows",
        "size",
        "stopped_early",
        "until",
        "version",
    )

    def __init__(
        self,
        version: str,
        rows: Sequence[Row],
        messages: int,
        excerpt_chars: int,
        *,
        stopped_early: bool,
        until: float,
        size: int | None = None,
        has_grown: bool = False,
    ) -> None:
        self.version = version
        self.stopped_early = stopped_early
        self.until = until
        self._rows = rows
        self._has_grown = has_grown
        self._made_of = len(rows)
        self._messages = messages
        self._excerpt_chars = excerpt_chars
        self.size = sum(map(_size, rows)) if size is None else size

    def is_enough(self, messages: int, excerpt_chars: int) -> bool:
        """Whether it can be shown to who wants so many messages."""
        return self._messages >= messages and self._excerpt_chars == excerpt_chars

    def read(self) -> ReadRows:
        """The rows, of which nobody may change any: of the runs among the newest messages, all that there are."""
        if self._has_grown or not isinstance(self._rows, ReadRows):
            read = self._rows if isinstance(self._rows, ReadRows) else ReadRows(self._rows)
            self._rows, self._has_grown = _needed(read, self._messages), False
        return self._rows

    def with_row(self, version: str, row: Row | None) -> "OwnersTail | None":
        """What is kept when nothing but this row was recorded since; None where that cannot be told from it."""
        rows, size, has_grown = self._rows, self.size, self._has_grown
        # What was read may have had it before the version moved.
        if row is not None and (row.get("run_id"), row["id"]) not in ids_of(rows):
            known = isinstance(row.get("run_id"), str) and row["run_id"] in [other.get("run_id") for other in rows]
            if row.get("role") != "HUMAN" and not known:
                # What its run said before is not here.
                return None
            read, newer = self.read(), row
            # Whoever keeps this goes by its size as it was made.
            size = _size(newer) + (size if len(read) == self._made_of else sum(map(_size, read)))
            rows, has_grown = [newer, *read], True
        return OwnersTail(
            version,
            rows,
            self._messages,
            self._excerpt_chars,
            stopped_early=self.stopped_early,
            until=self.until,
            size=size,
            has_grown=has_grown,
        )


def _needed(rows: ReadRows, messages: int) -> ReadRows:
    """Those rows that say the newest messages, and the others of their runs."""
    shown = [entry for utterance in rows.utterances[:messages] for entry in utterance.entries]
    runs = {entry.run_id for entry in shown if entry.run_id}
    single = {id(entry) for entry in shown if not entry.run_id}
    needed = [row for row, entry in zip(rows, rows.entries, strict=True) if entry.run_id in runs or id(entry) in single]
    return ReadRows(needed) if len(rows) > _SPARE * len(needed) else rows


class Tails:
    """What is kept of all owners.

    Args:
        most_bytes: that are kept, roughly; 0 for nothing at all.
        epoch: grows whenever the versions may have gone back; then nothing of what is kept is good.
    """

    def __init__(self, most_bytes: int = 0, epoch: Callable[[], int] = lambda: 0) -> None:
        self._most_bytes = most_bytes
        self._read_epoch = epoch
        self._epoch = epoch()
        self._owners: OrderedDict[str, OwnersTail] = OrderedDict()
        self._bytes = 0

    @property
    def size(self) -> int:
        """Of all that is kept, in bytes, roughly."""
        return self._bytes

    @property
    def epoch(self) -> int:
        """That of all that is kept."""
        if self._epoch != self._read_epoch():
            self._epoch = self._read_epoch()
            self._owners.clear()
            self._bytes = 0
        return self._epoch

    def find(self, owner_key: str) -> OwnersTail | None:
        """What is kept of the owner, which is good if the version says so."""
        _ = self.epoch
        tail = self._owners.get(owner_key)
        if tail is None:
            return None
        if tail.until <= anyio.current_time():
            self._drop(owner_key)
            return None
        self._owners.move_to_end(owner_key)
        return tail

    def keep(
        self,
        owner_key: str,
        version: str,
        rows: Sequence[Row],
        messages: int,
        excerpt_chars: int,
        *,
        stopped_early: bool = False,
    ) -> None:
        """Keep what was read when the owner had this version already, unless something newer is kept."""
        if not self._most_bytes:
            return
        known = self._owners.get(owner_key)
        if known and is_later(known.version, version) and known.is_enough(messages, excerpt_chars):
            return
        until = anyio.current_time() + _LASTS_S
        tail = OwnersTail(version, rows, messages, excerpt_chars, stopped_early=stopped_early, until=until)
        self._put(owner_key, tail)

    def moved(self, owner_key: str, moved: Moved, row: Row | None) -> None:
        """Something of the owner was recorded here.

        Args:
            owner_key: whose.
            moved: from which version to which.
            row: as it will be read; None for what is not shown.
        """
        tail = self._owners.get(owner_key)
        if tail is None or not is_later(moved.after, tail.version):
            return
        grown = tail.with_row(moved.after, row) if tail.version == moved.before else None
        if grown:
            self._put(owner_key, grown)
        else:
            self._drop(owner_key)

    def forget(self, owner_key: str) -> None:
        """Nobody knows any more how good it is."""
        self._drop(owner_key)

    def _put(self, owner_key: str, tail: OwnersTail) -> None:
        self._drop(owner_key)
        if tail.size > self._most_bytes // _SHARE:
            # Others are worth more than this one.
            return
        self._owners[owner_key] = tail
        self._bytes += tail.size
        while self._bytes > self._most_bytes and self._owners:
            self._drop(next(iter(self._owners)))

    def _drop(self, owner_key: str) -> None:
        tail = self._owners.pop(owner_key, None)
        self._bytes -= tail.size if tail else 0


def is_later(version: str, other: str) -> bool:
    """Whether the version is later than the other. Both are of one owner; `""` is before all."""
    return int(version or 0) > int(other or 0)


def ids_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    """What tells each of these rows from others: ids may come twice, in different runs."""
    # Of what others have stored they may be anything, so this is no set.
    return [(row.get("run_id"), row.get("id")) for row in rows]


def _size(row: Mapping[str, Any]) -> int:
    content = row.get("content")
    calls = read_row(row).stored_calls
    text = len(content) if isinstance(content, str) else len(str(content))
    # Four bytes a character at worst, and mostly one.
    return _ROW_BYTES + 2 * text + (4 * len(str(calls)) if calls else 0)
