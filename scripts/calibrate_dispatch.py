#!/usr/bin/env python3
"""Measures what PyTorch's dispatcher calls cost this machine's host, for step.op_overhead_ns.

Times every call of the op-by-op rebuild in normal decode, from Python and from C++ (libtorch), and
writes the quantiles by kind of call as the profiles `python` and `libtorch`, scaled so that whole
rebuilds of normal decode come out right. Then checks them on the other phases: PyTorch and
tpjitter's `aten` with the profile take turns in one run, and whole rebuilds are compared at p50 and
p99. A core of a shared host runs at two speeds, for a second or so each: turns in which it ran slow
by a loop of plain Python are taken again, on both sides, and counted. Files in --output:
python.json, libtorch.json (for harness/contract/dispatch_profiles, then build again),
calibration.md and calibration.json.
Needs a GPU, PyTorch with CUDA, ninja, and dispatch_samples in the build folder.
Exit code: 0 all phases within the target, 1 not, 2 usage, 77 no GPU.
"""
import argparse
import datetime
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from statistics import mean

try:
    import torch
    from pytorch_rebuild import (KINDS, PHASES, build_libtorch, libtorch_rebuild, no_mark,
                                 synthetic)
    from quiet_core import SLOW, Core, middle, quantile
except ImportError as error:
    sys.exit(f"calibrate_dispatch.py: {error}; use a Python that has PyTorch")

# The shape of dispatch_samples.
BATCH, CONTEXT, PAGE = 32, 32768, 64
QUANTILES = 64
BLOCK, WARMUPS = 50, 10  # rebuilds of a turn
CALIBRATED = "normal_decode"
TARGET = 0.15  # of the p50, other phases


class Python:
    """Rebuilds from Python, in inference mode as engines run."""

    name = "python"

    def __init__(self, rebuild):
        self.rebuild = rebuild
        kinds = []
        with torch.inference_mode():
            rebuild.run(kinds.append)
        self.kinds = kinds

    @staticmethod
    def stamp_cost_ns():
        stamps = []
        mark = Python.marker(stamps)
        for _ in range(1001):
            mark("view")
        return middle([b - a for a, b in zip(stamps, stamps[1:])])

    @staticmethod
    def marker(stamps):
        append, clock = stamps.append, time.perf_counter_ns
        return lambda _kind: append(clock())

    def run(self):
        with torch.inference_mode():
            begin = time.perf_counter_ns()
            self.rebuild.run(no_mark)
            return time.perf_counter_ns() - begin

    def calls(self):
        stamps = []
        mark = Python.marker(stamps)
        with torch.inference_mode():
            mark("begin")
            self.rebuild.run(mark)
        return [(kind, b - a) for kind, a, b in zip(self.kinds, stamps, stamps[1:])]


class Libtorch:
    """Rebuilds from C++."""

    name = "libtorch"

    def __init__(self, library, rebuild):
        self.rebuild = libtorch_rebuild(library, rebuild)
        self.run = self.rebuild.run

    def calls(self):
        return [(KINDS[kind], ns) for kind, ns in self.rebuild.calls()]


class Tpjitter:
    """The dispatch_samples program, which waits for commands."""

    def __init__(self, program, profiles):
        command = [str(program)]
        for name, path in profiles.items():
            command += ["--profile", f"{name}={path}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def take(self, phase, swa, profile, count):
        self.process.stdin.write(f"{phase} {int(swa)} {profile} {count}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"calibrate_dispatch.py: dispatch_samples ended with {self.process.wait()}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def turn(measure, count=BLOCK):
    """`count` measurements, the GPU idle before each, after some that do not count."""
    results = []
    for i in range(-WARMUPS, count):
        torch.cuda.synchronize()
        result = measure()
        if i >= 0:
            results.append(result)
    torch.cuda.synchronize()
    return results


def same_results(rebuild, other):
    """Whether `other` writes what the rebuild does."""
    wrong = []
    with torch.inference_mode():
        rebuild.run(no_mark)
    expected = {name: tensor.clone() for name, tensor in rebuild.out.items()}
    for tensor in rebuild.out.values():
        tensor.zero_()
    other.run()
    for name, tensor in rebuild.out.items():
        if not torch.equal(tensor, expected[name]):
            wrong.append(name)
    return wrong


class Calibration:
    """What one flavour's calls and rebuilds of normal decode took, by SWA."""

    def __init__(self, cost):
        self.cost = cost  # of a stamp, ns
        self.calls = {False: [], True: []}  # each rebuild's [(kind, ns)]
        self.totals = {False: [], True: []}  # of rebuilds without stamps

    def profile(self):
        """Quantiles of a call by kind, ns, and of a whole rebuild against the median, permille.

        A machine that is slow for a while makes all calls of a rebuild slow. So calls are taken
        relative to their rebuild, and what rebuilds differ by beyond their calls is a table of its
        own. Stamping costs time too: the calls are scaled to what rebuilds without stamps take.
        """
        by_kind, ratios, permille = {}, [], []
        for swa, rebuilds in self.calls.items():
            rebuilds = [[(kind, max(1, ns - self.cost)) for kind, ns in calls]
                        for calls in rebuilds]
            sums = [sum(ns for _, ns in calls) for calls in rebuilds]
            usual = middle(sums)
            for calls, total in zip(rebuilds, sums):
                for kind, ns in calls:
                    by_kind.setdefault(kind, []).append(ns * usual / total)
            whole = middle(self.totals[swa])
            permille += [1000 * total / whole for total in self.totals[swa]]
        tables = {kind: spread(values) for kind, values in by_kind.items()}
        for swa, rebuilds in self.calls.items():
            modelled = sum(sum(tables[kind]) / QUANTILES for kind, _ in rebuilds[0])
            ratios.append(middle(self.totals[swa]) / modelled)
        scaled = scale(tables, sum(ratios) / len(ratios))
        kinds = {swa: [kind for kind, _ in rebuilds[0]] for swa, rebuilds in self.calls.items()}
        return ({kind: scaled[kind] for kind in KINDS if kind in scaled},
                common_part(tables, spread(permille), kinds, self.totals))


def spread(values):
    """Quantile i of QUANTILES is that of (i + 0.5) / QUANTILES."""
    ordered = sorted(values)
    return [max(1, round(ordered[int((i + 0.5) / QUANTILES * len(ordered))]))
            for i in range(QUANTILES)]


def scale(tables, factor):
    return {kind: [max(1, round(ns * factor)) for ns in table] for kind, table in tables.items()}


def common_part(tables, permille, kinds, totals):
    """The whole rebuilds' spread, less what drawing each call by itself brings already: drawn in
    towards 1000 until modelled rebuilds have the measured p99 / p50."""
    def tail(samples):
        return quantile(samples, 0.99) / middle(samples)

    def drawn(table):
        return torch.tensor(table, dtype=torch.float64)[torch.randint(QUANTILES, (20000,))]

    def modelled(share):
        factor = 1000 + share * (drawn(permille) - 1000)
        return mean([tail((sum(drawn(tables[kind]) for kind in calls) * factor).tolist())
                     for calls in kinds.values()])

    torch.manual_seed(1)
    wanted = mean([tail(samples) for samples in totals.values()])
    low, high = 0.0, 1.0
    if modelled(high) <= wanted:
        return permille
    for _ in range(12):
        share = (low + high) / 2
        low, high = (low, share) if modelled(share) > wanted else (share, high)
    return [max(1, round(1000 + low * (value - 1000))) for value in permille]


def calibrate(flavours, costs, ours, core, rounds):
    """Calls and whole rebuilds of normal decode in turn, with tpjitter's turns between them."""
    calibrations = {name: Calibration(cost) for name, cost in costs.items()}
    order = [(swa, flavour) for (phase, swa), pair in flavours.items() if phase == CALIBRATED
             for flavour in pair]
    for _ in range(rounds):
        random.shuffle(order)
        for swa, flavour in order:
            calibration = calibrations[flavour.name]
            calibration.calls[swa] += core.turn(lambda: turn(flavour.calls))
            ours.take(CALIBRATED, swa, "-", BLOCK)
            calibration.totals[swa] += core.turn(lambda: turn(flavour.run))
            ours.take(CALIBRATED, swa, "-", BLOCK)
    return calibrations


def settle(flavours, program, profiles, files, core, rounds):
    """Scales each profile once more: whole rebuilds of normal decode against the model's."""
    ours = Tpjitter(program, files)
    calibrated = {key: pair for key, pair in flavours.items() if key[0] == CALIBRATED}
    rows = check(calibrated, ours, core, rounds)
    ours.close()
    for name, document in profiles.items():
        ratios = [1 / row["ratio_p50"] for row in rows if row["profile"] == name]
        factor = sum(ratios) / len(ratios)
        document["quantiles_ns"] = scale(document["quantiles_ns"], factor)
        document["measured"]["settled_by"] = round(factor, 3)
        files[name].write_text(json.dumps(document) + "\n")


def measured_on():
    cpu = ""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return dict(date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
                gpu=torch.cuda.get_device_name(), cpu=cpu, pytorch=torch.__version__,
                cuda=torch.version.cuda,
                python=".".join(str(part) for part in sys.version_info[:3]))


def profile_document(name, calibration, rounds):
    quantiles, permille = calibration.profile()
    measured = measured_on()
    measured |= dict(phase=CALIBRATED, batch_size=BATCH, context_tokens=CONTEXT, page_size=PAGE,
                     rebuilds=2 * rounds * BLOCK, stamp_cost_ns=calibration.cost)
    return dict(schema="tpjitter.dispatch_profile/1", name=name, measured=measured,
                quantiles_ns=quantiles, rebuild_permille=permille)


def check(flavours, ours, core, rounds):
    """Whole rebuilds of PyTorch and of `aten` with its profile, taking turns."""
    samples = {}
    keys = [(key, i) for key in flavours for i in range(2)]
    for _ in range(rounds):
        random.shuffle(keys)
        for (phase, swa), i in keys:
            flavour = flavours[(phase, swa)][i]
            theirs, mine = samples.setdefault((flavour.name, phase, swa), ([], []))
            theirs += core.turn(lambda: turn(flavour.run))
            mine += core.turn(lambda: ours.take(phase, swa, flavour.name, BLOCK))
    rows = []
    for (profile, phase, swa), (theirs, mine) in sorted(
            samples.items(), key=lambda s: (s[0][0], PHASES.index(s[0][1]), s[0][2])):
        row = dict(profile=profile, phase=phase, swa=swa, rebuilds=len(theirs))
        for q, name in ((0.5, "p50"), (0.99, "p99")):
            row[f"pytorch_{name}_ns"] = quantile(theirs, q)
            row[f"tpjitter_{name}_ns"] = quantile(mine, q)
            row[f"ratio_{name}"] = round(quantile(mine, q) / quantile(theirs, q), 3)
        row["target"] = TARGET
        row["met"] = abs(row["ratio_p50"] - 1) <= TARGET
        row["calibrated_on"] = phase == CALIBRATED
        rows.append(row)
    return rows


def markdown(rows, profiles, core):
    measured = profiles["python"]["measured"]
    lines = ["# Dispatcher calls: PyTorch's own, and `aten` with the measured profiles", "",
             f"{measured['gpu']}, {measured['cpu']}, PyTorch {measured['pytorch']}, CUDA "
             f"{measured['cuda']}, {measured['date']}. Made by `scripts/calibrate_dispatch.py`.", "",
             f"Batch {BATCH}, {CONTEXT} tokens, page {PAGE}. Profiles from {CALIBRATED}, with and "
             f"without SWA; the other phases check them: within {TARGET:.0%} at p50. Of "
             f"{core.turns} turns on core {core.number}, {core.slow} were slow by the loop of plain "
             f"Python, over {SLOW} times the {core.own / 1000:.1f} us of the core at its own speed; "
             f"{core.slow - core.kept_slow} were taken again, {core.kept_slow} kept all the same.", "",
             "| profile | phase | SWA | PyTorch us: p50 / p99 | tpjitter us: p50 / p99 | "
             "ratio p50 / p99 | p50 in target |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        def pair(who):
            return f"{r[who + '_p50_ns'] / 1000:.1f} / {r[who + '_p99_ns'] / 1000:.1f}"
        met = "calibrated on" if r["calibrated_on"] else "yes" if r["met"] else "NO"
        lines.append(f"| {r['profile']} | {r['phase']} | {'yes' if r['swa'] else 'no'} | "
                     f"{pair('pytorch')} | {pair('tpjitter')} | "
                     f"{r['ratio_p50']:.2f} / {r['ratio_p99']:.2f} | {met} |")
    lines += ["", "One call, us: p50 / p99, in a rebuild of usual speed.", "", "| kind | python | libtorch |", "|---|---|---|"]
    for kind in KINDS:
        cells = []
        for name in ("python", "libtorch"):
            table = profiles[name]["quantiles_ns"].get(kind)
            cells.append(f"{table[QUANTILES // 2] / 1000:.2f} / {table[-1] / 1000:.2f}"
                         if table else "as kernel")
        lines.append(f"| {kind} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build", help="build folder, for bin/dispatch_samples")
    parser.add_argument("--output", default=".", help="folder to write to")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each rebuild")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("calibrate_dispatch.py: PyTorch sees no GPU", file=sys.stderr)
        return 77
    program = pathlib.Path(options.build) / "bin" / "dispatch_samples"
    if not program.exists():
        print(f"calibrate_dispatch.py: {program} is missing: build it, or name the build folder "
              "with --build", file=sys.stderr)
        return 2
    output = pathlib.Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        library = build_libtorch(folder)
    # One core for both sides, so that they are compared on the same one; torch has its threads.
    torch.zeros(1, device="cuda")
    core = Core()

    flavours = {}
    for phase in PHASES:
        for swa in (False, True):
            rebuild = synthetic(phase, swa, BATCH, PAGE, CONTEXT, CONTEXT // 4, CONTEXT - 4)
            pair = (Python(rebuild), Libtorch(library, rebuild))
            wrong = same_results(rebuild, pair[1])
            if wrong or len(pair[0].calls()) != len(pair[1].calls()):
                print(f"calibrate_dispatch.py: {phase}: the C++ rebuild differs: {wrong}",
                      file=sys.stderr)
                return 1
            flavours[(phase, swa)] = pair
    costs = {"python": Python.stamp_cost_ns(), "libtorch": library.stamp_cost_ns()}
    profiles, files = {}, {}
    ours = Tpjitter(program, {})
    calibrations = calibrate(flavours, costs, ours, core, options.rounds)
    ours.close()
    for name, calibration in calibrations.items():
        profiles[name] = profile_document(name, calibration, options.rounds)
        files[name] = output / f"{name}.json"
        files[name].write_text(json.dumps(profiles[name]) + "\n")
    settle(flavours, program, profiles, files, core, max(2, options.rounds // 4))
    ours = Tpjitter(program, files)
    rows = check(flavours, ours, core, options.rounds)
    ours.close()

    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True,
                              text=True, cwd=pathlib.Path(__file__).parent).stdout.strip()
    turns = dict(core=core.number, loop_ns=core.own, all=core.turns, slow=core.slow,
                 kept_slow=core.kept_slow)
    document = dict(measured=profiles["python"]["measured"], git_revision=revision, turns=turns,
                    rows=rows)
    (output / "calibration.json").write_text(json.dumps(document, indent=1) + "\n")
    (output / "calibration.md").write_text(markdown(rows, profiles, core))
    return 0 if all(row["met"] or row["calibrated_on"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
