"""Are there known faults in the locked packages? Asks the database of https://osv.dev, by pip-audit: `make audit`.

Exit code 1 where there are, 0 where there are none, or the database cannot be had from here.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

REQUIREMENTS: Final = Path(__file__).parents[1] / "requirements"
# By the id of a fault why it does no harm here; for those only that no release of the package mends.
IGNORED: Final[dict[str, str]] = {}
_LONGEST_S: Final = 120
_WRONG_USAGE: Final = 2


def main() -> int:
    """Ask, and print what was found. Returns the exit code."""
    files = sorted(REQUIREMENTS.glob("*.txt"))
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", "osv", "--timeout", "10"]
    command += ["--format", "json", "--progress-spinner", "off", "--no-deps", "--disable-pip"]
    command += [part for file in files for part in ("--requirement", str(file))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)  # noqa: S603  # ours
    except subprocess.TimeoutExpired:
        print(f"Skipped: the database of known faults did not answer within {_LONGEST_S} s.")
        return 0
    if done.returncode == _WRONG_USAGE:
        print(done.stderr)
        return 1
    if not done.stdout.startswith("{"):
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"Skipped: the database of known faults cannot be had from here: {reason[:200]}")
        return 0
    faults, lines = judge(json.loads(done.stdout))
    print("\n".join(lines))
    return int(faults > 0)


def judge(report: dict[str, Any], ignored: dict[str, str] = IGNORED) -> tuple[int, list[str]]:
    """How many faults count in a report of pip-audit, and what to print of it."""
    packages = report["dependencies"]
    asked = [package for package in packages if "skip_reason" not in package]
    if not asked:
        return 0, ["Skipped: the database of known faults knows none of the packages."]
    faults, lines = 0, []
    for package in asked:
        for fault in package["vulns"]:
            names = {fault["id"], *fault["aliases"]}
            why = next((ignored[name] for name in names if name in ignored), None)
            faults += why is None
            mended = ", ".join(fault["fix_versions"]) or "no release"
            lines.append(
                f"{package['name']} {package['version']}: {fault['id']}, mended in {mended}"
                + (f"; ignored: {why}" if why else "")
            )
    left_out = [package["name"] for package in packages if package not in asked]
    lines += [f"Not known to the database: {', '.join(left_out)}"] if left_out else []
    return faults, [*lines, f"{faults} known faults in {len(asked)} packages."]


if __name__ == "__main__":
    sys.exit(main())
