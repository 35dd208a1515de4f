"""A message list as it is put together of its parts, with the manifest of how it came to be (CONTRACT §8). Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nexus.services.context.blocks import Section, compact
from nexus.services.context.budget import Weights
from nexus.services.context.tokens import Measure


@dataclass(frozen=True, slots=True)
class Assembled:
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
        "prefix": _describe_prefix(messages, stable),
    }
    return Assembled(messages, manifest, repairs)


def sources(input_id: str) -> tuple[str, ...]:
    """Where the current input is from."""
    return (input_id,) if input_id else ()


def _describe_prefix(messages: Sequence[Mapping[str, Any]], count: int) -> dict[str, Any]:
    """The leading `count` messages and the SHA-256 of their compact JSON in UTF-8 (CONTRACT §8)."""
    return {"messages": count, "sha256": hashlib.sha256(compact(messages[:count])).hexdigest()}
