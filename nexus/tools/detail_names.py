"""Names of details (CONTRACT §7): plain names of any script, which are safe as names of files too. Pure.

What is allowed is listed rather than what is not: letters, digits and the marks that belong to letters, and between
them spaces, dots, dashes and underscores. So no name holds a slash, a drive, a control character or something
invisible, none begins with a dot, and none leads out of its folder. Characters that pass for others, such as full-width
letters or a Lisu letter that is drawn as a dot, are refused, so that a name is what it looks like.
"""

import re
import unicodedata
from typing import Any, Final

from nexus.tools.memory_tools import NAME_CHARS

# Names of files have 255 bytes on most systems, of which an extension and a number may need some.
_NAME_BYTES: Final = 200
_BETWEEN: Final = frozenset(" ._-")
# Letters and marks by their category, and nothing to the eye, or a dot or a slash.
_DECEPTIVE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0\u3033\u3034\u3035\u2cc6\u2cc7"
    "\ua4f8\ua4f9\ua4fa\ua4fb\ua4fc\ua4fd\U0001d16d"
)
_VARIATION_SELECTORS: Final = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
# Archives are named by the system, which must find the names free.
_RESERVED: Final = re.compile(r"compaction-[0-9]", re.IGNORECASE)

_ALLOWED: Final = (
    f"allowed is a plain name of 1 to {NAME_CHARS} characters: letters, digits and, between them, spaces, '.', '-' and "
    "'_'; no path"
)


def read_name(given: Any, where: str = "name") -> str:
    """The name in its composed form (NFC).

    Raises:
        ValueError: it is no plain name; says what is allowed at the place `where`.
    """
    if not isinstance(given, str):
        raise ValueError(f"{where}: a text is needed, not {_kind(given)}; {_ALLOWED}")
    if len(given) > 2 * NAME_CHARS:
        # Composing takes no text of any length; and none of these becomes a name.
        raise ValueError(f"{where}: {len(given)} characters are too many; {_ALLOWED}")
    name = unicodedata.normalize("NFC", given)
    if fault := _fault_of(name):
        raise ValueError(f"{where}: {fault}; {_ALLOWED}")
    return name


def is_reserved(name: str) -> bool:
    """Whether the name is one of those that archives have."""
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
            return f"{_shown(char)} at place {place} is not allowed"
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
    """Whether it stands by itself: a mark belongs to the letter before it."""
    return unicodedata.category(char)[0] in "LN"


def _shown(char: str) -> str:
    """A character as an error names it, where it may be one that cannot be seen."""
    return repr(char) if char.isascii() and char.isprintable() else f"U+{ord(char):04X}"


def _kind(value: Any) -> str:
    return "null" if value is None else f"a JSON {type(value).__name__}"
