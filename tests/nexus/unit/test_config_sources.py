"""Where the value of each setting comes from, and which values of the file a stored document outranks."""

from pathlib import Path
from typing import Any, Final

import pytest

from nexus.config.loading import load_settings, with_stored
from nexus.config.sources import Origin, origins
from nexus.core.errors import ConfigError

FILE: Final = """
memory: {truncate_chars: 300, turns_shown: 50, compact_at: 0.75, history_context_size: 7,
  budget: {notes: {ceiling: 0.3}}}
layouts: {agent: {max_tokens: null}}
bus: {signing: {keys: {k1: a secret of sixteen}}}
"""
STORED: Final[dict[str, Any]] = {
    "memory": {"truncate_chars": 400, "turns_shown": 50, "keep_revisions": 100, "history_context_size": 9},
    "layouts": {"agent": {"max_tokens": 9_000}},
    "user_defaults": None,
    "bus": {"lease_ms": 999},
}
VARIABLES: Final = {
    "NEXUS_MEMORY__HISTORY_CONTEXT_SIZE": "11",
    "NEXUS_LAYOUTS__AGENT": "{placement: tail}",
    "NEXUS_ENV": "staging",
}


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Origin]:
    """Every setting, by its key."""
    path = tmp_path / "nexus.yml"
    path.write_text(FILE)
    return {origin.key: origin for origin in origins(load_settings(path, VARIABLES), STORED, path, VARIABLES)}


def test_each_source(tmp_path: Path, found: dict[str, Origin]) -> None:
    """A default, the file, the stored document by its environment, and a variable, also one that holds a mapping."""
    file = str(tmp_path / "nexus.yml")
    expected: dict[str, tuple[Any, str, str]] = {
        "memory.compact_to": (0.4, "default", ""),
        "memory.compact_at": (0.75, "file", file),
        "memory.budget.notes.ceiling": (0.3, "file", file),
        "memory.budget.notes.floor": (0.05, "default", ""),
        "memory.keep_revisions": (100, "stored", "staging"),
        "memory.truncate_chars": (400, "stored", "staging"),
        "layouts.agent.max_tokens": (9_000, "stored", "staging"),
        "memory.history_context_size": (11, "environment", "NEXUS_MEMORY__HISTORY_CONTEXT_SIZE"),
        "layouts.agent.placement": ("tail", "environment", "NEXUS_LAYOUTS__AGENT"),
        "layouts.agent.pinned_from_end": (5, "default", ""),
        "bus.lease_ms": (2_000, "default", ""),
        "environment": ("staging", "environment", "NEXUS_ENV"),
    }
    assert {key: (item.value, item.source, item.place) for key, item in found.items() if key in expected} == expected
    assert (found["bus.signing.keys"].source, found["bus.url"].source) == ("file", "default")


def test_what_is_outranked(found: dict[str, Origin]) -> None:
    """Values of the file, null too, for which the document has others; not equal ones, nor what a variable decides."""
    outranked = {key: item.outranked for key, item in found.items() if item.outranked}
    assert outranked == {"memory.truncate_chars": (300,), "layouts.agent.max_tokens": (None,)}


def test_what_is_shown_of_addresses() -> None:
    """Where they lead, but for passwords."""
    given = {"NEXUS_TRACING__OTLP_ENDPOINT": "http://user:canary@collector:4318", "NEXUS_BUS__URL": "redis://r:1/0"}
    shown = {each.key: each.shown for each in origins(load_settings(None, given), {}, None, given)}
    assert (shown["bus.url"], "canary" in shown["tracing.otlp_endpoint"]) == ("redis://r:1/0", False)
    assert "collector:4318" in shown["tracing.otlp_endpoint"]


def test_nothing_given() -> None:
    """Everything has its default."""
    found = origins(load_settings(None, {}), {}, None, {})
    assert {origin.source for origin in found} == {"default"}
    assert "development" in {origin.value for origin in found if origin.key == "environment"}


def test_a_wrong_document() -> None:
    """It is refused as a service refuses it, also for what it means together with the file."""
    settings = load_settings(None, {"NEXUS_MEMORY__COMPACT_AT": "0.5"})
    wrong = (
        ({"memory": 5}, "memory: keys with values are needed"),
        ({"memory": {"compact_to": 0.6}}, "memory.compact_to: 0.6 is allowed only below memory.compact_at, 0.5"),
        (
            {"memory": {"budget": {"turns": {"floor": 0.2}}}},
            "memory.budget.turns.floor: 0.2 is allowed only up to its ceiling, 0.1",
        ),
        (
            {"memory": {"budget": {"history": {"floor": 0.55}}}},
            "memory.budget: the floors and constraints.ceiling are 1.1 together; at most 1 is allowed",
        ),
    )
    for document, fault in wrong:
        with pytest.raises(ConfigError, match=f"^configurations document of environment 'development': {fault}"):
            origins(settings, document, None, {"NEXUS_MEMORY__COMPACT_AT": "0.5"})
        with pytest.raises(ConfigError):
            with_stored(settings, document, {"NEXUS_MEMORY__COMPACT_AT": "0.5"})
