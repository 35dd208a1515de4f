"""What is made while something else is waited for."""

import anyio
import anyio.lowlevel
import pytest

from nexus.core.meanwhile import Meanwhile


class TestMeanwhile:
    """Once, in the next pass of the loop or when it is asked for."""

    async def test_while_waiting(self) -> None:
        """Not before somebody waits, and before he has what he waits for."""
        made: list[int] = []
        meanwhile = Meanwhile(lambda: made.append(1))
        assert made == []
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert made == [1]
        meanwhile.result()
        assert made == [1]

    async def test_asked_for_at_once(self) -> None:
        """Who did not have to wait has it made then, and not once more."""
        made: list[int] = []

        def make() -> int:
            made.append(1)
            return len(made)

        meanwhile = Meanwhile(make)
        assert meanwhile.result() == 1
        await anyio.sleep(0.01)
        assert (meanwhile.result(), made) == (1, [1])

    @pytest.mark.parametrize("waits", [False, True])
    async def test_error(self, *, waits: bool) -> None:
        """Whoever asks for it is told, each time; the event loop is not."""

        def make() -> None:
            raise ValueError("so")

        meanwhile = Meanwhile(make)
        if waits:
            await anyio.sleep(0.01)
        for _ in range(2):
            with pytest.raises(ValueError, match="so"):
                meanwhile.result()
