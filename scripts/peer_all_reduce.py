"""The all-reduces of installed packages through their Python operators, one process a GPU.

all_reduce_peers(gpus, sizes) -> {peer: {bytes: us}, or why it was not measured}. GPU time of one of
100 all-reduces in a CUDA graph, bf16, after its sums were checked; as bench_all_reduce times ours.
"""
import importlib.util
import os
import statistics
import tempfile
import traceback

import torch
import torch.distributed as dist

NODES = 100
REPLAYS = 20


def nccl_of_pytorch(_cpu_group, _device):
    def all_reduce(x):
        dist.all_reduce(x)
        return x
    return all_reduce, None, lambda _bytes: True


def custom_all_reduce(package):
    """The CustomAllreduce that vLLM and SGLang share."""
    path = {"vllm": "vllm.distributed.device_communicators.custom_all_reduce",
            "sglang": "sglang.srt.distributed.device_communicators.custom_all_reduce"}[package]

    def make(cpu_group, device):
        module = importlib.import_module(path)
        custom = module.CustomAllreduce(cpu_group, device)
        if custom.disabled:
            raise RuntimeError(f"{package}'s custom all-reduce turned itself off here")

        def takes(size):
            return custom.should_custom_ar(torch.empty(size // 2, dtype=torch.bfloat16,
                                                       device=device))
        return custom.custom_all_reduce, custom.capture, takes
    return make


PEERS = {"NCCL of PyTorch": (None, nccl_of_pytorch),
         "vLLM custom all-reduce": ("vllm", custom_all_reduce("vllm")),
         "SGLang custom all-reduce": ("sglang", custom_all_reduce("sglang"))}


def measure(make, cpu_group, device, sizes):
    rank, world = dist.get_rank(), dist.get_world_size()
    all_reduce, capture, takes = make(cpu_group, device)
    results = {}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for size in sizes:
        if not takes(size):
            continue
        values = torch.arange(size // 2, device=device) % 7 - 3
        x = (values + rank).to(torch.bfloat16)
        expected = (values * world + world * (world - 1) // 2).to(torch.bfloat16)
        all_reduce(x.clone())  # connects
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()

        def enqueue():
            # In place for NCCL: its sums grow, which costs the same.
            out = x
            for _ in range(NODES):
                out = all_reduce(x)
            return out
        if capture is None:
            checked = all_reduce(x.clone())
            with torch.cuda.graph(graph):
                enqueue()
        else:
            with capture(), torch.cuda.graph(graph):
                checked = enqueue()
            graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(checked, expected):
            raise RuntimeError(f"wrong sums at {size} bytes")
        times = []
        for _ in range(REPLAYS + 3):
            dist.barrier(group=cpu_group)
            graph.replay()  # lines the ranks up
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / NODES)
        results[size] = statistics.median(times[3:])
    return results


def worker(rank, world, store, sizes, peers, queue):
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world,
                            device_id=device)
    cpu_group = dist.new_group(backend="gloo")
    for peer in peers:
        try:
            result = measure(PEERS[peer][1], cpu_group, device, sizes)
        except Exception as error:
            result = f"{type(error).__name__}: {error}".split("\n")[0]
            if os.environ.get("TPJITTER_PEER_TRACE"):
                traceback.print_exc()
        if rank == 0:
            queue.put((peer, result))
        dist.barrier(group=cpu_group)
    dist.destroy_process_group()


def all_reduce_peers(gpus, sizes):
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast stays off, as for ours
    results, peers = {}, []
    for peer, (package, _make) in PEERS.items():
        if package is not None and importlib.util.find_spec(package) is None:
            results[peer] = "not installed"
        else:
            peers.append(peer)
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [context.Process(target=worker, args=(r, gpus, store, sizes, peers, queue))
                 for r in range(gpus)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(180)
            if process.is_alive():
                process.kill()
        while not queue.empty():
            peer, result = queue.get()
            results[peer] = result
    return {peer: results.get(peer, "its process ended without a result") for peer in PEERS}
