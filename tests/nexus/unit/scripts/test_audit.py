"""Known faults of the locked packages: which count, and when none can be known (`make audit`)."""

from typing import Any

import pytest

from scripts import audit

CLEAN: dict[str, Any] = {"name": "anyio", "version": "4.9.0", "vulns": []}
UNKNOWN: dict[str, Any] = {"name": "ours", "skip_reason": "not found"}


def faulty(name: str, aliases: list[str] | None = None, fix_versions: list[str] | None = None) -> dict[str, Any]:
    """A package with a fault of that id."""
    fault = {"id": name, "aliases": aliases or [], "fix_versions": fix_versions or [], "description": "long"}
    return {"name": "redis", "version": "1.0", "vulns": [fault]}


@pytest.mark.parametrize(
    ("packages", "faults", "lines"),
    [
        ([CLEAN, CLEAN], 0, ["0 known faults in 2 packages."]),
        ([CLEAN, UNKNOWN], 0, ["Not known to the database: ours", "0 known faults in 1 packages."]),
        ([UNKNOWN], 0, ["Skipped: the database of known faults knows none of the packages."]),
        (
            [CLEAN, faulty("PYSEC-1", fix_versions=["1.1", "2.0"])],
            1,
            ["redis 1.0: PYSEC-1, mended in 1.1, 2.0", "1 known faults in 2 packages."],
        ),
        (
            [faulty("PYSEC-2", ["CVE-2"])],
            0,
            ["redis 1.0: PYSEC-2, mended in no release; ignored: not used", "0 known faults in 1 packages."],
        ),
    ],
)
def test_what_counts(packages: list[Any], faults: int, lines: list[str]) -> None:
    """Every fault that is not ignored with a reason; packages that the database does not know are named."""
    assert audit.judge({"dependencies": packages, "fixes": []}, {"CVE-2": "not used"}) == (faults, lines)


def test_every_ignored_fault_has_a_reason() -> None:
    """In words."""
    assert all(len(reason.split()) > 3 for reason in audit.IGNORED.values())
