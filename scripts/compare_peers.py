#!/usr/bin/env python3
"""One table of tpjitter beside what a user would run instead, on this machine's GPUs, in one run.

Metadata rebuilds (GPU time cold, host time): PyTorch op by op, libtorch, a Triton kernel (an installed
SGLang's, or the `update` of --triton-module FILE) and the floors of bench_metadata. All-reduces on all
GPUs, when there are two or more: NCCL, plain and with registered windows, and the custom all-reduces
of an installed vLLM or SGLang through their Python operators. Peers and the bench_* programs take
turns in rounds on the same inputs, after their results were compared. What is not installed says so.
Writes PREFIX.md and PREFIX.json. Needs PyTorch with CUDA and a build with benchmarks.
Exit code: 0 table written, 1 a result differs, 2 usage, 77 no GPU.
"""
import argparse
import datetime
import importlib.util
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

try:
    import torch
    from peer_all_reduce import all_reduce_peers
    from peer_metadata import (SHAPES, GpuTimer, Inputs, host_us, name_of, triton_call,
                               triton_kernel)
    from pytorch_rebuild import build_libtorch, libtorch_rebuild, no_mark
except ImportError as error:
    sys.exit(f"compare_peers.py: {error}; use a Python that has NumPy and PyTorch")

REPLAYS = 30  # of a turn
SMALL_BATCH = 32  # shapes up to this count as small in the targets
TRITON = "Triton kernel"


def bench(program, pattern, *more):
    """The rows of a bench_* program by name, without its suffixes."""
    done = subprocess.run([program, "--benchmark_format=json", f"--benchmark_filter={pattern}",
                           *more], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"compare_peers.py: {program.name} ended with {done.returncode}: "
                 f"{done.stderr.strip()}")
    rows = {}
    for row in json.loads(done.stdout)["benchmarks"]:
        if row.get("error_occurred"):
            sys.exit(f"compare_peers.py: {row['name']}: {row['error_message']}")
        rows[row["name"].split("/iterations")[0]] = row
    return rows


class Table:
    def __init__(self):
        self.rows = []

    def add(self, what, shape, ours, peer, theirs, target=None, note=None):
        """`theirs` None: not measured, `note` says why. `target`: the largest ratio."""
        ratio = ours / theirs if theirs else None
        self.rows.append(dict(
            what=what, shape=shape, ours_us=round(ours, 4) if ours is not None else None, peer=peer,
            peer_us=round(theirs, 4) if theirs else None,
            ratio=round(ratio, 4) if ratio else None, target=target,
            met=None if target is None or ratio is None else ratio <= target, note=note))


def calls_of(inputs, flavour, triton, library):
    if flavour == TRITON:
        return [triton_call(triton, r) for r in inputs.rebuilds]
    if flavour == "libtorch":
        return [libtorch_rebuild(library, r).run for r in inputs.rebuilds]
    return [lambda r=r: r.run(no_mark) for r in inputs.rebuilds]


def target_of(shape, peer):
    batch, context, page, _swa, _mode = shape
    if peer != TRITON:
        return None
    if (batch, context, page) == (64, 131072, 16):
        return 0.60
    return 0.90 if batch <= SMALL_BATCH else None


def compare_metadata(options, table, triton, why, library):
    """True when every result is that of bench_metadata."""
    program = pathlib.Path(options.build) / "bin" / "bench_metadata"
    timer, same = GpuTimer(), True
    for shape in SHAPES:
        name = name_of(shape)
        if options.shapes not in name:
            continue
        inputs = Inputs(shape)
        flavours = ["PyTorch op by op"] + [TRITON] * (triton is not None) + ["libtorch"] * (
            library is not None)
        calls, graphs, notes = {}, {}, {TRITON: why, "libtorch": "its extension was not built"}
        sums = {}
        with torch.inference_mode():
            for flavour in flavours:
                try:
                    calls[flavour] = calls_of(inputs, flavour, triton, library)
                    if flavour != "libtorch":  # its GPU work is PyTorch's
                        graphs[flavour] = timer.graph(calls[flavour])
                except Exception as error:  # of the package's: its row says so
                    calls.pop(flavour, None)
                    notes[flavour] = f"{type(error).__name__}: {error}".split("\n")[0]
                    continue
                inputs.clear()
                calls[flavour][0]()
                sums[flavour] = inputs.checksum()
            gpu = {f: [] for f in graphs}
            host = {f: [] for f in calls}
            ours = {}
            for _ in range(options.rounds):
                for flavour in graphs:
                    gpu[flavour] += [timer.cold_us(graphs[flavour]) for _ in range(REPLAYS)]
                for flavour in calls:
                    host[flavour] += [host_us(calls[flavour]) for _ in range(REPLAYS // 3)]
                pattern = f"(gpu_cold|dispatch)/fused_(all|live)/{name}/"
                for row, found in bench(program, pattern).items():
                    ours.setdefault(row, []).append(found)
        mine = {key: statistics.median(r["us"] for r in found) for key, found in ours.items()}
        all_columns, live = (f"gpu_cold/fused_{c}/{name}" for c in ("all", "live"))
        dispatch = f"dispatch/fused_all/{name}"
        for flavour, total in sums.items():
            for key in (all_columns, live):
                if int(ours[key][0]["checksum"]) != total:
                    same = False
                    print(f"compare_peers.py: {name}: {flavour} and {key} differ",
                          file=sys.stderr)
        for key, what, target in ((all_columns, "metadata GPU, cold", 1.10),
                                  (live, "metadata GPU, cold, live columns", 1.10),
                                  (dispatch, "metadata host", 1.15)):
            floor = statistics.median(r["floor_us"] for r in ours[key])
            peer = "bare kernel launch" if key == dispatch else "bare gather"
            table.add(what, name, mine[key], peer, floor, target)
        for flavour in ("PyTorch op by op", "libtorch", TRITON):
            if flavour != "libtorch":
                theirs = statistics.median(gpu[flavour]) if gpu.get(flavour) else None
                table.add("metadata GPU, cold", name, mine[all_columns], flavour, theirs,
                          target_of(shape, flavour), None if theirs else notes[flavour])
            theirs = statistics.median(host[flavour]) if host.get(flavour) else None
            table.add("metadata host", name, mine[dispatch], flavour, theirs, None,
                      None if theirs else notes[flavour])
    return same


def all_reduce_target(kind, gpus, bytes_, best_peer):
    if gpus != 2:
        return None
    if kind == "one_shot_pull" and bytes_ <= 65536:
        return 0.62
    if kind == "one_shot_push" and bytes_ <= 131072:
        return 0.36 if bytes_ <= 65536 else 0.40
    return 1.0 if best_peer and kind == "one_shot_push" else None


def compare_all_reduce(options, table, gpus):
    program = pathlib.Path(options.build) / "bin" / "bench_all_reduce"
    kinds = "one_shot_pull|one_shot_push|two_shot|nccl_window"
    pattern = f"^({kinds})/bytes:({options.bytes})(/pdl)?/iterations"
    rounds, peers = [], {}
    for _ in range(options.rounds):
        rounds.append(bench(program, pattern, f"--ranks={gpus}", "--replays=20"))
        sizes = sorted({int(row["bytes"]) for row in rounds[0].values()})
        for peer, result in all_reduce_peers(gpus, sizes).items():
            peers.setdefault(peer, []).append(result)
    for name in rounds[0]:
        found = [r[name] for r in rounds]
        kind = name.split("/")[0]
        if kind == "nccl_window":
            continue
        bytes_ = int(found[0]["bytes"])
        what = f"all-reduce {kind}{', programmatic launch' if name.endswith('/pdl') else ''}"
        shape = f"{gpus} ranks, {bytes_} bytes"
        ours = statistics.median(r["us"] for r in found)
        windows = [r.get(f"nccl_window/bytes:{bytes_}", {}).get("us") for r in rounds]
        times = {"NCCL": statistics.median(r["nccl_us"] for r in found) if "nccl_us" in found[0]
                 else None,
                 "NCCL, registered windows": statistics.median(windows) if all(windows) else None}
        notes = {"NCCL": "this build has no NCCL",
                 "NCCL, registered windows": "this NCCL has no windows"}
        for peer, results in peers.items():
            if isinstance(results[0], str):
                times[peer], notes[peer] = None, results[0]
            else:
                times[peer] = statistics.median(r[bytes_] for r in results if r.get(bytes_)) if (
                    results[0].get(bytes_)) else None
                notes[peer] = "it does not take this size"
        measured = [t for t in times.values() if t]
        for peer, theirs in times.items():
            best = theirs is not None and theirs == min(measured)
            target = all_reduce_target(kind, gpus, bytes_, best) if (
                peer == "NCCL" or bytes_ > 131072) else None
            table.add(what, shape, ours, peer, theirs, target, None if theirs else notes[peer])
        if found[0].get("stamp_ns") is not None:
            stamps = statistics.median(r["stamp_ns"] for r in found) / 1000
            table.add(what + ": cost of stamps", shape, stamps, "60 ns", 0.060,
                      1.0 if gpus == 2 else None)


def versions(triton_from):
    revision = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True,
                              text=True, cwd=pathlib.Path(__file__).parent).stdout.strip()
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True).stdout.split("\n")[0]
    found = dict(date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
                 git_revision=revision or None, gpu=torch.cuda.get_device_name(),
                 gpus=torch.cuda.device_count(), driver=driver, cuda=torch.version.cuda,
                 pytorch=torch.__version__, python=platform.python_version(),
                 nccl_of_pytorch=".".join(map(str, torch.cuda.nccl.version())),
                 triton_kernel=triton_from)
    for package in ("triton", "vllm", "sglang"):
        if importlib.util.find_spec(package) is None:
            found[package] = "not installed"
        else:
            found[package] = importlib.import_module(package).__version__
    return found


def markdown(document):
    m = document["measured"]
    lines = ["# tpjitter beside its peers", "",
             f"{m['gpus']} x {m['gpu']}, driver {m['driver']}, CUDA {m['cuda']}, PyTorch "
             f"{m['pytorch']}, Triton {m['triton']} ({m['triton_kernel']}), {m['date']}, revision "
             f"{m['git_revision'] or 'unknown'}. Made by `scripts/compare_peers.py`.", "",
             "Medians, us, taken in turn in one run. Ratio: ours to the peer's; a target is the "
             "largest ratio. Absolute times hold for that machine.", ""]
    for what in dict.fromkeys(row["what"] for row in document["rows"]):
        lines += [f"## {what}", "", "| shape | ours | peer | peer's | ratio | target | met |",
                  "|---|---|---|---|---|---|---|"]
        for r in document["rows"]:
            if r["what"] != what:
                continue
            def cell(key, digits):
                return "-" if r[key] is None else f"{r[key]:.{digits}f}"
            met = "-" if r["met"] is None else "yes" if r["met"] else "NO"
            theirs = r["note"] if r["peer_us"] is None else cell("peer_us", 2)
            lines.append(f"| {r['shape']} | {cell('ours_us', 2)} | {r['peer']} | {theirs} | "
                         f"{cell('ratio', 3)} | {cell('target', 2)} | {met} |")
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build", help="build folder, for its bin/")
    parser.add_argument("--triton-module", metavar="FILE", help="Python file with `update`")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer")
    parser.add_argument("--shapes", default="", help="only metadata shapes whose name has this")
    parser.add_argument("--bytes", default="512|5760|16384|46080|65536|131072|524288|1048576|8388608",
                        help="all-reduce sizes, a regular expression")
    parser.add_argument("--only", choices=("metadata", "all-reduce"), help="one half of the table")
    parser.add_argument("-o", "--output", default="peers", metavar="PREFIX")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("compare_peers.py: PyTorch sees no GPU", file=sys.stderr)
        return 77
    for program in ("bench_metadata", "bench_all_reduce"):
        if not (pathlib.Path(options.build) / "bin" / program).exists():
            print(f"compare_peers.py: {options.build}/bin/{program} is missing: build it, or name "
                  "the build folder with --build", file=sys.stderr)
            return 2
    triton, triton_from = triton_kernel(options.triton_module)
    table, same = Table(), True
    if options.only != "all-reduce":
        try:
            with tempfile.TemporaryDirectory() as folder:
                library = build_libtorch(folder)
        except Exception as error:  # a machine without a compiler for extensions
            print(f"compare_peers.py: without libtorch: {error}", file=sys.stderr)
            library = None
        same = compare_metadata(options, table, triton, triton_from, library)
    gpus = torch.cuda.device_count()
    if gpus > 1 and options.only != "metadata":
        compare_all_reduce(options, table, gpus)
    document = dict(measured=versions(triton_from), rounds=options.rounds, same_results=same,
                    rows=table.rows)
    prefix = pathlib.Path(options.output)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f"{prefix}.json").write_text(json.dumps(document, indent=1) + "\n")
    pathlib.Path(f"{prefix}.md").write_text(markdown(document))
    missed = [r for r in table.rows if r["met"] is False]
    print(f"{prefix}.md: {len(table.rows)} rows, {len(missed)} targets missed")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
