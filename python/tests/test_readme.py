"""The Python of the front door runs as it stands there."""

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).parents[2] / "README.md"


def test_the_example_of_the_front_door_runs(runtime: str) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
    done = subprocess.run([sys.executable, "-c", example], timeout=30, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("b'hello'\n", 0), done.stderr
