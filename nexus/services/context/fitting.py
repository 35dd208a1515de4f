"""Has a context fit: its room is shared out among the blocks that can grow, the same way in all layouts. Pure.

- Each block gets a part of the window (`bounds.allocate`; why: docs/decisions/0027), and shows as many of its items as
  have room there, the newest or best. What is left of a part, too little for the next item, goes to the others.
- The tool results of the run itself are such a block, too: `Budget.close` cuts them to their part.
- A context that surely fits is not counted, but for the agent layout, which shows its length to the model
  (docs/decisions/0018-tokens-are-counted.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple

from nexus.core.shares import Share
from nexus.core.tracing import span
from nexus.services.context.blocks import Assembled, Block, Dropped, Weights, dropped_by
from nexus.services.context.bounds import allocate, by_priority, largest
from nexus.services.context.budget import RESULTS, Budget
from nexus.services.context.person_blocks import CONSTRAINTS
from nexus.services.text.tokens import ByteBound, Measure

# What stands in front of the input: it says nothing of how long the session is.
_ASIDE: Final = ("recall", "mood")


class Kept(NamedTuple):
    """How much a context shows of the blocks that can grow.

    Attributes:
        items: their number, by the block's name.
        short: there is no room for more of the session; else each block of it has all that it ever may.
        whole: what the blocks leave out whatever room there is, see `Dropped`.
    """

    items: Mapping[str, int]
    short: bool = False
    whole: Dropped = None


@dataclass(frozen=True, slots=True)
class Growing:
    """A block that can grow.

    Attributes:
        most: number of its items.
        weigh: tokens of the block with so many items, the newest or best ones: more take no fewer.
    """

    most: int
    weigh: Callable[[Measure, int], int]

    def tokens(self, measure: Measure, kept: int) -> int:
        """Tokens that so many items add to a context."""
        return self.weigh(measure, kept) - self.weigh(measure, 0) if kept else 0

    def within(self, measure: Measure, tokens: int) -> int:
        """As many items as have room."""
        if self.tokens(measure, self.most) <= tokens:
            return self.most
        return largest(0, self.most, lambda kept: self.tokens(measure, kept) <= tokens)

    def bounded(self, measure: Measure, share: Share, limit: int) -> int:
        """As many items as a context of `limit` tokens ever shows; nothing is counted where that is surely all."""
        ceiling, surely = int(limit * share.ceiling), Measure(ByteBound(measure.counter), measure.form)
        is_free = ceiling >= limit or self.weigh(surely, self.most) <= ceiling
        return self.most if is_free else self.within(measure, ceiling)


def whole_blocks(aside: Sequence[Block]) -> dict[str, Growing]:
    """Of these blocks `[RECALL]` and `[MOOD]`, which are shown whole or not at all."""
    texts = {block.tag.lower(): block.text for block in aside}

    def whole(text: str | None) -> Growing:
        return Growing(int(text is not None), lambda measure, kept: measure.text(text) if text and kept else 0)

    return {name: whole(texts.get(name)) for name in _ASIDE}


def kept_aside(aside: Sequence[Block], kept: Kept) -> list[Block]:
    """Those of the blocks that are shown: `[CONSTRAINTS]` always is."""
    return [block for block in aside if kept.items.get(block.tag.lower(), 1)]


@span("fit")
def fit(
    budget: Budget, blocks: Mapping[str, Growing], assemble: Callable[[Kept, Measure | None], Assembled]
) -> Assembled:
    """The list that `assemble` makes, with as much of these blocks as fits beside the run's own messages.

    Where it cannot fit it has nothing of the blocks, and `Budget.close` refuses it.
    """
    # Each number of items is weighed once, however often it is tried.
    blocks = {name: replace(block, weigh=cache(block.weigh)) for name, block in blocks.items()}
    every, measure = {name: block.most for name, block in blocks.items()}, budget.measure
    if measure is None:
        return assemble(Kept(every), None)
    most = {name: block.bounded(measure, budget.blocks[name], budget.limit) for name, block in blocks.items()}
    whole = None if most == every else dropped_by(assemble(Kept(every), None).manifest["blocks"])
    made = assemble(Kept(most, whole=whole), None if budget.bound else measure)
    if budget.surely_fits(made.messages):
        return made
    made = assemble(Kept(most, whole=whole), measure) if budget.bound else made
    wanted = {name: block.tokens(measure, most[name]) for name, block in blocks.items()} | {RESULTS: budget.results()}

    @cache
    def take(name: str, tokens: int) -> int:
        if name == RESULTS:
            return budget.results(tokens)
        return blocks[name].tokens(measure, blocks[name].within(measure, tokens))

    def surplus() -> int:
        return measure.messages(made.messages) + budget.besides(used[RESULTS]) - budget.limit

    given = used = wanted
    while (over := surplus()) > 0 and any(used.values()):
        # Not what was wanted: texts that are joined may take more tokens than each by itself.
        room = sum(used.values()) - over
        given, used = share_out(room, budget.limit, wanted, budget.blocks, take)
        items = {name: block.within(measure, used[name]) for name, block in blocks.items()}
        whole = whole or dropped_by(made.manifest["blocks"])
        short = any(items[name] < most[name] for name in items if name not in _ASIDE)
        made = assemble(Kept(items, short, whole), measure)
    fixed = measure.messages(assemble(Kept(dict.fromkeys(every, 0)), None).messages)
    told = _told(budget, {name: (wanted[name], given[name], used[name]) for name in wanted}, made)
    return made._replace(
        manifest={**made.manifest, "budget": told},
        weights=_weights(fixed, wanted),
        results=used[RESULTS] if used[RESULTS] < wanted[RESULTS] else None,
    )


def share_out(
    room: int,
    limit: int,
    wanted: Mapping[str, int],
    shares: Mapping[str, Share],
    take: Callable[[str, int], int],
) -> tuple[dict[str, int], dict[str, int]]:
    """What `allocate` gives to each block, and what each takes.

    `take` tells how much of so many tokens a block uses: it has whole items. What one leaves over beyond its floor,
    others get; a floor is nobody else's, so that no block has more than its own while another lacks some of it.
    """
    asked, floors = dict(wanted), {name: int(limit * shares[name].floor) for name in wanted}
    first = given = allocate(room, limit, asked, shares)
    while True:
        used = {name: take(name, tokens) for name, tokens in given.items()}
        left = (name for name in by_priority(given, shares) if max(used[name], floors[name]) < given[name])
        if (over := next(left, None)) is None:
            return first, used
        asked[over] = max(used[over], floors[over])
        given = allocate(room, limit, asked, shares)


def _weights(fixed: int, wanted: Mapping[str, int]) -> Weights:
    of_blocks = sum(tokens for name, tokens in wanted.items() if name not in {RESULTS, *_ASIDE})
    return Weights(fixed + of_blocks, fixed, wanted.get("history", 0), wanted.get("summary", 0))


def _told(budget: Budget, figures: Mapping[str, tuple[int, int, int]], made: Assembled) -> dict[str, Any]:
    """The manifest's account of the shares, in tokens; `figures` are what each block wanted, was given and used."""
    # Constraints always have what they want.
    fixed = sum(block["tokens"] for block in made.manifest["blocks"] if block["tag"] == CONSTRAINTS)
    known = {**figures, "constraints": (fixed, fixed, fixed)}
    blocks = {}
    for name, share in budget.blocks.items():
        if name in known:
            wanted, given, used = known[name]
            bounds = {"floor": int(budget.limit * share.floor), "ceiling": int(budget.limit * share.ceiling)}
            blocks[name] = {**bounds, "wanted": wanted, "given": given, "used": used}
    return {"limit": budget.limit, "blocks": blocks}
