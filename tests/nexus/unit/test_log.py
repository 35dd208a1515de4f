"""Logs hold ids, sizes and hashes, never what people wrote."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from nexus.log import configure_logging

SECRET = "hunter2-canary"


@pytest.fixture(autouse=True)
def _defaults_afterwards() -> Iterator[None]:
    """Other tests log as if this one had not been."""
    yield
    structlog.reset_defaults()


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines on stderr as JSON."""
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


@pytest.mark.parametrize("form", ["auto", "json"])
def test_a_line_is_json(capsys: pytest.CaptureFixture[str], form: Any) -> None:
    """Without a terminal: event, level, an aware time, and the fields that may be shown."""
    configure_logging("info", form)
    structlog.get_logger().info("answered", request_id="msg_1", bytes=5)
    (line,) = logged(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "answered", "level": "info", "request_id": "msg_1", "bytes": 5}


@pytest.mark.parametrize("value", ['ü"\\\n\x00', "\ud800", -1.5, True, None, 10**30, ["a", {"b": 1.5}]])
def test_any_value_is_a_line_of_json(capsys: pytest.CaptureFixture[str], value: Any) -> None:
    """Also those that orjson refuses."""
    configure_logging("info", "json")
    structlog.get_logger().info("answered", reason=value)
    assert logged(capsys)[0]["reason"] == value


def test_other_fields_are_withheld(capsys: pytest.CaptureFixture[str]) -> None:
    """A field that is not on the list shows that it was there and nothing else."""
    configure_logging("info", "json")
    structlog.get_logger().bind(owner_key=SECRET).info("answered", text=SECRET, url=SECRET)
    (line,) = logged(capsys)
    assert (line["text"], line["url"], line["owner_key"]) == ("[withheld]",) * 3
    assert SECRET not in json.dumps(line)


def test_an_exception_is_shown_without_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Type and places, newest last."""
    configure_logging("info", "json")
    try:
        int(SECRET)
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = logged(capsys)
    kind, place = line["exception"].splitlines()
    assert kind == "ValueError"
    assert re.fullmatch(r"  test_log.py:\d+ test_an_exception_is_shown_without_its_text", place)
    assert SECRET not in json.dumps(line)


def test_the_console_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Readable lines with the same fields withheld, also under an exception."""
    configure_logging("info", "console")
    try:
        int(SECRET)
    except ValueError:
        structlog.get_logger().exception("failed", request_id="msg_1", text=SECRET)
    shown = capsys.readouterr().err
    assert all(text in shown for text in ("failed", "msg_1", "[withheld]", "ValueError"))
    assert SECRET not in shown


@pytest.mark.parametrize(("level", "shown"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_levels(capsys: pytest.CaptureFixture[str], level: str, shown: int) -> None:
    """What is below the level is not written."""
    configure_logging(level, "json")
    for method in ("debug", "info", "warning", "error"):
        getattr(structlog.get_logger(), method)("event")
    assert len(logged(capsys)) == shown
