"""The examples for CI systems and nodes: their own commands, run here on the host backend."""
import os
import pathlib
import subprocess

from program import DEADLINE_SCALE, PROGRAM, SOURCE, ProgramTest, main, strict_json

CI = SOURCE / "scripts" / "ci"
BINARIES = pathlib.Path(PROGRAM).parent


def commands(name):
    """Lines of a workflow that run the program, continuations joined."""
    text = (CI / name).read_text().replace("\\\n", " ").replace("\n      --", " --")
    lines = [line.strip() for line in text.splitlines() if "build/bin/tpjitter" in line]
    return [line[line.index("build/bin/tpjitter"):] for line in lines]


class CiExamples(ProgramTest):
    def setUp(self):
        super().setUp()
        # What a checkout with its build looks like to the commands.
        (self.directory / "build").mkdir()
        (self.directory / "build" / "bin").symlink_to(BINARIES)
        (self.directory / "scenarios").symlink_to(SOURCE / "scenarios")

    def shell(self, line, **more):
        return subprocess.run(["bash", "-c", line], cwd=self.directory, capture_output=True,
                              text=True, timeout=600, check=False, **more)

    def test_workflows_measure_and_gate(self):
        measure, gate = commands("github-actions.yml")
        self.assertEqual(commands("gitlab-ci.yml")[0], measure)
        done = self.shell(measure + " --backend host --deadline-scale " + DEADLINE_SCALE)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.shell("build/bin/tpjitter baseline make contender -o baseline.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.shell(gate)  # a run against itself
        self.assertIn(done.returncode, (0, 4), done.stdout + done.stderr)
        self.assertIn("title=tpjitter gate::", done.stdout)
        for name in ("gate.xml", "gate.md"):
            self.assertTrue((self.directory / name).stat().st_size > 0, name)
            (self.directory / name).unlink()
        done = self.shell(commands("gitlab-ci.yml")[1])
        self.assertIn(done.returncode, (0, 4), done.stdout + done.stderr)
        for name in ("gate.xml", "gate.md", "gl-code-quality.json"):
            self.assertTrue((self.directory / name).stat().st_size > 0, name)
        strict_json((self.directory / "gl-code-quality.json").read_text())
        # What the jobs keep and show is what the commands write.
        for name in ("github-actions.yml", "gitlab-ci.yml"):
            text = (CI / name).read_text()
            for artifact in ("contender", "gate.xml", "gate.md"):
                self.assertIn(artifact, text)
        (summary,) = [line.strip() for line in (CI / "github-actions.yml").read_text().splitlines()
                      if "GITHUB_STEP_SUMMARY" in line]
        shown = self.directory / "summary.md"
        done = self.shell(summary.removeprefix("run: "),
                          env={**os.environ, "GITHUB_STEP_SUMMARY": str(shown)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(shown.read_text(), (self.directory / "gate.md").read_text())

    def node(self, *words):
        """The node script as Slurm starts it."""
        return subprocess.run(
            ["bash", CI / "slurm_node.sbatch", "--quick", *map(str, words)], capture_output=True,
            text=True, timeout=600, check=False,
            env={**os.environ, "SLURM_SUBMIT_DIR": str(SOURCE), "BUILD": str(BINARIES.parent),
                 "BACKEND": "host", "THRESHOLDS": ""})

    def test_the_node_script_writes_everything_and_returns_the_gates_code(self):
        out = self.directory / "node"
        done = self.node(out)
        # The machine may be doubtful (4) or too busy for the selftest (1); nothing else.
        self.assertIn(done.returncode, (0, 1, 4), done.stderr)
        for name in ("doctor.json", "selftest.json", "baseline.json", "run/run.json"):
            strict_json((out / name).read_text())
        for name in ("run.txt", "report.md", "report.html"):
            self.assertTrue((out / name).stat().st_size > 0, name)
        for bench in BINARIES.glob("bench_*"):
            kind = ".txt" if bench.name == "bench_report" else ".json"
            self.assertTrue((out / (bench.name + kind)).exists(), bench.name)
        baseline = self.directory / "baseline.json"
        (out / "baseline.json").rename(baseline)
        done = self.node(out, "scenarios/smoke.toml", baseline)
        self.assertTrue((out / "gate.xml").exists() and (out / "gate.md").exists(), done.stderr)
        first = (out / "gate.txt").read_text().splitlines()[0]
        if first.startswith("regressed"):
            self.assertEqual(done.returncode, 1, first)
        else:
            self.assertIn(done.returncode, (0, 1, 4), first)

    def test_a_wrong_call_says_how(self):
        done = subprocess.run(["bash", SOURCE / "scripts" / "b200_node.sh"], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage:", done.stderr)


if __name__ == "__main__":
    main()
