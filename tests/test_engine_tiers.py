"""The engine as an ordinary user, and behind the walls of the second tier.

The tests beside this one run as who runs them. Where that is root, an ordinary user is made for
these (see :mod:`tests.attacks.ordinary_user`), as most graders are one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.engine.warm import landlock, seccomp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux only")

ROOT = Path(__file__).parents[1]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A new folder that everyone may enter. Those of pytest lie in one that only root can."""
    with tempfile.TemporaryDirectory(prefix="tiers-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o777)
        yield Path(name)


def run_as_ordinary_user(folder: Path, tier: str, *pytest_arguments: str) -> str:
    """What pytest prints; the test fails where pytest does."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "--tb=short", f"--basetemp={folder / 'run'}", *pytest_arguments]
    if os.geteuid() == 0:
        helper = ROOT / "tests" / "attacks" / "ordinary_user.py"
        command = [sys.executable, str(helper), *command]
    environment = {**os.environ, "AUTOGRADER_TIER": tier, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def second_tier():
    if not (landlock.abi() and seccomp.supported()):
        pytest.skip("this kernel has no Landlock, so there is no second tier here")


@pytest.mark.usefixtures("second_tier")
def test_the_corpus_and_the_engine_in_the_second_tier(open_folder):
    files = ("tests/test_engine_attacks.py", "tests/test_engine.py")
    chosen = "killed or scratch or close or function or module or draws or half or many"
    said = run_as_ordinary_user(
        open_folder, "landlock", *files, "-k", f"test_engine_attacks or {chosen}"
    )
    assert "passed" in said


def test_the_first_tier_as_an_ordinary_user(open_folder):
    run_as_ordinary_user(
        open_folder,
        "namespaces",
        "tests/test_engine_attacks.py",
        "-k",
        "theft or kills or (faults and (right or file or threads))",
    )


def test_the_filter_knows_each_call_once():
    for column in (0, 1):
        numbers = [
            pair[column]
            for table in (seccomp.ALLOWED, seccomp.DENIED, seccomp._RULED)
            for pair in table.values()
            if pair[column] is not None
        ]
        assert len(numbers) == len(set(numbers))
    assert not seccomp.ALLOWED.keys() & seccomp.DENIED.keys()


def test_the_filter_fits_the_kernel():
    # <linux/bpf_common.h>: BPF_MAXINSNS
    assert len(seccomp.program(1)) // 8 <= 4096
