"""How the `configurations` document of an environment becomes what it should be, also when two do it at once."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pymongo.errors import DuplicateKeyError, OperationFailure

from nexus.config import Settings
from nexus.core.errors import ConfigError

from .configplan import Plan, checked_template
from .server import Refusal, Rows, WrongUsage, explain

COLLECTION = "configurations"
DEFAULT_TEMPLATE = Path(__file__).resolve().parents[2] / "config.example.yml"
_ATTEMPTS = 10
# The name under which Nexus itself makes it.
_INDEX = "one_per_environment"


def load_template(path: Path, environment: str) -> dict[str, Any]:
    """The sections to store, from a settings file.

    Raises:
        WrongUsage: the file cannot be read.
        Refusal: what it holds is no settings.
    """
    try:
        template = checked_template(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise WrongUsage(f"--from {path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise Refusal(f"template {path}: is not YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise Refusal(f"template {path}: {error}") from None
    fault = _fault(template, environment)
    if fault:
        raise Refusal(f"template {path}: {fault}; nothing was written")
    return template


def read(rows: Rows, environment: str) -> dict[str, Any]:
    """The stored document; `{}` if there is none."""
    return rows.find_one({"environment": {"$eq": environment}}) or {}


def check(plan: Plan, environment: str) -> None:
    """Let the service's own settings judge what would be stored.

    Raises:
        Refusal: it would not start with it.
    """
    fault = _fault(plan.sections, environment)
    if fault:
        raise Refusal(f"stored {fault}; nothing was written: mend it there, or say --reset KEY")


def apply(rows: Rows, environment: str, replan: Callable[[Mapping[str, Any]], Plan]) -> tuple[Plan, bool]:
    """Write what `replan` makes of the stored document; returns the plan that was carried out, and whether it wrote.

    A document that changed after it was read is read again, so that no other's change is lost.

    Raises:
        Refusal: the result would not be valid, or the document keeps changing.
    """
    _make_index(rows)
    for _ in range(_ATTEMPTS):
        stored = read(rows, environment)
        plan = replan(stored)
        check(plan, environment)
        if stored and not plan.changes:
            return plan, False
        if _write(rows, environment, stored, plan):
            return plan, True
    raise Refusal(f"the document of environment {environment!r} keeps being changed by others: try again")


def _make_index(rows: Rows) -> None:
    try:
        rows.create_index("environment", unique=True, name=_INDEX)
    except OperationFailure as error:
        if any(
            index["key"] == [("environment", 1)] and index.get("unique") for index in rows.index_information().values()
        ):
            return
        raise Refusal(f"the unique index on {COLLECTION}.environment cannot be made: {explain(error)}") from None


def _write(rows: Rows, environment: str, stored: Mapping[str, Any], plan: Plan) -> bool:
    now = datetime.now(UTC)
    if not stored:
        try:
            rows.insert_one({"environment": environment, **plan.sections, "created_at": now, "updated_at": now})
        except DuplicateKeyError:
            return False
        return True
    meant = {"_id": stored["_id"], **plan.unchanged}
    return rows.update_one(meant, {"$set": {**plan.changes, "updated_at": now}}).matched_count == 1


def _fault(sections: Mapping[str, Any], environment: str) -> str | None:
    try:
        Settings(environment=environment).with_stored(sections, environ={})
    except ConfigError as error:
        return "; ".join(str(error).split("\n")).replace(
            f"configurations document of environment {environment!r}: ", ""
        )
    return None
