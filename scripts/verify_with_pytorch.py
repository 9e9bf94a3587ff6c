#!/usr/bin/env python3
"""Checks the op-by-op path against PyTorch's own operations, on a GPU, bit for bit.

metadata_aten_dump runs tpjitter's path over the tests' seeded cases; this script runs the same
rebuilds with torch on the same inputs and compares every output, stale columns included. It also
profiles one rebuild of each phase and compares launches, copies and syncs with `tpjitter list ops`.
Needs PyTorch with CUDA. Exit code: 0 all equal, 1 a difference, 2 usage, 77 no GPU.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy as np
    import torch
    from pytorch_rebuild import PHASES, Rebuild, synthetic
except ImportError as error:
    sys.exit(f"verify_with_pytorch.py: {error}; use a Python that has NumPy and PyTorch")


def load(folder):
    case = json.loads((folder / "case.json").read_text())

    def array(name):
        return torch.from_numpy(np.load(folder / (name + ".npy")))

    inputs = {name: array(name).cuda() for name in
              ("req_pool_indices", "seq_lens", "q_lens", "req_to_token", "full_to_swa",
               "out_cache_loc")}
    inputs["out_cache_loc"] = inputs["out_cache_loc"][:case["num_out_tokens"]]
    inputs["seq_lens_cpu"] = array("seq_lens_cpu")
    names = ("cache_seqlens", "cu_seqlens_k", "cu_seqlens_q", "page_table", "swa_page_table",
             "swa_out_cache_loc")
    before = {name: array("before_" + name).cuda() for name in names}
    after = {name: array("after_" + name) for name in names}
    return case, inputs, before, after


def differences(folder):
    case, inputs, outputs, ours = load(folder)
    Rebuild(case, inputs, outputs).run()
    for name, expected in ours.items():
        theirs = outputs[name].cpu()
        if not torch.equal(theirs, expected):
            at = int((theirs != expected).nonzero()[0])
            yield (f"{case['name']}, {case['phase']}: {name}[{at}] is {int(expected[at])}, "
                   f"PyTorch gives {int(theirs[at])}")


def profiled(phase, swa):
    rebuild = synthetic(phase, swa)
    for _ in range(3):
        rebuild.run()
    torch.cuda.synchronize()
    warnings.filterwarnings("ignore", module="torch.profiler")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        rebuild.run()
        torch.cuda.synchronize()
    count = dict(calls=0, kernel_launches=0, copies=0, syncs=0)
    for event in profile.events():
        name = event.name
        if event.device_type == torch.autograd.DeviceType.CPU:
            count["kernel_launches"] += name in ("cudaLaunchKernel", "cudaLaunchKernelExC",
                                                 "cuLaunchKernel", "cuLaunchKernelEx")
            count["copies"] += name in ("cudaMemcpyAsync", "cudaMemsetAsync")
            # Not cudaDeviceSynchronize: that is this script's and the profiler's own.
            count["syncs"] += name == "cudaStreamSynchronize"
            top = event.cpu_parent is None and name.startswith("aten::")
            count["calls"] += top
    return count


def compare_counts(program):
    rows = []
    for phase in PHASES:
        for swa in (False, True):
            command = [program, "list", "ops", "--path", "aten", "--phase", phase, "--json"]
            ours = json.loads(subprocess.run(command + ["--swa"] * swa, check=True,
                                             capture_output=True, text=True).stdout)["totals"]
            rows.append((phase, swa, ours, profiled(phase, swa)))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build", help="build folder, for its bin/")
    parser.add_argument("-o", "--output", help="Markdown file to write, in place of stdout")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("verify_with_pytorch.py: PyTorch sees no GPU", file=sys.stderr)
        return 77
    bin_folder = pathlib.Path(options.build) / "bin"
    for program in ("metadata_aten_dump", "tpjitter"):
        if not (bin_folder / program).exists():
            print(f"verify_with_pytorch.py: {bin_folder / program} is missing: build it, or name "
                  "the build folder with --build", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([bin_folder / "metadata_aten_dump", folder], check=True,
                       stdout=subprocess.DEVNULL)
        folders = sorted(pathlib.Path(folder).iterdir())
        wrong = [text for case in folders for text in differences(case)]
    counts = compare_counts(str(bin_folder / "tpjitter"))
    different = [row for row in counts if row[2] != row[3]]

    lines = ["# The op-by-op path against PyTorch's own operations", "",
             f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
             f"CUDA {torch.version.cuda}. Made by `scripts/verify_with_pytorch.py`.", "",
             f"{len(folders)} rebuilds on the same seeded inputs: {len(folders) - len(wrong)} "
             "equal in every bit of every output, entries that nobody writes included"
             f"{'.' if not wrong else ', ' + str(len(wrong)) + ' differences:'}", ""]
    lines += [f"- {text}" for text in wrong[:50]] + [""] * bool(wrong)
    lines += ["One rebuild at batch 8: dispatcher calls / kernel launches / copies / syncs, from "
              "PyTorch's profiler and from `tpjitter list ops`.", "",
              "| phase | SWA | PyTorch | tpjitter | equal |", "|---|---|---|---|---|"]
    keys = ("calls", "kernel_launches", "copies", "syncs")
    for phase, swa, ours, theirs in counts:
        cells = [" / ".join(str(total[key]) for key in keys) for total in (theirs, ours)]
        lines.append(f"| {phase} | {'yes' if swa else 'no'} | {cells[0]} | {cells[1]} | "
                     f"{'yes' if ours == theirs else 'NO'} |")
    text = "\n".join(lines) + "\n"
    if options.output:
        pathlib.Path(options.output).write_text(text)
    else:
        print(text, end="")
    return 1 if wrong or different else 0


if __name__ == "__main__":
    sys.exit(main())
