"""The command line finds its commands, and imports only the one that is called."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from nexus.cli import app
from tests.nexus.support.desk import Desk

ADA: Final = ("--owner", "ada")
NO_REDIS: Final = {"NEXUS_BUS__URL": "redis://127.0.0.1:1/0"}
NO_MONGODB: Final = {"NEXUS_DATABASE__URI": "mongodb://127.0.0.1:1", "NEXUS_DATABASE__TIMEOUT_MS": "100"}
NO_CERTIFICATE_OF_REDIS: Final = {"NEXUS_BUS__URL": "rediss://127.0.0.1:1/0?ssl_ca_certs=/no/such.pem"}
NO_CERTIFICATE_OF_MONGODB: Final = {
    "NEXUS_DATABASE__URI": "mongodb://127.0.0.1:1/?tls=true&tlsCAFile=/no/such.pem",
    "NEXUS_BUS__MODE": "memory",
}
ONE_PROCESS: Final = {"NEXUS_BUS__MODE": "memory"}
SEE_REDIS: Final = "see that Redis runs, and bus.url with its user and password (NEXUS_BUS__URL)"

COMMANDS = {
    "version",
    "serve",
    "request",
    "mcp",
    "demo",
    "doctor",
    "dead-letters",
    "context",
    "sessions",
    "session",
    "memory",
    "state",
    "turns",
    "recall",
    "erase",
    "config",
}


def test_help_names_every_command() -> None:
    """Each with what it is for."""
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(f"{name} " in shown for name in COMMANDS)
    assert "Check Redis, MongoDB" in shown
    assert "completion" not in shown


def test_similar_name_is_suggested() -> None:
    """Also of a command that was not called yet."""
    result = CliRunner().invoke(app, ["memori"])
    assert result.exit_code == 2
    assert "'memory'" in result.output


def test_only_what_is_called_is_imported() -> None:
    """Neither the version nor the service reads what other commands or a model need."""
    program = (
        "import sys; from typer.testing import CliRunner; from nexus.cli import app;"
        "CliRunner().invoke(app, ['version']); print(*sys.modules);"
        "CliRunner().invoke(app, ['turns', '--help']); print(*sys.modules);"
        "CliRunner().invoke(app, ['serve', '--help']); print(*sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    version, turns, serve = (set(line.split()) for line in said.splitlines())
    assert not version & {"pymongo", "redis", "nexus.bootstrap", "nexus.config"}
    assert not turns & {"nexus.bootstrap", "nexus.services.context"}
    assert "nexus.bootstrap" in serve
    assert not serve & {"openai", "httpx2", "nexus.cli.demo", "nexus.cli.doctor", "nexus.cli.memory"}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("state", "send", *ADA, "-"), "standard input: not UTF-8 at byte 1"),
        (("state", "send", *ADA, "no\x1bwhere"), "no\\x1bwhere: cannot be read: No such file or directory"),
        (("state", "send", *ADA, "."), ".: cannot be read: Is a directory"),
        (("state", "send", "--owner", "", "-"), "--owner: String should have at least 1 character"),
        (("state", "show", "--owner", "x" * 257), "--owner: String should have at most 256 characters"),
        (("state", "show", "--owner", "\udcff"), "--owner and --session: UTF-8 text is needed"),
        (("state", "show", *ADA, "--session", ""), "--session: a text of 1 to 256 characters is needed"),
        (("state", "clear", *ADA, "--part", "todo"), "--part: 'todo' is unknown; allowed: role, sub_agent_roles"),
        (("state", "show", "--owner", "ada\ufffd"), "--owner: NUL, U+FFFD and half a surrogate pair are not allowed"),
        (("state", "show", *ADA, "--session", "s\ufffd"), "--session: NUL, U+FFFD and half a surrogate pair are not"),
        (("session", "import", ".", "--owner", "ada\ufffd"), "--owner: NUL, U+FFFD and half a surrogate pair are not"),
        (("request", "--owner", "ada\ufffd", "--input", "x"), "--owner: NUL, U+FFFD and half a surrogate pair are not"),
        (("mcp",), "--owner is needed, or --http, where the token says whose memory it is; not both"),
        (("mcp", *ADA, "--http"), "--owner is needed, or --http, where the token says whose memory it is; not both"),
        (("mcp", "--http"), "mcp.tokens: is empty, and --http needs a token for each request; for instance NEXUS_MCP"),
        (("mcp", *ADA, "--port", "8765"), "--port: only with --http; without it nothing is listened on"),
        (("mcp", *ADA, "--host", "h", "--port", "1"), "--host and --port: only with --http; without it nothing is"),
        (("mcp", "--owner", ""), "--owner: String should have at least 1 character"),
        (("mcp", *ADA, "--session", ""), "--session: a text of 1 to 256 characters is needed"),
        (("turns", "list", "--owner", ""), "--owner: String should have at least 1 character"),
        (("turns", "list", *ADA, "--search", "x" * 251), "--search: more than 250 characters"),
        (("turns", "list", *ADA, "--search", "\udcff"), "--search: UTF-8 text is needed"),
        (
            ("turns", "show", *ADA, "7", "--level", "long\x1b"),
            "--level: 'long\\\\x1b' is unknown; allowed: brief, detai",
        ),
        (("recall", "status", "--owner", ""), "--owner: String should have at least 1 character"),
        (("recall", "index", "--owner", "x" * 257), "--owner: String should have at most 256 characters"),
        (("recall", "search", "?", *ADA, "--session", ""), "--session: a text of 1 to 256 characters is needed"),
        (("recall", "search", "\udcff", *ADA), "QUESTION: UTF-8 text is needed"),
        (("recall", "search", " \n", *ADA), "QUESTION: a text of 1 to 10000 characters is needed"),
        (("recall", "search", "x" * 10_001, *ADA), "QUESTION: a text of 1 to 10000 characters is needed"),
        (("erase",), "--owner is needed; without it --verify alone looks for a text"),
        (("erase", "--verify", "x", "--session", "s"), "--owner is needed; without it --verify alone looks for a text"),
        (("erase", *ADA, "--verify", " "), "--verify: a text is needed, in UTF-8"),
        (("erase", "--verify", "\udcff"), "--verify: a text is needed, in UTF-8"),
        (("erase", "--owner", ""), "--owner: String should have at least 1 character"),
        (("erase", *ADA, "--session", ""), "--session: a text of 1 to 256 characters is needed"),
        (("erase", *ADA, "--before", "so\x1bon"), "--before 'so\\x1bon': a day (2026-05-01) or a time in ISO 8601 is"),
        (("erase", *ADA, "--before", "9999-01-01"), "--before: lies in the future; without it all goes that there is"),
        (("memory", "show", "--owner", ""), "--owner: String should have at least 1 character"),
        (("session", "export", "--owner", "", "x"), "--owner: String should have at least 1 character"),
        (("session", "export", *ADA, "no/where"), "no/where: there is no folder for it"),
        (("session", "export", *ADA, "x" * 300), f"{'x' * 300}: cannot be written: File name too long"),
        (("session", "export", *ADA, __file__), f"{__file__}: cannot be written: Not a directory"),
        (("session", "import", "no\x1bwhere"), "no\\x1bwhere: there is no such folder"),
        (("session", "import", __file__), f"{__file__}: is a file; the folder that `export` wrote is needed"),
        (("session", "import", "."), "./session.json: it is missing, so the folder is no export of a session"),
        (("session", "import", ".", "--session", "x" * 257), "--session: a text of 1 to 256 characters is needed"),
        (
            ("session", "import", "--from", "openai", __file__, *ADA, "--session", ""),
            "--session: a text of 1 to 256 characters is needed",
        ),
        (("dead-letters", "show", "x"), "'x' is no id of a dead letter; allowed: <milliseconds>-<number>, as `nexus"),
        *(
            (("request", *ADA, "--input", "x", "--metadata", given), f"--metadata: {fault}")
            for given, fault in (
                *((given, "a JSON object is needed") for given in ("", "[]", "{", '{"a": "\\ud800"}', "[" * 5_000)),
                ('{"a": ' * 200 + "1" + "}" * 200, "nested deeper than 64"),
            )
        ),
    ],
    ids=lambda value: ascii(value)[:60],
)
async def test_words_that_are_wrong(words: Sequence[str], fault: str) -> None:
    """One line and exit code 1, before any server is asked."""
    assert (await Desk(words[0], {}).refused(*words[1:], stdin=b"{\xff}")).startswith(fault)


@pytest.mark.parametrize(
    ("words", "environment", "fault"),
    [
        (("state", "send", *ADA, "-"), NO_REDIS, f"Redis does not do what was asked (ConnectionError): {SEE_REDIS}"),
        (("dead-letters", "list"), NO_REDIS, f"Redis does not do what was asked (ConnectionError): {SEE_REDIS}"),
        (("turns", "list", *ADA), NO_MONGODB, "MongoDB does not do what was asked (ServerSelectionTimeoutError): see"),
        (("doctor",), NO_CERTIFICATE_OF_REDIS, "bus.url: ssl_ca_certs /no/such.pem: cannot be used: No such file"),
        (("doctor",), NO_CERTIFICATE_OF_MONGODB, "database.uri: tlsCAFile /no/such.pem: cannot be used: No such file"),
        (
            ("turns", "list", *ADA),
            NO_CERTIFICATE_OF_MONGODB,
            "database.uri: tlsCAFile /no/such.pem: cannot be used: No",
        ),
        (
            ("turns", "list", *ADA),
            {"NEXUS_DATABASE__URI": "mongodb://ada:a/b@db:1"},
            "database.uri: cannot be used (ValueError); mongodb://[user:password@]host",
        ),
        (("config", "reload"), ONE_PROCESS, "bus.mode is memory: there is no other process to tell"),
        (("config", "reload"), NO_REDIS, f"Redis does not do what was asked (ConnectionError): {SEE_REDIS}"),
        (("mcp", *ADA), ONE_PROCESS, "bus.mode is memory: there is no other process to ask"),
        (("state", "clear", *ADA), ONE_PROCESS, "bus.mode is memory: there is no other process to tell"),
        (("dead-letters", "replay", "1-1"), ONE_PROCESS, "bus.mode is memory: its dead letters are inside the proce"),
    ],
    ids=str,
)
async def test_servers_that_are_away(words: Sequence[str], environment: Mapping[str, str], fault: str) -> None:
    """The server and what to do about it are named in one line; exit code 1."""
    assert (await Desk(words[0], environment).refused(*words[1:], stdin=b"{}")).startswith(fault)


async def test_mcp_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    done = await Desk("mcp", {}).run(*ADA)
    assert done.fault == "nexus mcp: the MCP SDK is not installed: pip install 'nexus-context[mcp]'"


async def test_a_settings_file_that_others_may_read(tmp_path: Path) -> None:
    """The doctor warns of the secrets in it, and goes on."""
    path = tmp_path / "nexus.yml"
    path.write_text("bus: {url: 'redis://:hunter2@127.0.0.1:1/0'}\ndatabase: {uri: 'mongodb://127.0.0.1:1'}\n")
    path.chmod(0o644)
    result = await Desk("doctor", {}).run("--quick", "--config", str(path))
    assert result.returncode == 1
    warning, bus, *_ = result.stdout.splitlines()
    assert (
        warning == f"warning: {path}: holds secrets, and its mode 0644 lets others read them; chmod 600 {path} mends it"
    )
    assert bus.startswith("wrong  bus: ")
    assert "hunter2" not in result.stdout + result.stderr
