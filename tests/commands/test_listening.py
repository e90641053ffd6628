"""No command listens on an address that other machines reach.

`socket.bind` raises an audit event of Python in the process that listens. The calculator, local
Dask and Ray clusters listen in processes of their own: `test_app.py` and `test_workers.py` read
their addresses from the operating system.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from audit.__main__ import COMMANDS

_RECORD = """
import json, sys
addresses = []
sys.addaudithook(lambda event, given: event == "socket.bind" and addresses.append(str(given[1])))
from audit.__main__ import main
codes = [main(call) for call in json.loads(sys.argv[1])]
print("\\n" + json.dumps([codes, addresses]))
"""
QUICK = ["--trials", "20", "--repeats", "1", "--epsilon", "1", "--steps", "3"]
_CALLS = {
    "bounds": ["--mu", "0.1", "--protocol", "noisy-max:3"],
    "solve": ["noise", "3", "--steps", "10", "--protocol", "noisy-max:3"],
    "protocols": ["2", "--mu", "0.1"],
    "cost": ["runs.csv", "--chosen", "grid"],
    "run": [*QUICK, "--jobs", "2", "--out", "results"],
    "report": ["results"],
    "compare": ["results", "results"],
    "verify": ["certificate.json"],
}
_ELSEWHERE = {"app", "check", "reproduce", "coverage_study"}
"""The calculator has its own test, and scripts run without a network."""


def test_every_command_is_called() -> None:
    assert _CALLS.keys() | _ELSEWHERE == COMMANDS.keys()


@pytest.mark.thorough
def test_no_command_listens(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("gdp_mu,score\n0.1,1\n0.1,2\n")
    (tmp_path / "certificate.json").write_text("{}")
    calls = json.dumps([[command, *options] for command, options in _CALLS.items()])
    done = subprocess.run(
        [sys.executable, "-c", _RECORD, calls],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    codes, addresses = json.loads(done.stdout.splitlines()[-1])
    assert codes == [2 if command == "verify" else 0 for command in _CALLS], done.stderr
    assert addresses == []


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_the_record_sees_an_address(address: str) -> None:
    listens = f"import socket; socket.socket().bind(({address!r}, 0)); addresses"
    code = _RECORD.replace("[main(call) for call in json.loads(sys.argv[1])]", "0").replace(
        "from audit.__main__ import main", listens
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert address in done.stdout
