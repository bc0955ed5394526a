"""Ask for more than any GPU has."""

import torch

kept = [torch.empty(1 << 32, dtype=torch.uint8, device="cuda") for _ in range(1000)]
