"""What summaries say of runs of which only a part is compacted, or was compacted before (CONTRACT §7)."""

import pytest

from nexus.core.working_memory import Target
from tests.nexus.unit.services.memory.compacting import Home
from tests.nexus.unit.services.memory.test_plan import exchange


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("targets", "told"), [(("tools", "conversation"), 1), (("conversation", "tools"), 2), (("conversation", "all"), 2)]
)
async def test_tools_and_conversation_apart(targets: tuple[Target, Target], told: int) -> None:
    """A run of which something is left is told in part, and of none is said that it called no tool."""
    home = Home()
    home.plant([*exchange(0, "one"), *exchange(9, "two", calls=0)], ago=90)
    first, second = [await home.compact(target=target, keep_recent=0) for target in targets]
    assert first
    assert second
    lines = first.summary.split("\n")
    assert ["in part" in line for line in lines] == [True, False][:told]
    assert "No tool" not in first.summary + second.summary
