"""What a training script tells of the framework that it is for, read and never run."""

from clusterkit.launch.scripts.kinds import cautions, gpu_use
from clusterkit.launch.scripts.programs import require_python, strayed_flags
from clusterkit.launch.scripts.reading import Script, Use, read_script

__all__ = ["Script", "Use", "cautions", "gpu_use", "read_script", "require_python", "strayed_flags"]
