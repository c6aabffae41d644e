"""All meters of one or two GPUs under loads whose figures are known, and what each call costs: one JSON object.

`python tests/device/meters_run.py [FILE]` where torch sees a GPU; about 80 s. Beside what meters say stands what was
moved. FILE gets the object with all figures; what is printed has them with four digits.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import pynvml

from engine.meters.figures import Figures
from engine.meters.gpm import METRICS, Gpm
from engine.meters.gpu import GpuMeters
from engine.meters.network import NetworkMeters
from engine.meters.peaks import Asked, explained, peaks_of, percents
from engine.meters.process import OwnProcessor, ProcessMeters
from engine.meters.rank import GpuSource, RankMeters
from engine.nvml import Nvml, device_of, open_nvml

LOAD_S = 3.0
Load = Callable[[], float]


def main() -> None:
    """Measures, and prints; a part that fails says why and the others go on."""
    report: dict[str, Any] = {"torch": torch.__version__, "pynvml": getattr(pynvml, "__version__", "?")}
    for part in (machine, costs, fields, loads, windows, long_window, ranks, disturbance, live):
        began_s = time.perf_counter()
        try:
            report[part.__name__] = part()
        except Exception:  # noqa: BLE001 - told, and the next part is tried
            report[part.__name__] = {"error": traceback.format_exc()[-2000:]}
        report.setdefault("seconds", {})[part.__name__] = round(time.perf_counter() - began_s, 1)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(report, indent=1, default=str), "utf-8")
    print(json.dumps(_short(json.loads(json.dumps(report, default=str))), separators=(",", ":")), flush=True)


def _short(value: Any) -> Any:
    """The same with figures of four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value


def uuid_of(index: int) -> str:
    """As engine.report tells it."""
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def machine() -> dict[str, Any]:
    """What is here, and whether torch's order and NVML's are one."""
    began_s = time.perf_counter()
    nvml = open_nvml()
    opened_ms = 1000 * (time.perf_counter() - began_s)
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    network = NetworkMeters()
    return {
        "nvml_init_ms": opened_ms,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "nvml_uuids": [pynvml.nvmlDeviceGetUUID(handle) for handle in handles],
        "torch_uuids": [uuid_of(index) for index in range(torch.cuda.device_count())],
        "names": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "cpus": len(os.sched_getaffinity(0)),
        "mig": [nvml.told("nvmlDeviceGetMigMode", handle) for handle in handles],
        "peaks_told": [GpuMeters(nvml, uuid_of(i)).peaks().values for i in range(torch.cuda.device_count())],
        "pcie_now": [
            [nvml.told("nvmlDeviceGetCurrPcieLinkGeneration", h), nvml.told("nvmlDeviceGetCurrPcieLinkWidth", h)]
            for h in handles
        ],
        "pcie_most": [
            [nvml.told("nvmlDeviceGetMaxPcieLinkGeneration", h), nvml.told("nvmlDeviceGetMaxPcieLinkWidth", h)]
            for h in handles
        ],
        "nvlink_states": [
            [nvml.told("nvmlDeviceGetNvLinkState", handle, link) for link in range(18)] for handle in handles
        ],
        "network_ports": [str(port) for port in network.ports],
        "network_folders": [str(path) for path in Path("/sys/class").glob("net/*")]
        + [str(path) for path in Path("/sys/class").glob("infiniband/*")],
    }


def timed(call: Callable[[], object], times: int = 20) -> dict[str, Any]:
    """Milliseconds of one call, and what the last one gave."""
    spent: list[float] = []
    last: object = None
    for _ in range(times):
        began_s = time.perf_counter()
        try:
            last = call()
        except Exception as trouble:  # noqa: BLE001 - why it does not answer is what is asked
            last = f"{type(trouble).__name__}: {trouble}"
        spent.append(1000 * (time.perf_counter() - began_s))
    shown = str(last)[:200]
    return {"median_ms": round(statistics.median(spent), 4), "max_ms": round(max(spent), 4), "gave": shown}


def costs() -> dict[str, Any]:
    """What each call of NVML takes while the GPU multiplies."""
    nvml = open_nvml()
    device = device_of(nvml, uuid_of(0))
    handle = device.handle
    gpm = Gpm(nvml, device)
    source = GpuSource(uuid_of(0), asked=Asked())
    figures = source.read()
    network, own, process = NetworkMeters(), OwnProcessor(), ProcessMeters(os.getpid())
    calls: dict[str, Callable[[], object]] = {
        "device_of": lambda: device_of(nvml, uuid_of(0)),
        "gpm_sample_and_compare": gpm.sample,
        "gpm_sample": lambda: pynvml.nvmlGpmSampleGet(handle, gpm._newer),
        "memory": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle),
        "memory_v2": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2),
        "utilisation": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "energy": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "pcie_throughput_tx": lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, 0),
        "pcie_throughput_rx": lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, 1),
        "peaks": GpuMeters(nvml, uuid_of(0)).peaks,
        "gpu_meters_read": GpuMeters(nvml, uuid_of(0)).read,
        "network_read": network.read,
        "own_processor": own.pct,
        "process_read": process.read,
        "more": lambda: source.more(figures),
    }
    product()(1.0)
    torch.cuda.synchronize()
    found: dict[str, Any] = {}
    for name, call in calls.items():
        run_async(0.3)
        found[name] = timed(call, 10 if "throughput" in name else 20)
    torch.cuda.synchronize()
    return found


def fields() -> dict[str, Any]:
    """Fields of nvmlDeviceGetFieldValues, in the scopes that documentation and others name."""
    handle = device_of(open_nvml(), uuid_of(0)).handle
    everything = 0xFFFF_FFFF
    wanted = [(83, 0), (90, 0), (91, 0), (138, 0), (138, everything), (139, 0), (139, everything), (140, everything)]
    wanted += [(141, everything), (164, 0), (185, 0), (186, 0), (197, 0), (198, 0), (202, 0), (204, 0)]
    found: dict[str, Any] = {}
    for field, scope in wanted:
        name = f"{field}/{'all' if scope == everything else scope}"
        try:
            began_s = time.perf_counter()
            (told,) = pynvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])
            found[name] = {
                "return": int(told.nvmlReturn),
                "type": int(told.valueType),
                "ull": int(told.value.ullVal),
                "ui": int(told.value.uiVal),
                "ms": round(1000 * (time.perf_counter() - began_s), 3),
                "latency_us": int(told.latencyUsec),
            }
        except Exception as trouble:  # noqa: BLE001 - why it does not answer is what is asked
            found[name] = str(trouble)
    return found


def product() -> Callable[[float], float]:
    """Multiplies for some seconds; FLOP/s reached."""
    left = torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16)

    def run(seconds: float) -> float:
        return repeated(lambda: torch.mm(left, left), seconds, of_each=2 * 8192.0**3)

    return run


def run_async(seconds: float) -> None:
    """Queues about so many seconds of products, and waits for none."""
    left = torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16)
    for _ in range(int(seconds / 1.5e-3)):
        torch.mm(left, left)


def repeated(work: Callable[[], object], seconds: float, *, of_each: float) -> float:
    """Does it for so long; how much of it a second."""
    torch.cuda.synchronize()
    began_s, done = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        for _ in range(4):
            work()
        done += 4
        torch.cuda.synchronize()
    return done * of_each / (time.perf_counter() - began_s)


def loads() -> dict[str, Any]:
    """What meters say of loads that keep one thing busy, beside what was moved."""
    size = 1 << 30
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    here, there = (torch.empty(size, dtype=torch.uint8, device="cuda:0") for _ in range(2))
    rows: dict[str, tuple[Callable[[float], float], str]] = {
        "idle": (lambda seconds: time.sleep(seconds) or 0.0, ""),
        "matmul": (product(), "FLOP/s"),
        "copy_on_gpu": (lambda s: repeated(lambda: there.copy_(here), s, of_each=2.0 * size), "bytes/s read + written"),
        "host_to_gpu": (
            lambda s: repeated(lambda: here.copy_(pinned, non_blocking=True), s, of_each=size),
            "bytes/s: pcie rx",
        ),
        "gpu_to_host": (
            lambda s: repeated(lambda: pinned.copy_(here, non_blocking=True), s, of_each=size),
            "bytes/s: pcie tx",
        ),
    }
    if torch.cuda.device_count() > 1:
        other = torch.empty(size, dtype=torch.uint8, device="cuda:1")
        halves = [torch.ones(size // 4, device=f"cuda:{index}") for index in range(2)]
        rows["gpu_0_to_gpu_1"] = (
            lambda s: repeated(lambda: other.copy_(here, non_blocking=True), s, of_each=size),
            "bytes/s: nvlink tx of 0, rx of 1",
        )
        rows["nccl_all_reduce"] = (
            lambda s: repeated(lambda: torch.cuda.nccl.all_reduce(halves), s, of_each=size),
            "bytes/s each way: of 2 ranks as much as is reduced",
        )
    return {name: _loaded(load, unit) for name, (load, unit) in rows.items()}


def _loaded(load: Callable[[float], float], unit: str) -> dict[str, Any]:
    nvml = open_nvml()
    count = torch.cuda.device_count()
    meters = [GpuMeters(nvml, uuid_of(index)) for index in range(count)]
    by_counters = [GpuMeters(_WithoutGpm.of(nvml), uuid_of(index)) for index in range(count)]
    network = NetworkMeters()
    process = OwnProcessor()
    load(0.3)
    for each in (*meters, *by_counters):
        each.read()
    network.read(), process.pct()
    moved = load(LOAD_S)
    told = [each.read() for each in meters]
    counted = [each.read() for each in by_counters]
    net = network.read()
    return {
        "moved": moved,
        "unit": unit,
        "gpus": [_shown(each, meter) for each, meter in zip(told, meters, strict=True)],
        "by_counters": [_shown(each, meter) for each, meter in zip(counted, by_counters, strict=True)],
        "network": {**net.values, "reasons": net.reasons},
        "cpu_pct": process.pct(),
    }


def _shown(figures: Figures, meter: GpuMeters) -> dict[str, Any]:
    peaks = peaks_of("h200", told=meter.peaks().values)
    use = percents(figures.values, peaks)
    why = explained(use, figures.reasons) | dict(figures.reasons)
    known = {name: value for name, value in {**figures.values, **use}.items() if value is not None}
    return {**known, "source": meter.source, "reasons": why}


class _WithoutGpm:
    """NVML as it is before Hopper."""

    def __init__(self) -> None:
        self.NVMLError = pynvml.NVMLError

    def __getattr__(self, name: str) -> Any:
        if "Gpm" in name:
            raise AttributeError(name)
        return getattr(pynvml, name)

    @classmethod
    def of(cls, _: Nvml) -> Nvml:
        return Nvml(cls())


def windows() -> dict[str, Any]:
    """GPM over windows of some lengths while the GPU multiplies: from which on figures are true."""
    nvml = open_nvml()
    gpm = Gpm(nvml, device_of(nvml, uuid_of(0)))
    found: dict[str, Any] = {}
    for window_s in (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0):
        rows = []
        for _ in range(4):
            run_async(window_s + 0.3)
            time.sleep(0.1)
            gpm.sample()
            time.sleep(window_s)
            gpm.sample()
            rows.append([gpm._told.get(name) for name in ("sm_pct", "tensor_pct", "dram_pct")])
            torch.cuda.synchronize()
        found[str(window_s)] = rows
    return found


def long_window() -> dict[str, Any]:
    """Whether a window of 20 s gives the mean of those of 1 s within it: half busy with products, half with copies."""
    nvml = open_nvml()
    device = device_of(nvml, uuid_of(0))
    long, short = Gpm(nvml, device), Gpm(nvml, device)
    run, size = product(), 1 << 29
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    here = torch.empty(size, dtype=torch.uint8, device="cuda:0")
    long.sample(), short.sample()
    rows: list[dict[str, Any]] = []
    for second in range(20):
        if second % 2:
            run(1.0)
        else:
            repeated(lambda: here.copy_(pinned, non_blocking=True), 1.0, of_each=size)
        short.sample()
        rows.append(dict(short._told))
    long.sample()
    means = {}
    for name in METRICS:
        values = [row[name] for row in rows if isinstance(row[name], float)]
        means[name] = statistics.fmean(values) if values else [row[name] for row in rows][:2]
    return {"of_20_s": dict(long._told), "mean_of_20_of_1_s": means}


class _Kept:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def write(self, kind: str, **figures: Any) -> None:
        self.events.append({"kind": kind, "at_s": time.perf_counter(), **figures})


def ranks() -> dict[str, Any]:
    """The engine's own use: reports each second, what they cost where training goes on, when the event is there."""
    kept, spent, asked = _Kept(), [], []
    run = product()
    with RankMeters(uuid_of(0), kept, source=lambda: GpuSource(uuid_of(0), asked=Asked())) as meters:
        for _ in range(4):
            run(1.0)
            began_s = time.perf_counter()
            meters.report()
            spent.append(1000 * (time.perf_counter() - began_s))
            asked.append(began_s)
            meters.processor.pct()
    late = [1000 * (event["at_s"] - began_s) for event, began_s in zip(kept.events, asked, strict=False)]
    return {"report_ms": spent, "event_after_ms": late, "events": kept.events}


def disturbance() -> dict[str, Any]:
    """Small kernels launched one by one, with a report each 0.2 s and without: what the thread takes from the host."""
    small = torch.randn(64, 64, device="cuda:0")

    def launches(seconds: float, report: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        began_s = last_s = time.perf_counter()
        done = 0
        while (now_s := time.perf_counter()) - began_s < seconds:
            for _ in range(200):
                torch.add(small, small)
            done += 200
            if now_s - last_s >= 0.2:
                report()
                last_s = now_s
        torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - began_s) / done

    def nothing() -> None:
        """Reports nothing."""

    kept = _Kept()
    with RankMeters(uuid_of(0), kept, source=lambda: GpuSource(uuid_of(0), asked=Asked())) as meters:
        launches(0.5, nothing)
        pairs = [(launches(1.0, nothing), launches(1.0, meters.report)) for _ in range(4)]
    return {"us_a_launch_without_and_with": pairs, "events": len(kept.events)}


def live() -> dict[str, Any]:
    """`titan monitor`'s own use."""
    from titancli.monitor.live import LiveMeters
    from titancli.monitor.run_state import Rank

    host = os.uname().nodename
    seen = [
        Rank(rank=index, uuid=uuid_of(index), pid=os.getpid(), host=host, last_time=time.time())
        for index in range(torch.cuda.device_count())
    ]
    seen.append(Rank(rank=90, pid=os.getpid(), host=host, last_time=time.time()))
    seen.append(Rank(rank=91, uuid="GPU-00000000-0000-0000-0000-000000000000", host="elsewhere"))
    meters, rows = LiveMeters(), []
    for _ in range(3):
        run_async(1.0)
        began_s = time.perf_counter()
        found = meters.read(seen)
        rows.append({"ms": 1000 * (time.perf_counter() - began_s), "rows": found})
        torch.cuda.synchronize()
    meters.close()
    return {"reads": rows}


if __name__ == "__main__":
    main()
