"""What a training script tells of the framework that it is for, read and never run."""

from clusterkit.scripts.arguments import strayed_flags
from clusterkit.scripts.kinds import cautions
from clusterkit.scripts.reading import Script, Use, read_script

__all__ = ["Script", "Use", "cautions", "read_script", "strayed_flags"]
