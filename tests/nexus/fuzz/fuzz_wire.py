"""Coverage-guided fuzzing of the wire decoder, signatures included. No part of `make test`; see `make fuzz`.

It needs atheris, which is not locked with the other packages since it has no builds for every system:

    .venv/bin/python -m pip install atheris
    make fuzz FUZZ_SECONDS=300

What breaks a rule of `tests/nexus/support/wire_oracle.py` ends it; the bytes are in the file `.fuzz/crash-…`. Run it
again with that file's name as the argument to see why.
"""

import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # optional, see above

with atheris.instrument_imports(include=["nexus.core"]):
    from nexus.core import signing, wire

from tests.nexus.support.wire_oracle import SEEDS, judge

FOLDER = Path(".fuzz")
# What the decoder looks for: the fuzzer puts these together.
WORDS = [
    *('"id":', '"run_id":', '"owner_key":', '"role":', '"content":', '"timestamp":', '"metadata":', '"signature":'),
    *(
        '"reply_to":',
        '"HUMAN"',
        '"v1,k1,',
        "\\u0000",
        "\\ud83d",
        "\\ude00",
        "\\\\",
        '\\"',
        "NaN",
        "1e999",
        "-0",
        "[[[[",
    ),
    *("9007199254740993", "2025-12-10T15:30:00Z", "null", "true", "{}", "},{", "\ufeff"),
]


def one(data: bytes) -> None:
    """What the fuzzer calls with every input."""
    judge(data)


def main() -> None:
    """Write seeds and words, then fuzz until libFuzzer's own options end it."""
    seeds = FOLDER / "corpus"
    seeds.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS):
        (seeds / f"seed-{number}").write_bytes(seed)
    words = "\n".join('"' + "".join(f"\\x{byte:02x}" for byte in word.encode()) + '"' for word in WORDS)
    (FOLDER / "words").write_text(words + "\n", encoding="ascii")
    given = sys.argv[1:] if any(not option.startswith("-") for option in sys.argv[1:]) else [*sys.argv[1:], str(seeds)]
    options = [f"-dict={FOLDER / 'words'}", f"-artifact_prefix={FOLDER}/", "-max_len=4096"]
    atheris.Setup([sys.argv[0], *options, *given], one)
    atheris.Fuzz()


if __name__ == "__main__":
    assert {module.__name__ for module in (signing, wire)}
    main()
