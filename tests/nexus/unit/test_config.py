"""Settings: file and defaults are one; what is wrong is named where it stands; secrets stay secret (contract §9)."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from nexus.config import ANY_OWNER, STORED_SECTIONS, Settings, signing_of
from nexus.config.loading import exposed_secrets, load_settings, with_stored
from nexus.core.errors import ConfigError

EXAMPLE = Path(__file__).parents[3] / "config.example.yml"
SECRET = "hunter2-canary"
MS = "a whole number of milliseconds from 200 to 60000 is needed"
SECTIONS = (
    "bus, console, context, database, facts, layouts, llm, mcp, memory, recall, retention, system, tools, tracing, "
    "user_defaults"
)


def written(folder: Path, text: str) -> Path:
    """A settings file with this text."""
    path = folder / "nexus.yml"
    path.write_text(text, encoding="utf-8")
    return path


def fault(folder: Path | None = None, text: str = "", **variables: str) -> str:
    """The fault that wrong settings are refused with."""
    with pytest.raises(ConfigError) as caught:
        load_settings(written(folder, text) if folder else None, variables)
    return str(caught.value)


def keys_of(model: type[BaseModel], before: str = "") -> set[str]:
    """Every key under a settings model, with dots."""
    keys: set[str] = set()
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys |= keys_of(inner, f"{before}{name}.")
        else:
            keys.add(before + name)
    return keys


def keys_in(values: dict[str, Any], before: str = "") -> set[str]:
    """Every key in a parsed file, with dots."""
    keys: set[str] = set()
    for name, value in values.items():
        keys |= keys_in(value, f"{before}{name}.") if value and isinstance(value, dict) else {before + name}
    return keys


@pytest.mark.parametrize(
    ("text", "holds_secret"),
    [
        ("", False),
        ("bus:\nsystem: {log_level: debug}", False),
        ("bus: {url: 'redis://ada@10.0.0.1:6379/0'}", False),
        ("bus: {url: 'redis://:${PASSWORD}@10.0.0.1/0', max_in_flight: '${MOST}'}", False),
        ("bus: {signing: {keys: {k1: '${KEY}'}}}\nllm: {api_key: '${KEY}', base_url: 'http://h/v1', model: m}", False),
        ("bus: {url: 'redis://:hunter2@10.0.0.1/0'}", True),
        ("bus: {url: 'redis+sentinel://h/s?sentinel_password=x'}", True),
        ("database: {uri: 'mongodb://ada:hunter2@h/'}", True),
        ("database: {uri: 'mongodb://h/?tlsCertificateKeyFilePassword=x'}", True),
        ("bus: {signing: {keys: {k1: a secret of sixteen, k2: '${KEY}'}}}", True),
        ("console: {token: '${TOKEN}'}\nmcp: {tokens: [{token: '${TOKEN}', owners: [ada]}]}", False),
        ("console: {token: opens all}", True),
        ("mcp: {tokens: [{token: opens what is of ada, owners: [ada]}]}", True),
        ("llm: {api_key: sk-1, base_url: 'http://h/v1', model: m}", True),
        ("llm: {base_url: 'http://ada:hunter2@h/v1', model: m}", True),
    ],
)
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o604, 0o644, 0o622])
def test_secrets_that_others_may_read(tmp_path: Path, text: str, holds_secret: bool, mode: int) -> None:
    """A file with secrets is warned of, with its mode and the remedy; one without is not, and no secret is repeated."""
    path = written(tmp_path, text)
    path.chmod(mode)
    warning = exposed_secrets(path, {})
    assert warning == exposed_secrets(None, {"NEXUS_CONFIG": str(path)})
    if holds_secret and mode & 0o044:
        assert (
            warning
            == f"{path}: holds secrets, and its mode {mode:04o} lets others read them; chmod 600 {path} mends it"
        )
    else:
        assert warning is None
    assert exposed_secrets(None, {}) is None


class TestExample:
    """`config.example.yml` and the defaults in the code are one."""

    def test_it_says_what_holds_without_it(self) -> None:
        """Loading it gives the same as loading nothing."""
        assert load_settings(EXAMPLE, {}) == load_settings(None, {})

    def test_it_lists_every_setting(self) -> None:
        """No setting is missing, none is too much; the environment alone is named by a variable."""
        assert keys_in(yaml.safe_load(EXAMPLE.read_text())) == keys_of(Settings) - {"environment"}

    def test_every_setting_is_explained(self) -> None:
        """Each key with a value has a comment beside it."""
        lines = [line for line in EXAMPLE.read_text().splitlines() if re.match(r"\s+\w+: *[^ #]", line)]
        inside = [re.findall(r"\w+: [0-9]", line.partition("#")[0]) for line in lines if ": {floor" in line]
        assert len(lines) + sum(len(keys) - 1 for keys in inside) == len(keys_of(Settings)) - 1
        described = 'description: "About this friend - preferences, patterns, and context"'
        assert [line.strip() for line in lines if " # " not in line] in ([], [described])


class TestPrecedence:
    """File before defaults, variables before the file."""

    def test_a_variable_counts_more(self, tmp_path: Path) -> None:
        """One key of a section is overridden, the others stay as in the file."""
        path = written(tmp_path, "memory: {truncate_chars: 99, history_context_size: 7}")
        settings = load_settings(path, {"NEXUS_MEMORY__TRUNCATE_CHARS": "100"})
        assert (settings.memory.truncate_chars, settings.memory.history_context_size) == (100, 7)

    def test_the_variables_of_the_contract(self) -> None:
        """Addresses, names and modes by their documented names."""
        settings = load_settings(
            None,
            {
                "NEXUS_BUS__URL": "redis://r:1/2",
                "NEXUS_BUS__MODE": "memory",
                "NEXUS_DATABASE__URI": "mongodb://m:3",
                "NEXUS_DATABASE__NAME": "other",
                "NEXUS_DATABASE__DRIVER": "pymongo",
                "NEXUS_USER_DEFAULTS__PROMPTS__FRIENDS_PROFILE__CONTENT": "[hello",
                "NEXUS_TOOLS__MODULES": "[a.b, c]",
                "NEXUS_ENV": "staging",
                "NEXUS_UNRELATED": "x",
                "HOME": "/",
            },
        )
        assert settings.bus.url.get_secret_value() == "redis://r:1/2"
        assert settings.bus.mode == "memory"
        assert settings.database.uri.get_secret_value() == "mongodb://m:3"
        assert (settings.database.name, settings.database.driver) == ("other", "pymongo")
        assert settings.user_defaults.prompts.friends_profile.content == "[hello"
        assert settings.tools.modules == ("a.b", "c")
        assert settings.environment == "staging"

    def test_the_file_is_named_by_a_variable(self, tmp_path: Path) -> None:
        """`NEXUS_CONFIG` names it unless a path is given."""
        path = written(tmp_path, "memory: {truncate_chars: 99}")
        assert load_settings(None, {"NEXUS_CONFIG": str(path)}).memory.truncate_chars == 99
        assert load_settings(EXAMPLE, {"NEXUS_CONFIG": str(path)}).memory.truncate_chars == 500

    @pytest.mark.parametrize("text", ["", "# nothing\n", "memory:\n", "memory: {}\n"])
    def test_nothing_is_the_defaults(self, tmp_path: Path, text: str) -> None:
        """An empty file, or a section with all keys commented out."""
        assert load_settings(written(tmp_path, text), {}) == load_settings(None, {})


class TestVariablesInTheFile:
    """`${VAR}` is filled at load."""

    def test_it_is_filled(self, tmp_path: Path) -> None:
        """In texts, numbers and lists."""
        path = written(tmp_path, "bus: {url: 'redis://:${PW}@h', lease_ms: '${MS}'}\ntools: {modules: ['${M}.x']}")
        settings = load_settings(path, {"PW": "p", "MS": "300", "M": "m"})
        assert settings.bus.url.get_secret_value() == "redis://:p@h"
        assert (settings.bus.lease_ms, settings.tools.modules) == (300, ("m.x",))

    def test_a_missing_one_is_named(self, tmp_path: Path) -> None:
        """File, key and variable, one line for each."""
        text = fault(tmp_path, "bus: {url: '${PW}'}\ntools: {modules: [a, '${M}']}")
        path = tmp_path / "nexus.yml"
        assert text.splitlines() == [
            f"{path}: bus.url: the environment variable PW is not set",
            f"{path}: tools.modules[1]: the environment variable M is not set",
        ]


class TestFaults:
    """What is wrong is named with place, key and what is allowed."""

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (
                "buss: {url: x}",
                f"buss: unknown; allowed: {SECTIONS}",
            ),
            ("environment: x", "environment: unknown; allowed: bus, console, context,"),
            ("memory: {size: 3}", "memory.size: unknown; allowed: budget, compact_at, compact_to, "),
            (
                "user_defaults: {prompts: {friends_profile: {text: x}}}",
                "user_defaults.prompts.friends_profile.text: unknown; allowed: content, description, editable",
            ),
            (
                "layouts: {agent: {shares: {pinned: 0.1}}}",
                "layouts.agent.shares: is set by memory.budget.turns.ceiling (turn_memory) and memory.budget.notes.c",
            ),
            (
                "memory: {budget: {constraints: {floor: 0}}}",
                "memory.budget.constraints.floor: unknown; allowed: ceiling",
            ),
            ("bus: {mode: kafka}", "bus.mode: one of pubsub, streams, memory is needed"),
            ("bus: {lease_ms: 1}", "bus.lease_ms: a whole number of milliseconds from 200 to 60000 is needed"),
            ("bus: {heartbeat_s: .nan}", "bus.heartbeat_s: a number of seconds from 0.05 to 60 is needed"),
            ("bus: {heartbeat_s: .inf}", "bus.heartbeat_s: a number of seconds from 0.05 to 60 is needed"),
            (
                "memory: {history_context_size: 201}",
                "memory.history_context_size: a whole number from 1 to 200, or auto, is needed",
            ),
            (
                "user_defaults: {config: {history_context_size: all}}",
                "user_defaults.config.history_context_size: a whole number from 1 to 200, or auto, is needed",
            ),
            (
                "retention: {messages_days: 0}",
                "retention.messages_days: a whole number of days from 1 to 10000, or null, is needed",
            ),
            (
                "retention: {days: 3}",
                "retention.days: unknown; allowed: dead_letters_days, details_days, ",
            ),
            ("memory: {keep_revisions: 19}", "memory.keep_revisions: a whole number from 20 to 100000 is needed"),
            ("database: {name: 'a b'}", "database.name: a name of 1 to 38 of A-Z a-z 0-9 _ - is needed"),
            ("tools: {condense_above: 100}", "tools.condense_above: 0, or 2048 bytes and more, is allowed; some 1,500"),
            (
                "tools: {condense_above: -1}",
                "tools.condense_above: a whole number of bytes from 0 to 16777216 is needed",
            ),
            ("tools: {modules: a.b}", "tools.modules: a list of texts, as [a, b], is needed"),
            ("bus: 5", "bus: keys with values are needed; allowed: answer_ttl_s, channel_prefix, "),
            ("1: x", f"1: unknown; allowed: {SECTIONS}"),
            ("memory: {2: x}", "memory.2: unknown; allowed: budget, "),
        ],
    )
    def test_in_the_file(self, tmp_path: Path, text: str, said: str) -> None:
        """The line begins with the file."""
        assert fault(tmp_path, text).startswith(f"{tmp_path / 'nexus.yml'}: {said}")

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            (
                "NEXUS_BUSS__URL",
                "x",
                f"buss: unknown; allowed: {SECTIONS}",
            ),
            ("NEXUS_ENVIRONMENT__X", "3", "environment: unknown; allowed: bus, console, context,"),
            ("NEXUS_BUS__LEASE_MS", "", f"bus.lease_ms: {MS}, without a unit, for instance 2000"),
            ("NEXUS_BUS__URL__HOST", "x", "bus.url: a text is needed"),
            ("NEXUS_TOOLS__MODULES", "[1]", "tools.modules.0: a list of texts, as [a, b], is needed"),
            ("NEXUS_Bus__Lease_Ms", "1", f"bus.lease_ms: {MS}"),
            ("NEXUS_BUS__", "1", "bus.: unknown; allowed: answer_ttl_s,"),
            ("NEXUS_BUS_URL", "x", "unknown; NEXUS_BUS__URL is meant"),
        ],
    )
    def test_in_a_variable(self, tmp_path: Path, name: str, value: str, said: str) -> None:
        """The line begins with the variable, whatever the file says."""
        assert fault(tmp_path, "bus: {lease_ms: 300}", **{name: value}).startswith(
            f"environment variable {name}: {said}"
        )

    def test_a_variable_inside_another(self) -> None:
        """A key cannot be a value and hold keys."""
        text = fault(NEXUS_BUS__URL="x", NEXUS_BUS__URL__HOST="y")
        assert text == "environment variable NEXUS_BUS__URL__HOST: url: has a value, and no keys inside"

    def test_all_at_once(self, tmp_path: Path) -> None:
        """Every fault of file and environment has a line of its own, where it stands."""
        lines = fault(tmp_path, "bus: {lease_ms: 1, x: 2}", NEXUS_BUS__LEASE_MS="2", NEXUS_A__B="").splitlines()
        file = str(tmp_path / "nexus.yml")
        assert [line.partition(":")[0] for line in lines] == [
            file,
            file,
            "environment variable NEXUS_BUS__LEASE_MS",
            "environment variable NEXUS_A__B",
        ]

    @pytest.mark.parametrize(
        ("key", "given", "said"),
        [
            ("system.drain_seconds", "10s", "a number of seconds from 0 to 600 is needed, without a unit: 10"),
            ("system.drain_seconds", "5 MIN", "a number of seconds from 0 to 600 is needed, without a unit: 300"),
            (
                "system.drain_seconds",
                "1h",
                "a number of seconds from 0 to 600 is needed, without a unit, for instance 10",
            ),
            (
                "system.drain_seconds",
                "ten",
                "a number of seconds from 0 to 600 is needed, without a unit, for instance 10",
            ),
            ("llm.timeout_s", "500ms", "a number of seconds from 0.1 to 600 is needed, without a unit: 0.5"),
            ("bus.lease_ms", "2s", f"{MS}, without a unit: 2000"),
            ("bus.lease_ms", "1000.5 ms", f"{MS}, without a unit, for instance 2000"),
            (
                "bus.max_payload_bytes",
                "4MiB",
                "a whole number of bytes from 1024 to 67108864 is needed, without a unit: 4194304",
            ),
            (
                "memory.context_window",
                "128k",
                "a whole number of tokens from 1000 to 10000000 is needed, without a unit: 128000",
            ),
            (
                "memory.truncate_chars",
                "a page",
                "a whole number of characters from 20 to 20000 is needed, without a unit, for instance 500",
            ),
            (
                "retention.turns_days",
                "90d",
                "a whole number of days from 1 to 10000, or null, is needed, without a unit: 90",
            ),
            (
                "retention.turns_days",
                "3 months",
                "a whole number of days from 1 to 10000, or null, is needed, without a unit",
            ),
            ("bus.lease_ms", "1", MS),
            ("bus.max_in_flight", "9s", "a whole number from 1 to 65536 is needed"),
            ("memory.compact_at", "75%", "a number from 0.1 to 0.95 is needed"),
            ("memory.budget.notes.ceiling", "0", "a number from 0.05 to 1 is needed"),
            ("memory.budget.notes.priority", "0.5", "a whole number from 0 to 100 is needed"),
            ("system.log_level", "loud", "one of debug, info, warning, error is needed"),
            ("system.http_host", "a b", "an address or a name of this machine is needed"),
            ("memory.working_memory", "10s", "true or false is needed"),
            ("llm.model", "m" * 201, "a text of at most 200 characters is needed"),
        ],
    )
    def test_units_and_kinds(self, tmp_path: Path, key: str, given: str, said: str) -> None:
        """What is needed, in which unit, and what to write for a value with one; alike for a file and a variable."""
        *sections, name = key.split(".")
        in_file = "".join(f"{'  ' * depth}{section}:\n" for depth, section in enumerate(sections))
        in_file += f"{'  ' * len(sections)}{name}: '{given}'"
        variable = "NEXUS_" + "__".join([*sections, name]).upper()
        assert fault(tmp_path, in_file) == f"{tmp_path / 'nexus.yml'}: {key}: {said}"
        assert fault(None, "", **{variable: given}) == f"environment variable {variable}: {key}: {said}"

    def test_every_setting_has_a_rule(self) -> None:
        """Whatever the setting, an error says what is needed, not in pydantic's words; times and sizes have units."""
        units = {
            "ms": "millisec",
            "s": "seconds",
            "seconds": "seconds",
            "days": "days",
            "bytes": "bytes",
            "tokens": "tokens",
        }
        for key in sorted(keys_of(Settings) - {"environment"}):
            variable = f"NEXUS_{key.upper().replace('.', '__')}"
            said = fault(None, "", **{variable: "[{x: 1}]"})
            assert said.startswith(f"environment variable {variable}: {key}")
            assert re.search(r" (is|are) needed", said)
            assert not re.search(r"\bInput|\bString|should", said)
            assert units.get(key.rpartition("_")[2], "") in said

    @pytest.mark.parametrize("level", ["INFO", "Info", "info"])
    def test_a_log_level_in_any_case(self, tmp_path: Path, level: str) -> None:
        """As other programs write it."""
        assert load_settings(written(tmp_path, f"system: {{log_level: {level}}}"), {}).system.log_level == "info"
        assert load_settings(None, {"NEXUS_SYSTEM__LOG_LEVEL": level}).system.log_level == "info"

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"bus:\n  url: [a\n", "is not YAML: line 3, column 1"),
            (b"bus: \xff", "is not UTF-8 text"),
            (b"llm: {model: 2020-13-45}", "is not YAML"),
            (b"[" * 5_000, "is not YAML"),
            (b"bus: {? [a] : b}", "is not YAML: line 1, column 9"),
            (b"[a]", "holds a list; sections with keys are needed"),
            (b"text", "holds a str; sections with keys are needed"),
        ],
    )
    def test_a_file_without_settings(self, tmp_path: Path, content: bytes, said: str) -> None:
        """The file is named with the reason, and so is one that is not there, or is a folder."""
        path = tmp_path / "nexus.yml"
        path.write_bytes(content)
        found = {
            path: said,
            tmp_path / "none.yml": "cannot be read: No such file",
            tmp_path: "cannot be read: Is a dir",
        }
        for place, reason in found.items():
            with pytest.raises(ConfigError, match=f"^{re.escape(str(place))}: {reason}"):
                load_settings(place, {})


class TestKeysTwice:
    """YAML's loader would take the last of them in silence."""

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("memory:\n  truncate_chars: 30\n  turns_shown: 5\n\n  truncate_chars: 40", ["memory.truncate_chars 2 5"]),
            ("memory: {turns_shown: 5}\nbus: {}\nmemory: {turns_shown: 6}", ["memory 1 3"]),
            (
                "memory: {turns_shown: 5,\n 'turns_shown': 6,\n \"turns_shown\": 7}",
                ["memory.turns_shown 1 2", "memory.turns_shown 2 3"],
            ),
            ("memory:\n  budget:\n    notes:\n      floor: 0\n      floor: 0", ["memory.budget.notes.floor 4 5"]),
            ("tools:\n  modules:\n  - a: 1\n    a: 2\n  - b", ["tools.modules[0].a 3 4"]),
            ("memory: &m\n  turns_shown: 5\n  turns_shown: 6\nlayouts: *m", ["memory.turns_shown 2 3"]),
            ("memory:\n  <<: {turns_shown: 5}\n  <<: {turns_shown: 6}", ["memory.<< 2 3"]),
            ("memory:\n  <<: {turns_shown: 5, turns_shown: 6}", ["memory.<<.turns_shown 2 2"]),
            ("bus:\n  signing:\n    keys:\n      hunter2-canary: a\n      hunter2-canary: b", ["bus.signing.keys 4 5"]),
        ],
    )
    def test_in_the_file(self, tmp_path: Path, text: str, said: list[str]) -> None:
        """Each is refused with its place and both lines, in maps, lists and anchors; a key's id is not repeated."""
        lines = [item.rsplit(" ", 2) for item in said]
        assert fault(tmp_path, text).splitlines() == [
            f"{tmp_path / 'nexus.yml'}: {key}: the same key in line {first} and in line {second}; once is allowed"
            for key, first, second in lines
        ]

    @pytest.mark.parametrize(
        ("variable", "text", "key"),
        [
            ("NEXUS_BUS__SIGNING__KEYS", "{@: x, @: y}", "bus.signing.keys"),
            ("NEXUS_BUS__SIGNING", "{keys: {@: x, @: y}}", "bus.signing.keys"),
            ("NEXUS_LAYOUTS__AGENT", "{placement: tail, placement: tail}", "layouts.agent.placement"),
        ],
    )
    def test_in_a_variable(self, variable: str, text: str, key: str) -> None:
        """A variable may hold a mapping, too."""
        assert fault(None, "", **{variable: text.replace("@", SECRET)}) == (
            f"environment variable {variable}: {key}: the same key in line 1 and in line 1; once is allowed"
        )

    def test_what_is_no_fault(self, tmp_path: Path) -> None:
        """An own key overrides a merged one, wherever the anchor stands; sections may have keys of one name."""
        text = """
            layouts:
              dialogue: &one {max_tokens: 2000}
              thinking: &two {<<: *one, max_tokens: 3000}
              agent: {<<: [*two, *one], pinned_from_end: 1}
        """
        layouts = load_settings(written(tmp_path, text), {}).layouts
        assert [layouts.dialogue.max_tokens, layouts.thinking.max_tokens, layouts.agent.max_tokens] == [
            2000,
            3000,
            3000,
        ]

    @pytest.mark.parametrize("text", ["memory:\n  turns_shown: &m {a: *m}", "memory:\n  turns_shown: &m [1, [*m]]"])
    def test_what_holds_itself(self, tmp_path: Path, text: str) -> None:
        """An alias of what is around it is refused with its place and line."""
        assert re.fullmatch(
            rf"{tmp_path / 'nexus.yml'}: memory\.turns_shown\S*: holds itself, by an alias of what begins in line 2",
            fault(tmp_path, text),
        )


class TestClusters:
    """Streams on a Redis Cluster share a slot."""

    CLUSTER = "rediss+cluster://:hunter2-canary@a,b"

    def test_a_hash_tag_is_needed(self, tmp_path: Path) -> None:
        """In streams; other modes spread their keys over the cluster. Both keys are named, and an example."""
        said = fault(tmp_path, "bus: {mode: streams, channel_prefix: 'prod:'}", NEXUS_BUS__URL=self.CLUSTER)
        assert all(text in said for text in ("bus.channel_prefix", "bus.url", "'{nexus}:'"))
        assert SECRET not in said
        for mode, prefix in (("streams", "prod.{nexus}:"), ("pubsub", ""), ("memory", "a:")):
            variables = {"NEXUS_BUS__URL": self.CLUSTER, "NEXUS_BUS__MODE": mode, "NEXUS_BUS__CHANNEL_PREFIX": prefix}
            assert load_settings(None, variables).bus.channel_prefix == prefix

    @pytest.mark.parametrize("prefix", ["{}:", "{a", "a}", "{a}{b}", "{{a}}"])
    def test_what_is_no_hash_tag(self, prefix: str) -> None:
        """One tag, closed and not empty."""
        said = fault(None, "", NEXUS_BUS__CHANNEL_PREFIX=prefix)
        assert "bus.channel_prefix: At most 64 of A-Z a-z 0-9 . _ : - and one hash tag in braces are allowed" in said
        assert said.endswith("'prod.{nexus}:'")


class TestModels:
    """A model is there or it is not."""

    @pytest.mark.parametrize(
        ("address", "model", "named"),
        [("https://h/v1", "a/b:c", "a/b:c"), ("http://h", " m ", "m"), ("", "", "")],
    )
    def test_by_variables(self, address: str, model: str, named: str) -> None:
        """As a container is given them; empty ones are none, and around a name white space does not count."""
        given = {"NEXUS_LLM__BASE_URL": address, "NEXUS_LLM__MODEL": model, "NEXUS_LLM__API_KEY": "123"}
        llm = load_settings(None, given).llm
        assert (llm.enabled, llm.base_url.get_secret_value(), llm.model) == (bool(named), address, named)
        assert llm.api_key.get_secret_value() == "123"

    @pytest.mark.parametrize(("given", "other", "blank"), [("base_url", "model", " \n"), ("model", "base_url", "")])
    def test_half_a_model(self, tmp_path: Path, given: str, other: str, blank: str) -> None:
        """A part of it means the whole; the fault is reported where that part stands."""
        variable, needed = f"NEXUS_LLM__{given.upper()}", f"llm.{given}: needs llm.{other}; give both, or neither"
        assert fault(None, "", **{variable: "http://h"}).startswith(f"environment variable {variable}: {needed}")
        in_file = fault(tmp_path, f"llm: {{{given}: http://h}}", **{f"NEXUS_LLM__{other.upper()}": blank})
        assert in_file.startswith(f"{tmp_path / 'nexus.yml'}: {needed}")

    @pytest.mark.parametrize(
        "address", ["http://u:hunter2-canary@:1", "https://h:x/v1", "ftp://hunter2-canary", "http://"]
    )
    def test_an_address_of_no_place(self, address: str) -> None:
        """It is refused when the settings are read, with where it stands, and not repeated."""
        said = fault(None, "", NEXUS_LLM__BASE_URL=address, NEXUS_LLM__MODEL="m")
        assert said.startswith("environment variable NEXUS_LLM__BASE_URL: llm.base_url: ")
        assert "Names no host and port" in said or "An address that begins with http:// or https:// is needed" in said
        assert SECRET not in said

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("embedder: endpoint, model: m", "recall.embedder: endpoint needs recall.base_url"),
            ("embedder: endpoint, base_url: 'http://h'", "recall.embedder: endpoint needs recall.model"),
            ("text_prefix: 'a '", "recall.text_prefix: is for an endpoint; set recall.embedder to endpoint"),
            ("model: m", "recall.model: is for an endpoint; set recall.embedder to endpoint, or leave this out"),
            ("embedder: packaged, base_url: 'http://hunter2-canary'", "recall.base_url: is for an endpoint; set"),
        ],
    )
    def test_half_an_embedder(self, tmp_path: Path, text: str, said: str) -> None:
        """An endpoint needs all, and what has no effect is not taken in silence."""
        found = fault(tmp_path, f"recall: {{{text}}}")
        assert found.startswith(f"{tmp_path / 'nexus.yml'}: {said}")
        assert SECRET not in found

    def test_recall_without_long_term_memory(self, tmp_path: Path) -> None:
        """What would never be shown cannot be asked for."""
        text = "recall: {enabled: false}\nlayouts: {agent: {recall: true}, thinking: {recall: true}}"
        found = fault(tmp_path, text)
        assert "layouts.agent.recall: needs recall.enabled" in found
        assert "layouts.thinking.recall: needs recall.enabled" in found
        assert "layouts.dialogue" not in found

    def test_memory_tools_in_dialogues(self, tmp_path: Path) -> None:
        """Those that make sense there, and only where there are any."""
        found = fault(tmp_path, "layouts: {dialogue: {tools: [compact_history]}}")
        assert "layouts.dialogue.tools.0: a list of any of pin_constraint, remember, search_memory is needed" in found
        found = fault(tmp_path, "memory: {working_memory: false}\nlayouts: {dialogue: {tools: [remember]}}")
        assert "layouts.dialogue.tools: needs memory.working_memory" in found

    def test_what_is_off(self, tmp_path: Path) -> None:
        """YAML reads `off` as false."""
        (tmp_path / "nexus.yml").write_text(
            "recall: {embedder: off}\nfacts: {extract: off}\nmemory: {show_tool_results: off}", encoding="utf-8"
        )
        settings = load_settings(tmp_path / "nexus.yml", {})
        assert (settings.recall.embedder, settings.facts.extract) == ("off", "off")
        assert settings.memory.show_tool_results == "off"
        assert with_stored(settings, {"memory": {"show_tool_results": "short"}}, {}).memory.show_tool_results == "short"

    def test_facts_without_a_model(self, tmp_path: Path) -> None:
        """Nobody could look for them."""
        found = fault(tmp_path, "facts: {extract: model}")
        assert found.startswith(f"{tmp_path / 'nexus.yml'}: facts.extract: model needs llm.base_url and llm.model")
        assert "facts.extract: one of off, model is needed" in fault(tmp_path, "facts: {extract: rules}")


class TestSecrets:
    """Addresses with passwords show nowhere."""

    def test_not_in_a_repr(self) -> None:
        """Neither the repr nor the text nor a dump in JSON holds them, also with stored settings laid over them."""
        url, key = f"redis://:{SECRET}@h", f"{{k1: {SECRET}-long-enough}}"
        named = {
            "NEXUS_BUS__URL": url,
            "NEXUS_DATABASE__URI": f"mongodb://u:{SECRET}@h",
            "NEXUS_BUS__SIGNING__KEYS": key,
        }
        named |= {"NEXUS_MCP__TOKENS": f"[{{token: {SECRET}-long-enough, owners: [ada]}}]"}
        named |= {"NEXUS_LLM__BASE_URL": f"http://u:{SECRET}@h", "NEXUS_LLM__API_KEY": SECRET, "NEXUS_LLM__MODEL": "m"}
        named |= {"NEXUS_RECALL__BASE_URL": f"http://u:{SECRET}@h", "NEXUS_RECALL__API_KEY": SECRET}
        named |= {"NEXUS_RECALL__MODEL": "m", "NEXUS_RECALL__EMBEDDER": "endpoint"}
        settings = load_settings(None, named)
        stored = with_stored(settings, {"memory": {"truncate_chars": 50}}, {})
        assert (stored.bus, stored.mcp) == (settings.bus, settings.mcp)
        for shown in (settings, stored):
            assert SECRET not in repr(shown) + str(shown) + shown.model_dump_json() + repr(shown.model_dump())
        assert SECRET not in repr(signing_of(stored.bus.signing))
        assert settings.bus.url.get_secret_value() == url

    @pytest.mark.parametrize(
        "text",
        [
            "bus: {url: {x: hunter2-canary}}",
            "bus: {urll: hunter2-canary}",
            "bus:\n  url: redis://:hunter2-canary@h: x",
            "bus:\n  url: *hunter2-canary",
            "bus:\n  url: !hunter2-canary x",
            "bus: {lease_ms: hunter2-canary}",
            "bus: {channel_prefix: 'hunter2-canary @'}",
            "database: {name: 'hunter2-canary @'}",
            "bus:\n\turl: hunter2-canary",
        ],
    )
    def test_not_in_an_error_of_the_file(self, tmp_path: Path, text: str) -> None:
        """However wrong the line is."""
        assert SECRET not in fault(tmp_path, text)

    @pytest.mark.parametrize("name", ["NEXUS_BUS__URLL", "NEXUS_BUS__LEASE_MS", "NEXUS_BUS_URL", "NEXUS_BUS__URL__X"])
    def test_not_in_an_error_of_the_environment(self, name: str) -> None:
        """However wrong the variable is."""
        assert SECRET not in fault(None, "", **{name: SECRET})


class TestTokens:
    """`mcp.tokens`, which say whose memory they open."""

    def test_who_they_are_for(self) -> None:
        """Of one owner, of several, or of all."""
        given = "[{token: ${A}, owners: [ada]}, {token: sixteen characters, owners: [ada, '*']}]"
        tokens = load_settings(None, {"NEXUS_MCP__TOKENS": given.replace("${A}", "a" * 16)}).mcp.tokens
        assert [each.owners for each in tokens] == [("ada",), ("ada", ANY_OWNER)]
        assert load_settings(None, {}).mcp.tokens == ()

    @pytest.mark.parametrize(
        "given",
        [
            "ada",
            "[ada]",
            "{ada: hunter2-canary-long}",
            "[{token: hunter2-canary-long}]",
            "[{token: hunter2-canary-long, owners: []}]",
            "[{token: hunter2-canary-long, owners: ['']}]",
            "[{token: hunter2-canary-long, owners: ada}]",
            "[{token: hunter2-canary, owners: [ada]}]",
            "[{hunter2-canary-long: token, owners: [ada]}]",
        ],
    )
    def test_what_is_none(self, given: str) -> None:
        """It says what is needed, and repeats no token."""
        said = fault(None, "", NEXUS_MCP__TOKENS=given)
        rule = "mcp.tokens: A list is needed, as [{token: a text of 16 characters or more, owners: [ada]}]; owners"
        assert said.startswith(f"environment variable NEXUS_MCP__TOKENS: {rule}")
        assert SECRET not in said

    @pytest.mark.parametrize("token", ["hunter2-canary-long\\n", " hunter2-canary-long", "hunter2-canary\\nlong"])
    def test_one_that_no_header_can_carry(self, token: str) -> None:
        """As from a file with a line break at its end: every request would be refused."""
        said = fault(None, "", NEXUS_MCP__TOKENS=f'[{{token: "{token}", owners: [ada]}}]')
        rule = "mcp.tokens: A token has a line break, or white space at an end, which no header can carry"
        assert said == f"environment variable NEXUS_MCP__TOKENS: {rule}"

    def test_one_that_stands_twice(self) -> None:
        """It could not be told whose it is."""
        given = "[{token: hunter2-canary-long, owners: [ada]}, {token: hunter2-canary-long, owners: [bob]}]"
        said = fault(None, "", NEXUS_MCP__TOKENS=given)
        assert (
            said
            == "environment variable NEXUS_MCP__TOKENS: mcp.tokens: A token stands there twice; give it all its owners"
        )


class TestStored:
    """The `configurations` document lies between the file and the environment."""

    def test_precedence(self, tmp_path: Path) -> None:
        """File, then document, then variables."""
        variables = {"NEXUS_MEMORY__TRUNCATE_CHARS": "400", "NEXUS_BUS__LEASE_MS": "333"}
        path = written(tmp_path, "memory: {history_context_size: 5, truncate_chars: 100}")
        settings = load_settings(path, variables)
        changed = with_stored(settings, {"memory": {"history_context_size": 9, "truncate_chars": 200}}, variables)
        assert (changed.memory.history_context_size, changed.memory.truncate_chars) == (9, 400)
        assert changed.bus == settings.bus

    def test_other_sections_are_not_taken(self) -> None:
        """Addresses cannot be changed through the database, and its own fields are ignored."""
        assert STORED_SECTIONS == ("memory", "layouts", "user_defaults")
        settings = load_settings(None, {})
        document = {"_id": 1, "environment": "x", "bus": {"url": "redis://evil"}, "memory": None}
        assert with_stored(settings, document, {}) == settings

    def test_what_a_service_is_built_with_is_not_taken(self) -> None:
        """The file has it, also where what is stored would be wrong; the rest of the section counts."""
        settings = load_settings(None, {})
        stored = {"tokenizer": 7, "working_memory": False, "truncate_chars": 400}
        changed = with_stored(settings, {"memory": stored}, {}).memory
        assert changed == settings.memory.model_copy(update={"truncate_chars": 400})

    @pytest.mark.parametrize("memory", [{"truncate_chars": 1}, {"sizes": 5}, "text", [1]])
    def test_what_is_wrong_names_the_document(self, memory: Any) -> None:
        """Also where a variable overrides the key."""
        settings = load_settings(None, {"NEXUS_ENV": "staging"})
        with pytest.raises(ConfigError, match=r"^configurations document of environment 'staging': memory"):
            with_stored(settings, {"memory": memory}, {"NEXUS_MEMORY__TRUNCATE_CHARS": "100"})


class TestSigning:
    """The keys of the bus: from a file or a variable, complete or refused, and never shown."""

    FIRST, SECOND = "first-secret-canary", "second-secret-canary"

    @pytest.mark.parametrize(
        "variables",
        [
            {"NEXUS_BUS__SIGNING__KEYS": f"{{k1: {FIRST}, k2: {SECOND}}}"},
            {"NEXUS_BUS__SIGNING": f"{{keys: {{k1: {FIRST}, k2: {SECOND}}}}}"},
            {"NEXUS_BUS__SIGNING__KEYS__K1": FIRST, "NEXUS_BUS__SIGNING__KEYS__K2": SECOND},
        ],
    )
    def test_from_variables(self, variables: dict[str, str]) -> None:
        """In order, as a mapping or one by one."""
        signing = signing_of(load_settings(None, variables).bus.signing)
        assert signing is not None
        assert list(signing.keys.items()) == [("k1", self.FIRST.encode()), ("k2", self.SECOND.encode())]
        assert not signing.required

    def test_from_the_file(self, tmp_path: Path) -> None:
        """A secret may be filled in from a variable, and `required` may stand elsewhere than the keys."""
        path = written(tmp_path, "bus: {signing: {keys: {'2026.a_b-c': '${PW}'}}}")
        signing = signing_of(
            load_settings(path, {"PW": self.FIRST, "NEXUS_BUS__SIGNING__REQUIRED": "true"}).bus.signing
        )
        assert signing is not None
        assert (dict(signing.keys), signing.required) == ({"2026.a_b-c": self.FIRST.encode()}, True)
        for text in ("", "bus: {signing: {keys: }}", "bus: {signing: {keys: {}, required: no}}"):
            assert signing_of(load_settings(written(tmp_path, text), {}).bus.signing) is None

    def test_required_without_a_key(self, tmp_path: Path) -> None:
        """The fault names the setting and what to do."""
        assert fault(tmp_path, "bus: {signing: {required: true}}") == (
            f"{tmp_path / 'nexus.yml'}: bus.signing.required: needs a key to sign with: set bus.signing.keys, "
            "for instance NEXUS_BUS__SIGNING__KEYS='{k1: a secret of 16 characters or more}', or leave it at false"
        )

    @pytest.mark.parametrize(
        ("keys", "rule"),
        [
            ("{k1: short}", "A secret is shorter than 16 characters"),
            ("{k1: 1234567890123456}", "A secret is no text"),
            ("{k1: null}", "A secret is no text"),
            ("{k1: [@@]}", "A secret is no text"),
            ("{'@ @': k1}", "An id of a key is not of 1 to 64 of"),
            ("{@@: k1}", "A secret is shorter than 16 characters"),
            ("{'': @@}", "An id of a key is not of 1 to 64 of"),
            ("{5: @@}", "An id of a key is no text"),
            (f"{{{'k' * 65}: @@}}", "An id of a key is not of 1 to 64 of"),
            ("{@,: k1}", ""),
            ("{k1:@@}", ""),
            ("[@@]", "Secrets by their ids are needed, for instance {k1: a secret of"),
            ("@@", "Secrets by their ids are needed"),
            ("{k1: @@", ""),
        ],
    )
    def test_no_key(self, tmp_path: Path, keys: str, rule: str) -> None:
        """The rule is named, and neither secret nor id is repeated, which may have changed places."""
        said = f"bus.signing.keys: {rule}"
        given = keys.replace("@", SECRET)
        text = fault(None, "", NEXUS_BUS__SIGNING__KEYS=given)
        assert text.startswith(f"environment variable NEXUS_BUS__SIGNING__KEYS: {said}")
        assert SECRET not in text + fault(tmp_path, f"bus:\n  signing:\n    keys: {given}\n")
