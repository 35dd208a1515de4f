"""Logs: JSON in production, readable in a terminal. Ids, sizes and hashes only.

Fields are allowed by a list, so that no user text and no secret gets in by oversight: any other shows as `[withheld]`.
Of an exception its type and places are logged, not its text, which may quote what was processed.
"""

import json
import logging
import sys
import traceback
from collections.abc import Callable, MutableMapping
from typing import Any, Final, Literal

import orjson
import structlog

_ALLOWED: Final = frozenset(
    {
        "action",
        "attempts",
        "bytes",
        "calls",
        "deliveries",
        "details",
        "entry",
        "environment",
        "event",
        "exception",
        "facts",
        "http_port",
        "letters",
        "level",
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
        "revisions",
        "rows",
        "run_id",
        "seconds",
        "sha256",
        "size",
        "states",
        "task",
        "timestamp",
        "tools",
        "topic",
        "turns",
        "unwritten",
        "version",
        "who",
    }
)

Event = MutableMapping[str, Any]


def configure_logging(
    level: str = "info", form: Literal["auto", "json", "console"] = "auto", *, for_good: bool = False
) -> None:
    """Send structlog's events to stderr, in JSON lines or, for `console` and in a terminal, in readable ones.

    Each line is written before the call returns, so that none is lost with the process. `level` is the lowest that is
    written; `form` `auto` is `console` in a terminal, else `json`; `for_good` caches loggers, so that later calls of
    this function do not change them.
    """
    # OpenTelemetry would log what requesters send as a trace context, and each attempt to reach a collector.
    opentelemetry = logging.getLogger("opentelemetry")
    opentelemetry.addHandler(logging.NullHandler())
    opentelemetry.propagate = False
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(_dumps)
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


def _dumps(event: Event, default: Callable[[Any], Any]) -> str:
    try:
        return orjson.dumps(event, default=default).decode()
    except TypeError:
        # orjson refuses lone surrogates and integers above 64 bits; no line is lost for them.
        return json.dumps(event, default=default)


def withhold(_logger: Any, _method: str, event: Event) -> Event:
    """Hide the value of every field that is not on the list."""
    return {key: value if key in _ALLOWED else "[withheld]" for key, value in event.items()}


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
