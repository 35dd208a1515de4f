"""What counting tokens costs, beside what another exact tokenizer takes for the same text, and loading a vocabulary.

make bench
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nexus.adapters.tokenizer import VOCABULARIES, open_tokenizer
from tests.nexus.support.tokens import tokens

REPEATS = 5
_KB = 1024
SIZES_KB = (16, 128, 1_024)
_DOCS = Path(__file__).parent.parent / "docs"

LOADING = """
import sys, time
from nexus.adapters.tokenizer import open_tokenizer

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

try:
    before = resident()
except OSError:
    before = resident = None
started = time.perf_counter()
open_tokenizer(sys.argv[1]).load()
print(time.perf_counter() - started, resident() - before if resident else "nan")
"""


def texts() -> Iterator[tuple[str, str]]:
    """Kinds of text, each of a megabyte at least."""
    prose = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_DOCS.rglob("*.md")))
    hostile = "".join(chr(33 + place * 7919 % 0xD7DF) for place in range(400_000))
    for name, piece in {
        "prose": prose,
        "Chinese": "今天天气很好，我们去公园散步吧。他说：好的，明天见。\n",
        "any letters": hostile,
        "one letter": "a",
    }.items():
        yield name, piece * (1 + SIZES_KB[-1] * _KB // len(piece.encode()))


def cut(text: str, kilobytes: int) -> str:
    """The beginning of a text that is so long."""
    return text.encode()[: kilobytes * _KB].decode(errors="ignore")


def milliseconds(work: Callable[[], object]) -> float:
    """The median over `REPEATS` of the time of one call, in milliseconds."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def counting() -> Table:
    """Counting with o200k_base."""
    tokenizer = open_tokenizer("o200k_base")
    tokenizer.load()
    table = Table(title="count tokens with o200k_base", title_justify="left")
    for column in ("text", "KB", "tokens", "ms", "ms a MB", "bpe-openai ÷"):
        table.add_column(column, justify="left" if column == "text" else "right")
    for name, text in texts():
        for size in SIZES_KB:
            shown = cut(text, size)
            cost = milliseconds(lambda shown=shown: tokenizer.count(shown))  # type: ignore[misc]  # mypy cannot infer it
            counted = tokenizer.count(shown)
            row = (
                name,
                str(size),
                f"{counted:,}",
                f"{cost:.2f}",
                f"{cost * _KB / size:.1f}",
                _other(shown, counted, cost),
            )
            table.add_row(*row)
    return table


def _other(text: str, counted: int, cost: float) -> str:
    """How many times as long the other one takes, which must find the same."""
    try:
        found = tokens(text)
    except ValueError:
        return "refused"
    if found != counted:
        return f"differs: {found:,}"
    return f"{milliseconds(lambda: tokens(text)) / cost:.1f}"


def loading() -> Table:
    """Reading each vocabulary, in a process of its own."""
    table = Table(title="load a vocabulary", title_justify="left")
    for column in ("vocabulary", "s", "MB of memory"):
        table.add_column(column, justify="left" if column == "vocabulary" else "right")
    for name in VOCABULARIES:
        done = subprocess.run([sys.executable, "-c", LOADING, name], capture_output=True, text=True, check=True)  # noqa: S603  # our own program
        seconds, megabytes = map(float, done.stdout.split())
        table.add_row(name, f"{seconds:.2f}", f"{megabytes:.0f}")
    return table


if __name__ == "__main__":
    Console().print(counting(), loading())
