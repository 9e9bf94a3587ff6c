"""One rebuild of decode attention metadata with PyTorch's own operations, op by op, as the engine's
backend did it before it was fused. Shared by verify_with_pytorch.py and calibrate_dispatch.py.

run(mark) calls mark(kind) after each dispatcher call; the kinds are those of kernels/tensor_ops.h.
"""
import torch

PHASES = ["normal_decode", "draft_decode", "target_verify", "draft_extend_cumsum",
          "draft_extend_strided"]
KINDS = ["view", "host", "kernel", "copy", "scan", "index", "index_cast", "index_rows", "read"]


def no_mark(_kind):
    pass


class Rebuild:
    """One rebuild's tensors. `case`: phase and sizes; `inputs` and `outputs`: tensors by name."""

    def __init__(self, case, inputs, outputs):
        self.case, self.inp, self.out = case, inputs, outputs
        n = case["batch_size"]
        self.strided = torch.arange(case["max_seq_pages"], device="cuda") * case["page_size"]
        self.slots = inputs["req_to_token"].view(case["pool_rows"], case["req_to_token_stride"])
        self.page_table = outputs["page_table"].view(n, case["page_table_stride"])
        self.swa_page_table = None
        if case["swa"]:
            self.swa_page_table = outputs["swa_page_table"].view(n, case["swa_page_table_stride"])

    def longest(self, seq_lens, cpu, cache, mark):
        """Fills cache_seqlens; the longest request's tokens."""
        phase, offset = self.case["phase"], self.case["seqlen_offset"]
        if phase == "draft_decode":
            lengths = seq_lens + (offset - 1)
            mark("kernel")
            lengths = lengths + 1
            mark("kernel")
            cache.copy_(lengths)
            mark("copy")
            largest = cache.max()
            mark("kernel")
            longest = largest.item()
            mark("read")
            return longest
        if phase == "target_verify":
            lengths = seq_lens + offset
            mark("kernel")
            cache.copy_(lengths)
            mark("copy")
        else:
            cache.copy_(seq_lens)
            mark("copy" if seq_lens.dtype == torch.int32 else "kernel")
        for _ in range(1 if phase == "normal_decode" else 2):
            largest = cpu.max()
            mark("host")
            longest = largest.item()
            mark("host")
        return longest + offset if phase == "target_verify" else longest

    def queries(self, mark):
        phase, n, stride = self.case["phase"], self.case["batch_size"], self.case["q_stride"]
        if phase == "draft_extend_cumsum":
            q_lens = self.inp["q_lens"][:n]
            mark("view")
            tail = self.out["cu_seqlens_q"][1:]
            mark("view")
            sums = torch.cumsum(q_lens, dim=0, dtype=torch.int32)
            mark("scan")
            tail.copy_(sums)
            mark("copy")
        elif phase == "draft_extend_strided":
            tail = self.out["cu_seqlens_q"][1:]
            mark("view")
            ends = torch.arange(stride, n * stride + 1, stride, dtype=torch.int32, device="cuda")
            mark("kernel")
            tail.copy_(ends)
            mark("copy")

    def page_tables(self, rows, pages, mark):
        """page_table[:, :pages], then swa_page_table[:, :pages] where there is one."""
        n, page = self.case["batch_size"], self.case["page_size"]
        columns = self.strided[:pages]
        mark("view")
        if self.case["phase"] in ("normal_decode", "draft_decode"):
            columns = columns[None, :]
            mark("view")
        rows = rows[:, None]
        mark("view")
        slots = self.slots[rows, columns]
        mark("index_rows")
        table = self.page_table[:, :pages]
        mark("view")
        ids = slots // page
        mark("kernel")
        table.copy_(ids)
        mark("kernel")
        if self.swa_page_table is None:
            return
        flat = slots.reshape(-1)
        mark("view")
        mapped = self.inp["full_to_swa"][flat]
        mark("index_cast")
        mapped = mapped.reshape(n, pages)
        mark("view")
        mapped = mapped.to(torch.int32)
        mark("kernel")
        table = self.swa_page_table[:, :pages]
        mark("view")
        ids = mapped // page
        mark("kernel")
        table.copy_(ids)
        mark("kernel")

    def run(self, mark=no_mark):
        case, n = self.case, self.case["batch_size"]
        seq_lens = self.inp["seq_lens"][:n]
        mark("view")
        cpu = self.inp["seq_lens_cpu"][:n]
        mark("view")
        rows = self.inp["req_pool_indices"][:n]
        mark("view")
        cache = self.out["cache_seqlens"]
        if case["phase"] == "draft_decode":
            cache = cache[:n]
            mark("view")
        pages = -(-self.longest(seq_lens, cpu, cache, mark) // case["page_size"])
        tail = self.out["cu_seqlens_k"][1:]
        mark("view")
        sums = torch.cumsum(cache, dim=0, dtype=torch.int32)
        mark("scan")
        tail.copy_(sums)
        mark("copy")
        self.queries(mark)
        self.page_tables(rows, pages, mark)
        if not case["swa"] or not case["has_out_cache_loc"]:
            return
        live = case["num_out_tokens"]
        tail = self.out["swa_out_cache_loc"][live:]
        mark("view")
        tail.zero_()
        mark("kernel")
        head = self.out["swa_out_cache_loc"][:live]
        mark("view")
        locations = self.inp["full_to_swa"][self.inp["out_cache_loc"]]
        mark("index")
        head.copy_(locations)
        mark("copy")


def synthetic(phase, swa, n=8, page=64, context=2048, fewest=100, most=107):
    """A rebuild over made-up inputs: lengths from `fewest` to `most` tokens, int64 in draft-extend."""
    pages = context // page
    extend = phase.startswith("draft_extend")
    case = dict(phase=phase, batch_size=n, page_size=page, max_seq_pages=pages, q_stride=4,
                seqlen_offset={"draft_decode": 1, "target_verify": 4}.get(phase, 0),
                pool_rows=n + 1, req_to_token_stride=context, page_table_stride=pages,
                swa_page_table_stride=pages, swa=swa, has_out_cache_loc=swa, num_out_tokens=n)
    i32, i64 = torch.int32, torch.int64
    lengths = torch.linspace(fewest, most, n).to(i64)
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


def build_libtorch(folder=None):
    """Compiles scripts/libtorch_rebuild.cpp against this PyTorch: the same rebuild from C++."""
    import pathlib
    from torch.utils import cpp_extension
    here = pathlib.Path(__file__).resolve().parent
    return cpp_extension.load(
        name="libtorch_rebuild", sources=[str(here / "libtorch_rebuild.cpp")],
        extra_include_paths=[str(here.parent)],
        extra_cflags=["-std=c++20", "-O2", "-DTPJITTER_TORCH_CASTS_INDICES"],
        build_directory=folder)


def libtorch_rebuild(library, rebuild):
    """The rebuild of `library` (from build_libtorch) over the tensors of a Rebuild."""
    case = rebuild.case
    tensors = {name: rebuild.inp[name] for name in
               ("seq_lens", "seq_lens_cpu", "req_pool_indices", "q_lens")}
    tensors |= {name: rebuild.out[name] for name in
                ("cache_seqlens", "cu_seqlens_k", "cu_seqlens_q")}
    tensors |= dict(req_to_token=rebuild.slots, strided_indices=rebuild.strided,
                    page_table=rebuild.page_table)
    if case["swa"]:
        tensors |= dict(full_to_swa=rebuild.inp["full_to_swa"],
                        swa_page_table=rebuild.swa_page_table)
        if case["has_out_cache_loc"]:
            tensors |= dict(out_cache_loc=rebuild.inp["out_cache_loc"],
                            swa_out_cache_loc=rebuild.out["swa_out_cache_loc"])
    return library.Rebuild(PHASES.index(case["phase"]), tensors, case["batch_size"],
                           case["page_size"], case["seqlen_offset"], case["q_stride"])
