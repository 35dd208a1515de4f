"""Details: notes that are written and read by name, and archives that are only read (CONTRACT §7).

Rules of this module:

- A name is the same whatever the case: a model that writes to "Flights" means its note "flights".
- Writing makes a new version, in the way that a revision of the overview is made; see `overviews`.
- An archive holds messages as they were said, and nobody writes to it.
"""

from collections.abc import Iterable
from typing import Final

from nexus.core.errors import CallRefusedError, StoreUnavailableError
from nexus.core.models import utc_now
from nexus.core.ports import MemoryStore
from nexus.core.working_memory import Detail
from nexus.services.memory.documents import Caller, document_of, read_all
from nexus.services.memory.overviews import MOST_ATTEMPTS, contending
from nexus.services.tools.memory_calls import ReadDetail, WriteDetail
from nexus.services.tools.memory_tools import DEFAULT_CHARACTERS
from nexus.services.turns.documents import to_milliseconds

MOST_NOTES: Final = 500
# What is shown of a detail at once, in UTF-8: where nobody says how much, and at most for each character asked for.
_PAGE_BYTES: Final = 16_384
_MOST_PAGE_BYTES: Final = 65_536

# Versions may be large, and somebody who asks again asks soon.
_LOOKED_BACK: Final = 5
_MOST_NAMED: Final = 50


async def write_detail(store: MemoryStore, caller: Caller, call: WriteDetail) -> Detail:
    """Write the next version of a note.

    Returns:
        The version; the earlier one, where the same message has written one.

    Raises:
        CallRefusedError: it may not be written, for the reason that is told.
        StoreUnavailableError, StoreRejectedError: from the store. It may have been written or not.
    """
    pauses = contending()
    for _ in range(MOST_ATTEMPTS):
        known = read_all(Detail, caller.session, await store.list_details(*caller.session))
        same = _named(known, call.name)
        _check_writable(call, known, same)
        if same and (earlier := await _written_before(store, caller, same)):
            return earlier
        detail = Detail(
            name=same.name if same else call.name,
            version=same.version + 1 if same else 1,
            bytes=len(call.content.encode()),
            updated_at=to_milliseconds(utc_now()),
            content=call.content,
            call_id=caller.call_id,
        )
        if await store.insert_details([document_of(detail, caller.session)]):
            return detail
        await pauses.wait()
    raise StoreUnavailableError("others keep writing the detail at the same time")


async def read_detail(store: MemoryStore, caller: Caller, call: ReadDetail) -> str:
    """The text of a detail, from a character on, with a line above that says what it is.

    Raises:
        CallRefusedError: there is none of that name, or it is not that long.
        StoreUnavailableError: the store did not answer.
    """
    detail = await _find(store, caller, call.name)
    text = detail.content[call.from_character :]
    if call.from_character and not text:
        raise CallRefusedError(f"from_character: the detail has {len(detail.content)} characters")
    shown = _page(text, call.characters)
    end = call.from_character + len(shown)
    head = f"{detail.name} ({detail.kind}, version {detail.version}, {detail.updated_at:%Y-%m-%d %H:%M} UTC"
    if len(shown) < len(detail.content):
        head += f", characters {call.from_character} to {end} of {len(detail.content)}"
        head += f"; it goes on with from_character {end}" if end < len(detail.content) else "; this is the end"
    return f"{head})\n\n{shown}"


async def _find(store: MemoryStore, caller: Caller, name: str) -> Detail:
    for found in read_all(Detail, caller.session, [await store.find_detail(*caller.session, name)]):
        return found
    known = read_all(Detail, caller.session, await store.list_details(*caller.session))
    if same := _named(known, name):
        for found in read_all(Detail, caller.session, [await store.find_detail(*caller.session, same.name)]):
            return found
    raise CallRefusedError(f"name: there is no detail {name!r}; {_listed(known)}")


def _check_writable(call: WriteDetail, known: list[Detail], same: Detail | None) -> None:
    if same and same.kind == "archive":
        raise CallRefusedError(f"name: {same.name!r} is an archive, which nobody writes to; take another name")
    notes = sum(detail.kind == "note" for detail in known)
    if same is None and notes >= MOST_NOTES:
        raise CallRefusedError(
            f"name: {call.name!r} would be one more than the {MOST_NOTES} notes that are kept; use one"
        )


async def _written_before(store: MemoryStore, caller: Caller, newest: Detail) -> Detail | None:
    """The version that the same message has written; None for none."""
    if newest.call_id == caller.call_id:
        return newest
    if newest.version == 1:
        return None
    after = newest.name, max(newest.version - _LOOKED_BACK, 0)
    documents = await store.detail_versions(*caller.session, limit=_LOOKED_BACK, after=after)
    versions = read_all(Detail, caller.session, documents)
    written = (each for each in versions if each.name == newest.name and each.call_id == caller.call_id)
    return next(written, None)


def _named(known: Iterable[Detail], name: str) -> Detail | None:
    """The detail of that name; where there is none, the one that differs in case alone."""
    alike = [detail for detail in known if detail.name.casefold() == name.casefold()]
    return next((detail for detail in alike if detail.name == name), next(iter(alike), None))


def _listed(known: list[Detail]) -> str:
    """Which details there are, in short."""
    if not known:
        return "there are none yet"
    latest = sorted(known, key=lambda detail: detail.updated_at)[-_MOST_NAMED:]
    others = len(known) - len(latest)
    names = ", ".join(sorted(detail.name for detail in latest))
    return f"there are: {names}" + (f", and {others} older ones" if others else "")


def _page(text: str, characters: int) -> str:
    """As much of the text as is shown at once: up to the end of a line, if that is half of it or more."""
    most_bytes = _PAGE_BYTES if characters <= DEFAULT_CHARACTERS else _MOST_PAGE_BYTES
    encoded = text[:characters].encode("utf-8", "replace")
    page = encoded[:most_bytes].decode("utf-8", "ignore")
    if len(page) == len(text):
        return text
    line = page.rfind("\n") + 1
    return page[:line] if line * 2 >= len(page) else page
