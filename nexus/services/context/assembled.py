"""A message list as it is put together of its parts, with the manifest of how it came to be (CONTRACT §8). Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from nexus.core.compact_json import compact
from nexus.services.context.blocks import Block, Section
from nexus.services.context.budget import Weights
from nexus.services.context.tokens import Measure


class Assembled(NamedTuple):
    """A message list and the manifest of how it came to be, without notes and timings.

    Attributes:
        repairs: what had to be changed or left out, for the notes.
        run_room: in how many tokens what the run itself has said is to be brought; None for as many as it has.
        weights: what it took before anything was left out to make it fit; None where that was not counted.
    """

    messages: list[dict[str, Any]]
    manifest: dict[str, Any]
    repairs: list[str]
    weights: Weights | None = None
    run_room: int | None = None


def put_together(  # noqa: PLR0917  # one for each thing that an answer tells
    layout: str,
    sections: Sequence[Section],
    history: Mapping[str, int],
    stable: int,
    repairs: list[str],
    measure: Measure | None = None,
) -> Assembled:
    """The sections one after another.

    Args:
        layout: its name.
        sections: in their order.
        history: what the manifest says of the rows that were read.
        stable: how many of the first messages the next build of the owner or session can use again.
        repairs: for the notes.
        measure: counts tokens; without it they are not told.
    """
    messages: list[dict[str, Any]] = []
    described: list[dict[str, Any]] = []
    for section in sections:
        described += section.describe(len(messages), measure)
        messages += section.messages
    manifest = {
        "layout": layout,
        "blocks": described,
        "history": dict(history),
        "prefix": {"messages": stable, "sha256": _hash_of_first(sections, messages, stable)},
    }
    return Assembled(messages, manifest, repairs)


def sources(input_id: str) -> tuple[str, ...]:
    """Where the current input is from."""
    return (input_id,) if input_id else ()


def _hash_of_first(sections: Sequence[Section], messages: Sequence[Mapping[str, Any]], count: int) -> str:
    """The SHA-256 of the compact JSON in UTF-8 of the leading `count` messages (CONTRACT §8)."""
    first = [section for section in sections[:count] if isinstance(section, Block) and section.constant]
    if len(first) == count:
        return _hash_of_constant(tuple([(block.role, block.text) for block in first]))
    return hashlib.sha256(compact(messages[:count])).hexdigest()


@lru_cache(maxsize=16)
def _hash_of_constant(messages: tuple[tuple[str, str], ...]) -> str:
    return hashlib.sha256(compact([{"role": role, "content": text} for role, text in messages])).hexdigest()
