"""Search for a learning rate with Ray Tune, on text that Ray Data prepares.

    clusterkit submit --framework ray --nodes 2 examples/tune_ray.py --steps 60

Each trial trains on one slot of the Ray cluster, as many at a time as there are, and all read the
same dataset, whose windows were cut on all nodes. Trials that lag behind are stopped (ASHA). With
`--checkpoint-dir`, a search that starts again keeps the trials that have ended.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import charlm
import numpy as np
import ray
import session
import torch
from ray import tune


def main() -> None:
    """Be the driver: prepare the data, search, say which trial was best."""
    arguments = session.parser(__doc__)
    arguments.add_argument("--rates", type=float, nargs="+", default=[1e-4, 1e-3, 3e-3, 1e-2])
    args = arguments.parse_args()
    ray.init()
    ray.data.DataContext.get_current().enable_progress_bars = False
    kind = "gpu" if "GPU" in ray.cluster_resources() else "cpu"
    text = charlm.Text(args, 0, 1)
    starts = ray.data.range(args.steps, override_num_blocks=4)
    windows = starts.map_batches(lambda rows: cut(text, rows["id"]), batch_size=None)
    trial = tune.with_parameters(train, args=args, data=windows.materialize())
    folder = args.checkpoint_dir or Path(tempfile.mkdtemp(prefix="tune-ray-"))
    place = str(folder.absolute() / "tune")
    trainable = tune.with_resources(trial, {kind: 1})
    if tune.Tuner.can_restore(place):
        tuner = tune.Tuner.restore(place, trainable, resume_errored=True)
        print(f"resume: search from {place}", flush=True)
    else:
        scheduler = tune.schedulers.ASHAScheduler(max_t=args.steps, grace_period=args.log_every)
        tuner = tune.Tuner(
            trainable,
            param_space={"lr": tune.grid_search(args.rates)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler),
            run_config=tune.RunConfig(name="tune", storage_path=str(folder.absolute()), verbose=0),
        )
    found = tuner.fit()
    if found.num_errors:
        raise SystemExit(f"{found.num_errors} of {len(found)} trials failed: {found.errors[0]}")
    best = found.get_best_result("loss", "min")
    print(f"trials: {len(found)}, best lr {best.config['lr']:g}", flush=True)
    first, last = (best.metrics_dataframe["loss"].iloc[at] for at in (0, -1))
    print(f"done: loss {first:.2f} -> {last:.2f} in {best.metrics['step']} steps", flush=True)


def cut(text: charlm.Text, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Return the batches of these steps, as Ray Data wants them: one array, a row per step."""
    return {"step": steps, "batch": np.stack([text.batch(int(step)).numpy() for step in steps])}


def train(config: dict[str, float], args: argparse.Namespace, data: Any) -> None:
    """Be a trial: train a model at its own learning rate, and report the loss now and then."""
    where = session.device(0)
    torch.manual_seed(args.seed)
    model = charlm.CharLM(args).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    for step, rows in enumerate(data.iter_torch_batches(batch_size=1), start=1):
        loss = model(rows["batch"][0].to(where))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % args.log_every == 0:
            tune.report({"loss": loss.item(), "step": step})


if __name__ == "__main__":
    main()
