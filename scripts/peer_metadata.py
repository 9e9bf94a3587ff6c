"""The peers of the metadata kernel for compare_peers.py: bench_metadata's inputs as tensors, rebuilt by
PyTorch's operations or a Triton kernel, and their GPU and host times as bench_metadata takes ours.
"""
import importlib.util
import inspect
import pathlib
import time

import numpy as np
import torch
from pytorch_rebuild import Rebuild

# As in harness/microbench/bench_metadata.cu: batch, context, page, SWA, query mode.
SHAPES = [(1, 8192, 64, False, "preset"), (1, 8192, 64, True, "preset"),
          (8, 32768, 64, False, "preset"), (8, 32768, 64, True, "cumsum"),
          (8, 32768, 64, True, "strided"), (32, 32768, 64, False, "preset"),
          (32, 32768, 64, True, "preset"), (64, 131072, 64, False, "preset"),
          (64, 131072, 64, True, "preset"), (256, 32768, 16, False, "preset"),
          (256, 32768, 16, True, "preset"), (64, 131072, 16, False, "preset"),
          (64, 131072, 16, True, "preset")]
PHASES = {"preset": "normal_decode", "cumsum": "draft_extend_cumsum",
          "strided": "draft_extend_strided"}
REBUILDS = 20  # input sets of a shape, and rebuilds in a graph


def name_of(shape):
    batch, context, page, swa, mode = shape
    return f"bs{batch}/ctx{context}/page{page}/{'swa' if swa else 'full'}/{mode}"


def hashed(values):
    """splitmix64's finaliser, as bench_metadata_inputs.cu."""
    x = np.asarray(values, dtype=np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return x ^ (x >> np.uint64(31))


def host_inputs(shape):
    """What bench_metadata rebuilds from: first slot of each page, mapping, and by set the lengths,
    pool rows and locations."""
    batch, context, page, swa, _mode = shape
    slots = max(batch * context, 1 << 21)
    rows = REBUILDS * batch
    pages = np.arange(context // page, dtype=np.uint64)
    at = (np.arange(rows, dtype=np.uint64) * np.uint64(context))[:, None] + pages + np.uint64(1)
    first = (hashed(at) % np.uint64(slots // page) * np.uint64(page)).astype(np.int32)
    mapping = None
    if swa:
        entries = np.arange(slots + page + 1, dtype=np.uint64)
        mapping = (hashed(entries + np.uint64(77)) % np.uint64(slots)).astype(np.int64)
        mapping[-1] = -1
    k = np.arange(rows, dtype=np.uint64)
    spread = np.uint64(context - context // 4 + 1)
    lengths = context // 4 + (hashed(k + np.uint64(1 << 32)) % spread).astype(np.int64)
    locations = (hashed(k + np.uint64(2 << 32)) % np.uint64(slots)).astype(np.int64)
    pool_rows = (k * np.uint64(7919) % np.uint64(rows)).astype(np.int64)
    return first, mapping, [part.reshape(REBUILDS, batch)
                            for part in (lengths, pool_rows, locations)]


class Inputs:
    """The tensors of a shape: one Rebuild a set, outputs shared."""

    def __init__(self, shape):
        batch, context, page, swa, mode = shape
        self.shape = shape
        first, mapping, (lengths, rows, locations) = host_inputs(shape)
        tokens = torch.arange(page, dtype=torch.int32, device="cuda")
        self.req_to_token = (torch.from_numpy(first).cuda()[:, :, None] + tokens).reshape(-1)
        width = context // page
        self.mapping = torch.from_numpy(mapping).cuda() if swa else torch.zeros(
            1, dtype=torch.int64, device="cuda")
        i32 = torch.int32
        self.out = {name: torch.zeros(size, dtype=dtype, device="cuda") for name, size, dtype in (
            ("cache_seqlens", batch, i32), ("cu_seqlens_k", batch + 1, i32),
            ("cu_seqlens_q", batch + 1, i32), ("page_table", batch * width, i32),
            ("swa_page_table", batch * width, i32), ("swa_out_cache_loc", batch + 16, torch.int64))}
        case = dict(phase=PHASES[mode], batch_size=batch, page_size=page, max_seq_pages=width,
                    q_stride=4, seqlen_offset=0, pool_rows=REBUILDS * batch,
                    req_to_token_stride=context, page_table_stride=width,
                    swa_page_table_stride=width, swa=swa, has_out_cache_loc=swa,
                    num_out_tokens=batch)
        kind = i32 if mode == "preset" else torch.int64
        self.lengths = lengths
        self.rebuilds = [Rebuild(case, dict(
            req_pool_indices=torch.from_numpy(rows[s].copy()).cuda(),
            seq_lens=torch.from_numpy(lengths[s].copy()).cuda().to(kind),
            seq_lens_cpu=torch.from_numpy(lengths[s].copy()),
            q_lens=torch.full((batch,), 4, dtype=i32, device="cuda"),
            req_to_token=self.req_to_token, full_to_swa=self.mapping,
            out_cache_loc=torch.from_numpy(locations[s].copy()).cuda()), self.out)
            for s in range(REBUILDS)]

    def clear(self):
        for tensor in self.out.values():
            tensor.zero_()

    def checksum(self):
        """Of the live outputs of set 0, as MetadataInputs::checksum."""
        batch, context, page, swa, mode = self.shape
        width = context // page
        live = torch.from_numpy(-(-self.lengths[0] // page)).cuda()
        columns = torch.arange(width, device="cuda")
        weights = (1 + columns % 7) * (columns[None, :] < live[:, None])
        total = (self.out["page_table"].view(batch, width) * weights).sum()
        if swa:
            total += 3 * (self.out["swa_page_table"].view(batch, width) * weights).sum()
            total += 7 * self.out["swa_out_cache_loc"][:batch].sum()
        total += self.out["cache_seqlens"].sum() + 5 * self.out["cu_seqlens_k"].sum()
        if mode != "preset":
            total += 11 * self.out["cu_seqlens_q"].sum()
        return int(total)


def triton_kernel(path):
    """The update function and where it comes from, or None and why not."""
    if path is not None:
        spec = importlib.util.spec_from_file_location("triton_module", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.update, pathlib.Path(path).name
    try:
        from sglang.srt.layers.attention import trtllm_mha_graph_metadata as module
        return module.update_trtllm_mha_graph_metadata, "installed SGLang"
    except ImportError:
        return None, "no SGLang is installed and no --triton-module was given"


def triton_call(update, rebuild):
    """A call of `update` with the arguments that it knows; TypeError when it needs others."""
    case, inp, out = rebuild.case, rebuild.inp, rebuild.out
    swa, batch = case["swa"], case["batch_size"]
    given = dict(
        req_pool_indices=inp["req_pool_indices"], seq_lens=inp["seq_lens"],
        req_to_token=rebuild.slots, cache_seqlens=out["cache_seqlens"],
        cu_seqlens_k=out["cu_seqlens_k"], page_table=rebuild.page_table, bs=batch,
        seqlen_offset=0, max_seq_pages=case["max_seq_pages"], page_size=case["page_size"],
        swa_mapping=inp["full_to_swa"] if swa else None, swa_page_table=rebuild.swa_page_table,
        out_cache_loc=inp["out_cache_loc"] if swa else None,
        swa_out_cache_loc=out["swa_out_cache_loc"] if swa else None,
        cu_seqlens_q=out["cu_seqlens_q"], qlens=inp["q_lens"], q_stride=case["q_stride"],
        q_mode=["normal_decode", "draft_extend_cumsum", "draft_extend_strided"].index(
            case["phase"]))
    known = inspect.signature(update).parameters
    unknown = [n for n, p in known.items() if n not in given and p.default is p.empty]
    if unknown:
        raise TypeError(f"its parameters {', '.join(unknown)} are not known here")
    arguments = {n: value for n, value in given.items() if n in known}
    return lambda: update(**arguments)


class GpuTimer:
    def __init__(self):
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.zeros(l2, dtype=torch.int32, device="cuda")  # 4 * L2 bytes
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def graph(self, calls):
        for call in calls:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        return graph

    def cold_us(self, graph):
        """One replay with L2 emptied, behind a wait that covers the host's part."""
        self.flush.max()
        torch.cuda._sleep(50000)
        self.begin.record()
        graph.replay()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) * 1000 / REBUILDS


def host_us(calls):
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for call in calls:
        call()
    elapsed = time.perf_counter_ns() - begin
    torch.cuda.synchronize()
    return elapsed / 1000 / len(calls)
