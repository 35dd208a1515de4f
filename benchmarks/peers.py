"""The newest 20 messages of a session as a context: Nexus, asked over its bus, beside what others do in process.

Each peer has a virtual environment of its own in `build/peers`, made the first time, and is used as its documentation
shows (`benchmarks/peer.py`); all read the same conversation from the same MongoDB, in turn, in each round.
"""

import json
import select
import statistics
import subprocess
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from benchmarks.bench import Bench, Measure, console, p50
from benchmarks.data import Owners
from benchmarks.processes import serving

_PACKAGES: Final = {
    "langchain": ["langchain-mongodb==0.12.1"],
    "openai": ["openai-agents[mongodb]==0.24.0"],
    # The chat store asks for the version of the package that holds all others.
    "llama": ["llama-index==0.14.25", "llama-index-storage-chat-store-mongo==0.5.0"],
}
_SIZES: Final = (40, 1_000, 20_000)
_PLACE: Final = Path("build/peers")
_TIMES: Final = 40
# What takes longer is asked once a round; what takes longer than a minute, not again.
_SLOW_MS: Final = 500.0
_LONGEST_S, _STORING_S = 60.0, 600.0
_FASTEST, _OTHERS = 1.25, 1 / 3


class _Peer:
    """A process of `benchmarks/peer.py` for one session; it is ended once a reading takes too long."""

    def __init__(self, process: subprocess.Popen[str], job: dict[str, Any]) -> None:
        self._process = process
        self._job = job
        self._times = 0

    def do(self, longest_s: float, **job: Any) -> list[float]:
        """Have it store or read; the milliseconds of each reading, or only the time after which it was given up."""
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise TypeError("the peer has no pipes")
        if process.poll() is None:
            process.stdin.write(json.dumps({**self._job, **job}) + "\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], longest_s)[0]:
                ms: list[float] = json.loads(process.stdout.readline())["ms"]
                return ms
            process.kill()
            process.wait()
        return [longest_s * 1e3]

    def read(self) -> float:
        """The median of some readings, or of one that is slow."""
        if not self._times:
            # The first makes connections and indexes.
            self._times = 1 if self.do(_LONGEST_S, times=1)[0] > _SLOW_MS else _TIMES
        return statistics.median(self.do(_LONGEST_S, times=self._times))


def peers(bench: Bench) -> list[Measure]:
    """The p50 of Nexus over that of each peer, at each size."""
    owners = {size: Owners(f"peers{size}", rows=size, number=1) for size in _SIZES}
    place = bench.place("peers", [*owners.values()])
    ratios: dict[tuple[str, int], list[float]] = {}
    p50s: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        stack.enter_context(serving(place))
        others = {
            (name, size): stack.enter_context(_started(bench, name, size)) for size in _SIZES for name in _PACKAGES
        }
        for (name, size), other in others.items():
            console.print(f"{name}: storing {size:,} messages")
            other.do(_STORING_S, store=[*_said(owners[size])])
        for _ in range(bench.extent.rounds):
            for size in _SIZES:
                bench.ask(place, owners[size], "dialogue", _TIMES)
                ours = p50([bench.ask(place, owners[size], "dialogue", _TIMES)])
                p50s.setdefault(("Nexus", size), []).append(ours)
                for name in _PACKAGES:
                    theirs = others[name, size].read()
                    p50s.setdefault((name, size), []).append(theirs)
                    ratios.setdefault((name, size), []).append(ours / theirs)
    console.print(_table(p50s))
    longest = max(_SIZES)
    fastest = min(_PACKAGES, key=lambda name: statistics.median(p50s[name, longest]))
    bars = {(name, longest): _FASTEST if name == fastest else _OTHERS for name in _PACKAGES}
    return [
        Measure(f"Nexus ÷ {name}, {size:,} messages, p50", bars.get((name, size)), ratios[name, size])
        for name, size in ratios
    ]


@contextmanager
def _started(bench: Bench, name: str, size: int) -> Iterator[_Peer]:
    python = _PLACE.resolve() / name / "bin" / "python"
    if not python.exists():
        console.print(f"{name}: a virtual environment with {', '.join(_PACKAGES[name])}")
        venv.create(_PLACE / name, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *_PACKAGES[name]], check=True)  # noqa: S603  # our own
    program = Path(__file__).with_name("peer.py")
    words = [str(python), str(program), name]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own
    job = {"uri": bench.mongo_uri, "database": f"{bench.run}_{name}", "session": f"{size}"}
    try:
        yield _Peer(process, job)
    finally:
        process.kill()
        process.wait()


def _said(owners: Owners) -> Iterator[dict[str, str]]:
    """The texts of these rows as all peers can take them: questions and answers in turn."""
    for number, row in enumerate(owners.documents()):
        yield {"role": ("user", "assistant")[number % 2], "content": row["content"] or "(calls a tool)"}


def _table(p50s: dict[tuple[str, int], list[float]]) -> Table:
    table = Table(title="p50 in ms, medians of the rounds", title_justify="left")
    table.add_column("messages", justify="right")
    names = dict.fromkeys(name for name, _ in p50s)
    for name in names:
        table.add_column(name, justify="right")
    for size in _SIZES:
        shown = (statistics.median(p50s[name, size]) for name in names)
        table.add_row(f"{size:,}", *("> 60,000" if ms >= _LONGEST_S * 1e3 else f"{ms:,.1f}" for ms in shown))
    return table
