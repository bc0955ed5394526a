"""The figures of known GPUs, and their other names.

Columns: name; architecture; memory as sold (GB); what CUDA or HIP reports as the total (GiB);
dense bf16, fp16 and fp8 peaks (TFLOP/s); memory bandwidth (GB/s); NCCL bus bandwidth over NVLink or
xGMI (GB/s); GPUs that these links join, where that is not the node; PCIe generation; the fastest
bf16 product measured (TFLOP/s). `-` is for what the GPU does not have, or nobody has measured.

Sources. Peaks: stas00/ml-engineering compute/accelerator/README.md, pytorch/torchtitan
torchtitan/tools/utils.py, cli99/llm-analysis gpu_configs; data sheets for the RTX, L and Ada cards,
whose peaks are those with fp32 accumulation (an RTX 4090 has 165, not 330, for training). Bus
bandwidth: NVIDIA/nccl src/graph/topo.h (per link, times the links); 70 % of the links' sum for the
MI300 family, as RCCL reaches it. Measured products: stas00/ml-engineering (MAMF finder). Reported
totals: the messages of torch when such a card is full ("has a total capacity of 79.25 GiB"); they
are less than the name says by ECC and by what the driver keeps. An A10G is sold with 125 or
70 TFLOP/s, depending on who sells it: the lower figure is the one that it holds.
An MI250X is two devices: the table has the card, `mi250x-gcd` one half of it.
"""

from __future__ import annotations

TABLE = """
V100-SXM2-16GB         sm70    16  15.77     -   125     -   900  120  -  3      -
V100-SXM2-32GB         sm70    32  31.73     -   125     -   900  120  -  3      -
V100-PCIe-32GB         sm70    32  31.73     -   112     -   900    -  -  3      -
T4-16GB                sm75    16  14.56     -    65     -   320    -  -  3      -
A10-24GB               sm86    24  22.05   125   125     -   600    -  -  4      -
A10G-24GB              sm86    24  22.05    70    70     -   600    -  -  4      -
A40-48GB               sm86    48  44.34 149.7 149.7     -   696   48  2  4      -
RTX-A6000              sm86    48  47.40 154.8 154.8     -   768   48  2  4      -
RTX-3090               sm86    24  23.60    71    71     -   936   48  2  4      -
RTX-4090               sm89    24  23.60 165.2 165.2 330.3  1008    -  -  4      -
RTX-5090               sm120   32  31.36 209.5 209.5   419  1792    -  -  5      -
RTX-6000-Ada           sm89    48  47.40 364.2 364.2 728.5   960    -  -  4      -
RTX-PRO-6000-Blackwell sm120   96  94.90 503.8 503.8  1007  1792    -  -  5      -
L4-24GB                sm89    24  22.03   121   121   242   300    -  -  4      -
L40-48GB               sm89    48  44.39   181   181   362   864    -  -  4      -
L40S-48GB              sm89    48  44.39   362   362   733   864    -  -  4      -
A100-SXM4-40GB         sm80    40  39.39   312   312     -  1555  240  -  4  271.2
A100-SXM4-80GB         sm80    80  79.15   312   312     -  2039  240  -  4  271.2
A100-PCIe-40GB         sm80    40  39.39   312   312     -  1555    -  -  4  252.9
A100-PCIe-80GB         sm80    80  79.15   312   312     -  1935    -  -  4  252.9
A800-SXM4-80GB         sm80    80  79.15   312   312     -  2039  160  -  4      -
H100-SXM5-80GB         sm90    80  79.10   989   989  1979  3350  371  -  5  794.5
H100-SXM-96GB-500W     sm90    96  94.99   989   989  1979  2400  371  -  5      -
H100-PCIe-80GB         sm90    80  79.10   756   756  1513  2000    -  -  5      -
H100-NVL-94GB          sm90    94  93.00   835   835  1671  3938  245  2  5      -
H800-SXM5-80GB         sm90    80  79.10   989   989  1979  3350  165  -  5      -
H20-96GB               sm90    96  95.00   148   148   296  4000  371  -  5      -
H200-SXM-141GB         sm90   141 139.80   989   989  1979  4800  371  -  5  794.5
GH200-96GB             sm90    96  94.50   989   989  1979  4000  371  -  5  828.6
GH200-141GB            sm90   141 139.80   989   989  1979  4800  371  -  5  828.6
B200-SXM-180GB         sm100  180 178.35  2250  2250  4500  8000  722  -  6   1745
B300-SXM-288GB         sm103  288 267.60  2250  2250  4500  8000  722  -  6   1769
GB200-186GB            sm100  186 184.00  2500  2500  5000  8000  722 72  6   1822
GB300-288GB            sm103  288 276.00  2500  2500  5000  8000  722 72  6      -
MI210-64GB             gfx90a  64  63.98   181   181     -  1638  105  -  4      -
MI250X-128GB           gfx90a 128 127.97   383   383     -  3277  140  -  4      -
MI250X-GCD-64GB        gfx90a  64  63.98 191.5 191.5     -  1638   70  -  4      -
MI300X-192GB           gfx942 192 191.98  1307  1307  2615  5300  310  -  5  668.4
MI325X-256GB           gfx942 256 255.98  1300  1300  2610  6000  310  -  5  784.9
MI355X-288GB           gfx950 288 287.98  2500  2500  5000  8000  375  -  5   1565
"""

ALIASES = {
    "v100": "V100-SXM2-32GB",
    "v100-16": "V100-SXM2-16GB",
    "v100-16gb": "V100-SXM2-16GB",
    "v100-32": "V100-SXM2-32GB",
    "v100-32gb": "V100-SXM2-32GB",
    "v100-pcie": "V100-PCIe-32GB",
    "t4": "T4-16GB",
    "a10": "A10-24GB",
    "a10g": "A10G-24GB",
    "a40": "A40-48GB",
    "a6000": "RTX-A6000",
    "3090": "RTX-3090",
    "4090": "RTX-4090",
    "5090": "RTX-5090",
    "6000-ada": "RTX-6000-Ada",
    "rtx-6000-ada-generation": "RTX-6000-Ada",
    "rtx-pro-6000": "RTX-PRO-6000-Blackwell",
    "pro-6000": "RTX-PRO-6000-Blackwell",
    "rtx-pro-6000-blackwell-server-edition": "RTX-PRO-6000-Blackwell",
    "l4": "L4-24GB",
    "l40": "L40-48GB",
    "l40s": "L40S-48GB",
    "a100": "A100-SXM4-80GB",
    "a100-80": "A100-SXM4-80GB",
    "a100-80gb": "A100-SXM4-80GB",
    "a100-sxm": "A100-SXM4-80GB",
    "a100-sxm4": "A100-SXM4-80GB",
    "a100-sxm-80gb": "A100-SXM4-80GB",
    "a100-40": "A100-SXM4-40GB",
    "a100-40gb": "A100-SXM4-40GB",
    "a100-sxm-40gb": "A100-SXM4-40GB",
    "a100-pcie": "A100-PCIe-80GB",
    "a100-80gb-pcie": "A100-PCIe-80GB",
    "a800": "A800-SXM4-80GB",
    "a800-80gb": "A800-SXM4-80GB",
    "h100": "H100-SXM5-80GB",
    "h100-80": "H100-SXM5-80GB",
    "h100-80gb": "H100-SXM5-80GB",
    "h100-sxm": "H100-SXM5-80GB",
    "h100-sxm5": "H100-SXM5-80GB",
    "h100-80gb-hbm3": "H100-SXM5-80GB",
    "h100-pcie": "H100-PCIe-80GB",
    "h100-nvl": "H100-NVL-94GB",
    "h800": "H800-SXM5-80GB",
    "h20": "H20-96GB",
    "h200": "H200-SXM-141GB",
    "h200-141gb": "H200-SXM-141GB",
    "gh200": "GH200-96GB",
    "gh200-480gb": "GH200-96GB",
    "gh200-144g-hbm3e": "GH200-141GB",
    "b200": "B200-SXM-180GB",
    "b200-180gb": "B200-SXM-180GB",
    "b300": "B300-SXM-288GB",
    "gb200": "GB200-186GB",
    "gb300": "GB300-288GB",
    "mi210": "MI210-64GB",
    "mi250x": "MI250X-128GB",
    "mi250": "MI250X-128GB",
    "mi250x-gcd": "MI250X-GCD-64GB",
    "mi300x": "MI300X-192GB",
    "mi325x": "MI325X-256GB",
    "mi355x": "MI355X-288GB",
}
"""What is meant by a name that says less; with the vendor's name before it, as devices report."""
