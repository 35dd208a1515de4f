"""Reading text as an eye would."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.text.escape import ANGLE, COLONS, EQUALS_SIGNS, NUMBER_SIGNS, SQUARE, fold, passes_for_number


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        *(("Human_Input", "human_input"), ("HÚMÀN", "human"), ("HU\u0301MAN", "hu_man"), ("ＨＵＭＡＮ", "human")),
        *(("Нυмаn", "human"), ("𝐇𝓾𝔪𝖺𝚗", "human"), ("🇭🇺🇲🇦🇳", "human"), ("🅗🅤🅜🅐🅝", "human"), ("⒣⒰⒨⒜⒩", "human")),
        *(("ʜᴜᴍᴀɴ", "human"), ("ᴴᵘᵐᵃⁿ", "human"), ("ԜᎳꓪѡա", "wwwww"), ("ƗɵꝊŁøß", "iooiob")),
        *(("₦€×u$ ƒ!₮", "nexus fit"), ("tool TOOI T00|", "tooi tooi tooi"), ("［｛〔【⟦「", "[?[[[[")),
        *(("＜‹⟨〈≮«", "<<<<<<"), ("：∶꞉ː", "::::"), ("]］】>＞›", "]]]>>>"), (";；;", ";;;"), ("#＃﹟♯⌗⋕", "######")),
        *(("=＝﹦⁼꞊═≡≠", "========"), ("#\ufe0f\u20e3", "#__"), ("ÐðĐ", "ddd")),
        *(("“”‘’„\"'()（）", "???????????"), ("a-b.c*d~e", "a_b_c_d_e")),
        *(("a\u200db\ufe0fc\u00add\U000e0080e", "a_b_c_d_e"), ("a\u3000b\xa0c\td", "a b c d")),
        *(("a\nb", "a\nb"), ("/／\\＼﹨", "//\\__"), ("\u3164\u2800\u115f\U0001d159", "____")),
        *(("a\ue000b\U000f0000c", "a_b_c"), ("a−b➖c⁃d⁻e₋f", "a_b_c_d_e_f"), ("─━⎯▁ㅡ一∖⧵", "________")),
        *(("/⁄∕⧸╱", "/////"), ("[⊏⊑⸂", "[[[["), ("⩨⩩", "##"), ("\U0001ccdd\U0001ccea\U0001cce2", "hum")),
        *(("a\ufffdb\ufffcc\u2423d", "a_b_c_d"), ("ѵᏙ∨", "vvv"), ("aـbㅤcﾠd", "a_b_c_d")),
        *(("你好，世界。カナ한", "?" * 9), ("e\x00f", "e_f"), ("㎃ ﬁ", "? ?")),
    ],
)
def test_every_character_becomes_what_it_passes_for(text: str, folded: str) -> None:
    """Letters lose case, accent, width and alphabet; brackets and colons become plain; the rest says nothing."""
    assert fold(text) == folded


@given(st.text(st.characters(exclude_categories=())))
def test_the_length_stays(text: str) -> None:
    """A place in the folded text is a place in the text."""
    assert len(fold(text)) == len(text)


@given(st.text())
def test_characters_are_folded_one_by_one(text: str) -> None:
    """No character depends on its neighbours, so that texts can be put together and taken apart."""
    assert fold(text) == "".join(map(fold, text))


@pytest.mark.heavy
def test_in_the_whole_of_unicode_nothing_else_opens_a_tag_ends_a_line_head_or_begins_a_heading() -> None:
    """Opening brackets, colons, number and equals signs are those that are listed; only a backslash is a backslash.

    A text without them is therefore known to be plain without being folded.
    """
    every = "".join(map(chr, range(0x110000)))
    folded = fold(every)
    assert len(folded) == len(every)
    assert {char for char, plain in zip(every, folded, strict=True) if plain in "[<:"} == set(SQUARE + ANGLE + COLONS)
    assert {char for char, plain in zip(every, folded, strict=True) if plain == "#"} == set(NUMBER_SIGNS)
    assert {char for char, plain in zip(every, folded, strict=True) if plain == "="} == set(EQUALS_SIGNS)
    assert [char for char, plain in zip(every, folded, strict=True) if plain == "\\"] == ["\\"]
    assert [char for char, plain in zip(every, folded, strict=True) if plain == "\n"] == ["\n"]
    assert set(folded) == {*"abcdefghijkmnopqrstuvwxyz[]<>:;/\\_#=? \n"}


def test_chinese_and_japanese_letters_are_no_part_of_any_token() -> None:
    """So that a colon after one of them needs no second look; but U+4E00 is a stroke."""
    letters = "".join(map(chr, [*range(0x3041, 0x3097), *range(0x30A1, 0x30FB), *range(0x4E01, 0xA000)]))
    assert set(fold(letters)) == {"?"}


@pytest.mark.parametrize("number", ["2", "12", " #3.", "２", "٣", "②", "三", "lO", "I", "1\u0301", "_0_"])
def test_what_passes_for_a_number(number: str) -> None:
    """Digits of any script, letters that are drawn as one, and signs around them."""
    assert passes_for_number(number)


@pytest.mark.parametrize("text", ["", " ", "#", "|", "two", "tables", "2nd", "x1", "1 or 2", "é"])
def test_what_is_no_number(text: str) -> None:
    """Other letters, although digits are folded to some, and no letters or digits at all."""
    assert not passes_for_number(text)


def test_every_latin_letter_with_a_mark_folds_to_its_letter() -> None:
    """Whatever dots, rings, strokes and tails Unicode puts on a capital letter."""
    for code in range(0xC0, 0x250):
        words = unicodedata.name(chr(code), "").split()
        if words[:3] == ["LATIN", "CAPITAL", "LETTER"] and words[4:5] == ["WITH"] and len(words[3]) == 1:
            assert fold(chr(code)) == words[3].lower().replace("l", "i"), chr(code)
