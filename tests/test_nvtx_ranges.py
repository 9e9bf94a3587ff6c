"""Profilers see a range for each step, and in it inputs, rebuild and launch."""
import os
import unittest

from program import ProgramTest, main

COUNTER = os.environ["TPJITTER_NVTX_COUNTER"]


class NvtxRanges(ProgramTest):
    def count(self, steps):
        """Ranges by name over both ranks of a run with `steps` timed steps."""
        folder = self.directory / f"counts{steps}"
        folder.mkdir()
        done = self.tpjitter("run", self.scenario(), "--out", self.directory / f"D{steps}",
                             "--case", "fused", "--set", f"sampling.steps={steps}",
                             "--set", "sampling.warmup_steps=2", "--set", "body.layer_us=1",
                             "--set", "shape.layers=1",
                             env={"NVTX_INJECTION64_PATH": COUNTER,
                                  "TPJITTER_NVTX_COUNTS": str(folder)})
        self.assertEqual(done.returncode, 0, done.stderr)
        totals = {}
        for file in folder.iterdir():
            for line in file.read_text().splitlines():
                name, count = line.rsplit(" ", 1)
                totals[name] = totals.get(name, 0) + int(count)
        return totals

    def test_each_step_adds_one_range_of_each_kind_on_each_rank(self):
        few, many = self.count(10), self.count(35)
        self.assertEqual(set(few), {"step", "inputs", "rebuild", "launch"})
        for name in few:
            self.assertEqual(many[name] - few[name], 2 * 25, name)


if __name__ == "__main__":
    main()
