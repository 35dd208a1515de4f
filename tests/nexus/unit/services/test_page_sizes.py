"""How much of a past is asked for at first."""

import pytest

from nexus.services.page_sizes import PageSizes


@pytest.mark.parametrize(
    ("needed", "first"), [(1, 5), (20, 24), (25, 29), (80, 90), (444, 499), (446, 500), (9_000, 500)]
)
def test_what_was_needed_and_a_few(needed: int, first: int) -> None:
    """Never more than a page has."""
    sizes = PageSizes()
    sizes.note("o", 20, needed)
    assert sizes.first("o", 20) == first


def test_who_is_not_known() -> None:
    """Another owner, or for another number of messages: two rows for each."""
    sizes = PageSizes()
    assert sizes.first("o", 20) == 40
    sizes.note("o", 20, 25)
    assert (sizes.first("o", 30), sizes.first("other", 20)) == (60, 40)


def test_rises_at_once_and_falls_slowly() -> None:
    """Who needed many rows is taken to need many for some time, and for no longer."""
    sizes = PageSizes()
    asked = []
    for needed in (20, 100, 20, 20):
        sizes.note("o", 20, needed)
        asked.append(sizes.first("o", 20))
    assert asked == [24, 112, 90, 73]
    for _ in range(50):
        sizes.note("o", 20, 20)
    assert sizes.first("o", 20) == 24


def test_for_another_number_of_messages_it_begins_anew() -> None:
    """Nothing is concluded from one to the other."""
    sizes = PageSizes()
    sizes.note("o", 20, 100)
    sizes.note("o", 5, 6)
    assert (sizes.first("o", 5), sizes.first("o", 20)) == (10, 40)


def test_few_owners_are_known() -> None:
    """The first goes for another one; whoever is noted again takes no place of others."""
    sizes = PageSizes(most_owners=3)
    for number in range(3):
        sizes.note(f"o{number}", 20, 20)
    for _ in range(10):
        sizes.note("o2", 20, 20)
    assert [sizes.first(f"o{number}", 20) for number in range(3)] == [24, 24, 24]
    sizes.note("o3", 20, 20)
    assert [sizes.first(f"o{number}", 20) for number in range(4)] == [40, 24, 24, 24]
