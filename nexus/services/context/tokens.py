"""Old names, until the builder uses `Budget`."""

from nexus.core.ports import TokenCounter
from nexus.services.text.tokens import ByteBound
from nexus.services.text.tokens import Measure as NewMeasure


class Measure(NewMeasure):
    """With the old names."""

    def __init__(self, counter: TokenCounter, form: str = "openai", _kept: dict[str, int] | None = None) -> None:
        super().__init__(counter, form)

    def told(self, tokens: int) -> int:
        """Scaled."""
        return self.scaled(tokens)


class Bound(Measure):
    """A measure by bytes."""

    def __init__(self, counter: TokenCounter, form: str = "openai") -> None:
        super().__init__(ByteBound(counter), form)
