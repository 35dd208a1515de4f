"""What is shown of one message of the memory: its texts and annotations, cut to length and escaped (CONTRACT §4.3)."""

from collections.abc import Iterable, Sequence
from typing import Final

from nexus.services.context.annotations import annotate_stored
from nexus.services.context.entries import Entry
from nexus.services.context.escape import CountingEscape, canonical, escape_counted
from nexus.services.context.shorten import cut

NO_TEXT: Final = "[工具调用结果]"


# A text as it is stored, or an annotation ready to be shown, and whether it is that.
Part = tuple[str, bool]
# What is shown of a message, whether something was cut, and how many places were marked.
Body = tuple[str, bool, int]

_END: Final[Part] = ("", True)


def body_of(entries: Sequence[Entry], limit: int, *, plain: bool = False) -> Body:
    """What is shown of a message that these say, in so many characters before they are escaped.

    Args:
        entries: at least one.
        limit: how many.
        plain: there is nothing to escape in those of their texts that are not longer than that.
    """
    first = entries[0]
    text = first.text
    if len(entries) > 1 or first.stored_calls or not text or text.isspace():
        return _body_of_parts(entries, limit, plain=plain)
    # Most are one text and no more.
    was_cut = len(text) > limit
    if was_cut:
        (text,), was_cut = cut([text], 0, limit)
    elif plain:
        return text, False, 0
    escaped, marked = escape_counted(text)
    return escaped, was_cut, marked


def _body_of_parts(entries: Sequence[Entry], limit: int, *, plain: bool) -> Body:
    escaped = CountingEscape()
    parts = parts_of(entries, escaped)
    if not parts:
        return (NO_TEXT if entries[0].role == "ai" else ""), False, 0
    size = texts = 0
    for text, is_annotation in parts:
        size += len(text) + is_annotation
        texts += not is_annotation
    if texts <= 1 and size <= limit:
        # Nearly all say no more than one thing beside their calls.
        if plain:
            return "\n".join([text for text, _ in parts]), False, escaped.marked
        shown = [text if is_annotation else escaped(canonical(text)) for text, is_annotation in parts]
        return "\n".join(filter(None, shown)), False, escaped.marked
    reserved = sum([len(text) + 1 for text, is_annotation in parts if is_annotation])
    said = [text for text, is_annotation in parts if not is_annotation]
    shortened, was_cut = cut(said, reserved, limit)
    remaining = iter(shortened)
    lines: list[str] = []
    together: list[str] = []
    for text, is_annotation in [*parts, _END]:
        if not is_annotation:
            together.append(canonical(next(remaining)))
            continue
        # Texts that follow each other are escaped together, so that no tag comes about where they meet; each is made
        # canonical before, so that a carriage return at its end stays a line end of its own.
        if together and (joined := "\n".join(filter(None, together))):
            lines.append(escaped(joined))
        together.clear()
        lines.append(text)
    return "\n".join(lines[:-1]), was_cut, escaped.marked


def parts_of(entries: Iterable[Entry], escape_value: CountingEscape) -> list[Part]:
    """The texts and annotations of a message in the order of events; a text of blanks alone is none."""
    parts = []
    for entry in entries:
        if entry.text and not entry.text.isspace():
            parts.append((entry.text, False))
        if entry.stored_calls and (annotation := annotate_stored(entry.stored_calls, escape_value)):
            parts.append((annotation, True))
    return parts
