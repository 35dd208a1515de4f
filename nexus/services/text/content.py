"""Contents of messages as text: content parts joined, anything else as JSON. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json


def as_text(content: Any) -> str:
    """A content as text: `""` for None, and JSON for what is neither a text nor a list of texts."""
    if content is None or isinstance(content, str):
        return content or ""
    text = text_of_parts(content)
    return compact_json(content) if text is None else text


def text_of_parts(content: Any) -> str | None:
    """The joined texts of content parts (`{"type": "text", "text": …}` or plain texts); None for anything else."""
    if not isinstance(content, list | tuple) or not content:
        return None
    found = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    texts = [text for text in found if isinstance(text, str)]
    return "\n".join(texts) if len(texts) == len(content) else None


def compact_json(value: Any) -> str:
    """`value` as compact JSON; a part that JSON cannot express becomes text, a value that fails as a whole `{}`."""
    try:
        return to_json(value, inf_nan_mode="null", bytes_mode="base64", fallback=str).decode()
    except ValueError:
        return "{}"
