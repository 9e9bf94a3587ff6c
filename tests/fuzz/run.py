"""Makes seeds for a fuzz target and runs it.

    python3 tests/fuzz/run.py PROGRAM SECONDS [CORPUS_DIRECTORY]

Exit code 0: nothing was found. A finding is kept as crash-*, timeout-* or oom-* beside the corpus.
"""
import io
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import numpy

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
RECORDS = SOURCE / "tests" / "golden" / "records"


def npy(rows):
    stream = io.BytesIO()
    numpy.save(stream, rows)
    return stream.getvalue()


def seed(info, *files):
    parts = [json.dumps(info).encode(), *files]
    lengths = [len(part) for part in parts[:2]]
    # Lengths are taken modulo what is left and one.
    return struct.pack("<II", *lengths) + b"".join(parts)


def record_seeds():
    for record in sorted(path.parent for path in RECORDS.glob("*/run.json")):
        info = json.loads((record / "run.json").read_text())
        info["world_size"] = 2
        for control in info["controls"]:
            for key, value in control.items():
                if isinstance(value, list):
                    control[key] = value[:8]
        for case in info["cases"]:
            case["operations"] = None
        rows = numpy.load(record / "rank0.phases.npy")
        for count in (0, 3, 60):
            mine = rows[:count].copy()
            other = mine.copy()
            for name in mine.dtype.names:
                if name.endswith("_ns"):
                    other[name] += (other[name] != 0) * 700
            other["first_all_reduce_last_peer"] = 0
            yield seed(info, npy(mine), npy(other))
        small = {key: info[key] for key in ("schema", "status", "backend", "world_size")}
        small["cases"] = [{"name": "a"}, {"name": "b", "skip_reason": "x"}]
        yield seed(small, npy(rows[:4]), npy(rows[:4][["sequence", "step", "dispatch_begin_ns"]]))


def threshold_seeds():
    yield (SOURCE / "scripts" / "ci" / "thresholds_b200.toml").read_bytes()
    yield b"""schema = "tpjitter.thresholds/1"
[[rule]]
metric = "launch_skew_ns"
statistic = "p99"
cases = "fused*"
phase = "target_verify"
direction = "higher_is_better"
max_ns = 20000
required = false
[[rule]]
metric = "dispatch_ns"
phase = "*"
relative_limit = 0.1
absolute_floor_ns = 2_000
noise_ns = 1e3
[[waiver]]
metric = "dispatch_ns"
cases = "aten*"
reason = "known"
expires = 2027-01-31
"""


def baseline_seeds():
    metric = {"n": 900, "negative": 0, "p50": 1000, "p90": 1100, "p99": None, "p999": None,
              "min": 900, "max": 1200, "mean": 1010.5}
    for count in (1, 4):
        launches = []
        for number in range(count):
            values = {**metric, "p50": 1000 + 30 * number}
            launches.append({
                "source": "run", "launch": number, "git_revision": "abc-dirty",
                "began_ns": 1_700_000_000_000_000_000 + 60_000_000_000 * number,
                "controls": {"empty_graph_launch_before_ns": 2000.0,
                             "empty_graph_launch_after_ns": 2000.5, "zero_skew_before_ns": 1800,
                             "zero_skew_after_ns": None if count == 1 else 1810},
                "cases": {"fused/bs8": {
                    "positions": [number, 3],
                    "metrics": {name: {**values, "block_p50": [990, 1000, 1010, 1020]}
                                for name in ("dispatch_ns", "step_ns",
                                             "first_all_reduce_excess_wait_ns")},
                    "phases": {"draft_decode": {"dispatch_ns": values},
                               "target_verify": {"dispatch_ns": values}}}}})
        yield json.dumps({
            "schema": "tpjitter.baseline/1", "scenario": "s", "backend": "cuda", "world_size": 2,
            "git_revision": "abc", "clock_bound_ns": 1200, "rows": 3600,
            "environment": {"machine": "x86_64", "gpus": [{"name": "g"}]},
            "versions": {"nccl": "2"},
            "cases": {"fused/bs8": {"step": {"path": "fused"}}}, "launches": launches}).encode()


def benchmark_seeds():
    def entry(time, **more):
        return {"name": "BM_x/8", "run_name": "BM_x/8", "run_type": "iteration", "iterations": 9,
                "real_time": time, "cpu_time": 1.0, "time_unit": "us", **more}
    benchmarks = [entry(1.5), entry(1.6), entry(1.4),
                  entry(1.5, run_type="aggregate", aggregate_name="mean"),
                  {"name": "BM_y", "run_name": "BM_y", "run_type": "iteration",
                   "error_occurred": True, "error_message": "no GPU"}]
    context = {"num_cpus": 2, "library_build_type": "release", "cpu_scaling_enabled": False}
    yield json.dumps({"context": context, "benchmarks": benchmarks}).encode()
    yield b'{"context": {}, "benchmarks": [{"name": "a", "real_time": NaN, "cpu_time": Infinity}]}'


def record_words():
    names = set(numpy.load(next(RECORDS.glob("*/rank0.phases.npy"))).dtype.names)
    return names | {"schema", "tpjitter.run/1", "status", "complete", "incomplete", "backend",
                    "host", "cuda", "world_size", "cases", "launches", "order", "controls", "ranks",
                    "clock", "pairs", "points", "exchanges", "null", "<i8", "<i4", "|u1", "descr",
                    "shape"}


def words_of(seeds):
    text = b" ".join(seeds).decode()
    return {word for word in re.findall(r"[A-Za-z_/.0-9-]+", text) if len(word) < 40} | {
        "null", "true", "-1", "9223372036854775807", "1e308"}


# By target: its seeds; words are theirs, or the record's.
TARGETS = {"fuzz_run_reader": record_seeds, "fuzz_thresholds": threshold_seeds,
           "fuzz_baseline": baseline_seeds, "fuzz_google_benchmark": benchmark_seeds}


def main():
    program, seconds = sys.argv[1], sys.argv[2]
    corpus = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp())
    corpus.mkdir(parents=True, exist_ok=True)
    target = pathlib.Path(program).name
    seeds = list(TARGETS[target]())
    for number, content in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(content)
    names = record_words() if target == "fuzz_run_reader" else words_of(seeds)
    words = corpus.parent / f"{target}.dict"
    words.write_text("".join(f'"{name}"\n' for name in sorted(names)))
    return subprocess.run(
        [program, str(corpus), f"-max_total_time={seconds}", "-max_len=40000", "-timeout=20",
         "-rss_limit_mb=2048", f"-dict={words}", f"-artifact_prefix={corpus.parent}/{target}-",
         "-print_final_stats=1"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
