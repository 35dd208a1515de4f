"""Checks of what messages bring, with errors that say what is wrong, where, and what is allowed. Pure.

The errors are logged and kept with dead letters, so that they quote nothing that a person may have said.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from nexus.services.text.escape import canonical

_SHOWN_CHARS: Final = 60
_WORD: Final = re.compile(r"[A-Za-z_-]{1,16}")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def unknown_value(where: str, value: Any, allowed: Iterable[str]) -> str:
    """The reason that a value is none of those allowed."""
    shown = repr(value[:_SHOWN_CHARS]) if isinstance(value, str) else f"a JSON {type(value).__name__}"
    return f"{where}: {shown} is unknown; allowed: {', '.join(allowed)}"


def unknown(where: str, value: Any, allowed: Iterable[str]) -> ValueError:
    """The same as an error whose text is logged, so that no more than a short word is quoted."""
    if isinstance(value, str) and not is_word(value):
        return ValueError(f"{where}: a text of {len(value)} characters is unknown; allowed: {', '.join(allowed)}")
    return ValueError(unknown_value(where, value, allowed))


def check_names(where: str, given: Iterable[Any], allowed: Collection[str]) -> None:
    """A ValueError, as `unknown` gives it, for the first name that is none of those allowed."""
    for name in given:
        if name not in allowed:
            raise unknown(where, name, allowed)


def read_op(content: Any, fields: Mapping[str, Collection[str]]) -> str:
    """The `op` in the content of a message, which has no other `fields` than that op; ValueError for anything else."""
    op = content.get("op") if isinstance(content, Mapping) else None
    if op is None:
        raise ValueError(f"content: a JSON object is needed, with op: {', '.join(fields)}")
    check_names("content.op", [op], tuple(fields))
    check_names("content", content, fields[op])
    return str(op)


def is_word(text: str) -> bool:
    """Whether it is a short word, as names of fields are, and nothing that a person may have said."""
    return bool(_WORD.fullmatch(text))


def refuse_unstorable(text: str, where: str) -> None:
    """ValueError, with the place, where a text has what a document store or a canonical form cannot keep."""
    if found := _UNSTORABLE.search(text):
        what = "a NUL" if found[0] == "\x00" else "half a surrogate pair"
        raise ValueError(f"{where}: {what} at place {found.start() + 1} cannot be kept; leave it out")


def read_text(value: Any, where: str, most: int) -> str:
    """A text of 1 to `most` characters that shows something; ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: a text of 1 to {most} characters is needed")
    if len(value) > most:
        raise ValueError(f"{where}: {len(value)} characters, at most {most} are allowed")
    refuse_unstorable(value, where)
    if not canonical(value).strip():
        raise ValueError(f"{where}: is blank; a text of 1 to {most} characters is needed")
    return value
