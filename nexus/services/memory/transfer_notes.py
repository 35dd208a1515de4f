"""The overview and the details as files of Markdown, which people edit (CONTRACT §7). Pure.

Rules of this module:

- The file of a detail is called like it. A name that the model could not have given, or that falls together with
  another where case does not count, is made harmless, with a mark behind it that no two names share.
- A file counts as edited when its text is another one; an end of line at its end, and how lines end, is no change.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection
from typing import Final

from nexus.tools.detail_names import read_name

FOLDER: Final = "working-memory"
OVERVIEW: Final = f"{FOLDER}/overview.md"
DETAIL_FOLDER: Final = f"{FOLDER}/detail"
SUFFIX: Final = ".md"

# Of 255 that a name of a file may have.
_MOST_BYTES: Final = 200
_HARMLESS: Final = re.compile(r"[^\w-]+")
# Names of devices, on a system where a file may be edited.
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_MARK: Final = "~"


def file_names(names: Collection[str]) -> dict[str, str]:
    """The file of each detail in `DETAIL_FOLDER`, by the name of the detail; no two are the same."""
    folded = Counter(map(_folded, names))
    return {name: _file_name(name, is_alone=folded[_folded(name)] == 1) for name in names}


def fingerprint(text: str) -> bytes:
    """The same for two texts of which a file of the one does not count as edited to the other."""
    return hashlib.sha256(as_lines(text).encode(errors="surrogatepass")).digest()


def text_of(content: bytes) -> str:
    """The text of a file.

    Raises:
        ValueError: it is none.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None


def as_lines(text: str) -> str:
    """The text of a file as it will be kept, whichever editor wrote it."""
    return text.replace("\r\n", "\n").rstrip("\n")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def _file_name(name: str, *, is_alone: bool) -> str:
    if is_alone and _is_plain(name):
        return name + SUFFIX
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    harmless = _HARMLESS.sub("-", name).encode(errors="ignore")[:_MOST_BYTES]
    return f"{harmless.decode(errors='ignore')}{_MARK}{mark}{SUFFIX}"


def _is_plain(name: str) -> bool:
    try:
        return read_name(name) == name and not _DEVICES.fullmatch(name)
    except ValueError:
        return False
