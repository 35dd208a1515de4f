"""Replicas whose clocks are wrong (CONTRACT §1.5; the note, case 23)."""

import shutil
import subprocess

import pytest

from tests.nexus.faults.scene import Stage, in_both_modes, scaled, staged


def _with_clock(skew: str) -> dict[str, str]:
    """Variables for a process whose clock is wrong by `skew`; what it measures durations with is not."""
    shown = subprocess.run(["faketime", "-f", skew, "env"], capture_output=True, text=True, check=True).stdout
    found = dict(line.partition("=")[::2] for line in shown.splitlines())
    # Without what it shares with other processes under the same wrapper, which ends with the wrapper.
    names = ("FAKETIME", "LD_PRELOAD")
    return {**{name: found[name] for name in names}, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@pytest.mark.timeout(120)
@pytest.mark.skipif(shutil.which("faketime") is None, reason="needs faketime (Debian's package of that name)")
@in_both_modes
async def test_replicas_ten_minutes_apart(stage: Stage, mode: str) -> None:
    """One replica is ten minutes fast, one ten minutes slow: leases and deadlines hold as if they were not."""
    async with staged(stage, "clock_skew", mode) as scene:
        replicas = await scene.fleet.start()
        for skew in ("+10m", "-10m"):
            replicas += [await scene.fleet.launch(_with_clock(skew))]
        for replica in replicas:
            await replica.logged("ready")
        await scene.load.offer(scaled(300), 40, scene.asks(), most=30)
        built = [len(replica.events("answered")) for replica in replicas]
        codes = await scene.ended()
        verdict = scene.verdict(built_by_each=built)
    assert verdict.clean
    assert min(built) > 0
    assert set(verdict.outcomes) == {"success"}
    assert set(codes) == {0}
