"""From a `JobSpec` to a `LaunchPlan` to the text of its files; nothing here has an effect."""
