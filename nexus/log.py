"""Logs: JSON in production, readable in a terminal. Ids, sizes and hashes only.

What may be logged is a list, so that no user text and no secret gets in by oversight: a field that is not on it is
shown as `[withheld]`. Of an exception its type and places are shown, not its text, which may quote what was processed.
"""

import json
import logging
import math
import sys
import traceback
from collections.abc import MutableMapping
from json.encoder import encode_basestring
from typing import Any, Final, Literal

import structlog

_ALLOWED: Final = frozenset(
    {
        "attempts",
        "bytes",
        "calls",
        "deliveries",
        "entry",
        "environment",
        "event",
        "exception",
        "http_port",
        "letters",
        "level",
        "logger",
        "loop",
        "message_id",
        "mode",
        "ms",
        "name",
        "outcome",
        "part",
        "pending",
        "pid",
        "reason",
        "reconnects",
        "request_id",
        "rows",
        "run_id",
        "seconds",
        "sha256",
        "size",
        "states",
        "timestamp",
        "tools",
        "topic",
        "turns",
        "unwritten",
        "version",
    }
)

Event = MutableMapping[str, Any]

# What JSON has no form for is shown as Python does, rather than stop the line.
_in_json: Final = json.JSONEncoder(ensure_ascii=False, default=repr).encode


def configure_logging(
    level: str = "info", form: Literal["auto", "json", "console"] = "auto", *, for_good: bool = False
) -> None:
    """Send structlog's events to stderr, in JSON lines or, for `console` and in a terminal, in readable ones.

    Each line is written before the call returns, so that none is lost with the process.

    Args:
        level: the lowest that is shown.
        form: how a line looks.
        for_good: nothing of this is changed any more; what is below the level costs next to nothing then.
    """
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if console else _line
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            describe_exception,
            withhold,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=for_good,
    )


def withhold(_logger: Any, _method: str, event: Event) -> Event:
    """Hide the value of every field that is not on the list."""
    return {key: value if key in _ALLOWED else "[withheld]" for key, value in event.items()}


def _line(_logger: Any, _method: str, event: Event) -> str:
    # As `_in_json` has it, which sets up an encoder for each line and takes three times as long.
    shown = [
        f"{encode_basestring(key)}: {encode_basestring(value) if type(value) is str else _shown(value)}"
        for key, value in event.items()
    ]
    return "{" + ", ".join(shown) + "}"


def _shown(value: Any) -> str:
    kind = type(value)
    return repr(value) if kind is int or (kind is float and math.isfinite(value)) else _in_json(value)


def describe_exception(_logger: Any, _method: str, event: Event) -> Event:
    """The current exception as its type and the places it passed, newest last."""
    info = event.pop("exc_info", None)
    error = sys.exc_info()[1] if info is True else info
    if isinstance(error, BaseException):
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"\n  {frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        # A text, because the console form writes it out by itself.
        event["exception"] = type(error).__name__ + "".join(places)
    return event
