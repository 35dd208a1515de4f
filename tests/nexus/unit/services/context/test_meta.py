"""`[CONTEXT_META]`: what it says, that it counts itself, and what it advises (contract §7)."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nexus.adapters.tokenizer import VOCABULARIES, open_tokenizer
from nexus.services.context.formats import FORMATS
from nexus.services.context.memory_blocks import (
    MOST_TOKENS,
    STALE_TURNS,
    Band,
    Meta,
    band_of,
    meta_block,
    percent_of,
)
from nexus.services.text.tokens import Measure
from tests.nexus.support.fake_counter import FakeCounter

BOUNDS: Final = {Band.NORMAL: 0, Band.LIGHT: 20, Band.MEDIUM: 40, Band.HEAVY: 60, Band.EMERGENCY: 75}
LIMITS: Final = (1, 7, 99, 1_000, 8_191, 32_000, 128_000, 1_000_000)
REAL: Final = Measure(open_tokenizer("o200k_base"))
FAKE: Final = Measure(FakeCounter())
OLD_OVERVIEW: Final = (
    "The overview is 6 turns old: if anything was decided, found out or finished since, call "
    "update_working_memory(content, base_revision=3)."
)
EARLIER_TALK: Final = (
    "When the step at hand is done, put what is settled where it can be read again: "
    'compact_history(target="all", strategy="archive", keep_recent=20).'
)
METAS: Final = st.builds(
    Meta,
    tokens_limit=st.integers(0, 2_000_000),
    messages=st.integers(0, 100_000),
    overview_bytes=st.integers(0, 100_000),
    overview_revision=st.integers(0, 10_000),
    turns_since_overview_update=st.none() | st.integers(0, 10_000),
    compactable=st.booleans(),
    has_tools=st.booleans(),
    is_template=st.booleans(),
    compact_at=st.sampled_from([0.1, 0.5, 0.75, 0.95]),
)


def read(text: str) -> dict[str, str]:
    """The lines of a block by their names."""
    head, *lines = text.split("\n")
    assert head == "[CONTEXT_META]"
    return dict(line.split(": ", 1) for line in lines)


def told(meta: Meta, tokens_without: int, measure: Measure = FAKE) -> dict[str, str]:
    """What the block says."""
    return read(meta_block(meta, tokens_without, measure).text)


def situations(**changes: Any) -> Iterator[Meta]:
    """Every case that advice depends on."""
    for since, *cases in itertools.product((None, 0, STALE_TURNS), *[(False, True)] * 3):
        compactable, has_tools, is_template = map(bool, cases)
        yield replace(Meta(32_000, 84, 1_204, 3, since, compactable, has_tools, is_template), **changes)


def advised(meta: Meta, band: Band) -> str:
    """What is advised in a band."""
    said = told(meta, meta.tokens_limit * BOUNDS[band] // 100 + 300)
    assert said["band"] == band
    return said["advice"]


def test_what_it_says() -> None:
    """Names and figures are those of the contract, in its order."""
    meta = Meta(32_000, 84, 1_204, 3, 6, compactable=True, has_tools=True, is_template=False)
    block = meta_block(meta, 18_110, REAL)
    assert (block.tag, block.role) == ("CONTEXT_META", "system")
    assert block.text.split("\n") == [
        "[CONTEXT_META]",
        "tokens_used: 18235",
        "tokens_limit: 32000",
        "tokens_percent: 56.9",
        "band: medium",
        "messages: 84",
        "overview_bytes: 1204",
        "turns_since_overview_update: 6",
        f"advice: {OLD_OVERVIEW} {EARLIER_TALK}",
    ]


@pytest.mark.parametrize("limit", LIMITS)
def test_bands(limit: int) -> None:
    """Each begins with the first number of tokens that is so many per cent, and not with the one before."""
    for band, bound in BOUNDS.items():
        first = -(-bound * limit // 100)
        assert BOUNDS[band_of(first, limit)] >= bound
        assert not first or BOUNDS[band_of(first - 1, limit)] < bound
        assert limit < 100 or band_of(first, limit) == band
    assert band_of(limit, limit) == band_of(10 * limit, limit) == Band.EMERGENCY


@given(used=st.integers(0, 10**9), limit=st.integers(1, 10**9))
@example(used=6_399, limit=32_000)
@example(used=10**18, limit=3)
def test_per_cent(used: int, limit: int) -> None:
    """No bound is shown before it is reached: the figure is the exact one without its further digits."""
    whole, tenth = percent_of(used, limit).split(".")
    tenths = int(whole) * 10 + int(tenth)
    assert len(tenth) == 1
    assert tenths * limit <= used * 1_000 < (tenths + 1) * limit
    shown = band_of(tenths, 1_000)
    assert shown == band_of(used, limit)


@pytest.mark.parametrize("form", FORMATS)
@given(meta=METAS, tokens_without=st.integers(0, 2_500_000))
def test_it_counts_itself(form: str, meta: Meta, tokens_without: int) -> None:
    """The number of tokens is that of the list with this message, whatever it says."""
    measure = Measure(REAL.counter, form)
    block = meta_block(meta, tokens_without, measure)
    said = read(block.text)
    assert int(said["tokens_used"]) == tokens_without + sum(map(measure.message, block.messages))
    assert said["band"] == band_of(int(said["tokens_used"]), meta.tokens_limit)
    assert said["tokens_percent"] == percent_of(int(said["tokens_used"]), meta.tokens_limit)


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("form", FORMATS)
def test_it_counts_itself_at_the_bounds(name: str, form: str) -> None:
    """Also where it is this message that brings a list into the next band, and its advice becomes another."""
    measure = Measure(open_tokenizer(name), form)
    most = measure.scaled(MOST_TOKENS)
    for meta, bound in itertools.product(situations(), BOUNDS.values()):
        first = meta.tokens_limit * bound // 100
        for tokens_without in range(max(first - most, 0), first + 3, 3 if form == "openai" else 7):
            block = meta_block(meta, tokens_without, measure)
            used = tokens_without + sum(map(measure.message, block.messages))
            assert f"\ntokens_used: {used}\n" in block.text


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("form", FORMATS)
def test_how_long_it_is(name: str, form: str) -> None:
    """It takes no more than room is kept for, also where every figure is long."""
    measure = Measure(open_tokenizer(name), form)
    long = {"tokens_limit": 10**8, "messages": 10**6, "overview_bytes": 10**6, "overview_revision": 10**5}
    for meta, bound in itertools.product(situations(**long), BOUNDS.values()):
        for since in {meta.turns_since_overview_update, meta.turns_since_overview_update and 10**5}:
            block = meta_block(replace(meta, turns_since_overview_update=since), 10**6 * bound, measure)
            assert sum(map(measure.message, block.messages)) <= measure.scaled(MOST_TOKENS)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_advice_gets_longer_as_bands_get_heavier(name: str) -> None:
    """So there is always a number that is right (see the module)."""
    count = open_tokenizer(name).count
    for meta in situations():
        lengths = [count(advised(meta, band)) for band in Band]
        assert lengths == sorted(lengths)


@pytest.mark.parametrize("band", Band)
def test_advice_names_what_can_be_called(band: Band) -> None:
    """A tool is named only to an agent that has tools; a compaction only where it does something."""
    for meta in situations():
        advice = advised(meta, band)
        assert "\n" not in advice
        assert 1 <= len(re.findall(r"[.](?= |$)", advice)) <= 2
        assert meta.has_tools or not re.search(r"\w+_\w+\(", advice)
        assert ("compact_history(" in advice) is (meta.has_tools and meta.compactable and band is not Band.NORMAL)


def test_when_the_overview_is_asked_for() -> None:
    """While there is none, and when it is some turns old; not right after it was written."""
    meta = Meta(32_000, has_tools=True, is_template=False, overview_revision=3, turns_since_overview_update=0)
    asked = {
        turns: "update_working_memory" in advised(replace(meta, turns_since_overview_update=turns), Band.NORMAL)
        for turns in (None, 0, STALE_TURNS - 1, STALE_TURNS, 1_000)
    }
    assert asked == {None: False, 0: False, STALE_TURNS - 1: False, STALE_TURNS: True, 1_000: True}
    assert "update_working_memory(content)" in advised(replace(meta, is_template=True), Band.NORMAL)
