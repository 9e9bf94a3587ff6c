"""Every shipped scenario, shortened, on the host backend."""
import unittest

from program import SOURCE, ProgramTest, main, strict_json


class ShippedScenarios(ProgramTest):
    def check(self, name):
        run = self.directory / name
        done = self.tpjitter("run", self.scenario(name), "--out", run, "--quiet",
                             "--set", "sampling.steps=12", "--set", "sampling.warmup_steps=3",
                             "--set", "sampling.block_steps=6", "--set", "sampling.repetitions=1",
                             "--set", "body.layer_us=1", "--set", "shape.layers=2")
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = strict_json(self.tpjitter("report", run, "--format", "json").stdout)
        self.assertEqual(summary["status"], "complete")
        for case in summary["cases"]:
            self.assertGreater(case["metrics"]["dispatch_ns"]["n"], 0, case["name"])
        for case in self.run_info(run)["cases"]:
            if case.get("skip_reason") is None:
                self.assertTrue(case["bit_equal"], case["name"])
                self.assertGreater(case["steps_checked"], 0)
                self.assertEqual(case["checksum_failures"], 0)


for _path in sorted((SOURCE / "scenarios").glob("*.toml")):
    def _test(self, name=_path.stem):
        self.check(name)
    setattr(ShippedScenarios, f"test_{_path.stem}", _test)

if __name__ == "__main__":
    main()
