"""What a training script tells of the framework that it is for, read and never run."""
