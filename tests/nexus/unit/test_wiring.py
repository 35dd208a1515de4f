"""The settings as each service takes them."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from nexus.config import Settings
from nexus.config.loading import load_settings
from nexus.core.shares import BUDGET, SHARES
from nexus.services.tools.memory_tools import MemoryLimits, definitions
from nexus.wiring import builder_settings, settings_in_force
from tests.nexus.unit.test_odd_parts import trying


@pytest.mark.parametrize(
    ("llm", "by_model"),
    [({}, False), ({"base_url": "http://127.0.0.1:1/v1", "model": "m"}, True)],
)
def test_whether_summaries_are_replaced(llm: dict[str, str], by_model: bool) -> None:
    """Only where there is a model to ask."""
    assert builder_settings(Settings(llm=llm)).summaries_by_model is by_model


def test_shares_reach_the_window() -> None:
    """As they are set; the others as they are by default."""
    made = builder_settings(Settings(memory={"shares": {"goal": 0.2}})).window.shares
    assert made == {**SHARES, "goal": 0.2}


def test_the_budget_reaches_the_window() -> None:
    """As it is set; the rest of it, of the same block too, as it is by default."""
    assert builder_settings(Settings()).window.budget == BUDGET
    made = builder_settings(Settings(memory={"budget": {"history": {"floor": 0.3}}})).window.budget
    assert made == {**BUDGET, "history": BUDGET["history"]._replace(floor=0.3)}


@pytest.mark.parametrize(
    ("memory", "of_owners", "size"), [(7, None, 7), (7, 9, 9), ("auto", None, 200), (7, "auto", 200), ("auto", 9, 9)]
)
def test_how_many_messages(memory: int | str, of_owners: int | str | None, size: int) -> None:
    """As many as are ever read where it is auto: those are shown that have room."""
    made = Settings(
        memory={"history_context_size": memory}, user_defaults={"config": {"history_context_size": of_owners}}
    )
    assert builder_settings(made).history_size == size


def test_the_layouts_with_recall() -> None:
    """None by default."""
    assert builder_settings(Settings()).recall == frozenset()
    assert builder_settings(Settings(layouts={"agent": {"recall": True}})).recall == frozenset({"agent"})
    stored = settings_in_force(Settings(), {"layouts": {"thinking": {"recall": True}}})
    assert builder_settings(stored).recall == {"thinking"}


async def test_what_is_told_of_the_memory_tools() -> None:
    """The limits that are in force, also where they were stored after the start."""
    stored = {"overview_max_bytes": 2_000, "detail_max_bytes": 3_000}
    async with trying() as trial:
        assert "at most 5120 bytes" in json.dumps(trial.nexus.registry.definitions())
        trial.store.configurations = [{"environment": "development", "memory": stored}]
        await trial.nexus.reload_settings()
        assert trial.nexus.registry.definitions() == definitions(MemoryLimits(**stored))


def test_stored_settings_that_override_the_file(tmp_path: Path) -> None:
    """The log names those keys, and none where nothing of the file is overridden."""
    path = tmp_path / "nexus.yml"
    path.write_text("memory: {truncate_chars: 300, turns_shown: 50}")
    settings = load_settings(path, {"NEXUS_ENV": "staging"})
    with capture_logs() as logs:
        memory = {"truncate_chars": 400, "turns_shown": 50, "keep_revisions": 50}
        assert settings_in_force(settings, {"memory": memory}).memory.truncate_chars == 400
        assert settings_in_force(settings, {"memory": {"keep_revisions": 50}}).memory.keep_revisions == 50
        assert settings_in_force(settings, {}).memory == settings.memory
    assert logs == [
        {
            "event": "stored_settings_override_file",
            "log_level": "info",
            "environment": "staging",
            "reason": "the settings file has other values: memory.truncate_chars",
        }
    ]
