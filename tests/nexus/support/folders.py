"""The folder of an export, in memory."""

from collections.abc import Iterator


class Files:
    """A folder in memory."""

    def __init__(self, **files: str) -> None:
        self.files = {name: content.encode() for name, content in files.items()}

    def put(self, name: str, line: str) -> None:
        """Append a line."""
        self.files[name] = self.files.get(name, b"") + f"{line}\n".encode()

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        self.files[name] = text.encode()

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file."""
        yield from self.files.get(name, b"").splitlines()

    def content(self, name: str) -> bytes | None:
        """A whole file."""
        return self.files.get(name)

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        return sorted(name.removeprefix(f"{folder}/") for name in self.files if name.startswith(f"{folder}/"))
