"""The form of OpenAI's chat completions, which is the form that lists are made in. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from nexus.services.context.formats.base import Converted


def to_openai(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, stable: int, goes_on: bool
) -> Converted:
    """`messages` and `tools` as they are. OpenAI finds cached prefixes by itself."""
    del stable, goes_on
    return Converted(
        messages=[dict(message) for message in messages],
        tools=[dict(tool) for tool in tools],
        places=[(index, 0) for index in range(len(messages))],
        notes=[],
    )
