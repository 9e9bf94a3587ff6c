"""The bench_* programs list their whole matrix without a GPU, and without one run nothing that needs
it; the host half of bench_launch gives floors in its JSON."""
import os
import pathlib
import subprocess
import unittest

from program import PROGRAM, strict_json

PROGRAMS = pathlib.Path(PROGRAM).parent
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
MATRIX = {
    "bench_metadata": ["dispatch/aten/bs1/ctx8192/page64/full/preset",
                       "gpu_warm/fused_live/bs64/ctx131072/page16/swa/preset",
                       "gpu_cold/fused_all/bs32/ctx131072/page1/swa/preset",
                       "gpu_cold/fused_live/bs8/ctx1048576/page1/swa/preset"],
    "bench_all_reduce": ["one_shot_push/bytes:512", "one_shot_push/bytes:512/pdl",
                         "one_shot_pull/bytes:65536", "two_shot/bytes:8388608"],
    "bench_launch": ["host_stamp", "phase_row", "kernel_launch",
                     "graph_launch/nodes:2900/param_bytes:4000/busy:1",
                     "graph_first_launch/nodes:1/param_bytes:0/uploaded:0"],
    "bench_decode_body": ["attention/batch:64", "metadata+attention/batch:1/pdl",
                          "body/layers:80/nodes:16/batch:32/pdl"],
}


def run(name, *words):
    program = PROGRAMS / name
    if not program.exists():
        raise unittest.SkipTest(f"{name} is not built here")
    return subprocess.run([program, *words], capture_output=True, text=True, env=NO_GPU,
                          timeout=120, check=False)


class BenchPrograms(unittest.TestCase):
    def test_list_the_matrix_without_a_gpu(self):
        for name, expected in MATRIX.items():
            with self.subTest(name):
                done = run(name, "--benchmark_list_tests")
                self.assertEqual(done.returncode, 0, done.stderr)
                listed = {line.split("/iterations")[0] for line in done.stdout.splitlines()}
                if name == "bench_launch" and "kernel_launch" not in listed:
                    expected = ["host_stamp", "phase_row"]  # built without CUDA
                self.assertEqual(set(expected) - listed, set())

    def test_need_a_gpu_and_say_so(self):
        for name in MATRIX:
            if name == "bench_launch":
                continue
            with self.subTest(name):
                done = run(name)
                self.assertEqual(done.returncode, 77, done.stderr)
                self.assertIn("no GPU", done.stderr)

    def test_host_rows_have_a_floor(self):
        done = run("bench_launch", "--benchmark_format=json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = strict_json(done.stdout)["benchmarks"]
        self.assertEqual([row["name"].split("/")[0] for row in rows],
                         ["host_stamp", "phase_row", "step_usage_read", "nvtx_range"])
        for row in rows:
            self.assertGreater(row["floor_us"], 0)
            self.assertAlmostEqual(row["ratio_to_floor"], row["us"] / row["floor_us"], places=6)


if __name__ == "__main__":
    unittest.main()
