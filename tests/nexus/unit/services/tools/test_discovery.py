"""Tools of Python modules: found at start, or the start fails and says where (CONTRACT §3)."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nexus.core.errors import ConfigError
from nexus.services.tools.registry import ToolRegistry, discover

ONE_TOOL = """
def run(**arguments): return {name!r}
TOOLS = [({{"type": "function", "function": {{"name": {name!r}, "description": "d"}}}}, run)]
"""


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Path]:
    """A folder whose modules can be imported during the test."""
    known = set(sys.modules)
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in set(sys.modules) - known:
        del sys.modules[name]


def found(*names: str) -> ToolRegistry:
    """A registry with the tools of these modules."""
    registry = ToolRegistry()
    discover(registry, names)
    return registry


def test_a_module(modules: Path) -> None:
    """Its tools run in this process."""
    (modules / "trial_one.py").write_text(ONE_TOOL.format(name="one"))
    registry = found("trial_one")
    function = registry.get_tool_function("one")
    assert function is not None
    assert function() == "one"
    assert registry.is_local("one")


def test_a_package_with_its_modules(modules: Path) -> None:
    """All below it, however deep; tools listed twice are one; its program is not run."""
    inner = modules / "trial_package" / "inner"
    inner.mkdir(parents=True)
    (modules / "trial_package" / "__init__.py").write_text("from trial_package.a import TOOLS")
    (modules / "trial_package" / "a.py").write_text(ONE_TOOL.format(name="a"))
    (modules / "trial_package" / "helpers.py").write_text("")
    (modules / "trial_package" / "__main__.py").write_text("raise SystemExit('was run')")
    (inner / "__init__.py").write_text("")
    (inner / "b.py").write_text(ONE_TOOL.format(name="b"))
    assert found("trial_package").list_tool_names() == ["a", "b"]


@pytest.mark.parametrize("text", ["1 / 0", "def", "import no_such_module_either"])
def test_a_module_that_fails(modules: Path, text: str) -> None:
    """Whatever its own code raises."""
    (modules / "trial_failing.py").write_text(text)
    with pytest.raises(ConfigError, match=r"^tools.modules: trial_failing: cannot be imported: \w+Error"):
        found("trial_failing")


def test_a_failing_part_of_a_package_is_named(modules: Path) -> None:
    """Not only the package."""
    (modules / "trial_half").mkdir()
    (modules / "trial_half" / "__init__.py").write_text(ONE_TOOL.format(name="a"))
    (modules / "trial_half" / "bad.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"^tools.modules: trial_half.bad: cannot be imported: ZeroDivisionError"):
        found("trial_half")


def test_a_module_without_tools() -> None:
    """It is named for nothing, which is a mistake."""
    with pytest.raises(ConfigError, match=r"tools\.modules: string: lists no tools; TOOLS = "):
        found("string")


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ("5", "TOOLS: a list of"),
        ("{}", "TOOLS: a list of"),
        ("None", "TOOLS: a list of"),
        ("[5]", r"TOOLS\[0\]: a pair"),
        ("['ab']", r"TOOLS\[0\]: a pair"),
        ("[({}, print, 1)]", r"TOOLS\[0\]: a pair"),
        ("[({}, None)]", r"TOOLS\[0\]: a pair"),
        ("[({}, print)]", r"TOOLS\[0\]: function: a mapping"),
        (
            "[({'function': {'name': 'a'}}, print), ({'function': {'name': 'a'}}, len)]",
            r"TOOLS\[1\]: function.name: a tool",
        ),
    ],
)
def test_a_bad_entry_is_named(modules: Path, tools: str, said: str) -> None:
    """Module, place and what is needed."""
    (modules / "trial_bad.py").write_text(f"TOOLS = {tools}")
    with pytest.raises(ConfigError, match=rf"^tools\.modules: trial_bad\.{said}"):
        found("trial_bad")
