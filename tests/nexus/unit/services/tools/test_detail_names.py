"""Names of details are plain names, of any script, and nothing else (CONTRACT §7)."""

import unicodedata
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.tools.memory_calls import is_reserved, read_name


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "flight options",
        "v1.2_final-draft",
        "2026-03-01",
        "设计讨论",
        "デバッグ・メモ".replace("・", " "),
        "Überblick",
        "заметки",
        "सूचना",
        "น้ำ",
        "ملاحظات",
        "한국어 메모",
        "x" * 64,
        "字" * 64,
    ],
)
def test_plain_names(name: str) -> None:
    """Names of every script are names."""
    assert read_name(name) == unicodedata.normalize("NFC", name)


def test_one_name_has_one_form() -> None:
    """A letter with a combining mark is the letter that has the mark."""
    assert read_name("Cafe\u0301") == read_name("Caf\u00e9") == "Caf\u00e9"


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        ".",
        "..",
        ".hidden",
        "../../etc/passwd",
        "..\\..\\windows",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "C:notes",
        "a..b",
        "a.",
        " a",
        "a ",
        "-rf",
        "_a",
        "a\x00b",
        "a\nb",
        "a\tb",
        "\x1b[31ma",
        "a\ufeff",
        "a\u200bb",
        "\u202etxt.exe",
        "a\u2024\u2024b",
        "a\uff0fb",
        "a\u2215b",
        "\uff0e\uff0e",
        "\uff41",
        "a\ua4f8b",
        "\u3164",
        "a\ufe0f",
        "a\U000e0041",
        "\u0301a",
        "½",
        "①",
        "𝐚",
        "a*",
        "a?b",
        "🙂",
        "\ud800",
        "x" * 65,
        "x" * 1_000_000,
        "𠀀" * 51,
    ],
)
def test_no_names(name: str) -> None:
    """No path, no way out of a folder, nothing hidden, invisible or in disguise; the error says what is allowed."""
    with pytest.raises(ValueError, match=r"^name: .*allowed is a plain name of 1 to 64 characters") as raised:
        read_name(name)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250


@given(st.text(max_size=80) | st.text("ab. -_/\\\u0301é字٠", max_size=12))
def test_what_is_read_is_safe(text: str) -> None:
    """A name that is read is one component of a path on every system, and is read again as itself."""
    try:
        name = read_name(text)
    except ValueError:
        return
    assert read_name(name) == name
    assert unicodedata.is_normalized("NFC", name)
    assert name == name.strip()
    assert PurePosixPath(name).parts == (name,)
    assert PureWindowsPath(name).parts == (name,)
    assert not name.startswith(".")
    assert ".." not in name
    assert len(f"{name}.md".encode()) <= 255
    assert all(unicodedata.category(char)[0] in "LMN" or char in " ._-" for char in name)
