"""The numbers in a text, however they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.text.summary_checks import number_words, numbers_in, spelling, spellings


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("156 articles, 15 reviews", {"156", "15"}),
        ("HR 0.86, 0,86 or 86 %", {"86"}),
        ("45,678 is 45678 and 45.678 and 45'678", {"45678"}),
        ("95% CI 0.80-0.93", {"95", "80", "93"}),
        ("１５６ 篇，共 4.5 万", {"156", "45"}),
        ("2026-11-22T08:05:00Z", {"2026", "11", "22", "8", "5", "0"} - {"8", "5", "0"}),
        ("in 3 of 7 cases, 0.05, 1.", set()),
        ("abc123def", {"123"}),
        ("", set()),
        ("١٥٦", {"156"}),
    ],
)
def test_figures(text: str, found: set[str]) -> None:
    """Numbers of two digits or more, however they are written."""
    assert numbers_in(text) == found


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("1234567.891", "1.23 million"),
        ("1234567.891", "1,234,568"),
        ("0.52263", "52%"),
        ("456789.01", "460,000"),
        ("456789.01", "0.45 million"),
        ("0.8", "80%"),
        ("7 million", "7,000,000"),
        ("99.96", "100"),
        ("[12345678,23456789]", "23456789"),
        ("45,678", "45678"),
    ],
)
def test_what_stands_for_a_number(there: str, here: str) -> None:
    """The same, rounded or cut off, at any power of ten."""
    assert {*map(spelling, numbers_in(here))} <= spellings(there)


@pytest.mark.parametrize(("there", "here"), [("1234567", "1,334,567"), ("156", "17"), ("0.86", "0.77"), ("", "20")])
def test_what_does_not(there: str, here: str) -> None:
    """Another number."""
    assert spellings(there).isdisjoint(map(spelling, numbers_in(here)))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a third now, the rest in ninety days, twenty percent off for the first fifty at eleven dollars", 4),
        ("签订后三十日内支付总价款壹佰万元的百分之三十", 3),
        ("zweihundertfünfzig, vingt, veinte, venti, vinte, vijftig", 7),
        ("one central forty-two", 1),
        ("一个 central 156", 0),
    ],
)
def test_number_words(text: str, count: int) -> None:
    """Those of ten and more, in ten languages."""
    assert number_words(text) == count


@given(st.integers(10, 10**17), st.integers(2, 6), st.integers(0, 8))
def test_any_rounding(number: int, digits: int, zeros: int) -> None:
    """A number that is rounded to two to six digits stands for it."""
    length = len(str(number))
    rounded = round(number, digits - length) if length > digits else number
    assert spelling(str(rounded) + "0" * zeros) in spellings(f"about {number} of them")


@given(st.text())
def test_any_text(text: str) -> None:
    """Each of its own numbers is known."""
    assert {*map(spelling, numbers_in(text))} <= spellings(text)
