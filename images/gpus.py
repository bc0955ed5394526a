"""Print what torch in this image sees of GPUs and their driver, as JSON. It runs inside."""

import json
import os
import warnings
from pathlib import Path

import torch

messages = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    count = torch.cuda.device_count()
    try:
        if torch.version.cuda or torch.version.hip:
            torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        messages.append(str(error).splitlines()[0])
    messages += [str(warning.message).splitlines()[0] for warning in caught]
driver = Path("/proc/driver/nvidia/version")
document = {
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "hip": torch.version.hip,
    "count": count,
    "messages": messages,
    "devices": sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    + [path for path in ("/dev/kfd",) if Path(path).exists()],
    "driver": driver.read_text() if driver.exists() else "",
    "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
}
print(json.dumps(document))
