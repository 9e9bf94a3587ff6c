"""What the tests of the whole program share: running it, and reading what it wrote."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ["TPJITTER_PROGRAM"]
# Sanitizer builds are slower by an order of magnitude; every deadline stretches with this.
DEADLINE_SCALE = os.environ.get("TPJITTER_TEST_DEADLINE_SCALE", "1")

METRICS = [
    "inputs_ns", "dispatch_ns", "graph_launch_ns", "launch_skew_ns", "first_all_reduce_wait_ns",
    "first_all_reduce_excess_wait_ns", "all_reduce_transfer_ns", "coupling_wait_ns", "step_ns",
]


def strict_json(text):
    """Parses JSON; NaN, Infinity and duplicate keys are errors."""
    def no_constant(name):
        raise ValueError(f"{name} is not JSON")

    def no_duplicates(pairs):
        keys = [key for key, _ in pairs]
        if len(keys) != len(set(keys)):
            raise ValueError(f"duplicate keys in {keys}")
        return dict(pairs)

    return json.loads(text, parse_constant=no_constant, object_pairs_hook=no_duplicates)


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="tpjitter-test-"))

    def tearDown(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    def command(self, *words):
        words = [str(w) for w in words]
        if words[0] == "run":
            words += ["--backend", "host", "--deadline-scale", DEADLINE_SCALE]
        return [PROGRAM, *words]

    def tpjitter(self, *words, env=None, timeout=240):
        return subprocess.run(self.command(*words), capture_output=True, text=True,
                              timeout=timeout, env={**os.environ, **(env or {})}, check=False)

    def start(self, *words):
        return subprocess.Popen(self.command(*words), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def children(self, parent):
        """Command words by process id of a process's children."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                status = (entry / "stat").read_text()
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if int(status.rsplit(")", 1)[1].split()[1]) == parent:
                found[int(entry.name)] = words
        return found

    def ranks_of(self, launcher):
        """pid by rank of a running launcher's children."""
        return {int(words[words.index(b"--rank") + 1]): pid
                for pid, words in self.children(launcher.pid).items() if b"rank" in words}

    def child(self, parent, word):
        """The child whose command has that word; None: not there (yet)."""
        return next((pid for pid, words in self.children(parent).items() if word in words), None)

    def run_info(self, directory):
        return strict_json((directory / "run.json").read_text())

    def scenario(self, name="smoke"):
        return SOURCE / "scenarios" / f"{name}.toml"

    def write_scenario(self, text, name="case.toml"):
        path = self.directory / name
        path.write_text(text)
        return path


def main():
    unittest.main(verbosity=2, argv=sys.argv[:1] + sys.argv[1:])
