"""Calls of the memory tools, checked before anything is done (contract §7). Pure.

Rules of this module:

- Every fault is a `ValueError` whose text says what is wrong, where, and what is allowed, so that a model that reads it
  can call again. It quotes little of the arguments.
- Names of details are plain names of any script, safe as names of files too. What is allowed is listed: letters,
  digits and the marks that belong to letters, and between them spaces, dots, dashes and underscores. So no name holds a
  slash, a drive, a control character or something invisible, none begins with a dot, and none leads out of its folder.
  Characters that pass for others, such as full-width letters, are refused.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from nexus.core.ports.memory import LONGEST_QUERY
from nexus.core.working_memory import STRATEGIES, TARGETS, Strategy, Target
from nexus.services.tools.memory_tools import (
    COMPACT_HISTORY,
    DEFAULT_CHARACTERS,
    DEFAULT_KEEP_RECENT,
    FEWEST_CHARACTERS,
    MEMORY_TOOLS,
    MOST_CHARACTERS,
    MOST_KEPT,
    NAME_CHARS,
    READ_MEMORY_DETAIL,
    SEARCH_MEMORY,
    UPDATE_WORKING_MEMORY,
    WRITE_MEMORY_DETAIL,
    MemoryLimits,
)

# JSON numbers are exact up to here everywhere.
_LARGEST: Final = 2**53 - 1
_SHOWN_CHARS: Final = 40
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

# Categories of characters that show nothing where they stand alone.
_UNSEEN: Final = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf", "Mn", "Me"})
# Letters and symbols by their category that show nothing.
_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")

# Names of files have at most 255 bytes on most systems, of which an extension and a number need some.
_NAME_BYTES: Final = 200
_BETWEEN: Final = frozenset(" ._-")
# Letters and marks by their category that show nothing, or a dot or a slash.
_DECEPTIVE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0\u3033\u3034\u3035\u2cc6\u2cc7"
    "\ua4f8\ua4f9\ua4fa\ua4fb\ua4fc\ua4fd\U0001d16d"
)
_VARIATION_SELECTORS: Final = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
# The form of archives' names, which have to be free.
_RESERVED: Final = re.compile(r"compaction-[0-9]", re.IGNORECASE)

_ALLOWED: Final = (
    f"allowed is a plain name of 1 to {NAME_CHARS} characters: letters, digits and, between them, spaces, '.', '-' and "
    "'_'; no path"
)

_Word = TypeVar("_Word", Target, Strategy)


@dataclass(frozen=True, slots=True)
class CompactHistory:
    """Represent earlier messages by a summary; the newest `keep_recent` stay."""

    target: Target
    strategy: Strategy
    keep_recent: int


@dataclass(frozen=True, slots=True)
class UpdateOverview:
    """Replace the overview; only if `base_revision` is the newest one, where that is not None."""

    content: str
    base_revision: int | None


@dataclass(frozen=True, slots=True)
class WriteDetail:
    """Write a detail."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class ReadDetail:
    """Read at most so many characters of a detail, from a character on."""

    name: str
    from_character: int = 0
    characters: int = DEFAULT_CHARACTERS


@dataclass(frozen=True, slots=True)
class SearchMemory:
    """Find the phrase in everything that is remembered of the session."""

    query: str


MemoryCall = CompactHistory | UpdateOverview | WriteDetail | ReadDetail | SearchMemory


def read_call(name: str, given: Any, limits: MemoryLimits | None = None) -> MemoryCall:
    """The call of the tool `name`; its arguments are an object, or its JSON text.

    Raises:
        ValueError: it is none; says what is wrong, where, and what is allowed.
    """
    reader = _READERS.get(name)
    if reader is None:
        raise ValueError(f"name: {_shown(name)} is unknown; allowed: {', '.join(sorted(MEMORY_TOOLS))}")
    allowed, read = reader
    arguments = _arguments(given)
    for key in arguments:
        if key not in allowed:
            raise ValueError(f"args: {_shown(key)} is unknown; allowed: {', '.join(allowed)}")
    return read(arguments, limits or MemoryLimits())


def _arguments(given: Any) -> Mapping[str, Any]:
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given, parse_constant=_refuse_constant)
        except RecursionError:
            raise ValueError("args: nested too deep; a JSON object is needed") from None
        except ValueError as error:
            raise ValueError(f"args: not JSON: {error}; a JSON object is needed") from None
    elif given is None or isinstance(given, str):
        given = {}
    if not isinstance(given, Mapping):
        raise ValueError(f"args: a JSON object is needed, not {_shown(given)}")
    # Models write null for what they leave out.
    return {key: value for key, value in given.items() if value is not None}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _compact_history(arguments: Mapping[str, Any], _limits: MemoryLimits) -> CompactHistory:
    return CompactHistory(
        _word(arguments, "target", TARGETS),
        _word(arguments, "strategy", STRATEGIES),
        _whole_number(arguments, "keep_recent", MOST_KEPT, DEFAULT_KEEP_RECENT),
    )


def _update_working_memory(arguments: Mapping[str, Any], limits: MemoryLimits) -> UpdateOverview:
    content = _content(arguments, limits.overview_max_bytes, "drop what is settled, or put it into a detail")
    base = _whole_number(arguments, "base_revision", _LARGEST) if "base_revision" in arguments else None
    return UpdateOverview(content, base)


def _write_memory_detail(arguments: Mapping[str, Any], limits: MemoryLimits) -> WriteDetail:
    name = read_name(arguments.get("name"))
    if is_reserved(name):
        raise ValueError(f"name: {name!r} is one that archives have, which nobody writes to; take another name")
    return WriteDetail(name, _content(arguments, limits.detail_max_bytes, "make several details of it"))


def _read_memory_detail(arguments: Mapping[str, Any], _limits: MemoryLimits) -> ReadDetail:
    return ReadDetail(
        read_name(arguments.get("name")),
        _whole_number(arguments, "from_character", _LARGEST, 0),
        _whole_number(arguments, "characters", MOST_CHARACTERS, DEFAULT_CHARACTERS, least=FEWEST_CHARACTERS),
    )


def _search_memory(arguments: Mapping[str, Any], _limits: MemoryLimits) -> SearchMemory:
    query = _text(arguments, "query").strip()
    if len(query) > LONGEST_QUERY:
        raise ValueError(f"query: {len(query)} characters, at most {LONGEST_QUERY} are allowed; a rare word is enough")
    return SearchMemory(query)


def _content(arguments: Mapping[str, Any], most: int, advice: str) -> str:
    content = _text(arguments, "content")
    size = len(content.encode())
    if size > most:
        raise ValueError(f"content: {size} bytes, at most {most} are allowed; {advice}")
    return content


def _text(arguments: Mapping[str, Any], where: str) -> str:
    value = arguments.get(where)
    if value is None:
        raise ValueError(f"{where}: is missing; a text is needed")
    if not isinstance(value, str):
        raise ValueError(f"{where}: a text is needed, not {_shown(value)}")
    if found := _UNSTORABLE.search(value):
        what = "a NUL" if found[0] == "\x00" else "half a surrogate pair"
        raise ValueError(f"{where}: {what} at place {found.start() + 1} cannot be kept; leave it out")
    if not any(map(_is_seen, value)):
        raise ValueError(f"{where}: is empty; a text with something in it is needed")
    return value


def _is_seen(char: str) -> bool:
    return unicodedata.category(char) not in _UNSEEN and char not in _BLANK


def _word(arguments: Mapping[str, Any], where: str, allowed: tuple[_Word, ...]) -> _Word:
    given = arguments.get(where)
    word = next((each for each in allowed if isinstance(given, str) and each == given), None)
    if word is None:
        fault = "is missing" if given is None else f"{_shown(given)} is unknown"
        raise ValueError(f"{where}: {fault}; allowed: {', '.join(allowed)}")
    return word


def _whole_number(
    arguments: Mapping[str, Any], where: str, most: int, default: int | None = None, *, least: int = 0
) -> int:
    given = arguments.get(where, default)
    whole = int(given) if isinstance(given, float) and given.is_integer() else given
    if not isinstance(whole, int) or isinstance(whole, bool) or not least <= whole <= most:
        raise ValueError(f"{where}: {_shown(given)} is not allowed; a whole number from {least} to {most} is")
    return whole


def _shown(value: Any) -> str:
    if isinstance(value, str):
        cut = ascii(value[:_SHOWN_CHARS]) if _UNSTORABLE.search(value) else repr(value[:_SHOWN_CHARS])
        return cut if len(value) <= _SHOWN_CHARS else f"{cut} and so on"
    if isinstance(value, bool | None):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"{value:.15g}" if isinstance(value, float) or abs(value) <= _LARGEST else "a number of that size"
    return f"a JSON {'object' if isinstance(value, Mapping) else 'array'}"


def read_name(given: Any, where: str = "name") -> str:
    """The name in its composed form (NFC).

    Raises:
        ValueError: it is no plain name; says what is allowed at the place `where`.
    """
    if not isinstance(given, str):
        raise ValueError(f"{where}: a text is needed, not {_kind(given)}; {_ALLOWED}")
    if len(given) > 2 * NAME_CHARS:
        # Composing a long text takes long, and none of these becomes a name.
        raise ValueError(f"{where}: {len(given)} characters are too many; {_ALLOWED}")
    name = unicodedata.normalize("NFC", given)
    if fault := _fault_of(name):
        raise ValueError(f"{where}: {fault}; {_ALLOWED}")
    return name


def is_reserved(name: str) -> bool:
    """Whether the name has the form of archives' names."""
    return _RESERVED.match(name) is not None


def _fault_of(name: str) -> str | None:
    size = len(name.encode("utf-8", "replace"))
    if not name:
        return "is empty"
    if len(name) > NAME_CHARS:
        return f"{len(name)} characters are too many"
    if size > _NAME_BYTES:
        return f"{size} bytes are too many, at most {_NAME_BYTES} fit"
    for place, char in enumerate(name, 1):
        if not (char in _BETWEEN or _is_plain(char)):
            return f"{_named_char(char)} at place {place} is not allowed"
    if ".." in name:
        return "'..' is not allowed"
    return None if _begins(name[0]) and name[-1] not in _BETWEEN else "a letter or a digit has to come first and last"


def _is_plain(char: str) -> bool:
    if char in _DECEPTIVE or _VARIATION_SELECTORS.match(char):
        return False
    category = unicodedata.category(char)
    if category[0] not in "LM" and category != "Nd":
        return False
    # `<compat>` is how some scripts write a vowel; the other kinds are widths, fonts, circles, raised letters.
    kind = unicodedata.decomposition(char).partition(" ")[0]
    return not kind.startswith("<") or kind == "<compat>"


def _begins(char: str) -> bool:
    # A mark belongs to the letter before it.
    return unicodedata.category(char)[0] in "LN"


def _named_char(char: str) -> str:
    return repr(char) if char.isascii() and char.isprintable() else f"U+{ord(char):04X}"


def _kind(value: Any) -> str:
    return "null" if value is None else f"a JSON {type(value).__name__}"


_READERS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any], MemoryLimits], MemoryCall]]]] = {
    COMPACT_HISTORY: (("target", "strategy", "keep_recent"), _compact_history),
    UPDATE_WORKING_MEMORY: (("content", "base_revision"), _update_working_memory),
    WRITE_MEMORY_DETAIL: (("name", "content"), _write_memory_detail),
    READ_MEMORY_DETAIL: (("name", "from_character", "characters"), _read_memory_detail),
    SEARCH_MEMORY: (("query",), _search_memory),
}
