"""A language model (CONTRACT §6): whoever speaks the OpenAI protocol."""

from collections.abc import Mapping
from typing import Any, Protocol


class LanguageModel(Protocol):
    """A model that answers with JSON.

    - At most so many calls are under way as the settings allow; the others wait for their turn.
    - A call that fails for a passing reason is tried again, after pauses of random length, as often as the settings
      say. After several failures in a row no call is made for a while (`resting_s`): it fails at once.
    - Errors: `ModelUnavailableError`; `PromptTooLongError` where the endpoint says that the prompt does not fit.
    """

    @property
    def name(self) -> str:
        """What the model is called."""
        ...

    @property
    def resting_s(self) -> float:
        """For how many seconds from now every call fails at once; 0 when the next one is made."""
        ...

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any], schema_name: str) -> str:
        """The text of the model's answer, whatever it is.

        Args:
            system: what the model is to do.
            user: what it is to do it with.
            schema: a JSON schema that the answer is to follow; endpoints that cannot be told so are only asked.
            schema_name: the schema's name, `[a-z_]+`.

        Raises:
            ModelUnavailableError, PromptTooLongError: as the port says.
        """
        ...
