"""The form of OpenAI's chat completions, in which lists are made. Pure.

Of the message list only what is ours alone is taken off: that a call failed is said by its text. The rules for tools
and images are in `rules.py`. OpenAI finds cached prefixes by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nexus.core.models import LeftOut
from nexus.services.context.formats.base import Converted, counted, unmarked
from nexus.services.context.formats.media import Image, read_parts
from nexus.services.context.formats.rules import OPENAI
from nexus.services.context.formats.tools import shown_tools


def to_openai(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, stable: int, goes_on: bool = False
) -> Converted:
    """`messages` and `tools` as they are, but for what OpenAI would refuse of tools and images."""
    del stable, goes_on
    shown = shown_tools(tools, OPENAI)
    left_out: list[LeftOut] = []
    return Converted(
        messages=[_message(message, index, left_out) for index, message in enumerate(messages)],
        tools=[{"type": "function", "function": function} for function in shown.functions],
        places=[(index, 0) for index in range(len(messages))],
        notes=counted(shown.repaired),
        left_out=[*left_out, *shown.left_out],
        renamed=shown.renamed,
    )


def _message(message: Mapping[str, Any], index: int, left_out: list[LeftOut]) -> dict[str, Any]:
    shown = unmarked(message)
    if isinstance(message["content"], list):
        parts = read_parts(message["content"], OPENAI, f"messages[{index}]", left_out)
        shown["content"] = [_part(part) for part in parts]
    return shown


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = part.address or f"data:{part.media_type};base64,{part.data}"
    return {"type": "image_url", "image_url": {"url": url, **({"detail": part.detail} if part.detail else {})}}
