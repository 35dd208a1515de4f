"""What is shown of one message of the memory: its texts and annotations, cut to length and escaped (CONTRACT §4.3)."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from nexus.services.context.annotations import annotate
from nexus.services.context.entries import Entry
from nexus.services.context.escape import CountingEscape, canonical
from nexus.services.context.memory import Utterance
from nexus.services.context.shorten import cut

NO_TEXT: Final = "[工具调用结果]"


class Part(NamedTuple):
    """A text as it is stored, or an annotation ready to be shown."""

    text: str
    is_annotation: bool = False


_END: Final = Part("", is_annotation=True)


def body_of(utterance: Utterance, limit: int, escaped: CountingEscape) -> tuple[str, bool]:
    """What is shown of it in so many characters before they are escaped, and whether something was cut."""
    first = utterance.entries[0]
    if len(utterance.entries) > 1 or first.stored_calls or not first.text or first.text.isspace():
        return _body_of_parts(utterance, limit, escaped)
    # Most are one text and no more.
    (text,), was_cut = cut([first.text], 0, limit) if len(first.text) > limit else ([first.text], False)
    return escaped(text), was_cut


def _body_of_parts(utterance: Utterance, limit: int, escaped: CountingEscape) -> tuple[str, bool]:
    parts = parts_of(utterance.entries, escaped)
    if not parts:
        return (NO_TEXT if utterance.role == "ai" else ""), False
    reserved = sum(len(part.text) + 1 for part in parts if part.is_annotation)
    texts, was_cut = cut([part.text for part in parts if not part.is_annotation], reserved, limit)
    remaining = iter(texts)
    lines: list[str] = []
    together: list[str] = []
    for part in [*parts, _END]:
        if not part.is_annotation:
            together.append(canonical(next(remaining)))
            continue
        # Texts that follow each other are escaped together, so that no tag comes about where they meet; each is made
        # canonical before, so that a carriage return at its end stays a line end of its own.
        if text := "\n".join(filter(None, together)):
            lines.append(escaped(text))
        together.clear()
        lines.append(part.text)
    return "\n".join(lines[:-1]), was_cut


def parts_of(entries: Iterable[Entry], escape_value: CountingEscape) -> list[Part]:
    """The texts and annotations of a message in the order of events; a text of blanks alone is none."""
    parts = []
    for entry in entries:
        if entry.text and not entry.text.isspace():
            parts.append(Part(entry.text))
        if calls := entry.tool_calls:
            parts.append(Part(annotate(calls, escape_value), is_annotation=True))
    return parts
