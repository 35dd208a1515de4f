"""What models are told of the memory tools (contract §7)."""

import pytest

from nexus.services.tools.memory_tools import MEMORY_TOOLS, READING_TOOLS, MemoryLimits, definitions
from nexus.services.tools.registry import ToolRegistry, check_definition


def test_all_of_them() -> None:
    """There is a definition of each tool, in the order of names, and all of them can be registered."""
    registry = ToolRegistry()
    for definition in definitions():
        registry.register(definition)
    assert registry.list_tool_names() == sorted(MEMORY_TOOLS)
    assert [definition["function"]["name"] for definition in definitions()] == sorted(MEMORY_TOOLS)
    assert registry.get_all_tool_definitions() == definitions()
    assert READING_TOOLS < MEMORY_TOOLS


@pytest.mark.parametrize("definition", definitions(), ids=lambda definition: definition["function"]["name"])
def test_each_is_closed_and_explained(definition: dict[str, dict[str, dict[str, dict[str, str]]]]) -> None:
    """Every parameter is explained, and no others are allowed."""
    parameters = check_definition(definition)["function"]["parameters"]
    assert parameters["additionalProperties"] is False
    assert all(len(schema["description"]) > 5 for schema in parameters["properties"].values())
    assert set(parameters["required"]) <= set(parameters["properties"])


def test_the_limits_are_told() -> None:
    """A model knows how large a text may be before it writes one."""
    texts = str(definitions(MemoryLimits(overview_max_bytes=777, detail_max_bytes=8_888)))
    assert "at most 777 bytes" in texts
    assert "at most 8888 bytes" in texts
