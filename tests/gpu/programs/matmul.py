"""Print the TFLOP/s of a plain torch.matmul: what `bench compute` is compared with."""

import time

import torch

SIZE, TIMES = 8192, 200
a, b = (torch.randn(SIZE, SIZE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
for times in (TIMES, 2 * TIMES):  # the first of them warms up
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        a @ b
    torch.cuda.synchronize()
print(2 * SIZE**3 * times / (time.perf_counter() - began) / 1e12)
