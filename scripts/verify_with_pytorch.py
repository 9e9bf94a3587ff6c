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
except ImportError as error:
    sys.exit(f"verify_with_pytorch.py: {error}; use a Python that has NumPy and PyTorch")

PHASES = ["normal_decode", "draft_decode", "target_verify", "draft_extend_cumsum",
          "draft_extend_strided"]


class Rebuild:
    """One rebuild's tensors; run() does what the engine's backend did before it was fused."""

    def __init__(self, case, inputs, outputs):
        self.case, self.inp, self.out = case, inputs, outputs
        n = case["batch_size"]
        self.strided = torch.arange(case["max_seq_pages"], device="cuda") * case["page_size"]
        self.slots = inputs["req_to_token"].view(case["pool_rows"], case["req_to_token_stride"])
        self.page_table = outputs["page_table"].view(n, case["page_table_stride"])
        if case["swa"]:
            self.swa_page_table = outputs["swa_page_table"].view(n, case["swa_page_table_stride"])

    def lengths(self):
        case, phase, n = self.case, self.case["phase"], self.case["batch_size"]
        offset = case["seqlen_offset"]
        seq_lens = self.inp["seq_lens"][:n]
        cpu = self.inp["seq_lens_cpu"][:n]
        cache = self.out["cache_seqlens"]
        if phase == "draft_decode":
            cache = cache[:n]
            cache.copy_(seq_lens + (offset - 1) + 1)
            return cache.max().item()
        if phase == "target_verify":
            cache.copy_(seq_lens + offset)
            cpu.max().item()
            return cpu.max().item() + offset
        cache.copy_(seq_lens)
        if phase != "normal_decode":
            cpu.max().item()
        return cpu.max().item()

    def queries(self):
        phase, n, stride = self.case["phase"], self.case["batch_size"], self.case["q_stride"]
        if phase == "draft_extend_cumsum":
            self.out["cu_seqlens_q"][1:].copy_(
                torch.cumsum(self.inp["q_lens"][:n], dim=0, dtype=torch.int32))
        elif phase == "draft_extend_strided":
            self.out["cu_seqlens_q"][1:].copy_(torch.arange(
                stride, n * stride + 1, stride, dtype=torch.int32, device="cuda"))

    def run(self):
        case, n, page = self.case, self.case["batch_size"], self.case["page_size"]
        rows = self.inp["req_pool_indices"][:n]
        pages = -(-self.lengths() // page)
        self.out["cu_seqlens_k"][1:].copy_(
            torch.cumsum(self.out["cache_seqlens"], dim=0, dtype=torch.int32))
        self.queries()
        columns = self.strided[:pages]
        if case["phase"] in ("normal_decode", "draft_decode"):
            columns = columns[None, :]
        slots = self.slots[rows[:, None], columns]
        self.page_table[:, :pages].copy_(slots // page)
        if not case["swa"]:
            return
        mapping = self.inp["full_to_swa"]
        swa_slots = mapping[slots.reshape(-1)].reshape(n, pages).to(torch.int32)
        self.swa_page_table[:, :pages].copy_(swa_slots // page)
        if case["has_out_cache_loc"]:
            locations = self.inp["out_cache_loc"]  # load() has cut it to the live ones
            live = case["num_out_tokens"]
            buffer = self.out["swa_out_cache_loc"]
            buffer[live:].zero_()
            buffer[:live].copy_(mapping[locations])


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


def synthetic(phase, swa):
    """Batch 8, int32 lengths (int64 in draft-extend), as `tpjitter list ops` counts."""
    n, page, pages, context = 8, 64, 32, 2048
    extend = phase.startswith("draft_extend")
    case = dict(phase=phase, batch_size=n, page_size=page, max_seq_pages=pages, q_stride=4,
                seqlen_offset={"draft_decode": 1, "target_verify": 4}.get(phase, 0),
                pool_rows=n + 1, req_to_token_stride=context, page_table_stride=pages,
                swa_page_table_stride=pages, swa=swa, has_out_cache_loc=swa, num_out_tokens=n)
    i32, i64 = torch.int32, torch.int64
    lengths = torch.arange(100, 100 + n)
    inputs = dict(req_pool_indices=torch.arange(1, n + 1, device="cuda"),
                  seq_lens=lengths.to("cuda", i64 if extend else i32),
                  seq_lens_cpu=lengths, q_lens=torch.full((n,), 3, dtype=i32, device="cuda"),
                  req_to_token=torch.arange((n + 1) * context, dtype=i32, device="cuda"),
                  full_to_swa=torch.arange((n + 1) * context + page + 1, device="cuda"),
                  out_cache_loc=torch.arange(n, device="cuda"))
    outputs = {name: torch.zeros(size, dtype=i64 if name == "swa_out_cache_loc" else i32,
                                 device="cuda")
               for name, size in dict(cache_seqlens=n, cu_seqlens_k=n + 1, cu_seqlens_q=n + 1,
                                      page_table=n * pages, swa_page_table=n * pages,
                                      swa_out_cache_loc=n + 8).items()}
    return Rebuild(case, inputs, outputs)


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
