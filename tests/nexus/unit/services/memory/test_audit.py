"""Where the messages of a session are (contract §7)."""

from nexus.services.memory.documents import Audit
from tests.nexus.unit.services.memory.compacting import home_with


class TestAccounting:
    """Where messages are."""

    async def test_what_is_wrong(self) -> None:
        """Is counted: lost rows, and rows that are there twice."""
        home = home_with(3)
        await home.compact(keep_recent=4)
        (document,) = home.store.memory.rows["compactions"]
        document["rows"] = [*document["rows"][1:], document["rows"][1], home.store.messages[-1]["_id"]]
        found = await home.account()
        assert found == Audit(messages=12, in_context=3, summarised=6, lost=1, twice=2)
        assert not found.is_right
