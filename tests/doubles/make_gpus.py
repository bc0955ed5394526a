"""Write the folders under `gpus/` that the doubles answer from: eight H100 SXM, well and sick.

Made by us after the formats of real answers (driver 550); run it again after a change:
`python tests/doubles/make_gpus.py`. What is wrong with `sick8`: GPU 0 has uncorrected ECC errors,
GPU 1 has one inactive NVLink, GPU 3 a pending row remap (and its Xid 63), GPU 5 is at 93 C and in a
hardware thermal slowdown.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent / "gpus"
_BUSES = ("19", "3B", "4C", "5D", "9B", "BB", "CB", "DB")
_NAME = "NVIDIA H100 80GB HBM3"
_DRIVER, _CUDA = "550.127.08", "12.4"
_SLOWDOWN_C = 87


def main() -> None:
    """Write both folders."""
    for folder, sick in (("healthy8", False), ("sick8", True)):
        gpus = [_gpu(index, sick=sick) for index in range(8)]
        texts = {
            "gpus.csv": _csv(gpus),
            "q.txt": _query(gpus),
            "nvlink.txt": _nvlink(gpus, sick=sick),
            "nvlink_errors.txt": _nvlink_errors(gpus),
            "topo.txt": _topo(),
            "processes.csv": "pid, process_name, used_memory, gpu_uuid\n",
            "dmesg.txt": _dmesg(sick=sick),
        }
        (_HERE / folder).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (_HERE / folder / name).write_text(text, encoding="utf-8")


def _gpu(index: int, *, sick: bool) -> dict[str, str]:
    hot, remap, ecc = (sick and index == 5), (sick and index == 3), (sick and index == 0)
    degrees = 93 if hot else 31 + index
    return {
        "index": str(index),
        "name": _NAME,
        "uuid": f"GPU-0000000{index}-1111-2222-3333-444444444444",
        "pci.bus_id": f"00000000:{_BUSES[index]}:00.0",
        "driver_version": _DRIVER,
        "vbios_version": "96.00.99.00.01",
        "count": "8",
        "persistence_mode": "Enabled",
        "mig.mode.current": "Disabled",
        "clocks_event_reasons.active": f"0x{0x48 if hot else 0x1:016X}",
        "temperature.gpu": str(degrees),
        "temperature.gpu.tlimit": str(_SLOWDOWN_C - 2 - degrees),
        "temperature.memory": str(degrees + 8),
        "enforced.power.limit": "700.00",
        "power.limit": "700.00",
        "power.default_limit": "700.00",
        "power.draw": "71.20",
        "pcie.link.gen.current": "5",
        "pcie.link.gen.max": "5",
        "pcie.link.width.current": "16",
        "pcie.link.width.max": "16",
        "utilization.gpu": "0",
        "memory.total": "81559",
        "memory.used": "1",
        "ecc.mode.current": "Enabled",
        "ecc.errors.uncorrected.volatile.total": "2" if ecc else "0",
        "ecc.errors.uncorrected.aggregate.total": "2" if ecc else "0",
        "retired_pages.single_bit_ecc.count": "[N/A]",
        "retired_pages.double_bit.count": "[N/A]",
        "retired_pages.pending": "[N/A]",
        "remapped_rows.uncorrectable": "1" if remap else "0",
        "remapped_rows.pending": "Yes" if remap else "No",
        "remapped_rows.failure": "No",
        "fabric.state": "Completed",
        "fabric.status": "Success",
    }


def _csv(gpus: list[dict[str, str]]) -> str:
    return "".join(", ".join(row) + "\n" for row in [list(gpus[0]), *(g.values() for g in gpus)])


def _query(gpus: list[dict[str, str]]) -> str:
    lines = [
        "",
        "==============NVSMI LOG==============",
        "",
        _line(0, "Timestamp", "Sat Nov 21 12:00:00 2026"),
        _line(0, "Driver Version", _DRIVER),
        _line(0, "CUDA Version", _CUDA),
        "",
        _line(0, "Attached GPUs", str(len(gpus))),
    ]
    for gpu in gpus:
        mask = int(gpu["clocks_event_reasons.active"], 16)
        ecc = gpu["ecc.errors.uncorrected.volatile.total"]
        lines += [
            f"GPU {gpu['pci.bus_id']}",
            _line(4, "Product Name", gpu["name"]),
            _line(4, "Persistence Mode", "Enabled"),
            "    MIG Mode",
            _line(8, "Current", "Disabled"),
            _line(4, "GPU UUID", gpu["uuid"]),
            _line(4, "VBIOS Version", gpu["vbios_version"]),
            "    GPU Reset Status",
            _line(8, "Reset Required", "No"),
            "    PCI",
            "        GPU Link Info",
            "            PCIe Generation",
            _line(16, "Max", "5"),
            _line(16, "Current", "5"),
            "            Link Width",
            _line(16, "Max", "16x"),
            _line(16, "Current", "16x"),
            "    Clocks Event Reasons",
            _line(8, "Idle", _active(mask & 0x1)),
            _line(8, "SW Power Cap", _active(mask & 0x4)),
            _line(8, "HW Slowdown", _active(mask & 0x8)),
            _line(12, "HW Thermal Slowdown", _active(mask & 0x40)),
            _line(12, "HW Power Brake Slowdown", _active(mask & 0x80)),
            _line(8, "SW Thermal Slowdown", _active(mask & 0x20)),
            "    FB Memory Usage",
            _line(8, "Total", "81559 MiB"),
            _line(8, "Used", "1 MiB"),
            "    Utilization",
            _line(8, "Gpu", "0 %"),
            "    ECC Mode",
            _line(8, "Current", "Enabled"),
            "    ECC Errors",
            "        Volatile",
            _line(12, "DRAM Uncorrectable", ecc),
            "        Aggregate",
            _line(12, "DRAM Uncorrectable", ecc),
            "    Retired Pages",
            _line(8, "Single Bit ECC", "N/A"),
            _line(8, "Double Bit ECC", "N/A"),
            _line(8, "Pending Page Blacklist", "N/A"),
            "    Remapped Rows",
            _line(8, "Correctable Error", "0"),
            _line(8, "Uncorrectable Error", gpu["remapped_rows.uncorrectable"]),
            _line(8, "Pending", gpu["remapped_rows.pending"]),
            _line(8, "Remapping Failure Occurred", "No"),
            "    Temperature",
            _line(8, "GPU Current Temp", f"{gpu['temperature.gpu']} C"),
            _line(8, "GPU T.Limit Temp", f"{gpu['temperature.gpu.tlimit']} C"),
            _line(8, "GPU Shutdown T.Limit Temp", "-8 C"),
            _line(8, "GPU Slowdown T.Limit Temp", "-2 C"),
            _line(8, "GPU Max Operating T.Limit Temp", "0 C"),
            "    GPU Power Readings",
            _line(8, "Current Power Limit", "700.00 W"),
            _line(8, "Default Power Limit", "700.00 W"),
            "    Fabric",
            _line(8, "State", "Completed"),
            _line(8, "Status", "Success"),
            _line(4, "Processes", "None"),
            "",
        ]
    return "\n".join(lines) + "\n"


def _line(indent: int, name: str, value: str) -> str:
    return f"{' ' * indent}{name}".ljust(50) + f" : {value}"


def _active(bit: int) -> str:
    return "Active" if bit else "Not Active"


def _nvlink(gpus: list[dict[str, str]], *, sick: bool) -> str:
    lines = []
    for gpu in gpus:
        lines.append(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")
        for link in range(18):
            down = sick and gpu["index"] == "1" and link == 7
            lines.append(f"\t Link {link}: {'<inactive>' if down else '26.562 GB/s'}")
    return "\n".join(lines) + "\n"


def _nvlink_errors(gpus: list[dict[str, str]]) -> str:
    lines = []
    for gpu in gpus:
        lines.append(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")
        for link in range(18):
            lines += [f"\t Link {link}: {kind} Errors: 0" for kind in ("Replay", "Recovery", "CRC")]
            lines.append("")
    return "\n".join(lines) + "\n"


def _topo() -> str:
    """Return an HGX H100: one 400G NIC beside each GPU, four switches a socket.

    The header is underlined and cells end in tabs as a real one's do.
    """
    names = [f"GPU{i}" for i in range(8)] + [f"NIC{i}" for i in range(8)]
    title = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    rows = [f"\x1b[4m{title}\x1b[0m"]
    for mine in names:
        cells = [mine, *(_link(mine, other) for other in names)]
        if mine.startswith("GPU"):
            first = int(mine[3:]) < 4
            cells += ["0-47,96-143" if first else "48-95,144-191", "0" if first else "1", "\tN/A"]
        else:
            cells += [""]
        rows.append("\t".join(cells))
    legend = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

"""  # noqa: E501 - as nvidia-smi prints it
    return "\n".join(rows) + "\n" + legend + "".join(f"  NIC{i}: mlx5_{i}\n" for i in range(8))


def _link(mine: str, other: str) -> str:
    if mine == other:
        return " X "
    if mine[:3] == other[:3] == "GPU":
        return "NV18"
    if mine[3:] == other[3:]:
        return "PXB"
    return "NODE" if (int(mine[3:]) < 4) == (int(other[3:]) < 4) else "SYS"


def _dmesg(*, sick: bool) -> str:
    lines = [
        "[    0.000000] Linux version 5.15.0-112-generic (buildd@lcy02)",
        "[   21.310052] nvidia: loading out-of-tree module taints kernel.",
        f"[   21.871203] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {_DRIVER}",
    ]
    if sick:
        lines.append(
            "[81234.512345] NVRM: Xid (PCI:0000:5d:00): 63, pid='<unknown>', name=<unknown>, "
            "Row Remapper: New row marked for remapping, reset gpu to activate."
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
