"""No change of a document forgets that a newer release may have written it."""

import ast
import re
from pathlib import Path
from typing import Final

import nexus.adapters.mongo

CHANGES: Final = re.compile(
    r"(update|replace|delete)_(one|many)|find_one_and_\w+|bulk_write|(Update|Replace|Delete)(One|Many)"
)
# Calls of the driver outside of `Documents`, and why each may be one.
ALLOWED: Final = {
    "batches.py": ["documents.collection.delete_many"],  # erasure, of what any release wrote
    "erasure.py": ["collection.delete_one", "collection.update_one"],  # the same
    "index_erasure.py": ["DeleteOne", "UpdateOne", "UpdateOne", "self._postings.collection.bulk_write"],  # no version
    "memory.py": ["UpdateOne", "UpdateOne", "UpdateOne", "self._turns.collection.bulk_write"],  # each with `NOT_NEWER`
    "recall.py": ["UpdateMany"],  # of postings, without a version, and of rows, with `_NO_PLACE`
    "records.py": ["ReplaceOne", "UpdateOne"],  # with `NOT_NEWER`, and of pieces, without a version
    "replicas.py": ["self._replicas.collection.replace_one"],  # no version
    "retention.py": ["self._passes.collection.find_one_and_update"],  # no version
    "versions.py": ["database['schema'].update_one"],  # the version itself
}


def _changes(path: Path) -> list[str]:
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    made = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    asked = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)]
    return sorted(each for each in [*made, *asked] if CHANGES.fullmatch(each.rpartition(".")[2]))


def test_changes_go_through_documents() -> None:
    """Whatever else asks the driver to change documents is named here, with the reason why it may."""
    package = Path(nexus.adapters.mongo.__file__).parent
    found = {path.name: changes for path in package.glob("*.py") if (changes := _changes(path))}
    del found["documents.py"]
    assert found == ALLOWED
