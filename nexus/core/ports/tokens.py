"""How long a text is for a model (CONTRACT §7)."""

from typing import Protocol


class TokenCounter(Protocol):
    """Counts tokens, without a network and without waiting.

    - Counting takes linear time, any text has a count, and the same text always has the same one.
    - No text has more than `most_per_byte` tokens for each of its bytes in UTF-8; half a surrogate pair has three.
    - What is needed for counting may be read when the first text is counted.
    """

    @property
    def name(self) -> str:
        """The vocabulary, such as `o200k_base`."""
        ...

    @property
    def most_per_byte(self) -> int:
        """How many tokens a byte is at most: 1, or 3 with a vocabulary that normalises texts first, as `qwen3` does."""
        ...

    def count(self, text: str) -> int:
        """How many tokens the text is, with this vocabulary: exactly, as far as the text is valid Unicode."""
        ...
