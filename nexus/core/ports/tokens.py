"""How long a text is for a model (CONTRACT §7)."""

from typing import Protocol


class TokenCounter(Protocol):
    """Counts tokens, without a network and without waiting.

    - Counting takes linear time, any text has a count, and the same text always has the same one.
    - No text has more tokens than bytes in UTF-8, or three times as many with a vocabulary that normalises texts first,
      as `qwen3` does.
    """

    @property
    def name(self) -> str:
        """The vocabulary, such as `o200k_base`."""
        ...

    def count(self, text: str) -> int:
        """How many tokens the text is, with this vocabulary: exactly, as far as the text is valid Unicode."""
        ...
