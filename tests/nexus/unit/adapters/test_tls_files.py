"""Files that an address names, or the environment: one that cannot be used ends the start, with its name."""

from pathlib import Path
from typing import Final, Literal

import pytest

from nexus.adapters.llm import ModelLimits, open_llm
from nexus.adapters.mongo import open_mongo
from nexus.adapters.redis.client import open_redis
from nexus.core.errors import ConfigError

SECRET: Final = "hunter2"
FAULTS: Final = {
    "missing": "No such file or directory",
    "folder": "Is a directory",
    "empty": "(no certificate|PEM|ConfigurationError)",
    "garbage": "(no certificate|PEM|ConfigurationError)",
}


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A file that is no certificate, and what is said of it."""
    path = tmp_path / request.param
    if request.param == "folder":
        path.mkdir()
    elif request.param != "missing":
        path.write_text("no certificate" if request.param == "garbage" else "")
    return path, FAULTS[request.param]


@pytest.mark.parametrize("driver", ["motor", "pymongo"])
@pytest.mark.parametrize("option", ["tlsCAFile", "tlsCertificateKeyFile", "tlsCRLFile"])
async def test_files_of_mongodb(option: str, driver: Literal["motor", "pymongo"], fault: tuple[Path, str]) -> None:
    """Of both drivers. The text names setting, option and file, and repeats no password."""
    path, reason = fault
    uri = f"mongodb://ada:{SECRET}@127.0.0.1:1/?tls=true&{option}={path}"
    with pytest.raises(ConfigError, match=f"^database.uri: {option} {path}: cannot be used: .*{reason}") as caught:
        async with open_mongo(uri, "nexus", driver=driver):
            pass
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("scheme", ["rediss", "rediss+sentinel", "rediss+cluster"])
@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
async def test_files_of_redis(option: str, scheme: str, fault: tuple[Path, str]) -> None:
    """Of a server, of sentinels and of a cluster: it does not pass for a Redis that is away."""
    path, reason = fault
    service = "/master" if "sentinel" in scheme else ""
    url = f"{scheme}://ada:{SECRET}@127.0.0.1:1{service}?{option}={path}"
    with pytest.raises(ConfigError, match=f"^bus.url: {option} {path}: cannot be used: .*{reason}") as caught:
        async with open_redis(url):
            pass
    assert SECRET not in str(caught.value)


async def test_a_key_without_its_certificate(tmp_path: Path) -> None:
    """It is of no use alone."""
    with pytest.raises(ConfigError, match=r"^bus\.url: has ssl_keyfile, which needs ssl_certfile"):
        async with open_redis(f"rediss://127.0.0.1:1?ssl_keyfile={tmp_path}"):
            pass


@pytest.mark.parametrize(("name", "value"), [("SSL_CERT_FILE", "/no/such"), ("HTTPS_PROXY", "foo://x:y")])
async def test_the_environment_of_the_model(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates and proxies of every HTTP client."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"^llm\.base_url: SSL_CERT_FILE, SSL_CERT_DIR or a proxy of the environment"):
        async with open_llm("https://127.0.0.1:1/v1", "", "m", ModelLimits()):
            pass
