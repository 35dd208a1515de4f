"""Contents of messages and results: as text, and the document in the envelope that a result comes in. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_json

# The form of results from servers of the Model Context Protocol.
_ENVELOPE: Final = {"content", "isError", "structuredContent", "_meta"}
_TEXTS: Final = ("text", "input_text", "output_text")
# What Gemini's and LlamaIndex's parts have beside a text.
_BESIDE_TEXT: Final = {"type", "text", "thought", "thoughtSignature", "thought_signature", "block_type"}

# A block of recalled messages as contexts have it: a head, a line that explains it, and lines that begin with a
# bracket, perhaps quoted, or with ends as Windows has them. In JSON all of it is on one line.
_RECALLED: Final = re.compile(r"\[RECALL count=\d+\][^\n]*(?:\n[^\n]*(?:\n[ \t\r>]*(?:\[[^\n]*)?(?=\n|\Z))*)?")


def as_text(content: Any) -> str:
    """A content as text: `""` for None, and JSON for what is neither a text nor a list of texts."""
    if content is None or isinstance(content, str):
        return content or ""
    text = text_of_parts(content)
    return compact_json(content) if text is None else text


def place_of(text: str, phrase: str) -> int | None:
    """The character at which the phrase begins, ignoring case; None where it does not occur."""
    match = re.search(re.escape(phrase), text, re.IGNORECASE)
    return match.start() if match else None


def without_recalled(text: str) -> str:
    """A text without `[RECALL]` blocks, which come back where a context is sent as a message."""
    return _RECALLED.sub("", text)


def text_of_parts(content: Any) -> str | None:
    """The joined texts of content parts (`{"type": "text", "text": …}` or plain texts); None for anything else."""
    if not isinstance(content, list | tuple) or not content:
        return None
    texts: list[str] = []
    for part in content:
        text = text_of_part(part) if isinstance(part, Mapping) else part
        # Most lists are no parts, which shows with the first item.
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "\n".join(texts)


def text_of_part(part: Mapping[str, Any]) -> str | None:
    """The text of a part that is nothing but text; None for other data, such as a hit of a search with its address."""
    text = part.get("text")
    if not isinstance(text, str):
        return None
    if isinstance(part.get("type"), str):
        return text if part["type"] in _TEXTS else None
    said = {name for name, value in part.items() if value is not None}
    return text if said <= _BESIDE_TEXT else None


def compact_json(value: Any) -> str:
    """`value` as compact JSON; a part that JSON cannot express becomes text, a value that fails as a whole `{}`."""
    try:
        return to_json(value, inf_nan_mode="null", bytes_mode="base64", fallback=str).decode()
    except ValueError:
        return "{}"


def opened(value: Any) -> Any:
    """The content of a result: the text of content parts, the document in a JSON text; else the value itself."""
    value = _document(value)
    parts = value["content"] if is_envelope(value) else value
    if isinstance(parts, list | tuple) and any(isinstance(item, Mapping) for item in parts):
        text = text_of_parts(parts)
        return value if text is None else _document(text)
    return value


def is_error(value: Any) -> bool:
    """Whether a result says of itself that it is an error, as servers of the Model Context Protocol do."""
    value = _document(value)
    return is_envelope(value) and value.get("isError") is True


def is_envelope(value: Any) -> bool:
    """Whether a value is the result of a call of a server of the Model Context Protocol."""
    return isinstance(value, Mapping) and value.keys() <= _ENVELOPE and isinstance(value.get("content"), list)


def _document(value: Any) -> Any:
    """The document in a JSON text; else the value itself."""
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        try:
            # Numbers stay as they are written: the bound of a confidence interval is 0.80, not 0.8.
            return json.loads(value, parse_float=str, parse_int=str, parse_constant=str)
        except (ValueError, RecursionError):
            pass
    return value
