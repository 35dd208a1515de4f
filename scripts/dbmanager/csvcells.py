"""A document as the cells of a CSV row, which a spreadsheet must not take for formulas (OWASP, "CSV Injection")."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from bson import json_util

from .terminal import iso

MESSAGE_COLUMNS = ("id", "run_id", "owner_key", "session_id", "role", "timestamp", "content", "metadata")
# Tab and line ends are dropped by some programs before they look for a formula; wide signs count as signs for some.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def header(columns: Sequence[str], *, raw: bool) -> list[str]:
    """The first row. Names of fields are data too."""
    return [name if raw else _harmless(name) for name in columns]


def cells(document: Mapping[str, Any], columns: Sequence[str], *, raw: bool) -> list[str]:
    """The values of `columns`; a missing one is empty. `raw` leaves text as it is."""
    return [_cell(document.get(name), raw=raw) for name in columns]


def _cell(value: Any, *, raw: bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)  # a number is no formula, and a minus sign belongs to it
    text = as_text(value)
    return text if raw else _harmless(text)


def as_text(value: Any) -> str:
    """Text as it is, nothing as nothing, dates as ISO 8601, everything else as relaxed Extended JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return iso(value)
    return json_util.dumps(value, json_options=json_util.RELAXED_JSON_OPTIONS, ensure_ascii=False)


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
