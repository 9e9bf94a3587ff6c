"""Makes seeds for fuzz_run_reader and runs it.

    python3 tests/fuzz/run.py PROGRAM SECONDS [CORPUS_DIRECTORY]

Exit code 0: nothing was found. A finding is kept as crash-*, timeout-* or oom-* beside the corpus.
"""
import io
import json
import pathlib
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


def seeds():
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


def main():
    program, seconds = sys.argv[1], sys.argv[2]
    corpus = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp())
    corpus.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(content)
    words = corpus.parent / "words.dict"
    names = set(numpy.load(next(RECORDS.glob("*/rank0.phases.npy"))).dtype.names)
    names |= {"schema", "tpjitter.run/1", "status", "complete", "incomplete", "backend", "host",
              "cuda", "world_size", "cases", "launches", "order", "controls", "ranks", "clock",
              "pairs", "points", "exchanges", "null", "<i8", "<i4", "|u1", "descr", "shape"}
    words.write_text("".join(f'"{name}"\n' for name in sorted(names)))
    return subprocess.run(
        [program, str(corpus), f"-max_total_time={seconds}", "-max_len=40000", "-timeout=20",
         "-rss_limit_mb=2048", f"-dict={words}", f"-artifact_prefix={corpus.parent}/",
         "-print_final_stats=1"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
