"""Explain failed jobs from what their ranks, launchers and schedulers have printed."""
