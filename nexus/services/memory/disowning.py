"""Archives of compactions that never came about (CONTRACT §7). Pure.

An archive is stored before its compaction. When that does not come about, because another has its number or because the
one who was at it died, the archive stays, and what it says of itself is not true: its messages may be anywhere. It can
be read and searched like any other, and no list shows it.
"""

from collections.abc import Iterable

from nexus.core.working_memory import Compaction, Detail


def disowned(listed: Iterable[Detail], made: Compaction, latest: Compaction | None) -> tuple[str, ...]:
    """The names of those that are no archive of `made`, nor of one before it.

    Args:
        listed: what is kept.
        made: a compaction that is to be stored, with the names of its archive.
        latest: the one before it. Another's archive for its number may have come after it was stored.
    """
    names = set(latest.disowned if latest else ())
    for compaction in filter(None, (latest, made)):
        of_number = {item.name for item in listed if item.kind == "archive" and item.compaction == compaction.number}
        names |= of_number - {*compaction.details}
    return tuple(sorted(names))


def owned(details: Iterable[Detail], latest: Compaction | None) -> tuple[Detail, ...]:
    """The notes among these, and the archives of compactions up to the latest."""
    number, names = (latest.number, {*latest.disowned}) if latest else (0, set[str]())
    return tuple(
        item for item in details if item.kind == "note" or ((item.compaction or 0) <= number and item.name not in names)
    )
