"""Files of Markdown for details: harmless names, and what counts as edited."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexus.core.models import utc_now
from nexus.core.working_memory import Overview
from nexus.services.context.working import TEMPLATE
from nexus.services.memory.transfer_edits import Edits, Limits, NewestNote, edits_in
from nexus.services.memory.transfer_notes import file_names, fingerprint

_LIMITS = Limits(overview=100, detail=100)
_HOSTILE = [
    "../../etc/passwd",
    "..",
    ".",
    "",
    "a/b",
    "a\\b",
    "con",
    "NUL",
    "a\x00",
    "A",
    "a",
    "Å",
    "Å",
    "x" * 500,
    "é.",
]


@dataclass
class Files:
    """Files of Markdown, as a folder has them."""

    files: dict[str, bytes] = field(default_factory=dict)

    def note(self, name: str) -> bytes | None:
        """A file."""
        return self.files.get(name)

    def notes(self, folder: str) -> list[str]:
        """The names in a folder."""
        return sorted(name.removeprefix(f"{folder}/") for name in self.files if name.startswith(f"{folder}/"))


@given(st.lists(st.text(max_size=70) | st.sampled_from(_HOSTILE), unique=True, max_size=20))
def test_names_of_files(names: list[str]) -> None:
    """Each has a file of its own, also where case does not count, that lies in the folder and has room for a name."""
    files = file_names(names)
    assert {*files} == {*names}
    assert len({file.casefold() for file in files.values()}) == len(names)
    for file in files.values():
        assert "/" not in file
        assert "\\" not in file
        assert "\x00" not in file
        assert not file.startswith(".")
        assert len(file.encode()) <= 255


def test_plain_names() -> None:
    """A detail that a model wrote is found under its name."""
    assert file_names(["flights", "航班 2"]) == {"flights": "flights.md", "航班 2": "航班 2.md"}


@pytest.mark.parametrize("content", [TEMPLATE, TEMPLATE + "\n", TEMPLATE.replace("\n", "\r\n"), "\ufeff" + TEMPLATE])
def test_what_an_editor_does(content: str) -> None:
    """A line end at the end, other ends of lines and a mark at the beginning are no change."""
    assert not edits_in(Files({"working-memory/overview.md": content.encode()}), None, {}, _LIMITS)


def test_edits() -> None:
    """Another text is a new revision or version, a new file a new note; a file that is missing says nothing."""
    folder = "working-memory/detail"
    files = Files(
        {
            "working-memory/overview.md": "# Neu\r\n文\n".encode(),
            f"{folder}/a.md": b"as it was",
            f"{folder}/b.md": b"other",
            f"{folder}/new.md": b"new",
        }
    )
    newest = {
        "a": NewestNote(1, "note", fingerprint("as it was")),
        "b": NewestNote(4, "note", fingerprint("was")),
        "gone": NewestNote(1, "note", b""),
    }
    now = utc_now()
    edits = edits_in(files, Overview(revision=3, content="# Alt", updated_at=now), newest, _LIMITS)
    assert edits == Edits("# Neu\n文", {"b": "other", "new": "new"}, {"b": 5, "new": 1})
    overview = edits.new_overview(4, now)
    assert overview
    assert (overview.revision, overview.author) == (4, "import")
    assert [(detail.name, detail.version, detail.bytes) for detail in edits.new_details(now)] == [
        ("b", 5, 5),
        ("new", 1, 3),
    ]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("overview.md", b" \n", r"overview\.md: it is empty"),
        ("overview.md", b"x" * 101, r"overview\.md: it has 101 bytes, at most 100 are allowed"),
        ("overview.md", b"\xff", r"overview\.md: not UTF-8 at byte 0"),
        ("overview.md", b"a\x00", r"overview\.md: it holds a NUL"),
        ("detail/archive.md", b"forged", r"archive\.md: an archive holds what was said"),
        ("detail/compaction-0002.md", b"forged", r"compaction-0002\.md: no detail can be called so"),
        ("detail/..md", b"x", r"detail/\.\.md: .*allowed is a plain name"),
        ("detail/a~1.md", b"x", r"allowed is a plain name"),
        ("detail/con.md", b"x", r"no detail can be called so"),
        ("detail/a.txt", b"x", r"a\.txt: a detail is a file whose name ends with \.md"),
    ],
)
def test_edits_that_cannot_be_kept(name: str, content: bytes, fault: str) -> None:
    """They are refused with the file, what is wrong and what is allowed."""
    newest = {"archive": NewestNote(1, "archive", fingerprint("said"))}
    with pytest.raises(ValueError, match=fault):
        edits_in(Files({f"working-memory/{name}": content}), None, newest, _LIMITS)
