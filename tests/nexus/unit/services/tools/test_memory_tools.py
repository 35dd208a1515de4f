"""Definitions of the memory tools, and their calls, which are checked before anything is done (contract §7)."""

import json
import unicodedata
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.services.tools.definitions import read_definition
from nexus.services.tools.memory_tools import (
    MEMORY_TOOLS,
    CompactHistory,
    MemoryLimits,
    ReadDetail,
    SearchMemory,
    UpdateOverview,
    WriteDetail,
    definitions,
    read_call,
    read_name,
)

COMPACT: dict[str, Any] = {"target": "all", "strategy": "summarize"}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["target", "strategy", "keep_recent", "content", "base_revision", "name", "query", "scope", "limit", "x"]
)


@pytest.mark.parametrize(
    ("name", "args", "call"),
    [
        ("compact_history", COMPACT, CompactHistory("all", "summarize", 5)),
        ("compact_history", COMPACT | {"keep_recent": 5.0}, CompactHistory("all", "summarize", 5)),
        ("compact_history", COMPACT | {"keep_recent": None}, CompactHistory("all", "summarize", 5)),
        ("update_working_memory", {"content": " # a\n"}, UpdateOverview(" # a\n", None)),
        ("write_memory_detail", {"name": "a b", "content": "字\n"}, WriteDetail("a b", "字\n")),
        ("read_memory_detail", {"name": "compaction-0001"}, ReadDetail("compaction-0001", 0)),
        ("read_memory_detail", {"name": "a", "characters": 65_536}, ReadDetail("a", 0, 65_536)),
        ("search_memory", {"query": "  Porto "}, SearchMemory("Porto", "session", 10)),
        ("search_memory", {"query": "波", "scope": "owner", "limit": 50.0}, SearchMemory("波", "owner", 50)),
        ("search_memory", {"query": "a", "scope": None, "limit": None}, SearchMemory("a", "session", 10)),
    ],
)
def test_good_calls(name: str, args: dict[str, Any], call: object) -> None:
    """An object and its JSON text are the same call; what is left out has its default."""
    assert read_call(name, args) == call
    assert read_call(name, json.dumps(args)) == call


COMPACTING, UPDATING, WRITING = "compact_history", "update_working_memory", "write_memory_detail"
READING, SEARCHING = "read_memory_detail", "search_memory"
WHOLE = "not allowed; a whole number from"


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        (COMPACTING, COMPACT | {"target": "x"}, "target: 'x' is unknown; allowed: conversation, tools, all"),
        (COMPACTING, {"target": "all"}, "strategy: is missing; allowed: summarize, archive"),
        (COMPACTING, "", "target: is missing; allowed: conversation, tools, all"),
        (COMPACTING, COMPACT | {"keep_recent": -1}, f"keep_recent: -1 is {WHOLE} 0 to 1000 is"),
        (COMPACTING, {"keep_last": 5}, "args: 'keep_last' is unknown; allowed: target, strategy, keep_recent"),
        (UPDATING, {}, "content: is missing; a text is needed"),
        (UPDATING, {"content": " \n"}, "content: is empty; a text with something in it is needed"),
        (UPDATING, {"content": {"a": 1}}, "content: a text is needed, not a JSON object"),
        (UPDATING, {"content": "a", "base_revision": "3"}, f"base_revision: '3' is {WHOLE} 0 to 9007199254740991 is"),
        (UPDATING, {"content": "ab\ud800"}, "content: half a surrogate pair at place 3 cannot be kept; leave it out"),
        (WRITING, {"name": "a", "content": "\x00"}, "content: a NUL at place 1 cannot be kept; leave it out"),
        (
            WRITING,
            {"name": "Compaction-0007", "content": "a"},
            "name: 'Compaction-0007' is one that archives have, which nobody writes to; take another name",
        ),
        (READING, {"name": "a", "characters": 999}, f"characters: 999 is {WHOLE} 1000 to 65536 is"),
        (SEARCHING, {"query": "   "}, "query: is empty; a text with something in it is needed"),
        (SEARCHING, {"query": "x" * 251}, "query: 251 characters, at most 250 are allowed; a rare word is enough"),
        (SEARCHING, {"query": "a", "scope": "all"}, "scope: 'all' is unknown; allowed: session, owner"),
        (SEARCHING, {"query": "a", "scope": ["owner"]}, "scope: a JSON array is unknown; allowed: session, owner"),
        (SEARCHING, {"query": "a", "limit": 0}, f"limit: 0 is {WHOLE} 1 to 50 is"),
        (SEARCHING, {"query": "a", "limit": 51}, f"limit: 51 is {WHOLE} 1 to 50 is"),
        (SEARCHING, {"query": "a", "limit": "10"}, f"limit: '10' is {WHOLE} 1 to 50 is"),
        (SEARCHING, {"query": "a", "session_id": "s"}, "args: 'session_id' is unknown; allowed: query, scope, limit"),
        (SEARCHING, "[1]", "args: a JSON object is needed, not a JSON array"),
        (SEARCHING, '{"query": NaN}', "args: not JSON: NaN is no number; a JSON object is needed"),
        (SEARCHING, "[" * 100_000, "args: nested too deep; a JSON object is needed"),
    ],
)
def test_bad_calls(name: str, args: Any, reason: str) -> None:
    """The error says what is wrong, where, and what is allowed."""
    with pytest.raises(ValueError, match=r"^.") as raised:
        read_call(name, args)
    assert str(raised.value) == reason


@pytest.mark.parametrize(
    ("tool", "most"), [("update_working_memory", "overview_max_bytes"), ("write_memory_detail", "detail_max_bytes")]
)
def test_how_large_a_text_may_be(tool: str, most: str) -> None:
    """It is counted in bytes, and the error says how many they were and may be."""
    limits = MemoryLimits(**{most: 6_000})
    named = {"name": "a"} if tool == "write_memory_detail" else {}
    read_call(tool, {**named, "content": "字" * 2_000}, limits)
    with pytest.raises(ValueError, match=r"^content: 6003 bytes, at most 6000 are allowed; "):
        read_call(tool, {**named, "content": "字" * 2_001}, limits)


@pytest.mark.parametrize("text", ["\u200b", "\ufeff \u2060\n", "\u200d\ufe0f", "\u3164", "\u2800\u00ad", "\U000e0041"])
def test_nothing_to_be_seen(text: str) -> None:
    """A text of invisible characters alone is empty; beside others they stay as they are."""
    for name, where in ((UPDATING, "content"), (SEARCHING, "query")):
        with pytest.raises(ValueError, match=rf"^{where}: is empty; "):
            read_call(name, {where: text})
    assert read_call(UPDATING, {"content": f"{text}a"}) == UpdateOverview(f"{text}a", None)


@given(st.sampled_from(sorted(MEMORY_TOOLS)), JSON | st.dictionaries(KEYS, JSON) | st.text())
def test_whatever_is_given(name: str, args: Any) -> None:
    """Anything is a call, or an error that can be shown; never anything else."""
    fault = ""
    try:
        call = read_call(name, args)
        assert not isinstance(call, CompactHistory) or 0 <= call.keep_recent <= 1_000
    except ValueError as error:
        fault = str(error)
    assert len(fault.encode()) < 1_000


@pytest.mark.parametrize(
    "name",
    [
        *("a", "flight options", "v1.2_final-draft", "2026-03-01", "设计讨论", "デバッグメモ", "Überblick", "заметки"),
        *("सूचना", "น้ำ", "ملاحظات", "한국어 메모", "x" * 64, "字" * 64),
    ],
)
def test_plain_names_of_details(name: str) -> None:
    """Names of every script are names."""
    assert read_name(name) == unicodedata.normalize("NFC", name)


def test_one_name_has_one_form() -> None:
    """A letter with a combining mark is the letter that has the mark."""
    assert read_name("Cafe\u0301") == read_name("Caf\u00e9") == "Caf\u00e9"


@pytest.mark.parametrize(
    "name",
    [
        *(
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
        ),
        *("a..b", "a.", " a", "a ", "-rf", "_a", "a\x00b", "a\nb", "a\tb", "\x1b[31ma", "a\ufeff", "a\u200bb"),
        *("\u202etxt.exe", "a\u2024\u2024b", "a\uff0fb", "a\u2215b", "\uff0e\uff0e", "\uff41", "a\ua4f8b", "\u3164"),
        *("a\ufe0f", "a\U000e0041", "\u0301a", "½", "①", "𝐚", "a*", "a?b", "🙂", "\ud800", "x" * 65, "𠀀" * 51),
        "x" * 1_000_000,
    ],
)
def test_names_that_are_refused(name: str) -> None:
    """No path, no way out of a folder, nothing hidden, invisible or in disguise; the error says what is allowed."""
    with pytest.raises(ValueError, match=r"^name: .*allowed is a plain name of 1 to 64 characters") as raised:
        read_name(name)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250


@given(st.text(max_size=80) | st.text("ab. -_/\\\u0301é字٠", max_size=12))
def test_names_are_safe_as_file_names(text: str) -> None:
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


@pytest.mark.parametrize("definition", definitions(), ids=lambda definition: definition["function"]["name"])
def test_each_is_closed_and_explained(definition: dict[str, dict[str, dict[str, dict[str, str]]]]) -> None:
    """Every parameter is explained, and no others are allowed."""
    parameters = read_definition(definition).checked["function"]["parameters"]
    assert parameters["additionalProperties"] is False
    assert all(len(schema["description"]) > 5 for schema in parameters["properties"].values())
    assert set(parameters["required"]) <= set(parameters["properties"])


def test_the_limits_are_told() -> None:
    """A model knows how large a text may be before it writes one."""
    made = definitions(MemoryLimits(overview_max_bytes=777, detail_max_bytes=8_888))
    assert [each["function"]["name"] for each in made] == sorted(MEMORY_TOOLS)
    texts = str(made)
    assert "at most 777 bytes" in texts
    assert "at most 8888 bytes" in texts
